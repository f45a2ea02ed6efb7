"""To and from the tensors of PyTorch's own FakeTensorMode: aliases, gradients and constants are kept."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor as PyTorchsFakeTensor
from torch._subclasses.fake_tensor import FakeTensorMode as PyTorchsMode
from torch.utils._pytree import tree_leaves

from torchfake import _C
from torchfake._mode import Mode
from torchfake.converter import is_plain, rewrap, with_history
from torchfake.errors import MixedModesError, RealTensorError
from torchfake.fake import find_fake, no_fake_mode, write_value
from torchfake.fake_tensor_mode import CONSTANT_NUMEL_LIMIT

__all__ = ["from_torch", "to_torch"]

# The mode of PyTorch's that takes the fakes of each of ours, by the address of its state: fakes that were used together
# can be used together again. Tensors keep their mode alive.
_counterparts: weakref.WeakValueDictionary[int, PyTorchsMode] = weakref.WeakValueDictionary()


def from_torch(t: Tensor, mode: Mode | None = None) -> Tensor:
    """A fake with the metadata of one of PyTorch's own FakeTensors.

    Tensors that share a storage become fakes that share one; `grad` and `constant` go along. `mode` is the mode of the
    result; by default the active one, or one with default options.

    Raises:
        TypeError: `t` is no FakeTensor of PyTorch's.
        UnsupportedFakeTensorException: `t` is sparse or has symbolic sizes.

    >>> import torch
    >>> from torch._subclasses.fake_tensor import FakeTensorMode
    >>> from torchfake import from_torch
    >>> with FakeTensorMode():
    ...     x = torch.ones(2, 3)
    >>> from_torch(x)
    tensor(..., size=(2, 3), fake=True)
    """
    if not isinstance(t, PyTorchsFakeTensor):
        raise TypeError(f"from_torch: expected a FakeTensor of PyTorch's, got {type(t).__name__}")
    with torch._C._DisableTorchDispatch():
        device = t.fake_device
        fake = _C.to_fake(t, device) if mode is None else _C.to_fake_of(t, mode._state, device)
    if t.constant is not None:
        write_value(t.constant, fake)
    if isinstance(t, torch.nn.Parameter):
        fake = torch.nn.Parameter(fake.detach(), t.requires_grad)
    return _with_autograd_of(t, fake, lambda gradient: from_torch(gradient, mode))


def to_torch(t: Tensor, mode: PyTorchsMode | None = None) -> Tensor:
    """One of PyTorch's own FakeTensors with the metadata of a fake.

    Fakes that share a storage become FakeTensors that share one; `grad` and `constant` go along, and of a wrapper what
    is inside is converted. `mode` is PyTorch's mode of the result; by default the same one for all fakes of a mode.

    Raises:
        ValueError: `t` is not fake.

    >>> import torch
    >>> from torchfake import fake_mode, to_torch
    >>> with fake_mode():
    ...     x = torch.ones(2, 3)
    >>> to_torch(x)
    FakeTensor(..., size=(2, 3))
    """
    fake = find_fake((t,))
    if fake is None:
        raise ValueError("to_torch: expected a fake tensor, got a real one; see is_fake().")
    if mode is None:
        address = _C.mode_of(fake).address
        mode = _counterparts.get(address)
        if mode is None:
            mode = _counterparts[address] = PyTorchsMode()
    with no_fake_mode():
        return _to_torch(t, mode)


def _to_torch(t: Tensor, mode: PyTorchsMode) -> Tensor:
    if not is_plain(t):
        return rewrap(t, lambda inner: _to_torch(inner, mode))
    if not _C.is_plain_fake(t):
        return mode.from_tensor(t)
    converter = mode.fake_tensor_converter
    converted: Any = converter.from_meta_and_device(mode, _C.to_meta(t), _C.fake_device(t))
    constant = _C.known_values_of(t, copy=True)
    if constant is not None and constant.numel() <= CONSTANT_NUMEL_LIMIT and not mode.propagate_real_tensors:
        converted.constant = constant
        converter.add_constant_storage_mapping(converted)
    if isinstance(t, torch.nn.Parameter):
        converted._is_param = True
    return _with_autograd_of(t, converted, lambda gradient: _to_torch(gradient, mode))


def _with_autograd_of(t: Tensor, converted: Tensor, convert: Callable[[Tensor], Tensor]) -> Tensor:
    """Makes `converted`, a leaf so far, a leaf or not as `t` is, with the gradient it has."""
    if converted.requires_grad != t.requires_grad:
        converted.requires_grad_(t.requires_grad)
    if not t.is_leaf:
        return with_history(converted)
    if t.grad is not None:
        converted.grad = convert(t.grad)
    return converted


def dispatch(original: Callable[..., Any], cls: type[Tensor], func: Any, *rest: Any, **named: Any) -> Any:
    """Makes PyTorch's FakeTensors say how they are converted, where they meet ours."""
    try:
        return original(cls, func, *rest, **named)
    except (AssertionError, RealTensorError) as error:
        # PyTorch's mode found one of ours, or ours the meta tensor that one of PyTorch's is.
        if not _C.in_fake_mode() and find_fake(tree_leaves((rest, named))) is None:
            raise
        raise MixedModesError(
            f"{func}: among the arguments is a FakeTensor of PyTorch's own; torchfake.from_torch converts it to a fake "
            "of torchfake, and torchfake.to_torch a fake of torchfake to one of PyTorch's.",
            func.name(),
        ) from error
