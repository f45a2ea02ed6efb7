"""Every dtype that PyTorch lists as supported by an operator on a GPU is accepted from fakes that claim one."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from suite_operators import operators, subjects
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils import _pytree as pytree

from torchfake import DataDependentOutputException, DynamicOutputShapeException, fake_mode, to_fake

SAMPLES = 1


def refusals(op: OpInfo) -> list[str]:
    """The samples refused for their dtype, which should be none."""
    found = []
    for dtype in sorted(op.supported_dtypes("cuda"), key=str):
        try:
            samples = list(itertools.islice(op.sample_inputs("cpu", dtype), SAMPLES))
        except (RuntimeError, TypeError, ValueError):
            continue  # created with operators that the CPU does not have for this dtype
        for sample in samples:
            try:
                with fake_mode():
                    first, args, kwargs = pytree.tree_map_only(
                        torch.Tensor, claimed, (sample.input, sample.args, sample.kwargs)
                    )
                    op.op(first, *args, **kwargs)
            except (DataDependentOutputException, DynamicOutputShapeException):
                continue
            except (NotImplementedError, RuntimeError) as error:
                if "not implemented for" in str(error) or "expect the same dtype" in str(error):
                    found.append(f"{dtype}: {error}")
    return found


def claimed(tensor: torch.Tensor) -> Any:
    return to_fake(tensor).cuda() if tensor.layout == torch.strided else tensor


@pytest.mark.parametrize("subject", [name for name in subjects() if not name.startswith("jiterator")])
def test_no_dtype_is_refused_that_a_gpu_supports(subject: str) -> None:
    for op in operators()[subject]:
        assert refusals(op) == []
