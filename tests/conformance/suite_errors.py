"""Suite 2: every bad input known to OpInfo: what real PyTorch refuses, the fake refuses with the same type."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from compare import NO_SAMPLES, REAL_ACCEPTS, Case, Result, compare
from engines import Engine
from suite_operators import Scope, operators
from variants import arguments_of

NAME = "errors"


def subjects() -> list[str]:
    return [name for name, infos in operators().items() if any(op.error_inputs_func is not None for op in infos)]


def cases(engine: Engine, subject: str, scope: Scope) -> Iterator[Case]:
    for op in operators()[subject]:
        if op.error_inputs_func is None:
            continue
        try:
            for i, error_input in enumerate(itertools.islice(op.error_inputs("cpu"), scope.limit or None)):
                if not scope.includes(NAME, subject, "bad input", i):
                    continue
                result = compare(engine, op.op, arguments_of(error_input.sample_input), with_gradients=False)
                if result.outcome == "same":
                    result = Result(REAL_ACCEPTS)
                yield Case(NAME, subject, "bad input", i, result)
        except Exception as error:
            yield Case(NAME, subject, "bad input", 0, Result(NO_SAMPLES, f"{type(error).__name__}: {error}"))
