"""Methods of `torch.Tensor` that never reach the dispatcher, taught about fakes.

PyTorch implements these in C by looking at a tensor's keys or data pointer, where a fake has nothing to show.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchfake import _C
from torchfake.errors import DataAccessError, UnknownValuesError
from torchfake.fake import in_mode_of


def no_data(name: str, kind: type[DataAccessError] = DataAccessError) -> DataAccessError:
    """The error of a function that was to read the data of a fake."""
    return kind(
        f"{name}: this fake tensor holds no data. Values are known only where they follow from small constants; keep "
        "this part out of the fake run, or pass the values in.",
        name,
    )


def _new_tensor(
    original: Callable[..., Tensor],
    self: Tensor,
    data: Any,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
    **_layout: Any,
) -> Tensor:
    device = self.device if device is None else device
    if isinstance(data, Tensor):
        copy = data.detach().clone().to(device=device, dtype=self.dtype if dtype is None else dtype)
        return copy.requires_grad_(requires_grad)
    with in_mode_of(self):
        return torch.tensor(
            data,
            dtype=self.dtype if dtype is None else dtype,
            device=device,
            requires_grad=requires_grad,
            pin_memory=pin_memory,
        )


def _new(
    original: Callable[..., Tensor],
    self: Tensor,
    *args: Any,
    device: torch.device | str | None = None,
    **kwargs: Any,
) -> Tensor:
    if not args or all(isinstance(arg, int) for arg in args):
        return self.new_empty(args or (0,), device=device, **kwargs)
    (data,) = args
    if isinstance(data, torch.Size):
        return self.new_empty(data, device=device)
    if torch.is_storage(data):
        return self.new_empty(0, device=device).set_(data)
    if not isinstance(data, Tensor):
        return _new_tensor(original, self, data, device=device, **kwargs)
    if (data.dtype, data.device) != (self.dtype, self.device):
        expected, got = (f"{_legacy_name(tensor)} on {tensor.device}" for tensor in (self, data))
        raise TypeError(f"new: expected a {expected} (got {got})")
    alias: Tensor = torch.ops.aten.alias(data)
    return alias


def _tolist(original: Callable[[Tensor], Any], self: Tensor) -> Any:
    on_cpu = self.detach().cpu().clone()  # a copy has memory of its own, whatever part of one this is
    if on_cpu.numel() > 0 and not _C.is_known(on_cpu):
        raise no_data("tolist", UnknownValuesError)
    return original(on_cpu)


def _numpy(original: Callable[..., Any], self: Tensor, *args: Any, **kwargs: Any) -> Any:
    try:
        return original(self, *args, **kwargs)
    except DataAccessError:  # of data_ptr(), which nobody called
        raise no_data("numpy") from None


def _dlpack(original: Callable[..., Any], self: Tensor, *args: Any, **kwargs: Any) -> Any:
    # Known values lie in the memory of the CPU. PyTorch's own refusals come first, as on the CPU.
    if self.device.type != "cpu" and not self.requires_grad and not self.is_conj():
        raise no_data("dlpack")
    try:
        return original(self, *args, **kwargs)
    except DataAccessError:
        raise no_data("dlpack") from None


def _type(
    original: Callable[..., Any], self: Tensor, dtype: Any = None, non_blocking: bool = False, **kwargs: Any
) -> Any:
    if dtype is not None:
        if isinstance(dtype, torch.dtype):
            return self.to(dtype=dtype, non_blocking=non_blocking)
        name = dtype if isinstance(dtype, str) else f"{dtype.__module__}.{dtype.__name__}"
        return self.to(dtype=_dtype_of(name), device=_device_of(name) or self.device, non_blocking=non_blocking)
    return _legacy_name(self)


_LEGACY_NAMES = {
    torch.float32: "Float",
    torch.float64: "Double",
    torch.float16: "Half",
    torch.bfloat16: "BFloat16",
    torch.uint8: "Byte",
    torch.int8: "Char",
    torch.int16: "Short",
    torch.int32: "Int",
    torch.int64: "Long",
    torch.bool: "Bool",
    torch.complex64: "ComplexFloat",
    torch.complex128: "ComplexDouble",
}


def _legacy_name(tensor: Tensor) -> str:
    module = "torch" if tensor.device.type == "cpu" else f"torch.{tensor.device.type}"
    return f"{module}.{_LEGACY_NAMES.get(tensor.dtype, str(tensor.dtype).removeprefix('torch.'))}Tensor"


def _dtype_of(legacy_name: str) -> torch.dtype:
    kind = legacy_name.rpartition(".")[2].removesuffix("Tensor")
    for dtype, name in _LEGACY_NAMES.items():
        if name == kind:
            return dtype
    raise ValueError(f"invalid type: '{legacy_name}'")


def _device_of(legacy_name: str) -> str | None:
    module = legacy_name.rpartition(".")[0].removeprefix("torch").removeprefix(".")
    return module or "cpu"


def _for_fakes(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def method(original: Callable[..., Any], self: Tensor, *args: Any, **kwargs: Any) -> Any:
        if torch.overrides.has_torch_function_unary(self):
            return torch.overrides.handle_torch_function(getattr(Tensor, name), (self,), self, *args, **kwargs)
        if not _C.is_fake(self):  # another argument is one
            return original(self, *args, **kwargs)
        return function(original, self, *args, **kwargs)

    return method


#: What answers for fakes, by the name in `torch.Tensor`.
FOR_FAKES = {
    name: _for_fakes(name, function)
    for name, function in (
        ("__dlpack__", _dlpack),
        ("new", _new),
        ("new_tensor", _new_tensor),
        ("numpy", _numpy),
        ("tolist", _tolist),
        ("type", _type),
    )
}
