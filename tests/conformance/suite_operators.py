"""Suite 1: every OpInfo of PyTorch, real CPU tensors against fakes, in many layouts, dtypes and call forms."""

from __future__ import annotations

import functools
import hashlib
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from compare import NO_SAMPLES, Case, Result, compare
from engines import Engine
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo
from variants import CALLS, LAYOUTS, Arguments, arguments_of, called, laid_out

NAME = "operators"
DTYPES = ("float32", "bfloat16", "float16", "int64", "complex64", "bool")

#: Layouts and calls in which real PyTorch ends the process, by a division by zero or an invalid memory access: there is
#: nothing to compare with.
REAL_CRASHES = {
    ("nn.functional.pdist", "zero-sized"),
    ("native_batch_norm", "zero-sized"),
    ("_native_batch_norm_legit", "zero-sized"),
    ("_segment_reduce.lengths", "zero-sized"),
    ("_segment_reduce.offsets", "zero-sized"),
    ("tril", "out transposed"),
    ("triu", "out transposed"),
    ("lu_unpack", "out transposed"),
    ("linalg.lu", "out transposed"),
}


@dataclass(frozen=True)
class Scope:
    """How much of a suite to run.

    Attributes:
        limit: Number of samples of each subject and dtype, 0 for all.
        share: The share of the cases to run, reproducibly selected by `seed`.
    """

    limit: int = 0
    dtypes: tuple[str, ...] = DTYPES
    layouts: tuple[str, ...] = tuple(LAYOUTS)
    calls: tuple[str, ...] = CALLS
    share: float = 1.0
    seed: str = ""

    def includes(self, suite: str, subject: str, variant: str, sample: int) -> bool:
        """Whether the case is in the share, which is drawn uniformly from all cases."""
        if self.share >= 1:
            return True
        digest = hashlib.sha256(f"{self.seed} {suite} {subject} {variant} {sample}".encode()).digest()
        return int.from_bytes(digest[:8], "big") < self.share * 2**64

    def variants(self) -> Iterator[tuple[str, str]]:
        """Every layout with a plain call; all other calls on plain and transposed inputs; writes on expanded ones."""
        for layout, call in itertools.product(self.layouts, self.calls):
            if call == "function" or layout in ("plain", "transposed") or (layout, call) == ("expanded", "in-place"):
                yield layout, call


@functools.cache
def operators() -> dict[str, list[OpInfo]]:
    """OpInfos by full name; a few share a name."""
    found: dict[str, list[OpInfo]] = {}
    for op in op_db:
        found.setdefault(op.full_name, []).append(op)
    return found


def subjects() -> list[str]:
    return list(operators())


def seed_samples() -> None:
    """Makes samples have the same numbers wherever and whenever they are created."""
    for seed in (torch.manual_seed, random.seed, numpy.random.seed):
        seed(0)


def samples(op: OpInfo, dtype: torch.dtype, limit: int) -> Iterator[Arguments]:
    """Samples with the same values in every run: some outcomes depend on values."""
    seed_samples()
    grad = dtype in op.supported_backward_dtypes("cpu")
    # Creates all before using the first one, which may draw numbers too.
    found = list(itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=grad), limit or None))
    return map(arguments_of, found)


def cases(engine: Engine, subject: str, scope: Scope) -> Iterator[Case]:
    for op, name in itertools.product(operators()[subject], scope.dtypes):
        dtype = getattr(torch, name)
        if dtype not in op.supported_dtypes("cpu"):
            continue
        try:
            for i, arguments in enumerate(samples(op, dtype, scope.limit)):
                for variant in ((name, layout, call) for layout, call in scope.variants()):
                    if scope.includes(NAME, subject, " ".join(variant), i):
                        yield from _compared(engine, op, arguments, variant, i)
        except Exception as error:
            yield Case(NAME, subject, name, 0, Result(NO_SAMPLES, f"{type(error).__name__}: {error}"))


def _compared(
    engine: Engine, op: OpInfo, arguments: Arguments, variant: tuple[str, str, str], i: int
) -> Iterator[Case]:
    dtype, layout, call = variant
    changed: Any = laid_out(arguments, layout)
    if changed is None or not REAL_CRASHES.isdisjoint({(op.full_name, layout), (op.full_name, call)}):
        return
    with_gradients = getattr(torch, dtype) in op.supported_backward_dtypes("cpu")
    for function, inputs, gradients in called(op, changed, call, with_gradients):
        result = compare(engine, function, inputs, with_gradients=gradients)
        yield Case(NAME, op.full_name, " ".join(variant), i, result)
