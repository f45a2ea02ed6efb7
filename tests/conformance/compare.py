"""Runs one call for real and on fakes, and compares what comes out in metadata."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from engines import Engine, fake_tree
from torch.utils import _pytree as pytree

#: Outcomes of one comparison that are as they should be.
SAME = "same"
BOTH_REFUSE = "both refuse"
REFUSED_WITH_VALUES = "refused where values are known"  # the values are what is wrong: only known fakes can tell
DATA_DEPENDENT = "data-dependent"  # declared, shown to be so, and right where the values are known
#: Outcomes that are not.
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
    """One comparison of one suite: `variant` says how the inputs and the call were changed."""

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
    """What a call gave: a row per tensor and what is no tensor, or the exception."""

    rows: list[Any]
    error: Exception | None = None
    not_fake: bool = False
    values: tuple[Any, ...] = ()


def metadata(tensor: torch.Tensor, inputs: list[torch.Tensor], before: list[torch.Tensor]) -> dict[str, Any]:
    """Everything of a tensor that has to agree, with its place among the inputs and the outputs before it."""
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
    """The strides that mean something: none of an empty tensor, 0 over a dimension of size 1."""
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
    """Gradients of all outputs by all inputs, for ones; None where nothing requires them."""
    wanted = [t for t in inputs if t.requires_grad]
    roots = [t for t in outputs if t.requires_grad and (t.is_floating_point() or t.is_complex())]
    if not wanted or not roots:
        return None
    return list(torch.autograd.grad(roots, wanted, [torch.ones_like(t) for t in roots], allow_unused=True))


def describe(outputs: Any, inputs: list[torch.Tensor], with_gradients: bool) -> list[Any]:
    """Outputs, what is no tensor among them, gradients, and the inputs as the call left them."""
    tensors = tensors_in(outputs)
    rows: list[Any] = [metadata(t, inputs, tensors[:i]) for i, t in enumerate(tensors)]
    rows.append([type(leaf).__name__ for leaf in pytree.tree_leaves(outputs) if not isinstance(leaf, torch.Tensor)])
    if with_gradients:
        grads = gradients(tensors, inputs)
        rows.append(None if grads is None else [None if g is None else metadata(g, [], []) for g in grads])
    rows.extend(metadata(t, [], []) for t in inputs)
    return rows


def difference(real: list[Any], fake: list[Any]) -> str:
    """The first disagreement in words; empty if there is none."""
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
    """What a fake's error is worth, where the real call raised `refused`, if it did; `is_same`: whether this is it."""
    said = f"{type(raised).__name__}: {str(raised)[:300]}"
    if isinstance(raised, engine.declares):
        return Result(NOT_ANSWERED, said)
    if refused is None:
        return Result(FAKE_RAISES, said)
    if is_same and not isinstance(raised, engine.gives_up):
        return Result(BOTH_REFUSE)
    return Result(OTHER_ERROR, f"real {refused}; fake {said}")


def judge_against_record(engine: Engine, raised: Exception, refused: str | None) -> Result:
    """The same against a record, which has the exception by name, and maybe what it said."""
    names = [kind.__name__ for kind in type(raised).__mro__]
    return judge_error(engine, raised, refused, refused is not None and refused.partition(":")[0] in names)


def judge(engine: Engine, real: Observation, fake: Observation) -> Result:
    """What a fake run is worth, held against the real one."""
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

    Where values decide, fakes that know theirs have to answer: a call that unknown ones declare data-dependent, and
    one that real PyTorch refuses and unknown ones accept, is made on known fakes as well.
    """
    real = observe_real(function, arguments, with_gradients)

    def once(known: bool) -> Result:
        return judge(engine, real, observe_fake(engine, function, arguments, with_gradients, known=known))

    def shown() -> bool:
        return values_decide(function, arguments, real, with_gradients)

    return settle(engine, once, shown, shown)


def values_decide(function: Callable[..., Any], arguments: Any, real: Observation, with_gradients: bool) -> bool:
    """Whether the real call gives something else with other values: other metadata, other numbers, or another refusal.

    A call that is accepted is not shown to depend on values by one that is refused: out of range is another matter.
    """
    if isinstance(real.error, torch.linalg.LinAlgError):
        return True  # singular, or not positive-definite
    if real.error is None and (
        reads_values(function, arguments, with_gradients) or asks_for_data(function, arguments, with_gradients)
    ):
        return True  # the cheaper questions first
    for changed in other_values(arguments, large=real.error is None):
        other = observe_real(function, changed, with_gradients)
        if real.error is not None:
            if type(other.error) is not type(real.error) or str(other.error)[:40] != str(real.error)[:40]:
                return True
        elif other.error is None and (other.rows != real.rows or other.values != real.values):
            return True
    if real.error is None and any(map(_repeats, tensors_in(arguments))):
        # Elements in one place have one value. That it is one is not in the sizes, by which an operator is judged.
        apart = pytree.tree_map_only(torch.Tensor, _apart, arguments)
        return values_decide(function, apart, observe_real(function, apart, with_gradients), with_gradients)
    return False


def _repeats(tensor: torch.Tensor) -> bool:
    return is_dense(tensor) and any(
        stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )


def _apart(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, each element in a place of its own."""
    if not _repeats(tensor):
        return tensor
    return tensor.detach().clone(memory_format=torch.contiguous_format).requires_grad_(tensor.requires_grad)


#: What PyTorch says where it would have to read data that is not there.
_NO_DATA = ("meta tensors", "Cannot copy out of meta tensor", "data-dependent", "data dependent")


def asks_for_data(function: Callable[..., Any], arguments: Any, with_gradients: bool) -> bool:
    """Whether the call, made on meta tensors, ends because a value is read, forward or backward."""
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
    """Operators of which PyTorch says that values decide about their result."""
    tags = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
    found = set()
    for qualified in torch._C._dispatch_get_all_op_names():
        name, _, overload = qualified.partition(".")
        if name.startswith("aten::") and not tags.isdisjoint(torch._C._get_operation_overload(name, overload)[2]):
            found.add(name)
    return frozenset(found)


def reads_values(function: Callable[..., Any], arguments: Any, with_gradients: bool) -> bool:
    """Whether the real call, on its way, calls an operator that is tagged so. It itself is no witness."""
    with torch.autograd.profiler.profile(use_kineto=False) as profile:
        observe_real(function, arguments, with_gradients)
    return any(event.cpu_parent is not None and event.name in _tagged() for event in profile.function_events)


def _on_meta(tensor: torch.Tensor) -> torch.Tensor:
    new = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    return new.requires_grad_(tensor.requires_grad)


def shown_on_the_cpu(function: Callable[..., Any], arguments: Any, with_gradients: bool) -> bool:
    """Whether what a fake on a claimed GPU declares to depend on values does so on the CPU."""
    real = observe_real(function, arguments, with_gradients)
    return values_decide(function, arguments, real, with_gradients) or asks_for_data(
        function, arguments, with_gradients
    )


#: Draws of random numbers among the values to try.
DRAWS = 12


def other_values(arguments: Any, large: bool = False) -> Iterator[Any]:
    """The arguments with other values: one number throughout, the same numbers elsewhere, and small random ones.

    With `large`, a large number too: not where a call is refused, since it would be refused as an index as well.
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
    """Changes all that the tensor's storage holds, repeated elements alike."""
    if is_dense(tensor) and tensor.untyped_storage().nbytes() >= tensor.element_size():
        with torch.no_grad():
            whole = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
            # Some dtypes have no kernel that could change them.
            with contextlib.suppress(RuntimeError):
                whole.copy_(change(whole).clone())
    return tensor


def settle(
    engine: Engine,
    once: Callable[[bool], Result],
    values_decide: Callable[[], bool],
    values_refuse: Callable[[], bool] = lambda: True,
) -> Result:
    """The result on unknown fakes, or where values decide, that on known ones.

    What unknown fakes declare to depend on values has to be shown to by `values_decide`; and by `values_refuse` what
    they accept where the real operator refuses.
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
    """The same tensors anew, on `device` if it is given, with their strides, and sharing as the originals do.

    A meta tensor among those that are moved is there to be on another device, and stays what it is.
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
