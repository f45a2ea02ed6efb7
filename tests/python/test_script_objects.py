"""Operators on objects of C++ classes, given the fakes that PyTorch makes of such objects."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._library.fake_class_registry import FakeScriptObject, maybe_to_fake_obj
from torch.testing._internal import torchbind_impls

from torchfake import (
    DataDependentOutputException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
    fake_mode,
    is_fake,
)


@pytest.fixture(scope="module")
def ops() -> Any:
    try:
        torchbind_impls.init_torchbind_implementations()
    except Exception as error:
        pytest.skip(f"this PyTorch comes without the classes of its own tests: {error}")
    return torch.ops._TorchScriptTesting


@pytest.fixture
def mode() -> FakeTensorMode:
    return FakeTensorMode()


@pytest.fixture
def foo(ops: Any, mode: FakeTensorMode) -> Any:
    fake = maybe_to_fake_obj(mode, torch.classes._TorchScriptTesting._Foo(10, 20))
    assert isinstance(fake, FakeScriptObject)
    return fake


def test_an_operator_takes_a_fake_object_in_the_mode_and_outside(ops: Any, foo: Any, mode: FakeTensorMode) -> None:
    x = FakeTensor(mode, torch.empty(2, 3, device="meta"), "cuda")
    with mode:
        inside = ops.takes_foo(foo, x)  # its kernel is one for meta tensors
    for y in (inside, ops.takes_foo(foo, x), ops.takes_foo_python_meta(foo, x)):
        assert is_fake(y) and y.fake_mode is mode and (y.shape, y.device.type) == ((2, 3), "cuda")


def test_an_operator_takes_a_fake_object_in_fake_mode(ops: Any) -> None:
    with fake_mode():
        fake = maybe_to_fake_obj(FakeTensorMode(), torch.classes._TorchScriptTesting._Foo(1, 2))
        assert ops.takes_foo_python_meta(fake, torch.ones(3)).shape == (3,)


def test_a_fake_object_keeps_its_state_between_operators(ops: Any, mode: FakeTensorMode) -> None:
    with mode:
        queue = maybe_to_fake_obj(mode, torch.classes._TorchScriptTesting._TensorQueue(torch.empty(0)))
        ops.queue_push(queue, torch.ones(4))
        assert ops.queue_size(queue) == 1
        assert ops.queue_pop(queue).shape == (4,)


def test_values_of_the_result_are_unknown(ops: Any, foo: Any, mode: FakeTensorMode) -> None:
    with mode:
        result = ops.takes_foo(foo, torch.tensor(2.0))  # 60 for real; the fake object's method says otherwise
        with pytest.raises(DataDependentOutputException):
            result.item()


def test_an_operator_without_a_fake_implementation_is_named(ops: Any, foo: Any, mode: FakeTensorMode) -> None:
    with torch.library._scoped_library("_TorchScriptTesting", "FRAGMENT") as library:
        library.define("without_fake(__torch__.torch.classes._TorchScriptTesting._Foo foo, Tensor x) -> Tensor")
        library.impl("without_fake", lambda foo, x: x.clone(), "CPU")
        with mode, pytest.raises(UnsupportedOperatorException, match="register_fake") as error:
            ops.without_fake(foo, torch.ones(2))
        assert str(error.value.func) == "_TorchScriptTesting.without_fake.default"
    assert "_TorchScriptTesting.without_fake.default" in str(error.value)


def test_real_objects_and_real_tensors_are_left_alone(ops: Any) -> None:
    real: Tensor = ops.takes_foo(torch.classes._TorchScriptTesting._Foo(10, 20), torch.ones(3))
    assert not is_fake(real) and real.tolist() == [30.0, 30.0, 30.0]
