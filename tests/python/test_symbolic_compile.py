"""torch.compile, torch.export and make_fx on fakes whose sizes change between calls."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental import symbolic_shapes
from torch.fx.experimental.proxy_tensor import make_fx

import torchfake
from torchfake import FakeTensorMode, ShapeEnv, fake_mode

MODES = {
    "fake_mode": fake_mode,
    "FakeTensorMode": FakeTensorMode,
    "with an environment": lambda: FakeTensorMode(shape_env=ShapeEnv()),
    "with PyTorch's environment": lambda: FakeTensorMode(shape_env=symbolic_shapes.ShapeEnv()),
}


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Counted:
    """A backend that counts the graphs that it gets, and runs them as they are."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph, examples):
        self.graphs += 1
        return graph


def layer(x, weight):
    return torch.nn.functional.linear(x, weight).relu() + 1


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize("dynamic", [None, True])
def test_a_second_batch_size_generalises_a_compiled_function(mode, dynamic):
    backend = Counted()
    compiled = torch.compile(layer, backend=backend, dynamic=dynamic)
    with mode():
        weight = torch.randn(4, 8)
        shapes = [tuple(compiled(torch.randn(batch, 8), weight).shape) for batch in (3, 5, 7, 11)]
    assert shapes == [(3, 4), (5, 4), (7, 4), (11, 4)]
    assert backend.graphs == (1 if dynamic else 2)  # one more for the second size, none for the others


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_a_compiled_function_has_a_backward_at_every_batch_size(mode):
    compiled = torch.compile(layer, backend="aot_eager")
    with mode():
        weight = torch.randn(4, 8, requires_grad=True)
        for batch in (3, 5, 7):
            output = compiled(torch.randn(batch, 8), weight)
            assert torchfake.is_fake(output) and output.shape == (batch, 4)
            output.sum().backward()
    assert torchfake.is_fake(weight.grad) and weight.grad.shape == (4, 8)


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_export_with_a_dynamic_batch_covers_other_sizes(mode):
    with mode():
        model, x = torch.nn.Linear(8, 4), torch.randn(3, 8)
        exported = torch.export.export(model, (x,), dynamic_shapes={"input": {0: torch.export.Dim("batch")}})
        assert exported.module()(torch.randn(5, 8)).shape == (5, 4)
    assert len(exported.range_constraints) == 1


def test_symbolic_tracing_of_fakes_of_a_fake_mode():
    with fake_mode():
        graph = make_fx(lambda x: x.new_zeros(x.shape[0] * 2), tracing_mode="symbolic")(torch.randn(3, 4))
        assert torchfake.is_fake(graph(torch.randn(5, 4))) and graph(torch.randn(5, 4)).shape == (10,)
