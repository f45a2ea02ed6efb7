"""The mode a graph is propagated in, and the fakes that stand for its real tensors."""

from __future__ import annotations

from collections.abc import MutableMapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor as PyTorchsFakeTensor
from torch.utils.weak import WeakTensorKeyDictionary

from torchfake import _C
from torchfake._mode import Mode
from torchfake.converter import FakeTensorConverter
from torchfake.fake import detect_fake_mode, is_fake
from torchfake.interop import from_torch

__all__ = ["Fakes", "find_mode"]


def find_mode(args: Any, module: nn.Module) -> Mode | None:
    """The mode that is active, or that of a fake among the arguments, or among the module's tensors."""
    return detect_fake_mode(args) or detect_fake_mode(list(chain(module.parameters(), module.buffers())))


class Fakes:
    """Real tensors made fakes of a mode, each of them once. Does not keep the real ones alive."""

    def __init__(self, mode: Mode) -> None:
        self.mode = mode
        self._converter = FakeTensorConverter()
        self._of: MutableMapping[Tensor, Tensor] = WeakTensorKeyDictionary()

    def convert(self, tensor: Tensor) -> Tensor:
        """The fake that stands for `tensor`; a fake comes back as it is."""
        if _C.is_plain_fake(tensor) or is_fake(tensor):
            return tensor
        fake = self._of.get(tensor)
        if fake is None:
            fake = self._of[tensor] = self._convert(tensor)
        return fake

    def _convert(self, tensor: Tensor) -> Tensor:
        if isinstance(tensor, PyTorchsFakeTensor):
            return from_torch(tensor, self.mode)
        return self._converter.from_real_tensor(self.mode, tensor)

    def lift(self, constant: Tensor) -> Tensor:
        """A fake that knows the values of `constant`, where the mode keeps that many."""
        if is_fake(constant):
            return constant
        fake: Tensor = torch.ops.aten.lift_fresh.default(constant)
        return fake
