"""Suite 3, second part: suite 1 on fakes that claim `cuda`, compared with the recorded results of a real GPU.

A few samples of every operator, in the dtypes, layouts and call forms of suite 1, and the bad input of suite 2.
`tools/record_cuda_calls.py` writes the record, `cuda_calls.jsonl.gz`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from compare import Case, is_dense, tensors_in
from cuda_record import Call, Record
from engines import Engine
from suite_operators import REAL_CRASHES, Scope, operators, seed_samples
from torch.testing._internal.opinfo.core import OpInfo
from variants import Arguments, arguments_of, called, laid_out

NAME = "cuda calls"
RECORD = Record(Path(__file__).parent / "cuda_calls.jsonl.gz")

#: Per operator and dtype.
SAMPLES = 3


def calls(subject: str, scope: Scope) -> Iterator[Call]:
    """The recorded calls, in order."""
    for op in operators()[subject]:
        yield from _bad_calls(op)
    for op, dtype in itertools.product(operators()[subject], scope.dtypes):
        kind = getattr(torch, dtype)
        if kind not in op.dtypes | op.dtypesIfCUDA:
            continue
        differentiable = kind.is_floating_point or kind.is_complex
        for arguments in _samples(op, kind, differentiable, min(scope.limit or SAMPLES, SAMPLES)):
            for layout, call in scope.variants():
                changed: Any = laid_out(arguments, layout)
                if changed is None or not REAL_CRASHES.isdisjoint({(subject, layout), (subject, call)}):
                    continue
                for function, inputs, with_gradients in called(op, changed, call, differentiable, "cuda"):
                    way = f"differentiated {call}" if call == "in-place" and with_gradients else call
                    yield Call(f"{dtype} {layout} {way}", function, inputs, with_gradients)


def _bad_calls(op: OpInfo) -> Iterator[Call]:
    """The bad input of suite 2; on a GPU some of it is accepted."""
    if op.error_inputs_func is not None:
        for error_input in op.error_inputs("cpu"):
            arguments = arguments_of(error_input.sample_input)
            if _is_dense(arguments):
                yield Call("bad input", op.op, arguments)


def _samples(op: OpInfo, dtype: torch.dtype, differentiable: bool, limit: int) -> list[Arguments]:
    """Samples with the same numbers wherever they are created; none if the CPU lacks an operator to create them."""
    seed_samples()
    try:
        found = list(itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=differentiable), limit))
    except (NotImplementedError, RuntimeError):
        return []
    return [arguments for arguments in map(arguments_of, found) if _is_dense(arguments)]


def _is_dense(arguments: Arguments) -> bool:
    return all(map(is_dense, tensors_in(arguments)))


def subjects() -> list[str]:
    return [name for name in operators() if name in RECORD.answers]


def cases(engine: Engine, subject: str, scope: Scope) -> Iterator[Case]:
    yield from RECORD.cases(engine, NAME, subject, calls(subject, scope), scope)
