"""`torch.export` of models of fakes, with fakes as example inputs."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchfake import DataAccessError, FakeTensorMode, fake_mode


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).relu()


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("kind", [fake_mode, FakeTensorMode])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_model_of_fakes_is_exported(kind: Callable[[], Any], inside: bool, strict: bool) -> None:
    with kind():
        model, x = Model().to("cuda"), torch.ones(3, 4, device="cuda")
        if inside:
            exported = torch.export.export(model, (x,), strict=strict)
    if not inside:
        exported = torch.export.export(model, (x,), strict=strict)
    (result,) = exported.graph.output_node().args[0]
    assert result.meta["val"].shape == (3, 2) and result.meta["val"].device == torch.device("cuda:0")
    assert [str(node.target) for node in exported.graph.nodes if node.op == "call_function"] == [
        "aten.linear.default",
        "aten.relu.default",
    ]


@pytest.mark.parametrize("inside", [True, False])
def test_fake_weights_are_not_saved_as_something_else(inside: bool) -> None:
    with FakeTensorMode():
        exported = torch.export.export(Model(), (torch.ones(3, 4),))
        file = io.BytesIO()
        if inside:
            with pytest.raises(DataAccessError, match=r"torch.export.save: 'linear.weight' is a fake tensor"):
                torch.export.save(exported, file)
    with pytest.raises(DataAccessError, match=r"torch.export.save: 'linear.weight' is a fake tensor"):
        torch.export.save(exported, file)
    assert file.tell() == 0


def test_real_weights_are_saved_as_before() -> None:
    file = io.BytesIO()
    torch.export.save(torch.export.export(Model(), (torch.ones(3, 4),)), file)
    file.seek(0)
    assert torch.export.load(file).state_dict["linear.weight"].shape == (2, 4)
