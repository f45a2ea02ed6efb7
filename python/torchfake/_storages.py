"""Storages of fakes, and tensors over memory that exists already (a buffer, a file, another library's array)."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.storage import TypedStorage, UntypedStorage

from torchfake import _C
from torchfake._tensors import no_data
from torchfake.errors import DataAccessError, RealTensorError
from torchfake.fake_tensor_mode import FakeTensorMode
from torchfake.modes import current_mode, no_fake_mode

# ---- Storages --------------------------------------------------------------------------------------------------------
#
# A fake's storage names the claimed device, and a copy of it the requested one. `tensor.untyped_storage().fill_(0)`
# never reaches the dispatcher, so the engine cannot follow it and forgets the known values. Reading raises an error of
# torchfake's, not one about the meta device.

_device_of_pytorch: Callable[[UntypedStorage], torch.device] = torch._C.StorageBase.device.__get__  # type: ignore[attr-defined]


def device(original: Callable[[UntypedStorage], torch.device], self: UntypedStorage) -> torch.device:
    return _C.storage_device(self) or original(self)


def _untyped(storage: TypedStorage | UntypedStorage) -> UntypedStorage:
    return storage._untyped_storage if isinstance(storage, TypedStorage) else storage


def _is_meta(storage: TypedStorage | UntypedStorage) -> bool:
    """Whether this may be the storage of a fake: it holds no data."""
    return _device_of_pytorch(_untyped(storage)).type == "meta"


def _claims(storage: TypedStorage | UntypedStorage) -> bool:
    return _C.storage_device(_untyped(storage)) is not None


def _on_data(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    # PyTorch creates tensors on the storages, which have to be real.
    with no_fake_mode() if _C.in_fake_mode() else contextlib.nullcontext():
        return original(*args, **kwargs)


class _NoDataInStorage(DataAccessError, NotImplementedError):
    """Also a NotImplementedError, which PyTorch raises: the storage may belong to a meta tensor."""


def read(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """Replaces methods that read elements: raises if there is no data."""
    if not _claims(self) and not (_is_meta(self) and _C.in_fake_mode()):
        return _on_data(original, self, *args, **kwargs)
    raise _NoDataInStorage(
        f"{type(self).__name__}: the storage of a fake or meta tensor holds no data to read; read the tensor, whose "
        "values may be known, or keep this part out of the fake run.",
        f"{type(self).__name__}.{original.__name__}",
    )


def clone(original: Callable[..., UntypedStorage], self: UntypedStorage) -> UntypedStorage:
    return _C.sibling_storage(self, self.nbytes(), self.device) if _claims(self) else original(self)


def to(original: Callable[..., UntypedStorage], self: UntypedStorage, *args: Any, **kwargs: Any) -> UntypedStorage:
    return _to_device(self, *args, **kwargs) if _claims(self) else original(self, *args, **kwargs)


def cpu(original: Callable[..., UntypedStorage], self: UntypedStorage) -> UntypedStorage:
    return _to_device(self, device="cpu") if _claims(self) else original(self)


def mps(original: Callable[..., UntypedStorage], self: UntypedStorage) -> UntypedStorage:
    return _to_device(self, device="mps") if _claims(self) else original(self)


def _to_device(self: UntypedStorage, *, device: Any, non_blocking: bool = False) -> UntypedStorage:
    copy = _C.sibling_storage(self, self.nbytes(), torch.device(device))
    return self if copy.device == self.device else copy


def convert(original: Callable[..., Any], self: Any, dtype: torch.dtype) -> Any:
    """Replaces `double()` and similar methods, for storages without data, and for real ones in the mode."""
    if not isinstance(dtype, torch.dtype) or not _claims(self):
        return _on_data(original, self, dtype)
    converted = _C.sibling_storage(self.untyped(), len(self) * dtype.itemsize, self.device)
    return TypedStorage(wrap_storage=converted, dtype=dtype, _internal=True)  # type: ignore[no-untyped-call]


def write(original: Callable[..., Any], self: UntypedStorage, *args: Any, **kwargs: Any) -> Any:
    """Replaces methods that write: known values are forgotten first. Without data, the original writes nothing."""
    if not _is_meta(self):
        return _on_data(original, self, *args, **kwargs)
    _C.forget_values(self)
    return original(self, *args, **kwargs)


def resize_(original: Callable[..., Any], self: UntypedStorage, size: Any) -> Any:
    """Resizes the memory of a fake. The mode's observer is notified and may refuse."""
    if not _claims(self):
        return write(original, self, size)
    if int(size) < 0:
        return original(self, size)  # raises the appropriate error
    _C.resize_storage(self, int(size))
    return self


def set_item(original: Callable[..., None], self: TypedStorage, index: Any, value: Any) -> None:
    # The original writes through a tensor on the device of the storage.
    if not _claims(self):
        _on_data(original, self, index, value)
        return
    if not isinstance(index, slice):
        self._maybe_wrap_index(index)  # type: ignore[no-untyped-call]  # raises for a bad index
    _C.forget_values(self._untyped_storage)


def show(original: Callable[..., str], self: Any) -> str:
    """The printed form of a storage without data."""
    if not _claims(self):
        return original(self)
    dtype = f"dtype={self.dtype}, " if isinstance(self, TypedStorage) else ""
    return f"...\n[{torch.typename(self)}({dtype}device={self.device}) of size {len(self)}]"


def byteswap(original: Callable[..., None], self: UntypedStorage, *args: Any, **kwargs: Any) -> None:
    _C.forget_values(self)


def copy_(
    original: Callable[..., UntypedStorage], self: UntypedStorage, source: Any, *args: Any, **kwargs: Any
) -> UntypedStorage:
    if not torch.is_storage(source) or self.nbytes() != source.nbytes():
        return original(self, source, *args, **kwargs)  # raises an error
    if _is_meta(self):
        _C.forget_values(self)
        return self  # no data to copy to
    if _C.in_fake_mode() and _is_meta(source):
        raise DataAccessError(
            "UntypedStorage.copy_: the storage of a fake tensor holds no data to copy; copy between storages of fakes, "
            "or keep this part out of the fake run.",
            "UntypedStorage.copy_",
        )
    return _on_data(original, self, source, *args, **kwargs)  # type: ignore[no-any-return]


# Whether this thread is in a function of PyTorch's sharding that compares addresses without reading from them.
_comparing = threading.local()


def comparing_addresses(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Replaces functions that read addresses only to check whether two storages are the same, or one is empty."""
    outer = getattr(_comparing, "now", False)
    _comparing.now = True
    try:
        return original(*args, **kwargs)
    finally:
        _comparing.now = outer


def data_ptr(original: Callable[[UntypedStorage], int], self: UntypedStorage) -> int:
    if getattr(_comparing, "now", False):
        return self._cdata if self.nbytes() > 0 else 0
    mode = current_mode() if _claims(self) else None
    if isinstance(mode, FakeTensorMode):
        return 0 if mode._allow_unsafe_data_ptr_access else original(self)
    return original(self) if mode is None else _C.address_of_storage(self)


def set_(original: Callable[..., Tensor], self: Tensor, source: Any = None, *args: Any, **kwargs: Any) -> Tensor:
    if torch.is_storage(source):
        if _C.is_fake(self) and not _is_meta(source):
            raise _mixed("the storage belongs to a real tensor, and the tensor is fake; convert the first with to_fake")
        if _claims(source) and not _C.is_fake(self) and self.device.type != "meta":
            raise _mixed("the storage belongs to a fake, and the tensor is real; convert the second with to_fake")
    given = () if source is None else (source,)
    return original(self, *given, *args, **kwargs)


def _mixed(what: str) -> RealTensorError:
    return RealTensorError(f"aten::set_.source_Storage: {what}", "aten::set_.source_Storage")


# ---- Memory from outside ---------------------------------------------------------------------------------------------
#
# Note [Outside memory]
# `torch.from_numpy` and similar functions make tensors that share memory owned by others. In the mode they return
# fakes. If the tensor is small, that memory itself holds the fake's known values (see Note [Known values]), not a copy
# of it, so that each side sees the other's writes as in a real run:
#
#     array = numpy.zeros(3)
#     fake = torch.from_numpy(array)
#     array[0] = 5                 # fake[0].item() is 5.0
#     fake.add_(1)                 # array[0] is 6.0
#     fake.add_(torch.rand(3))     # the fake's values are unknown from here on; the array keeps what it had
#
# Invariants: nothing is copied on the way in, and a fake that is exported and imported again shares its fake storage.
# Shortcoming: an array cannot become unknown. After a write of unknown values it still holds the old ones, and so does
# any other fake made from the same array.
# Rejected: a copy. A program that fills its array after the call would read the old values from the fake.


def _enter_mode(tensor: Tensor) -> Tensor:
    """Does what PyTorch does at the end of `from_numpy`, and omits elsewhere."""
    if not _C.in_fake_mode() or _C.is_fake(tensor):
        return tensor
    requires_grad = tensor.requires_grad
    # Not detached: the engine shares the memory only if no other tensor uses it, and `tensor` has no other owner.
    fake: Tensor = torch.ops.aten.lift_fresh(tensor.requires_grad_(False))
    return fake.requires_grad_(requires_grad)


def frombuffer(original: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
    return _enter_mode(original(*args, **kwargs))


def asarray(original: Callable[..., Tensor], obj: Any, *args: Any, **kwargs: Any) -> Tensor:
    array = original(obj, *args, **kwargs)
    # Real tensors may be used in the mode, and an alias of one is real too.
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
    """`from_dlpack` of a fake: shares its storage, as there is no data to export."""
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
