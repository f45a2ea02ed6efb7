"""What is below `torch.cuda` on a virtual card: the runtime, library handles, pinned memory, pools."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import torch

from torchfake import _C
from torchfake._cards import Cards

_MIB = 1 << 20


def index_of(device: Any = None) -> int:
    """The index of a card from an argument of a `torch.cuda` function; None means the current card."""
    if isinstance(device, torch.device) and device.type != "cuda":
        raise ValueError(f"Expected a cuda device, but got: {device}")
    if device is None or (isinstance(device, torch.device) and device.index is None):
        return _C.exchange_device("cuda", None)
    if isinstance(device, str):
        return index_of(torch.device(device))
    index: int = torch.cuda._utils._get_device_index(device, optional=True)
    return index


def nothing(cards: Cards, *args: Any, **kwargs: Any) -> None:
    """Does nothing: no work runs on a claimed card."""


# ---- The runtime -----------------------------------------------------------------------------------------------------


class _Error(enum.IntEnum):
    success = 0


class _Runtime:
    """The object that `torch.cuda.cudart()` returns."""

    cudaError = _Error

    def __init__(self, cards: Cards) -> None:
        self._cards = cards

    def cudaProfilerStart(self) -> _Error:
        return _Error.success

    def cudaProfilerStop(self) -> _Error:
        return _Error.success

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> _Error:
        return _Error.success

    def cudaHostUnregister(self, address: int) -> _Error:
        return _Error.success

    def cudaStreamCreate(self, address: int) -> _Error:
        return _Error.success

    def cudaStreamDestroy(self, stream: int) -> _Error:
        return _Error.success

    def cudaGetErrorString(self, error: int) -> str:
        return "no error" if error == 0 else "unrecognized error code"

    def cudaMemGetInfo(self, device: int) -> tuple[int, int]:
        return torch.cuda.mem_get_info(device)


def _cudart(cards: Cards) -> _Runtime:
    return _Runtime(cards)


def _check_error(cards: Cards, res: int) -> None:
    if int(res) != 0:
        raise RuntimeError(f"unrecognized error code ({int(res)})")  # the message of torch.cuda.CudaError


def _handle(cards: Cards) -> int:
    """A number standing for a library's handle on the current card: never dereferenced, never 0."""
    return 0x7F0000000000 + (index_of() + 1) * 4096


def _clock_rate(cards: Cards, device: Any = None) -> int:
    return cards[index_of(device)].clock_rate // 1000


def _set_sync_debug_mode(cards: Cards, debug_mode: int | str) -> None:
    modes = {"default": 0, "warn": 1, "error": 2}
    if isinstance(debug_mode, str):
        if debug_mode not in modes:
            raise RuntimeError("invalid value of debug_mode, expected one of `default`, `warn`, `error`")
        debug_mode = modes[debug_mode]
    if debug_mode not in modes.values():
        raise RuntimeError("invalid value of debug_mode, expected 0, 1 or 2")
    cards.sync_debug_mode = debug_mode


def _get_sync_debug_mode(cards: Cards) -> int:
    return cards.sync_debug_mode


def _range_push(cards: Cards, msg: str) -> int:
    cards.ranges += 1
    return cards.ranges - 1


def _range_pop(cards: Cards) -> int:
    cards.ranges = max(cards.ranges - 1, -1)
    return cards.ranges


def _range_start(cards: Cards, msg: str) -> int:
    return 1


# ---- Memory ----------------------------------------------------------------------------------------------------------


def _change_allocator(cards: Cards, allocator: Any) -> None:
    raise RuntimeError("Can't swap an already initialized allocator")  # as when a real card is in use


def _host_statistics(cards: Cards) -> dict[str, Any]:
    """Statistics of pinned memory. They are empty, because pinned memory is not allocated on a virtual card."""
    none = {"current": 0, "peak": 0, "allocated": 0, "freed": 0}
    timing = {"total": 0, "max": 0, "min": 0, "count": 0, "avg": 0}
    return {
        **{
            name: dict(none)
            for name in ("allocations", "allocated_bytes", "active_requests", "active_bytes", "segments")
        },
        "host_alloc_time": dict(timing),
        "host_free_time": dict(timing),
        "num_host_alloc": 0,
        "num_host_free": 0,
    }


def _host_memory_stats(cards: Cards) -> dict[str, int]:
    flat: dict[str, int] = {}
    for name, value in _host_statistics(cards).items():
        if isinstance(value, dict):
            flat.update({f"{name}.{key}": number for key, number in value.items()})
        else:
            flat[name] = value
    return dict(sorted(flat.items()))


def _allocate(cards: Cards, size: int, device: Any = None, stream: Any = None) -> int:
    memory = torch.empty(int(size), dtype=torch.uint8, device=torch.device("cuda", index_of(device)))
    address = memory.data_ptr()
    cards.given_out[address] = memory
    return address


def _delete(cards: Cards, mem_ptr: int) -> None:
    if cards.given_out.pop(mem_ptr, None) is None:
        raise RuntimeError(f"invalid device pointer: {mem_ptr:#x}")


# ---- Libraries -------------------------------------------------------------------------------------------------------


def _workspace(library: str, before_hopper: int) -> Callable[..., int]:
    """The size of a library's workspace: the one set by the program, else 32 MiB on Hopper and later."""

    def size_of(cards: Cards, size: int | None = None) -> int:
        if size is not None:
            if size < 0:
                raise ValueError(f"{library} workspace size must be non-negative, got {size}")
            cards.workspace_sizes[library] = size
        default = 32 * _MIB if cards[index_of()].major >= 9 else before_hopper
        return cards.workspace_sizes.get(library, default)

    return size_of


def _true(cards: Cards) -> bool:
    return len(cards) > 0


def _can_use(kind: str) -> Callable[..., bool]:
    """Whether one kind of attention supports the arguments: whether it is chosen before the plain formula."""

    def can_use(cards: Cards, params: Any, debug: bool = False) -> bool:
        backend = getattr(torch.nn.attention.SDPBackend, kind)
        with torch.nn.attention.sdpa_kernel([backend, torch.nn.attention.SDPBackend.MATH], set_priority=True):
            chosen = torch._fused_sdp_choice(
                params.query,
                params.key,
                params.value,
                attn_mask=params.attn_mask,
                dropout_p=params.dropout,
                is_causal=params.is_causal,
                enable_gqa=params.enable_gqa,
            )
        return bool(chosen == int(backend))

    return can_use


def _get_device_capability(cards: Cards, device: Any = None, /) -> dict[str, Any]:
    """What `torch.accelerator` reports about a card: the dtypes that PyTorch supports on CUDA."""
    cards[index_of(device)]
    names = (
        "float32 float64 float16 bfloat16 complex32 complex64 complex128 int8 int16 int32 int64 uint8 uint16 uint32 "
        "uint64 bool float8_e5m2 float8_e4m3fn float8_e8m0fnu float4_e2m1fn_x2"
    )
    return {"supported_dtypes": {getattr(torch, name) for name in names.split()}}


# ---- Profilers -------------------------------------------------------------------------------------------------------


def new_profile(original: Callable[..., None], self: Any, *args: Any, **kwargs: Any) -> None:
    """A profiler that times the fake run on the CPU: a PyTorch without CUDA would record an event for each operator."""
    original(self, *args, **kwargs)
    states = type(self.profiler_kind)
    if self.profiler_kind == states.KINETO_GPU_FALLBACK:
        self.profiler_kind = states.KINETO


def new_emit_nvtx(original: Callable[..., None], self: Any, enabled: bool = True, record_shapes: bool = False) -> None:
    """Markers for a profiler of GPUs, which sees no claimed one."""
    original(self, enabled=False, record_shapes=record_shapes)


#: The functions used in a mode with cards, by module and name.
RUNTIME: dict[str, Callable[..., Any]] = {
    "torch.cuda:cudart": _cudart,
    "torch.cuda:check_error": _check_error,
    "torch.cuda.profiler:cudart": _cudart,
    "torch.cuda.profiler:check_error": _check_error,
    "torch.cuda:current_blas_handle": _handle,
    "torch.cuda:current_solver_handle": _handle,
    "torch.cuda:clock_rate": _clock_rate,
    "torch.cuda:set_sync_debug_mode": _set_sync_debug_mode,
    "torch.cuda:get_sync_debug_mode": _get_sync_debug_mode,
    "torch.cuda.nvtx:range_push": _range_push,
    "torch.cuda.nvtx:range_pop": _range_pop,
    "torch.cuda.nvtx:range_start": _range_start,
    "torch.cuda.memory:change_current_allocator": _change_allocator,
    "torch.cuda.memory:caching_allocator_enable": nothing,
    "torch.cuda.memory:caching_allocator_alloc": _allocate,
    "torch.cuda.memory:caching_allocator_delete": _delete,
    "torch.cuda.memory:host_memory_stats": _host_memory_stats,
    "torch.cuda.memory:host_memory_stats_as_nested_dict": _host_statistics,
    "torch.cuda.memory:reset_accumulated_host_memory_stats": nothing,
    "torch.cuda.memory:reset_peak_host_memory_stats": nothing,
    "torch.accelerator:get_device_capability": _get_device_capability,
    "torch.accelerator.memory:empty_host_cache": nothing,
    "torch.backends.cuda:cublas_workspace_size": _workspace("cuBLAS", 8_519_680),
    "torch.backends.cuda:cublaslt_workspace_size": _workspace("cuBLASLt", _MIB),
    "torch.backends.cuda:is_flash_attention_available": _true,
    "torch.backends.cuda:can_use_flash_attention": _can_use("FLASH_ATTENTION"),
    "torch.backends.cuda:can_use_efficient_attention": _can_use("EFFICIENT_ATTENTION"),
    "torch.backends.cuda:can_use_cudnn_attention": _can_use("CUDNN_ATTENTION"),
}
