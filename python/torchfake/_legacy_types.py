"""`torch.cuda.FloatTensor` and its like in the mode, on a PyTorch without CUDA."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchfake import _C


class _CudaTensorType(type):
    """The type of the stand-ins. Outside the mode they raise what PyTorch's own do."""

    dtype: torch.dtype
    _original: Any

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if not _C.in_fake_mode():
            return cls._original(*args, **kwargs)
        return torch.empty(0, dtype=cls.dtype, device="cuda").new(*args, **kwargs)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, Tensor) and instance.device.type == "cuda" and instance.dtype == cls.dtype

    def __getattr__(cls, name: str) -> Any:
        return getattr(cls._original, name)

    # PyTorch has a set of its tensor types.
    def __eq__(cls, other: object) -> bool:
        return other is cls or other is cls._original

    def __hash__(cls) -> int:
        return hash(cls._original)


def stand_in(original: Any) -> Any:
    """What stands in the place of one of PyTorch's types: the type itself where PyTorch has CUDA."""
    if torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
        return original
    return _CudaTensorType(original.__name__, (), {"__module__": "torch.cuda", "_original": original})


#: Those that PyTorch has.
NAMES = sorted(original.__name__ for original in torch._tensor_classes if original.__module__ == "torch.cuda")
