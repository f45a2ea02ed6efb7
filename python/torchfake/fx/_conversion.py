"""The mode a graph is propagated in, and the fakes that stand for its real tensors."""

from __future__ import annotations

from collections.abc import MutableMapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from torchfake import _C
from torchfake.fake import fake_mode, find_fake, in_mode_of, to_fake

__all__ = ["Fakes", "find_mode"]


def find_mode(values: Any) -> AbstractContextManager[Any]:
    """The mode to run in where none was given: the one the thread is in, that of the first fake, or a new one."""
    if _C.in_fake_mode():
        return nullcontext()
    fake = find_fake(value for value in tree_leaves(values) if isinstance(value, Tensor))
    return fake_mode() if fake is None else in_mode_of(fake)


class Fakes:
    """Real tensors made fake, each of them once. Does not keep the real ones alive."""

    def __init__(self) -> None:
        self._of: MutableMapping[Tensor, Tensor] = WeakTensorKeyDictionary()

    def convert(self, tensor: Tensor) -> Tensor:
        """The fake that stands for `tensor`; a fake comes back as it is."""
        if _C.is_fake(tensor):
            return tensor
        fake = self._of.get(tensor)
        if fake is None:
            fake = self._of[tensor] = to_fake(tensor)
        return fake

    def lift(self, constant: Tensor) -> Tensor:
        """A fake that knows the values of `constant`, where it is small enough."""
        if _C.is_fake(constant):
            return constant
        fake: Tensor = torch.ops.aten.lift_fresh.default(constant)
        return fake
