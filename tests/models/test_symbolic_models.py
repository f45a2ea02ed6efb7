"""Small models with symbolic sizes hold at other sizes: a bounded part of symbolic_models.py."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import symbolic_models
import torch
from torch import nn

from torchfake import is_fake

TESTED = ("ResNet", "UNet", "MobileNet", "GPT2LMHeadModel", "LlamaForCausalLM", "AlbertModel", "BartModel")


@pytest.fixture(autouse=True)
def without_the_models_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("name", TESTED)
def test_a_model_and_its_gradients_hold_at_other_sizes(name: str) -> None:
    case = next(case for case in symbolic_models.CASES if case.name == name)
    verdict, why = symbolic_models.judge(case)
    assert verdict == "holds", why


def test_a_model_that_is_right_only_at_the_hints_is_found() -> None:
    class TakesTheHint(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sum() * torch.ones(2 if is_fake(x) else x.shape[0])

    verdict, why = symbolic_models.judge(
        symbolic_models.Case("", lambda: (TakesTheHint(), {"x": torch.randn(2, 3, 32, 32)}))
    )
    assert verdict == "wrong" and "really" in why
