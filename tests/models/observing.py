"""Runs a small model forward and backward, and describes every resulting tensor."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import torch
from families import Family
from torch import Tensor

Metadata = dict[str, tuple[Any, ...]]


# The precision of training: the model's own, that of its weights, or autocast's.
PRECISIONS = ("float32", "bfloat16", "autocast")


def run(family: Family, device: str, precision: str = "float32") -> dict[str, Tensor]:
    """Every tensor of the model, its outputs, its gradients and its optimizer after a step, by name."""
    torch.manual_seed(0)
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    model = family.build().to(device, dtype)
    inputs = {name: to_precision(tensor.to(device), dtype) for name, tensor in family.inputs(model.config).items()}
    with torch.autocast(device, torch.bfloat16, enabled=precision == "autocast"):
        outputs = model(**inputs)
    found = dict(tensors_in(outputs, "outputs"))
    assert found
    loss_of(outputs, found).backward()
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.step()
    found |= model.state_dict(prefix="model.", keep_vars=True)
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            found[f"gradients.{name}"] = parameter.grad
            found |= {f"optimizer.{name}.{key}": value for key, value in optimizer.state[parameter].items()}
    return found


def to_precision(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def loss_of(outputs: Any, found: dict[str, Tensor]) -> Tensor:
    loss = outputs.get("loss")
    if loss is not None:
        return loss
    return sum(t.float().mean() for t in found.values() if t.requires_grad)  # type: ignore[return-value]


def tensors_in(value: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    """The tensors in a model's output, including those in its caches."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from tensors_in(inner, f"{name}.{key}")
    elif isinstance(value, (list, tuple)):
        for position, inner in enumerate(value):
            yield from tensors_in(inner, f"{name}.{position}")
    elif type(value).__module__.startswith("transformers"):
        yield from tensors_in(vars(value), name)


def describe(found: dict[str, Tensor]) -> Metadata:
    return {name: (tuple(t.shape), t.stride(), t.dtype, t.device.type, t.requires_grad) for name, t in found.items()}


def plain(metadata: Metadata) -> Any:
    """The metadata as stored in a record."""
    return json.loads(json.dumps(metadata, default=str))
