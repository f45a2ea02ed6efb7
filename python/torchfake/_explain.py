"""Additions to errors about unknown values: the program's expression, its location, and options to avoid the error."""

from __future__ import annotations

import dis
import linecache
import re
import sys
import sysconfig
import threading
import traceback
import warnings
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torchfake.modes import Mode

_OURS = str(Path(__file__).parent)
_TORCH = str(Path(torch.__file__).parent)
_LIBRARY = sysconfig.get_paths()["stdlib"]
#: Prefixes of the names of generated code: importlib, torch.fx, dataclasses. `<stdin>` belongs to the program.
_GENERATED = ("<frozen", "<eval_with_key", "<string", "<__")

#: Treated as part of the standard library: its wrappers of deprecated names call PyTorch.
_BACKPORTS = ("typing_extensions.py",)

#: The construct that reads a value, by the instruction that the program is executing.
_BY_INSTRUCTION = {
    "POP_JUMP": "bool() of a condition",
    "JUMP_IF": "bool() of a condition",
    "UNARY_NOT": "not",
    "FORMAT_": "formatting",
    "CONTAINS_OP": "in",
    "UNPACK": "unpacking",
    "GET_ITER": "iterating",
}


def is_of_a_library(file: str) -> bool:
    """Whether a file belongs to Python, PyTorch or torchfake, or is not a file."""
    return file.startswith((_OURS, _TORCH, *_GENERATED)) or (file.startswith(_LIBRARY) and "site-packages" not in file)


def frame_of_program() -> FrameType | None:
    """The innermost frame of the program, without one of the standard library. Only for reports."""
    innermost = None
    for frame, _ in traceback.walk_stack(sys._current_frames()[threading.get_ident()]):
        file = frame.f_code.co_filename
        if file.startswith((_OURS, _TORCH, *_GENERATED)) or file.endswith(_BACKPORTS):
            continue
        if not file.startswith(_LIBRARY) or "site-packages" in file:
            return frame
        innermost = frame if innermost is None else innermost
    return innermost


def warn_at_program(message: str) -> None:
    """Warns at the program's line, however many frames of PyTorch and torchfake are below it."""
    frame = frame_of_program()
    if frame is None:
        warnings.warn(message, stacklevel=2)
        return
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    warnings.warn_explicit(message, UserWarning, frame.f_code.co_filename, frame.f_lineno, registry=registry)


def _source_at(frame: FrameType) -> str:
    """The source of the expression that the frame is evaluating; the whole line if Python records no positions."""
    first = last = begin = end = None
    positions = getattr(frame.f_code, "co_positions", None)
    if positions is not None and frame.f_lasti >= 0:
        found = next(iter(list(positions())[frame.f_lasti // 2 : frame.f_lasti // 2 + 1]), None)
        if found is not None:
            first, last, begin, end = found
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    if first is None or first != last or begin is None or end is None or first != frame.f_lineno:
        return line.strip()
    return line.encode()[begin:end].decode(errors="replace").strip()


def written_as(frame: FrameType) -> str:
    """The construct by which the program reads a value: `.item()`, `float()`, `bool()` of a condition."""
    code = frame.f_code.co_code
    name = dis.opname[code[frame.f_lasti]] if 0 <= frame.f_lasti < len(code) else ""
    for instruction, words in _BY_INSTRUCTION.items():
        if name.startswith(instruction):
            return words
    source = _source_at(frame)
    called = re.match(r"(float|int|bool|complex|round|range|list|tuple|str|print|format|max|min|sum|any|all)\(", source)
    if called is not None:
        return f"{called[1]}()"
    method = re.search(r"\.(\w+)\((?:[^()]*|[^()]*\([^()]*\)[^()]*)\)$", source)
    return f".{method[1]}()" if method is not None else ""


def _ways_out(mode: Mode | None, message: str, is_about_shape: bool) -> str:
    from torchfake.modes import fake_mode

    if not isinstance(mode, fake_mode):
        return ""
    ways = []
    if is_about_shape and not mode._state.selects_all:
        ways.append("selects_all=True assumes that everything is selected")
    if not mode._state.has_stand_ins:
        ways.append('unknown="stand-in" (torchfake run without --strict) uses a stand-in and reports where')
    if not mode._state.propagate_real_tensors and "propagate_real_tensors" not in message:
        ways.append("propagate_real_tensors=True computes real values")
    return f" In fake_mode(...), {'; '.join(ways)}." if ways else ""


def explanation(mode: Mode | None, message: str, *, is_about_shape: bool) -> str:
    """A sentence or two to append to an error about unknown values."""
    frame = frame_of_program()
    if frame is None:
        return _ways_out(mode, message, is_about_shape)
    what = written_as(frame)
    source = _source_at(frame)
    shown = f": `{source}`" if source else ""
    by = f"by {what} " if what else ""
    where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    return f" Read {by}at {where}{shown}.{_ways_out(mode, message, is_about_shape)}"
