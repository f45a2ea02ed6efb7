"""Tensors over memory that is there already (a buffer, a file, another library's array): fake in the mode.

Note [Outside memory]
`torch.from_numpy` and its like make tensors that share somebody else's memory. In the mode they are fakes, and where
they are small that memory is what they know (see Note [Known values] in known_values.h), not a copy of it, so that both
sides see each other's writes as in a real run:

    array = numpy.zeros(3)
    fake = torch.from_numpy(array)
    array[0] = 5                 # fake[0].item() is 5.0
    fake.add_(1)                 # array[0] is 6.0
    fake.add_(torch.rand(3))     # fake is not known any more; the array keeps what it had

Invariants. Nothing is copied on the way in. A fake that is exported and imported again shares its fake storage.
Shortcoming: an array cannot forget. After a write of something unknown it holds the values from before, and so does
another fake that was made from the same array.
Rejected: a copy. A program that fills its array after the call would read the old values from the fake.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchfake import _C
from torchfake._methods import no_data
from torchfake.fake import no_fake_mode


def _enter_mode(tensor: Tensor) -> Tensor:
    """Does what PyTorch itself does at the end of `from_numpy` and leaves out elsewhere."""
    if not _C.in_fake_mode() or _C.is_fake(tensor):
        return tensor
    requires_grad = tensor.requires_grad
    # Not detached: the engine shares a memory only if no other tensor is on it, and `tensor` is ours alone.
    fake: Tensor = torch.ops.aten.lift_fresh(tensor.requires_grad_(False))
    return fake.requires_grad_(requires_grad)


def frombuffer(original: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
    return _enter_mode(original(*args, **kwargs))


def asarray(original: Callable[..., Tensor], obj: Any, *args: Any, **kwargs: Any) -> Tensor:
    array = original(obj, *args, **kwargs)
    # A real tensor may be used in the mode, and its aliases are real as it is.
    return array if isinstance(obj, Tensor) else _enter_mode(array)


def from_dlpack(
    original: Callable[..., Tensor],
    ext_tensor: Any,
    *,
    device: torch.device | str | None = None,
    copy: bool | None = None,
    **kwargs: Any,
) -> Tensor:
    if isinstance(ext_tensor, Tensor):
        if _C.is_plain_fake(ext_tensor):
            return _alias(ext_tensor, ext_tensor.device if device is None else torch.device(device), copy)
        with no_fake_mode() if _C.in_fake_mode() else contextlib.nullcontext():
            return original(ext_tensor, device=device, copy=copy, **kwargs)
    return _enter_mode(original(ext_tensor, device=device, copy=copy, **kwargs))


def _alias(fake: Tensor, device: torch.device, copy: bool | None) -> Tensor:
    """`from_dlpack` of a fake: no data to pass on, and a storage to share."""
    if fake.requires_grad:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
    if fake.is_conj():
        raise BufferError("Can't export tensors with the conjugate bit set")
    moved = fake.data.to(device)
    if copy is False and moved.untyped_storage()._cdata != fake.untyped_storage()._cdata:
        raise ValueError(
            f"cannot move DLPack tensor from device {fake.device} to {device} without copying. "
            "Set copy=None or copy=True."
        )
    return moved.clone() if copy else moved


def to_dlpack(original: Callable[..., Any], tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
    if _C.is_plain_fake(tensor) and (tensor.device.type != "cpu" or not _C.is_known(tensor)):
        raise no_data("to_dlpack")
    return original(tensor, *args, **kwargs)
