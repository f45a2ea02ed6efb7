"""Jagged nested tensors of fakes: their ragged size is a nested integer, a symbol with PyTorch's ShapeEnv."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental import symbolic_shapes

import torchfake
from torchfake import FakeTensorMode, ShapeEnv

MODES = {
    "without an environment": FakeTensorMode,
    "with torchfake's": lambda: FakeTensorMode(shape_env=ShapeEnv()),
    "with PyTorch's": lambda: FakeTensorMode(shape_env=symbolic_shapes.ShapeEnv()),
}


@pytest.fixture(params=MODES.values(), ids=MODES)
def mode(request):
    return request.param()


@pytest.fixture
def pytorchs():
    return FakeTensorMode(shape_env=symbolic_shapes.ShapeEnv())


def jagged(*lengths: int, features: int = 8) -> torch.Tensor:
    parts = [torch.randn(length, features) for length in lengths]
    return torch.nested.nested_tensor(parts, layout=torch.jagged)


def test_a_jagged_tensor_keeps_its_layout_and_its_values_are_fake(mode):
    fake = mode.from_tensor(jagged(3, 4, 2))
    assert fake.layout is torch.jagged and torchfake.is_fake(fake.values()) and torchfake.is_fake(fake.offsets())
    assert fake.dim() == 3 and bool(fake.shape[0] == 3) and fake.values().shape == (9, 8)


def test_equal_offsets_share_a_ragged_size_and_others_do_not(mode):
    one, other = jagged(3, 4, 2), jagged(2, 4, 3)
    first, double, unrelated = (mode.from_tensor(each) for each in (one, one * 2, other))
    assert first.shape[1] == double.shape[1]
    assert first.shape[1] != unrelated.shape[1]
    with mode:
        assert (first + double).shape[1] == first.shape[1]
        with pytest.raises(RuntimeError, match="shape"):
            first + unrelated


OPERATORS = {
    "pointwise": lambda x, w: (x * 2 + x.sin()).relu(),
    "linear": F.linear,
    "layer_norm": lambda x, w: F.layer_norm(x, (8,)),
    "sum of features": lambda x, w: x.sum(-1),
    "sum of a sequence": lambda x, w: x.sum(1),
    "mean of features": lambda x, w: x.mean(-1, keepdim=True),
    "transpose": lambda x, w: x.transpose(1, 2),
    "chunk": lambda x, w: x.chunk(2, -1)[1],
    "unflatten": lambda x, w: x.unflatten(-1, [2, 4]).transpose(1, 2),
    "softmax": lambda x, w: x.softmax(-1),
    "to a dtype": lambda x, w: x.to(torch.float64),
}


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS)
def test_operators_return_what_real_ones_do(mode, operator):
    x, weight = jagged(3, 4, 2), torch.randn(4, 8)
    expected = operator(x, weight)
    with mode:
        fake = mode.from_tensor(x)
        output = operator(fake, mode.from_tensor(weight))
    assert torchfake.is_fake(output.values() if output.is_nested else output)
    assert (output.layout, output.dtype, output.dim()) == (expected.layout, expected.dtype, expected.dim())
    for size, real in zip(output.shape, expected.shape, strict=True):
        if isinstance(real, int):
            assert size == real
        else:
            assert size == fake.shape[1]


def test_a_backward_through_a_jagged_layer(mode):
    with mode:
        x, weight = mode.from_tensor(jagged(3, 4, 2)), mode.from_tensor(torch.randn(4, 8, requires_grad=True))
        F.linear(x, weight).values().sum().backward()
    assert torchfake.is_fake(weight.grad) and weight.grad.shape == (4, 8)


def test_offsets_remember_their_nested_integer(mode):
    fake = mode.from_tensor(jagged(3, 4, 2))
    offsets = fake.offsets()
    assert str(offsets.nested_int_memo) == str(offsets.get_nested_int()) == str(fake.shape[1])
    assert str(offsets.get_nested_int(coeff=2)) == f"2*{fake.shape[1]}"
    with mode:
        offsets.add_(0)
    assert str(offsets.nested_int_memo) == str(fake.shape[1])


def test_fakes_that_are_no_offsets_get_a_nested_integer_when_asked(mode):
    with mode:
        x, y = torch.ones(3), torch.ones(3)
        assert x.nested_int_memo is None
        assert x.get_nested_int() == x.get_nested_int()
        assert x.get_nested_int() != y.get_nested_int()


def test_nested_integers_are_new(mode):
    with mode:
        a, b = mode.create_symbolic_nested_int(), mode.create_symbolic_nested_int()
    assert a != b


def test_nested_integers_are_distinct_from_those_of_real_tensors_made_later():
    mode = FakeTensorMode()
    earlier, real = mode.create_symbolic_nested_int(), jagged(3, 4).shape[1]
    assert earlier != real and mode.create_symbolic_nested_int() != real
    assert mode.create_symbolic_nested_int(nt_tensor_id=real.node.nested_int()) == real


def test_with_pytorchs_environment_the_ragged_size_is_its_symbol(pytorchs):
    fake = pytorchs.from_tensor(jagged(3, 4, 2))
    assert fake.shape[1].node.shape_env is pytorchs.shape_env
    assert symbolic_shapes.free_symbols(fake.shape)
    again = FakeTensorMode(shape_env=pytorchs.shape_env).from_tensor(fake)
    assert again is not fake and str(again.shape[1]) == str(fake.shape[1])


def test_lengths_and_offsets_together(mode):
    values, offsets = torch.randn(10, 8), torch.tensor([0, 4, 8, 10])
    real = torch.nested.nested_tensor_from_jagged(values, offsets, lengths=torch.tensor([2, 3, 1]))
    fake = mode.from_tensor(real)
    with mode:
        assert (fake * 2).shape[1] == fake.shape[1]
    assert fake._lengths.shape == (3,) and str(fake._lengths.nested_int_memo) == str(fake.shape[1])


def test_softmax_along_the_ragged_dimension(mode):
    fake = mode.from_tensor(jagged(3, 4, 2))
    result = F.softmax(fake, 1)
    assert result.shape[1] == fake.shape[1] and result.values().shape[1] == 8


def test_padded_values_become_jagged_ones_by_known_offsets_or_a_total():
    dense = torch.ones(2, 3, 8)
    with torchfake.fake_mode():
        padded, offsets = torch.ones(2, 3, 8), torch.tensor([0, 2, 5])
        assert torch.ops.aten._padded_dense_to_jagged_forward(padded, [offsets]).shape == (5, 8)
        with pytest.raises(RuntimeError, match="final offset should match total_L"):
            torch.ops.aten._padded_dense_to_jagged_forward(padded, [offsets], 4)
    with FakeTensorMode(allow_non_fake_inputs=True) as numbers:
        unknown = numbers.from_tensor(torch.tensor([0, 2, 5]))
        assert torch.ops.aten._padded_dense_to_jagged_forward(dense, [unknown], 5).shape == (5, 8)
        with pytest.raises(torchfake.DynamicOutputShapeException, match="Pass total_L"):
            torch.ops.aten._padded_dense_to_jagged_forward(dense, [unknown])


def test_parts_of_unknown_lengths(pytorchs):
    first, second = pytorchs.from_tensor(jagged(3, 4)).unbind()
    assert first.shape[1] == second.shape[1] == 8
    assert all(symbolic_shapes.free_unbacked_symbols(part.shape[0]) for part in (first, second))
