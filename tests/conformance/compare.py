"""Runs one call on real tensors and on fakes, and compares the metadata of the results."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from engines import Engine, fake_tree
from torch.utils import _pytree as pytree

#: Outcomes of a comparison that count as agreement.
SAME = "same"
BOTH_REFUSE = "both refuse"
REFUSED_WITH_VALUES = "refused where values are known"  # the values are invalid, which only known fakes can detect
DATA_DEPENDENT = "data-dependent"  # declared, shown to be so, and correct if the values are known
#: Outcomes that count as failure.
DIFFERENT = "different"
FAKE_RAISES = "fake raises"
FAKE_ACCEPTS = "fake accepts"
OTHER_ERROR = "fake raises another type"
NOT_ANSWERED = "data-dependent with known values"
NOT_SHOWN = "declared data-dependent, and other values change nothing"
CRASH = "crash"
NO_SAMPLES = "no samples"
#: Nothing to compare.
REAL_ACCEPTS = "real accepts"
NOT_MATCHED = "not matched"

FAILURES = (DIFFERENT, FAKE_RAISES, FAKE_ACCEPTS, OTHER_ERROR, NOT_ANSWERED, NOT_SHOWN, CRASH, NO_SAMPLES)


@dataclass(frozen=True)
class Result:
    outcome: str
    detail: str = ""


@dataclass(frozen=True)
class Case:
    """One comparison of one suite: `variant` says how the inputs and the call were modified."""

    suite: str
    subject: str
    variant: str
    sample: int
    result: Result

    @property
    def failed(self) -> bool:
        return self.result.outcome in FAILURES

    def __str__(self) -> str:
        return f"{self.subject} [{self.variant}] {self.sample}: {self.result.outcome}: {self.result.detail}"


@dataclass(frozen=True)
class Observation:
    """The result of a call: a row per tensor and the other values, or the exception."""

    rows: list[Any]
    error: Exception | None = None
    not_fake: bool = False
    values: tuple[Any, ...] = ()


def metadata(tensor: torch.Tensor, inputs: list[torch.Tensor], before: list[torch.Tensor]) -> dict[str, Any]:
    """All properties of a tensor that must agree, with its position among the inputs and the preceding outputs."""
    row: dict[str, Any] = {
        "size": tuple(tensor.shape),
        "dtype": tensor.dtype,
        "device": str(tensor.device),
        "layout": tensor.layout,
        "requires_grad": tensor.requires_grad,
    }
    if tensor.layout == torch.strided and not tensor.is_nested:
        row["stride"] = normal_stride(tensor)
        row["offset"] = tensor.storage_offset()
        row["conj"] = tensor.is_conj()
        row["neg"] = tensor.is_neg()
        row["is"] = next((i for i, other in enumerate(inputs) if other is tensor), None)
        row["shares"] = next((i for i, other in enumerate(inputs + before) if shares_storage(tensor, other)), None)
    return row


def normal_stride(tensor: torch.Tensor) -> tuple[int, ...]:
    """The strides that matter: none for an empty tensor, 0 for a dimension of size 1."""
    if tensor.numel() == 0:
        return ()
    return tuple(0 if size == 1 else stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def shares_storage(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.layout != torch.strided or b.layout != torch.strided or a.is_nested or b.is_nested:
        return False
    return a.untyped_storage()._cdata == b.untyped_storage()._cdata


def is_dense(tensor: torch.Tensor) -> bool:
    return tensor.layout == torch.strided and not tensor.is_nested and not tensor.is_quantized


def tensors_in(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def gradients(outputs: list[torch.Tensor], inputs: list[torch.Tensor]) -> list[torch.Tensor | None] | None:
    """Gradients of all outputs with respect to all inputs, for ones; None if nothing requires them."""
    wanted = [t for t in inputs if t.requires_grad]
    roots = [t for t in outputs if t.requires_grad and (t.is_floating_point() or t.is_complex())]
    if not wanted or not roots:
        return None
    return list(torch.autograd.grad(roots, wanted, [torch.ones_like(t) for t in roots], allow_unused=True))


def describe(outputs: Any, inputs: list[torch.Tensor], with_gradients: bool) -> list[Any]:
    """Outputs, including those that are not tensors, gradients, and the inputs after the call."""
    tensors = tensors_in(outputs)
    rows: list[Any] = [metadata(t, inputs, tensors[:i]) for i, t in enumerate(tensors)]
    rows.append([type(leaf).__name__ for leaf in pytree.tree_leaves(outputs) if not isinstance(leaf, torch.Tensor)])
    if with_gradients:
        grads = gradients(tensors, inputs)
        rows.append(None if grads is None else [None if g is None else metadata(g, [], []) for g in grads])
    rows.extend(metadata(t, [], []) for t in inputs)
    return rows


def difference(real: list[Any], fake: list[Any]) -> str:
    """A description of the first disagreement; empty if there is none."""
    if len(real) != len(fake):
        return f"real has {len(real)} parts, fake {len(fake)}"
    for i, (a, b) in enumerate(zip(real, fake, strict=True)):
        if a == b:
            continue
        if isinstance(a, dict) and isinstance(b, dict):
            return f"part {i}: {_difference_of_rows(a, b)}"
        if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
            j = next(j for j in range(len(a)) if a[j] != b[j])
            if isinstance(a[j], dict) and isinstance(b[j], dict):
                return f"gradient {j}: {_difference_of_rows(a[j], b[j])}"
        return f"part {i}: real {a} fake {b}"
    return ""


def _difference_of_rows(real: dict[str, Any], fake: dict[str, Any]) -> str:
    wrong = [key for key in {**real, **fake} if real.get(key) != fake.get(key)]
    return ", ".join(f"{key} real {real.get(key)} fake {fake.get(key)}" for key in wrong)


def observe_real(function: Callable[..., Any], arguments: Any, with_gradients: bool) -> Observation:
    args, kwargs = copy_tree(arguments)
    torch.manual_seed(0)
    try:
        outputs = function(*args, **kwargs)
        values = tuple(leaf for leaf in pytree.tree_leaves(outputs) if not isinstance(leaf, torch.Tensor))
        return Observation(describe(outputs, tensors_in((args, kwargs)), with_gradients), values=values)
    except Exception as error:
        return Observation([], error.with_traceback(None))


def observe_fake(
    engine: Engine,
    function: Callable[..., Any],
    arguments: Any,
    with_gradients: bool,
    *,
    known: bool = False,
) -> Observation:
    try:
        for _ in range(engine.calls):
            session = engine.session(known)
            args, kwargs = fake_tree(session, copy_tree(arguments))
            with session.inside():
                outputs = function(*args, **kwargs)
                rows = describe(outputs, tensors_in((args, kwargs)), with_gradients)
                not_fake = not all(engine.is_fake(t) for t in tensors_in(outputs))
        return Observation(rows, not_fake=not_fake)
    except Exception as error:
        return Observation([], error.with_traceback(None))


def judge_error(engine: Engine, raised: Exception, refused: str | None, is_same: bool) -> Result:
    """Judges a fake's error, given the real call's error `refused`, if any; `is_same`: whether they are the same."""
    said = f"{type(raised).__name__}: {str(raised)[:300]}"
    if isinstance(raised, engine.declares):
        return Result(NOT_ANSWERED, said)
    if refused is None:
        return Result(FAKE_RAISES, said)
    if is_same and not isinstance(raised, engine.gives_up):
        return Result(BOTH_REFUSE)
    return Result(OTHER_ERROR, f"real {refused}; fake {said}")


def judge_against_record(engine: Engine, raised: Exception, refused: str | None) -> Result:
    """The same against a record, which has the exception's name and possibly its message."""
    names = [kind.__name__ for kind in type(raised).__mro__]
    return judge_error(engine, raised, refused, refused is not None and refused.partition(":")[0] in names)


def judge(engine: Engine, real: Observation, fake: Observation) -> Result:
    """Judges a fake run by comparison with the real one."""
    if fake.error is not None:
        refused = None if real.error is None else f"{type(real.error).__name__}: {str(real.error)[:150]}"
        return judge_error(engine, fake.error, refused, isinstance(fake.error, type(real.error)))
    if real.error is not None:
        return Result(FAKE_ACCEPTS, f"real {type(real.error).__name__}: {str(real.error)[:200]}")
    if fake.not_fake:
        return Result(DIFFERENT, "an output is not fake")
    detail = difference(real.rows, fake.rows)
    return Result(DIFFERENT, detail) if detail else Result(SAME)


def compare(engine: Engine, function: Callable[..., Any], arguments: Any, *, with_gradients: bool = True) -> Result:
    """Calls `function` on copies of the arguments `(args, kwargs)`, real and fake.

    If values decide, fakes with known values must produce the result: a call that unknown fakes declare data-dependent,
    or that they accept although real PyTorch refuses it, is repeated on known fakes.
    """
    real = observe_real(function, arguments, with_gradients)

    def once(known: bool) -> Result:
        return judge(engine, real, observe_fake(engine, function, arguments, with_gradients, known=known))

    def shown() -> bool:
        return values_decide(function, arguments, real, with_gradients)

    return settle(engine, once, shown, shown)


def values_decide(function: Callable[..., Any], arguments: Any, real: Observation, with_gradients: bool) -> bool:
    """Whether the real call's result changes with the values: its metadata, its numbers, or a refusal.

    A refused call does not show that an accepted one depends on values: an index may just be out of range.
    """
    if isinstance(real.error, torch.linalg.LinAlgError):
        return True  # singular, or not positive-definite
    if real.error is None and (
        reads_values(function, arguments, with_gradients) or asks_for_data(function, arguments, with_gradients)
    ):
        return True  # the cheaper checks first
    for changed in other_values(arguments, large=real.error is None):
        other = observe_real(function, changed, with_gradients)
        if real.error is not None:
            if type(other.error) is not type(real.error) or str(other.error)[:40] != str(real.error)[:40]:
                return True
        elif other.error is None and (other.rows != real.rows or other.values != real.values):
            return True
    if real.error is None and any(map(_repeats, tensors_in(arguments))):
        # Elements that share memory have one value. That they share is not in the sizes, by which an operator is
        # judged.
        apart = pytree.tree_map_only(torch.Tensor, _apart, arguments)
        return values_decide(function, apart, observe_real(function, apart, with_gradients), with_gradients)
    return False


def _repeats(tensor: torch.Tensor) -> bool:
    return is_dense(tensor) and any(
        stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )


def _apart(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, with separate memory for each element."""
    if not _repeats(tensor):
        return tensor
    return tensor.detach().clone(memory_format=torch.contiguous_format).requires_grad_(tensor.requires_grad)


#: PyTorch's messages when it would have to read data that does not exist.
_NO_DATA = ("meta tensors", "Cannot copy out of meta tensor", "data-dependent", "data dependent")


def asks_for_data(function: Callable[..., Any], arguments: Any, with_gradients: bool) -> bool:
    """Whether the call, made on meta tensors, fails because a value is read, forward or backward."""
    if not all(map(is_dense, tensors_in(arguments))):
        return False
    args, kwargs = pytree.tree_map_only(torch.Tensor, _on_meta, arguments)
    try:
        outputs = tensors_in(function(*args, **kwargs))
        if with_gradients:
            gradients(outputs, tensors_in((args, kwargs)))
    except Exception as error:
        return any(words in str(error) for words in _NO_DATA)
    return False


@functools.cache
def _tagged() -> frozenset[str]:
    """Operators whose result depends on values according to PyTorch's tags."""
    tags = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
    found = set()
    for qualified in torch._C._dispatch_get_all_op_names():
        name, _, overload = qualified.partition(".")
        if name.startswith("aten::") and not tags.isdisjoint(torch._C._get_operation_overload(name, overload)[2]):
            found.add(name)
    return frozenset(found)


def reads_values(function: Callable[..., Any], arguments: Any, with_gradients: bool) -> bool:
    """Whether the real call calls an operator with such a tag. The operator itself does not count."""
    with torch.autograd.profiler.profile(use_kineto=False) as profile:
        observe_real(function, arguments, with_gradients)
    return any(event.cpu_parent is not None and event.name in _tagged() for event in profile.function_events)


def _on_meta(tensor: torch.Tensor) -> torch.Tensor:
    new = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    return new.requires_grad_(tensor.requires_grad)


def shown_on_the_cpu(function: Callable[..., Any], arguments: Any, with_gradients: bool) -> bool:
    """Whether a dependence on values declared by a fake on a claimed GPU also exists on the CPU."""
    real = observe_real(function, arguments, with_gradients)
    return values_decide(function, arguments, real, with_gradients) or asks_for_data(
        function, arguments, with_gradients
    )


#: The number of random draws among the values to try.
DRAWS = 12


def other_values(arguments: Any, large: bool = False) -> Iterator[Any]:
    """The arguments with other values: one number throughout, the same numbers rearranged, and small random ones.

    With `large`, also a large number: not for calls that are refused, since it would also be refused as an index.
    """
    generator = torch.Generator().manual_seed(0)

    def changed(change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        return pytree.tree_map_only(torch.Tensor, lambda tensor: _with_values(tensor, change), copy_tree(arguments))

    yield changed(torch.zeros_like)
    yield changed(torch.ones_like)
    if large:
        yield changed(lambda flat: torch.full_like(flat, 100))
    yield changed(lambda flat: flat.flip(0))
    yield changed(lambda flat: flat[:1].expand_as(flat))
    for _ in range(DRAWS):
        yield changed(lambda flat: flat[torch.randint(len(flat), flat.shape, generator=generator)])
        yield changed(lambda flat: torch.randint(0, 5, flat.shape, generator=generator).to(flat.dtype))


def _with_values(tensor: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Changes everything in the tensor's storage, so that repeated elements stay equal."""
    if is_dense(tensor) and tensor.untyped_storage().nbytes() >= tensor.element_size():
        with torch.no_grad():
            whole = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
            # Some dtypes have no kernel that can change them.
            with contextlib.suppress(RuntimeError):
                whole.copy_(change(whole).clone())
    return tensor


def settle(
    engine: Engine,
    once: Callable[[bool], Result],
    values_decide: Callable[[], bool],
    values_refuse: Callable[[], bool] = lambda: True,
) -> Result:
    """The result on unknown fakes, or, if values decide, on known ones.

    A dependence on values declared by unknown fakes must be confirmed by `values_decide`; a call that they accept
    although the real operator refuses must be explained by `values_refuse`.
    """
    result = once(False)
    if result.outcome not in (NOT_ANSWERED, FAKE_ACCEPTS):
        return result
    if not engine.knows_values:
        if result.outcome == NOT_ANSWERED:
            return Result(DATA_DEPENDENT if values_decide() else NOT_SHOWN, result.detail)
        return result
    known = once(True)
    if known.outcome == SAME:
        return Result(DATA_DEPENDENT if values_decide() else NOT_SHOWN, result.detail)
    if known.outcome == BOTH_REFUSE:
        if result.outcome == FAKE_ACCEPTS and not values_refuse():
            return Result(FAKE_ACCEPTS, f"whatever the values, {result.detail}")
        return Result(REFUSED_WITH_VALUES)
    return result if result.outcome == FAKE_ACCEPTS else known


def copy_tree(tree: Any, device: str | None = None) -> Any:
    """Copies the tensors, to `device` if given, preserving strides and sharing.

    A meta tensor among those that are moved tests mixed devices, and stays on meta.
    """
    storages: dict[int, torch.UntypedStorage] = {}

    def copy(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if not is_dense(value):
            return value.detach().clone().requires_grad_(value.requires_grad)
        storage = value.untyped_storage()
        if storage._cdata not in storages:
            copied = storage.clone() if device is None or value.is_meta else storage.to(device=torch.device(device))
            storages[storage._cdata] = copied
        new = torch.empty(0, dtype=value.dtype, device=storages[storage._cdata].device).set_(
            storages[storage._cdata], value.storage_offset(), value.shape, value.stride()
        )
        if value.is_conj():
            new = torch._conj(new)
        if value.is_neg():
            new = torch._neg_view(new)
        new = new.detach().requires_grad_(value.requires_grad)
        return torch.nn.Parameter(new, value.requires_grad) if isinstance(value, torch.nn.Parameter) else new

    return pytree.tree_map(copy, tree)
