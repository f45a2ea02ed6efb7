"""Fakes in pickles, copies and other processes.

Note [A fake in a pickle]
A pickled fake is unpickled as a fake, inside or outside a mode, on the device it claimed. The pickle contains its
metadata, and one `SavedStorage` per storage: pickle writes repeated objects as references, so views of one
storage share one storage again.

    with fake_mode():
        x = torch.ones(1000, 1000, device="cuda")
    x, row = pickle.loads(pickle.dumps((x, x[3])))   # row is a row of x

Known values (see Note [Known values]) are written too, since they are few.
"""

from __future__ import annotations

import contextlib
import copy
import pickle
import struct
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.meta_utils import is_sparse_any

from torchfake import _C
from torchfake._loading import INTEGERS, claimed_device
from torchfake.modes import fake_mode

# The format characters of struct for INTEGERS.
_STRUCT_CODES = {1: "b", 2: "h", 4: "i", 8: "q"}


class SavedStorage:
    """The storage of fakes in a pickle. See Note [A fake in a pickle]."""

    __slots__ = ("__weakref__", "anchor")

    def __init__(self, anchor: Tensor) -> None:
        self.anchor = anchor  # any fake on the storage

    def __reduce__(self) -> tuple[Any, ...]:
        width = self.anchor.dtype.itemsize
        return _rebuild_fake_storage, (
            self.anchor.untyped_storage().nbytes(),
            str(self.anchor.device),
            width,
            _known_bytes(self.anchor, width),
        )


# The SavedStorage of each storage (by address) in the pickles being written. pickle's memo keeps them alive, and they
# keep the storages alive; all are released when the pickle is complete.
_being_saved: weakref.WeakValueDictionary[int, SavedStorage] = weakref.WeakValueDictionary()
_being_saved_lock = threading.Lock()


def _saved_storage(tensor: Tensor) -> SavedStorage:
    address = tensor.untyped_storage()._cdata
    with _being_saved_lock:
        return _being_saved.setdefault(address, SavedStorage(tensor.detach()))


def _whole_storage(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The whole storage of a fake as a one-dimensional tensor of `dtype`."""
    storage = tensor.untyped_storage()
    return tensor.new_empty(0, dtype=dtype).set_(storage, 0, (storage.nbytes() // dtype.itemsize,), (1,))


def _known_bytes(tensor: Tensor, width: int) -> bytes | None:
    if width not in INTEGERS or tensor.untyped_storage().nbytes() % width != 0:
        return None
    whole = _whole_storage(tensor, INTEGERS[width])
    known = whole.numel() > 0 and _C.is_known(whole)
    return struct.pack(f"<{whole.numel()}{_STRUCT_CODES[width]}", *whole.tolist()) if known else None


def _rebuild_fake_storage(nbytes: int, location: str, width: int, known: bytes | None) -> SavedStorage:
    """Unpickles a SavedStorage. Part of the file format: the name must not change."""
    with contextlib.nullcontext() if _C.in_fake_mode() else fake_mode():
        device = claimed_device(location, nbytes)
        if known is None:
            return SavedStorage(torch.empty(nbytes, dtype=torch.uint8, device=device))
        values = struct.unpack(f"<{nbytes // width}{_STRUCT_CODES[width]}", known)
        return SavedStorage(torch.tensor(values, dtype=INTEGERS[width], device=device))


def _rebuild_fake_tensor(
    storage: SavedStorage,
    dtype: torch.dtype,
    offset: int,
    size: tuple[int, ...],
    stride: tuple[int, ...],
    requires_grad: bool,
    bits: dict[str, bool],
) -> Tensor:
    """Unpickles a fake. Part of the file format: the name must not change. `bits` are the conj and neg bits."""
    anchor = storage.anchor
    tensor = anchor.new_empty(0, dtype=dtype).set_(anchor.untyped_storage(), offset, size, stride)
    if bits:
        torch._utils.set_tensor_metadata(tensor, bits)  # type: ignore[no-untyped-call]
    return tensor.requires_grad_(requires_grad)


def _reduce_as_real(fake: Tensor) -> tuple[Any, ...]:
    """Pickles a fake as a real tensor without data: `torch.load` returns a real tensor with arbitrary contents."""
    meta = _C.to_meta(fake)  # the same storage for all fakes of one
    storage = meta.untyped_storage()
    storage._fake_device = fake.device
    geometry = (meta.storage_offset(), tuple(meta.size()), meta.stride())
    bits = torch._utils.get_tensor_metadata(fake)  # type: ignore[no-untyped-call]
    args: tuple[Any, ...] = (storage, *geometry, fake.requires_grad, OrderedDict(), fake.dtype)
    return torch._utils._rebuild_tensor_v3, (*args, bits) if bits else args


def reduce_ex(original: Callable[..., tuple[Any, ...]], self: Tensor, protocol: int) -> tuple[Any, ...]:
    if not _C.is_fake(self) or is_sparse_any(self):  # by its indices and values, which are fakes
        return original(self, protocol)
    torch.utils.hooks.warn_if_has_hooks(self)
    saving = torch.serialization._serialization_tls
    if saving.skip_data and saving.materialize_fake_tensors:
        return _reduce_as_real(self)
    with torch._C.DisableTorchFunctionSubclass():
        return _rebuild_fake_tensor, (
            _saved_storage(self),
            self.dtype,
            self.storage_offset(),
            tuple(self.size()),
            self.stride(),
            self.requires_grad,
            torch._utils.get_tensor_metadata(self),  # type: ignore[no-untyped-call]
        )


def reduce_for_process(original: Callable[[Tensor], Any], tensor: Tensor) -> Any:
    # There is no memory to share, so a fake is pickled. PyTorch's own function raises for what it does not support.
    if not _C.is_fake(tensor) or (tensor.requires_grad and not tensor.is_leaf):
        return original(tensor)
    return tensor.__reduce_ex__(pickle.HIGHEST_PROTOCOL)  # type: ignore[no-untyped-call]


def collate(original: Callable[..., Tensor], batch: list[Tensor], **kwargs: Any) -> Tensor:
    # In a DataLoader's worker PyTorch allocates shared memory to stack into.
    if _C.is_fake(batch[0]):
        return torch.stack(batch)
    return original(batch, **kwargs)


def deepcopy(original: Callable[..., Tensor], self: Tensor, memo: dict[Any, Any]) -> Tensor:
    if not _C.is_fake(self) or not self.is_leaf or id(self) in memo:
        return original(self, memo)
    if torch.overrides.has_torch_function_unary(self):
        return torch.overrides.handle_torch_function(Tensor.__deepcopy__, (self,), self, memo)  # type: ignore[no-any-return]
    with torch.no_grad():
        plain = self.detach().as_subclass(Tensor)
        is_other = is_sparse_any(plain) or plain.is_quantized
        result = plain.clone() if is_other else _copy_with_storage(plain, memo)
    if type(self) is not Tensor:
        result = result.as_subclass(type(self))
    memo[id(self)] = result.requires_grad_(self.requires_grad)
    if self.grad is not None:
        result.grad = copy.deepcopy(self.grad, memo)
    result.__dict__ = copy.deepcopy(self.__dict__, memo)
    return result


def _copy_with_storage(plain: Tensor, memo: dict[Any, Any]) -> Tensor:
    """A fake like `plain` on a copy of its storage. `memo` holds the copies, as in PyTorch, one per storage."""
    copies = memo.setdefault("torch", {})
    storage = plain.untyped_storage()
    if storage._cdata not in copies:
        dtype = plain.dtype if storage.nbytes() % plain.dtype.itemsize == 0 else torch.uint8
        copies[storage._cdata] = _whole_storage(plain, dtype).clone().untyped_storage()
    # Starts without elements: in a mode with propagate_real_tensors others have real values, which set_ cannot move.
    copied = plain.new_empty(0).set_(
        copies[storage._cdata], plain.storage_offset(), tuple(plain.size()), plain.stride()
    )
    copied = copied.conj_physical() if plain.is_conj() else copied
    return copied.neg() if plain.is_neg() else copied


def share_memory_(original: Callable[[Tensor], Tensor], self: Tensor) -> Tensor:
    self.untyped_storage()._torchfake_is_shared = True  # type: ignore[attr-defined]
    return self


def is_shared(original: Callable[[Tensor], bool], self: Tensor) -> bool:
    return self.device.type == "cuda" or getattr(self.untyped_storage(), "_torchfake_is_shared", False)


def allow_in_safe_files() -> None:
    """Lets `torch.load` with `weights_only=True` read files with fakes, also before a fake exists in the process."""
    torch.serialization.add_safe_globals([_rebuild_fake_storage, _rebuild_fake_tensor])
