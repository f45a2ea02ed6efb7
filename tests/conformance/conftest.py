"""Settings of the bounded part that pytest runs. The whole: `python tests/conformance/run.py`."""

import os
import warnings

import pytest

# Virtual machines that announce more do not always execute it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX2")


@pytest.fixture(autouse=True)
def no_warnings():
    """Samples call deprecated things on purpose."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
