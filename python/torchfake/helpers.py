"""The small public helpers of `torch._subclasses.fake_tensor`, for code that imports them from there."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import init_gpu_context as _init_gpu_context
from torch.utils._pytree import tree_leaves
from torch.utils._traceback import CapturedTraceback

from torchfake import _C
from torchfake.modes import Mode, no_fake_mode

if TYPE_CHECKING:
    from torchfake.fake import FakeTensor

Item = TypeVar("Item")

__all__ = [
    "FakeTensorConfig",
    "IncrementRecursionCount",
    "SingletonConstant",
    "SymNumberMemoDescriptor",
    "get_schema_info",
    "in_kernel_invocation_manager",
    "init_gpu_context",
    "ordered_set",
    "should_allow_numbers_as_tensors",
    "torch_decomp_decompositions",
    "tree_flatten_only",
]


#: How many objects of `IncrementRecursionCount` are alive.
RECURSION_COUNT = 0


class IncrementRecursionCount:
    """Increments `RECURSION_COUNT` while alive."""

    def __init__(self) -> None:
        global RECURSION_COUNT
        RECURSION_COUNT += 1

    def __del__(self) -> None:
        global RECURSION_COUNT
        RECURSION_COUNT -= 1


class SingletonConstant:
    """A value that no argument has, not even None."""


def ordered_set(*items: Item) -> dict[Item, Literal[True]]:
    """The items as keys of a dictionary: a set that keeps their order."""
    return dict.fromkeys(items, True)


def tree_flatten_only(ty: type[Item], tree: Any) -> list[Item]:
    """The leaves of a pytree that are of a type, in order."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, ty)]


@functools.cache
def get_schema_info(func: OpOverload) -> Any:
    """The properties that PyTorch derives from an operator's schema: `is_mutable`, `has_argument`, aliases."""
    return torch._C._SchemaInfo(func._schema)


def should_allow_numbers_as_tensors(func: OpOverload) -> bool:
    """Whether Python numbers are accepted where the operator takes tensors."""
    name: str = func.name()  # type: ignore[no-untyped-call]
    return bool(torch._C._should_allow_numbers_as_tensors(name.split("::")[-1].split(".")[0]))


@functools.cache
def torch_decomp_decompositions(func: OpOverload) -> bool:
    """Whether the decomposition of an operator is one of `torch._decomp.decompositions`.

    Raises:
        KeyError: The operator has no decomposition.
    """
    from torch._decomp import decomposition_table, decompositions  # importing them takes long

    decomposition = decomposition_table[func]
    return decomposition.__module__.startswith("torch._decomp") and decomposition.__name__ in dir(decompositions)


class FakeTensorConfig:
    """Settings of all fakes. With `debug`, `FakeTensor` and `from_tensor` store the stack in `_debug_trace`.

    PyTorch's variable TORCH_FAKE_TENSOR_DEBUG turns it on.
    """

    debug: bool = os.environ.get("TORCH_FAKE_TENSOR_DEBUG", "0") == "1"


def note_where_made(fake: Tensor) -> None:
    """Stores the current stack in `fake`, if `FakeTensorConfig.debug` is set."""
    if FakeTensorConfig.debug and "_debug_trace" not in vars(fake):
        vars(fake)["_debug_trace"] = CapturedTraceback.extract()  # type: ignore[no-untyped-call]


def init_gpu_context(device: torch.device) -> None:
    """Initialises a GPU that this machine has; a device that is only claimed has no context."""
    with no_fake_mode():
        _init_gpu_context(torch.device(device))


@contextmanager
def in_kernel_invocation_manager(fake_mode: Mode) -> Iterator[None]:
    """A scope in which fakes are meta tensors, as they are for a kernel: operators on them run meta kernels.

    >>> import torch
    >>> from torchfake import FakeTensorMode, in_kernel_invocation_manager
    >>> with FakeTensorMode() as mode:
    ...     x = torch.ones(2, device="cuda")
    >>> with in_kernel_invocation_manager(mode):
    ...     x.device, mode.in_kernel_invocation
    (device(type='meta'), True)
    """
    entered = _C.EnteredKernel()
    try:
        yield
    finally:
        entered.leave()


class SymNumberMemoDescriptor:
    """An attribute of fakes that remembers a number about their values, until they are written to or retraced.

    Args:
        is_nested_int: Whether the number is kept despite writes and new epochs of the mode.
    """

    _name: str

    def __init__(self, *, is_nested_int: bool = False) -> None:
        self._is_nested_int = is_nested_int

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, obj: FakeTensor | None, objtype: type | None = None) -> Any:
        if obj is None:
            return self
        value, version, epoch = vars(obj).get(f"_{self._name}", (None, None, None))
        if value is None or self._is_nested_int:
            return value
        if isinstance(value, torch.SymFloat) and value.node.hint is not None:
            return value
        return value if (version, epoch) == (obj._version, obj.fake_mode._state.epoch) else None

    def __set__(self, obj: FakeTensor, value: Any) -> None:
        if value is None:
            vars(obj).pop(f"_{self._name}", None)
        elif self._is_nested_int:
            vars(obj)[f"_{self._name}"] = (value, None, None)
        elif not obj.is_inference():
            vars(obj)[f"_{self._name}"] = (value, obj._version, obj.fake_mode._state.epoch)
