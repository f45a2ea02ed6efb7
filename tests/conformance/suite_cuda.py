"""Suite 3, first part: fakes that claim `cuda`, compared with the recorded results of a real GPU.

`cuda_ops.jsonl.gz` holds a line per sample, `[op, dtype, layout, inputs, outputs, gradients]`:
- a tensor is `[sizes, dtype, device, strides, storage offset]`; a stride over a dimension of size 0 or 1 is 0, and an
  empty tensor's strides are `[]`; a tensor that is not strided has its layout instead of the strides;
- `inputs` are the flattened input, args and kwargs; values that are not tensors as `repr`, truncated to 80 characters;
- an output has a last field: null, `["is", i]` (it is input i) or `["shares", i]` (it shares input i's storage);
- `gradients` are those of all outputs by all inputs for ones, or null; where `outputs` is null the operator raised, and
  `gradients` is the exception's name.
"""

from __future__ import annotations

import collections
import functools
import gzip
import itertools
import json
import math
import re
from collections.abc import Callable, Iterator
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
    gradients,
    judge_against_record,
    settle,
    shares_storage,
    shown_on_the_cpu,
    tensors_in,
)
from cuda_record import DEVICE, described, with_device_index
from engines import Engine, fake_tree
from suite_operators import Scope, operators
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils import _pytree as pytree
from variants import Arguments, arguments_of, laid_out

NAME = "cuda"
RECORD = Path(__file__).parent / "cuda_ops.jsonl.gz"

#: A float, as printed by `repr`.
_FLOAT = re.compile(r"^-?\d+\.\d+(e-?\d+)?$")

#: inputs, outputs, gradients
Recorded = tuple[list[Any], Any, Any]


@functools.cache
def records() -> dict[str, dict[tuple[str, str], list[Recorded]]]:
    """The GPU's results, by operator, then by dtype and layout."""
    found: dict[str, Any] = collections.defaultdict(lambda: collections.defaultdict(list))
    with gzip.open(RECORD, "rt") as lines:
        for line in itertools.islice(lines, 1, None):
            op, dtype, layout, inputs, outputs, grads = json.loads(line)
            row = (inputs, with_device_index(outputs), with_device_index(grads))
            found[op][dtype.removeprefix("torch."), layout].append(row)
    return found


def subjects() -> list[str]:
    return [name for name in records() if name in operators()]


def cases(engine: Engine, subject: str, scope: Scope) -> Iterator[Case]:
    for (dtype, layout), recorded in records()[subject].items():
        if dtype not in scope.dtypes or layout not in scope.layouts:
            continue
        pairs = matched(subject, dtype, layout, recorded[: scope.limit or None])
        for i, (record, op, arguments) in enumerate(pairs):
            if not scope.includes(NAME, subject, f"{dtype} {layout}", i):
                continue
            if op is None or arguments is None:
                result = Result(NOT_MATCHED, f"no sample has the inputs {record[0]}"[:300])
            else:
                result = compare_with_record(engine, op, arguments, record)
            yield Case(NAME, subject, f"{dtype} {layout}", i, result)


Pair = tuple[Recorded, OpInfo | None, Arguments | None]


def matched(subject: str, dtype: str, layout: str, recorded: list[Recorded]) -> list[Pair]:
    """Each record with the installed sample that has its inputs: exactly, or with other floats for its scalars.

    Scalars are drawn at random, from a generator that differs between devices.
    """
    pairs: list[Pair] = [(record, None, None) for record in recorded]
    seen: list[tuple[OpInfo, Arguments]] = []
    left = _pair_up(pairs, _key, _samples(subject, dtype, layout), seen)
    if left:
        _pair_up(pairs, _key_without_floats, iter(seen), [])
    return pairs


def _pair_up(
    pairs: list[Pair],
    describe: Callable[[list[Any]], str],
    samples: Iterator[tuple[OpInfo, Arguments]],
    seen: list[tuple[OpInfo, Arguments]],
) -> int:
    """Fills in samples until none is missing or they run out; returns how many are missing."""
    waiting: dict[str, list[int]] = collections.defaultdict(list)
    for i, (record, op, _) in enumerate(pairs):
        if op is None:
            waiting[describe(record[0])].append(i)
    missing = sum(map(len, waiting.values()))
    while missing and (sample := next(samples, None)) is not None:
        seen.append(sample)
        op, arguments = sample
        indices = waiting.get(describe([described(leaf) for leaf in pytree.tree_leaves(arguments)]))
        if indices:
            i = indices.pop(0)
            pairs[i] = (pairs[i][0], op, arguments)
            missing -= 1
    return missing


def _samples(subject: str, dtype: str, layout: str) -> Iterator[tuple[OpInfo, Arguments]]:
    kind = getattr(torch, dtype)
    for op in operators()[subject]:
        grad = op.supports_autograd and kind.is_floating_point
        for sample in op.sample_inputs("cpu", kind, requires_grad=grad):
            arguments = arguments_of(sample)
            yield op, laid_out(arguments, layout) or arguments


def _key(inputs: list[Any]) -> str:
    """Inputs without their devices, which a sample created on the CPU does not have."""
    return json.dumps([[*i[:2], *i[3:]] if isinstance(i, list) else DEVICE.sub("<device>", i) for i in inputs])


def _key_without_floats(inputs: list[Any]) -> str:
    return _key([i if isinstance(i, list) else _FLOAT.sub("<float>", i) for i in inputs])


def _answer(outputs: Any, inputs: list[torch.Tensor]) -> list[Any]:
    return [[*described(t), _relation(t, inputs)] for t in tensors_in(outputs)]


def _relation(output: torch.Tensor, inputs: list[torch.Tensor]) -> list[Any] | None:
    for i, other in enumerate(inputs):
        if output is other:
            return ["is", i]
    for i, other in enumerate(inputs):
        if shares_storage(output, other):
            return ["shares", i]
    return None


def compare_with_record(engine: Engine, op: OpInfo, arguments: Arguments, record: Recorded) -> Result:
    """Unknown values first; if values decide, fakes with known values must match the GPU."""
    return settle(
        engine,
        lambda known: _compare_once(engine, op, arguments, record, known),
        lambda: shown_on_the_cpu(op.op, arguments, record[2] is not None),
    )


def _compare_once(engine: Engine, op: OpInfo, arguments: Arguments, record: Recorded, known: bool) -> Result:
    inputs, outputs, grads = record
    devices = [i[2] for i in inputs if isinstance(i, list)]
    refuses = outputs is None
    # A recorded refusal may come from the backward pass.
    asks_gradients = grads is not None and engine.differentiates_absent_devices
    try:
        for _ in range(engine.calls):
            session = engine.session(known)
            args, kwargs = fake_tree(session, copy_tree(_with_devices_of(inputs, arguments)), devices)
            tensors = tensors_in((args, kwargs))
            with session.inside():
                returned = op.op(*args, **kwargs)
                answer = _answer(returned, tensors)
                given = gradients(tensors_in(returned), tensors) if asks_gradients else None
                answered_grads = given and [None if g is None else described(g) for g in given]
    except Exception as error:
        return judge_against_record(engine, error, grads if refuses else None)
    if refuses:
        return Result(FAKE_ACCEPTS, f"real {grads}")
    if known:
        outputs = _of_these_values(outputs, op, arguments)
    if answer != outputs:
        return Result(DIFFERENT, f"outputs real {outputs} fake {answer}"[:400])
    if asks_gradients and answered_grads != grads:
        return Result(DIFFERENT, f"gradients real {grads} fake {answered_grads}"[:400])
    return Result(SAME)


def _of_these_values(outputs: list[Any], op: OpInfo, arguments: Arguments) -> list[Any]:
    """The record with the sizes that the CPU computes for the sample, in the GPU's memory order.

    The sample's values differ from the recorded ones, and determine the sizes.
    """
    args, kwargs = copy_tree(arguments)
    sizes = [list(tensor.shape) for tensor in tensors_in(op.op(*args, **kwargs))]
    if len(sizes) != len(outputs):
        return outputs
    pairs = zip(outputs, sizes, strict=True)
    return [row if row[0] == size else [size, *row[1:3], _dense(size, row), *row[4:]] for row, size in pairs]


def _dense(sizes: list[int], row: list[Any]) -> list[int]:
    """Strides of a dense tensor with the dimension order of the recorded one."""
    recorded, strides = row[0], row[3]
    order = sorted(range(len(sizes)), key=lambda dim: -strides[dim] if strides and recorded[dim] > 1 else -math.inf)
    found, step = [0] * len(sizes), 1
    for dim in reversed(order):
        found[dim] = 0 if sizes[dim] == 1 else step
        step *= sizes[dim]
    return [] if 0 in sizes else found


def _with_devices_of(inputs: list[Any], arguments: Arguments) -> Arguments:
    """The arguments, with devices among them replaced by the recorded ones."""
    leaves, structure = pytree.tree_flatten(arguments)
    for i, recorded in enumerate(inputs):
        if isinstance(recorded, str) and DEVICE.match(recorded):
            leaves[i] = torch.device("cuda" if "cuda" in recorded else "cpu")
    return pytree.tree_unflatten(leaves, structure)
