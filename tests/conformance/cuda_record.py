"""The recorded results of a real GPU, and their comparison with fakes that claim `cuda`.

A record has a line per call, `[subject, variant, inputs, rows, error]`: `inputs` as from `Call.inputs`, `rows` the
metadata of the results, or null if the call raised `error`; both are null if the call ended the process. The tools that
write records need a GPU, but not torchfake.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import gzip
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
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
    normal_stride,
    other_values,
    settle,
    shown_on_the_cpu,
    tensors_in,
)
from engines import Engine, fake_tree
from suite_operators import Scope
from torch.utils import _pytree as pytree
from variants import Arguments

#: A device, as printed by `repr`.
DEVICE = re.compile(r"^('(cpu|cuda)(:0)?'|device\(type='(cpu|cuda)'(, index=0)?\))$")


@dataclass(frozen=True)
class Call:
    """One call to make on a GPU, with its arguments on the CPU."""

    variant: str
    function: Callable[..., Any]
    arguments: Arguments
    with_gradients: bool = False
    on_cpu: Callable[..., Any] | None = None  # used if `function` itself names the GPU

    @property
    def inputs(self) -> list[Any]:
        return [_described_input(leaf) for leaf in pytree.tree_leaves(self.arguments)]

    def observed(self, arguments: Arguments) -> list[Any]:
        """The results for these arguments, in the format of a record."""
        args, kwargs = pytree.tree_map(_on_cuda, arguments)
        rows = describe(self.function(*args, **kwargs), tensors_in((args, kwargs)), self.with_gradients)
        return json.loads(json.dumps(rows, default=str))  # type: ignore[no-any-return]


def described(value: Any) -> Any:
    """A tensor as `[sizes, dtype, device, strides, storage offset]`, others as `repr`, truncated to 80 characters."""
    if not isinstance(value, torch.Tensor):
        return repr(value)[:80]
    row = [list(value.shape), str(value.dtype), str(value.device)]
    if value.layout != torch.strided:
        return [*row, str(value.layout)]
    return [*row, list(normal_stride(value)), value.storage_offset()]


def _described_input(value: Any) -> Any:
    """The same, with "conj" for a conjugated tensor."""
    is_conj = isinstance(value, torch.Tensor) and value.is_conj()
    return [*described(value), "conj"] if is_conj else described(value)


def with_device_index(recorded: Any) -> Any:
    """Adds the index to devices in records that were made without it, on a machine with one GPU."""
    if isinstance(recorded, dict):
        return {key: with_device_index(value) for key, value in recorded.items()}
    if isinstance(recorded, list):
        return [with_device_index(value) for value in recorded]
    return "cuda:0" if recorded == "cuda" else recorded


def _on_cuda(value: Any) -> Any:
    """Replaces a device among the arguments by that of the tensors."""
    if isinstance(value, torch.device) and value.type == "cpu":
        return torch.device("cuda")
    return "cuda" if isinstance(value, str) and value == "cpu" else value


def recorded(call: Call) -> tuple[list[Any] | None, str | None]:
    """Makes the call on this machine's GPU: its rows, or the exception with the beginning of its message."""
    arguments = copy_tree(call.arguments, "cuda")
    try:
        return call.observed(arguments), None
    except Exception as raised:
        return None, f"{type(raised).__name__}: {str(raised)[:80]}"


class Record:
    """The records of one file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @functools.cached_property
    def answers(self) -> dict[str, dict[str, list[Any]]]:
        """By subject, then by variant and inputs, in the order of the calls that share them."""
        found: dict[str, dict[str, list[Any]]] = collections.defaultdict(lambda: collections.defaultdict(list))
        with gzip.open(self.path, "rt") as lines:
            for line in lines:
                subject, variant, inputs, rows, error = json.loads(line)
                found[subject][_key(variant, inputs)].append((with_device_index(rows), error))
        return found

    def cases(self, engine: Engine, suite: str, subject: str, calls: Iterable[Call], scope: Scope) -> Iterator[Case]:
        """Makes the calls of the scope's share on fakes that claim `cuda`."""
        made: collections.Counter[str] = collections.Counter()
        numbers: collections.Counter[str] = collections.Counter()  # by variant, so that they do not depend on the scope
        for call in calls:
            i = numbers[call.variant]
            numbers[call.variant] += 1
            key = _key(call.variant, call.inputs)
            answers = self.answers[subject].get(key, [])[made[key] :]
            made[key] += 1
            if not scope.includes(suite, subject, call.variant, i):
                continue
            result = _compare_with(engine, call, *answers[0]) if answers else Result(NOT_MATCHED, key[:300])
            yield Case(suite, subject, call.variant, i, result)


def _key(variant: str, inputs: list[Any]) -> str:
    """A key independent of how a release names the device in its samples."""
    return json.dumps([variant, [DEVICE.sub("<device>", i) if isinstance(i, str) else i for i in inputs]])


def _compare_with(engine: Engine, call: Call, rows: list[Any] | None, error: str | None) -> Result:
    if rows is None and error is None:
        return Result(NOT_MATCHED, "it ended the process")
    return settle(
        engine,
        functools.partial(_compare_with_values, engine, call, rows, error or ""),
        lambda: shown_on_the_cpu(call.on_cpu or call.function, call.arguments, call.with_gradients),
    )


def _compare_with_values(engine: Engine, call: Call, rows: list[Any] | None, error: str, known: bool) -> Result:
    """If values decide, the recorded values may differ: releases draw half-precision numbers in different ways.

    A fake with other known values must then match the GPU.
    """
    result = _compare(engine, call, rows, error, known)
    if known and result.outcome == DIFFERENT:
        for arguments in other_values(call.arguments):
            if _compare(engine, dataclasses.replace(call, arguments=arguments), rows, error, known).outcome == SAME:
                return Result(SAME)
    return result


def _compare(engine: Engine, call: Call, rows: list[Any] | None, error: str, known: bool) -> Result:
    try:
        for _ in range(engine.calls):
            session = engine.session(known)
            arguments = fake_tree(session, copy_tree(call.arguments), itertools.repeat("cuda"))
            with session.inside():
                answer = call.observed(arguments)
    except Exception as raised:
        return judge_against_record(engine, raised, None if rows is not None else error)
    if rows is None:
        return Result(FAKE_ACCEPTS, f"real {error}")
    detail = difference(rows, answer)
    return Result(DIFFERENT, detail) if detail else Result(SAME)
