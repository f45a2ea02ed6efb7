"""Methods and types that PyTorch implements outside the dispatcher, on fakes and on subclasses of them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from metadata import assert_same_metadata, metadata
from torch import Tensor
from undrawn import fake_mode

from torchfake import DataAccessError, is_fake


class _Sub(torch.Tensor):
    pass


class _Plain(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl


METHODS: dict[str, Callable[[Tensor], Any]] = {
    "tolist": lambda x: x.tolist(),
    "new_tensor": lambda x: x.new_tensor([1, 2]),
    "new_tensor_of_tensor": lambda x: x.detach().new_tensor(x.detach().tolist()),
    "new_tensor_dtype": lambda x: x.new_tensor([1, 2], dtype=torch.int64, requires_grad=False),
    "new": lambda x: x.new([1, 2]),
    "new_sizes": lambda x: x.new(2, 3),
    "new_nothing": lambda x: x.new(),
    "new_size": lambda x: x.new(torch.Size([2, 2])),
    "new_tuple": lambda x: x.new((2, 3)),
    "new_alias": lambda x: [x, x.new(x)],
    "type": lambda x: x.type(),
    "type_dtype": lambda x: x.type(torch.half),
    "type_name": lambda x: x.type("torch.LongTensor"),
    "type_class": lambda x: x.type(torch.LongTensor),
    "type_as": lambda x: x.type_as(torch.ones(1, dtype=torch.half)),
}


@pytest.mark.parametrize("kind", [Tensor, _Sub, _Plain, torch.nn.Parameter])
@pytest.mark.parametrize("name", METHODS)
def test_a_method_outside_the_dispatcher_gives_what_it_gives_on_real_tensors(name: str, kind: type[Tensor]) -> None:
    def program() -> Any:
        x = torch.ones(3)
        return METHODS[name](torch.nn.Parameter(x) if kind is torch.nn.Parameter else x.as_subclass(kind))

    real = program()
    with fake_mode():
        fake = program()
    assert_same_metadata(fake, real, device="cpu")


def test_new_of_another_type_is_refused() -> None:
    with fake_mode():
        for other in (torch.ones(2, dtype=torch.half), torch.ones(2, device="cuda")):
            with pytest.raises(TypeError, match=r"new: expected a torch.FloatTensor on cpu"):
                torch.ones(2).new(other)


def test_tolist_of_an_unknown_subclass_is_a_typed_error() -> None:
    with fake_mode(), pytest.raises(DataAccessError, match="tolist"):
        torch.rand(3).as_subclass(_Sub).tolist()


@pytest.mark.parametrize("fake", [True, False])
def test_torch_function_sees_the_methods_as_attributes_of_tensor(fake: bool) -> None:
    seen = []

    class Watching(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return super().__torch_function__(func, types, args, kwargs or {})

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    def program() -> None:
        x = torch.ones(2)
        y = x.as_subclass(Watching)
        seen.clear()
        y.tolist()
        y.new_tensor([1])
        with Mode():
            x.tolist()

    if fake:
        with fake_mode():
            program()
    else:
        program()
    assert seen == [Tensor.tolist, Tensor.new_tensor, Tensor.tolist]
    handlers = {Tensor.tolist: "a handler"}
    assert handlers[seen[0]] == "a handler"


def test_legacy_constructors_make_fakes() -> None:
    def program() -> list[Tensor]:
        return [
            torch.Tensor([1, 2]),
            torch.Tensor(2, 3),
            torch.Tensor(),
            torch.FloatTensor(2, 3),
            torch.FloatTensor([1, 2]),
            torch.LongTensor([[1, 2], [3, 4]]),
            torch.BoolTensor([True]),
            torch.HalfTensor(torch.Size([4])),
            torch.Tensor(numpy.ones(2, dtype=numpy.float32)),
        ]

    real = program()
    with fake_mode():
        fake = program()
        assert_same_metadata(fake, real, device="cpu")
        assert fake[5].tolist() == [[1, 2], [3, 4]]


@pytest.mark.skipif(torch.backends.cuda.is_built(), reason="this PyTorch has these types itself")
def test_legacy_cuda_types_make_fakes_in_the_mode_only() -> None:
    with fake_mode():
        x = torch.cuda.FloatTensor([1, 2])
        assert is_fake(x) and x.device == torch.device("cuda:0") and x.tolist() == [1.0, 2.0]
        assert torch.cuda.LongTensor(2, 3).shape == (2, 3) and torch.cuda.LongTensor(2, 3).dtype == torch.int64
        assert torch.cuda.HalfTensor().shape == (0,)
        assert isinstance(x, torch.cuda.FloatTensor) and not isinstance(x, torch.cuda.HalfTensor)
        assert not isinstance(torch.ones(2), torch.cuda.FloatTensor)
        assert torch.ones(2).type(torch.cuda.HalfTensor).device.type == "cuda"
        assert x.type() == "torch.cuda.FloatTensor"
    assert torch.cuda.FloatTensor.dtype == torch.float32
    with pytest.raises(TypeError, match=r"torch.cuda.FloatTensor not available"):
        torch.cuda.FloatTensor(2)


def test_a_deep_copy_keeps_type_and_values() -> None:
    with fake_mode():
        x = torch.arange(3)
        assert copy.deepcopy(x).tolist() == [0, 1, 2]
        parameter = torch.nn.Parameter(torch.ones(2, device="cuda"))
        assert metadata(copy.deepcopy(parameter)) == metadata(parameter)
