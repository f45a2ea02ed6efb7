"""Suite 2, whole: what real PyTorch refuses, the fake refuses."""

import pytest
import suite_errors
from bounded import check
from engines import CACHE_MODES
from suite_operators import Scope


@pytest.mark.parametrize("cache", CACHE_MODES)
@pytest.mark.parametrize("subject", suite_errors.subjects())
def test_a_bad_input_is_refused_with_the_type_of_the_real_error(subject, cache):
    check(suite_errors, subject, Scope(), cache)
