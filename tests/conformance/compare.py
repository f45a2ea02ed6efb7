"""Runs one operator for real and on fakes, and compares what comes out in metadata."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

import torchfake

#: Outcomes of one comparison.
SAME, DIFFERENT, DECLARED, FAKE_RAISES, FAKE_ACCEPTS, BOTH_RAISE = (
    "same",
    "different",
    "data-dependent",
    "fake raises",
    "fake accepts",
    "both raise",
)


@dataclass(frozen=True)
class Result:
    outcome: str
    detail: str = ""


def metadata(tensor: torch.Tensor, inputs: list[torch.Tensor]) -> dict[str, Any]:
    """Everything of a tensor that has to agree, with its place among the inputs."""
    row: dict[str, Any] = {
        "size": tuple(tensor.shape),
        "dtype": tensor.dtype,
        "device": tensor.device.type,
        "layout": tensor.layout,
        "requires_grad": tensor.requires_grad,
    }
    if tensor.layout == torch.strided and not tensor.is_nested:
        row["stride"] = normal_stride(tensor)
        row["offset"] = tensor.storage_offset()
        row["conj"] = tensor.is_conj()
        row["neg"] = tensor.is_neg()
        row["is"] = next((i for i, other in enumerate(inputs) if other is tensor), None)
        row["shares"] = next((i for i, other in enumerate(inputs) if shares_storage(tensor, other)), None)
    return row


def normal_stride(tensor: torch.Tensor) -> tuple[int, ...]:
    """The strides that mean something: none of an empty tensor, 0 over a dimension of size 1."""
    if tensor.numel() == 0:
        return ()
    return tuple(0 if size == 1 else stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def shares_storage(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.layout != torch.strided or b.layout != torch.strided or a.is_nested or b.is_nested:
        return False
    return a.untyped_storage()._cdata == b.untyped_storage()._cdata


def tensors_in(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def gradients(outputs: list[torch.Tensor], inputs: list[torch.Tensor]) -> list[torch.Tensor | None] | None:
    """Gradients of all outputs by all inputs, for ones; None where nothing requires them."""
    wanted = [t for t in inputs if t.requires_grad]
    roots = [t for t in outputs if t.requires_grad and (t.is_floating_point() or t.is_complex())]
    if not wanted or not roots:
        return None
    return list(torch.autograd.grad(roots, wanted, [torch.ones_like(t) for t in roots], allow_unused=True))


def describe(outputs: Any, inputs: list[torch.Tensor], with_gradients: bool) -> list[Any]:
    tensors = tensors_in(outputs)
    rows: list[Any] = [metadata(t, inputs) for t in tensors]
    rows.append([type(leaf).__name__ for leaf in pytree.tree_leaves(outputs) if not isinstance(leaf, torch.Tensor)])
    if with_gradients:
        grads = gradients(tensors, inputs)
        rows.append(None if grads is None else [None if g is None else metadata(g, []) for g in grads])
    return rows


def difference(real: list[Any], fake: list[Any]) -> str:
    for i, (a, b) in enumerate(zip(real, fake, strict=False)):
        if a != b:
            if isinstance(a, dict) and isinstance(b, dict):
                wrong = {key: (a[key], b.get(key)) for key in a if a[key] != b.get(key)}
                return f"output {i}: " + ", ".join(f"{key} real {r} fake {f}" for key, (r, f) in wrong.items())
            return f"part {i}: real {a} fake {b}"
    return "" if len(real) == len(fake) else f"real has {len(real)} parts, fake {len(fake)}"


def compare(
    function: Callable[..., Any],
    arguments: tuple[tuple[Any, ...], dict[str, Any]],
    *,
    known: bool = False,
    with_gradients: bool = True,
) -> Result:
    """Calls `function` on copies of the arguments, real and fake. `known` keeps the values of the fakes."""
    args, kwargs = arguments
    real_args, real_kwargs = copy_tree((args, kwargs))
    fake_args, fake_kwargs = fake_tree((args, kwargs), known)
    real_inputs, fake_inputs = tensors_in((real_args, real_kwargs)), tensors_in((fake_args, fake_kwargs))
    real_error: Exception | None = None
    torch.manual_seed(0)
    try:
        real = describe(function(*real_args, **real_kwargs), real_inputs, with_gradients)
    except Exception as error:
        real_error = error
    try:
        with torchfake.fake_mode():
            outputs = function(*fake_args, **fake_kwargs)
            fake = describe(outputs, fake_inputs, with_gradients)
            not_fake = [t for t in tensors_in(outputs) if not torchfake.is_fake(t)]
    except (torchfake.DataDependentOutputException, torchfake.DynamicOutputShapeException) as error:
        return Result(BOTH_RAISE if real_error else DECLARED, str(error))
    except Exception as error:
        if real_error is not None:
            return Result(BOTH_RAISE, f"real {type(real_error).__name__}, fake {type(error).__name__}")
        return Result(FAKE_RAISES, f"{type(error).__name__}: {str(error)[:300]}")
    if real_error is not None:
        return Result(FAKE_ACCEPTS, f"real {type(real_error).__name__}: {str(real_error)[:200]}")
    if not_fake:
        return Result(DIFFERENT, "an output is not fake")
    detail = difference(real, fake)
    return Result(DIFFERENT, detail) if detail else Result(SAME)


def copy_tree(tree: Any) -> Any:
    """The same tensors anew, with their strides, and sharing as the originals do."""
    storages: dict[int, torch.UntypedStorage] = {}

    def copy(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided or value.is_nested:
            return value.detach().clone().requires_grad_(value.requires_grad) if isinstance(value, torch.Tensor) else value
        key = value.untyped_storage()._cdata
        if key not in storages:
            storages[key] = value.untyped_storage().clone()
        new = torch.empty(0, dtype=value.dtype).set_(
            storages[key], value.storage_offset(), value.shape, value.stride()
        )
        if value.is_conj():
            new = torch._conj(new)
        if value.is_neg():
            new = torch._neg_view(new)
        return new.requires_grad_(value.requires_grad)

    return pytree.tree_map(copy, tree)


def fake_tree(tree: Any, known: bool) -> Any:
    def convert(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if known and value.layout == torch.strided and not value.is_nested:
            with torchfake.fake_mode():
                return torch.ops.aten.lift_fresh_copy(value.detach()).requires_grad_(value.requires_grad)
        return torchfake.to_fake(value)

    with torchfake.fake_mode():
        return pytree.tree_map(convert, tree)
