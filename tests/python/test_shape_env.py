"""`ShapeEnv`: symbols, guards, unbacked symbols, and PyTorch's functions on them."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch.fx.experimental import symbolic_shapes

from torchfake import DataDependentOutputException, DynamicShapesError, ShapeEnv, UnbackedSymbolError


def texts(env: ShapeEnv) -> list[str]:
    return [str(guard) for guard in env.guards]


def test_equal_names_are_one_symbol_and_need_equal_hints() -> None:
    env = ShapeEnv()
    first, second = env.create_symint(4, "batch"), env.create_symint(4, "batch")
    assert (first == second) is True
    with pytest.raises(ValueError, match="'batch' is 4 elsewhere and 5 here"):
        env.create_symint(5, "batch")
    with pytest.raises(ValueError, match="not a valid name for a symbol"):
        env.create_symint(5, "2 words")


def test_zero_and_one_are_numbers() -> None:
    env = ShapeEnv()
    assert env.create_symint(1) == 1 and isinstance(env.create_symint(0), int)
    assert env.create_symint(1, "batch") == 1
    assert texts(env) == ["batch == 1"]
    assert env.guards_hold({"batch": 1}) and not env.guards_hold({"batch": 8})
    general = ShapeEnv(specialize_zero_one=False)
    assert isinstance(general.create_symint(1), torch.SymInt) and general.guards == []


def test_equal_sizes_without_a_name_are_one_symbol() -> None:
    env = ShapeEnv()
    assert str(env.create_symint(8)) == str(env.create_symint(8)) == "s0"
    assert str(env.create_symint(9)) == "s1"
    apart = ShapeEnv(duck_shape=False)
    assert str(apart.create_symint(8)) != str(apart.create_symint(8))


def test_a_decision_by_the_hint_is_a_guard() -> None:
    env = ShapeEnv()
    batch, seq = env.create_symint(4, "batch"), env.create_symint(77, "seq")
    assert bool(batch < seq) is True
    assert bool(batch * 2 == seq) is False
    assert texts(env) == ["batch >= 2", "seq >= 2", "batch < seq", "2*batch != seq"]
    assert env.guards_hold({"batch": 8, "seq": 99})
    assert not env.guards_hold({"batch": 8, "seq": 16})
    assert not env.guards_hold({"batch": 1, "seq": 16})
    assert env.evaluate(batch * seq + 3, {"batch": 8, "seq": 77}) == 619
    assert env.format_guards().splitlines()[2] == "batch < seq"


def test_names_and_values_of_guards_are_checked() -> None:
    env = ShapeEnv()
    batch = env.create_symint(4, "batch")
    with pytest.raises(ValueError, match="no symbol 'bath'"):
        env.guards_hold({"bath": 4})
    with pytest.raises(ValueError, match="no value was given for the symbol 'batch'"):
        env.evaluate(batch + 1, {})
    with pytest.raises(TypeError, match="another type"):
        env.guards_hold({"batch": 4.5})


def test_a_known_answer_is_no_guard() -> None:
    env = ShapeEnv()
    batch = env.create_symint(4, "batch")
    assert batch >= 2 and batch != 0 and batch * 3 > 5 and not batch < 0
    assert texts(env) == ["batch >= 2"]


def test_equalities_are_used() -> None:
    env = ShapeEnv()
    a, b = env.create_symint(6, "a"), env.create_symint(6, "b")
    assert a == b
    assert str(b * 2 + a) == "3*a"
    assert (a * b == a * a) is True
    assert int(a) == 6
    assert b + 1 == 7 and isinstance(b + 1, int)
    assert not env.guards_hold({"a": 5, "b": 5})


def test_divisibility_is_used() -> None:
    env = ShapeEnv()
    width = env.create_symint(64, "width")
    assert width % 16 == 0
    before = len(env.guards)
    assert width // 16 * 16 == width and width % 8 == 0 and width % 2 == 0 and width * 3 % 48 == 0
    assert len(env.guards) == before
    assert env.guards_hold({"width": 32}) and not env.guards_hold({"width": 40})


def test_symbols_of_two_environments_do_not_mix() -> None:
    a, b = ShapeEnv().create_symint(4, "a"), ShapeEnv().create_symint(4, "b")
    with pytest.raises(DynamicShapesError, match="different ShapeEnvs"):
        a + b
    with pytest.raises(DynamicShapesError, match="another ShapeEnv"):
        ShapeEnv().evaluate(a, {})


def test_a_symbol_without_a_hint_is_not_guessed() -> None:
    env = ShapeEnv()
    count = env.create_unbacked_symint()
    with pytest.raises(UnbackedSymbolError, match=r"cannot decide `u0 >= 3`.*torch\._check"):
        bool(count >= 3)
    with pytest.raises(DataDependentOutputException):
        int(count)
    assert not symbolic_shapes.guard_or_false(count >= 3)
    assert symbolic_shapes.guard_or_true(count >= 3)
    assert not symbolic_shapes.statically_known_true(count >= 3)
    assert env.guards == [] and env.runtime_assertions == []


def test_checks_are_assertions_for_run_time() -> None:
    env = ShapeEnv()
    count = env.create_unbacked_symint()
    torch._check(count >= 3)
    assert bool(count >= 2) and env.bounds(count) == (3, None)
    assert [str(each) for each in env.runtime_assertions] == ["u0 >= 3"]
    assert "u0 >= 3  # at run time" in env.format_guards()
    other = env.create_unbacked_symint()
    torch._check(other == count * 2)
    assert str(other) == "2*u0"
    assert env.guards_hold({"u0": 4, "u1": 8}) and not env.guards_hold({"u0": 4, "u1": 9})


def test_a_size_without_a_hint_is_neither_zero_nor_one_where_that_may_be_assumed() -> None:
    env = ShapeEnv()
    count = env.create_unbacked_symint()
    torch._check_is_size(count)
    assert env.bounds(count) == (0, None)
    assert not symbolic_shapes.guard_size_oblivious(count == 0)
    assert not symbolic_shapes.guard_size_oblivious(count == 1)
    with pytest.raises(UnbackedSymbolError):
        symbolic_shapes.guard_size_oblivious(count == 7)


def test_ranges_can_be_given() -> None:
    env = ShapeEnv()
    count = env.create_unbacked_symint()
    symbolic_shapes.constrain_range(count, min=2, max=9)
    assert env.bounds(count * 2 + 1) == (5, 19)
    assert bool(count < 10)
    env.constrain_range(count, max=4)
    assert env.bounds(count) == (2, 4)
    with pytest.raises(ValueError, match="contradicts"):
        env.constrain_range(count, min=5)


def test_pytorchs_questions() -> None:
    env = ShapeEnv()
    batch, count = env.create_symint(4, "batch"), env.create_unbacked_symint()
    assert symbolic_shapes.has_free_symbols(batch) and not symbolic_shapes.has_free_symbols(4)
    assert symbolic_shapes.is_symbolic(batch)
    assert symbolic_shapes.guarding_hint_or_throw(batch * 2) == 8
    assert symbolic_shapes.has_guarding_hint(batch) and not symbolic_shapes.has_guarding_hint(count)
    assert symbolic_shapes.optimization_hint(batch + 1) == 5
    assert symbolic_shapes.optimization_hint(count, fallback=64) == 64
    assert symbolic_shapes.statically_known_true(batch > 1)
    assert not symbolic_shapes.statically_known_true(batch > 3)
    assert not symbolic_shapes.statically_known_false(batch > 3)
    assert symbolic_shapes.statically_known_false(batch < 2)
    assert not symbolic_shapes.has_static_value(batch) and symbolic_shapes.guard_int(batch) == 4
    assert symbolic_shapes.has_static_value(batch)
    assert {str(each) for each in symbolic_shapes.free_symbols(env.symbols["u0"] * 2)} == {"u0"}


def test_booleans() -> None:
    env = ShapeEnv()
    a, b = env.create_symint(4, "a"), env.create_symint(5, "b")
    assert str((a < b) & (a != 3)) == "a != 3 and a < b"
    assert str(torch.sym_not((a < b) | (b == 7))) == "a >= b and b != 7" or "b <= a" in str(
        torch.sym_not((a < b) | (b == 7))
    )
    choice = torch.sym_ite(a < b, a, b * 2)
    assert env.evaluate(choice, {"a": 3, "b": 2}) == 4 and env.evaluate(choice, {"a": 3, "b": 9}) == 3
    flag = env.create_symbool(True, "flag")
    assert bool(flag) and texts(env)[-1] == "flag"


def test_an_environment_comes_back_from_pickle() -> None:
    env = ShapeEnv()
    a, b = env.create_symint(6, "a", "x.size()[0]"), env.create_symint(48, "b")
    count = env.create_unbacked_symint()
    assert a < b and b % 8 == 0
    torch._check(count < 100)
    again, number = pickle.loads(pickle.dumps((env, a * b + count)))
    assert again.format_guards() == env.format_guards()
    assert str(number) == str(a * b + count) and number.node.shape_env is again
    assert again.sources["a"] == "x.size()[0]"
    assert again.symbols["b"] % 4 == 0 and len(again.guards) == len(env.guards)
    assert str(again.create_unbacked_symint()) == "u1"


def test_bad_arguments_of_the_binding_raise() -> None:
    env = ShapeEnv()
    a = env.create_symint(4, "a")
    assert isinstance(a, torch.SymInt)
    for call in (
        lambda: ShapeEnv.format_guards(None),  # type: ignore[arg-type]
        lambda: a.node.sym_ite(None, None),
        lambda: type(a.node).trunc(None),
    ):
        with pytest.raises(TypeError):
            call()
    with pytest.raises(ValueError, match="number of arguments"):
        env._build("floordiv", [a])


def test_a_number_of_more_than_64_bits_is_refused_by_name() -> None:
    env = ShapeEnv()
    n = env.create_symint(7, "n")
    for use in (lambda: n * 2**70, lambda: n < 2**70, lambda: env.guards_hold({"n": 2**70})):
        with pytest.raises(ValueError, match=f"{2**70} does not fit into 64 bits"):
            use()
    assert str(n + (2**63 - 1 - 7)) == f"n + {2**63 - 8}"
