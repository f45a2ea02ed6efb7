"""How fake tensors print: like PyTorch's meta tensors, with `fake=True`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, _tensor_str

from torchfake import _C

_real_str_intern = _tensor_str._str_intern  # type: ignore[attr-defined]


def _describe(tensor: Tensor) -> str:
    suffixes = []
    if tensor.device.type != torch._C._get_default_device():
        suffixes.append(f"device='{tensor.device}'")
    suffixes.append(f"size={tuple(tensor.shape)}")
    if tensor.dtype != torch.get_default_dtype():  # no value shows it, so int64 and bool are named too, as for meta
        suffixes.append(f"dtype={tensor.dtype}")
    suffixes.append("fake=True")
    if tensor.grad_fn is not None:
        name = type(tensor.grad_fn).__name__
        suffixes.append(f"grad_fn=<{name}>" if name != "CppFunction" else f"grad_fn=<{tensor.grad_fn.name()}>")
    elif tensor.requires_grad:
        suffixes.append("requires_grad=True")
    return _tensor_str._add_suffixes("tensor(...", suffixes, len("tensor("), force_newline=False)  # type: ignore[no-any-return]


def _str_intern(tensor: Tensor, *, tensor_contents: Any = None) -> str:
    if tensor_contents is None and _C.is_fake(tensor) and not torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return _describe(tensor)
    return _real_str_intern(tensor, tensor_contents=tensor_contents)  # type: ignore[no-any-return]


def install() -> None:
    """Teaches PyTorch's printer about fakes."""
    _tensor_str._str_intern = _str_intern  # type: ignore[attr-defined]
