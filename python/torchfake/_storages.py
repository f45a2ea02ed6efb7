"""Storages of fakes, written to without an operator: what is known of their values ends.

`tensor.untyped_storage().fill_(0)` never reaches the dispatcher, so the engine cannot follow it. For the storages of
real tensors each wrapper calls the original.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.storage import TypedStorage, UntypedStorage

from torchfake import _C
from torchfake.errors import DataAccessError
from torchfake.fake import no_fake_mode


def _is_fake(storage: TypedStorage | UntypedStorage) -> bool:
    """Whether this can be the storage of a fake: it holds no data."""
    return storage.device.type == "meta"


def _on_data(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    # PyTorch makes small tensors over the storages, which have to be real.
    with no_fake_mode() if _C.in_fake_mode() else contextlib.nullcontext():
        return original(*args, **kwargs)


def _forgets(cls: type, name: str, untyped: Callable[[Any], UntypedStorage]) -> None:
    """Makes a method of `cls` that writes forget first. Without data, the original itself writes nothing."""
    original = getattr(cls, name)

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _is_fake(untyped(self)):
            return _on_data(original, self, *args, **kwargs)
        _C.forget_values(untyped(self)._cdata)
        return original(self, *args, **kwargs)

    setattr(cls, name, method)


_real_byteswap: Callable[..., None] = UntypedStorage._byteswap
_real_copy_: Callable[..., UntypedStorage] = UntypedStorage.copy_


@functools.wraps(_real_byteswap)
def _byteswap(self: UntypedStorage, *args: Any, **kwargs: Any) -> None:
    if not _is_fake(self):
        return _real_byteswap(self, *args, **kwargs)
    _C.forget_values(self._cdata)


@functools.wraps(_real_copy_)
def _copy_(self: UntypedStorage, source: Any, *args: Any, **kwargs: Any) -> UntypedStorage:
    if not torch.is_storage(source) or self.nbytes() != source.nbytes():
        return _real_copy_(self, source, *args, **kwargs)  # which says what is wrong
    if _is_fake(self):
        _C.forget_values(self._cdata)
        return self  # there is nothing to copy, wherever it comes from
    if _C.in_fake_mode() and _is_fake(source):
        raise DataAccessError(
            "UntypedStorage.copy_: the storage of a fake tensor holds no data to copy; copy between storages of fakes, "
            "or keep this part out of the fake run.",
            "UntypedStorage.copy_",
        )
    return _on_data(_real_copy_, self, source, *args, **kwargs)  # type: ignore[no-any-return]


def install() -> None:
    """Puts the wrappers in place."""
    for name in ("__setitem__", "_set_cdata", "_set_from_file", "fill_", "resize_"):
        _forgets(UntypedStorage, name, lambda storage: storage)
    # Writes through a meta tensor that it makes for the purpose; all its other methods go to the untyped storage.
    _forgets(TypedStorage, "_setitem", lambda storage: storage._untyped_storage)
    UntypedStorage.copy_ = _copy_  # type: ignore[method-assign,assignment]
    UntypedStorage._byteswap = _byteswap  # type: ignore[method-assign,assignment]
