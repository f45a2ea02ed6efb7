"""Interoperation with PyTorch's own FakeTensorMode: converting its tensors, and entering it inside our modes."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor as PyTorchsFakeTensor
from torch._subclasses.fake_tensor import FakeTensorMode as PyTorchsMode
from torch.utils._pytree import tree_leaves
from typing_extensions import TypeIs, deprecated

from torchfake import _C
from torchfake.converter import AnyTensor, is_plain, rewrap, with_history
from torchfake.errors import DynamicShapesError, MixedModesError, RealTensorError
from torchfake.fake import FakeTensor, detect_fake_mode, find_fake, holds_fake, write_value
from torchfake.fake_tensor_mode import CONSTANT_NUMEL_LIMIT, FakeTensorMode
from torchfake.modes import Mode, current_mode, no_fake_mode

__all__ = ["from_pytorch_fake", "to_pytorch_fake"]

# PyTorch's mode for each of ours, by the address of its state: fakes that can be used together are converted to fakes
# that can be used together. Tensors keep their mode alive.
_counterparts: weakref.WeakValueDictionary[int, PyTorchsMode] = weakref.WeakValueDictionary()


def from_pytorch_fake(t: Tensor, mode: Mode | None = None) -> FakeTensor:
    """A fake with the metadata of one of PyTorch's own FakeTensors.

    Tensors that share a storage become fakes that share one; `grad` and `constant` are converted too. The result
    belongs to `mode`, by default the active one, or one with default options.

    Raises:
        TypeError: `t` is not one of PyTorch's FakeTensors.
        UnsupportedFakeTensorException: `t` is sparse or has symbolic sizes.

    >>> import torch
    >>> from torch._subclasses.fake_tensor import FakeTensorMode
    >>> from torchfake import from_pytorch_fake
    >>> with FakeTensorMode():
    ...     x = torch.ones(2, 3)
    >>> from_pytorch_fake(x)
    tensor(..., size=(2, 3), fake=True)
    """
    if not isinstance(t, PyTorchsFakeTensor):
        raise TypeError(f"from_pytorch_fake: expected a FakeTensor of PyTorch's, got {type(t).__name__}")
    with torch._C._DisableTorchDispatch():
        device = t.fake_device
        fake = _C.to_fake(t, device) if mode is None else _C.to_fake_of(t, mode._state, device)
    if t.constant is not None:
        write_value(t.constant, fake)
    if isinstance(t, torch.nn.Parameter):
        fake = cast(FakeTensor, torch.nn.Parameter(fake.detach(), t.requires_grad))
    return _with_autograd_of(t, fake, lambda gradient: from_pytorch_fake(gradient, mode))


def to_pytorch_fake(t: Tensor, mode: PyTorchsMode | None = None) -> Tensor:
    """One of PyTorch's own FakeTensors with the metadata of a fake.

    Fakes that share a storage become FakeTensors that share one; `grad` and `constant` are converted too. A wrapper
    becomes a wrapper around FakeTensors. The result belongs to `mode`, a mode of PyTorch's; by default the same one for
    all fakes of a mode.

    Raises:
        ValueError: `t` is not fake.

    >>> import torch
    >>> from torchfake import fake_mode, to_pytorch_fake
    >>> with fake_mode():
    ...     x = torch.ones(2, 3)
    >>> to_pytorch_fake(x)
    FakeTensor(..., size=(2, 3))
    """
    fake = find_fake((t,))
    if fake is None:
        raise ValueError("to_pytorch_fake: expected a fake tensor, got a real one; see is_fake().")
    if mode is None:
        address = _C.mode_of(fake).address
        mode = _counterparts.get(address)
        if mode is None:
            mode = _counterparts[address] = PyTorchsMode()
    with no_fake_mode():
        return _to_pytorch_fake(t, mode)


@deprecated("torchfake.from_torch is now called from_pytorch_fake")
def from_torch(t: Tensor, mode: Mode | None = None) -> FakeTensor:
    """Deprecated: use `from_pytorch_fake`."""
    return from_pytorch_fake(t, mode)


@deprecated("torchfake.to_torch is now called to_pytorch_fake")
def to_torch(t: Tensor, mode: PyTorchsMode | None = None) -> Tensor:
    """Deprecated: use `to_pytorch_fake`."""
    return to_pytorch_fake(t, mode)


def _to_pytorch_fake(t: Tensor, mode: PyTorchsMode) -> Tensor:
    if not is_plain(t):
        return rewrap(t, lambda inner: _to_pytorch_fake(inner, mode))
    if not _C.is_plain_fake(t):
        return mode.from_tensor(t)
    converter = mode.fake_tensor_converter
    converted = converter.from_meta_and_device(mode, _C.to_meta(t), _C.fake_device(t))
    constant = _C.known_values_of(t, copy=True)
    if constant is not None and constant.numel() <= CONSTANT_NUMEL_LIMIT and not mode.propagate_real_tensors:
        converted.constant = constant
        converter.add_constant_storage_mapping(converted)
    if isinstance(t, torch.nn.Parameter):
        converted._is_param = True
    return _with_autograd_of(t, converted, lambda gradient: _to_pytorch_fake(gradient, mode))


def _with_autograd_of(t: Tensor, converted: AnyTensor, convert: Callable[[Tensor], Tensor]) -> AnyTensor:
    """Gives `converted`, a leaf, the autograd role and the gradient of `t`."""
    if converted.requires_grad != t.requires_grad:
        converted.requires_grad_(t.requires_grad)
    if not t.is_leaf:
        return with_history(converted)
    if t.requires_grad and converted.grad_dtype != t.grad_dtype:
        converted.grad_dtype = t.grad_dtype
    if t.grad is not None:
        converted.grad = convert(t.grad)
    return converted


def dispatch(original: Callable[..., Any], cls: type[Tensor], func: Any, *rest: Any, **named: Any) -> Any:
    """When PyTorch's FakeTensors meet ours, raises an error that says how to convert them."""
    try:
        return original(cls, func, *rest, **named)
    except (AssertionError, RealTensorError) as error:
        # PyTorch's mode received one of our fakes, or ours received one of PyTorch's, which is a meta tensor.
        if not _C.in_fake_mode() and find_fake(tree_leaves((rest, named))) is None:
            raise
        raise MixedModesError(
            f"{func}: one of the arguments is a FakeTensor of PyTorch's own; torchfake.from_pytorch_fake converts it "
            "to a fake of torchfake, and torchfake.to_pytorch_fake converts in the other direction.",
            func.name(),
        ) from error


def suspend_as_well(original: Callable[..., Iterator[Any]], *args: Any, **kwargs: Any) -> Iterator[Any]:
    """Functions of PyTorch's that suspend modes also suspend, and yield, a FakeTensorMode of ours.

    A `fake_mode` stays active: PyTorch calls these functions inside ordinary programs.
    """
    mode = current_mode()
    exclusive = mode is not None and mode._state.exclusive
    suspended = _C.EnteredNoFakeMode() if exclusive else None
    try:
        with contextlib.contextmanager(original)(*args, **kwargs) as theirs:
            yield mode if exclusive and theirs is None else theirs
    finally:
        if suspended is not None:
            suspended.leave()


def active_mode(original: Callable[[], Any]) -> Any:
    """`torch._guards.active_fake_mode` returns the FakeTensorMode of ours that this thread is in."""
    found, mode = original(), current_mode()
    return mode if found is None and mode is not None and mode._state.exclusive else found


def detect_mode(original: Callable[..., Any], inputs: Any = None) -> Any:
    """`torch._guards.detect_fake_mode` finds our FakeTensorMode that is active on this thread or that of `inputs`.

    A mode of PyTorch's takes precedence: a running tracer uses its own. A `fake_mode` belongs to an ordinary program.
    """
    found = original(inputs)
    mode = detect_fake_mode(inputs) if found is None else None
    return mode if mode is not None and mode._state.exclusive else found


def _is_of_fake_tensor_mode(t: object) -> TypeIs[FakeTensor]:
    """Whether `t` is a fake of a FakeTensorMode of ours."""
    return isinstance(t, Tensor) and _C.is_plain_fake(t) and _C.mode_of(t).exclusive


def is_fake_tensor(original: Callable[[object], bool], x: object) -> bool:
    """AOTAutograd takes the fakes of a FakeTensorMode of ours for FakeTensors, as `either_fake` does."""
    return original(x) or _is_of_fake_tensor_mode(x)


def mode_of_fake(original: Callable[[object], Any], t: object) -> Any:
    """AOTAutograd leaves fakes of the FakeTensorMode that it traces with as they are."""
    return t.fake_mode if _is_of_fake_tensor_mode(t) else original(t)


class _EitherMode(type):
    """The type of a stand-in for PyTorch's FakeTensorMode in modules that only use `isinstance`."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, (PyTorchsMode, FakeTensorMode))


class _EitherFake(type):
    """The type of a stand-in for PyTorch's FakeTensor in modules that only use `isinstance`."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, PyTorchsFakeTensor) or _is_of_fake_tensor_mode(instance)


def either_mode(original: Any) -> Any:
    """A class with the modes of both kinds as instances."""
    return _EitherMode("FakeTensorMode", (), {"__doc__": "PyTorch's FakeTensorMode, or torchfake's."})


def either_fake(original: Any) -> Any:
    """A class with PyTorch's FakeTensors and the fakes of our FakeTensorMode as instances."""
    return _EitherFake("FakeTensor", (), {"__doc__": "PyTorch's FakeTensor, or one of torchfake's."})


def output_storages(original: Callable[[Any], Any], node: Any) -> Any:
    """Inductor's memory estimator counts the storages of our fakes too."""
    from torch._inductor.fx_passes.memory_estimator import StorageKey

    storages = original(node)
    for value in tree_leaves(node.meta.get("val")):
        if isinstance(value, Tensor) and _C.is_plain_fake(value):
            storages.add(StorageKey(value.untyped_storage(), value.device))
    return storages


def is_abstract(original: Callable[[Tensor], bool], tensor: Tensor) -> bool:
    """Checks of `opcheck` that compare data skip our fakes like PyTorch's."""
    return original(tensor) or holds_fake(tensor)


# Per thread, one entry for each time that PyTorch's own FakeTensorMode was entered inside a mode of ours.
_suspended = threading.local()


def enter_pytorchs_mode(original: Callable[..., Any], self: Any) -> Any:
    """The innermost mode applies: PyTorch's own FakeTensorMode, entered inside one of ours, suspends ours.

    PyTorch also enters it itself, to describe a tensor or to infer an operator's output.
    """
    suspended = _C.EnteredNoFakeMode()
    try:
        entered = original(self)
    except BaseException:
        suspended.leave()
        raise
    vars(_suspended).setdefault("stack", []).append((len(self.enter_stack), self, suspended))
    return entered


def leave_pytorchs_mode(original: Callable[..., Any], self: Any, *error: Any) -> Any:
    depth = len(self.enter_stack)
    try:
        return original(self, *error)
    finally:
        stack = vars(_suspended).get("stack", [])
        if stack and stack[-1][0] == depth and stack[-1][1] is self:
            stack.pop()[2].leave()


def from_tensor(original: Callable[..., Tensor], self: PyTorchsMode, tensor: Tensor, **options: Any) -> Tensor:
    """Suspends the mode: PyTorch describes a tensor by calling factories, with sizes that may be its own symbols."""
    with no_fake_mode():
        return original(self, tensor, **options)


def trace(original: Callable[..., Any], self: Any, f: Callable[..., Any], *args: Any) -> Any:
    """`make_fx(tracing_mode="symbolic")` uses the mode of its fakes, which must be able to create symbols."""
    mode = detect_mode(torch._guards.detect_fake_mode, args) if self.tracing_mode == "symbolic" else None
    if isinstance(mode, FakeTensorMode) and mode.shape_env is None:
        raise DynamicShapesError(
            "make_fx: tracing_mode='symbolic' makes sizes symbolic, which is not supported yet for fakes of a "
            "FakeTensorMode without a shape_env; trace with tracing_mode='fake'."
        )
    return original(self, f, *args)
