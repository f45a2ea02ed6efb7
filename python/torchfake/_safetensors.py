"""safetensors files inside the mode: fakes from the header alone.

safetensors reads in Rust and copies into memory it asks a pointer for, so its functions have to be replaced. As in
Note [Loading in the mode], a single element is read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

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


def safe_open(original: Callable[..., Any], filename: Any, framework: str, device: Any = "cpu", **kwargs: Any) -> Any:
    if framework not in ("pt", "torch", "pytorch"):
        return original(filename, framework, device, **kwargs)
    claimed = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    return _FakeSafeOpen(original(filename, framework, "cpu", **kwargs), claimed)


def load(original: Callable[[bytes], dict[str, Tensor]], data: bytes) -> dict[str, Tensor]:
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
