"""Symbolic sizes in Python: conversion to sympy, pickling, and what PyTorch's functions lack for native nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import SymBool, SymFloat, SymInt

from torchfake import _C

__all__ = ["dump", "load", "load_env", "load_node", "state_of", "to_sympy"]


def to_sympy(expr: _C.Expr) -> Any:
    """The expression in sympy, with PyTorch's functions for what sympy lacks. For reading and for tests."""
    import sympy  # type: ignore[import-untyped]
    from torch.utils._sympy import functions

    def float_function(arg: Any) -> Any:
        if expr.function == "neg":
            return -arg
        return getattr(sympy, {"abs": "Abs"}.get(expr.function, expr.function))(arg)

    builders: dict[str, Callable[..., Any]] = {
        "floordiv": functions.FloorDiv,
        "mod": functions.PythonMod,
        "min": functions.Min,
        "max": functions.Max,
        "pow": functions.PowByNatural,
        "bit_and": functions.BitwiseFn_bitwise_and,
        "bit_or": functions.BitwiseFn_bitwise_or,
        "bit_xor": functions.BitwiseFn_bitwise_xor,
        "shift_left": functions.LShift,
        "shift_right": functions.RShift,
        "floor": functions.FloorToInt,
        "ceil": functions.CeilToInt,
        "trunc": functions.TruncToInt,
        "round": functions.RoundToInt,
        "to_float": functions.ToFloat,
        "truediv": functions.IntTrueDiv,
        "float_add": lambda a, b: a + b,
        "float_sub": lambda a, b: a - b,
        "float_mul": lambda a, b: a * b,
        "float_div": functions.FloatTrueDiv,
        "float_mod": functions.PythonMod,
        "float_pow": functions.FloatPow,
        "float_min": functions.Min,
        "float_max": functions.Max,
        "float_function": float_function,
        "le": lambda a: sympy.Le(a, 0),
        "eq": lambda a: sympy.Eq(a, 0),
        "ne": lambda a: sympy.Ne(a, 0),
        "float_lt": sympy.Lt,
        "float_le": sympy.Le,
        "float_eq": sympy.Eq,
        "is_integer": lambda a: sympy.Eq(functions.ToFloat(functions.FloorToInt(a)), a),
        "and": sympy.And,
        "or": sympy.Or,
        "not": sympy.Not,
        "ite": lambda c, a, b: sympy.Piecewise((a, c), (b, True)),
    }
    args = [to_sympy(arg) for arg in expr.args]
    match expr.op:
        case "int":
            return sympy.Integer(expr.number)
        case "bool":
            return sympy.true if expr.number else sympy.false
        case "float":
            return sympy.Float(expr.real)
        case "symbol":
            return _sympy_symbol(expr)
        case "sum":
            return sympy.Add(*(c * arg for c, arg in zip(expr.coefficients, args, strict=True)), expr.number)
        case "product":
            return sympy.Mul(*(arg**power for power, arg in zip(expr.coefficients, args, strict=True)))
        case _:
            return builders[expr.op](*args)


def _sympy_symbol(expr: _C.Expr) -> Any:
    import sympy

    number = expr.shape_env._number(expr)
    if isinstance(number, SymInt):
        low, _ = expr.shape_env.bounds(expr)
        return sympy.Symbol(expr.name, integer=True, positive=(low is not None and low > 0) or None)
    if isinstance(number, SymBool):
        return sympy.Symbol(expr.name)
    return sympy.Symbol(expr.name, real=True)


def dump(expr: _C.Expr) -> Any:
    """The expression as nested tuples."""
    match expr.op:
        case "int" | "bool":
            return expr.number if expr.op == "int" else bool(expr.number)
        case "float":
            return expr.real
        case "symbol":
            return ("symbol", expr.name)
        case "sum" | "product":
            return (expr.op, [dump(arg) for arg in expr.args], (expr.number, expr.coefficients))
        case "float_function":
            return (expr.op, [dump(arg) for arg in expr.args], expr.function)
        case _:
            return (expr.op, [dump(arg) for arg in expr.args], None)


def load(env: _C.ShapeEnv, data: Any) -> _C.Expr:
    """What `dump` made, in an environment that has its symbols."""
    if not isinstance(data, tuple):
        return env._build("constant", [], data)
    if data[0] == "symbol":
        number = env.symbols[data[1]]
        return (
            number.node.expr if isinstance(number, SymInt | SymFloat | SymBool) else env._build("constant", [], number)
        )
    op, args, number = data
    return env._build(op, [load(env, arg) for arg in args], number)


def load_node(env: _C.ShapeEnv, data: Any) -> Any:
    """For pickle: a node of a symbolic number."""
    number = env._number(load(env, data))
    return number.node if isinstance(number, SymInt | SymFloat | SymBool) else next(_any_node(env)).wrap_int(number)


def _any_node(env: _C.ShapeEnv) -> Any:
    for number in env.symbols.values():
        if isinstance(number, SymInt | SymFloat | SymBool):
            yield number.node


def state_of(env: _C.ShapeEnv) -> dict[str, Any]:
    """For pickle: all of an environment."""
    return {
        "options": {"duck_shape": env.duck_shape, "specialize_zero_one": env.specialize_zero_one},
        "symbols": env._symbol_rows(),
        "guards": [(dump(guard.expr), guard.op) for guard in env.guards],
        "assertions": [(dump(guard.expr), guard.op) for guard in env.runtime_assertions],
    }


def load_env(state: dict[str, Any]) -> _C.ShapeEnv:
    """For pickle: an environment from its state."""
    env = _C.ShapeEnv(**state["options"])
    env._restore_symbols(state["symbols"])
    facts = [[(load(env, expr), op) for expr, op in state[name]] for name in ("guards", "assertions")]
    env._restore_facts(*facts)
    return env


def is_native(value: object) -> bool:
    """Whether it is a symbolic number of torchfake's."""
    return isinstance(value, SymInt | SymFloat | SymBool) and isinstance(value.node, _C.SymNode)


def sym_ite(original: Callable[..., Any], pred: SymBool, then_val: Any, else_val: Any) -> Any:
    """`SymBool.__sym_ite__`, which insists on PyTorch's own nodes."""
    if not is_native(pred):
        return original(pred, then_val, else_val)
    from torch.fx.experimental.sym_node import to_node, wrap_node

    then_node, else_node = to_node(pred.node, then_val), to_node(pred.node, else_val)
    node = pred.node.sym_ite(then_node, else_node)
    return wrap_node(node) if node.constant is None else node.constant


def guarding_hint_or_throw(original: Callable[..., Any], a: Any) -> Any:
    """`symbolic_shapes.guarding_hint_or_throw`, which insists on PyTorch's own nodes."""
    if not is_native(a):
        return original(a)
    return a.node.shape_env.guarding_hint_or_throw(a.node)


def advise_is_size(original: Callable[..., Any], a: Any) -> None:
    """`symbolic_shapes._advise_is_size`, which passes over nodes that are not PyTorch's own."""
    if not is_native(a):
        original(a)
    elif a.node.shape_env.is_unbacked_symint(a.node.expr):
        a.node.shape_env._constrain_range_for_size(a.node.expr)


def is_singleton(original: Callable[..., Any], a: Any) -> bool:
    """`symbolic_shapes.has_static_value`, which asks for sympy's ranges."""
    if not is_native(a):
        return bool(original(a))
    if isinstance(a, SymInt):
        low, high = a.node.shape_env.bounds(a)
        return low is not None and low == high
    return a.node.constant is not None
