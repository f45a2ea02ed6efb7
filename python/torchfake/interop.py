"""To and from the tensors of PyTorch's own FakeTensorMode, without data and with aliases kept."""

from __future__ import annotations

import weakref

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor as PyTorchsFakeTensor
from torch._subclasses.fake_tensor import FakeTensorMode as PyTorchsMode

from torchfake import _C
from torchfake._mode import Mode
from torchfake.fake import no_fake_mode

__all__ = ["from_torch", "to_torch"]

# The mode of PyTorch's that takes the fakes of each of ours, by the address of its state: fakes that were used together
# can be used together again. Tensors keep their mode alive.
_counterparts: weakref.WeakValueDictionary[int, PyTorchsMode] = weakref.WeakValueDictionary()


def from_torch(t: Tensor, mode: Mode | None = None) -> Tensor:
    """A fake with the metadata of one of PyTorch's own FakeTensors.

    Tensors that share a storage become fakes that share one. `mode` is the mode of the result; by default the active
    one, or one with default options.

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
    if fake.requires_grad != t.requires_grad:
        fake.requires_grad_(t.requires_grad)
    return torch.nn.Parameter(fake.detach(), t.requires_grad) if isinstance(t, torch.nn.Parameter) else fake


def to_torch(t: Tensor, mode: PyTorchsMode | None = None) -> Tensor:
    """One of PyTorch's own FakeTensors with the metadata of a fake.

    Fakes that share a storage become FakeTensors that share one. `mode` is PyTorch's mode of the result; by default the
    same one for all fakes of a mode.

    Raises:
        ValueError: `t` is not fake.

    >>> import torch
    >>> from torchfake import fake_mode, to_torch
    >>> with fake_mode():
    ...     x = torch.ones(2, 3)
    >>> to_torch(x)
    FakeTensor(..., size=(2, 3))
    """
    if not _C.is_plain_fake(t):
        raise ValueError("to_torch: expected a fake tensor, got a real one; see is_fake().")
    if mode is None:
        address = _C.mode_of(t).address
        mode = _counterparts.get(address)
        if mode is None:
            mode = _counterparts[address] = PyTorchsMode()
    with no_fake_mode():
        meta = _C.to_meta(t).requires_grad_(t.requires_grad)
        converted: Tensor = mode.fake_tensor_converter.from_meta_and_device(mode, meta, _C.fake_device(t))
    return converted
