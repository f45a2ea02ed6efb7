"""Suite 4, bounded: eight inputs of every module, forward and backward, and every optimizer."""

import pytest
import suite_modules
import suite_optimizers
from bounded import check
from suite_operators import Scope

SCOPE = Scope(8, ("float32",))


@pytest.mark.parametrize("subject", suite_modules.subjects())
def test_a_module_on_fakes_runs_and_differentiates_as_the_real_one(subject):
    check(suite_modules, subject, SCOPE)


@pytest.mark.parametrize("subject", suite_optimizers.subjects())
def test_an_optimizer_steps_fakes_as_real_parameters(subject):
    check(suite_optimizers, subject, SCOPE)
