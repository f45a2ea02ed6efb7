"""Every operator on sparse tensors, on PyTorch's samples: fakes compared with real tensors and PyTorch's fakes."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from test_sparse_fakes import LAYOUTS, assert_same
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map_only

import torchfake
from torchfake import FakeTensorMode, fake_mode, is_fake
from torchfake.errors import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)

REFUSALS = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException)
SUPPORTS = {
    torch.sparse_coo: "supports_sparse",
    torch.sparse_csr: "supports_sparse_csr",
    torch.sparse_csc: "supports_sparse_csc",
    torch.sparse_bsr: "supports_sparse_bsr",
    torch.sparse_bsc: "supports_sparse_bsc",
}
CASES = [
    pytest.param(op, layout, id=f"{op.full_name}-{layout}".replace("torch.", ""))
    for op, layout in itertools.product(op_db, LAYOUTS)
    if getattr(op, SUPPORTS[layout], False) and torch.float32 in op.supported_dtypes("cpu")
]


def samples(op: Any, layout: torch.layout) -> list[Any]:
    try:
        return list(itertools.islice(op.sample_inputs_sparse(layout, "cpu", torch.float32), 12))
    except NotImplementedError:
        return []


def is_sparse(value: object) -> bool:
    return isinstance(value, Tensor) and value.layout in LAYOUTS


@pytest.mark.parametrize(("op", "layout"), CASES)
def test_fakes_show_what_real_tensors_show(op: Any, layout: torch.layout) -> None:
    for sample in samples(op, layout):
        arguments = (sample.input, sample.args, sample.kwargs)
        if not any(is_sparse(leaf) for leaf in tree_leaves(arguments)):
            continue
        try:
            expected = op(sample.input, *sample.args, **sample.kwargs)
        except (RuntimeError, NotImplementedError):
            expected = None
        with fake_mode():
            fakes = tree_map_only(Tensor, torchfake.to_fake, arguments)
            if expected is None:
                with pytest.raises((RuntimeError, NotImplementedError)):
                    op(fakes[0], *fakes[1], **fakes[2])
                continue
            try:
                outputs = op(fakes[0], *fakes[1], **fakes[2])
            except REFUSALS:
                continue
        for output, real in zip(tree_leaves(outputs), tree_leaves(expected), strict=True):
            if isinstance(real, Tensor):
                assert_same(output, real)


@pytest.mark.parametrize(("op", "layout"), CASES)
def test_what_pytorchs_fakes_answer_is_answered_alike(op: Any, layout: torch.layout) -> None:
    for sample in samples(op, layout):
        arguments = (sample.input, sample.args, sample.kwargs)
        if not any(is_sparse(leaf) for leaf in tree_leaves(arguments)):
            continue
        outputs = []
        try:
            op(sample.input, *sample.args, **sample.kwargs)
        except (RuntimeError, NotImplementedError):
            continue
        for mode in (torch._subclasses.FakeTensorMode(), FakeTensorMode()):
            fakes = tree_map_only(Tensor, mode.from_tensor, arguments)
            try:
                with mode:
                    outputs.append(op(fakes[0], *fakes[1], **fakes[2]))
            except Exception:
                if outputs:
                    raise
                break  # PyTorch's fakes refuse it
        if len(outputs) < 2:
            continue
        for theirs, ours in zip(tree_leaves(outputs[0]), tree_leaves(outputs[1]), strict=True):
            if isinstance(theirs, Tensor):
                assert is_fake(ours)
                assert (ours.layout, ours.shape, ours.dtype) == (theirs.layout, theirs.shape, theirs.dtype)
