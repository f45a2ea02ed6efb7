"""Graphs that PyTorch's tracer writes of fakes with symbolic sizes run on real tensors of other sizes."""

from __future__ import annotations

import math

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from torchfake import FakeTensorMode, ShapeEnv

FUNCTIONS = {
    "a sum": lambda x, y: x.new_zeros(x.shape[0] * 2 + y.shape[0] - 1),
    "a product": lambda x, y: x.new_ones(x.shape[0] * y.shape[0] ** 2),
    "quotient and rest": lambda x, y: x.new_ones(x.shape[0] // 3 + 1, y.shape[0] % 4 + 1),
    "extrema": lambda x, y: x.new_ones(torch.sym_max(x.shape[0], y.shape[0]), torch.sym_min(x.shape[0], 5)),
    "the size of a result": lambda x, y: torch.cat([x, y]).new_ones(torch.cat([x, y]).shape[0] + 1),
    "a number": lambda x, y: (x * 1, x.shape[0] * 3 - y.shape[0]),
    "a comparison": lambda x, y: (x * 1, x.shape[0] + 100 > y.shape[0], x.shape[0] * 2 == y.shape[0] + 1),
    "floats": lambda x, y: x * (x.shape[0] / (y.shape[0] + 1)) + math.sqrt(3),
    "rounded": lambda x, y: x.new_ones(math.ceil(x.shape[0] / 4) + math.floor(y.shape[0] / 3)),
    "a view": lambda x, y: x.view(-1, 2).sum(0) + y.unsqueeze(0).expand(x.shape[0], y.shape[0], 4).sum((0, 1))[:2],
    "a choice": lambda x, y: x.new_ones(torch.sym_ite(x.shape[0] > y.shape[0], x.shape[0] * 1, y.shape[0] * 1)),
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
@pytest.mark.parametrize("tracing_mode", ["real", "symbolic"])
def test_a_graph_holds_at_other_sizes(function, tracing_mode):
    mode = FakeTensorMode(shape_env=ShapeEnv(), static_shapes=False)
    examples = [mode.from_tensor(torch.ones(rows, 4)) for rows in (6, 7)]
    with mode:
        graph = make_fx(function, tracing_mode=tracing_mode)(*examples)
    names = [str(example.shape[0]) for example in examples]
    tried = 0
    for sizes in ((6, 7), (9, 3), (12, 31), (8, 8)):
        values = {**{str(symbol): 4 for symbol in mode.shape_env.symbols}, **dict(zip(names, sizes, strict=True))}
        if mode.shape_env.guards_hold(values):
            tried += 1
            args = [torch.rand(rows, 4) for rows in sizes]
            torch.testing.assert_close(graph(*args), function(*args))
    assert tried >= 3


def test_a_graph_of_sizes_that_data_gives():
    mode = FakeTensorMode(shape_env=ShapeEnv(), static_shapes=False)
    x = mode.from_tensor(torch.ones(6))

    def kept(x):
        found = x[x > 0]
        return found, torch.ones(found.shape[0] * 3 + 1)

    with mode:
        graph = make_fx(kept)(x)
    real = torch.tensor([1.0, -1.0, 2.0, 3.0, -2.0, 1.0, 1.0, -4.0])
    torch.testing.assert_close(graph(real), kept(real))


def test_a_number_of_no_traced_tensor_is_pytorchs_error():
    mode = FakeTensorMode(shape_env=ShapeEnv(), static_shapes=False)
    unseen = mode.shape_env.create_symint(9, "unseen")
    with mode, pytest.raises(RuntimeError, match=r"unseen.*not tracked"):
        make_fx(lambda x: x.new_ones(unseen * 2))(mode.from_tensor(torch.ones(6)))
