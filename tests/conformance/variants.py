"""The variants of a sample: the layout of its tensors, and how the operator is called."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from compare import is_dense, tensors_in
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils import _pytree as pytree

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def arguments_of(sample: SampleInput) -> Arguments:
    return (sample.input, *sample.args), sample.kwargs


def transposed(tensor: torch.Tensor) -> torch.Tensor:
    """The same values in reversed memory order."""
    if tensor.dim() < 2:
        return tensor
    return tensor.transpose(0, -1).contiguous().transpose(0, -1)


def channels_last(tensor: torch.Tensor) -> torch.Tensor:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    if tensor.dim() not in formats:
        return tensor
    return tensor.contiguous(memory_format=formats[tensor.dim()])


def with_offset(tensor: torch.Tensor) -> torch.Tensor:
    """The same tensor, offset by three elements in a larger storage."""
    span = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    storage = torch.zeros(3 + max(span, 1), dtype=tensor.dtype)
    moved = storage.as_strided(tensor.shape, tensor.stride(), 3)
    if 0 not in tensor.stride():
        moved.copy_(tensor)
    return moved


def expanded(tensor: torch.Tensor) -> torch.Tensor:
    """The first row, repeated with stride 0."""
    if tensor.dim() < 1 or tensor.shape[0] < 2:
        return tensor
    return tensor[:1].clone().expand(tensor.shape)


def conjugated(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone().conj() if tensor.is_complex() else tensor


def _each(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Arguments], Arguments]:
    def apply(arguments: Arguments) -> Arguments:
        def convert(tensor: torch.Tensor) -> torch.Tensor:
            if not is_dense(tensor):
                return tensor
            with torch.no_grad():
                changed = change(tensor.detach())
            return changed.detach().requires_grad_(tensor.requires_grad)

        return pytree.tree_map_only(torch.Tensor, convert, arguments)

    return apply


def zero_sized(arguments: Arguments) -> Arguments:
    """The first dimension of the first tensor set to size 0, and that of every tensor with the same size."""
    batch = next((t.shape[0] for t in tensors_in(arguments) if t.dim() > 0), 0)
    return _each(lambda t: t[:0].clone() if t.dim() > 0 and t.shape[0] == batch else t)(arguments)


#: How tensors are laid out. "plain" leaves the sample as it is.
LAYOUTS: dict[str, Callable[[Arguments], Arguments]] = {
    "plain": lambda arguments: arguments,
    "transposed": _each(transposed),
    "channels-last": _each(channels_last),
    "offset": _each(with_offset),
    "zero-sized": zero_sized,
    "expanded": _each(expanded),
    "conjugated": _each(conjugated),
}


def laid_out(arguments: Arguments, layout: str) -> Arguments | None:
    """The arguments in that layout; None if it changes nothing."""
    if layout == "plain":
        return arguments
    changed = LAYOUTS[layout](arguments)
    pairs = zip(tensors_in(arguments), tensors_in(changed), strict=True)
    return changed if any(_shape_in_memory(a) != _shape_in_memory(b) for a, b in pairs) else None


def _shape_in_memory(tensor: torch.Tensor) -> tuple[Any, ...]:
    if not is_dense(tensor):
        return ()
    return tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.is_conj()


#: How the operator is called.
CALLS = ("function", "autocast", "inference", "in-place", "out", "out resized", "out transposed")

Call = tuple[Callable[..., Any], Arguments, bool]  # function, arguments, with gradients


def called(op: OpInfo, arguments: Arguments, call: str, with_gradients: bool, device: str = "cpu") -> Iterator[Call]:
    """The operator called that way, to run on `device`; nothing if that is not possible."""
    if call == "function":
        yield op.op, arguments, with_gradients
    elif call == "autocast":
        yield _within(op.op, lambda: torch.autocast(device)), arguments, with_gradients
    elif call == "inference":
        yield _within(op.op, torch.inference_mode), without_grad(arguments), False
    elif call == "in-place":
        if op.inplace_variant is not None:
            yield op.inplace_variant, without_grad(arguments), False
            if with_gradients:
                yield _on_a_clone(op.inplace_variant), arguments, True
    elif op.supports_out and "out" not in arguments[1]:
        yield from _with_out(op, without_grad(arguments), call)


def without_grad(arguments: Arguments) -> Arguments:
    return pytree.tree_map_only(torch.Tensor, lambda t: t.detach(), arguments)


def _within(function: Callable[..., Any], context: Callable[[], Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with context():
            return function(*args, **kwargs)

    return call


def _on_a_clone(function: Callable[..., Any]) -> Callable[..., Any]:
    """An in-place call on a clone, since autograd does not allow writing to a leaf that requires grad."""

    def call(first: Any, *args: Any, **kwargs: Any) -> Any:
        return function(pytree.tree_map_only(torch.Tensor, torch.clone, first), *args, **kwargs)

    return call


def _with_out(op: OpInfo, arguments: Arguments, call: str) -> Iterator[Call]:
    args, kwargs = arguments
    with contextlib.suppress(Exception):
        outputs = op.op(*args, **kwargs)
        makers = {
            "out": torch.empty_like,
            "out resized": lambda t: torch.empty(0, dtype=t.dtype),
            "out transposed": lambda t: transposed(torch.empty_like(t, memory_format=torch.contiguous_format)),
        }
        if isinstance(outputs, torch.Tensor):
            out: Any = makers[call](outputs.detach())
        elif isinstance(outputs, tuple) and all(isinstance(t, torch.Tensor) for t in outputs):
            out = tuple(makers[call](t.detach()) for t in outputs)
        else:
            return
        yield op.op, (args, {**kwargs, "out": out}), False
