"""The memory of claimed devices: what `torch.cuda` reports on a real card, and who owns it.

>>> import torch
>>> import torchfake.memory
>>> with torchfake.fake_mode(), torchfake.memory.track(total_memory=24 << 30) as t:
...     model = torch.nn.Linear(4096, 4096, device="cuda")
...     model(torch.zeros(64, 4096, device="cuda")).sum().backward()
>>> t.peak >> 20
194
>>> {owner: size >> 20 for owner, size in t.at_peak().owners.items() if size >> 20}
{'parameters': 64, 'gradients': 64, 'inputs': 1, 'temporaries': 1, 'workspaces': 64}

A mode has one memory model, created by `attach` or `track`; the functions here apply to the active mode. They have the
meaning of their namesakes in `torch.cuda`.
"""

from __future__ import annotations

import pickle
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from torchfake import _C
from torchfake._cards import find_card
from torchfake._memory_report import Report
from torchfake._memory_summary import summary_of
from torchfake._memory_tracking import Moment, Tracker, model_of_mode
from torchfake._search import Search
from torchfake.modes import fake_mode

__all__ = [
    "Moment",
    "Report",
    "Tracker",
    "allocated",
    "attach",
    "detach",
    "dump_snapshot",
    "empty_cache",
    "host",
    "largest",
    "max_allocated",
    "max_reserved",
    "mem_get_info",
    "memory_fraction",
    "reserved",
    "reset_accumulated_stats",
    "reset_peak_stats",
    "set_per_process_memory_fraction",
    "snapshot",
    "stats",
    "stats_as_nested_dict",
    "summary",
    "track",
]

Device = torch.device | str | int | None


def attach(
    mode: _C.ModeState | None = None,
    *,
    total_memory: int,
    compute_capability: tuple[int, int] = (9, 0),
    context_memory: int | None = None,
    unlimited: bool = False,
    config: str | None = None,
    release: int | None = None,
) -> _C.MemoryModel:
    """Models the memory of a mode's devices from here on. Must be called while no other thread is using the mode.

    Args:
        mode: The state of the mode; None for the active one.
        total_memory: Bytes of each card.
        compute_capability: Determines the size of cuBLAS's workspaces.
        context_memory: Bytes of the CUDA context; defaults to those on an H200.
        unlimited: Continues past the card's size instead of raising `torch.OutOfMemoryError`.
        config: The allocator's options; defaults to `PYTORCH_ALLOC_CONF`.
        release: The minor version of PyTorch 2 to model; defaults to the installed one.
    """
    state = mode if mode is not None else _C.current_mode()
    if state is None:
        raise RuntimeError("memory.attach: no mode is entered; pass one, or enter it first")
    model = _C.MemoryModel(
        total=total_memory,
        capability=compute_capability[0],
        context=context_memory,
        unlimited=unlimited,
        config=config,
        release=release,
    )
    _C.set_memory_model(state, model)
    return model


def detach(mode: _C.ModeState | None = None) -> None:
    """Undoes `attach`. Existing storages will not be counted by a model attached later."""
    state = mode if mode is not None else _C.current_mode()
    if state is None:
        raise RuntimeError("memory.detach: no mode is entered; pass one, or enter it first")
    _C.set_memory_model(state, None)


def track(*, lines: bool = False, stacks: bool = False, **card: Any) -> Tracker:
    """Records who owns the memory of the active mode, or of a `fake_mode()` that it enters itself.

    Takes the arguments of `attach` for a mode without a model; the default card has 80 GiB. With `lines=True` every
    block records the file and line of the program that allocated it, which takes time; with `stacks=True` also the
    lines that led there.
    """
    return Tracker(card, lines, stacks)


def _model() -> _C.MemoryModel:
    model = model_of_mode()
    if model is None:
        raise RuntimeError(
            "torchfake.memory: the mode has no model of memory; call memory.attach() or use memory.track()"
        )
    return model


def _name(device: Device) -> str:
    if device is None or (isinstance(device, (str, torch.device)) and torch.device(device).index is None):
        kind = "cuda" if device is None else torch.device(device).type
        return f"{kind}:0"
    if isinstance(device, int):
        return f"cuda:{device}"
    return str(torch.device(device))


def allocated(device: Device = None) -> int:
    """Bytes in allocated blocks: `torch.cuda.memory_allocated`."""
    return _model().allocated(_name(device))


def reserved(device: Device = None) -> int:
    """Bytes in segments: `torch.cuda.memory_reserved`."""
    return _model().reserved(_name(device))


def max_allocated(device: Device = None) -> int:
    """The peak of allocated bytes since the start or `reset_peak_stats`: `torch.cuda.max_memory_allocated`."""
    return int(stats(device)["allocated_bytes.all.peak"])


def max_reserved(device: Device = None) -> int:
    """The peak of reserved bytes: `torch.cuda.max_memory_reserved`."""
    return int(stats(device)["reserved_bytes.all.peak"])


def stats_as_nested_dict(device: Device = None) -> dict[str, Any]:
    """`torch.cuda.memory_stats_as_nested_dict`."""
    return _model().stats(_name(device))


def stats(device: Device = None) -> dict[str, Any]:
    """`torch.cuda.memory_stats`: all of its keys, sorted."""
    found: list[tuple[str, Any]] = []

    def add(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                add(f"{prefix}.{key}" if prefix else str(key), inner)
        else:
            found.append((prefix, value))

    add("", stats_as_nested_dict(device))
    return OrderedDict(sorted(found))


def summary(device: Device = None, abbreviated: bool = False) -> str:
    """The table of `torch.cuda.memory_summary`."""
    name = _name(device)
    return summary_of(stats(name), int(name.partition(":")[2]), abbreviated)


def snapshot(device: Device = None) -> list[dict[str, Any]]:
    """Segments and their blocks, as in `torch.cuda.memory_snapshot`."""
    return _model().segments(_name(device))


def dump_snapshot(path: str | Path, devices: int = 1) -> None:
    """Writes segments and blocks to a file for PyTorch's memory viewer. Does not include the history of allocations."""
    segments = [segment for index in range(devices) for segment in snapshot(index)]
    traces: list[list[Any]] = [[] for _ in range(devices)]
    content = {"segments": segments, "device_traces": traces, "allocator_settings": {}, "external_annotations": []}
    Path(path).write_bytes(pickle.dumps(content))


def largest(run: Callable[[int], object], values: range, *, gpu: str | None = None, **card: Any) -> int | None:
    """The largest of `values` for which `run` completes without running out of memory, or None.

    Each value is tried in a mode of its own, with the card `gpu` (`"L40S"`) or one described by the arguments of
    `attach`. Few values are tried, because a value that needs more memory than one that does not fit is assumed not to
    fit, and because runs without a limit show where the limit is.

    >>> import torch
    >>> from torchfake import memory
    >>> def train(batch):
    ...     model = torch.nn.Linear(8192, 8192, device="cuda")
    ...     model(torch.zeros(batch, 8192, device="cuda")).sum().backward()
    >>> memory.largest(train, range(1000, 100_000, 1000), total_memory=4 << 30)
    33000
    >>> memory.largest(train, range(1000, 100_000, 1000), gpu="T4")
    99000
    """
    if (gpu is None) == (not card):
        raise TypeError("memory.largest: pass gpu=, or the card as memory.attach takes it")
    known = None if gpu is None else find_card(gpu)

    def attempt(value: int, unlimited: bool) -> tuple[int, int]:
        with fake_mode(gpus=gpu, unlimited=unlimited and gpu is not None):
            if known is None:
                attach(**card, unlimited=unlimited)
            free, total = mem_get_info(0)
            model, context = _model(), total - free
            run(value)
            peaks = [model.stats("cuda:0")[f"{kind}_bytes"]["all"]["peak"] for kind in ("allocated", "reserved")]
            return peaks[0] + context, peaks[1] + context

    def confirm(value: int) -> bool:
        try:
            attempt(value, unlimited=False)
        except torch.OutOfMemoryError:
            return False
        return True

    limit = card["total_memory"] if known is None else known.total_memory
    ordered = values if values.step > 0 else values[::-1]
    return Search(ordered, limit, lambda value: attempt(value, unlimited=True), confirm).largest()


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """Free and total bytes of the card: `torch.cuda.mem_get_info`."""
    return _model().memory_info(_name(device))


def reset_peak_stats(device: Device = None) -> None:
    """`torch.cuda.reset_peak_memory_stats`."""
    _model().reset_peak_stats(_name(device))


def reset_accumulated_stats(device: Device = None) -> None:
    """`torch.cuda.reset_accumulated_memory_stats`."""
    _model().reset_accumulated_stats(_name(device))


def empty_cache(device: Device = None) -> None:
    """`torch.cuda.empty_cache`."""
    _model().empty_cache(_name(device))


def set_per_process_memory_fraction(fraction: float, device: Device = None) -> None:
    """`torch.cuda.set_per_process_memory_fraction`."""
    if not isinstance(fraction, float):
        raise TypeError("Invalid type for fraction argument, must be `float`")
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    _model().set_memory_fraction(_name(device), fraction)


def memory_fraction(device: Device = None) -> float:
    """`torch.cuda.get_per_process_memory_fraction`."""
    return _model().memory_fraction(_name(device))


def host() -> tuple[int, int]:
    """Bytes of fakes on the CPU, and their peak."""
    return _model().host_bytes()
