"""One run of a program for `torchfake fit`: in a separate child process, on a card with or without a limit."""

from __future__ import annotations

import contextlib
import tempfile
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from torchfake._child_calls import call_in_child
from torchfake._measures import Measure, NotApplicableError
from torchfake._varied import Varied
from torchfake.modes import fake_mode
from torchfake.run_program import Launch, Program, ProgramNotFoundError, execute_program, is_out_of_memory

_SHOWN_LINES = 6  # of the output of a failed program


class TrialFailedError(Exception):
    """A program failed for a reason other than memory."""


@dataclass(frozen=True)
class Trial:
    """The memory that a run needed.

    Attributes:
        allocated: The peak of allocated bytes plus the CUDA context, for the card with the highest: smaller cards
            cannot run it.
        reserved: The peak of reserved bytes plus the CUDA context: a card of this size runs it as one without a limit
            does.
        refusals: The number of allocations that a card refused.
        not_applicable: The reason why the measure could not be applied; None if it was.
    """

    allocated: int
    reserved: int
    refusals: int
    exit_code: int
    seconds: float
    not_applicable: str | None = None


@dataclass(frozen=True)
class Runner:
    """A program and its configuration; `run` runs it once.

    Attributes:
        steps: The program is stopped after this number of optimizer steps; None runs all of it.
    """

    program: Program
    launch: Launch | None = None
    steps: int | None = None
    strict: bool = False
    gpu_memory: str | None = None
    count: int = 1
    environment: dict[str, str] = field(default_factory=dict)

    def run(
        self, card: str, varied: Varied, value: int, *, unlimited: bool = True, measure: Measure | None = None
    ) -> Trial:
        """Runs the program with `value` in a child process.

        Raises:
            ProgramNotFoundError: There is no such script or module.
            TrialFailedError: The program failed for a reason other than memory.
        """
        with tempfile.TemporaryFile() as output:
            outcome = call_in_child(output.fileno(), Runner._run, self, card, varied, value, unlimited, measure)
            if isinstance(outcome, Trial):
                return outcome
            if isinstance(outcome, ProgramNotFoundError):
                raise outcome
            output.seek(0)
            wrote = output.read().decode(errors="replace").splitlines()
        said = "\n".join(f"    {line}" for line in wrote[-_SHOWN_LINES:])
        raise TrialFailedError(f"{outcome}" + (f"\n{said}" if said else ""))

    def _run(self, card: str, varied: Varied, value: int, unlimited: bool, measure: Measure | None) -> object:
        """The part in the child. Returns a Trial; a message if the program failed; or the error if there is none."""
        gpus = f"{self.count}x{card}"
        mode = fake_mode(
            gpus=gpus,
            gpu_memory=self.gpu_memory,
            unlimited=unlimited,
            unknown="error" if self.strict else "stand-in",
            strict=self.strict,
        )
        begin = time.perf_counter()
        environment = self.launch.environment() if self.launch else {}
        try:
            with contextlib.ExitStack() as stack:
                arguments = stack.enter_context(varied.given(value, self.program.arguments))
                program = Program(self.program.name, self.program.is_module, arguments)
                if self.steps is not None:
                    stack.enter_context(_StepLimit(self.steps if measure is None else measure.steps(self.steps)))
                if measure is not None:
                    stack.enter_context(measure.applied(mode))
                exit_code, error = execute_program(program, mode, environment)
        except NotApplicableError as reason:
            return Trial(0, 0, 0, 0, time.perf_counter() - begin, str(reason))
        except ProgramNotFoundError as missing:
            return missing
        if isinstance(error, _EnoughSteps):
            exit_code, error = 0, None
        cards = mode.cards
        context = cards.needed(0) - cards.allocated(0)[1]
        trial = Trial(
            allocated=max(cards.needed(index) for index in range(len(cards))),
            reserved=max((cards.peak_reserved(index) or 0) + context for index in range(len(cards))),
            refusals=cards.out_of_memory_errors(),
            exit_code=exit_code,
            seconds=time.perf_counter() - begin,
        )
        if isinstance(error, NotApplicableError):
            return Trial(0, 0, 0, 0, trial.seconds, str(error))
        if is_out_of_memory(error) or (trial.refusals and not unlimited):
            return trial
        if exit_code != 0:
            why = f"exit code {exit_code}" if error is None else f"{type(error).__name__}: {error}".splitlines()[0]
            return f"{self.program.name} with {varied.describe(value)} failed: {why}"
        if not varied.was_taken:
            return (
                f"{self.program.name} has no option for {varied.name}"
                + (f"; it has {', '.join(varied.seen)}" if varied.seen else "")
                + f". Write --vary=--its-option={value}..., --vary env:NAME=..., or --args 'x={{{varied.name}}}'"
            )
        if measure is not None and measure.reason is not None:
            return Trial(0, 0, 0, 0, trial.seconds, measure.reason)
        return trial


class _EnoughSteps(BaseException):
    """Stops a program after the requested number of steps."""


class _StepLimit:
    """Stops the program after a number of optimizer steps."""

    def __init__(self, steps: int) -> None:
        self._left = steps

    def __enter__(self) -> None:
        self._hook = register_optimizer_step_post_hook(self._after_step)

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._hook.remove()

    def _after_step(self, optimizer: Optimizer, arguments: Any, keywords: Any) -> None:
        self._left -= 1
        if self._left <= 0:
            raise _EnoughSteps
