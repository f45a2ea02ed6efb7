"""The list of known differences is accurate: each explains exactly the cases that it counts."""

import dataclasses

import pytest
from compare import FAKE_ACCEPTS, Case, Result
from known_differences import KNOWN, Difference, count_cases, explanation, wrong_count


@pytest.mark.parametrize(
    ("known", "subject"),
    [pytest.param(known, subject, id=f"{known.suite}-{subject}") for known in KNOWN for subject in known.subjects],
)
def test_a_listed_difference_explains_the_cases_that_it_counts(known, subject):
    assert wrong_count(known, subject, count_cases(known, subject), is_whole=True) == ""


@pytest.mark.parametrize(
    ("found", "rounds", "is_whole", "right"),
    [
        (3, False, True, True),
        (2, False, True, False),
        (4, False, True, False),
        (0, False, True, False),
        (2, False, False, True),
        (4, False, False, False),
        (1, True, True, True),
        (0, True, True, False),
        (4, True, True, False),
    ],
)
def test_a_difference_that_explains_more_or_less_than_listed_is_seen(found, rounds, is_whole, right):
    known = Difference("a reason", "operators", {"add": 3}, rounds=rounds)
    assert (wrong_count(known, "add", found, is_whole) == "") == right


def test_a_failure_of_a_listed_kind_that_is_not_named_is_not_shielded():
    result = Result(FAKE_ACCEPTS, "real RuntimeError: Index put requires the source and destination dtypes match")
    named = Case("cuda calls", "matrix_exp", "float16 plain autocast", 0, result)
    assert explanation(named) is not None
    assert explanation(dataclasses.replace(named, sample=1000)) is None
    assert explanation(dataclasses.replace(named, variant="float16 offset autocast")) is None
