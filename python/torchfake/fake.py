"""Fake tensors: they claim a device, a dtype, sizes and strides, and hold no data.

The names of the ancestor, `torchdistx.fake`, with the same meaning: code written for it runs with the import renamed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from torchfake import _C

__all__ = ["FakeTensor", "fake_mode", "is_fake", "meta_like", "no_fake_mode", "to_fake"]

#: How many elements a fake may have for its values to be kept, where they follow from constants.
KNOWN_VALUES = 16_384


class fake_mode(contextlib.ContextDecorator):  # a verb in the ancestor, so lower case
    """Makes every tensor created in its scope fake. A context manager, and a decorator.

    Args:
        fake_cuda: Whether devices that this machine lacks may be claimed. If False, asking for one raises
            `DeviceNotFakedError`.
        known_values: The most elements a fake may have whose values are kept, because they follow from constants by
            deterministic operators; `.item()`, masks and the like then answer truly. 0 keeps none.

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

    def __init__(self, *, fake_cuda: bool = True, known_values: int = KNOWN_VALUES) -> None:
        if known_values < 0:
            raise ValueError(f"fake_mode: known_values must be 0 or more, got {known_values}")
        self.fake_cuda = fake_cuda
        self.known_values = known_values
        self._entered: list[tuple[_C.EnteredFakeMode, bool]] = []

    def __enter__(self) -> fake_mode:
        lifts_cpu_only = torch._C._only_lift_cpu_tensors()
        entered = _C.EnteredFakeMode(fake_cuda=self.fake_cuda, known_values=self.known_values)
        # torch.tensor(..., device="cuda") is then made on the CPU, turned fake, and moved as a fake.
        torch._C._set_only_lift_cpu_tensors(True)
        _C._skip_init_of_other_backends(True)
        self._entered.append((entered, lifts_cpu_only))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        entered, lifts_cpu_only = self._entered.pop()
        torch._C._set_only_lift_cpu_tensors(lifts_cpu_only)
        entered.leave()
        _C._skip_init_of_other_backends(_C.in_fake_mode())


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
            self._entered = _C.EnteredFakeMode.of(self._fake)
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


class _FakeTensorMeta(type(Tensor)):  # type: ignore[misc]
    def __instancecheck__(cls, instance: Any) -> bool:
        return is_fake(instance)


class FakeTensor(Tensor, metaclass=_FakeTensorMeta):
    """The type to ask for: `isinstance(t, FakeTensor)` is `is_fake(t)`. Fakes are plain tensors otherwise.

    >>> import torch
    >>> from torchfake import FakeTensor, fake_mode
    >>> with fake_mode():
    ...     x = torch.ones(2)
    >>> isinstance(x, FakeTensor), isinstance(torch.ones(2), FakeTensor)
    (True, False)
    """

    def __new__(cls, *args: object, **kwargs: object) -> FakeTensor:
        raise TypeError("FakeTensor: fake tensors are made by creating tensors inside fake_mode(), or with to_fake()")
