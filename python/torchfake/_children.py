"""Python processes started by a program under `torchfake run`: they run under it too, each as its own rank."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: Interpreter options that take a value.
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")


#: How long the end of a program waits for the processes that it has left behind.
WAIT_SECONDS = 120.0


@dataclass
class Children:
    """How child processes are started, and what they reported.

    Attributes:
        options: The options of `torchfake run` for each child.
        rank: The only rank that runs; the others exit at once. None for all.
    """

    options: Sequence[str]
    rank: int | None = None
    reports: list[dict[str, Any]] = field(default_factory=list)
    _folder: Path | None = None
    _count: int = 0
    _started: list[subprocess.Popen[Any]] = field(default_factory=list)

    def rewritten(self, args: Any, env: Mapping[str, str] | None) -> Any:
        """The command line of a child, run under `torchfake run` if it starts a script or module in this Python."""
        if isinstance(args, str | bytes | os.PathLike) or not args or not _is_this_python(args[0]):
            return args
        words = [os.fsdecode(word) for word in args]
        at = 1
        while at < len(words) and words[at].startswith("-") and words[at] not in ("-m", "-c", "-"):
            at += 2 if words[at] in _WITH_VALUE else 1
        if at >= len(words) or words[at] in ("-c", "-") or words[at : at + 2] == ["-m", "torchfake"]:
            return args
        rank = (os.environ if env is None else env).get("RANK")
        if self.rank is not None and rank is not None and int(rank) != self.rank:
            return [words[0], "-c", "pass"]
        assert self._folder is not None
        self._count += 1
        report = self._folder / f"{self._count}.json"
        own = ["-m", "torchfake", "run", *self.options, "--quiet", "--json", str(report)]
        return [*words[:at], *own, *words[at:]]

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """While entered, child processes run under `torchfake run`."""
        start = subprocess.Popen.__init__

        def init(process: Any, args: Any, *rest: Any, **kwargs: Any) -> None:
            by_executable = kwargs.get("executable") is not None or kwargs.get("shell")
            command = args if by_executable else self.rewritten(args, kwargs.get("env"))
            start(process, command, *rest, **kwargs)
            if command is not args:
                self._started.append(process)

        self._folder = Path(tempfile.mkdtemp(prefix="torchfake-"))
        subprocess.Popen.__init__ = init  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            subprocess.Popen.__init__ = start  # type: ignore[method-assign]
            all_ended = self._wait()
            for file in sorted(self._folder.glob("*.json"), key=lambda file: int(file.stem)):
                self.reports.append(json.loads(file.read_text()))
            if all_ended:  # the others still write there
                shutil.rmtree(self._folder)
            self._folder = None

    def _wait(self) -> bool:
        """Waits for the processes that the program has left behind. Returns whether all have ended.

        Ranks end together, since they wait for each other in collectives; here nothing waits for them.
        """
        end = time.monotonic() + WAIT_SECONDS
        for process in self._started:
            try:
                process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                return False
        return True


def _is_this_python(program: Any) -> bool:
    name = os.fsdecode(program)
    return name == sys.executable or (
        os.path.isabs(name) and os.path.realpath(name) == os.path.realpath(sys.executable)
    )


def format_children(reports: Sequence[dict[str, Any]]) -> list[str]:
    """One line per process that was started."""
    lines = []
    for report in reports:
        rank = report.get("rank")
        peak = max((card["peak_allocated"] for card in report["cards"]), default=0) / (1 << 30)
        count = sum(entry["count"] for entry in report["stand_ins"])
        lines.append(
            f"    {'' if rank is None else f'rank {rank}: '}{report['program']} ended with {report['exit_code']}, "
            f"peak {peak:.2f} GiB, {count} stand-ins"
        )
    return [f"  {len(reports)} processes that it started:", *lines] if lines else []
