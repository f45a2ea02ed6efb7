"""Small models of many families, forward and backward: fakes match a real CPU and a real GPU."""

from __future__ import annotations

import functools
import gzip
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from families import FAMILIES, Family
from observing import PRECISIONS, describe, plain, run
from torch import Tensor

from torchfake import fake_mode, is_fake

# The release on record does not compute the Fourier transform of bfloat16 numbers.
ACCEPTED_SINCE_2_15 = {("FNetModel", "autocast")}


@functools.cache
def on_a_gpu() -> dict[str, Any]:
    """The results of a real GPU, recorded by `tools/record_cuda_models.py`."""
    with gzip.open(Path(__file__).parent / "cuda_families.json.gz", "rt") as file:
        return json.load(file)  # type: ignore[no-any-return]


def on_fakes(family: Family, device: str, precision: str = "float32") -> dict[str, Tensor]:
    with fake_mode():
        found = run(family, device, precision)
    real = [name for name, tensor in found.items() if not is_fake(tensor)]
    assert not real, f"not fake: {real}"
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
    assert describe(on_fakes(family, "cpu")) == describe(run(family, "cpu"))


@pytest.mark.parametrize("precision", PRECISIONS)
@families_on("cuda")
def test_on_claimed_cuda_sizes_strides_and_dtypes_are_those_of_a_real_gpu(family: Family, precision: str) -> None:
    expected = on_a_gpu()[precision].get(family.model)
    if expected is None:
        pytest.skip("not on record")
    if (family.model, precision) in ACCEPTED_SINCE_2_15 and torch.__version__ >= "2.15":
        pytest.skip("the record is of an earlier release, which refused what this one computes")
    try:
        answer = plain(describe(on_fakes(family, "cuda", precision)))
    except Exception as error:
        if not isinstance(expected, str):
            raise
        answer = type(error).__name__
    assert answer == expected


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
