"""Checks for invalid values in `fake_mode()` are assumed to pass, and nothing else is derived from this."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from torchfake import FakeTensorMode
from torchfake.errors import DataDependentOutputException, DynamicOutputShapeException
from torchfake.modes import fake_mode


def _unknown(*size: int) -> Tensor:
    return torch.randn(size or (100,), device="cuda")


@pytest.mark.parametrize("size", [(100,), (3, 4), (200, 200)])
def test_checks_for_invalid_values_pass(size):
    with fake_mode():
        x = _unknown(*size) @ _unknown(size[-1], 7) if len(size) == 2 else _unknown(*size).exp()
        assert not torch.isnan(x).any()
        assert not torch.isinf(x).any().item()
        assert torch.isfinite(x).all()
        assert x.isnan().sum() == 0
        assert not (x.isnan() | x.isinf()).any()
        assert not (~x.isfinite()).any()
        assert not torch.isnan(x.sum())
        assert torch.isfinite(x.sum())
        assert not torch.any(torch.isnan(x))


def test_a_model_that_clamps_its_infinities_trains():
    with fake_mode():
        layer = torch.nn.Linear(64, 64).cuda().half()
        hidden = layer(_unknown(8, 64).half())
        if torch.isinf(hidden).any() or torch.isnan(hidden).any():
            raise AssertionError("nothing was invalid")
        hidden.sum().backward()
        assert layer.weight.grad is not None


def test_the_selection_by_a_check_is_unknown():
    with fake_mode():
        x = _unknown()
        for mask in (x.isnan(), ~x.isnan(), x.isfinite()):
            with pytest.raises(DynamicOutputShapeException):
                x[mask]
            with pytest.raises(DynamicOutputShapeException):
                mask.nonzero()
            with pytest.raises(DataDependentOutputException):
                mask[:3].float().mean().item()


def test_known_values_are_checked():
    with fake_mode():
        assert torch.isnan(torch.tensor([float("nan"), 1.0])).any()
        assert not torch.isfinite(torch.full((3,), float("inf"))).all()
        mask = torch.isnan(_unknown())
        mask[3] = True
        with pytest.raises(DataDependentOutputException):
            bool(mask.any())


def test_a_strict_mode_assumes_nothing():
    with fake_mode(strict=True):
        with pytest.raises(DataDependentOutputException):
            bool(torch.isnan(_unknown()).any())
        with pytest.raises(DataDependentOutputException):
            bool(torch.isfinite(_unknown()).all())


def test_a_fake_tensor_mode_assumes_nothing():
    with FakeTensorMode(), pytest.raises(DataDependentOutputException):
        bool(torch.isnan(torch.randn(100)).any())


def test_a_selection_by_a_derived_mask_is_unknown():
    with fake_mode(drawn_values_limit=0):
        x = _unknown(4)
        mask = x.isnan()
        for selected in (mask == True, mask > 0, mask.float() == 1, mask != True, mask.int() < 1, mask * 3 >= 1):  # noqa: E712
            with pytest.raises(DynamicOutputShapeException):
                x[selected]
        assert not mask.any()
        assert mask.sum() == 0
        with pytest.raises(DataDependentOutputException):
            x.reshape(2, 2).isnan().sum(1).tolist()
