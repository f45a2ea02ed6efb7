"""The fixture `memory_budget`: limits the memory of a test on a claimed card.

Enable it in `conftest.py` with `pytest_plugins = ["torchfake.pytest_plugin"]`. It is not an entry point, which would
import PyTorch into every pytest run.

def test_a_step_fits_on_an_l4(memory_budget):
    with memory_budget("2GiB", gpu="L4") as t:
        train_step()
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from torchfake.memory import Tracker


class MemoryBudgetExceededError(AssertionError):
    """A test exceeded its memory budget."""


@contextlib.contextmanager
def _budget(limit: str | int, gpu: str = "H200") -> Iterator[Tracker]:
    from torchfake import fake_mode, memory
    from torchfake._cards import parse_size

    nbytes = parse_size(limit)
    with fake_mode(gpus=gpu, unlimited=True), memory.track(lines=True) as tracker:
        yield tracker
    if tracker.peak > nbytes:
        raise MemoryBudgetExceededError(
            f"the peak of memory is {tracker.peak / 2**20:,.1f} MiB, of {nbytes / 2**20:,.1f} MiB\n{tracker.report()}"
        )


@pytest.fixture
def memory_budget() -> Callable[..., contextlib.AbstractContextManager[Tracker]]:
    """`with memory_budget("2GiB", gpu="L4") as t:` fails if more is allocated at once on a card. The body runs in a
    `fake_mode()` of that card, and `t` is the tracker."""
    return _budget
