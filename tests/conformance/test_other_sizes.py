"""Symbolic fakes hold at other sizes: a bounded part of other_sizes.py."""

from __future__ import annotations

import other_sizes
import pytest
import torch

from torchfake import is_fake

GENERAL = (
    "add",
    "mul",
    "where",
    "clamp",
    "matmul",
    "bmm",
    "addmm",
    "sum",
    "mean",
    "amax",
    "softmax",
    "cat",
    "stack",
    "permute",
    "unsqueeze",
    "index_select",
    "gather",
    "cumsum",
    "nn.functional.gelu",
    "nn.functional.conv2d",
    "nn.functional.linear",
)


@pytest.mark.parametrize("name", GENERAL)
def test_an_operator_and_its_gradient_hold_at_other_sizes(name: str) -> None:
    from torch.testing._internal.common_methods_invocations import op_db

    opinfo = next(info for info in op_db if info.name == name and not info.variant_test_name)
    torch.manual_seed(0)
    verdicts = [
        other_sizes.judge(op, arguments, "torchfake", index)
        for index, (op, arguments) in enumerate(other_sizes.samples_of(opinfo, 2))
    ]
    assert all(verdict in ("holds", "unreal") for verdict, _ in verdicts), verdicts
    assert any(verdict == "holds" for verdict, _ in verdicts), verdicts


def test_a_wrong_expression_is_found() -> None:
    """The script detects sizes that are correct only at the hints."""

    def takes_the_hint(arguments: list[torch.Tensor]) -> torch.Tensor:
        x = arguments[0]
        return x.new_zeros(4 if is_fake(x) else x.shape[0])

    verdict, why = other_sizes.judge(takes_the_hint, [torch.ones(4)], "torchfake", 0, backward=False)
    assert verdict == "wrong" and "really" in why
