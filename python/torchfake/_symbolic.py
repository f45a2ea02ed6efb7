"""Symbolic sizes in Python: conversion to sympy, pickling, and PyTorch functions that lack support for native nodes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import SymBool, SymFloat, SymInt, Tensor
from torch.fx import Node
from torch.nested._internal import nested_tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import KeyPath, SequenceKey, key_get

from torchfake import _C
from torchfake._shape_env import fresh_name, from_sympy, geometry_of, source_name
from torchfake.errors import DynamicShapesError

if TYPE_CHECKING:
    from torchfake.modes import Mode

__all__ = ["dump", "from_sympy", "load", "load_env", "load_node", "source_name", "state_of", "to_sympy"]


def to_sympy(expr: _C.Expr) -> Any:
    """The expression in sympy, with PyTorch's functions where sympy has none. For display and for tests."""
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
    """The inverse of `dump`, in an environment that has the symbols."""
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
    """Unpickles the node of a symbolic number."""
    number = env._number(load(env, data))
    return number.node if isinstance(number, SymInt | SymFloat | SymBool) else next(_any_node(env)).wrap_int(number)


def _any_node(env: _C.ShapeEnv) -> Any:
    for number in env.symbols.values():
        if isinstance(number, SymInt | SymFloat | SymBool):
            yield number.node


def state_of(env: _C.ShapeEnv) -> dict[str, Any]:
    """The whole state of an environment, for pickle."""
    return {
        "options": {"duck_shape": env.duck_shape, "specialize_zero_one": env.specialize_zero_one},
        "symbols": env._symbol_rows(),
        "guards": [(dump(guard.expr), guard.op) for guard in env.guards],
        "assertions": [(dump(guard.expr), guard.op) for guard in env.runtime_assertions],
    }


def load_env(state: dict[str, Any]) -> _C.ShapeEnv:
    """An environment from its state, for pickle."""
    env = _C.ShapeEnv(**state["options"])
    env._restore_symbols(state["symbols"])
    facts = [[(load(env, expr), op) for expr, op in state[name]] for name in ("guards", "assertions")]
    env._restore_facts(*facts)
    return env


def is_native(value: object) -> bool:
    """Whether this is one of torchfake's symbolic numbers."""
    return isinstance(value, SymInt | SymFloat | SymBool) and isinstance(value.node, _C.SymNode)


# ---- Making sizes symbolic -------------------------------------------------------------------------------------------


def is_pytorchs(env: object) -> bool:
    """Whether this is a shape environment of PyTorch's."""
    return not isinstance(env, _C.ShapeEnv) and hasattr(env, "create_symbolic_sizes_strides_storage_offset")


def check_env(env: object) -> None:
    """Raises TypeError if `env` is not a shape environment, torchfake's or PyTorch's."""
    if env is not None and not isinstance(env, _C.ShapeEnv) and not is_pytorchs(env):
        raise TypeError(f"shape_env: expected a torchfake.ShapeEnv, or PyTorch's, got {type(env).__qualname__}")


def env_of(state: _C.ModeState) -> Any:
    """The environment of a mode, of either kind, or None."""
    return _C.shape_env_of(state) or _C.symbol_source_of(state)


def number_of(size: Any) -> int:
    """A concrete value for a size: its hint, or an example in its range."""
    if isinstance(size, int):
        return size
    hint: int | None = size.node.hint
    if hint is not None:
        return hint
    if is_native(size):
        low, high = size.node.shape_env.bounds(size)
        return max(_EXAMPLE if high is None else min(_EXAMPLE, high), 0 if low is None else low)
    return int(example_of(size.node) or 2)


def asks_for_symbol(dynamic_dim: Any) -> bool:
    """Whether a `DimDynamic` makes the size a symbol."""
    return dynamic_dim is not None and dynamic_dim.name not in ("STATIC", "INFER_STRIDE")


def make_symbolic(fake: Tensor, real: Tensor, env: Any, source: Any, context: Any) -> None:
    """Makes sizes of `fake` symbols of `env` as given by `context`; by default all. `fake` has the sizes of `real`."""
    if context is not None and not hasattr(context, "dynamic_sizes"):
        raise TypeError(
            f"from_tensor: expected a StatelessSymbolicContext as symbolic_context, got {type(context).__qualname__}"
        )
    if context is not None and len(context.dynamic_sizes) != fake.dim():
        raise ValueError(
            f"from_tensor: the symbolic_context is for {len(context.dynamic_sizes)} dimensions, and the tensor has "
            f"{fake.dim()}"
        )
    if not isinstance(env, _C.ShapeEnv):
        _make_symbolic_in_pytorchs(fake, real, env, source, context)
        return
    kinds = ["DUCK"] * fake.dim() if context is None else [kind.name for kind in context.dynamic_sizes]
    strides = () if context is None else context.dynamic_strides or ()
    if "UNBACKED" in kinds or any(kind.name not in ("STATIC", "INFER_STRIDE") for kind in strides):
        geometry = geometry_of(env, fake.shape, fake.stride(), fake.storage_offset(), source, context)
        _C.set_symbolic_geometry(fake, *geometry)
        return
    names: dict[int, str] = {}
    for dim, kind in enumerate(kinds):
        if kind == "DUCK":
            names[dim] = ""
        elif kind != "STATIC" and (fake.shape[dim] > 1 or not env.specialize_zero_one):
            names[dim] = fresh_name(env, set(names.values()))
    _C.make_symbolic(fake, env, names, source_name(source))
    for size, constraint in zip(fake.shape, () if context is None else context.constraint_sizes or (), strict=False):
        bounds = getattr(constraint, "vr", None)
        if bounds is not None and isinstance(size, SymInt):
            low, high = (int(end) if end.is_Integer else None for end in (bounds.lower, bounds.upper))
            env.constrain_range(size, low, high)


def names_of_dims(dynamic: object, rank: int) -> dict[int, str]:
    """The argument `dynamic` of `from_tensor` and `to_fake`: the names of the symbols by dimension."""
    if not isinstance(dynamic, Iterable) or isinstance(dynamic, str):
        raise TypeError(
            f"dynamic: expected dimensions, or a mapping of them to names, got {type(dynamic).__qualname__} {dynamic!r}"
        )
    names = dict(dynamic) if isinstance(dynamic, Mapping) else dict.fromkeys(dynamic, "")
    found: dict[int, int] = {}
    for dim, name in names.items():
        if not isinstance(dim, int) or not isinstance(name, str):
            raise TypeError(f"dynamic: expected an int as dimension and a str as name, got {dim!r}: {name!r}")
        if found.setdefault(dim % rank if -rank <= dim < rank else dim, dim) != dim:
            raise ValueError(f"dynamic: {found[dim % rank]} and {dim} are the same dimension")
    return names


def name_sizes(fake: Tensor, env: object, names: dict[int, str], source: object, caller: str) -> None:
    """Makes these sizes of `fake` symbols of `env` with these names."""
    if not isinstance(env, _C.ShapeEnv):
        raise DynamicShapesError(
            f"{caller}: `dynamic` names symbols of a torchfake.ShapeEnv; with PyTorch's, give a symbolic_context."
        )
    _C.make_symbolic(fake, env, names, source_name(source))


def _make_symbolic_in_pytorchs(fake: Tensor, real: Tensor, env: Any, source: Any, context: Any) -> None:
    from torch._dynamo.source import ConstantSource

    if source is None:
        source = ConstantSource(f"__torchfake_unknown_tensor{next(_UNKNOWN)}")
    geometry = env.create_symbolic_sizes_strides_storage_offset(real, source, symbolic_context=context)
    _C.set_symbolic_geometry(fake, *geometry)


_UNKNOWN = itertools.count()


def remember_item(fake: Tensor, real: Tensor, env: Any, source: Any, context: Any) -> None:
    """Makes the value of a scalar a symbol with a hint, as PyTorch does: integers, and floats without rounding."""
    has_symbol = real.dim() == 0 and real.device.type == "cpu" and real.dtype in (torch.int64, torch.float64)
    if not has_symbol or isinstance(env, _C.ShapeEnv) or _C.is_plain_fake(real) or type(real) is not Tensor:
        return
    from torch._dynamo.source import CallMethodItemSource, FloatTensorSource, RandomValueSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic

    value = real.item()
    if isinstance(source, RandomValueSource) or not math.isfinite(value):
        return
    item_source = source.base if isinstance(source, FloatTensorSource) else CallMethodItemSource(source)
    symbol = env.create_unspecified_symbol(
        value, source=item_source, dynamic_dim=DimDynamic.DYNAMIC, symbolic_context=context
    )
    create = env.create_symintnode if real.dtype is torch.int64 else env.create_symfloatnode
    _C.set_memo(fake, "item", create(symbol, hint=value, source=item_source))


def fake_of_meta(elem: Tensor, device: torch.device | str, mode: Mode) -> Tensor:
    """The fake of a plain meta tensor, whose symbolic sizes are those of the mode's environment."""
    claimed = torch.device(device)
    if not elem._has_symbolic_sizes_strides:
        return _C.from_meta_and_device(elem, claimed, mode._state)
    geometry = tuple(elem.shape), elem.stride(), elem.storage_offset()
    for number in (*geometry[0], *geometry[1], geometry[2]):
        if isinstance(number, SymInt) and getattr(number.node, "shape_env", None) is not mode.shape_env:
            raise DynamicShapesError(
                f"FakeTensor: the size {number} belongs to another ShapeEnv than the mode's; give both the same one."
            )
    sizes, strides = ([number_of(each) for each in numbers] for numbers in geometry[:2])
    plain = torch.empty_strided(sizes, strides, dtype=elem.dtype, device="meta")
    fake = _C.from_meta_and_device(plain, claimed, mode._state)
    _C.set_symbolic_geometry(fake, *geometry)
    return fake


def convert_ragged(mode: Mode, t: Any, convert: Callable[[Tensor], Tensor]) -> Tensor:
    """The fake of the offsets, or lengths, of a jagged tensor, with the nested integer that stands for its sizes.

    Equal offsets share it: their fakes are the same tensor. It is a symbol if the mode's environment is PyTorch's.
    """
    ragged = t._offsets if t._lengths is None else t._lengths
    fake = convert(ragged)
    known = nested_tensor._tensor_symint_registry
    if fake is not ragged and known.get(fake) is None:  # type: ignore[no-untyped-call]
        number = nested_tensor.get_tensor_symint(ragged)  # type: ignore[no-untyped-call]
        is_plain = number.node.nested_int() is not None
        is_symbolic = mode.shape_env is not None and not isinstance(mode.shape_env, _C.ShapeEnv)
        known[fake] = nested_symbol(mode.shape_env, number) if is_plain and is_symbolic else number
    return fake


def nested_symbol(env: Any, nested_int: SymInt) -> SymInt:
    """A symbol of one of PyTorch's environments with a nested integer as its hint."""
    from torch._dynamo.source import EphemeralSource

    source = EphemeralSource("intermediate_offsets_or_lengths")
    symbol = env.create_symbol(val=nested_int, source=source)
    number: SymInt = env.create_symintnode(sym=symbol, hint=nested_int, source=source)
    return number


#: The same example size as in the engine.
_EXAMPLE = 5040


def example_of(node: Any) -> int | float | bool | None:
    """An example value for one of PyTorch's own numbers without a hint: its optimization hint, or one in its range."""
    env = node.shape_env
    if env is None or not hasattr(env, "var_to_range"):
        return None
    values = {}
    expr = env.replace(node.expr)
    for symbol in expr.free_symbols:
        hint = env.backed_var_to_val.get(symbol, getattr(env, "var_to_hint_override", {}).get(symbol))
        bounds = env.var_to_range.get(symbol)
        if hint is None and bounds is not None and bounds.is_int:
            hint = int(max(min(_EXAMPLE, bounds.upper), bounds.lower))
        values[symbol] = 0.5 if hint is None else hint
    return node.pytype(expr.xreplace(values))  # type: ignore[no-any-return]


# Called by the engine for data-dependent sizes and values if the environment is PyTorch's own.


def gives_sizes(env: Any) -> bool:
    """Whether sizes that depend on data may be symbols."""
    return bool(env.allow_dynamic_output_shape_ops)


def gives_values(env: Any) -> bool:
    """Whether values may be symbols."""
    return bool(env.allow_scalar_outputs)


def new_size(env: Any, low: int, high: int | None) -> Any:
    """A new size between these bounds."""
    from torch._library.fake_impl import allocate_size

    return allocate_size(env, low, high)  # type: ignore[no-untyped-call]


def new_integer(env: Any) -> Any:
    """A new value."""
    return env.create_unbacked_symint()


def new_float(env: Any) -> Any:
    """A new value."""
    return env.create_unbacked_symfloat()


def new_boolean(env: Any) -> Any:
    """A new value."""
    return env.create_unbacked_symbool()


def sym_ite(original: Callable[..., Any], pred: SymBool, then_val: Any, else_val: Any) -> Any:
    """`SymBool.__sym_ite__`, which only accepts PyTorch's own nodes."""
    if not is_native(pred):
        return original(pred, then_val, else_val)
    from torch.fx.experimental.sym_node import to_node, wrap_node

    then_node, else_node = to_node(pred.node, then_val), to_node(pred.node, else_val)
    node = pred.node.sym_ite(then_node, else_node)
    return wrap_node(node) if node.constant is None else node.constant


def guarding_hint_or_throw(original: Callable[..., Any], a: Any) -> Any:
    """`symbolic_shapes.guarding_hint_or_throw`, which only accepts PyTorch's own nodes."""
    if not is_native(a):
        return original(a)
    return a.node.shape_env.guarding_hint_or_throw(a.node)


def advise_is_size(original: Callable[..., Any], a: Any) -> None:
    """`symbolic_shapes._advise_is_size`, which ignores nodes that are not PyTorch's own."""
    if not is_native(a):
        original(a)
    elif a.node.shape_env.is_unbacked_symint(a.node.expr):
        a.node.shape_env._constrain_range_for_size(a.node.expr)


def compute_unbacked_bindings(
    original: Callable[..., Any], shape_env: Any, example_value: Any, old_example_value: Any = None, peek: bool = False
) -> dict[Any, KeyPath] | None:
    """`symbolic_shapes.compute_unbacked_bindings`: the positions in a result of the symbols created for it."""
    if not isinstance(shape_env, _C.ShapeEnv):
        return original(shape_env, example_value, old_example_value, peek)  # type: ignore[no-any-return]
    pending = set(shape_env.pending_fresh_unbacked_symbols if peek else shape_env._take_pending())
    if not pending:
        return None
    bindings: dict[Any, KeyPath] = {}
    _find_bindings(example_value, (), pending, bindings)
    if pending and not peek:
        from torch.fx.experimental.symbolic_shapes import PendingUnbackedSymbolNotFound

        names = ", ".join(sorted(str(symbol) for symbol in pending))
        raise PendingUnbackedSymbolNotFound(
            f"Pending unbacked symbols {{{names}}} not in returned outputs {example_value}. A fake implementation "
            "called new_dynamic_size() or item() more often than its result needs; use "
            "`with shape_env.ignore_fresh_unbacked_symbols()` for symbols that nobody binds."
        )
    if old_example_value is not None:
        for path in bindings.values():
            _bind_again(shape_env, key_get(example_value, path), key_get(old_example_value, path))
    return bindings


def free_unbacked_symbols_with_path(
    original: Callable[..., dict[Any, KeyPath]], a: Any, path: KeyPath, real: Any = None, **options: Any
) -> dict[Any, KeyPath]:
    """`symbolic_shapes._free_unbacked_symbols_with_path`, which takes no tensors but PyTorch's fakes."""
    if not (isinstance(a, Tensor) and _C.is_plain_fake(a)):
        return original(a, path, real, **options)
    from torch.fx.experimental.symbolic_shapes import CallMethodKey

    known = getattr(a, "real_tensor", None)
    found: dict[Any, KeyPath] = {}
    for method in ("size", "stride", "storage_offset"):
        value = None if known is None else getattr(known, method)()
        found.update(original(getattr(a, method)(), (*path, CallMethodKey(method)), value, **options))
    return found


def set_unbacked_bindings(original: Callable[..., None], out: Any, out_proxy: Any) -> None:
    """`proxy_tensor._set_unbacked_bindings`, which asks PyTorch's mode alone for its environment."""
    original(out, out_proxy)
    from torch.fx.experimental.symbolic_shapes import ShapeEnv, compute_unbacked_bindings

    from torchfake.modes import current_mode

    env = getattr(current_mode(), "shape_env", None)
    if not isinstance(env, ShapeEnv):
        return
    found = compute_unbacked_bindings(env, out, peek=True)
    if found:
        pending = env.pending_fresh_unbacked_symbols
        pending[:] = [symbol for symbol in pending if symbol not in found]
        out_proxy.node.meta["unbacked_bindings"] = found


def _find_bindings(value: Any, path: KeyPath, pending: set[Any], bindings: dict[Any, KeyPath]) -> None:
    """Moves the symbols that are found in `value` from `pending` to `bindings`."""
    from torch.fx.experimental.symbolic_shapes import CallMethodKey, InnerTensorKey

    if isinstance(value, tuple | list):
        for i, each in enumerate(value):
            _find_bindings(each, (*path, SequenceKey(i)), pending, bindings)
    elif isinstance(value, Tensor) and is_traceable_wrapper_subclass(value):
        for name in value.__tensor_flatten__()[0]:
            _find_bindings(getattr(value, name), (*path, InnerTensorKey(name)), pending, bindings)
    elif isinstance(value, Tensor):
        _find_bindings(tuple(value.size()), (*path, CallMethodKey("size")), pending, bindings)
        if value.layout is torch.strided:
            _find_bindings(value.stride(), (*path, CallMethodKey("stride")), pending, bindings)
            _find_bindings(value.storage_offset(), (*path, CallMethodKey("storage_offset")), pending, bindings)
    elif is_native(value):
        found = _bound_symbol(value.node._expr, pending)
        if found is not None:
            symbol, keys = found
            pending.remove(symbol)
            bindings[symbol] = (*path, *keys)


def _bound_symbol(expr: _C.Expr, pending: set[Any]) -> tuple[Any, KeyPath] | None:
    """The pending symbol that determines this expression, and how it is derived from the value."""
    from torch.fx.experimental.symbolic_shapes import ConvertIntKey, DivideByKey

    if expr in pending:
        return expr, ()
    # A number times a symbol: the symbol is the quotient.
    if expr.op == "sum" and expr.number == 0 and len(expr.args) == 1 and expr.args[0] in pending:
        return expr.args[0], (DivideByKey(expr.coefficients[0]),)
    # A boolean symbol is an integer symbol compared with 1.
    if expr.op == "eq":
        symbols = expr.free_symbols & pending
        if len(symbols) == 1 and str(expr) == f"{next(iter(symbols))} == 1":
            return next(iter(symbols)), (ConvertIntKey(),)
    return None


def _bind_again(env: _C.ShapeEnv, new: Any, old: Any) -> None:
    """Replaces the symbol of a second trace by that of the first."""
    if not is_native(new) or not new.node.expr.is_symbol or new.node.hint is not None:
        return
    if is_native(old) and old.node.expr != new.node.expr and env.is_unbacked_symint(old.node.expr):
        env._rename_unbacked_to(new.node.expr, old.node.expr)
    elif not is_native(old) or old.node.expr != new.node.expr:
        torch._check(new == old)  # type: ignore[no-untyped-call]


def rebind_unbacked(original: Callable[..., Any], shape_env: Any, n: Node, result: Any) -> None:
    """`symbolic_shapes.rebind_unbacked`: gives the symbols of a result the names from the previous run of `n`."""
    if not isinstance(shape_env, _C.ShapeEnv):
        original(shape_env, n, result)
        return
    if n.op == "placeholder":
        return
    for earlier, path in (n.meta.get("unbacked_bindings") or {}).items():
        if not isinstance(earlier, _C.Expr) or earlier.shape_env is not shape_env:
            continue  # belongs to another environment, where the names are meaningless
        value = key_get(result, path)
        if not is_native(value) or value.node.hint is not None:
            continue
        symbol = value.node._expr
        if symbol == earlier:
            raise AssertionError(
                f"rebind_unbacked: {n.format_node()} returned the symbol {earlier} again; advance the epoch of the "
                "mode before a graph is traced again."
            )
        if symbol.is_symbol:
            shape_env._rename_unbacked_to(symbol, earlier)


def constrain_range_for_size(
    original: Callable[..., Any], a: Any, min: int | None = None, max: int | None = None
) -> None:
    """`symbolic_shapes._constrain_range_for_size`, which requires a sympy symbol."""
    if not is_native(a):
        original(a, min, max)
    else:
        a.node.shape_env._constrain_range_for_size(a.node.expr, min, max)


def is_singleton(original: Callable[..., Any], a: Any) -> bool:
    """`symbolic_shapes.has_static_value`, which requires sympy's ranges."""
    if not is_native(a):
        return bool(original(a))
    if isinstance(a, SymInt):
        low, high = a.node.shape_env.bounds(a)
        return low is not None and low == high
    return a.node.constant is not None
