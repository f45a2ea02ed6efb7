"""The suites by number, and the coverage of a run."""

from __future__ import annotations

from types import ModuleType

import suite_cuda
import suite_cuda_calls
import suite_cuda_modules
import suite_errors
import suite_modules
import suite_operators
import suite_optimizers

#: A suite is a module with NAME, subjects() and cases(engine, subject, scope).
SUITES: dict[str, ModuleType] = {
    suite.NAME: suite
    for suite in (
        suite_operators,
        suite_errors,
        suite_cuda,
        suite_cuda_calls,
        suite_cuda_modules,
        suite_modules,
        suite_optimizers,
    )
}

BY_NUMBER: dict[int, tuple[str, ...]] = {
    1: (suite_operators.NAME,),
    2: (suite_errors.NAME,),
    3: (suite_cuda.NAME, suite_cuda_calls.NAME, suite_cuda_modules.NAME),
    4: (suite_modules.NAME, suite_optimizers.NAME),
}

#: The suites that PyTorch's own FakeTensorMode is run on for comparison.
PEER_SUITES = (suite_operators.NAME, suite_errors.NAME, suite_cuda.NAME)
PEER_LAYOUTS = ("plain", "transposed")
