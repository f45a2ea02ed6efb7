"""What a fake can be asked beyond what any tensor can: `fake_device`, `fake_mode`, `constant`, `real_tensor`, memos.

Fakes are plain tensors, so these are attributes of `torch.Tensor` that only a fake has: on a real tensor they raise
`AttributeError`, and an attribute that a subclass or an instance defines goes first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from torchfake import _C
from torchfake._mode import mode_of


def _constant(fake: Tensor) -> Tensor | None:
    if _C.mode_of(fake).propagate_real_tensors:
        return None
    return _C.known_values_of(fake, copy=True)


def _real_tensor(fake: Tensor) -> Tensor | None:
    return _C.known_values_of(fake, copy=False) if _C.mode_of(fake).propagate_real_tensors else None


_OF_FAKES: dict[str, Callable[[Tensor], Any]] = {
    "constant": _constant,
    "dispatch_keys": lambda fake: None,
    "fake_device": lambda fake: _C.fake_device(fake),
    "fake_mode": mode_of,
    "item_memo": lambda fake: _C.memo(fake, "item"),
    "nonzero_memo": lambda fake: _C.memo(fake, "nonzero"),
    "pytype": lambda fake: None,
    "real_tensor": _real_tensor,
    "unique_consecutive_memo": lambda fake: _C.memo(fake, "unique_consecutive"),
    "unique_memo": lambda fake: _C.memo(fake, "unique"),
}


class _OfFakes:
    """Has no `__set__` on purpose: whoever sets an attribute of that name on a tensor of theirs gets it back.

    PyTorch's own FakeTensors have theirs in this way, and read them often.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._get = _OF_FAKES[name]

    def __get__(self, tensor: Tensor | None, owner: type[Tensor]) -> Any:
        if tensor is None:
            return None  # torch.overrides lists what Tensor has, and takes a descriptor for one with a __set__
        if not _C.is_plain_fake(tensor):
            raise AttributeError(f"'{type(tensor).__name__}' object has no attribute '{self._name}'")
        return self._get(tensor)


class _OfEngine(_OfFakes):
    """One that a fake keeps in the engine, where it cannot be set. The classes of others have one of their own."""

    def __get__(self, tensor: Tensor | None, owner: type[Tensor]) -> Any:
        if tensor is not None and self._name in vars(tensor):
            return vars(tensor)[self._name]
        return super().__get__(tensor, owner)

    def __set__(self, tensor: Tensor, value: object) -> None:
        if not _C.is_plain_fake(tensor):
            vars(tensor)[self._name] = value
        elif value != self._get(tensor):
            raise AttributeError(f"{self._name} of a fake cannot be set: {_HOW_TO_CHANGE[self._name]}")

    def __delete__(self, tensor: Tensor) -> None:
        if self._name not in vars(tensor):
            raise AttributeError(self._name)
        del vars(tensor)[self._name]


_ENDS = "the engine keeps it, until a write or a new epoch of the mode"
_HOW_TO_CHANGE = {
    "fake_device": "make a fake that claims another device with .to()",
    "item_memo": _ENDS,
    "nonzero_memo": _ENDS,
    "unique_consecutive_memo": _ENDS,
    "unique_memo": _ENDS,
}


def make_attribute(name: str) -> Any:
    """The attribute of `torch.Tensor` with that name."""
    return (_OfEngine if name in _HOW_TO_CHANGE else _OfFakes)(name)


#: The names that are put on `torch.Tensor`.
NAMES = tuple(_OF_FAKES)
