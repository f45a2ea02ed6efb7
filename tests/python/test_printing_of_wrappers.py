"""Subclasses and wrappers of fakes print like those around meta tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from torchfake import fake_mode


class _Sub(torch.Tensor):
    pass


class _Wrapper(torch.Tensor):
    """A wrapper around another tensor that does not declare where it holds it."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor, **kwargs: Any) -> _Wrapper:
        return torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined,no-any-return]
            cls, inner.shape, dtype=inner.dtype, device=inner.device, **kwargs
        )

    def __init__(self, inner: Tensor, **kwargs: Any) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"no {func}")


class _Traceable(_Wrapper):
    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], *_: object) -> _Traceable:
        return _Traceable(inner["inner"])


@pytest.mark.parametrize("kind", [_Wrapper, _Traceable])
@pytest.mark.parametrize("make", [torch.ones, torch.rand])
def test_a_wrapper_around_a_fake_prints(kind: type[_Wrapper], make: Callable[..., Tensor]) -> None:
    with fake_mode():
        on_cpu, on_cuda = kind(make(2)), kind(make(2, device="cuda"), requires_grad=True)
        name = kind.__name__
        assert repr(on_cpu) == f"{name}(..., size=(2,), fake=True)"
    assert repr(on_cuda) == f"{name}(..., device='cuda:0', size=(2,), fake=True, requires_grad=True)"
    assert repr(kind(torch.ones(2, device="meta"))) == f"{name}(..., device='meta', size=(2,))"


def test_a_subclass_prints_under_its_name() -> None:
    with fake_mode():
        assert repr(torch.ones(2).as_subclass(_Sub)) == "_Sub(..., size=(2,), fake=True)"
    assert repr(torch.ones(2).as_subclass(_Sub)) == "_Sub([1., 1.])"
