"""The memory that convolutions take at most, compared with a part of the grid recorded on a real card."""

from __future__ import annotations

import gzip
import json
import statistics
import sys
from pathlib import Path

import pytest
import torch

import torchfake
from torchfake import memory

HERE = Path(__file__).parents[1] / "memory"
sys.path.insert(0, str(HERE))
from convolution_grid import Convolution, empty  # noqa: E402

RECORDED = json.loads(gzip.decompress((HERE / "recorded" / "convolutions.json.gz").read_bytes()))
CASES = [(Convolution(*case), peaks) for case, peaks in RECORDED["cases"]]
PASSES = ([True, False, False], [False, True, False], [True, True, True])


def peaks_of(case: Convolution) -> list[int]:
    """What the forward pass, the gradients of input and weight, and all gradients take above what was there."""
    dtype, n = getattr(torch, case.dtype), case.dims
    first, second = (case.channels, case.out) if case.transposed else (case.out, case.channels)
    x = empty([case.batch, case.channels, *n * [case.size]], dtype, case.layout)
    weight_layout = "contiguous" if n == 1 or case.layout == "input_only" else case.layout
    w = empty([first, second // case.groups, *n * [case.kernel]], dtype, weight_layout)
    how = [
        n * [case.stride], n * [case.padding], n * [case.dilation], case.transposed, n * [0], case.groups,
    ]  # fmt: skip
    found = []

    def measure(call):
        memory.reset_peak_stats()
        before = memory.stats()["requested_bytes.all.current"]
        made = call()
        found.append(memory.stats()["requested_bytes.all.peak"] - before)
        return made

    with torch.no_grad():
        y = measure(lambda: torch.ops.aten.convolution.default(x, w, None, *how))
        gradient = torch.empty_like(y)
        for mask in PASSES:
            measure(
                lambda mask=mask: torch.ops.aten.convolution_backward.default(gradient, x, w, [case.out], *how, mask)
            )
    return found


@pytest.fixture(scope="module")
def compared() -> list[tuple[Convolution, list[int], list[int]]]:
    found = []
    with torchfake.fake_mode():
        memory.attach(total_memory=150109880320, release=11, config="")
        for case, recorded in CASES:
            if case.tf32 or case.dtype != "float32":
                found.append((case, peaks_of(case), recorded))
    return found


@pytest.mark.parametrize(
    ("index", "exact", "mean"),
    [(0, 0.8, 0.05), (1, 0.8, 0.06), (2, 0.6, 0.25), (3, 0.6, 0.08)],
    ids=["forward", "input_gradient", "weight_gradient", "all_gradients"],
)
def test_most_convolutions_take_what_they_take_on_the_card(compared, index: int, exact: float, mean: float) -> None:
    off = [abs(found[index] - recorded[index]) for _, found, recorded in compared]
    relative = [a / recorded[index] for a, (_, _, recorded) in zip(off, compared, strict=True)]
    # The last bytes, which count blocks that have finished, are not modelled.
    same = sum(a <= max(2048, recorded[index] // 1000) for a, (_, _, recorded) in zip(off, compared, strict=True))
    assert same / len(off) >= exact
    assert statistics.mean(min(error, 1.0) for error in relative) <= mean
