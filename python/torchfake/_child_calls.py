"""A call in a child process, which leaves no state in this one."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import IO

import torch

_FRESH = "from torchfake._child_calls import answer_parent; answer_parent({writer})"


def call_in_child(output: int, function: Callable[..., object], *arguments: object) -> object:
    """The result of a function in a child process with output to a file descriptor; a message if there is none.

    The child is forked, which is fast. Autograd cannot be used in a fork of a process that has computed gradients on
    a claimed device, because its threads are gone: there the child is a new interpreter, and the function, its
    arguments and its result are pickled.
    """
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    start = _fork if _gradients_survive_a_fork() else _start_interpreter
    wait = start(reader, writer, output, function, arguments)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        data = pipe.read()
    status = wait()
    return pickle.loads(data) if data else f"the run ended with status {status}"


def answer_parent(writer: int) -> None:
    """In a new interpreter: runs the call read from standard input, and writes its result to the pipe."""
    function, arguments = pickle.load(sys.stdin.buffer)
    with os.fdopen(writer, "wb") as pipe:
        _answer(pipe, function, arguments)


def _answer(pipe: IO[bytes], function: Callable[..., object], arguments: tuple[object, ...]) -> None:
    torch.set_num_threads(1)
    pickle.dump(function(*arguments), pipe)


def _gradients_survive_a_fork() -> bool:
    child = os.fork()
    if child == 0:
        try:
            torch.ones((), requires_grad=True).backward()  # type: ignore[no-untyped-call]
        except RuntimeError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def _start_interpreter(
    reader: int, writer: int, output: int, function: Callable[..., object], arguments: tuple[object, ...]
) -> Callable[[], int]:
    command = [sys.executable, "-c", _FRESH.format(writer=writer)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output, pass_fds=[writer])
    assert child.stdin is not None
    with child.stdin:
        pickle.dump((function, arguments), child.stdin)
    return child.wait


def _fork(
    reader: int, writer: int, output: int, function: Callable[..., object], arguments: tuple[object, ...]
) -> Callable[[], int]:
    child = os.fork()
    if child != 0:
        return lambda: os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        os.close(reader)
        for stream in (1, 2):
            os.dup2(output, stream)
        # Tools that capture this process's output do not capture the child's.
        sys.stdout, sys.stderr = (os.fdopen(os.dup(stream), "w") for stream in (1, 2))
        with os.fdopen(writer, "wb") as pipe:
            _answer(pipe, function, arguments)
        sys.stdout.flush()
        sys.stderr.flush()
        code = 0
    except BaseException:  # the child must not continue as a second parent
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
    finally:
        os._exit(code)
