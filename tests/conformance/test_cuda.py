"""Suite 3, whole: fakes that claim `cuda`, compared with the recorded results of a real GPU."""

import pytest
import suite_cuda
import suite_cuda_calls
import suite_cuda_modules
from bounded import check
from compare import NOT_MATCHED
from suite_operators import Scope

#: Operators with other samples than in the recorded release: none of their recorded calls is made.
RESAMPLED = {"histc"}


@pytest.mark.parametrize("subject", suite_cuda.subjects())
def test_a_fake_that_claims_cuda_answers_as_the_gpu_did(subject):
    cases = check(suite_cuda, subject, Scope())
    assert any(case.result.outcome != NOT_MATCHED for case in cases), "no record found its sample"


@pytest.mark.parametrize("subject", suite_cuda_calls.subjects())
def test_a_fake_that_claims_cuda_answers_every_call_as_the_gpu_did(subject):
    cases = check(suite_cuda_calls, subject, Scope())
    is_matched = any(case.result.outcome != NOT_MATCHED for case in cases)
    assert is_matched != (subject in RESAMPLED), "no record found its call, or one that is listed here did"


@pytest.mark.parametrize("subject", suite_cuda_modules.subjects())
def test_a_module_of_fakes_that_claim_cuda_answers_as_on_the_gpu(subject):
    cases = check(suite_cuda_modules, subject, Scope(limit=24))
    assert any(case.result.outcome != NOT_MATCHED for case in cases), "no record found its sample"
