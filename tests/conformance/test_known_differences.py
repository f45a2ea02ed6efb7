"""The list of known differences is accurate: each explains exactly the cases that it counts."""

import pytest
from known_differences import KNOWN, Difference, count_cases, wrong_count


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
