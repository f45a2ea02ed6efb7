"""Suite 1, bounded: four float32 samples of every operator, plain and transposed, with each cache hit checked.

Then two with integers, also in place, and one with an out= argument that must be resized.
"""

import pytest
import suite_operators
from bounded import check

SCOPE = suite_operators.Scope(4, ("float32",), ("plain", "transposed"), ("function",))
OUT = suite_operators.Scope(1, ("float32", "complex64"), ("transposed",), ("out resized",))
INTEGERS = suite_operators.Scope(2, ("int64",), ("plain",), ("function", "in-place"))


@pytest.mark.parametrize("subject", suite_operators.subjects())
def test_an_operator_on_fakes_gives_the_metadata_of_the_real_one(subject):
    check(suite_operators, subject, SCOPE, cache="cross-check")


@pytest.mark.parametrize("subject", suite_operators.subjects())
def test_an_operator_on_integer_fakes_gives_the_metadata_of_the_real_one(subject):
    check(suite_operators, subject, INTEGERS)


@pytest.mark.parametrize("subject", suite_operators.subjects())
def test_an_operator_resizes_a_fake_out_argument_as_a_real_one(subject):
    check(suite_operators, subject, OUT)
