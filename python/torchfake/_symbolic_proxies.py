"""Records expressions of torchfake's symbols in the graphs that PyTorch's tracer writes.

PyTorch's nodes tell the tracer about each operation on them. Those of the engine do not: when the tracer meets a number
that it does not know, the operations that lead from the symbols it knows to its expression are recorded.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import SymBool, SymFloat, SymInt

from torchfake import _C

__all__ = ["build_proxy"]

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "min": torch.sym_min,
    "max": torch.sym_max,
    "pow": operator.pow,
    "bit_and": operator.and_,
    "bit_or": operator.or_,
    "bit_xor": operator.xor,
    "shift_left": operator.lshift,
    "shift_right": operator.rshift,
    "floor": math.floor,
    "ceil": math.ceil,
    "trunc": math.trunc,
    "round": round,
    "to_float": torch.sym_float,
    "truediv": operator.truediv,
    "float_add": operator.add,
    "float_sub": operator.sub,
    "float_mul": operator.mul,
    "float_div": operator.truediv,
    "float_mod": operator.mod,
    "float_pow": operator.pow,
    "float_min": torch.sym_min,
    "float_max": torch.sym_max,
    "float_lt": operator.lt,
    "float_le": operator.le,
    "float_eq": operator.eq,
    "and": operator.and_,
    "or": operator.or_,
    "not": torch.sym_not,
    "ite": torch.sym_ite,
}
_NUMBERS: dict[type, Callable[..., Any]] = {int: SymInt, float: SymFloat, bool: SymBool}
#: Comparisons with zero.
_COMPARISONS: dict[str, Callable[..., Any]] = {"le": operator.le, "eq": operator.eq, "ne": operator.ne}
_ASSOCIATIVE = {"min", "max", "and", "or", "float_min", "float_max"}


class _UnknownSymbolError(Exception):
    """The tracer knows no number that is this symbol, or a function cannot be recorded."""


def build_proxy(original: Callable[..., Any], tracer: Any, expr: Any, out: Any = None) -> Any:
    """`proxy_tensor._build_proxy_for_sym_expr`: records how `expr` follows from what the tracer knows, as `out`."""
    if not isinstance(expr, _C.Expr):
        return original(tracer, expr, out)
    try:
        built = _Recorder(tracer, expr.shape_env).build(expr)
    except _UnknownSymbolError:
        return None
    if out is not None and isinstance(built, SymInt | SymFloat | SymBool):
        from torch.fx.experimental.proxy_tensor import get_proxy_slot, set_proxy_slot

        set_proxy_slot(out, tracer, get_proxy_slot(built, tracer))
    return built


def _known(tracer: Any) -> dict[_C.Expr, Any]:
    """The numbers that the tracer knows, by expression. Only those that are new since the last time are looked at."""
    index: dict[_C.Expr, Any]
    seen, index = vars(tracer).get("_torchfake_known", (0, {}))
    nodes = tracer.symnode_tracker.sym_node_dict
    for node in itertools.islice(nodes, seen, None):
        if isinstance(node, _C.SymNode):
            index.setdefault(node.expr, _NUMBERS[node.pytype](node))
    vars(tracer)["_torchfake_known"] = len(nodes), index
    return index


class _Recorder:
    def __init__(self, tracer: Any, env: _C.ShapeEnv) -> None:
        self._tracer = tracer
        self._env = env

    def build(self, expr: _C.Expr) -> Any:
        """A number that the tracer knows, with this expression."""
        if expr.is_number or expr.is_Boolean:
            return self._env._number(expr)
        known = self._find(expr)
        if known is not None:
            return known
        if expr.op == "symbol":
            raise _UnknownSymbolError
        args = [self.build(arg) for arg in expr.args]
        if expr.op == "sum":
            terms = [
                self._call(operator.mul, arg, c) if c != 1 else arg
                for c, arg in zip(expr.coefficients, args, strict=True)
            ]
            return functools.reduce(self._add, terms + ([expr.number] if expr.number else []))
        if expr.op == "product":
            factors = [
                self._call(operator.pow, arg, power) if power != 1 else arg
                for power, arg in zip(expr.coefficients, args, strict=True)
            ]
            return functools.reduce(functools.partial(self._call, operator.mul), factors)
        if expr.op in _COMPARISONS:
            return self._call(_COMPARISONS[expr.op], args[0], 0)
        if expr.op == "float_function":
            return self._call(self._float_function(expr.function), *args)
        if expr.op not in _FUNCTIONS:
            raise _UnknownSymbolError
        function = _FUNCTIONS[expr.op]
        if expr.op in _ASSOCIATIVE:
            return functools.reduce(functools.partial(self._call, function), args)
        return self._call(function, *args)

    def _find(self, expr: _C.Expr) -> Any:
        """A number with this expression that the tracer knows, or None."""
        tracked = self._tracer.sympy_expr_tracker.get(expr)
        if tracked is not None:
            return tracked.value
        known = _known(self._tracer)
        if expr in known or expr.op != "symbol":
            return known.get(expr)
        # Known under another name from before the two were known to be equal.
        simplify = self._env.simplify
        same = (
            number for each, number in known.items() if each.shape_env is self._env and simplify(each) == simplify(expr)
        )
        return next(same, None)

    def _add(self, a: Any, b: Any) -> Any:
        return self._call(operator.add, a, b)

    def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        from torch.fx.experimental.proxy_tensor import _sym_register

        out = function(*args)
        if not isinstance(out, SymInt | SymFloat | SymBool):
            return out
        known = self._find(out.node.expr)
        if known is None:
            _sym_register(self._tracer, function, args, out)  # type: ignore[arg-type]
        return out if known is None else known

    @staticmethod
    def _float_function(name: str) -> Callable[..., Any]:
        if name in ("neg", "abs"):
            return operator.neg if name == "neg" else operator.abs
        return getattr(torch, f"_sym_{name}")  # type: ignore[no-any-return]
