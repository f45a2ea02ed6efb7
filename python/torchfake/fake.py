"""Fake tensors: they claim a device, a dtype, sizes and strides, and hold no data.

The names of the ancestor, `torchdistx.fake`, with the same meaning: code written for it runs with the import renamed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from torchfake import _C
from torchfake._mode import Mode, current_mode, mode_of
from torchfake.converter import keep_for_readers, refuse_meta
from torchfake.errors import MixedModesError

if TYPE_CHECKING:
    from torchfake.fake_tensor_mode import FakeTensorMode

__all__ = ["FakeTensor", "fake_mode", "is_fake", "meta_like", "no_fake_mode", "to_fake"]

#: How many elements a fake may have for its values to be kept, where they follow from constants.
KNOWN_VALUES = 16_384


Self = TypeVar("Self", bound="fake_mode")


class fake_mode(Mode, contextlib.ContextDecorator):  # a verb in the ancestor, so lower case
    """Makes every tensor created in its scope fake. A context manager, and a decorator.

    Args:
        fake_cuda: Whether devices that this machine lacks may be claimed. If False, asking for one raises
            `DeviceNotFakedError`.
        known_values: The most elements a fake may have whose values are kept, because they follow from constants by
            deterministic operators; `.item()`, masks and the like then answer truly. 0 keeps none. All that
            is kept takes a gigabyte at most.
        selects_all: Whether a mask, or `nonzero`, of values that are not known is taken to select everything, in place
            of an error. A guess, of the most that can be selected: a mixture of experts that routes by values then
            runs with every token at every expert.

    >>> import torch
    >>> from torchfake import fake_mode
    >>> with fake_mode():
    ...     x = torch.ones(10)
    ...     weights = torch.empty(70_000, 1_000_000, device="cuda")
    >>> x
    tensor(..., size=(10,), fake=True)
    >>> weights
    tensor(..., device='cuda:0', size=(70000, 1000000), fake=True)

    Modes nest, each thread has its own, and fakes keep working outside:

    >>> (x + x).device
    device(type='cpu')
    """

    def __init__(self, *, fake_cuda: bool = True, known_values: int = KNOWN_VALUES, selects_all: bool = False) -> None:
        if known_values < 0:
            raise ValueError(f"fake_mode: known_values must be 0 or more, got {known_values}")
        super().__init__(_C.ModeState(known_values=known_values))
        self._state.fake_cuda = fake_cuda
        self._state.selects_all = selects_all

    @classmethod
    def _with_state(cls: type[Self], state: _C.ModeState) -> Self:
        mode = cls.__new__(cls)
        Mode.__init__(mode, state)
        return mode

    @property
    def fake_cuda(self) -> bool:
        """Whether devices that this machine lacks may be claimed."""
        return self._state.fake_cuda

    @property
    def known_values(self) -> int:
        """The most elements a fake may have whose values are kept."""
        return self._state.known_values


class no_fake_mode(contextlib.ContextDecorator):
    """Suspends the mode: tensors created in its scope are real.

    >>> import torch
    >>> from torchfake import fake_mode, is_fake, no_fake_mode
    >>> with fake_mode():
    ...     with no_fake_mode():
    ...         is_fake(torch.ones(2))
    False
    """

    def __init__(self) -> None:
        self._entered: list[_C.EnteredNoFakeMode] = []

    def __enter__(self) -> None:
        self._entered.append(_C.EnteredNoFakeMode())

    def __exit__(self, *_: object) -> None:
        self._entered.pop().leave()


class in_mode_of:
    """Enters the mode of a fake, unless the thread is in a mode already: what is made from a fake is fake."""

    def __init__(self, fake: Tensor) -> None:
        self._fake = fake
        self._entered: _C.EnteredFakeMode | None = None
        self._lifts_cpu_only = False

    def __enter__(self) -> None:
        if not _C.in_fake_mode():
            self._lifts_cpu_only = torch._C._only_lift_cpu_tensors()
            self._entered = _C.EnteredFakeMode(_C.mode_of(self._fake))
            torch._C._set_only_lift_cpu_tensors(True)

    def __exit__(self, *_: object) -> None:
        if self._entered is not None:
            torch._C._set_only_lift_cpu_tensors(self._lifts_cpu_only)
            self._entered.leave()


def find_fake(values: Iterable[object]) -> Tensor | None:
    """The first fake among `values`, taken out of its wrappers; None if there is none."""
    for value in values:
        if isinstance(value, Tensor):
            inner = _unwrap(value)
            if inner is not None:
                return inner
    return None


def _unwrap(tensor: Tensor) -> Tensor | None:
    """The fake that `tensor` is or wraps; None for a real tensor."""
    if _C.is_plain_fake(tensor):
        return tensor
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return _unwrap(torch._C._functorch.get_unwrapped(tensor))
    if torch._is_functional_tensor(tensor):
        return _unwrap(torch._from_functional_tensor(tensor))
    if isinstance(tensor, FunctionalTensor):
        return _unwrap(tensor.elem)
    if is_traceable_wrapper_subclass(tensor):
        names, _ = tensor.__tensor_flatten__()
        return find_fake(getattr(tensor, name) for name in names)
    return None


def is_fake(tensor: object) -> bool:
    """Whether `tensor` is fake. Looks through functorch's and functionalization's wrappers and wrapper subclasses.

    >>> import torch
    >>> from torchfake import fake_mode, is_fake
    >>> with fake_mode():
    ...     x = torch.ones(2)
    >>> is_fake(x), is_fake(torch.ones(2))
    (True, False)
    """
    return isinstance(tensor, Tensor) and _unwrap(tensor) is not None


def maybe_get_fake_mode(t: object) -> Mode | None:
    """The mode of the fake that `t` is or wraps; None where there is none.

    >>> import torch
    >>> from torchfake import fake_mode, maybe_get_fake_mode
    >>> with fake_mode() as mode:
    ...     x = torch.ones(2)
    >>> maybe_get_fake_mode(x) is mode, maybe_get_fake_mode(torch.ones(2))
    (True, None)
    """
    fake = _unwrap(t) if isinstance(t, Tensor) else None
    return None if fake is None else mode_of(fake)


def detect_fake_mode(inputs: object = None) -> Mode | None:
    """The mode that is active, else that of the first fake among `inputs` (any nesting of containers); or None.

    Raises:
        MixedModesError: Two fakes among `inputs` belong to different modes, one of which takes its own alone.
    """
    found = current_mode()
    for leaf in torch.utils._pytree.tree_leaves(inputs):
        mode = maybe_get_fake_mode(leaf)
        if mode is None or mode is found:
            continue
        if found is None:
            found = mode
        elif found._state.exclusive or mode._state.exclusive:
            raise MixedModesError("detect_fake_mode: the inputs belong to different modes")
    return found


def get_plain_tensors(subclass: Tensor, *, out: list[Any]) -> list[Any]:
    """Appends to `out` the tensors that a wrapper subclass consists of, in order, wrappers within wrappers opened.

    >>> import torch
    >>> from torchfake import get_plain_tensors
    >>> len(get_plain_tensors(torch.ones(2), out=[]))
    1
    """
    if not is_traceable_wrapper_subclass(subclass):
        out.append(subclass)
        return out
    names, _ = subclass.__tensor_flatten__()
    for name in names:
        get_plain_tensors(getattr(subclass, name), out=out)
    return out


def meta_like(fake: Tensor) -> Tensor:
    """A meta tensor with the sizes, strides and dtype of `fake`, detached from autograd.

    Raises:
        ValueError: `fake` is a real tensor.

    >>> import torch
    >>> from torchfake import fake_mode, meta_like
    >>> with fake_mode():
    ...     x = torch.ones(2, 3, device="cuda").t()
    >>> m = meta_like(x)
    >>> m.device, m.size(), m.stride()
    (device(type='meta'), torch.Size([3, 2]), (1, 3))
    """
    return _C.meta_like(fake)


def to_fake(tensor: Tensor, device: torch.device | str | None = None) -> Tensor:
    """A fake with the metadata of a real or meta tensor; a fake comes back as it is.

    Tensors that share a storage become fakes that share one. `device` is what the fake claims; by default the tensor's
    own, and the CPU for a meta tensor. A `Parameter` becomes a `Parameter`.

    Raises:
        UnsupportedFakeTensorException: `tensor` is sparse, nested or quantized.

    >>> import torch
    >>> from torchfake import to_fake
    >>> to_fake(torch.zeros(4, 2), device="cuda:1")
    tensor(..., device='cuda:1', size=(4, 2), fake=True)
    """
    fake = _C.to_fake(tensor, torch.device(device) if device is not None else None)
    if isinstance(tensor, torch.nn.Parameter) and not isinstance(fake, torch.nn.Parameter):
        return torch.nn.Parameter(fake.detach(), requires_grad=tensor.requires_grad)
    return fake


def _value_to_keep(mode: Mode, constant: Tensor | None, real_tensor: Tensor | None) -> Tensor | None:
    state = mode._state
    if real_tensor is not None and not state.propagate_real_tensors:
        raise ValueError("FakeTensor: real_tensor is for a mode with propagate_real_tensors=True; give a constant")
    if constant is not None and state.propagate_real_tensors:
        raise ValueError("FakeTensor: constant is for a mode without propagate_real_tensors; give a real_tensor")
    if constant is not None and constant.numel() > state.known_values:
        raise ValueError(
            f"FakeTensor: the mode keeps values of up to {state.known_values} elements, and the constant has "
            f"{constant.numel()}"
        )
    value = real_tensor if constant is None else constant
    if value is None or not is_fake(value):
        return value
    known = _C.known_values_of(value, copy=True)
    if known is None:
        name = "real_tensor" if constant is None else "constant"
        raise ValueError(f"FakeTensor: {name} is a fake tensor whose values are not known; give a real one")
    return known


def write_value(value: Tensor, fake: Tensor) -> None:
    """Makes the value of `fake` that of a real tensor."""
    with no_fake_mode(), torch.no_grad():
        fake.copy_(_C.lift_constant(value.detach().clone(), _C.mode_of(fake)))


class _FakeTensorMeta(type(Tensor)):  # type: ignore[misc]
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, Tensor) and _C.is_plain_fake(instance)


class FakeTensor(Tensor, metaclass=_FakeTensorMeta):
    """The type to ask for: `isinstance(t, FakeTensor)`. Fakes are plain tensors otherwise.

    A wrapper around a fake is no FakeTensor; `is_fake` looks through it.

    >>> import torch
    >>> from torchfake import FakeTensor, fake_mode
    >>> with fake_mode():
    ...     x = torch.ones(2)
    >>> isinstance(x, FakeTensor), isinstance(torch.ones(2), FakeTensor)
    (True, False)
    """

    def __new__(  # type: ignore[misc]
        cls,
        fake_mode: Mode,
        elem: Tensor,
        device: torch.device | str,
        constant: Tensor | None = None,
        real_tensor: Tensor | None = None,
        pytype: type[Tensor] | None = None,
        dispatch_keys: object = None,
        *,
        requires_grad: bool | None = None,
    ) -> Tensor:
        """A fake of `fake_mode` on `device` with the metadata of a meta tensor.

        Args:
            constant: Its value, of no more elements than the mode keeps.
            real_tensor: Its value, in a mode with `propagate_real_tensors=True`.
            pytype: Kept as an attribute, without effect.
            dispatch_keys: The same.

        Raises:
            ValueError: `elem` is not on the meta device, or the mode cannot keep the value.
            UnsupportedFakeTensorException: `device` is meta, and the mode has `allow_meta=False`.
        """
        if elem.device.type != "meta":
            raise ValueError(f"FakeTensor: expected a meta tensor, got one on {elem.device}")
        refuse_meta(device, fake_mode)
        value = _value_to_keep(fake_mode, constant, real_tensor)
        with no_fake_mode():  # detached: what is made here is not what stands for `elem`
            fake = _C.from_meta_and_device(elem.detach(), torch.device(device), fake_mode._state)
        if value is not None:
            write_value(value, fake)
        fake.requires_grad_(elem.requires_grad if requires_grad is None else requires_grad)
        return keep_for_readers(fake, pytype, dispatch_keys)

    @staticmethod
    def from_tensor(t: Tensor, fake_mode: FakeTensorMode) -> Tensor:
        """The fake that stands for a real tensor in a mode."""
        return fake_mode.from_tensor(t)
