"""`CrossRefFakeMode`: runs every operator of a real program on fakes too, and compares the metadata."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._prims_common import check_significant_strides
from torch._subclasses.fake_impls import has_meta
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from torchfake.errors import MetadataMismatchError, UnsupportedFakeTensorException
from torchfake.fake_tensor_mode import FakeTensorMode
from torchfake.helpers import tree_flatten_only

__all__ = ["CrossRefFakeMode", "fake_check"]

_aten = torch.ops.aten
#: Operators that create a tensor from a storage or from data, which a fake does not have.
_MAKE_FROM_DATA = frozenset(
    {_aten.lift_fresh.default, _aten.lift_fresh_copy.default, _aten.set_.source_Storage_storage_offset}
)
#: Data-dependent results, which fakes cannot compute, and operators that change the geometry of an argument.
_SKIPPED_TAGS = frozenset({torch.Tag.dynamic_output_shape, torch.Tag.inplace_view, torch.Tag.data_dependent_output})


class CrossRefFakeMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs each operator on fakes and for real, and raises if they disagree.

    Args:
        ignore_op_fn: Returns whether an operator is skipped.
        check_strides: Whether strides are compared.
        check_aliasing: Whether to compare which outputs are inputs or share a storage with one.
        only_check_ops_with_meta: Whether to skip operators without a meta kernel.

    Raises:
        MetadataMismatchError: An operator in the scope returns different metadata on fakes.

    >>> import torch
    >>> from torchfake import CrossRefFakeMode
    >>> with CrossRefFakeMode():
    ...     torch.ones(2, 3).t().shape
    torch.Size([3, 2])
    """

    def __init__(
        self,
        ignore_op_fn: Callable[[OpOverload], bool] | None = None,
        *,
        check_strides: bool = True,
        check_aliasing: bool = True,
        only_check_ops_with_meta: bool = True,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ignore_op_fn = ignore_op_fn or (lambda op: False)
        self.check_strides = check_strides
        self.check_aliasing = check_aliasing
        self.only_check_ops_with_meta = only_check_ops_with_meta

    def _is_checked(self, func: OpOverload) -> bool:
        return (
            func not in _MAKE_FROM_DATA
            and not self.ignore_op_fn(func)
            and (not self.only_check_ops_with_meta or has_meta(func))
            and _SKIPPED_TAGS.isdisjoint(func.tags)
        )

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        inputs = (args, kwargs or {})
        if not self._is_checked(func):
            return func(*inputs[0], **inputs[1])
        try:
            with FakeTensorMode() as mode, warnings.catch_warnings():
                fake_inputs: Any = tree_map_only(Tensor, mode.from_tensor, inputs)
                fake = func(*fake_inputs[0], **fake_inputs[1])
        except UnsupportedFakeTensorException:
            return func(*inputs[0], **inputs[1])
        real = func(*inputs[0], **inputs[1])
        self._compare(func, (real, inputs), (fake, fake_inputs))
        return real

    def _compare(self, func: OpOverload, real: tuple[Any, Any], fake: tuple[Any, Any]) -> None:
        op: str = func.name()  # type: ignore[no-untyped-call]

        def refuse(what: str) -> MetadataMismatchError:
            return MetadataMismatchError(
                f"When comparing the output of {func} on FakeTensor and concrete Tensors, found {what}", op
            )

        reals, fakes = tree_leaves(real[0]), tree_leaves(fake[0])
        if len(reals) != len(fakes):
            raise refuse(f"mismatch in number of returns {len(fakes)} != {len(reals)}")
        if self.check_aliasing:
            for question in (outputs_alias_inputs, outputs_are_inputs, outputs_alias_each_other):
                for_real, for_fakes = question(*real), question(*fake)
                if for_real != for_fakes:
                    raise refuse(f"mismatch in {question.__name__} check {for_fakes} != {for_real}")
        for index, (one, other) in enumerate(zip(reals, fakes, strict=True)):
            if isinstance(one, Tensor) != isinstance(other, Tensor):
                raise refuse("mismatched number of tensor outputs")
            difference = self._difference(one, other) if isinstance(one, Tensor) else None
            if difference is not None:
                which = "" if len(reals) == 1 else f" for output[{index}]"
                raise refuse(f"mismatched tensor metadata{which}: {difference}")

    def _difference(self, real: Tensor, fake: Tensor) -> str | None:
        """A description of how the tensors differ, or None."""
        names = ["requires_grad", "shape", "dtype", "device", "layout"]
        for name in names:
            if getattr(real, name) != getattr(fake, name):
                return f"{name} is {getattr(fake, name)} on fakes, and {getattr(real, name)} for real"
        if real.layout != torch.strided:
            return None
        if real.storage_offset() != fake.storage_offset():
            return f"storage_offset is {fake.storage_offset()} on fakes, and {real.storage_offset()} for real"
        if self.check_strides and not check_significant_strides(real, fake)[0]:
            return f"strides are {fake.stride()} on fakes, and {real.stride()} for real"
        return None


def _storages(tensors: list[Tensor]) -> list[int]:
    return [tensor.untyped_storage()._cdata for tensor in tensors if torch._C._has_storage(tensor)]


def outputs_alias_inputs(outputs: object, inputs: object) -> bool:
    """Whether an output shares its storage with an input."""
    taken = set(_storages(tree_flatten_only(Tensor, inputs)))
    return not taken.isdisjoint(_storages(tree_flatten_only(Tensor, outputs)))


def outputs_are_inputs(outputs: object, inputs: object) -> bool:
    """Whether an output is an input."""
    taken = {id(tensor) for tensor in tree_flatten_only(Tensor, inputs)}
    return any(id(tensor) in taken for tensor in tree_flatten_only(Tensor, outputs))


def outputs_alias_each_other(outputs: object, inputs: object) -> bool:
    """Whether two outputs share a storage."""
    storages = _storages(tree_flatten_only(Tensor, outputs))
    return len(storages) > len(set(storages))


def _is_builtin(op: OpOverload) -> bool:
    return op.namespace in ("aten", "prims", "prim")


def fake_check(op: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Runs `op` on real tensors, and checks each operator in it that is not one of PyTorch's own on fakes.

    Raises:
        MetadataMismatchError: One of them returns different metadata on fakes.
    """
    with CrossRefFakeMode(ignore_op_fn=_is_builtin):
        op(*args, **kwargs)
