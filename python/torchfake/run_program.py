"""`torchfake run`: a whole Python program in a fake mode, and the report at its end."""

from __future__ import annotations

import builtins
import contextlib
import importlib.util
import json
import os
import sys
import threading
import time
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchfake.modes import fake_mode

#: The exit code of a program that Ctrl-C ended, as a shell reports it.
INTERRUPTED = 130

_GIB = 1 << 30


class ProgramNotFoundError(Exception):
    """There is no such script or module."""


@dataclass(frozen=True)
class Program:
    """A script or module, and its arguments."""

    name: str
    is_module: bool
    arguments: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Launch:
    """What `torchrun` would have started: the process stands for one rank of many."""

    nnodes: int
    nproc_per_node: int
    rank: int

    def __post_init__(self) -> None:
        if self.rank >= self.world_size:
            raise ValueError(f"--rank {self.rank}: there are {self.world_size} ranks, from 0")

    @property
    def world_size(self) -> int:
        return self.nnodes * self.nproc_per_node

    def environment(self) -> dict[str, str]:
        """The variables that torchrun sets."""
        return {
            "RANK": str(self.rank),
            "LOCAL_RANK": str(self.rank % self.nproc_per_node),
            "GROUP_RANK": str(self.rank // self.nproc_per_node),
            "ROLE_RANK": str(self.rank),
            "ROLE_NAME": "default",
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_WORLD_SIZE": str(self.nproc_per_node),
            "GROUP_WORLD_SIZE": str(self.nnodes),
            "ROLE_WORLD_SIZE": str(self.world_size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_RUN_ID": "torchfake",
        }


def _load(program: Program) -> tuple[types.ModuleType, types.CodeType]:
    """The module `__main__` of a program, and its code."""
    main = types.ModuleType("__main__")
    vars(main)["__builtins__"] = builtins
    if not program.is_module:
        path = Path(program.name)
        if path.is_dir():
            path = path / "__main__.py"
        if not path.is_file():
            raise ProgramNotFoundError(f"can't open file '{program.name}': no such script")
        main.__file__ = str(path)
        return main, compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    name = program.name
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            name = f"{name}.__main__"
            spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        spec = None
    if spec is None or spec.loader is None or spec.origin is None:
        raise ProgramNotFoundError(f"no module named {program.name}")
    main.__file__, main.__spec__, main.__package__ = spec.origin, spec, spec.parent
    code = spec.loader.get_code(name)  # type: ignore[attr-defined]
    if code is None:
        raise ProgramNotFoundError(f"{program.name}: no code to run")
    return main, code


@contextlib.contextmanager
def _as_main(program: Program, main: types.ModuleType, environment: dict[str, str]) -> Iterator[None]:
    """The interpreter as Python sets it up for a program; as it was before, in the end."""
    argv, path, module, hook = sys.argv, list(sys.path), sys.modules["__main__"], sys.excepthook
    variables = {name: os.environ.get(name) for name in environment}
    sys.argv = [str(main.__file__), *program.arguments]
    sys.path.insert(0, os.getcwd() if program.is_module else str(Path(str(main.__file__)).resolve().parent))
    sys.modules["__main__"] = main
    os.environ.update(environment)
    try:
        yield
    finally:
        sys.argv, sys.path[:], sys.modules["__main__"], sys.excepthook = argv, path, module, hook
        for name, value in variables.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _threads_in(mode: fake_mode) -> Iterator[None]:
    """Threads that are started meanwhile are in the mode."""
    bootstrap = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

    def in_mode(thread: threading.Thread) -> None:
        with mode:
            bootstrap(thread)

    threading.Thread._bootstrap_inner = in_mode  # type: ignore[attr-defined]
    try:
        yield
    finally:
        threading.Thread._bootstrap_inner = bootstrap  # type: ignore[attr-defined]


def _execute(code: types.CodeType, main: types.ModuleType) -> int:
    """Runs the program; returns the exit code that Python would end with, having shown what Python would show."""
    try:
        exec(code, vars(main))
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    except BaseException as error:
        traceback = error.__traceback__
        own = None if traceback is None else traceback.tb_next  # without this frame
        sys.excepthook(type(error), error.with_traceback(own), own)
        return 1
    return 0


def run_program(
    program: Program,
    mode: fake_mode,
    *,
    launch: Launch | None = None,
    quiet: bool = False,
    json_file: Path | None = None,
) -> int:
    """Runs a program in `mode` and reports on it. Returns the exit code that Python would end with.

    Raises:
        ProgramNotFoundError: There is no such script or module.
    """
    main, code = _load(program)
    begin = time.perf_counter()
    with _as_main(program, main, launch.environment() if launch else {}):
        with mode, _threads_in(mode):
            exit_code = _execute(code, main)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(BrokenPipeError, ValueError):
                stream.flush()
    report = make_report(program, mode, time.perf_counter() - begin, exit_code)
    if json_file is not None:
        json_file.write_text(json.dumps(report, indent=2) + "\n")
    if not quiet:
        print(format_report(report), file=sys.stderr)
    return exit_code


def make_report(program: Program, mode: fake_mode, seconds: float, exit_code: int) -> dict[str, Any]:
    """What a run has to say, for programs."""
    cards = mode.cards
    return {
        "program": program.name,
        "exit_code": exit_code,
        "seconds": seconds,
        "cards": [
            {
                "index": index,
                "name": cards[index].name,
                "total_memory": cards[index].total_memory,
                "peak_allocated": cards.allocated(index)[1],
                "allocated": cards.allocated(index)[0],
            }
            for index in range(len(cards))
        ],
        "stand_ins": [entry.to_json() for entry in mode.stand_ins.entries],
    }


def _shown(file: str) -> str:
    """The file as a path from here, where that is shorter."""
    try:
        return str(Path(file).resolve().relative_to(Path.cwd()))
    except ValueError:
        return file


def format_report(report: dict[str, Any]) -> str:
    """The same for people, a few lines."""
    lines = [f"torchfake: {report['program']} ended with {report['exit_code']} after {report['seconds']:.1f} s"]
    for card in report["cards"]:
        share = card["peak_allocated"] / card["total_memory"]
        lines.append(
            f"  cuda:{card['index']} {card['name']}: peak {card['peak_allocated'] / _GIB:.2f} GiB allocated of "
            f"{card['total_memory'] / _GIB:.2f} GiB ({share:.0%})"
        )
    entries = report["stand_ins"]
    if entries:
        total = sum(entry["count"] for entry in entries)
        lines.append(f"  {total} unknown values were answered with stand-ins, at {len(entries)} places:")
        lines += [
            f"    {_shown(entry['file'])}:{entry['line']}  {entry['what']} -> {entry['answer']}  x{entry['count']}"
            for entry in entries
        ]
        if any(entry["sizes_follow"] for entry in entries):
            lines.append("  Sizes follow from some of these: figures of memory depend on a guess.")
    return "\n".join(lines)
