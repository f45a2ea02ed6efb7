"""Storages of fakes, asked, read and written without an operator.

They name the device that is claimed, and copies of them the one they are asked for. `tensor.untyped_storage().fill_(0)`
never reaches the dispatcher, so the engine cannot follow it: what is known of the values ends. There is nothing to
read, which is an error of ours and not one about the meta device. For the storages of real tensors each wrapper calls
the original.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.storage import TypedStorage, UntypedStorage

from torchfake import _C
from torchfake._stand_in import StandIn
from torchfake.errors import DataAccessError, RealTensorError
from torchfake.fake import no_fake_mode

_real_device: Callable[[UntypedStorage], torch.device] = torch._C.StorageBase.device.__get__  # type: ignore[attr-defined]


def _device(self: UntypedStorage) -> torch.device:
    return _C.storage_device(self) or _real_device(self)


def _is_fake(storage: TypedStorage | UntypedStorage) -> bool:
    """Whether this can be the storage of a fake: it holds no data."""
    untyped = storage._untyped_storage if isinstance(storage, TypedStorage) else storage
    return _real_device(untyped).type == "meta"


def _on_data(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    # PyTorch makes small tensors over the storages, which have to be real.
    with no_fake_mode() if _C.in_fake_mode() else contextlib.nullcontext():
        return original(*args, **kwargs)


class _NoDataInStorage(DataAccessError, NotImplementedError):
    """Also what PyTorch raises: a storage without data may be that of a meta tensor, which is none of ours."""


def _reads(cls: type, name: str) -> None:
    """Makes a method of `cls` that reads say that there is nothing to read."""
    original = getattr(cls, name)

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _is_fake(self):
            return _on_data(original, self, *args, **kwargs)
        raise _NoDataInStorage(
            f"{cls.__name__}: the storage of a fake or meta tensor holds no data to read; read the tensor, whose "
            "values may be known, or keep this part out of the fake run.",
            f"{cls.__name__}.{name}",
        )

    setattr(cls, name, method)


def _copies(name: str, copy: Callable[..., UntypedStorage]) -> None:
    """Makes a method of `UntypedStorage` that copies its data give what `copy` does for a fake, which has none."""
    original = getattr(UntypedStorage, name)

    @functools.wraps(original)
    def method(self: UntypedStorage, *args: Any, **kwargs: Any) -> Any:
        return (original if _C.storage_device(self) is None else copy)(self, *args, **kwargs)

    setattr(UntypedStorage, name, method)


def _to_device(self: UntypedStorage, *, device: Any, non_blocking: bool = False) -> UntypedStorage:
    copy = _C.sibling_storage(self, self.nbytes(), torch.device(device))
    return self if copy.device == self.device else copy


def _converts(cls: type) -> None:
    """Makes `double()` and its like of `cls` convert what has no data, and real data in the mode too."""
    original = cls._to  # type: ignore[attr-defined]

    @functools.wraps(original)
    def method(self: Any, dtype: torch.dtype) -> Any:
        if not isinstance(dtype, torch.dtype) or _C.storage_device(self.untyped()) is None:
            return _on_data(original, self, dtype)
        converted = _C.sibling_storage(self.untyped(), len(self) * dtype.itemsize, self.device)
        return TypedStorage(wrap_storage=converted, dtype=dtype, _internal=True)  # type: ignore[no-untyped-call]

    cls._to = method  # type: ignore[attr-defined]


def _forgets(name: str) -> None:
    """Makes a method of `UntypedStorage` that writes forget first. Without data, the original itself writes nothing."""
    original = getattr(UntypedStorage, name)

    @functools.wraps(original)
    def method(self: UntypedStorage, *args: Any, **kwargs: Any) -> Any:
        if not _is_fake(self):
            return _on_data(original, self, *args, **kwargs)
        _C.forget_values(self)
        return original(self, *args, **kwargs)

    setattr(UntypedStorage, name, method)


_real_setitem: Callable[..., None] = TypedStorage._setitem


@functools.wraps(_real_setitem)
def _setitem(self: TypedStorage, index: Any, value: Any) -> None:
    # The original writes through a tensor on the device of the storage.
    if _C.storage_device(self._untyped_storage) is None:
        _on_data(_real_setitem, self, index, value)
        return
    if not isinstance(index, slice):
        self._maybe_wrap_index(index)  # type: ignore[no-untyped-call]  # which says what is wrong
    _C.forget_values(self._untyped_storage)


def _prints(cls: type, name: str) -> None:
    """Makes `cls` print like what has no data."""
    original = getattr(cls, name)

    @functools.wraps(original)
    def method(self: Any) -> Any:
        if _C.storage_device(self.untyped()) is None:
            return original(self)
        dtype = f"dtype={self.dtype}, " if isinstance(self, TypedStorage) else ""
        return f"...\n[{torch.typename(self)}({dtype}device={self.device}) of size {len(self)}]"

    setattr(cls, name, method)


_real_byteswap: Callable[..., None] = UntypedStorage._byteswap
_real_copy_: Callable[..., UntypedStorage] = UntypedStorage.copy_


@functools.wraps(_real_byteswap)
def _byteswap(self: UntypedStorage, *args: Any, **kwargs: Any) -> None:
    if not _is_fake(self):
        return _real_byteswap(self, *args, **kwargs)
    _C.forget_values(self)


@functools.wraps(_real_copy_)
def _copy_(self: UntypedStorage, source: Any, *args: Any, **kwargs: Any) -> UntypedStorage:
    if not torch.is_storage(source) or self.nbytes() != source.nbytes():
        return _real_copy_(self, source, *args, **kwargs)  # which says what is wrong
    if _is_fake(self):
        _C.forget_values(self)
        return self  # there is nothing to copy, wherever it comes from
    if _C.in_fake_mode() and _is_fake(source):
        raise DataAccessError(
            "UntypedStorage.copy_: the storage of a fake tensor holds no data to copy; copy between storages of fakes, "
            "or keep this part out of the fake run.",
            "UntypedStorage.copy_",
        )
    return _on_data(_real_copy_, self, source, *args, **kwargs)  # type: ignore[no-any-return]


_real_data_ptr: Callable[[UntypedStorage], int] = UntypedStorage.data_ptr


@functools.wraps(_real_data_ptr)
def _data_ptr(self: UntypedStorage) -> int:
    # PyTorch's sharding compares addresses to see whether two storages are one, and reads nothing there.
    if _is_fake(self) and sys._getframe(1).f_globals.get("__name__", "").startswith("torch.distributed."):
        return self._cdata if self.nbytes() > 0 else 0
    return _real_data_ptr(self)


_real_set_: Callable[..., Tensor] = Tensor.set_


def _set_(self: Tensor, source: Any = None, *args: Any, **kwargs: Any) -> Tensor:
    if torch.is_storage(source):
        if _C.is_fake(self) and not _is_fake(source):
            raise _mixed(
                "the storage is one of real tensors and the tensor is fake; make it fake with torchfake.to_fake"
            )
        if _is_fake(source) and not _C.is_fake(self) and self.device.type != "meta":
            raise _mixed("the storage is one of fakes, the tensor is real; make it fake by torchfake.to_fake")
    given = () if source is None else (source,)
    return _real_set_(self, *given, *args, **kwargs)


def _mixed(what: str) -> RealTensorError:
    return RealTensorError(f"aten::set_.source_Storage: {what}", "aten::set_.source_Storage")


def install() -> None:
    """Puts the wrappers in place."""
    _reads(UntypedStorage, "__getitem__")
    _reads(TypedStorage, "_getitem")
    UntypedStorage.device = property(_device)  # type: ignore[assignment]
    _prints(UntypedStorage, "__repr__")
    _prints(TypedStorage, "__str__")
    for cls in (UntypedStorage, TypedStorage):
        _converts(cls)
    _copies("clone", lambda self: _C.sibling_storage(self, self.nbytes(), self.device))
    _copies("to", _to_device)
    _copies("cpu", lambda self: _to_device(self, device="cpu"))
    _copies("mps", lambda self: _to_device(self, device="mps"))
    Tensor.set_ = StandIn(_real_set_, _set_)  # type: ignore[method-assign]
    for name in ("__setitem__", "_set_cdata", "_set_from_file", "fill_", "resize_"):
        _forgets(name)
    TypedStorage._setitem = _setitem  # type: ignore[method-assign]
    UntypedStorage.copy_ = _copy_  # type: ignore[method-assign,assignment]
    UntypedStorage.data_ptr = _data_ptr  # type: ignore[method-assign,assignment]
    UntypedStorage._byteswap = _byteswap  # type: ignore[method-assign,assignment]
