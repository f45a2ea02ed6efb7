"""Suite 1: every OpInfo of PyTorch, real CPU against fake, in many layouts, dtypes and ways to call."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from compare import NO_SAMPLES, Case, Result, compare
from engines import Engine
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo
from variants import CALLS, LAYOUTS, Arguments, arguments_of, called, laid_out

NAME = "operators"
DTYPES = ("float32", "bfloat16", "float16", "int64", "complex64", "bool")

#: Layouts and calls in which real PyTorch ends the process, by a division by zero or an access outside of memory:
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
    """How much of a suite to run. `limit` samples of each subject and dtype, 0 for all."""

    limit: int = 0
    dtypes: tuple[str, ...] = DTYPES
    layouts: tuple[str, ...] = tuple(LAYOUTS)
    calls: tuple[str, ...] = CALLS

    def variants(self) -> Iterator[tuple[str, str]]:
        """Every layout with a plain call; every other call on plain and transposed inputs; writes on expanded ones."""
        for layout, call in itertools.product(self.layouts, self.calls):
            if call == "function" or layout in ("plain", "transposed") or (layout, call) == ("expanded", "in-place"):
                yield layout, call


@functools.cache
def operators() -> dict[str, list[OpInfo]]:
    """OpInfos by full name; a few share theirs."""
    found: dict[str, list[OpInfo]] = {}
    for op in op_db:
        found.setdefault(op.full_name, []).append(op)
    return found


def subjects() -> list[str]:
    return list(operators())


def samples(op: OpInfo, dtype: torch.dtype, limit: int) -> Iterator[Arguments]:
    grad = dtype in op.supported_backward_dtypes("cpu")
    for sample in itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=grad), limit or None):
        yield arguments_of(sample)


def cases(engine: Engine, subject: str, scope: Scope) -> Iterator[Case]:
    for op, name in itertools.product(operators()[subject], scope.dtypes):
        dtype = getattr(torch, name)
        if dtype not in op.supported_dtypes("cpu"):
            continue
        try:
            for i, arguments in enumerate(samples(op, dtype, scope.limit)):
                for layout, call in scope.variants():
                    yield from _compared(engine, op, arguments, (name, layout, call), i)
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
