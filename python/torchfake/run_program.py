"""`torchfake run`: a whole Python program in a fake mode, and the report at its end."""

from __future__ import annotations

import builtins
import contextlib
import importlib.machinery
import importlib.util
import json
import os
import sys
import threading
import time
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from torchfake import _C
from torchfake._assumed_checks import AssumedChecks
from torchfake._children import Children, format_children
from torchfake._memory_report import Report
from torchfake._memory_tracking import Tracker
from torchfake._peers import Peers
from torchfake._progress import progress
from torchfake._run_outputs import Outputs
from torchfake.modes import fake_mode
from torchfake.step_time import Measurement, format_data

#: The exit code of a program ended by Ctrl-C, as reported by shells.
INTERRUPTED = 130

#: The exit code of a program ended by an OutOfMemoryError.
OUT_OF_MEMORY = 3

#: The schema version of the report written by `--json` (docs/schemas/run.schema.json).
SCHEMA = 1

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
    """The process as one rank of many, as started by `torchrun`."""

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
        """The environment variables that torchrun sets."""
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


def _load(program: Program, checks: AssumedChecks | None) -> tuple[types.ModuleType, types.CodeType]:
    """The `__main__` module of a program, and its code. See `_assumed_checks` on the checks in it."""
    main = types.ModuleType("__main__")
    vars(main)["__builtins__"] = builtins
    if not program.is_module:
        path = Path(program.name)
        if path.is_dir():
            path = path / "__main__.py"
        if not path.is_file():
            raise ProgramNotFoundError(f"can't open file '{program.name}': no such script")
        main.__file__ = str(path)
        source = path.read_bytes()
        if checks is not None:
            return main, checks.compile(source, str(path))
        return main, compile(source, str(path), "exec", dont_inherit=True)
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
    if checks is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
        return main, checks.compile(spec.loader.get_data(spec.origin), spec.origin)
    code = spec.loader.get_code(name)  # type: ignore[attr-defined]
    if code is None:
        raise ProgramNotFoundError(f"{program.name}: no code to run")
    return main, code


@contextlib.contextmanager
def _as_main(program: Program, main: types.ModuleType, environment: dict[str, str]) -> Iterator[None]:
    """Sets up the interpreter as Python does for a program, and restores it at the end."""
    argv, path, module, hook = sys.argv, list(sys.path), sys.modules["__main__"], sys.excepthook
    variables, had_group = dict(os.environ), torch.distributed.is_initialized()
    sys.argv = [str(main.__file__), *program.arguments]
    sys.path.insert(0, os.getcwd() if program.is_module else str(Path(str(main.__file__)).resolve().parent))
    sys.modules["__main__"] = main
    os.environ.update(environment)
    try:
        yield
    finally:
        sys.argv, sys.path[:], sys.modules["__main__"], sys.excepthook = argv, path, module, hook
        # Cleans up: accelerate and lightning set variables, and programs leave their process group open.
        for name in os.environ.keys() - variables.keys():
            del os.environ[name]
        os.environ.update(variables)
        if torch.distributed.is_initialized() and not had_group:
            torch.distributed.destroy_process_group()


@contextlib.contextmanager
def _threads_in(mode: fake_mode) -> Iterator[None]:
    """While entered, new threads are in the mode."""
    bootstrap = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

    def in_mode(thread: threading.Thread) -> None:
        with mode:
            bootstrap(thread)

    threading.Thread._bootstrap_inner = in_mode  # type: ignore[attr-defined]
    try:
        yield
    finally:
        threading.Thread._bootstrap_inner = bootstrap  # type: ignore[attr-defined]


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether a program was ended by an OutOfMemoryError, directly or as the cause of the final error."""
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError):
            return True
        error = error.__cause__
    return False


def _execute(code: types.CodeType, main: types.ModuleType) -> tuple[int, BaseException | None]:
    """Runs the program. Returns its exit code and the error that ended it, after printing what Python would print.

    The exit code is Python's, except if memory ran out.
    """
    try:
        exec(code, vars(main))
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0, None
        print(end.code, file=sys.stderr)
        return 1, None
    except KeyboardInterrupt:
        return INTERRUPTED, None
    except BaseException as error:
        traceback = error.__traceback__
        own = None if traceback is None else traceback.tb_next  # without this frame
        sys.excepthook(type(error), error.with_traceback(own), own)
        return OUT_OF_MEMORY if is_out_of_memory(error) else 1, error
    return 0, None


def execute_program(
    program: Program,
    mode: fake_mode,
    environment: dict[str, str],
    tracker: Tracker | None = None,
    work: Measurement | None = None,
) -> tuple[int, BaseException | None]:
    """Runs a program in `mode` with these environment variables. Returns its exit code and the error that ended it.

    Raises:
        ProgramNotFoundError: There is no such script or module.
    """
    checks = AssumedChecks() if mode._state.has_stand_ins else None
    try:
        main, code = _load(program, checks)
    except SyntaxError as error:
        sys.excepthook(type(error), error.with_traceback(None), None)  # the program's, so without frames of ours
        return 1, error
    with _as_main(program, main, environment):
        assumed = contextlib.nullcontext() if checks is None else checks.active(sys.path[0])
        with assumed, mode, _threads_in(mode), tracker or contextlib.nullcontext(), work or contextlib.nullcontext():
            ended = _execute(code, main)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(BrokenPipeError, ValueError):
                stream.flush()
    return ended


def run_program(
    program: Program,
    mode: fake_mode,
    *,
    launch: Launch | None = None,
    quiet: bool = False,
    json_file: Path | None = None,
    outputs: Outputs | None = None,
    track: bool = False,
    time_steps: bool = False,
    children: Children | None = None,
    peers: Peers | None = None,
) -> int:
    """Runs a program in `mode` and reports on it. Returns Python's exit code, or OUT_OF_MEMORY.

    Raises:
        ProgramNotFoundError: There is no such script or module.
    """
    tracker = Tracker({}, lines=True) if track or (outputs is not None and outputs.need_tracking) else None
    work = Measurement() if time_steps else None
    begin = time.perf_counter()
    counter = _C.CollectiveCounter(mode._state)
    environment = launch.environment() if launch else {}
    watched = contextlib.nullcontext() if quiet else progress(mode)
    followed = contextlib.nullcontext() if children is None else children.watched()
    mode.peers = peers
    with watched, followed, contextlib.nullcontext() if peers is None else contextlib.closing(peers):
        exit_code, error = execute_program(program, mode, environment, tracker, work)
    report = make_report(program, mode, time.perf_counter() - begin, exit_code, error, counter.counts())
    rank = environment.get("RANK", os.environ.get("RANK", ""))
    report["rank"] = int(rank) if rank.isdigit() else None
    report["processes"] = [] if children is None else children.reports
    if tracker is not None:
        report["memory"] = tracker.report().data
    if work is not None:
        report["step_time"] = work.estimate().data
    if tracker is not None and outputs is not None:
        outputs.write(report, tracker)
    if json_file is not None:
        json_file.write_text(json.dumps(report, indent=2) + "\n")
    if not quiet:
        print(format_report(report), file=sys.stderr)
    return exit_code


def make_report(
    program: Program,
    mode: fake_mode,
    seconds: float,
    exit_code: int,
    error: BaseException | None = None,
    collectives: Sequence[tuple[str, int, str, int, int]] = (),
) -> dict[str, Any]:
    """The report of a run, as data for JSON. docs/schemas/run.schema.json describes it."""
    cards = mode.cards
    return {
        "schema": SCHEMA,
        "program": program.name,
        "exit_code": exit_code,
        "error": None if error is None else f"{type(error).__name__}: {error}",
        "out_of_memory": is_out_of_memory(error),
        "out_of_memory_errors": cards.out_of_memory_errors(),
        "unlimited": cards.are_unlimited,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "seconds": seconds,
        "cards": [
            {
                "index": index,
                "name": cards[index].name,
                "total_memory": cards[index].total_memory,
                "peak_allocated": cards.allocated(index)[1],
                "allocated": cards.allocated(index)[0],
                "peak_reserved": cards.peak_reserved(index),
                "needed": cards.needed(index),
            }
            for index in range(len(cards))
        ],
        "meshes": mode.meshes,
        "collectives": [
            {"group": group or "default", "ranks": ranks, "operator": operator, "count": count, "nbytes": nbytes}
            for group, ranks, operator, count, nbytes in collectives
        ],
        "stand_ins": [entry.to_json() for entry in mode.stand_ins.entries],
    }


def _shown(file: str) -> str:
    """The path relative to the current directory, if that is shorter."""
    try:
        return str(Path(file).resolve().relative_to(Path.cwd()))
    except ValueError:
        return file


def format_report(report: dict[str, Any]) -> str:
    """The report as text, a few lines."""
    lines = [f"torchfake: {report['program']} ended with {report['exit_code']} after {report['seconds']:.1f} s"]
    for card in report["cards"]:
        share = card["peak_allocated"] / card["total_memory"]
        lines.append(
            f"  cuda:{card['index']} {card['name']}: peak {card['peak_allocated'] / _GIB:.2f} GiB allocated of "
            f"{card['total_memory'] / _GIB:.2f} GiB ({share:.0%})"
        )
        if card["needed"] > card["total_memory"]:
            lines.append(f"    needs {card['needed'] / _GIB:.1f} of {card['total_memory'] / _GIB:.1f} GiB")
    if report["cudnn_benchmark"]:
        lines.append(
            "  torch.backends.cudnn.benchmark is on: a card first tries several kernels for each convolution, in "
            "workspaces that are not counted; its peak can be higher."
        )
    if report["out_of_memory"]:
        lines.append(f"  out of memory: {report['error'].splitlines()[0]}")
    if "memory" in report:
        lines += [f"  {line}" for line in str(Report(report["memory"])).splitlines()]
    if "step_time" in report:
        lines += [f"  {line}" for line in format_data(report["step_time"]).splitlines()]
    if report["collectives"]:
        lines.append("  collectives of this rank:")
        lines += [
            f"    group {row['group']} of {row['ranks']} ranks: {row['operator']} x{row['count']}, "
            f"{row['nbytes'] / _GIB:.3f} GiB"
            for row in report["collectives"]
        ]
    lines += format_children(report.get("processes", []))
    entries = report["stand_ins"]
    if entries:
        total = sum(entry["count"] for entry in entries)
        answered = "unknown value was" if total == 1 else "unknown values were"
        places = "place" if len(entries) == 1 else "places"
        lines.append(f"  {total} {answered} answered with stand-ins, at {len(entries)} {places}:")
        lines += [
            f"    {_shown(entry['file'])}:{entry['line']}  {entry['what']} -> {entry['answer']}  x{entry['count']}"
            for entry in entries
        ]
        if any(entry["sizes_follow"] for entry in entries):
            lines.append("  Sizes follow from some of these: figures of memory depend on a guess.")
    return "\n".join(lines)
