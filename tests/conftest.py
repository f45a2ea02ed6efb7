"""Settings that vary by commit: the seeds of the conformance slice and of the fuzzer's last campaign."""

from __future__ import annotations

import datetime
import subprocess
from pathlib import Path

import pytest
from hypothesis import settings

# For properties that deserve more cases than a test run has time for: --hypothesis-profile thorough.
settings.register_profile("thorough", max_examples=20_000)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--slice", metavar="SEED", help="draw the conformance slice by this; the commit's hash unless given"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("slice") is None:
        config.option.slice = commit() or f"{datetime.date.today()}"


def pytest_report_header(config: pytest.Config) -> str:
    seed = config.getoption("slice")
    return f"conformance slice: {seed} (repeat with: bash run test-conformance --slice {seed})"


def commit() -> str | None:
    """The hash of the current commit, or None if the folder is not a repository."""
    try:
        ran = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return ran.stdout.strip()


@pytest.fixture(scope="session")
def slice_seed(request: pytest.FixtureRequest) -> str:
    return str(request.config.getoption("slice"))
