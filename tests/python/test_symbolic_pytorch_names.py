"""The names of PyTorch's ShapeEnv, of its nodes and of its errors, on torchfake's."""

from __future__ import annotations

import pickle

import pytest
import sympy
import torch
from torch._dynamo.source import ConstantSource
from torch.fx.experimental import symbolic_shapes
from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

from torchfake import DynamicShapesError, FakeTensorMode, ShapeEnv, SymNode, UnbackedSymbolError


@pytest.fixture
def env():
    return ShapeEnv()


def source(name: str) -> ConstantSource:
    return ConstantSource(name)


def symint(env: ShapeEnv, value: int, name: str = "n", kind: DimDynamic = DimDynamic.DUCK) -> torch.SymInt:
    symbol = env.create_symbol(value, source(name), kind, None)
    return torch.SymInt(SymNode(symbol, env, int, hint=value))


# ---- Creating symbols ------------------------------------------------------------------------------------------------


def test_a_symbol_has_the_value_and_is_shared_as_its_kind_says(env):
    assert symint(env, 5).node.hint == 5
    assert symint(env, 5).node.expr == symint(env, 5).node.expr
    assert symint(env, 5, kind=DimDynamic.DYNAMIC).node.expr != symint(env, 5).node.expr
    assert env.create_symbol(5, source("n"), DimDynamic.STATIC) == 5
    assert env.create_symbol(1, source("n"), DimDynamic.DYNAMIC) == 1
    unbacked = env.create_symbol(5, source("n"), DimDynamic.UNBACKED)
    assert env.is_unbacked_symint(unbacked) and env.bounds(unbacked)[0] == 0


def test_symbols_of_every_type_and_of_any_value(env):
    assert env.create_symfloatnode(env.create_symbol(2.5, source("x"))).node.hint == 2.5
    assert env.create_symboolnode(env.create_symbol(True, source("b"))).node.hint is True
    assert symint(env, -3).node.hint == -3
    number = env.create_unspecified_symint_and_symbol(1, source("k"), DimDynamic.DYNAMIC)
    assert isinstance(number, torch.SymInt) and number.node.hint == 1
    with pytest.raises(TypeError, match="create_symbol: expected an int, float or bool"):
        env.create_symbol("five", source("n"))


def test_a_constraint_bounds_a_symbol(env):
    bounds = symbolic_shapes.StrictMinMaxConstraint(
        vr=torch.utils._sympy.value_ranges.ValueRanges(3, 9), warn_only=False
    )
    symbol = env.create_symbol(5, source("n"), DimDynamic.DYNAMIC, bounds)
    assert env.bounds(symbol) == (3, 9)


def test_the_geometry_of_a_tensor(env):
    sizes, strides, offset = env.create_symbolic_sizes_strides_storage_offset(torch.randn(5, 4, 3)[1:], source("x"))
    assert [each.node.hint for each in sizes] == [4, 4, 3] and sizes[0].node.expr == sizes[1].node.expr
    assert strides[2] == 1 and bool(strides[1] == sizes[2]) and bool(strides[0] == sizes[1] * sizes[2])
    assert offset.node.hint == 12


def test_the_geometry_as_a_context_asks_for_it(env):
    kinds = [DimDynamic.UNBACKED, DimDynamic.STATIC, DimDynamic.DYNAMIC]
    context = StatelessSymbolicContext(dynamic_sizes=kinds)
    sizes, strides, offset = env.create_symbolic_sizes_strides_storage_offset(
        torch.randn(4, 3, 2), source("x"), symbolic_context=context
    )
    assert env.is_unbacked_symint(sizes[0].node.expr) and sizes[1] == 3 and sizes[2].node.hint == 2
    assert str(strides[0]) == f"3*{sizes[2]}" and offset == 0
    with pytest.raises(ValueError, match="has 3 dimensions, but the tensor has 2"):
        env.create_symbolic_sizes_strides_storage_offset(torch.randn(4, 3), source("x"), symbolic_context=context)


def test_sizes_without_hints_as_inputs(env):
    mode = FakeTensorMode(shape_env=env)
    kinds = [DimDynamic.UNBACKED, DimDynamic.STATIC]
    x = mode.from_tensor(torch.randn(4, 8), symbolic_context=StatelessSymbolicContext(dynamic_sizes=kinds))
    batch = x.shape[0]
    assert batch.node.hint is None and x.stride() == (8, 1)
    weight = mode.from_tensor(torch.randn(3, 8))
    assert torch.nn.functional.linear(x, weight).shape == (batch, 3)
    with pytest.raises(UnbackedSymbolError):
        bool(batch == 4)


# ---- Deciding and what is known --------------------------------------------------------------------------------------


def test_expressions_of_sympy_are_understood(env):
    n = symint(env, 6)
    s = sympy.sympify(n.node.expr)
    assert env.evaluate_expr(sympy.Eq(s, 6)) is True and "n == 6" not in str(env.guards)
    assert env.simplify(2 * s + 1) == 13
    m = symint(env, 7, kind=DimDynamic.DYNAMIC)
    t = sympy.sympify(m.node.expr)
    assert str(env.simplify((t + 1) ** 2)) == str((m + 1) * (m + 1))
    with pytest.raises(DynamicShapesError, match="symbol q"):
        env.simplify(sympy.Symbol("q") + 1)


def test_expressions_have_arithmetic(env):
    a, b = symint(env, 6).node.expr, symint(env, 7).node.expr
    assert str(a + b * 2 - 1) == f"2*{b} + {a} - 1" and str(3 - a) == f"3 - {a}" and str(-a) == f"-{a}"
    assert str(a // 2) == f"{a}//2" and str(a % 4) == f"{a} % 4"
    assert env.evaluate_expr(a < b) is True
    with pytest.raises(TypeError):
        a + "one"


def test_a_constant_expression_equals_its_number(env):
    number = env.simplify(0)
    assert number == 0 and hash(number) == hash(0) and number != 1 and number.is_Integer


def test_assertions_and_replacements_are_listed(env):
    u, v = env.create_unbacked_symint(), env.create_unbacked_symint()
    assert env.guard_or_defer_runtime_assert(u.node.expr + 0 < 9, "small") is True
    torch._check(v == 3)
    assert [str(guard.expr) for guard in env.deferred_runtime_asserts[u.node._expr]] == [f"{u} <= 8"]
    assert env.replacements == {v.node._expr: 3}
    assert env.var_to_range[u.node._expr].upper == 8


def test_numbers_can_be_made_equal(env):
    u, n = env.create_unbacked_symint(), symint(env, 6)
    symbolic_shapes.constrain_unify(u, n)
    assert bool(u == n)


def test_a_guard_is_a_tuple_as_pytorchs_are(env):
    n = symint(env, 6)
    assert bool(n > 5)
    expr, _, oblivious = env.guards[-1]
    assert str(expr) == str(env.guards[-1][0]) == f"{n} >= 6" and oblivious is False


def test_values_and_hints(env):
    n, u = symint(env, 6), env.create_unbacked_symint()
    assert env.backed_var_to_val == {n.node.expr: 6}
    assert env.size_hint(n.node.expr * 2) == 12 and env.size_hint(u.node.expr, allow_none=True) is None
    assert env.has_guarding_hint(n.node.expr) and not env.has_guarding_hint(u.node.expr)
    bounds = env.bound_sympy(n.node.expr * 2)
    assert bounds.lower == 4 and bounds.upper == torch.utils._sympy.numbers.int_oo


def test_guards_as_text_hold_in_another_environment(env):
    n, ratio = symint(env, 6), torch.SymFloat(SymNode(env.create_symbol(0.5, source("r")), env, float))
    assert bool(n > 5) and bool(ratio < 0.75)
    code = env.produce_guards_expression([n, ratio])
    assert [ShapeEnv().evaluate_guards_expression(code, args) for args in ([6, 0.5], [5, 0.5], [6, 0.9])] == [
        True,
        False,
        False,
    ]
    with pytest.raises(ValueError, match="expected 2 arguments, got 1"):
        env.evaluate_guards_expression(code, [6])
    assert bool(n + symint(env, 7) == 13)
    with pytest.raises(DynamicShapesError, match="`s0 \\+ s2 == 13` contains s2"):
        env.produce_guards_expression([n])


# ---- Errors ----------------------------------------------------------------------------------------------------------


def test_an_undecidable_condition_is_pytorchs_error_as_well(env):
    u = env.create_unbacked_symint()
    with pytest.raises(symbolic_shapes.GuardOnDataDependentSymNode, match="u0") as caught:
        bool(u == 0)
    assert isinstance(caught.value, UnbackedSymbolError)
    again = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(again, UnbackedSymbolError) and str(again) == str(caught.value)


@pytest.mark.parametrize(
    "call",
    [
        lambda env: env.bounds("n"),
        lambda env: env.simplify(None),
        lambda env: env.constrain_range([1], 0, 3),
        lambda env: env.create_symint("4"),
        lambda env: SymNode("n", env, int),
        lambda env: SymNode(3, None, int),
        lambda env: ShapeEnv(duck_shape="perhaps", unknown_option=True),
        lambda env: env.evaluate(3, {"n": "four"}),
        lambda env: env.create_symbolic_sizes_strides_storage_offset([3, 4], source("x")),
    ],
)
def test_wrong_types_are_type_errors(env, call):
    env.create_symint(4, "n")
    with pytest.raises(TypeError):
        call(env)


def test_a_symbol_of_another_environment_is_refused_by_name(env):
    other = ShapeEnv().create_symint(4, "theirs")
    for call in (env.simplify, env.bounds, lambda n: env.constrain_range(n, 0, 3), lambda n: SymNode(n, env, int)):
        with pytest.raises(DynamicShapesError, match="theirs"):
            call(other)
    with pytest.raises(ValueError, match="another ShapeEnv"):
        env.simplify(other.node.expr)
