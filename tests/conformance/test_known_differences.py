"""The list of known differences is true: each one on it still shows."""

import pytest
from known_differences import KNOWN, still_differs


@pytest.mark.parametrize(
    ("known", "subject"),
    [pytest.param(known, subject, id=f"{known.suite}-{subject}") for known in KNOWN for subject in known.subjects],
)
def test_a_listed_difference_still_shows(known, subject):
    assert still_differs(known, subject), f"{subject} does not differ any more; take it off the list ({known.reason})"
