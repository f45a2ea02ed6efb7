"""`torch.cuda`, `torch.accelerator` and related modules in a mode: they describe the cards that the mode claims.

Each function below takes the cards of the mode, then the program's arguments. In a FakeTensorMode, which claims devices
as PyTorch's does, the original is called (`on_cards`).
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from torchfake import _C, _card_pools
from torchfake._card_runtime import RUNTIME, index_of, nothing
from torchfake._cards import CONTEXT_BYTES, CUDNN_VERSION, NCCL_VERSION, Card, Cards
from torchfake.modes import current_mode, fake_mode, has_entered

_SEGMENT = 2 << 20  # the minimum that PyTorch's allocator reserves


def current_cards() -> Cards | None:
    """The cards of this thread's mode; None outside of a mode and in a FakeTensorMode."""
    mode = current_mode()
    return mode.cards if isinstance(mode, fake_mode) else None


def on_cards(function: Callable[..., Any]) -> Callable[..., Any]:
    """A replacement that calls `function(cards, ...)` if the mode has cards, and the original otherwise."""

    @functools.wraps(function)
    def by(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        cards = current_cards()
        return original(*args, **kwargs) if cards is None else function(cards, *args, **kwargs)

    return by


def _checked(cards: Cards, device: Any = None) -> int:
    index = index_of(device)
    cards[index]
    return index


# ---- Devices ---------------------------------------------------------------------------------------------------------


def _is_available(cards: Cards) -> bool:
    return len(cards) > 0


def _device_count(cards: Cards) -> int:
    return len(cards)


def _is_initialized(cards: Cards) -> bool:
    return len(cards) > 0


def _init(cards: Cards) -> None:
    if len(cards) == 0:
        raise RuntimeError("No CUDA GPUs are available")


def lazy_init(original: Callable[[], None]) -> None:
    """`torch.cuda._lazy_init`, which factories call for a CUDA device."""
    cards = current_cards()
    if cards is not None:
        _init(cards)
        return
    try:
        original()
    except (AssertionError, RuntimeError) as error:
        if _C.claimed_device_count() > 0 and has_entered():  # not shown to programs that do not use fakes
            # Added as a note, so that the error message itself is exactly PyTorch's.
            error.add_note(
                "Fake tensors claim CUDA devices that this machine does not have. To make another tensor on one, "
                "enter the mode: with fake_mode(): ..."
            )
        raise


class _Properties:
    """The result of `torch.cuda.get_device_properties`: the card's, under PyTorch's names and with its printed form."""

    def __init__(self, card: Card, index: int) -> None:
        self._card = card
        self._number = index
        self.uuid = f"00000000-0000-0000-0000-{index:012x}"
        self.pci_bus_id = index + 1
        self.pci_device_id = 0
        self.pci_domain_id = 0
        self.gcnArchName = card.name  # PyTorch's name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._card, name)

    def __repr__(self) -> str:
        card = self._card
        return (
            f"_CudaDeviceProperties(name='{card.name}', major={card.major}, minor={card.minor}, "
            f"total_memory={card.total_memory >> 20}MB, multi_processor_count={card.multi_processor_count}, "
            f"uuid={self.uuid}, pci_bus_id={self.pci_bus_id}, pci_device_id={self.pci_device_id}, "
            f"pci_domain_id={self.pci_domain_id}, L2_cache_size={card.L2_cache_size >> 20}MB)"
        )


def _get_device_properties(cards: Cards, device: Any = None) -> _Properties:
    index = _checked(cards, device)
    return _Properties(cards[index], index)


def _get_device_name(cards: Cards, device: Any = None) -> str:
    return cards[index_of(device)].name


def _get_device_capability(cards: Cards, device: Any = None) -> tuple[int, int]:
    return cards[index_of(device)].capability


def _can_device_access_peer(cards: Cards, device: Any, peer_device: Any) -> bool:
    index, peer = index_of(device), index_of(peer_device)
    for asked, name in ((index, "device"), (peer, "peer device")):
        if not 0 <= asked < len(cards):
            raise AssertionError(f"Invalid {name} id")
    return index != peer


def _get_arch_list(cards: Cards) -> list[str]:
    return list(cards.architectures) if len(cards) else []


def _is_bf16_supported(cards: Cards, including_emulation: bool = True) -> bool:
    return len(cards) > 0 and (including_emulation or cards[index_of()].major >= 8)


def _is_tf32_supported(cards: Cards) -> bool:
    return len(cards) > 0 and cards[index_of()].major >= 8


def _get_gencode_flags(cards: Cards) -> str:
    numbers = [(kind, number) for kind, _, number in (arch.partition("_") for arch in _get_arch_list(cards))]
    return " ".join(f"-gencode compute=compute_{number},code={kind}_{number}" for kind, number in numbers)


def _true_if_any(cards: Cards, *args: Any, **kwargs: Any) -> bool:
    return len(cards) > 0


_setting_flags = threading.local()


def _cudnn_is_available(cards: Cards) -> bool:
    return len(cards) > 0 and not getattr(_setting_flags, "now", False)


def set_flags(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`torch.backends.cudnn.set_flags` for the libraries that exist: without cuDNN there is no benchmark_limit."""
    outer, _setting_flags.now = getattr(_setting_flags, "now", False), True
    try:
        return original(*args, **kwargs)
    finally:
        _setting_flags.now = outer


def _cudnn_version(cards: Cards) -> int | None:
    return CUDNN_VERSION if len(cards) else None


def _nccl_version(cards: Cards) -> tuple[int, int, int]:
    return NCCL_VERSION


def _zero(cards: Cards, *args: Any, **kwargs: Any) -> int:
    return 0


def _false(cards: Cards, *args: Any, **kwargs: Any) -> bool:
    return False


def versions(original: ModuleType | type | None) -> type:
    """A stand-in for the module `torch.version` whose `cuda` is that of the cards, in a mode that has some."""

    class _Versions(ModuleType):
        @property
        def cuda(self) -> str | None:
            cards = current_cards()
            own: str | None = vars(self)["cuda"]
            if cards is None:
                return own
            return (own or cards.cuda_version) if len(cards) else None

        @cuda.setter
        def cuda(self, value: str | None) -> None:
            vars(self)["cuda"] = value

    return _Versions


# ---- Memory ----------------------------------------------------------------------------------------------------------
#
# Answered by the allocator model if the mode has one (torchfake.memory), as with `gpus=`. Otherwise the engine counts
# live memory (devices/card_memory.h), and reserved memory is the allocated memory in whole segments.


def _model() -> _C.MemoryModel | None:
    state = _C.current_mode()
    return None if state is None else _C.memory_model(state)


def _reserved(nbytes: int) -> int:
    return -(-nbytes // _SEGMENT) * _SEGMENT


def _counter(cards: Cards) -> _C.CardMemory:
    assert cards.counter is not None  # cards without a counter have a model
    return cards.counter


def _statistic(current: int, peak: int, allocated: int) -> dict[str, dict[str, int]]:
    values = {"current": current, "peak": peak, "allocated": allocated, "freed": allocated - current}
    empty = dict.fromkeys(values, 0)
    return {"all": values, "large_pool": dict(values), "small_pool": empty}


def _memory_stats(cards: Cards, device: Any = None) -> dict[str, Any]:
    index = _checked(cards, device)
    if (model := _model()) is not None:
        return model.stats(f"cuda:{index}")
    memory = _counter(cards)
    current, peak = memory.allocated(index), memory.peak(index)
    live, total = memory.live(index), memory.allocations(index)
    in_bytes = _statistic(current, peak, max(peak, current))
    held = _statistic(_reserved(current), _reserved(peak), _reserved(max(peak, current)))
    in_blocks = _statistic(live, live, total)
    none = _statistic(0, 0, 0)
    return {
        "allocation": in_blocks,
        "segment": in_blocks,
        "active": in_blocks,
        "inactive_split": none,
        "allocated_bytes": in_bytes,
        "reserved_bytes": held,
        "active_bytes": in_bytes,
        "inactive_split_bytes": none,
        "requested_bytes": in_bytes,
        "oversize_allocations": {"current": 0, "peak": 0, "allocated": 0, "freed": 0},
        "oversize_segments": {"current": 0, "peak": 0, "allocated": 0, "freed": 0},
        "num_alloc_retries": 0,
        "num_ooms": 0,
        "num_sync_all_streams": 0,
        "num_device_alloc": total,
        "num_device_free": 0,
        "max_split_size": -1,
    }


def _reset_peak(cards: Cards, device: Any = None) -> None:
    index = _checked(cards, device)
    if (model := _model()) is not None:
        model.reset_peak_stats(f"cuda:{index}")
    else:
        _counter(cards).reset_peak(index)


def _reset_accumulated(cards: Cards, device: Any = None) -> None:
    index = _checked(cards, device)
    if (model := _model()) is not None:
        model.reset_accumulated_stats(f"cuda:{index}")


def _empty_cache(cards: Cards) -> None:
    if (model := _model()) is not None:
        for index in range(len(cards)):
            model.empty_cache(f"cuda:{index}")


def _set_memory_fraction(cards: Cards, fraction: float, device: Any = None) -> None:
    index = _checked(cards, device)
    if not isinstance(fraction, float):
        raise TypeError("Invalid type for fraction argument, must be `float`")
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    if (model := _model()) is not None:
        model.set_memory_fraction(f"cuda:{index}", fraction)


def _memory_fraction(cards: Cards, device: Any = None) -> float:
    index = _checked(cards, device)
    model = _model()
    return 1.0 if model is None else model.memory_fraction(f"cuda:{index}")


def _memory_snapshot(cards: Cards, *args: Any, **kwargs: Any) -> list[dict[str, Any]]:
    model = _model()
    if model is None:
        return []
    return [segment for index in range(len(cards)) for segment in model.segments(f"cuda:{index}")]


def _mem_get_info(cards: Cards, device: Any = None) -> tuple[int, int]:
    index = _checked(cards, device)
    if (model := _model()) is not None:
        return model.memory_info(f"cuda:{index}")
    total = cards[index].total_memory
    return max(total - CONTEXT_BYTES - _reserved(_counter(cards).allocated(index)), 0), total


def _device_memory_used(cards: Cards, device: Any = None) -> int:
    free, total = _mem_get_info(cards, device)
    return total - free


def _of_cuda(name: str) -> Callable[..., Any]:
    """The function of `torch.cuda` of that name, for `torch.accelerator`."""

    def function(cards: Cards, *args: Any, **kwargs: Any) -> Any:
        return getattr(torch.cuda, name)(*args, **kwargs)

    function.__qualname__ = f"_of_cuda({name})"
    return function


# ---- Random numbers --------------------------------------------------------------------------------------------------


def _generators(cards: Cards) -> Iterator[torch.Generator]:
    for index in range(len(cards)):
        yield _C.default_generator(torch.device("cuda", index))


def _manual_seed_all(cards: Cards, seed: int) -> None:
    for generator in _generators(cards):
        generator.manual_seed(int(seed))


def _seed(cards: Cards) -> None:
    _C.default_generator(torch.device("cuda", index_of())).seed()


def _seed_all(cards: Cards) -> None:
    seed = None
    for generator in _generators(cards):
        seed = generator.seed() if seed is None else generator.manual_seed(seed).initial_seed()


# ---- Graphs ----------------------------------------------------------------------------------------------------------


def new_graph(original: Callable[..., Any], called: type, *args: Any, **kwargs: Any) -> Any:
    if called is torch.cuda.CUDAGraph and current_cards() is not None:
        return _card_pools.CardGraph(*args, **kwargs)
    return original(called, *args, **kwargs)


def begin_capture(original: Callable[..., None], self: Any) -> None:
    if current_cards() is None:
        original(self)
        return
    torch.cuda.empty_cache()
    self.stream_ctx.__enter__()
    self.cuda_graph.capture_begin(*self.pool, capture_error_mode=self.capture_error_mode)


# ---- Compiled libraries ----------------------------------------------------------------------------------------------


class AllocatorState:
    """The state of a caching allocator, which claimed cards do not have."""


def allocator_state(original: type | None) -> type:
    return AllocatorState if original is None else original


def load_library(original: Callable[..., None], self: Any, path: Any) -> None:
    """`torch.ops.load_library`, including libraries compiled for CUDA (Note [Libraries compiled for CUDA])."""
    try:
        original(self, path)
    except OSError as error:
        cards = current_cards()
        if cards is None or len(cards) == 0 or not Path(path).is_file():
            raise
        try:
            _C.load_library_compiled_for_cuda(str(path))
        except RuntimeError:
            raise error from None  # the reason is not the absence of CUDA
        self.loaded_libraries.add(path)


# ---- Markers ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _range(cards: Cards, msg: str, *args: Any, **kwargs: Any) -> Iterator[None]:
    yield


#: The functions used in a mode with cards, by module and name.
ON_CARDS: dict[str, Callable[..., Any]] = {
    **RUNTIME,
    **_card_pools.ON_CARDS,
    "torch.cuda:is_available": _is_available,
    "torch.cuda:device_count": _device_count,
    "torch.cuda:is_initialized": _is_initialized,
    "torch.cuda:init": _init,
    "torch.cuda:get_device_properties": _get_device_properties,
    "torch.cuda:get_device_name": _get_device_name,
    "torch.cuda:can_device_access_peer": _can_device_access_peer,
    "torch.cuda:get_arch_list": _get_arch_list,
    "torch.cuda:get_gencode_flags": _get_gencode_flags,
    "torch.cuda:is_tf32_supported": _is_tf32_supported,
    "torch.cuda:ipc_collect": nothing,
    "torch.cuda:_sleep": nothing,
    "torch.cuda:utilization": _zero,
    "torch.cuda:memory_usage": _zero,
    "torch.cuda:temperature": _zero,
    "torch.cuda:power_draw": _zero,
    "torch.cuda:device_memory_used": _device_memory_used,
    "torch.cuda.memory:memory_stats_as_nested_dict": _memory_stats,
    "torch.cuda.memory:reset_peak_memory_stats": _reset_peak,
    "torch.cuda.memory:reset_max_memory_allocated": _reset_peak,
    "torch.cuda.memory:reset_accumulated_memory_stats": _reset_accumulated,
    "torch.cuda.memory:empty_cache": _empty_cache,
    "torch.cuda.memory:set_per_process_memory_fraction": _set_memory_fraction,
    "torch.cuda.memory:get_per_process_memory_fraction": _memory_fraction,
    "torch.cuda.memory:memory_snapshot": _memory_snapshot,
    "torch.cuda.memory:mem_get_info": _mem_get_info,
    "torch.cuda.random:manual_seed_all": _manual_seed_all,
    "torch.cuda.random:seed": _seed,
    "torch.cuda.random:seed_all": _seed_all,
    "torch.cuda.graphs:is_current_stream_capturing": _false,
    "torch.cuda.nccl:is_available": _true_if_any,
    "torch.cuda.nccl:version": _nccl_version,
    "torch.cuda.nvtx:range_end": nothing,
    "torch.cuda.nvtx:mark": nothing,
    "torch.cuda.nvtx:range": _range,
    "torch.backends.cuda:is_built": _true_if_any,
    "torch.backends.cudnn:m.is_available": _cudnn_is_available,
    "torch.backends.cudnn:m.version": _cudnn_version,
    "torch.distributed:is_nccl_available": _true_if_any,
    "torch.accelerator:is_available": _is_available,
    "torch.accelerator:device_count": _device_count,
    "torch.accelerator:synchronize": nothing,
    **{
        f"torch.accelerator.memory:{name}": _of_cuda(of_cuda)
        for name, of_cuda in (
            ("empty_cache", "empty_cache"),
            ("memory_stats", "memory_stats"),
            ("memory_allocated", "memory_allocated"),
            ("max_memory_allocated", "max_memory_allocated"),
            ("memory_reserved", "memory_reserved"),
            ("max_memory_reserved", "max_memory_reserved"),
            ("reset_accumulated_memory_stats", "reset_accumulated_memory_stats"),
            ("reset_peak_memory_stats", "reset_peak_memory_stats"),
            ("get_memory_info", "mem_get_info"),
        )
    },
}


def get_device_capability(original: Callable[..., tuple[int, int]], device: Any = None) -> tuple[int, int]:
    cards = current_cards()
    return (9, 0) if cards is None else _get_device_capability(cards, device)  # a FakeTensorMode's GPU is an H200


def is_bf16_supported(original: Callable[..., bool], *args: Any, **kwargs: Any) -> bool:
    cards = current_cards()
    return cards is None or _is_bf16_supported(cards, *args, **kwargs)


def get_device_module(original: Any, device: Any = None) -> ModuleType:
    cards = current_cards()
    if device is None and cards is not None and len(cards) > 0:
        return torch.cuda
    module: ModuleType = original.__wrapped__(device)
    return module


def get_accelerator(original: Any, *args: Any, **kwargs: Any) -> torch.device:
    cards = current_cards()
    has_cards = cards is not None and len(cards) > 0
    return torch.device("cuda") if has_cards else original(*args, **kwargs)
