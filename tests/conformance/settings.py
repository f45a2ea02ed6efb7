"""Every global setting of PyTorch that a kernel may read, with the values a program can give it."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Setting:
    """One setting of the process."""

    get: Callable[[], Any]
    set: Callable[[Any], Any]
    values: Sequence[Any]

    @contextlib.contextmanager
    def put(self, value: Any) -> Iterator[None]:
        before = self.get()
        self.set(value)
        try:
            yield
        finally:
            self.set(before)


def attribute(of: Any, name: str, *values: Any) -> Setting:
    return Setting(lambda: getattr(of, name), lambda value: setattr(of, name, value), values or (True, False))


def flag(name: str) -> Setting:
    """A setting of torch.backends. PyTorch's test library, once loaded, refuses to set these there."""
    return Setting(getattr(torch._C, f"_get_{name}"), getattr(torch._C, f"_set_{name}"), (True, False))


def _set_deterministic(value: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(value[0], warn_only=value[1])


_CUDA = torch.backends.cuda
SETTINGS: dict[str, Setting] = {
    "threads": Setting(torch.get_num_threads, torch.set_num_threads, (1, 2, 3)),
    "default dtype": Setting(torch.get_default_dtype, torch.set_default_dtype, (torch.float32, torch.float64)),
    "deterministic": Setting(
        lambda: (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
        _set_deterministic,
        ((True, False), (True, True), (False, False)),
    ),
    "filled memory": attribute(torch.utils.deterministic, "fill_uninitialized_memory"),
    "cudnn": flag("cudnn_enabled"),
    "cudnn benchmark": flag("cudnn_benchmark"),
    "cudnn deterministic": flag("cudnn_deterministic"),
    "mkldnn": flag("mkldnn_enabled"),
    "mkldnn deterministic": flag("mkldnn_deterministic"),
    "nnpack": flag("nnpack_enabled"),
    "flash attention": Setting(_CUDA.flash_sdp_enabled, _CUDA.enable_flash_sdp, (True, False)),
    "efficient attention": Setting(_CUDA.mem_efficient_sdp_enabled, _CUDA.enable_mem_efficient_sdp, (True, False)),
    "math attention": Setting(_CUDA.math_sdp_enabled, _CUDA.enable_math_sdp, (True, False)),
    "cudnn attention": Setting(_CUDA.cudnn_sdp_enabled, _CUDA.enable_cudnn_sdp, (True, False)),
    "reduced math attention": Setting(
        _CUDA.fp16_bf16_reduction_math_sdp_allowed, _CUDA.allow_fp16_bf16_reduction_math_sdp, (True, False)
    ),
    "matmul precision": Setting(
        torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, ("highest", "high", "medium")
    ),
}


def _autocast(device: str, dtype: torch.dtype) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: torch.autocast(device, dtype)


#: Settings of the thread that are entered and left as scopes.
SCOPES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "no_grad": torch.no_grad,
    "inference mode": torch.inference_mode,
    "autocast cpu bfloat16": _autocast("cpu", torch.bfloat16),
    "autocast cpu float16": _autocast("cpu", torch.float16),
    "autocast cuda bfloat16": _autocast("cuda", torch.bfloat16),
    "autocast cuda float16": _autocast("cuda", torch.float16),
}


@contextlib.contextmanager
def shuffled(chance: random.Random) -> Iterator[list[str]]:
    """Changes a few settings to other values, and yields their names."""
    with contextlib.ExitStack() as stack:
        chosen = []
        for name in chance.sample(sorted(SETTINGS), chance.randint(1, 4)):
            value = chance.choice(SETTINGS[name].values)
            stack.enter_context(SETTINGS[name].put(value))
            chosen.append(f"{name}={value}")
        if chance.random() < 0.4:
            name = chance.choice(sorted(SCOPES))
            stack.enter_context(SCOPES[name]())
            chosen.append(name)
        yield chosen


@contextlib.contextmanager
def all_restored() -> Iterator[None]:
    """Restores every setting on exit."""
    with contextlib.ExitStack() as stack:
        for setting in SETTINGS.values():
            stack.enter_context(setting.put(setting.get()))
        yield
