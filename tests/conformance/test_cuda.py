"""Suite 3, whole: fakes that claim `cuda`, against what a real GPU answered."""

import pytest
import suite_cuda
from bounded import check
from compare import NOT_MATCHED
from suite_operators import Scope


@pytest.mark.parametrize("subject", suite_cuda.subjects())
def test_a_fake_that_claims_cuda_answers_as_the_gpu_did(subject):
    cases = check(suite_cuda, subject, Scope())
    assert any(case.result.outcome != NOT_MATCHED for case in cases), "no record found its sample"
