"""PyTorch's `ShapeEnv` interface for torchfake's environment, and sympy's for its expressions.

Programs and PyTorch's `symbolic_shapes.py` use an environment by duck typing. This module provides what they need in
addition to the bindings. Operators call none of it.
"""

from __future__ import annotations

import ast
import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import SymBool, SymFloat, SymInt

from torchfake import _C
from torchfake.errors import DynamicShapesError

__all__ = ["from_sympy", "geometry_of", "source_name"]


def source_name(source: Any) -> str:
    """The text of a `torch._guards.Source` or a substitute."""
    name = getattr(source, "name", source)
    name = name() if callable(name) else name
    return "" if name is None else str(name)


def fresh_name(env: _C.ShapeEnv, taken: set[str]) -> str:
    """The first of s0, s1, … that is neither a symbol nor in `taken`."""
    known = env.symbols.keys() | taken
    return next(name for name in map("s{}".format, itertools.count()) if name not in known)


def _expr(env: _C.ShapeEnv, number: Any) -> _C.Expr:
    """The expression of a symbolic number or a constant."""
    if isinstance(number, SymInt | SymFloat | SymBool):
        return number.node._expr  # type: ignore[no-any-return]
    return env._build("constant", [], number)


def _kind(dynamic_dim: Any) -> str:
    return "DUCK" if dynamic_dim is None else str(dynamic_dim.name)


# ---- Creating symbols ------------------------------------------------------------------------------------------------


def create_symbol(
    env: _C.ShapeEnv,
    val: Any,
    source: Any = None,
    dynamic_dim: Any = None,
    constraint_dim: Any = None,
    positive: bool | None = True,
    do_not_specialize_zero_one: bool = False,
    symbolic_context: Any = None,
) -> _C.Expr:
    """The expression of a symbol with the value `val`: an integer, float or bool.

    `dynamic_dim` is a `DimDynamic`; `positive=None` allows negative integers, and 0 and 1 as values.
    """
    kind, name = _kind(dynamic_dim), source_name(source)
    if isinstance(val, bool):
        return _expr(env, env.create_symbool(val, source=name))
    if isinstance(val, float):
        return _expr(env, env.create_symfloat(val, source=name))
    if not isinstance(val, int):
        raise TypeError(f"create_symbol: expected an int, float or bool as the value, got {type(val).__qualname__}")
    if kind == "STATIC":
        return _expr(env, val)
    if kind == "UNBACKED":
        symbol = _expr(env, env.create_unbacked_symint(source=name))
        env._constrain_range_for_size(symbol)
    elif positive is None or val < 0 or (val < 2 and do_not_specialize_zero_one):
        symbol = env._create_integer(val, "", name)
        if val >= 0 and positive is not None:
            env._constrain_range(symbol, 0, None)
    elif kind == "DUCK" or (val < 2 and env.specialize_zero_one):
        symbol = _expr(env, env.create_symint(val, source=name))
    else:
        symbol = _expr(env, env.create_symint(val, fresh_name(env, set()), name))
    bounds = getattr(constraint_dim, "vr", None)
    if bounds is not None and not symbol.is_number:
        low, high = (int(end) if end.is_Integer else None for end in (bounds.lower, bounds.upper))
        env._constrain_range(symbol, low, high)
    return symbol


def create_unspecified_symbol(
    env: _C.ShapeEnv,
    val: Any,
    source: Any = None,
    dynamic_dim: Any = None,
    constraint_dim: Any = None,
    symbolic_context: Any = None,
) -> _C.Expr:
    """`create_symbol` for a number that is not a size: it may be negative, 0 or 1, and never shares a symbol."""
    return create_symbol(env, val, source, dynamic_dim, constraint_dim, None, True, symbolic_context)


def create_unspecified_symint_and_symbol(env: _C.ShapeEnv, value: Any, source: Any, dynamic_dim: Any) -> Any:
    """`create_unspecified_symbol` as a symbolic number."""
    return env._number(create_unspecified_symbol(env, value, source, dynamic_dim))


def create_node(env: _C.ShapeEnv, sym: Any, *, hint: Any = None, source: Any = None) -> Any:
    """The symbolic number of an expression; a plain number if it is constant."""
    return env._number(sym)


# ---- Sizes, strides and the storage offset of a tensor ---------------------------------------------------------------


def geometry_of(
    env: _C.ShapeEnv,
    sizes: Sequence[Any],
    strides: Sequence[Any],
    offset: Any,
    source: Any = None,
    context: Any = None,
) -> tuple[tuple[Any, ...], tuple[Any, ...], Any]:
    """Sizes, strides and storage offset with symbols as given by `context`; by default equal sizes share one.

    A stride that is the product of a size and another stride is expressed as that product; other strides and the offset
    are separate symbols if any size is a symbol.
    """
    rank = len(sizes)
    kinds = ["DUCK"] * rank if context is None else [kind.name for kind in context.dynamic_sizes]
    if len(kinds) != rank:
        raise ValueError(f"symbolic_context: the context has {len(kinds)} dimensions, but the tensor has {rank}")
    constraints = [None] * rank if context is None else list(context.constraint_sizes or [None] * rank)
    name = source_name(source)

    def size(dim: int) -> Any:
        bounds = constraints[dim]
        kind = None if context is None else context.dynamic_sizes[dim]
        return env._number(create_symbol(env, sizes[dim], f"{name}.size()[{dim}]", kind, bounds))

    new_sizes = [size(dim) for dim in range(rank)]
    stride_kinds = [None] * rank if context is None else context.dynamic_strides or [None] * rank
    new_strides: list[Any] = list(strides)
    order = sorted(range(rank), key=lambda dim: (strides[dim], -dim))
    is_symbolic = not all(isinstance(each, int) for each in new_sizes)
    for place, dim in enumerate(order):
        kind = "INFER_STRIDE" if stride_kinds[dim] is None else _kind(stride_kinds[dim])
        inner = (
            other
            for other in reversed(order[:place])
            if sizes[other] > 1 and strides[dim] == sizes[other] * strides[other] and strides[dim] > 1
        )
        match = next(inner, None) if kind == "INFER_STRIDE" else None
        if match is not None:
            new_strides[dim] = new_sizes[match] * new_strides[match]
        elif kind not in ("STATIC", "INFER_STRIDE"):
            symbol = create_symbol(env, strides[dim], f"{name}.stride()[{dim}]", stride_kinds[dim])
            new_strides[dim] = env._number(symbol)
    new_offset = (
        env._number(create_symbol(env, offset, f"{name}.storage_offset()")) if offset and is_symbolic else offset
    )
    return tuple(new_sizes), tuple(new_strides), new_offset


def create_symbolic_sizes_strides_storage_offset(
    env: _C.ShapeEnv, ex: torch.Tensor, source: Any, *, symbolic_context: Any = None
) -> tuple[tuple[Any, ...], tuple[Any, ...], Any]:
    """Sizes, strides and storage offset of `ex` as symbols."""
    from torchfake._symbolic import number_of

    if not isinstance(ex, torch.Tensor):
        raise TypeError(f"create_symbolic_sizes_strides_storage_offset: expected a tensor, got {type(ex).__qualname__}")
    sizes = [number_of(each) for each in ex.shape]
    strides = [number_of(each) for each in ex.stride()]
    return geometry_of(env, sizes, strides, number_of(ex.storage_offset()), source, symbolic_context)


# ---- Deciding --------------------------------------------------------------------------------------------------------


def evaluate_expr(
    env: _C.ShapeEnv,
    orig_expr: Any,
    hint: Any = None,
    fx_node: Any = None,
    size_oblivious: bool = False,
    fallback_value: bool | None = None,
    *,
    forcing_spec: bool = False,
) -> Any:
    """The value of an expression, recorded as a guard if the known facts do not determine it."""
    number = env._number(orig_expr)
    if not isinstance(number, SymInt | SymFloat | SymBool):
        return number
    return env.evaluate_sym_node(number.node, size_oblivious, fallback_value)


def guard_or_defer_runtime_assert(env: _C.ShapeEnv, orig_expr: Any, msg: str, fx_node: Any = None) -> bool:
    """Records that a condition holds: as a guard, or, if it depends on symbols without a hint, as an assertion."""
    condition = env._number(orig_expr)
    return bool(condition.node.expect_true("", 0) if isinstance(condition, SymBool) else condition)


def constrain_unify(env: _C.ShapeEnv, a: Any, b: Any) -> None:
    """Asserts that two integers are equal."""
    torch._check(a == b)  # type: ignore[no-untyped-call]


def has_guarding_hint(env: _C.ShapeEnv, expr: Any) -> bool:
    """Whether an expression has a value at the hints."""
    return size_hint(env, expr, allow_none=True) is not None


def size_hint(env: _C.ShapeEnv, expr: Any, *, allow_none: bool = False) -> Any:
    """The value of an expression at the hints; None or an error without one."""
    number = env._number(expr)
    value = number.node.hint if isinstance(number, SymInt | SymFloat | SymBool) else number
    return value if allow_none or value is not None else env.guarding_hint_or_throw(expr)


def bound_sympy(env: _C.ShapeEnv, expr: Any, size_oblivious: bool = False) -> Any:
    """The range of an integer expression, as PyTorch's `ValueRanges`."""
    from torch.utils._sympy.numbers import int_oo
    from torch.utils._sympy.value_ranges import ValueRanges

    low, high = env.bounds(expr)
    return ValueRanges(-int_oo if low is None else low, int_oo if high is None else high)


def constrain_symbol_range(env: _C.ShapeEnv, s: Any, compiler_min: int, compiler_max: int) -> None:
    """Sets the bounds of a symbol; PyTorch's infinities mean unbounded."""
    env._constrain_range(s, compiler_min, compiler_max)


# ---- What is known ---------------------------------------------------------------------------------------------------


def _symbols(env: _C.ShapeEnv) -> list[_C.Expr]:
    """The symbols themselves, not replaced by what they are known to equal."""
    return [_expr(env, number) for number in env.symbols.values()]


def backed_var_to_val(env: _C.ShapeEnv) -> dict[_C.Expr, Any]:
    """The hints of the symbols that have one."""
    hints = {name: hint for name, *_, hint in env._symbol_rows()}
    return {symbol: hints[str(symbol)] for symbol in _symbols(env) if hints[str(symbol)] is not None}


def var_to_range(env: _C.ShapeEnv) -> dict[_C.Expr, Any]:
    """The ranges of the integer symbols, as PyTorch's `ValueRanges`."""
    return {s: bound_sympy(env, s) for s in _symbols(env) if isinstance(env._number(s), SymInt)}


def replacements(env: _C.ShapeEnv) -> dict[_C.Expr, _C.Expr]:
    """The symbols that are known to equal another expression, and that expression."""
    simple = {symbol: env.simplify(symbol) for symbol in _symbols(env)}
    return {symbol: to for symbol, to in simple.items() if to != symbol}


def deferred_runtime_asserts(env: _C.ShapeEnv) -> dict[_C.Expr | None, list[_C.Guard]]:
    """The assertions to check at run time, by the last created of their symbols without a hint."""
    order = {symbol: place for place, symbol in enumerate(_symbols(env))}
    result: dict[_C.Expr | None, list[_C.Guard]] = {}
    for assertion in env.runtime_assertions:
        unbacked = [symbol for symbol in assertion.expr.free_symbols if env.is_unbacked_symint(symbol)]
        result.setdefault(max(unbacked, key=order.__getitem__, default=None), []).append(assertion)
    return result


# ---- Guards as text --------------------------------------------------------------------------------------------------


def _require_list(name: str, values: object) -> None:
    if not isinstance(values, list | tuple):
        raise TypeError(f"{name}: expected a list or tuple of arguments, got {type(values).__name__}")


def produce_guards_expression(
    env: _C.ShapeEnv, placeholders: Sequence[Any], *, guards: Any = None, ignore_static: bool = True
) -> str | None:
    """The guards as text over these arguments, for `evaluate_guards_expression`; None if there are no guards.

    Raises:
        DynamicShapesError: A guard contains a symbol that is not among the arguments.
    """
    from torchfake._symbolic import dump

    _require_list("produce_guards_expression", placeholders)
    names = [str(each.node._expr) if isinstance(each, SymInt | SymFloat | SymBool) else "" for each in placeholders]
    listed = [
        guard
        for guard in (env.guards if guards is None else guards)
        if guards is not None or any(str(symbol) in names for symbol in guard.expr.free_symbols)
    ]
    for guard in listed:
        missing = sorted(str(symbol) for symbol in guard.expr.free_symbols if str(symbol) not in names)
        if missing:
            raise DynamicShapesError(
                f"produce_guards_expression: the guard `{guard}` contains {', '.join(missing)}, not an argument."
            )
    return repr((names, [dump(guard.expr) for guard in listed])) if listed else None


def evaluate_guards_expression(env: _C.ShapeEnv, code: str, args: Sequence[Any]) -> bool:
    """Whether the guards of `produce_guards_expression`, of any environment, hold for these arguments."""
    from torchfake._symbolic import load

    _require_list("evaluate_guards_expression", args)
    names, guards = ast.literal_eval(code)
    if len(names) != len(args):
        raise ValueError(f"evaluate_guards_expression: expected {len(names)} arguments, got {len(args)}")
    values = {name: value for name, value in zip(names, args, strict=True) if name}
    scratch = _C.ShapeEnv(duck_shape=False, specialize_zero_one=False)
    for name, value in values.items():
        if isinstance(value, bool):
            scratch.create_symbool(value, name)
        elif isinstance(value, float):
            scratch.create_symfloat(value, name)
        else:
            scratch._create_integer(value, name, "")
    return all(scratch.evaluate(load(scratch, guard), values) for guard in guards)


# ---- Expressions -----------------------------------------------------------------------------------------------------


def from_sympy(env: _C.ShapeEnv, expr: Any) -> _C.Expr:
    """The expression of a sympy one, whose symbols are those of `env` by name.

    Raises:
        DynamicShapesError: `env` has no symbol of that name.
    """
    from torch.utils._sympy.interp import sympy_interp
    from torch.utils._sympy.reference import PythonReferenceAnalysis

    known = env.symbols
    symbols = {}
    for symbol in expr.free_symbols:
        if str(symbol) not in known:
            raise DynamicShapesError(f"ShapeEnv: `{expr}` has the symbol {symbol}, which is not one of this ShapeEnv.")
        symbols[symbol] = known[str(symbol)]
    return _expr(env, sympy_interp(PythonReferenceAnalysis, symbols, expr))


def _binary(function: Callable[[Any, Any], Any], *, reflected: bool = False) -> Callable[[Any, Any], Any]:
    def apply(a: _C.Expr, b: Any) -> Any:
        if not isinstance(b, _C.Expr | int | float):
            return NotImplemented
        env = a.shape_env
        pair = env._number(a), env._number(b)
        return _expr(env, function(*(reversed(pair) if reflected else pair)))

    return apply


_OF_EXPRESSIONS: dict[str, Any] = {
    **{f"__{name}__": _binary(getattr(operator, name)) for name in ("add", "sub", "mul", "floordiv", "mod")},
    **{f"__{name}__": _binary(getattr(operator, name)) for name in ("lt", "le", "gt", "ge")},
    **{
        f"__r{name}__": _binary(getattr(operator, name), reflected=True)
        for name in ("add", "sub", "mul", "floordiv", "mod")
    },
    "__neg__": lambda expr: expr * -1,
    "is_Integer": property(lambda expr: expr.op == "int"),
    "is_integer": property(lambda expr: _is_integer(expr)),
}


def _is_integer(expr: _C.Expr) -> bool:
    number = expr.shape_env._number(expr)
    return isinstance(number, SymInt | int) and not isinstance(number, bool)


_OF_ENVIRONMENTS: dict[str, Any] = {
    "_constrain_unify": constrain_unify,
    "backed_var_to_val": property(backed_var_to_val),
    "bound_sympy": bound_sympy,
    "constrain_symbol_range": constrain_symbol_range,
    "create_symbol": create_symbol,
    "create_symbolic_sizes_strides_storage_offset": create_symbolic_sizes_strides_storage_offset,
    "create_symboolnode": create_node,
    "create_symfloatnode": create_node,
    "create_symintnode": create_node,
    "create_unspecified_symbol": create_unspecified_symbol,
    "create_unspecified_symint_and_symbol": create_unspecified_symint_and_symbol,
    "deferred_runtime_asserts": property(deferred_runtime_asserts),
    "evaluate_expr": evaluate_expr,
    "evaluate_guards_expression": evaluate_guards_expression,
    "guard_or_defer_runtime_assert": guard_or_defer_runtime_assert,
    "has_guarding_hint": has_guarding_hint,
    "produce_guards_expression": produce_guards_expression,
    "replacements": property(replacements),
    "size_hint": size_hint,
    "var_to_range": property(var_to_range),
}


def extend() -> None:
    """Gives the classes of the engine PyTorch's names."""
    for name, value in _OF_ENVIRONMENTS.items():
        setattr(_C.ShapeEnv, name, value)
    for name, value in _OF_EXPRESSIONS.items():
        setattr(_C.Expr, name, value)
    # Like PyTorch's named tuples: the expression, where it was evaluated, and whether sizes were assumed to be large.
    setattr(_C.Guard, "__getitem__", lambda guard, place: (guard.expr, guard.op, False)[place])  # noqa: B010
