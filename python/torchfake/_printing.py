"""How fake tensors print: like PyTorch's meta tensors, with `fake=True`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, _tensor_str
from torch.autograd import forward_ad

from torchfake import _C
from torchfake.fake import find_fake, is_fake, no_fake_mode


def _describe(tensor: Tensor, contents: str) -> str:
    is_plain = type(tensor) in (Tensor, torch.nn.Parameter)
    prefix = "tensor(" if is_plain else f"{type(tensor).__name__}("
    suffixes = []
    if tensor.device.type != torch._C._get_default_device():
        suffixes.append(f"device='{tensor.device}'")
    suffixes.append(f"size={tuple(tensor.shape)}")
    if tensor.dtype != torch.get_default_dtype():  # no value shows it, so int64 and bool are named too, as for meta
        suffixes.append(f"dtype={tensor.dtype}")
    suffixes.append("fake=True")
    suffixes += _autograd_suffixes(tensor)
    add_suffixes: Callable[..., str] = _tensor_str._add_suffixes
    text = add_suffixes(prefix + contents, suffixes, len(prefix), force_newline=False)
    return f"Parameter({text})" if isinstance(tensor, torch.nn.Parameter) and not is_plain else text


def _autograd_suffixes(tensor: Tensor) -> list[str]:
    try:
        function = tensor.grad_fn
    except RuntimeError:  # of a view that was changed where autograd cannot follow
        return ["grad_fn=<Invalid>"]
    suffixes = []
    if function is not None:
        name = type(function).__name__
        suffixes.append(f"grad_fn=<{function.name().rsplit('::', 1)[-1] if name == 'CppFunction' else name}>")
    elif tensor.requires_grad:
        suffixes.append("requires_grad=True")
    tangent = forward_ad.unpack_dual(tensor).tangent  # type: ignore[no-untyped-call]
    return suffixes if tangent is None else [*suffixes, f"tangent={tangent}"]


def _wraps_fake(tensor: Tensor) -> bool:
    """Whether a subclass in Python holds a fake, in the way PyTorch knows of or as a plain attribute."""
    if type(tensor).__torch_dispatch__ is Tensor.__torch_dispatch__:
        return False
    return is_fake(tensor) or find_fake(vars(tensor).values()) is not None


def str_intern(original: Callable[..., str], tensor: Tensor, *, tensor_contents: str | None = None) -> str:
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor) or torch._is_functional_tensor(tensor):
        return original(tensor, tensor_contents=tensor_contents)
    if _C.is_fake(tensor) or _wraps_fake(tensor):
        return _describe(tensor, "..." if tensor_contents is None else tensor_contents)
    if not _C.in_fake_mode():
        return original(tensor, tensor_contents=tensor_contents)
    with no_fake_mode():  # a mode may refuse operators on real tensors
        return original(tensor, tensor_contents=tensor_contents)


def format_tensor(original: Callable[..., str], self: Tensor, spec: str) -> str:
    # A number is formatted as its value. Without one, and unless a form is asked for, its metadata is what there is.
    if spec == "" and self.dim() == 0 and _C.is_plain_fake(self) and not _C.is_known(self):
        return repr(self)
    return original(self, spec)
