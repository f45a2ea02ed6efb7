"""Suite 3, second half: modules of torch.nn on fakes that claim `cuda`, against what a real GPU answered.

`cuda_modules.jsonl.gz` holds a line per sample, `[module, variant, inputs, rows, error]`: `inputs` as in `suite_cuda`,
`rows` the metadata of outputs, gradients, state and inputs after a forward and a backward, or null where it raised
`error`. `tools/record_cuda_models.py` writes it, on a machine that has a GPU.
"""

from __future__ import annotations

import collections
import functools
import gzip
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from compare import (
    DIFFERENT,
    FAKE_ACCEPTS,
    NOT_MATCHED,
    SAME,
    Case,
    Result,
    copy_tree,
    describe,
    difference,
    judge_against_record,
    settle,
    tensors_in,
)
from engines import Engine, fake_tree
from suite_cuda import described
from suite_modules import DTYPES, arguments_of, inputs_of, run_of
from suite_operators import Scope
from torch.testing._internal.common_modules import ModuleInfo, module_db
from torch.utils import _pytree as pytree

NAME = "cuda modules"
RECORD = Path(__file__).parent / "cuda_modules.jsonl.gz"

Run = Callable[..., Any]
Arguments = Any


def samples(info: ModuleInfo, limit: int = 0) -> Iterator[tuple[str, list[Any], Run, Arguments]]:
    """Each sample's variant, its inputs in words, what runs it on a GPU, and its arguments, on the CPU."""
    for dtype, training in itertools.product(DTYPES, (True, False)):
        for given in inputs_of(info, dtype, training, limit):
            arguments = arguments_of(given)
            inputs = [described(leaf) for leaf in pytree.tree_leaves(arguments)]
            yield f"{dtype} {'train' if training else 'eval'}", inputs, run_of(info, dtype, training, "cuda"), arguments


def observed(run: Run, args: Any, kwargs: Any) -> list[Any]:
    """What a run gives, in the words of the record."""
    rows = describe(run(*args, **kwargs), tensors_in((args, kwargs)), with_gradients=False)
    return json.loads(json.dumps(rows, default=str))  # type: ignore[no-any-return]


@functools.cache
def records() -> dict[str, dict[str, Any]]:
    """What the GPU answered, by module, then by variant and inputs."""
    found: dict[str, dict[str, Any]] = collections.defaultdict(dict)
    with gzip.open(RECORD, "rt") as lines:
        for line in lines:
            module, variant, inputs, rows, error = json.loads(line)
            found[module][_key(variant, inputs)] = (rows, error)
    return found


def _key(variant: str, inputs: list[Any]) -> str:
    return json.dumps([variant, inputs])


def subjects() -> list[str]:
    return [info.name for info in module_db if info.name in records()]


def cases(engine: Engine, subject: str, scope: Scope) -> Iterator[Case]:
    info = next(info for info in module_db if info.name == subject)
    for i, (variant, inputs, run, arguments) in enumerate(samples(info, scope.limit)):
        if variant.split()[0] not in scope.dtypes:
            continue
        recorded = records()[subject].get(_key(variant, inputs))
        if recorded is None:
            result = Result(NOT_MATCHED, f"no record has the inputs {inputs}"[:300])
        else:
            result = settle(engine, functools.partial(_compare, engine, run, arguments, *recorded))
        yield Case(NAME, subject, variant, i, result)


def _compare(engine: Engine, run: Run, arguments: Arguments, rows: list[Any] | None, error: str, known: bool) -> Result:
    try:
        for _ in range(engine.calls):
            session = engine.session(known)
            args, kwargs = fake_tree(session, copy_tree(arguments), itertools.repeat("cuda"))
            with session.inside():
                answer = observed(run, args, kwargs)
    except Exception as raised:
        return judge_against_record(engine, raised, None if rows is not None else error)
    if rows is None:
        return Result(FAKE_ACCEPTS, f"real {error}")
    detail = difference(rows, answer)
    return Result(DIFFERENT, detail) if detail else Result(SAME)
