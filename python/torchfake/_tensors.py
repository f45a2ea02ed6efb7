"""`torch.Tensor` on fakes: attributes that only fakes have, methods that never reach the dispatcher, and printing."""

from __future__ import annotations

import functools
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, _tensor_str
from torch._subclasses.meta_utils import is_sparse_any
from torch.autograd import forward_ad
from torch.nested._internal import nested_tensor

from torchfake import _C
from torchfake.errors import DataAccessError, UnknownValuesError, explained
from torchfake.fake import find_fake, holds_fake, set_fake_device
from torchfake.fake_tensor_mode import FakeTensorMode
from torchfake.modes import in_mode_of, mode_of, no_fake_mode

# ---- Attributes ------------------------------------------------------------------------------------------------------
#
# Fakes are plain tensors, so `fake_device`, `fake_mode`, `constant`, `real_tensor` and the memos are descriptors on
# `torch.Tensor` that apply only to fakes: on a real tensor they raise `AttributeError`, and an attribute that a
# subclass or an instance defines takes precedence.


def _real_tensor(fake: Tensor) -> Tensor | None:
    return _C.known_values_of(fake, copy=False) if _C.mode_of(fake).propagate_real_tensors else None


def _nested_int(fake: Tensor) -> torch.SymInt | None:
    """The nested integer that stands for the sizes of jagged tensors with these offsets, if one was made."""
    number: torch.SymInt | None = nested_tensor._tensor_symint_registry.get(fake)  # type: ignore[no-untyped-call]
    return number


def _get_nested_int(fake: Tensor, *, coeff: Any = 1) -> Any:
    """The nested integer that represents it as the offsets of a jagged tensor, times `coeff`."""
    memo = fake.nested_int_memo  # type: ignore[attr-defined]
    if memo is None:
        mode = mode_of(fake)
        if isinstance(mode, FakeTensorMode):
            nested_tensor._tensor_symint_registry.setdefault(fake, mode.create_symbolic_nested_int())  # type: ignore[no-untyped-call]
        memo = nested_tensor.get_tensor_symint(fake)  # type: ignore[no-untyped-call]
    return memo * coeff


_OF_FAKES: dict[str, Callable[[Tensor], Any]] = {
    "constant": lambda fake: _C.constant_of(fake),
    "dispatch_keys": lambda fake: None,
    "fake_device": lambda fake: _C.fake_device(fake),
    "fake_mode": mode_of,
    "get_nested_int": lambda fake: functools.partial(_get_nested_int, fake),
    "item_memo": lambda fake: _C.memo(fake, "item"),
    "nested_int_memo": _nested_int,
    "nonzero_memo": lambda fake: _C.memo(fake, "nonzero"),
    "pytype": lambda fake: None,
    "real_tensor": _real_tensor,
    "unique_consecutive_memo": lambda fake: _C.memo(fake, "unique_consecutive"),
    "unique_memo": lambda fake: _C.memo(fake, "unique"),
}


class _OfFakes:
    """Deliberately has no `__set__`: an attribute of that name that a program sets on a tensor is returned unchanged.

    PyTorch's own FakeTensors set such attributes, and read them often.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._get = _OF_FAKES[name]

    def __get__(self, tensor: Tensor | None, owner: type[Tensor]) -> Any:
        if tensor is None:
            return None  # torch.overrides lists Tensor's attributes, and expects every descriptor to have a __set__
        if not _C.is_plain_fake(tensor):
            raise AttributeError(f"'{type(tensor).__name__}' object has no attribute '{self._name}'")
        return self._get(tensor)


class _OfEngine(_OfFakes):
    """An attribute stored in the engine. Other tensors may have one of that name."""

    def __get__(self, tensor: Tensor | None, owner: type[Tensor]) -> Any:
        if tensor is not None and self._name in vars(tensor):
            return vars(tensor)[self._name]
        return super().__get__(tensor, owner)

    def __set__(self, tensor: Tensor, value: object) -> None:
        if not _C.is_plain_fake(tensor):
            vars(tensor)[self._name] = value
        elif self._name == "fake_device":
            set_fake_device(tensor, value)  # type: ignore[arg-type]
        elif isinstance(value, float | int | torch.SymInt | torch.SymFloat | torch.SymBool):
            _C.set_memo(tensor, _MEMOS[self._name], value)
        elif value is not None:
            raise TypeError(f"{self._name}: expected a number, got {type(value).__qualname__}")
        elif self._get(tensor) is not None:
            raise AttributeError(
                f"{self._name} of a fake cannot be deleted: the engine forgets it at a write, or in a new epoch of the "
                "mode"
            )

    def __delete__(self, tensor: Tensor) -> None:
        if self._name not in vars(tensor):
            raise AttributeError(self._name)
        del vars(tensor)[self._name]


#: The engine's names of what it remembers of a fake.
_MEMOS = {
    "item_memo": "item",
    "nonzero_memo": "nonzero",
    "unique_consecutive_memo": "unique_consecutive",
    "unique_memo": "unique",
}


def make_attribute(name: str) -> Any:
    """The descriptor for an attribute of `torch.Tensor`."""
    return (_OfEngine if name == "fake_device" or name in _MEMOS else _OfFakes)(name)


#: The names of the attributes.
NAMES = tuple(_OF_FAKES)


# ---- Methods ---------------------------------------------------------------------------------------------------------
#
# PyTorch implements these in C from a tensor's dispatch keys or data pointer, neither of which a fake has in that form.


def no_data(name: str, kind: type[DataAccessError] = DataAccessError) -> DataAccessError:
    """The error raised by functions that would read the data of a fake."""
    message = (
        f"{name}: this fake tensor holds no data. Values are known only if they are derived from small constants; "
        "keep this part out of the fake run, or pass the values in."
    )
    return kind(explained(message, kind), name)


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
    if self.is_sparse and isinstance(args[0], Tensor):  # indices, values and perhaps the size
        return torch.sparse_coo_tensor(*args, dtype=self.dtype, device=device or self.device, **kwargs)
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


def _list_of_items(tensor: Tensor) -> Any:
    """A list with a symbol for each value."""
    return tensor.item() if tensor.dim() == 0 else [_list_of_items(each) for each in tensor.unbind(0)]


def _tolist(original: Callable[[Tensor], Any], self: Tensor) -> Any:
    constant = _C.constant_of(self)
    if constant is not None:
        return original(constant)
    on_cpu = self.detach().cpu().clone()  # a copy is contiguous and has its own storage
    if on_cpu.numel() > 0 and not _C.is_known(on_cpu):
        env = mode_of(self).shape_env
        if env is not None and env.allow_scalar_outputs:
            return _list_of_items(self)
        values = _stand_in(self, "tolist()")
        if values is None:
            raise no_data("tolist", UnknownValuesError)
        numbers = values.tolist()
        mode_of(self).stand_ins.last_list = numbers  # type: ignore[attr-defined]
        return numbers
    return original(on_cpu)


def _stand_in(fake: Tensor, name: str) -> Tensor | None:
    """A real tensor of ones within the known bounds, or of False; None if the mode has no stand-ins."""
    value = 0.0 if fake.dtype == torch.bool else _C.element_in_place(fake)
    if not _C.stands_in(fake, name, "False" if fake.dtype == torch.bool else f"{value:g} for each value"):
        return None
    with no_fake_mode():
        return torch.full(fake.shape, value, dtype=fake.dtype)


def read_as(kind: type) -> Callable[..., Any]:
    """`float(x)` and similar, which read the elements of `torch.tensor([x, 2.0])` with the engine disabled."""

    def read(original: Callable[[Tensor], Any], self: Tensor) -> Any:
        number = _C.number_with_engine_off(self) if _C.is_plain_fake(self) else None
        return original(self) if number is None else kind(number)

    return read


def _data_ptr(original: Callable[[Tensor], int], self: Tensor) -> int:
    if _C.is_plain_fake(self) and not _C.mode_of(self).exclusive:
        return _C.address_of(self)
    try:
        return original(self)
    except DataAccessError:
        if not _C.mode_of(self).exclusive or not mode_of(self)._allow_unsafe_data_ptr_access:  # type: ignore[attr-defined]
            raise
    warnings.warn(
        "data_ptr() of a fake tensor is 0: it holds no data. torch._functorch.config."
        "fake_tensor_allow_unsafe_data_ptr_access=False, when the mode is created, makes it an error.",
        DeprecationWarning,
        stacklevel=3,
    )
    return 0


def _numpy(original: Callable[..., Any], self: Tensor, *args: Any, **kwargs: Any) -> Any:
    try:
        return original(self, *args, **kwargs)
    except DataAccessError:  # names data_ptr(), which the program did not call
        values = _stand_in(self, "numpy()") if _C.is_plain_fake(self) and self.device.type == "cpu" else None
        if values is None:
            raise no_data("numpy") from None
        with no_fake_mode():
            return values.numpy(*args, **kwargs)


def _pin_memory(original: Callable[..., Tensor], self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Returns a copy that reports being pinned: there is no memory to pin, and the values stay known."""
    if self.device.type != "cpu" or _C.mode_of(self).exclusive or not torch.cuda.is_available():
        return original(self, *args, **kwargs)
    if getattr(self.untyped_storage(), "_torchfake_is_pinned", False):
        return self
    pinned = self.clone()
    pinned.untyped_storage()._torchfake_is_pinned = True  # type: ignore[attr-defined]
    return pinned


def _is_pinned(original: Callable[..., bool], self: Tensor, *args: Any, **kwargs: Any) -> bool:
    return getattr(self.untyped_storage(), "_torchfake_is_pinned", False) or original(self, *args, **kwargs)


def _dlpack(original: Callable[..., Any], self: Tensor, *args: Any, **kwargs: Any) -> Any:
    # Known values are in CPU memory. PyTorch's own errors take precedence, as on the CPU.
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
        if not _C.is_fake(self):  # another argument is fake
            return original(self, *args, **kwargs)
        return function(original, self, *args, **kwargs)

    return method


#: The replacements, by name in `torch.Tensor`.
FOR_FAKES = {
    name: _for_fakes(name, function)
    for name, function in (
        ("__dlpack__", _dlpack),
        ("data_ptr", _data_ptr),
        ("is_pinned", _is_pinned),
        ("new", _new),
        ("new_tensor", _new_tensor),
        ("numpy", _numpy),
        ("pin_memory", _pin_memory),
        ("tolist", _tolist),
        ("type", _type),
    )
}


# ---- Printing --------------------------------------------------------------------------------------------------------
#
# Fakes print as PyTorch's meta tensors do, with `fake=True`; those of a FakeTensorMode as PyTorch's FakeTensors do.


def _describe(tensor: Tensor, contents: str) -> str:
    is_plain = type(tensor) in (Tensor, torch.nn.Parameter)
    # PyTorch's name for the fakes of such a mode.
    is_fake_tensor = is_plain and _C.is_plain_fake(tensor) and _C.mode_of(tensor).exclusive
    prefix = "FakeTensor(" if is_fake_tensor else "tensor(" if is_plain else f"{type(tensor).__name__}("
    suffixes = []
    if tensor.device.type != torch._C._get_default_device():
        suffixes.append(f"device='{tensor.device}'")
    suffixes.append(f"size={tuple(tensor.shape)}")
    if tensor.dtype != torch.get_default_dtype():  # no value implies it, so int64 and bool are shown too, as for meta
        suffixes.append(f"dtype={tensor.dtype}")
    if is_sparse_any(tensor):
        by_columns = tensor.layout in (torch.sparse_csc, torch.sparse_bsc)
        stored = tensor._values() if tensor.is_sparse else tensor.row_indices() if by_columns else tensor.col_indices()
        suffixes += [f"nnz={stored.shape[0 if tensor.is_sparse else -1]}", f"layout={tensor.layout}"]
    if not is_fake_tensor:
        suffixes.append("fake=True")
    suffixes += _autograd_suffixes(tensor)
    add_suffixes: Callable[..., str] = _tensor_str._add_suffixes
    text = add_suffixes(prefix + contents, suffixes, len(prefix), force_newline=False)
    return f"Parameter({text})" if isinstance(tensor, torch.nn.Parameter) and not is_plain else text


def _autograd_suffixes(tensor: Tensor) -> list[str]:
    try:
        function = tensor.grad_fn
    except RuntimeError:  # a view that was modified in a way autograd does not support
        return ["grad_fn=<Invalid>"]
    suffixes = []
    if function is not None:
        name = type(function).__name__
        suffixes.append(f"grad_fn=<{function.name().rsplit('::', 1)[-1] if name == 'CppFunction' else name}>")
    elif tensor.requires_grad:
        suffixes.append("requires_grad=True")
    tangent = forward_ad.unpack_dual(tensor).tangent  # type: ignore[no-untyped-call]
    return suffixes if tangent is None else [*suffixes, f"tangent={tangent}"]


def _wraps_fake(tensor: Tensor) -> bool:
    """Whether a Python subclass wraps a fake, declared by `__tensor_flatten__` or in a plain attribute."""
    if type(tensor).__torch_dispatch__ is Tensor.__torch_dispatch__:
        return False
    return holds_fake(tensor) or find_fake(vars(tensor).values()) is not None


def str_intern(original: Callable[..., str], tensor: Tensor, *, tensor_contents: str | None = None) -> str:
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor) or torch._is_functional_tensor(tensor):
        return original(tensor, tensor_contents=tensor_contents)
    if _C.is_fake(tensor) or _wraps_fake(tensor):
        return _describe(tensor, "..." if tensor_contents is None else tensor_contents)
    if not _C.in_fake_mode():
        return original(tensor, tensor_contents=tensor_contents)
    with no_fake_mode():  # a mode may refuse operators on real tensors
        return original(tensor, tensor_contents=tensor_contents)


def str_released(original: Callable[..., str], *args: Any, **kwargs: Any) -> str:
    try:
        return original(*args, **kwargs)
    except BaseException as error:
        # The guard restores the thread's dispatch keys when it goes. With the traceback, it would outlive the kernel
        # that prints a real tensor, and restore the keys of that.
        traceback.clear_frames(error.__traceback__)
        raise


def format_tensor(original: Callable[..., str], self: Tensor, spec: str) -> str:
    # A scalar is formatted as its value. If that is unknown and no format is given, its metadata is printed.
    if spec == "" and self.dim() == 0 and _C.is_plain_fake(self) and not _C.is_known(self):
        return str(self.item()) if _C.mode_of(self).has_stand_ins else repr(self)
    return original(self, spec)


# ---- Legacy types ----------------------------------------------------------------------------------------------------


def is_of_legacy_type(original: Callable[[Any, object], bool], kind: Any, instance: object) -> bool:
    """`isinstance(x, torch.ByteTensor)`, which PyTorch decides by the dispatch keys of `x`."""
    if not isinstance(instance, Tensor) or not _C.is_fake(instance):
        return original(kind, instance)
    return (instance.dtype, instance.layout, instance.is_cuda) == (kind.dtype, kind.layout, kind.is_cuda)
