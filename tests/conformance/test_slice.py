"""A slice of the whole space, different for each commit: every dtype, layout, call and sample.

`bash run test-conformance --slice SEED` repeats the slice of a run that printed this seed.
"""

import pytest
import suite_cuda_modules
import suite_modules
import suite_operators
import suite_optimizers
from bounded import check
from slices import SHARE
from suite_operators import Scope

SUITES = (suite_operators, suite_modules, suite_optimizers, suite_cuda_modules)


@pytest.mark.parametrize(
    ("suite", "subject"),
    [pytest.param(suite, subject, id=f"{suite.NAME}-{subject}") for suite in SUITES for subject in suite.subjects()],
)
def test_a_slice_of_all_cases_is_as_the_real_ones(suite, subject, slice_seed):
    check(suite, subject, Scope(share=SHARE, seed=slice_seed), cache="cross-check")


def test_a_slice_is_drawn_by_its_seed_alone():
    def drawn(seed):
        scope = Scope(share=0.25, seed=seed)
        return [i for i in range(4000) if scope.includes("operators", "add", "float32 plain function", i)]

    assert drawn("a") == drawn("a")
    assert drawn("a") != drawn("b")
    assert 800 < len(drawn("a")) < 1200
    assert len(drawn("a")) == len(set(drawn("a")))
