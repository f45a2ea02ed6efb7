"""The mode a graph is propagated in, and the fakes that stand for its real tensors."""

from __future__ import annotations

from collections.abc import MutableMapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor as PyTorchsFakeTensor
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from torchfake import _C
from torchfake._mode import Mode, current_mode
from torchfake.converter import FakeTensorConverter
from torchfake.fake import find_fake, is_fake, maybe_get_fake_mode
from torchfake.interop import from_torch

__all__ = ["Fakes", "find_mode"]


def find_mode(args: Any, module: nn.Module) -> Mode | None:
    """The mode that is active, or that of a fake among the arguments, or among the module's tensors."""
    mode = current_mode()
    if mode is not None:
        return mode
    tensors = chain(tree_leaves(args), module.parameters(), module.buffers())
    return next((mode for mode in map(maybe_get_fake_mode, tensors) if mode is not None), None)


class Fakes:
    """Tensors made fakes of a mode, each of them once: real ones, and fakes that the mode would refuse.

    Does not keep alive what it converts.
    """

    def __init__(self, mode: Mode) -> None:
        self.mode = mode
        self._converter = FakeTensorConverter()
        self._of: MutableMapping[Tensor, Tensor] = WeakTensorKeyDictionary()

    def convert(self, tensor: Tensor) -> Tensor:
        """The fake that stands for `tensor`; one that the mode takes comes back as it is."""
        if self.takes(tensor):
            return tensor
        fake = self._of.get(tensor)
        if fake is None:
            fake = self._of[tensor] = self._convert(tensor)
        return fake

    def takes(self, tensor: Tensor) -> bool:
        """Whether `tensor` is a fake that the mode takes as it is."""
        fake = tensor if _C.is_plain_fake(tensor) else find_fake((tensor,))
        if fake is None:
            return False
        state = _C.mode_of(fake)
        return state is self.mode._state or not (state.exclusive or self.mode._state.exclusive)

    def _convert(self, tensor: Tensor) -> Tensor:
        if isinstance(tensor, PyTorchsFakeTensor):
            return from_torch(tensor, self.mode)
        return self._converter.from_real_tensor(self.mode, tensor)

    def lift(self, constant: Tensor) -> Tensor:
        """A fake that knows the values of `constant`, where the mode keeps that many."""
        if is_fake(constant):
            return self.convert(constant)
        fake: Tensor = torch.ops.aten.lift_fresh.default(constant)
        return fake
