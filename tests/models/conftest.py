"""`pytest tests/models --cross-check` also runs the kernel on every hit of the shape cache, and compares."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

import torchfake


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cross-check", action="store_true", help="check every hit of the shape cache")


@pytest.fixture(autouse=True)
def cross_check(request: pytest.FixtureRequest) -> Iterator[None]:
    with torchfake.cross_check_cache() if request.config.getoption("cross_check") else contextlib.nullcontext():
        yield
