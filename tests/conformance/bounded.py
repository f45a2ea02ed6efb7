"""Shared by the tests of this folder: runs a part of a suite on one subject, and fails on unlisted differences."""

from __future__ import annotations

from types import ModuleType

import pytest
from compare import Case
from engines import make_engine
from known_differences import explanation
from suite_operators import Scope


def check(suite: ModuleType, subject: str, scope: Scope, cache: str = "on") -> list[Case]:
    """Runs the cases; fails the test on differences that are not in known_differences.py."""
    cases = list(suite.cases(make_engine("torchfake", cache), subject, scope))
    wrong = [case for case in cases if case.failed and explanation(case) is None]
    if wrong:
        pytest.fail(f"{len(wrong)} of {len(cases)} cases\n" + "\n".join(map(str, wrong[:5])), pytrace=False)
    return cases
