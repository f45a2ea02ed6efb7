"""Python objects that ranks send to each other: `torchfake run` runs the sender as well, in a process of its own.

What another rank contributes to a collective is assumed to equal this rank's contribution. An object that is sent to
one rank, like the shapes that a pipeline stage announces to the next, is known to its sender only. A rank that waits
for such an object starts the sender, which runs the same program and leaves its objects in a folder. If the sender
waits for a third rank, it says so in that folder, and the first process starts that one too.
"""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

#: How long a waiting rank sleeps before it looks again.
_PAUSE = 0.02


class PeerEndedError(Exception):
    """A rank ended before it sent an object."""


class Peers:
    """The other ranks of a program, as far as objects from them are needed.

    Args:
        command: The command line that runs a rank, which leaves its objects in a folder.
        folder: The folder of the process that started this one; None in the first process.
    """

    def __init__(self, command: Callable[[int, Path], Sequence[str]], folder: Path | None = None) -> None:
        self._command = command
        self._folder = folder
        self._is_first = folder is None
        self._started: dict[int, subprocess.Popen[bytes]] = {}
        self._sent: Counter[tuple[int, int]] = Counter()
        self._received: Counter[tuple[int, int]] = Counter()

    def send(self, source: int, destination: int, objects: list[Any]) -> None:
        """Leaves objects of the rank `source`, which is this one, for another."""
        pair = source, destination
        file = self._file(pair, self._sent)
        part = file.with_suffix(".part")
        part.write_bytes(pickle.dumps(objects))
        part.rename(file)

    def receive(self, source: int, destination: int) -> list[Any]:
        """Waits for the objects that the rank `source` sends to `destination`, which is this one.

        Raises:
            PeerEndedError: The sender ended without sending them.
        """
        pair = source, destination
        file = self._file(pair, self._received)
        self._start(source, destination)
        while not file.exists():
            for request in self._open().glob("*.wanted") if self._is_first else ():
                self._start(int(request.stem), destination)
            process = self._started.get(source)
            if process is not None and process.poll() is not None and not file.exists():
                errors = self._errors_of(source).read_text(errors="replace").strip().splitlines()
                raise PeerEndedError(
                    f"rank {source} ended with {process.returncode}" + (f": {errors[-1]}" if errors else "")
                )
            if not self._is_first and not file.parent.exists():
                raise PeerEndedError("the first rank has ended")
            time.sleep(_PAUSE)
        objects: list[Any] = pickle.loads(file.read_bytes())
        return objects

    def close(self) -> None:
        """Ends the processes that this one has started."""
        for process in self._started.values():
            process.terminate()
        for process in self._started.values():
            process.wait()
        if self._is_first and self._folder is not None:
            shutil.rmtree(self._folder)
        self._started.clear()

    def _open(self) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="torchfake-"))
        return self._folder

    def _file(self, pair: tuple[int, int], counter: Counter[tuple[int, int]]) -> Path:
        counter[pair] += 1
        return self._open() / f"{pair[0]}-{pair[1]}-{counter[pair]}.objects"

    def _errors_of(self, rank: int) -> Path:
        return self._open() / f"{rank}.errors"

    def _start(self, rank: int, own: int) -> None:
        """Starts a rank, or asks the first process for it."""
        if not self._is_first:
            (self._open() / f"{rank}.wanted").touch()
        elif rank != own and rank not in self._started:
            local = rank % int(os.environ.get("LOCAL_WORLD_SIZE", rank + 1))
            with self._errors_of(rank).open("wb") as errors:
                self._started[rank] = subprocess.Popen(
                    [*self._command(rank, self._open())],
                    env={**os.environ, "RANK": str(rank), "LOCAL_RANK": str(local)},
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                )
