"""Tracers, the compiler and operators defined in Python: `make_fx`, `torch.export`, `cond`, custom operators."""

from __future__ import annotations

import builtins
import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, _ops
from torch._higher_order_ops.cond import cond_op
from torch._higher_order_ops.while_loop import while_loop_op, while_loop_stack_output_op
from torch._library import fake_impl, simple_registry
from torch.storage import UntypedStorage
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from torchfake import _C
from torchfake._explain import warn_at_program
from torchfake.errors import (
    DataAccessError,
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)
from torchfake.fake import find_fake, holds_fake
from torchfake.modes import current_mode, fake_mode, in_mode_of

if TYPE_CHECKING:
    from torch.export import ExportedProgram

# ---- Tracers and the compiler ----------------------------------------------------------------------------------------
#
# `make_fx`, `torch.export` and `torch.compile`, given fakes as example inputs.


def is_fake_to_tracers(original: Callable[[object], bool], x: object) -> bool:
    """Tracers store a fake in `meta["val"]` unchanged, and do not treat it as a constant."""
    return original(x) or holds_fake(x)


def is_fake_of_pytorch(original: Callable[[Tensor], bool], x: Tensor) -> bool:
    """Whether `x` is one of PyTorch's own fakes, which its tracers recreate, whereas they detach other tensors.

    Since 2.14 PyTorch checks for the dispatch key reserved for its own C++ fakes, which ours use.
    """
    return original(x) and not _C.is_plain_fake(x)


def clone_input(original: Callable[..., Tensor], x: Tensor, **options: Any) -> Tensor:
    """The compiler uses a fake as example input directly, as it does with PyTorch's fakes.

    It clones other tensors to the same alignment, for which it reads their address.
    """
    return x if holds_fake(x) else original(x, **options)


def safe_copy(original: Callable[..., None], dst: Tensor, src: Tensor | None) -> None:
    """Copies the real value of a tensor for PyTorch's own converter: for a fake, its known values, if any."""
    values = _C.known_values_of(src, copy=False) if isinstance(src, Tensor) and _C.is_plain_fake(src) else src
    original(dst, values)


def safe_clone(original: Callable[..., Tensor | None], src: Tensor) -> Tensor | None:
    if not _C.is_plain_fake(src):
        return original(src)
    return _C.known_values_of(src, copy=True)


def clone_real_storage(original: Callable[[Tensor], UntypedStorage], t: Tensor) -> UntypedStorage:
    values = _C.known_values_of(t, copy=True) if _C.is_plain_fake(t) else None
    return original(t) if values is None else values.untyped_storage()


def save(original: Callable[..., Any], ep: ExportedProgram, *args: Any, **kwargs: Any) -> Any:
    # For its own fakes PyTorch writes zeros of the full size.
    for name, value in {**ep.state_dict, **ep.constants}.items():
        if holds_fake(value):
            raise DataAccessError(
                f"torch.export.save: {name!r} is a fake tensor and has no data to write. Load real weights into the "
                "exported program first, or save its graph only.",
                "torch.export.save",
            )
    return original(ep, *args, **kwargs)


# ---- Higher-order operators ------------------------------------------------------------------------------------------
#
# `cond`, `while_loop`, `scan`, `flex_attention` and others are dispatched in Python. Below autograd and the modes they
# arrive at the Fake key, and continue to the implementation for real tensors, whose operators return fakes. The few
# that branch on a value have a kernel here, used when the value is unknown.

_FAKE = torch._C._dispatch_key_parse("Fake")
_REAL = torch._C.DispatchKey.CompositeExplicitAutograd


def dispatch(original: Callable[..., Any], self: Any, /, dispatch_key: Any, *args: Any, **kwargs: Any) -> Any:
    if dispatch_key != _FAKE:
        return original(self, dispatch_key, *args, **kwargs)
    fake = find_fake(tree_leaves((args, kwargs)))
    with nullcontext() if fake is None else in_mode_of(fake):
        if self in _KERNELS:
            return _KERNELS[self](*args, **kwargs)
        compute_keyset: Any = _ops._compute_keyset
        below = compute_keyset(args, kwargs, self.non_fallthrough_keys.remove(_FAKE))
        return original(self, below.highestPriorityTypeId(), *args, **kwargs)


@contextmanager
def setup_compilation_env(original: Callable[..., AbstractContextManager[Any]], *args: Any) -> Iterator[Any]:
    """Suspends our mode while the compiler runs: it captures tensors in closures as its own fakes."""
    with original(*args) as backend, _without_mode_while_compiling():
        yield backend


@contextmanager
def _without_mode_while_compiling() -> Iterator[None]:
    handler = torch._dynamo.callback.callback_handler
    thread = threading.get_ident()
    suspended: list[_C.EnteredNoFakeMode] = []

    def suspend(_: object) -> None:
        if threading.get_ident() == thread:
            suspended.append(_C.EnteredNoFakeMode())

    def resume(_: object) -> None:
        if suspended and threading.get_ident() == thread:
            suspended.pop().leave()

    handler.register_start_callback(suspend)
    handler.register_end_callback(resume)
    try:
        yield
    finally:
        handler.remove_start_callback(suspend)
        handler.remove_end_callback(resume)


def _is_unknown(value: Any) -> bool:
    return holds_fake(value) and not _C.is_known(value)


def _cond(pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Any) -> Any:
    if not _is_unknown(pred):
        return cond_op.py_kernels[_REAL](pred, true_fn, false_fn, operands)
    if_true, structure = tree_flatten(true_fn(*operands))
    if_false, other_structure = tree_flatten(false_fn(*operands))
    if structure != other_structure:
        raise DynamicOutputShapeException(
            "cond: the predicate is unknown, and the branches return different structures: "
            f"{structure} and {other_structure}",
            "cond",
        )
    merged = [_either("cond", *pair) for pair in zip(if_true, if_false, strict=True)]
    return tree_unflatten(merged, structure)


class _Unknown(Exception):
    """The condition of a loop is unknown; `carried` holds the carried values at that point."""

    def __init__(self, carried: tuple[Any, ...]) -> None:
        self.carried = carried


def _while_loop(
    cond_fn: Callable[..., Any],
    body_fn: Callable[..., Any],
    carried_inputs: Any,
    additional_inputs: Any,
    **options: Any,
) -> Any:
    try:
        return _loop_while_known(while_loop_op, cond_fn, body_fn, carried_inputs, additional_inputs, options)
    except _Unknown as unknown:
        carried = unknown.carried
    # One more iteration: the metadata of carried values does not depend on the number of iterations.
    result = body_fn(*carried, *additional_inputs)
    return tuple(_either("while_loop", after, before) for after, before in zip(result, carried, strict=True))


def _while_loop_stack_output(
    cond_fn: Callable[..., Any],
    body_fn: Callable[..., Any],
    carried_inputs: Any,
    additional_inputs: Any,
    **options: Any,
) -> Any:
    try:
        return _loop_while_known(
            while_loop_stack_output_op, cond_fn, body_fn, carried_inputs, additional_inputs, options
        )
    except _Unknown:
        raise DynamicOutputShapeException(
            "while_loop_stack_output: the number of iterations, and so the size of the stacked output, is unknown",
            "while_loop_stack_output",
        ) from None


def _loop_while_known(
    op: Any,
    cond_fn: Callable[..., Any],
    body_fn: Callable[..., Any],
    carried_inputs: Any,
    additional_inputs: Any,
    options: dict[str, Any],
) -> Any:
    def known_condition(*values: Any) -> Any:
        answer = cond_fn(*values)
        if _is_unknown(answer):
            raise _Unknown(values[: len(carried_inputs)])
        return answer

    return op.py_kernels[_REAL](known_condition, body_fn, carried_inputs, additional_inputs, **options)


def _either(op: str, one: Any, other: Any) -> Any:
    """A value with the metadata that `one` and `other` share."""
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        if one != other:
            raise DataDependentOutputException(
                f"{op}: the result is {one} or {other}, depending on an unknown value", op
            )
        return one
    if _looks(one) != _looks(other):
        raise DynamicOutputShapeException(
            f"{op}: the result is a tensor with {_describe(one)} or one with {_describe(other)}, "
            "depending on an unknown value",
            op,
        )
    if one.untyped_storage()._cdata == other.untyped_storage()._cdata and _place(one) == _place(other):
        return one
    return torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device=one.device)


def _looks(tensor: Tensor) -> object:
    return tensor.shape, tensor.dtype, tensor.device, tensor.layout


def _place(tensor: Tensor) -> object:
    return tensor.storage_offset(), tensor.stride()


def _describe(tensor: Tensor) -> str:
    return f"sizes {list(tensor.shape)}, {tensor.dtype}, on {tensor.device}"


_KERNELS: dict[Any, Callable[..., Any]] = {
    cond_op: _cond,
    while_loop_op: _while_loop,
    while_loop_stack_output_op: _while_loop_stack_output,
}


# ---- Custom operators ------------------------------------------------------------------------------------------------
#
# Finds the fake implementations for the engine, and gives them a `torch.library.get_ctx()` that works.


class _Context:
    """Creates data-dependent sizes: symbols of the mode's `shape_env`, or stand-ins; raises if it has neither."""

    def __init__(self, op: str, arguments: Sequence[Any] = ()) -> None:
        self._op = op
        self._arguments = arguments

    def _most(self) -> int:
        """The size of the longest argument, a bound on what an operator selects (boxes in `torchvision::nms`)."""
        leaves = tree_leaves(self._arguments)
        return builtins.max((len(leaf) for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim()), default=1)

    def new_dynamic_size(self, *, min: int = 0, max: int | None = None) -> int | torch.SymInt:
        mode = current_mode()
        env = None if mode is None else mode.shape_env
        if env is not None and env.allow_dynamic_output_shape_ops:
            if not isinstance(min, int) or not isinstance(max, int | None) or min < 0:
                raise ValueError(
                    f"ctx.new_dynamic_size(min={min}, max={max}): expected min and max to be statically known ints, "
                    "and min to be at least 0."
                )
            fresh: torch.SymInt = fake_impl.allocate_size(env, min, max)  # type: ignore[no-untyped-call]
            return fresh
        if isinstance(mode, fake_mode) and mode._state.has_stand_ins:
            size = builtins.max(min, self._most()) if max is None else max
            mode.stand_ins.hear(self._op, f"{size} elements")
            return size
        raise DynamicOutputShapeException(
            f"{self._op}: the operator's fake implementation needs a size that depends on unknown values; keep this "
            "part out of the fake run.",
            self._op,
        )

    def create_unbacked_symint(self, *, min: int = 2, max: int | None = None) -> int | torch.SymInt:
        return self.new_dynamic_size(min=min, max=max)


_called = threading.local()


def construct_meta_kernel(original: Callable[..., Any], qualname: str, holder: Any) -> Callable[..., Any]:
    """Records the arguments of an operator while its fake implementation runs, for its context."""
    kernel = original(qualname, holder)

    @functools.wraps(kernel)
    def noted(*args: Any, **kwargs: Any) -> Any:
        outer, _called.arguments = getattr(_called, "arguments", ()), args
        try:
            return kernel(*args, **kwargs)
        finally:
            _called.arguments = outer

    return noted


def set_ctx_getter(
    original: Callable[[Any], AbstractContextManager[None]], getter: Callable[[], Any]
) -> AbstractContextManager[None]:
    # On plain meta tensors the getter would raise an error about FakeTensors; here the tensors are fake.
    op: str = inspect.getclosurevars(getter).nonlocals.get("qualname", "custom operator")
    arguments: Sequence[Any] = getattr(_called, "arguments", ())
    return original(lambda: _Context(op, arguments))


def has_fake_impl(op: str) -> bool:
    """Whether the operator has a registered fake implementation, which the engine then runs."""
    return simple_registry.singleton.find(op).fake_impl.kernel is not None


def dispatch_with_object(
    original: Callable[..., Any], self: Any, fallthrough_keys: Sequence[Any], *args: Any, **kwargs: Any
) -> Any:
    """Dispatches an operator that is given a `FakeScriptObject`, which only its fake implementation accepts."""
    keys: Any = torch._C._dispatch_keyset_full()
    for key in fallthrough_keys:
        keys = keys.remove(key)
    compute_keyset: Any = _ops._compute_keyset
    if compute_keyset(args, kwargs, keys).highestPriorityTypeId() != _FAKE:
        return original(self, fallthrough_keys, *args, **kwargs)
    holder = simple_registry.singleton.find(self.name()).fake_impl
    kernel = (
        self.py_kernels.get(torch._C.DispatchKey.Meta)
        if holder.kernel is None
        else fake_impl.construct_meta_kernel(self.name(), holder)
    )
    if kernel is None:
        raise UnsupportedOperatorException(
            f"{self.name()}: an operator that takes a FakeScriptObject needs a fake implementation; register one with "
            f"torch.library.register_fake ({self})",
            self.name(),
        )
    fake = find_fake(tree_leaves((args, kwargs)))
    with nullcontext() if fake is None else in_mode_of(fake):
        result = kernel(*args, **kwargs)
    written = [value for value, argument in zip(args, self._schema.arguments, strict=False) if argument.is_write]
    for leaf in tree_leaves((result, written)):
        if isinstance(leaf, Tensor) and _C.is_plain_fake(leaf):
            _C.forget_values(leaf)  # only the metadata of the returned tensors is meaningful
    return result


# ---- torch.compile ---------------------------------------------------------------------------------------------------

_said: set[str] = set()


def compile(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`torch.compile` with its default backend runs the captured graph eagerly, with a note on first use."""
    mode = current_mode()
    if mode is None or mode._state.exclusive or kwargs.get("backend", "inductor") != "inductor":
        return original(*args, **kwargs)
    if "inductor" not in _said:
        _said.add("inductor")
        warn_at_program(
            "torch.compile: no code is generated for a claimed device; the captured graph runs eagerly. Inductor would "
            "fuse operators, so its memory differs."
        )
    for name in ("mode", "options"):  # options of the backend
        kwargs.pop(name, None)
    kwargs["backend"] = "eager"
    kwargs["dynamic"] = False  # sizes are numbers in a mode, so another batch size is compiled again
    return original(*args, **kwargs)
