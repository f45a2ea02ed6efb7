"""Small models of many families, forward and backward: on fakes everything looks as it does for real on the CPU."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from families import FAMILIES, Family
from torch import Tensor

from torchfake import fake_mode, is_fake

Metadata = dict[str, tuple[Any, ...]]


def run(family: Family, device: str) -> dict[str, Tensor]:
    """Every tensor of the model, of its outputs and of its gradients, by name."""
    torch.manual_seed(0)
    model = family.build().to(device)
    inputs = {name: tensor.to(device) for name, tensor in family.inputs(model.config).items()}
    outputs = model(**inputs)
    found = dict(tensors_in(outputs, "outputs"))
    assert found
    loss_of(outputs, found).backward()
    found |= model.state_dict(prefix="model.", keep_vars=True)
    found |= {f"gradients.{name}": p.grad for name, p in model.named_parameters() if p.grad is not None}
    return found


def loss_of(outputs: Any, found: dict[str, Tensor]) -> Tensor:
    loss = outputs.get("loss")
    if loss is not None:
        return loss
    return sum(t.float().mean() for t in found.values() if t.requires_grad)  # type: ignore[return-value]


def tensors_in(value: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    """The tensors in an output of a model, those in its caches included."""
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


def describe(found: dict[str, Tensor], *, strides: bool) -> Metadata:
    return {
        name: (tuple(t.shape), t.stride() if strides else None, t.dtype, t.requires_grad) for name, t in found.items()
    }


@functools.cache
def real_metadata(family: Family) -> tuple[Metadata, Metadata]:
    """With and without strides."""
    found = run(family, "cpu")
    return describe(found, strides=True), describe(found, strides=False)


def on_fakes(family: Family, device: str) -> dict[str, Tensor]:
    with fake_mode():
        found = run(family, device)
    wrong = {name: t for name, t in found.items() if not is_fake(t) or t.device.type != device}
    assert not wrong, f"not fake, or elsewhere than on {device}: {wrong}"
    return found


@pytest.fixture(autouse=True)
def without_the_models_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def families_on(device: str) -> pytest.MarkDecorator:
    chosen = [family for family in FAMILIES if device in family.devices]
    return pytest.mark.parametrize("family", chosen, ids=[family.model for family in chosen])


@families_on("cpu")
def test_on_cpu_sizes_strides_and_dtypes_are_the_real_ones(family: Family) -> None:
    expected, _ = real_metadata(family)
    assert describe(on_fakes(family, "cpu"), strides=True) == expected


# A kernel for CUDA may lay its result out in another way (attention, convolution), so strides are left out.
@families_on("cuda")
def test_on_claimed_cuda_sizes_and_dtypes_are_the_real_ones(family: Family) -> None:
    _, expected = real_metadata(family)
    assert describe(on_fakes(family, "cuda"), strides=False) == expected


def test_the_families_are_many_and_of_every_kind() -> None:
    assert len({family.config for family in FAMILIES}) >= 25
    assert {family.kind for family in FAMILIES} >= {
        "text decoder",
        "text encoder",
        "encoder-decoder",
        "vision",
        "audio",
        "multimodal",
        "mixture of experts",
        "state space",
    }
