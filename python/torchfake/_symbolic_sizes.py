"""Symbolic sizes, refused by name where a tracer of PyTorch's would bring them into a mode of ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchfake.errors import DynamicShapesError

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensorMode as PyTorchsMode


def from_tensor(original: Callable[..., Tensor], self: PyTorchsMode, tensor: Tensor, **options: Any) -> Tensor:
    shape_env = self.shape_env
    if shape_env is None or "create_symintnode" in vars(shape_env):
        return original(self, tensor, **options)
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
        return original(self, tensor, **options)
    finally:
        del vars(shape_env)["create_symintnode"]
