"""The page that says how many architectures run: docs/architectures.md."""

from __future__ import annotations

from dataclasses import dataclass

STATUSES = ("ok", "data-dependent", "unsupported", "error", "not installed", "too big", "timeout", "crash")


@dataclass(frozen=True)
class Outcome:
    """What became of one architecture on one engine."""

    model_type: str
    model_class: str
    engine: str
    status: str
    seconds: float
    memory: int = 0  #: the most bytes the process held
    error: str = ""
    message: str = ""
    frame: str = ""  #: the last line of `transformers` on the way to the error


def page(outcomes: list[Outcome]) -> str:
    return ""
