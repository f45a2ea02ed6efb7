"""How a program uses a number that it reads, inferred from its bytecode and source, to choose stand-ins."""

from __future__ import annotations

import ast
import dis
import functools
import sys
import threading
import traceback
from types import CodeType, FrameType

from torchfake._explain import _OURS, _source_at

#: Instructions that do not affect where a value goes.
_IDLE = ("CACHE", "EXTENDED_ARG", "NOP", "PRECALL", "TO_BOOL", "RESUME", "NOT_TAKEN")

#: Instructions that end a path, or after which it is no longer certain that it raises.
_ENDS = ("RETURN", "YIELD", "FOR_ITER", "SEND", "RERAISE", "JUMP_BACKWARD")

#: A path longer than this does more than raise.
_PATH_LIMIT = 200

#: The name by which programs that `_assumed_checks` compiles ask whether a failing check holds: a path with it raises.
HOLDS = "__torchfake_check_holds__"


def reading_frame() -> FrameType | None:
    """The innermost Python frame that is not one of torchfake's: it evaluates the expression that reads the number."""
    for frame, _ in traceback.walk_stack(sys._current_frames()[threading.get_ident()]):
        if not frame.f_code.co_filename.startswith(_OURS):
            return frame
    return None


def only_checks(frame: FrameType) -> bool:
    """Whether `frame` is evaluating a condition that, if False, leads to a `raise` and nothing else."""
    return _only_checks(frame.f_code, frame.f_lasti)


@functools.lru_cache(maxsize=4096)
def _only_checks(code: CodeType, offset: int) -> bool:
    instructions = list(dis.get_instructions(code))
    places = {instruction.offset: place for place, instruction in enumerate(instructions)}
    place = places.get(offset)
    if place is None:
        return False
    if instructions[place].opname.startswith("CALL"):  # of `bool`, `.item()`, ...: what it returns may be the condition
        place += 1
    while place < len(instructions) and instructions[place].opname in _IDLE:
        place += 1
    if place == len(instructions):
        return False
    jump = instructions[place]
    if "JUMP" not in jump.opname or "_IF_" not in jump.opname or "NONE" in jump.opname:
        return False
    taken, passed = places.get(jump.argval), place + 1
    if taken is None:
        return False
    if "IF_TRUE" in jump.opname:
        return _raises(instructions, places, passed) and not _raises(instructions, places, taken)
    return _raises(instructions, places, taken) and not _raises(instructions, places, passed)


def _raises(instructions: list[dis.Instruction], places: dict[int, int], place: int) -> bool:
    """Whether the path that begins there raises without branching."""
    for _ in range(_PATH_LIMIT):
        if place >= len(instructions):
            return False
        name = instructions[place].opname
        if name == "RAISE_VARARGS" or instructions[place].argval == HOLDS:
            return True
        if name.startswith(_ENDS) or ("JUMP" in name and "_IF_" in name):
            return False
        place = places.get(instructions[place].argval, len(instructions)) if name.startswith("JUMP") else place + 1
    return False


def runs_over_iterators(frame: FrameType | None) -> bool:
    """Whether `frame` or its callers are in a loop, and all of these loops are over iterators."""
    loops: list[bool] = []
    while frame is not None:
        loops += _loops_around(frame.f_code, frame.f_lasti)
        frame = frame.f_back
    return bool(loops) and all(loops)


@functools.lru_cache(maxsize=4096)
def _loops_around(code: CodeType, offset: int) -> list[bool]:
    """For each loop around an instruction, whether it is over an iterator."""
    instructions = {instruction.offset: instruction for instruction in dis.get_instructions(code)}
    return [
        instructions[instruction.argval].opname == "FOR_ITER"
        for end, instruction in instructions.items()
        if "JUMP_BACKWARD" in instruction.opname and instruction.argval <= offset <= end
    ]


def _expression_at(frame: FrameType) -> ast.expr | None:
    """The expression that `frame` is evaluating; None if it spans several lines or is the target of an assignment."""
    try:
        return ast.parse(_source_at(frame).strip(), mode="eval").body
    except SyntaxError:
        return None


def ends_a_slice(frame: FrameType) -> bool:
    """Whether `frame` is evaluating a subscript whose slices have ends, but no steps: `x[:, :n]`, `x[begin:end]`.

    If the begin is unknown as well, it is read at the same place and gets the same number. Consecutive slices then
    select everything once: the first one all of it, the others nothing.
    """
    expression = _expression_at(frame)
    if not isinstance(expression, ast.Subscript):
        return False
    index = expression.slice
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    slices = [part for part in parts if isinstance(part, ast.Slice)]
    numbers = [part for part in parts if not isinstance(part, (ast.Slice, ast.Constant))]
    return (
        any(part.upper is not None for part in slices)
        and all((part.lower is None or part.upper is not None) and part.step is None for part in slices)
        and not numbers
    )


def reads_a_maximum(frame: FrameType) -> bool:
    """Whether `frame` is evaluating the maximum of a tensor: `int(x.max())`, `x.amax(0).item()`."""
    expression = _expression_at(frame)
    while isinstance(expression, ast.Call):
        called = expression.func
        name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        if name in ("max", "amax"):
            return isinstance(called, ast.Attribute)
        if isinstance(called, ast.Attribute) and name not in ("int", "index"):
            expression = called.value  # x.max().item()
        else:
            expression = expression.args[0] if len(expression.args) == 1 else None  # int(x.max()), operator.index(x)
    return False
