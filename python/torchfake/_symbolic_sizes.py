"""Symbolic sizes, refused by name where a tracer of PyTorch's would bring them into a mode of ours."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode as PyTorchsMode

from torchfake import _C
from torchfake.errors import DynamicShapesError

_real_from_tensor: Callable[..., Tensor] = PyTorchsMode.from_tensor


@functools.wraps(_real_from_tensor)
def _from_tensor(self: PyTorchsMode, tensor: Tensor, **options: Any) -> Tensor:
    shape_env = self.shape_env
    if shape_env is None or not _C.in_fake_mode() or "create_symintnode" in vars(shape_env):
        return _real_from_tensor(self, tensor, **options)
    # PyTorch describes the tensor by a factory, which our mode answers. A shape_env alone does no harm: its sizes may
    # all be numbers.
    create_size = shape_env.create_symintnode

    def create_number(*args: Any, **kwargs: Any) -> Any:
        size = create_size(*args, **kwargs)
        if isinstance(size, torch.SymInt):
            raise DynamicShapesError(
                "a tracer makes sizes symbolic (make_fx with tracing_mode='symbolic', dynamic_shapes) inside a mode of "
                "torchfake, where they are not supported yet; trace with sizes that are numbers, or outside the mode."
            )
        return size

    vars(shape_env)["create_symintnode"] = create_number
    try:
        return _real_from_tensor(self, tensor, **options)
    finally:
        del vars(shape_env)["create_symintnode"]


def install() -> None:
    """Puts the check where PyTorch's tracers convert what they are given."""
    PyTorchsMode.from_tensor = _from_tensor  # type: ignore[method-assign,assignment]
