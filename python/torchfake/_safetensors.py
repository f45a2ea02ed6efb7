"""safetensors files inside the mode: fakes from the header alone.

Note [Hooking safetensors]
safetensors reads in Rust and copies into memory it asks a pointer for, so its functions have to be wrapped. It is an
optional dependency, and programs hold copies of its names (`from safetensors import safe_open`). So it is wrapped at
the moment it is imported, before anybody can have a copy; where it was imported before torchfake, once, wherever a copy
is found. Outside the mode the wrappers call the originals. As in Note [Loading in the mode], a single element is read.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import math
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType, TracebackType
from typing import Any

import torch
from torch import Tensor

from torchfake import _C
from torchfake.errors import UnsupportedFakeTensorException
from torchfake.fake import no_fake_mode

_DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "U16": torch.uint16,
    "U32": torch.uint32,
    "U64": torch.uint64,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F4": torch.float4_e2m1fn_x2,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "F8_E8M0": torch.float8_e8m0fnu,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "C64": torch.complex64,
}


def _empty(dtype_name: str, shape: Sequence[int]) -> Tensor:
    dtype = _DTYPES.get(dtype_name)
    if dtype is None:
        raise UnsupportedFakeTensorException(f"safetensors: PyTorch has no dtype for {dtype_name}", "safetensors")
    if dtype is torch.float4_e2m1fn_x2:  # one element holds two of the file's
        shape = (*shape[:-1], shape[-1] // 2)
    return torch.empty(tuple(shape), dtype=dtype, device="cpu")


def _known(number: Tensor) -> Tensor:
    """A fake that knows the values of a real tensor, as `torch.tensor` makes them."""
    return torch.ops.aten.lift_fresh(number)  # type: ignore[no-any-return]


class _FakeSlice:
    """What `get_slice` returns in the mode."""

    def __init__(self, real: Any, device: torch.device) -> None:
        self._real = real
        self._device = device

    def get_shape(self) -> list[int]:
        return self._real.get_shape()  # type: ignore[no-any-return]

    def get_dtype(self) -> str:
        return self._real.get_dtype()  # type: ignore[no-any-return]

    def __getitem__(self, index: Any) -> Tensor:
        return self._whole()[index].to(self._device)

    def _whole(self) -> Tensor:
        if math.prod(self.get_shape()) != 1:
            return _empty(self.get_dtype(), self.get_shape())
        with no_fake_mode():
            number = self._real[...]
        return _known(number)


class _FakeSafeOpen:
    """What `safe_open` returns in the mode. The library reads the header and answers for it; data is not asked for."""

    def __init__(self, real: Any, device: torch.device) -> None:
        self._real = real
        self._device = device

    def __enter__(self) -> _FakeSafeOpen:
        self._real.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._real.__exit__(kind, error, traceback)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)  # keys, offset_keys, metadata

    def get_slice(self, name: str) -> _FakeSlice:
        return _FakeSlice(self._real.get_slice(name), self._device)

    def get_tensor(self, name: str) -> Tensor:
        return self.get_slice(name)[...]

    def get_tensors(self) -> dict[str, Tensor]:
        return {name: self.get_tensor(name) for name in self._real.offset_keys()}


def _wrap_safe_open(real: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(real, updated=())
    def safe_open(filename: Any, framework: str, device: Any = "cpu", **kwargs: Any) -> Any:
        if not _C.in_fake_mode() or framework not in ("pt", "torch", "pytorch"):
            return real(filename, framework, device, **kwargs)
        claimed = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
        return _FakeSafeOpen(real(filename, framework, "cpu", **kwargs), claimed)

    return safe_open


def _wrap_load(real: Callable[[bytes], dict[str, Tensor]]) -> Callable[[bytes], dict[str, Tensor]]:
    @functools.wraps(real)
    def load(data: bytes) -> dict[str, Tensor]:
        if not _C.in_fake_mode():
            return real(data)
        # The file format: the header's length in 8 bytes, the header as JSON, the data.
        start = 8 + int.from_bytes(data[:8], "little")
        entries = json.loads(data[8:start])
        entries.pop("__metadata__", None)
        loaded = {}
        for name, entry in entries.items():
            loaded[name] = _empty(entry["dtype"], entry["shape"])
            if loaded[name].numel() == 1:
                begin, end = entry["data_offsets"]
                with no_fake_mode():
                    number = torch.frombuffer(bytearray(data[start + begin : start + end]), dtype=loaded[name].dtype)
                loaded[name] = _known(number.reshape(entry["shape"]))
        return loaded

    return load


_WRAPPERS: dict[str, tuple[str, Callable[..., Any]]] = {
    "safetensors": ("safe_open", _wrap_safe_open),
    "safetensors.torch": ("load", _wrap_load),
}


def _wrap_module(module: ModuleType) -> tuple[Any, Any]:
    """Wraps the module's function. Returns the original and the wrapper."""
    name, wrap = _WRAPPERS[module.__name__]
    real = getattr(module, name)
    setattr(module, name, wrap(real))
    return real, getattr(module, name)


class _Finder(MetaPathFinder):
    """Finds safetensors as everybody else does, and wraps it when it has been executed."""

    def __init__(self, waiting_for: set[str]) -> None:
        self._waiting_for = waiting_for

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._waiting_for:
            return None
        self._waiting_for.remove(fullname)  # the search below comes by here again
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            self._waiting_for.add(fullname)
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            _wrap_module(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _replace_everywhere(real: Any, wrapper: Any) -> None:
    for module in list(sys.modules.values()):
        names = [name for name, value in list(getattr(module, "__dict__", {}).items()) if value is real]
        for name in names:
            setattr(module, name, wrapper)


def install() -> None:
    """Wraps safetensors now if it has been imported, and otherwise when it is. See Note [Hooking safetensors]."""
    imported = [sys.modules[name] for name in _WRAPPERS if name in sys.modules]
    for module in imported:
        _replace_everywhere(*_wrap_module(module))
    waiting_for = set(_WRAPPERS).difference(module.__name__ for module in imported)
    if waiting_for:
        sys.meta_path.insert(0, _Finder(waiting_for))
