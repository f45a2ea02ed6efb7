"""Settings of the bounded part that pytest runs. The whole: `python tests/conformance/run.py`."""

import os
import warnings

import pytest

# Virtual machines that announce more do not always execute it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX2")
# The profiler tells which operators a call makes; it need not say that it starts and stops.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")


@pytest.fixture(autouse=True)
def no_warnings():
    """Samples call deprecated things on purpose."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
