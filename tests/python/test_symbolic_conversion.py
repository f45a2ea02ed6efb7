"""`from_tensor` with PyTorch's `symbolic_context`, `source` and `static_shapes`, and fakes that change modes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._dynamo.source import ConstantSource
from torch.fx.experimental import symbolic_shapes
from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext, StrictMinMaxConstraint
from torch.utils._sympy.value_ranges import ValueRanges

from torchfake import DynamicShapesError, FakeTensorMode, ShapeEnv, fake_mode, to_fake


def context(*kinds: DimDynamic, constraints: Any = None) -> StatelessSymbolicContext:
    given = {} if constraints is None else {"constraint_sizes": list(constraints)}
    return StatelessSymbolicContext(dynamic_sizes=list(kinds), **given)


D, S, K = DimDynamic.DYNAMIC, DimDynamic.STATIC, DimDynamic.DUCK


def sizes(x: torch.Tensor) -> list[str]:
    return [str(size) for size in x.shape]


def test_a_context_says_what_each_size_is() -> None:
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    x = mode.from_tensor(torch.ones(4, 4, 4), symbolic_context=context(D, S, K), source=ConstantSource("x"))
    assert sizes(x) == ["s0", "4", "s1"] and [str(stride) for stride in x.stride()] == ["4*s1", "s1", "1"]
    y = mode.from_tensor(torch.ones(4, 4), symbolic_context=context(K, D), source=ConstantSource("y"))
    assert sizes(y) == ["s1", "s2"], "equal sizes that may be one symbol are"
    assert env.sources["s0"] == "x.size()[0]" and env.sources["s2"] == "y.size()[1]"
    assert sizes(mode.from_tensor(torch.ones(1, 4), symbolic_context=context(D, D)))[0] == "1"


def test_bounds_of_a_context_are_facts() -> None:
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    bounds = StrictMinMaxConstraint(vr=ValueRanges(lower=3, upper=10), warn_only=False)
    x = mode.from_tensor(torch.ones(4, 5), symbolic_context=context(D, D, constraints=[bounds, None]))
    assert env.bounds(x.shape[0]) == (3, 10) and bool(x.shape[0] < 11)
    assert env.guards_hold({"s0": 10, "s1": 2}) and not env.guards_hold({"s0": 11, "s1": 2})


def test_static_shapes_says_so_for_all_sizes() -> None:
    numbers = FakeTensorMode(shape_env=ShapeEnv())
    assert sizes(numbers.from_tensor(torch.ones(4, 3))) == ["4", "3"]
    assert sizes(numbers.from_tensor(torch.ones(4, 3), static_shapes=False)) == ["s0", "s1"]
    symbols = FakeTensorMode(shape_env=ShapeEnv(), static_shapes=False)
    assert sizes(symbols.from_tensor(torch.ones(4, 3, 4))) == ["s0", "s1", "s0"]
    assert sizes(symbols.from_tensor(torch.ones(4, 3), static_shapes=True)) == ["4", "3"]


def test_the_converter_takes_the_modes_environment() -> None:
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    convert = mode.fake_tensor_converter.from_real_tensor
    real = torch.ones(4, 3)
    fake = convert(mode, real, shape_env=env, symbolic_context=context(D, S))
    assert sizes(fake) == ["s0", "3"] and convert(mode, real, shape_env=env) is fake
    with pytest.raises(DynamicShapesError, match="shape_env"):
        convert(mode, torch.ones(4), shape_env=ShapeEnv())
    with pytest.raises(DynamicShapesError, match="symbolic_context"):
        convert(mode, torch.ones(4), symbolic_context=context(D))


def test_a_fake_goes_to_another_mode_with_its_symbols() -> None:
    env = ShapeEnv()
    first, second = FakeTensorMode(shape_env=env), FakeTensorMode(shape_env=env)
    x = first.from_tensor(torch.ones(10, 3), symbolic_context=context(D, S)).t().requires_grad_()
    y = second.from_tensor(x)
    assert y is not x and y.fake_mode is second and x.fake_mode is first and second.from_tensor(x) is y
    assert sizes(y) == sizes(x) == ["3", "s0"] and y.stride() == x.stride() and y.requires_grad
    assert y.size(1).node.shape_env is env and second.from_tensor(y) is y
    with pytest.raises(DynamicShapesError, match="another ShapeEnv"):
        FakeTensorMode(shape_env=ShapeEnv()).from_tensor(x)
    with pytest.raises(DynamicShapesError, match="another ShapeEnv"):
        FakeTensorMode().from_tensor(x)


def test_bad_input_is_refused_by_name() -> None:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    with pytest.raises(ValueError, match="2 dimensions, and the tensor has 3"):
        mode.from_tensor(torch.ones(4, 3, 2), symbolic_context=context(D, D))
    with pytest.raises(ValueError, match="omit dynamic"):
        mode.from_tensor(torch.ones(4), symbolic_context=context(D), dynamic=[0])
    with pytest.raises(DynamicShapesError, match="symbolic_context"):
        FakeTensorMode().from_tensor(torch.ones(4), symbolic_context=context(D))
    with pytest.raises(DynamicShapesError, match="static_shapes=False"):
        FakeTensorMode().from_tensor(torch.ones(4), static_shapes=False)
    with pytest.raises(DynamicShapesError, match="views"):
        mode.from_tensor(torch.ones(4, 4, requires_grad=True)[1:], symbolic_context=context(D, D))
    with pytest.raises(TypeError, match="expected a torchfake"):
        FakeTensorMode(shape_env=3)


def test_to_fake_and_fake_mode_name_sizes() -> None:
    env = ShapeEnv()
    mode = fake_mode(shape_env=env)
    real = torch.ones(4, 3)
    with mode:
        x = to_fake(real, "cuda", dynamic={0: "batch", -1: "width"})
    y = mode.from_tensor(torch.ones(4), dynamic={0: "batch"})
    weight = mode.from_tensor(torch.nn.Parameter(torch.ones(3)), dynamic=[0])
    assert [str(x.shape), str(y.shape), str(weight.shape)] == [
        "torch.Size([batch, width])",
        "torch.Size([batch])",
        "torch.Size([s0])",
    ]
    assert x.device == torch.device("cuda", 0) and isinstance(weight, torch.nn.Parameter)
    assert str((x.cpu().sum(1) + y).shape[0]) == "batch" and mode.from_tensor(real).shape == (4, 3)


def test_values_of_a_symbolic_copy_are_not_known() -> None:
    mode = fake_mode(shape_env=ShapeEnv())
    numbers = torch.tensor([1, 2, 3])
    total = mode.from_tensor(numbers, dynamic={0: "n"}).sum().item()
    assert isinstance(total, torch.SymInt) and str(total) == "u0"


def test_to_fake_refuses_sizes_that_cannot_be_named() -> None:
    x = torch.ones(4)
    with pytest.raises(DynamicShapesError, match="active mode with a shape_env"):
        to_fake(x, dynamic=[0])
    with fake_mode(), pytest.raises(DynamicShapesError, match="active mode with a shape_env"):
        to_fake(x, dynamic=[0])
    mode = fake_mode(shape_env=ShapeEnv())
    with pytest.raises(DynamicShapesError, match="got a fake"):
        mode.from_tensor(mode.from_tensor(x), dynamic=[0])
    with mode, pytest.raises(DynamicShapesError, match="got Linear"):
        to_fake(torch.nn.Linear(2, 2), dynamic=[0])
    with pytest.raises(IndexError, match="1 is none of them"):
        mode.from_tensor(x, dynamic=[1])
    with FakeTensorMode(shape_env=symbolic_shapes.ShapeEnv()), pytest.raises(DynamicShapesError, match="to_fake: "):
        to_fake(x, dynamic=[0])
