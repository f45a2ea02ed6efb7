"""Storages of fakes, written to without an operator: what is known of their values ends.

`tensor.untyped_storage().fill_(0)` never reaches the dispatcher, so the engine cannot follow it. For the storages of real
tensors each wrapper calls the original.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.storage import TypedStorage, UntypedStorage

from torchfake import _C
from torchfake.errors import DataAccessError


def _forget(storage: UntypedStorage) -> bool:
    """Ends the knowledge of a fake storage's values. False for a storage that holds data."""
    if storage.device.type != "meta":
        return False
    _C.forget_values(storage._cdata)
    return True


def _forgets(cls: type, name: str, untyped: Callable[[Any], UntypedStorage]) -> None:
    """Makes a method of `cls` that writes forget first. On a storage without data the original itself writes nothing."""
    original = getattr(cls, name)

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        _forget(untyped(self))
        return original(self, *args, **kwargs)

    setattr(cls, name, method)


_real_copy_: Callable[..., UntypedStorage] = UntypedStorage.copy_
_real_byteswap: Callable[..., None] = UntypedStorage._byteswap


@functools.wraps(_real_copy_)
def _copy_(self: UntypedStorage, source: Any, *args: Any, **kwargs: Any) -> UntypedStorage:
    if torch.is_storage(source) and self.nbytes() == source.nbytes():
        # Into the storage of a fake there is nothing to copy, wherever it comes from. Out of it there is nothing to read.
        if _forget(self):
            return self
        if source.device.type == "meta" and _C.in_fake_mode():
            raise DataAccessError(
                "UntypedStorage.copy_: the storage of a fake tensor holds no data to copy; copy between storages of fakes, "
                "or keep this part out of the fake run.",
                "UntypedStorage.copy_",
            )
    return _real_copy_(self, source, *args, **kwargs)


@functools.wraps(_real_byteswap)
def _byteswap(self: UntypedStorage, *args: Any, **kwargs: Any) -> None:
    if not _forget(self):
        _real_byteswap(self, *args, **kwargs)


def install() -> None:
    """Puts the wrappers in place."""
    for name in ("__setitem__", "_set_cdata", "_set_from_file", "fill_", "resize_"):
        _forgets(UntypedStorage, name, lambda storage: storage)
    # Writes through a meta tensor that it makes for the purpose; all its other methods go to the untyped storage.
    _forgets(TypedStorage, "_setitem", lambda storage: storage._untyped_storage)
    UntypedStorage.copy_ = _copy_  # type: ignore[method-assign,assignment]
    UntypedStorage._byteswap = _byteswap  # type: ignore[method-assign]
