"""The programs of tests/memory as repeatable steps, to time them on a card and to count their work on fakes.

A program that calls `train` gives its training step. Another one is repeated from its first call of `phase` to its end.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "memory"))
import held_out
import later
import workloads

#: By set: the programs of that set. Those of "limited" and "later_limited" run at their smallest batch.
SETS: dict[str, dict[str, Callable[[Any], None]]] = {
    "workloads": dict(workloads.WORKLOADS),
    "held_out": dict(held_out.HELD_OUT),
    "later": dict(later.LATER),
}


def _limited(run: Callable[[int], None], batch: int) -> Callable[[Any], None]:
    return lambda phase: run(batch)


for _set, _cases in (("held_out", held_out.LIMITED), ("later", later.LATER_LIMITED)):
    for _name, (_run, _, _batches) in _cases.items():
        SETS[_set][f"{_name}_limited"] = _limited(_run, _batches[0])


class _StopHere(Exception):
    pass


def drive(name: str, with_step: Callable[[Callable[[], None]], None], around: Callable[[], None]) -> str:
    """Runs a program up to its step.

    Args:
        name: A program of `SETS`.
        with_step: Called with the training step of a program that trains.
        around: Called at the beginning of the part to be repeated, if the program has no such step.

    Returns:
        "step" after `with_step`, "whole" after a complete run of another program.
    """
    program = next(programs[name] for programs in SETS.values() if name in programs)
    has_step = False

    def train(model, optimizer, loss_of, phase, steps=2, autocast=None, scaler=None, clip=None) -> None:  # type: ignore[no-untyped-def]
        nonlocal has_step
        has_step = True
        step = functools.partial(
            original, model, optimizer, loss_of, lambda label: None, 1, autocast=autocast, scaler=scaler, clip=clip
        )
        with_step(step)
        raise _StopHere

    is_first = True

    def phase(label: str) -> None:
        nonlocal is_first
        if is_first and not _trains(program):
            around()
        is_first = False

    original = workloads.train
    modules = (workloads, held_out, later)
    for module in modules:
        module.train = train
    try:
        program(phase)
    except _StopHere:
        pass
    finally:
        for module in modules:
            module.train = original
    return "step" if has_step else "whole"


def _trains(program: Callable[..., None]) -> bool:
    """Whether the program calls `train`, and so has a step of its own."""
    names = program.__code__.co_names
    return "train" in names or "_steps" in names or program.__qualname__.startswith("_limited")


def is_whole(name: str) -> bool:
    """Whether a program is repeated as a whole."""
    return not _trains(next(programs[name] for programs in SETS.values() if name in programs))


def released() -> None:
    """Frees what a program left."""
    import gc

    gc.collect()
    torch.cuda.empty_cache()
