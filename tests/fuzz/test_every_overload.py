"""Thousands of random calls of every aten overload: none crashes, hangs, or fails a PyTorch assertion."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from . import known_deviations
from .calls import Call, all_overloads, parsed
from .observing import REAL, Observation, observe
from .servers import Answer, Limits, Server
from .verdicts import (
    ACCEPTS,
    CRASH,
    HANG,
    INEXCUSABLE,
    INTERNAL_ERROR,
    LEAKS,
    NOT_FAKE,
    REFUSES,
    SECOND_DIFFERS,
    WRONG_METADATA,
    findings,
)

CALLS = 1500
LINE = "torch.ops.aten.add.Tensor(torch.ones((2,)), torch.ones((2,)))"


#: The share of calls of a new seed that may differ from the real operator in metadata or refusals. These are printed,
#: as work to do; a crash, a hang or a result that changes on the second call is never allowed.
NEW_DIFFERENCES = 0.005


def run_fuzzer(seed: int) -> tuple[list[dict[str, str]], str]:
    """The findings of this number of calls, and how to reproduce them."""
    ran = subprocess.run(
        [sys.executable, "-m", "fuzz", "--calls", str(CALLS), "--seed", str(seed), "--json"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert ran.stdout, ran.stderr[-2000:]
    report = json.loads(ran.stdout)
    assert report["calls"] == CALLS
    assert report["accepted"] > CALLS / 3, "too few calls are accepted to say anything"
    return report["findings"], f"repeat with: bash run fuzz --calls {CALLS} --seed {seed}"


def text_of(found: list[dict[str, str]], repeat: str) -> str:
    lines = [f"{x['kind']} ({x['variant']}): {x['call']}\n  {x['detail'][:300]}" for x in found]
    return "\n".join([f"{len(found)} of {CALLS} calls; {repeat}", *lines])


def test_random_calls_answer_as_the_real_operators_do() -> None:
    found, repeat = run_fuzzer(1)
    assert not found, text_of(found, repeat)


def test_random_calls_of_a_new_seed_never_crash_and_rarely_differ(slice_seed: str) -> None:
    found, repeat = run_fuzzer(int.from_bytes(hashlib.sha256(slice_seed.encode()).digest()[:4], "big"))
    inexcusable = [x for x in found if x["kind"] in INEXCUSABLE]
    assert not inexcusable, text_of(inexcusable, repeat)
    print(text_of(found, repeat))
    assert len(found) <= NEW_DIFFERENCES * CALLS, text_of(found, repeat)


def a_call(*arguments: str) -> Call:
    return Call("relu.default", tuple(f"#{i}" for i in range(len(arguments))), arguments, len(arguments))


def test_a_call_that_ends_its_process_is_named_and_the_next_is_made() -> None:
    aborts = a_call('__import__("os").abort()')
    hangs = a_call('__import__("time").sleep(60)')
    fine = a_call("torch.ones((2, 3))")
    server = Server(real=True, limits=Limits(seconds=5.0))
    try:
        answers = server.submit([(call, REAL) for call in (fine, aborts, hangs, fine)]).result()
    finally:
        server.close()
    assert [answer.died[:7] for answer in answers] == ["", "SIGABRT", "", ""]
    assert [answer.hung for answer in answers] == [False, False, True, False]
    assert answers[0] == answers[3]
    assert answers[3].observations[0].rows is not None


def test_a_line_is_read_back_as_the_call_that_it_prints() -> None:
    call = parsed(LINE)
    assert str(call) == LINE
    assert call.overload == "add.Tensor"
    with pytest.raises(ValueError, match=r"torch\.ops\.aten"):
        parsed("print(1)")


def test_all_overloads_can_be_found() -> None:
    overloads = all_overloads()
    assert len(overloads) > 2500
    assert {"add.Tensor", "kron.out", "_cholesky_solve_helper.default"} <= set(overloads)


FINE = Observation([[[2], [1], "torch.float32", "cpu", None]], 1)
OTHER = Observation([[[3], [1], "torch.float32", "cpu", None]], 1)
REFUSED = Observation(None, 0, ("RuntimeError", "Exception"), "no")
ASSERTED = Observation(None, 0, ("RuntimeError", "Exception"), "x INTERNAL ASSERT FAILED at y")
PYTHON_ERROR = Observation(None, 0, ("AttributeError", "Exception"), "'NoneType' object has no attribute 'x'")
SILENT_ASSERTION = Observation(None, 0, ("AssertionError", "Exception"), "")
TELLING_ASSERTION = Observation(None, 0, ("AssertionError", "Exception"), "only one jagged dimension, got 2")
META = Observation(None, 0, ("RuntimeError", "Exception"), "Cannot copy out of meta tensor; no data!")
GIVEN_UP = Observation(None, 0, ("UnsupportedOperatorException", "RuntimeError", "Exception"), "not supported")
UNKNOWN = Observation(None, 0, ("DataDependentOutputException", "RuntimeError", "Exception"), "values")


@pytest.mark.parametrize(
    ("real", "first", "second", "expected"),
    [
        (FINE, FINE, FINE, []),
        (REFUSED, REFUSED, REFUSED, []),
        (FINE, GIVEN_UP, GIVEN_UP, []),
        (ASSERTED, ASSERTED, ASSERTED, []),  # the operator itself asserts, above the engine
        (FINE, FINE, OTHER, [SECOND_DIFFERS]),
        (FINE, OTHER, OTHER, [WRONG_METADATA]),
        (FINE, REFUSED, REFUSED, [REFUSES]),
        (FINE, UNKNOWN, UNKNOWN, [REFUSES]),
        (REFUSED, FINE, FINE, [ACCEPTS]),
        (FINE, ASSERTED, ASSERTED, [INTERNAL_ERROR]),
        (REFUSED, ASSERTED, ASSERTED, [INTERNAL_ERROR]),
        (REFUSED, PYTHON_ERROR, PYTHON_ERROR, [INTERNAL_ERROR]),
        (REFUSED, SILENT_ASSERTION, SILENT_ASSERTION, [INTERNAL_ERROR]),
        (REFUSED, TELLING_ASSERTION, TELLING_ASSERTION, [INTERNAL_ERROR]),
        (REFUSED, META, META, [LEAKS]),
    ],
)
def test_a_verdict_follows_from_the_two_calls_and_the_real_one(
    real: Observation, first: Observation, second: Observation, expected: list[str]
) -> None:
    found = findings(parsed(LINE), Answer([real]), {"cpu known": Answer([first, second])})
    assert [finding.kind for finding in found] == expected


def test_a_death_is_a_finding_and_that_of_the_real_operator_excuses_differences() -> None:
    call = parsed(LINE)
    died, hung = Answer([], died="SIGSEGV"), Answer([], hung=True)
    assert [x.kind for x in findings(call, Answer([FINE]), {"cuda unknown": died})] == [CRASH]
    assert [x.kind for x in findings(call, Answer([FINE]), {"cuda unknown": hung})] == [HANG]
    for real in (died, hung):
        assert not list(findings(call, real, {"cpu known": Answer([FINE, FINE]), "cuda unknown": died}))


def test_a_real_tensor_that_comes_out_of_a_mode_is_a_finding() -> None:
    real = dataclasses.replace(FINE, has_real=True)
    found = findings(parsed(LINE), Answer([FINE]), {"cuda known": Answer([real, real])})
    assert [finding.kind for finding in found] == [NOT_FAKE]


def test_values_excuse_what_fakes_without_them_accept() -> None:
    fakes = {"cpu known": Answer([REFUSED] * 2), "cpu unknown": Answer([FINE] * 2)}
    assert not list(findings(parsed(LINE), Answer([REFUSED]), fakes))
    fakes = {"cpu known": Answer([FINE] * 2), "cpu unknown": Answer([UNKNOWN] * 2)}
    assert not list(findings(parsed(LINE), Answer([FINE]), fakes))


def test_nothing_explains_a_crash() -> None:
    for kind in (CRASH, HANG, INTERNAL_ERROR, SECOND_DIFFERS):
        with pytest.raises(ValueError, match="nothing explains"):
            known_deviations.Deviation("a reason", kind)


def test_an_observation_tells_sizes_dtypes_and_which_argument_came_back() -> None:
    line = "torch.ops.aten.add.out(torch.ones((2, 3)), torch.ones((3,)), out=torch.empty((0,)))"
    (observed,) = observe(parsed(line), REAL)
    assert observed.rows is not None
    assert observed.rows[0] == [[2, 3], [3, 1], "torch.float32", "cpu", 2]
    assert observed.results == 1
