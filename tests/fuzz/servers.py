"""Step 4: a process that makes calls in forked children, so that a child that dies identifies the call responsible."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import resource
import select
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass

from .calls import Call
from .observing import Observation, observe

#: A call, and how to make it.
Unit = tuple[Call, str]


@dataclass(frozen=True)
class Answer:
    """The result of a unit, or how the process that made it ended."""

    observations: list[Observation]
    died: str = ""
    hung: bool = False


@dataclass(frozen=True)
class Limits:
    seconds: float = 20.0
    #: Of address space, beyond a child's initial size; 0 for no limit (the address sanitizer reserves terabytes).
    extra_bytes: int = 3 << 30


class Server:
    """Runs units in order, in a process with PyTorch loaded, and torchfake unless `real`."""

    def __init__(self, *, real: bool, limits: Limits) -> None:
        context = multiprocessing.get_context("spawn")
        self.limits = limits
        self.pool = ProcessPoolExecutor(1, context, initializer=_prepare, initargs=(real,))

    def submit(self, units: list[Unit]) -> Future[list[Answer]]:
        return self.pool.submit(run_units, units, self.limits)

    def close(self) -> None:
        self.pool.shutdown()


def _prepare(real: bool) -> None:
    """Loads what the children need. One thread, because pool threads do not survive a fork."""
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX2")
    import torch

    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    if not real:
        import torch._decomp
        import torch._meta_registrations
        import torch._refs

        import torchfake

        # Loads lazily loaded code once, before the forks.
        with torchfake.fake_mode(), torch.device("cuda"):
            torch.ones(2).add(1).sum()


def run_units(units: list[Unit], limits: Limits) -> list[Answer]:
    answers: list[Answer] = []
    while len(answers) < len(units):
        answers.extend(_run_until_death(units[len(answers) :], limits))
    return answers


def _run_until_death(units: list[Unit], limits: Limits) -> list[Answer]:
    """Results for the first units, in order: all of them, or up to and including the one that ended the child."""
    with tempfile.TemporaryDirectory() as folder:
        reader, writer = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child == 0:
            os.close(reader)
            try:
                _be_a_child(units, writer, folder, limits)
            finally:
                os._exit(1)  # a child must never continue as its parent
        os.close(writer)
        answers: list[Answer] = []
        hung = False
        try:
            for message in _messages(reader, limits.seconds):
                answers.append(pickle.loads(message))
        except TimeoutError:
            hung = True
            os.kill(child, signal.SIGKILL)
        os.close(reader)
        _, status = os.waitpid(child, 0)
        if len(answers) < len(units):
            answers.append(Answer([], "" if hung else _ending(status, folder), hung))
        return answers


def _be_a_child(units: list[Unit], writer: int, folder: str, limits: Limits) -> None:
    """Makes the calls, sends a result for each, and ends the process."""
    os.chdir(folder)  # for operators that write files
    errors = os.open("stderr", os.O_CREAT | os.O_WRONLY)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    os.dup2(errors, 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if limits.extra_bytes:
        with open("/proc/self/statm") as file:
            now = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + limits.extra_bytes,) * 2)
    for call, variant in units:
        os.ftruncate(errors, 0)
        os.lseek(errors, 0, os.SEEK_SET)
        message = pickle.dumps(Answer(observe(call, variant)))
        os.write(writer, struct.pack("<I", len(message)))
        while message:
            message = message[os.write(writer, message) :]
    os._exit(0)


def _messages(reader: int, seconds: float) -> Iterator[bytes]:
    """The child's messages, until it ends. Raises TimeoutError if it sends nothing for this long."""
    buffer = b""
    deadline = time.monotonic() + seconds
    while True:
        ready, _, _ = select.select([reader], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise TimeoutError
        chunk = os.read(reader, 1 << 16)
        if not chunk:
            return
        buffer += chunk
        while len(buffer) >= 4 and len(buffer) >= 4 + (size := struct.unpack("<I", buffer[:4])[0]):
            yield buffer[4 : 4 + size]
            buffer = buffer[4 + size :]
            deadline = time.monotonic() + seconds


def _ending(status: int, folder: str) -> str:
    """How a process ended, with the lines of its standard error that say why."""
    how = f"exit status {os.waitstatus_to_exitcode(status)}"
    if os.WIFSIGNALED(status):
        how = signal.Signals(os.WTERMSIG(status)).name
    said = ""
    with contextlib.suppress(FileNotFoundError), open(os.path.join(folder, "stderr"), errors="replace") as file:
        lines = file.read().splitlines()
        told = [x for x in lines if "ERROR: AddressSanitizer" in x or "runtime error" in x or "torchfake::" in x]
        said = "; ".join(x.strip() for x in (told or lines[-1:])[:4])
    return f"{how} {said}".strip()[:600]
