"""Settings of the bounded part that pytest runs. For the whole: `python tests/conformance/run.py`."""

import os
import warnings

import pytest

# Virtual machines that report a higher ISA do not always support it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX2")
# The profiler records the operators that a call makes; its start and stop messages are suppressed.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")


@pytest.fixture(autouse=True)
def no_warnings():
    """Samples call deprecated functions on purpose."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
