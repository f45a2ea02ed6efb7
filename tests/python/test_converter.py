"""Real tensors converted by a mode: once each, with their autograd roles and shared memory."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from metadata import metadata
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.testing._internal.two_tensor import TwoTensor

from torchfake import (
    DataDependentOutputException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    get_plain_tensors,
    is_fake,
    maybe_get_fake_mode,
)


def test_a_tensor_is_converted_once() -> None:
    mode, real = FakeTensorMode(), torch.ones(2)
    fake = mode.from_tensor(real)
    assert mode.from_tensor(real) is fake and FakeTensor.from_tensor(real, mode) is fake
    assert mode.from_tensor(fake) is fake
    assert FakeTensorMode().from_tensor(real) is not fake


def test_neither_is_kept_alive_by_the_memo() -> None:
    mode, real = FakeTensorMode(), torch.ones(2)
    fake = weakref.ref(mode.from_tensor(real))
    gc.collect()
    assert fake() is None
    kept = mode.from_tensor(real)
    gone = weakref.ref(real)
    del real
    gc.collect()
    assert gone() is None and is_fake(kept)


def leaf() -> Tensor:
    return torch.ones(4, 3, requires_grad=True)


REALS: dict[str, Callable[[], Tensor]] = {
    "plain": lambda: torch.ones(2, 3),
    "transposed": lambda: torch.ones(2, 3).t(),
    "part": lambda: torch.ones(10)[3:7],
    "expanded": lambda: torch.ones(1, 3).expand(4, 3),
    "channels_last": lambda: torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "empty": lambda: torch.ones(0, 3),
    "zero_dimensional": lambda: torch.ones((), dtype=torch.int64),
    "bfloat16": lambda: torch.ones(2, dtype=torch.bfloat16),
    "conj": lambda: torch.ones(2, dtype=torch.cfloat).conj(),
    "neg": lambda: torch.ones(2, dtype=torch.cfloat).conj().imag,
    "real_of_complex": lambda: torch.view_as_real(torch.ones(2, dtype=torch.cfloat)),
    "other_dtype": lambda: torch.ones(2).view(torch.int32),
    "leaf": leaf,
    "not_a_leaf": lambda: leaf() * 2,
    "view_of_leaf": lambda: leaf()[1:],
    "view_of_not_a_leaf": lambda: (leaf() * 2).t()[1:],
    "detached_view": lambda: leaf().detach()[1:],
    "leaf_that_is_a_view": lambda: torch.ones(4)[1:].requires_grad_(),
    "inference": lambda: torch.inference_mode()(lambda: torch.ones(2))(),
    "parameter": lambda: torch.nn.Parameter(torch.ones(2, 3).t()),
    "frozen_parameter": lambda: torch.nn.Parameter(torch.ones(2), requires_grad=False),
    "buffer": lambda: torch.nn.Buffer(torch.ones(2)),
}


@pytest.mark.parametrize("name", REALS)
def test_a_fake_has_what_the_real_tensor_has(name: str) -> None:
    real = REALS[name]()
    fake = FakeTensorMode().from_tensor(real)
    got, want = metadata(fake), metadata(real)
    for history in ("grad_fn", "version"):  # that there is a history agrees, but not which one
        del got[history], want[history]
    assert is_fake(fake) and got == want
    assert type(fake) is type(real)
    assert (fake.requires_grad, fake.is_leaf, fake.is_inference()) == (
        real.requires_grad,
        real.is_leaf,
        real.is_inference(),
    )
    assert fake._is_view() == real._is_view()


def test_views_of_one_storage_stay_views_of_one_storage() -> None:
    mode, base = FakeTensorMode(), torch.ones(4, 4)
    detached = base.detach()
    fakes = [mode.from_tensor(t) for t in (base[1:], base, detached, base.t())]
    assert len({fake.untyped_storage()._cdata for fake in fakes}) == 1
    assert fakes[0]._base is fakes[1] and fakes[3]._base is fakes[1]
    assert mode.from_tensor(torch.ones(4, 4)).untyped_storage()._cdata != fakes[0].untyped_storage()._cdata


def test_a_converted_view_carries_gradients_to_its_base() -> None:
    mode = FakeTensorMode()
    real = leaf()
    base, view = mode.from_tensor(real), mode.from_tensor(real[1:])
    view.sum().backward()
    assert base.grad is not None and base.grad.shape == (4, 3)


def test_the_gradient_is_converted_too() -> None:
    mode, real = FakeTensorMode(), leaf()
    (real * 2).sum().backward()
    fake = mode.from_tensor(real)
    assert is_fake(fake.grad) and fake.grad is mode.from_tensor(real.grad)


def test_wrapper_subclasses_are_converted_inside() -> None:
    mode = FakeTensorMode()
    first, second = torch.ones(2, 3), torch.ones(2, 3)
    real = TwoTensor(first, TwoTensor(second, first))
    fake = mode.from_tensor(real)
    assert isinstance(fake, TwoTensor) and is_fake(fake) and mode.from_tensor(real) is fake
    plain = get_plain_tensors(fake, out=[])
    assert (
        plain == []
        or [t is mode.from_tensor(r) for t, r in zip(plain, (first, second, first), strict=True)] == [True] * 3
    )
    assert (fake + 1).shape == (2, 3)


def test_a_wrapper_may_hold_more_than_tensors() -> None:
    with one_process_of_two() as mesh:
        real = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)])
        fake = FakeTensorMode().from_tensor(real)
        assert isinstance(fake, DTensor) and is_fake(fake) and fake.device_mesh is mesh
        assert (fake + 1).shape == (4, 4) and fake.to_local().shape == (2, 4)


@contextlib.contextmanager
def one_process_of_two() -> Iterator[DeviceMesh]:
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        yield init_device_mesh("cpu", (2,))
    finally:
        torch.distributed.destroy_process_group()


def wrapped_parameter() -> Any:
    return torch.nn.Parameter(TwoTensor(torch.ones(3, 3), torch.ones(3, 3)))


WRAPPERS: dict[str, Callable[[], Tensor]] = {
    "parameter": wrapped_parameter,
    "not_a_leaf": lambda: wrapped_parameter() * 2,
    "view_of_leaf": lambda: wrapped_parameter().t(),
    "view_of_not_a_leaf": lambda: (wrapped_parameter() * 2)[1:],
    "detached_view": lambda: wrapped_parameter().detach()[1:],
    "leaf_that_is_a_view": lambda: wrapped_parameter().detach()[1:].requires_grad_(),
    "view_of_a_leaf_that_is_a_view": lambda: wrapped_parameter().detach()[1:].requires_grad_()[1:],
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapper_keeps_its_place_in_autograd(name: str) -> None:
    mode, real = FakeTensorMode(), WRAPPERS[name]()
    with FakeTensorMode(), torch.no_grad():  # neither must have an effect
        fake = mode.from_tensor(real)
    assert isinstance(fake, TwoTensor) and maybe_get_fake_mode(fake) is mode
    for asked in ("requires_grad", "is_leaf", "_is_view"):
        of_fake, of_real = getattr(fake, asked), getattr(real, asked)
        assert of_fake == of_real if isinstance(of_real, bool) else of_fake() == of_real()
    assert isinstance(fake, torch.nn.Parameter) == isinstance(real, torch.nn.Parameter)
    assert (fake.shape, fake.stride()) == (real.shape, real.stride())
    if real._base is not None:
        assert fake._base is mode.from_tensor(real._base)


def test_a_wrapper_that_is_no_leaf_is_around_the_fakes_of_what_it_holds() -> None:
    mode, real = FakeTensorMode(), WRAPPERS["not_a_leaf"]()
    fake, inner = mode.from_tensor(real), mode.from_tensor(real.a)
    assert fake.a.untyped_storage()._cdata == inner.untyped_storage()._cdata
    fake.sum().backward()


def test_a_buffer_stays_one() -> None:
    fake = FakeTensorMode().from_tensor(torch.nn.Buffer(torch.ones(2), persistent=False))
    assert isinstance(fake, torch.nn.Buffer) and fake.persistent is False


def test_what_is_no_tensor_is_not_converted() -> None:
    with pytest.raises(TypeError, match="from_tensor: expected a tensor, got NoneType"):
        FakeTensorMode().from_tensor(None)  # type: ignore[arg-type]


def test_wrappers_of_transforms_are_converted_inside() -> None:
    mode = FakeTensorMode()
    seen: list[Tensor] = []

    def convert(x: Tensor) -> Tensor:
        seen.append(mode.from_tensor(x))
        return x

    torch.vmap(convert)(torch.ones(2, 3))
    torch.func.grad(lambda x: convert(x).sum())(torch.ones(3))
    assert [is_fake(t) for t in seen] == [True, True] and [tuple(t.shape) for t in seen] == [(3,), (3,)]
    functional = torch._to_functional_tensor(torch.ones(4))
    assert torch._is_functional_tensor(mode.from_tensor(functional)) and is_fake(mode.from_tensor(functional))


UNSUPPORTED: dict[str, Callable[[], Tensor]] = {
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "mkldnn": lambda: torch.ones(2).to_mkldnn(),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_cannot_be_fake_is_refused_with_a_reason(name: str) -> None:
    real = UNSUPPORTED[name]()
    with pytest.raises(UnsupportedFakeTensorException, match="cannot be faked") as caught:
        FakeTensorMode().from_tensor(real)
    assert caught.value.reason and ("MKL-DNN" in caught.value.reason) == (name == "mkldnn")


def test_a_constant_keeps_its_value() -> None:
    mode, real = FakeTensorMode(), torch.tensor(5)
    fake = mode.fake_tensor_converter.from_real_tensor(mode, real, make_constant=True)
    assert fake.item() == 5
    mode.fake_tensor_converter.invalidate_constant_aliases(fake)
    assert fake.constant is None


def test_a_meta_tensor_becomes_a_fake_on_the_device_asked_for() -> None:
    mode = FakeTensorMode()
    meta = torch.empty(3, 2, device="meta").t()
    for make in (
        lambda: mode.fake_tensor_converter.from_meta_and_device(mode, meta, torch.device("cuda:1")),
        lambda: FakeTensor(mode, meta, torch.device("cuda:1")),
    ):
        fake: Any = make()
        assert fake.device == torch.device("cuda:1") and fake.stride() == meta.stride() and fake.fake_mode is mode
    with pytest.raises(ValueError, match="expected a meta tensor"):
        FakeTensor(mode, torch.ones(2), "cuda")


def test_a_parameter_cannot_be_a_constant() -> None:
    mode, parameter = FakeTensorMode(), torch.nn.Parameter(torch.ones(()))
    with pytest.raises(ValueError, match="a Parameter cannot be a constant"):
        mode.fake_tensor_converter.from_real_tensor(mode, parameter, make_constant=True)


def test_a_fake_can_be_made_with_its_value() -> None:
    meta = torch.empty(1, device="meta")
    fake: Any = FakeTensor(FakeTensorMode(), meta, "cuda", constant=torch.tensor([2.5]))
    assert fake.item() == 2.5 and fake.constant.item() == 2.5
    with FakeTensorMode(propagate_real_tensors=True) as mode:
        fake = FakeTensor(mode, meta, "cuda", real_tensor=torch.tensor([2.5]))
    assert fake.real_tensor.item() == 2.5
    with pytest.raises(ValueError, match="propagate_real_tensors=True"):
        FakeTensor(FakeTensorMode(), meta, "cpu", real_tensor=torch.ones(1))
    with pytest.raises(ValueError, match="without propagate_real_tensors"):
        FakeTensor(mode, meta, "cpu", constant=torch.ones(1))


def test_a_fake_keeps_what_it_was_made_with_for_those_who_read_it() -> None:
    mode, meta = FakeTensorMode(), torch.empty(1, device="meta")
    keys = torch._C._dispatch_keys(meta)
    fake: Any = FakeTensor(mode, meta, "cpu", pytype=torch.nn.Parameter, dispatch_keys=keys, requires_grad=True)
    assert (fake.pytype, fake.dispatch_keys, fake.requires_grad) == (torch.nn.Parameter, keys, True)
    plain: Any = FakeTensor(mode, meta, "cuda")
    assert (plain.pytype, plain.dispatch_keys, plain.requires_grad) == (None, None, False)
    assert plain.device == torch.device("cuda:0"), "each one is made for itself"


def test_the_meta_device_is_claimed_only_where_the_mode_allows_it() -> None:
    mode, meta = FakeTensorMode(allow_meta=False), torch.empty(1, device="meta")
    for make in (FakeTensor, mode.fake_tensor_converter.from_meta_and_device):
        with pytest.raises(UnsupportedFakeTensorException, match="allow_meta=False"):
            make(mode, meta, "meta")
    assert FakeTensor(FakeTensorMode(allow_meta=True), meta, "meta").device.type == "meta"


# ---- Constants of every kind ----


def test_a_constant_is_forgotten_through_the_real_tensor_it_was_made_from() -> None:
    mode = FakeTensorMode()
    converter = mode.fake_tensor_converter
    real = torch.tensor(3)
    fake = converter.from_real_tensor(mode, real, make_constant=True)
    other = converter.from_real_tensor(mode, torch.tensor(4), make_constant=True)
    assert fake.item() == 3
    converter.invalidate_constant_aliases(real[...])
    assert fake.constant is None and other.constant == 4
    converter.invalidate_constant_aliases(torch.ones(3))  # not the constant of any fake
    converter.invalidate_constant_aliases(other.constant)  # as PyTorch calls it
    assert other.constant is None
    with pytest.raises(DataDependentOutputException):
        fake.item()


def test_a_constant_is_converted_once() -> None:
    mode = FakeTensorMode()
    real = torch.tensor(3.0, requires_grad=True)
    fake = mode.fake_tensor_converter.from_real_tensor(mode, real, make_constant=True)
    assert mode.fake_tensor_converter.from_real_tensor(mode, real, make_constant=True) is fake
    assert mode.from_tensor(real) is fake


def test_a_constant_may_be_made_where_real_tensors_are_converted() -> None:
    real = torch.tensor(3)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = mode.fake_tensor_converter.from_real_tensor(mode, real, make_constant=True)
        assert is_fake(fake) and fake.item() == 3


def test_a_fake_cannot_be_a_constant_and_is_returned_unchanged() -> None:
    mode = FakeTensorMode()
    with mode:
        unknown, known = torch.rand(()), torch.tensor(5)
    convert = mode.fake_tensor_converter.from_real_tensor
    assert convert(mode, unknown, make_constant=True) is unknown and unknown.constant is None
    assert convert(mode, known, make_constant=True) is known and known.constant == 5
    other = FakeTensorMode()
    converted = other.fake_tensor_converter.from_real_tensor(other, unknown, make_constant=True)
    assert converted is not unknown and converted.fake_mode is other


@pytest.mark.parametrize(("propagates", "name"), [(False, "constant"), (True, "real_tensor")])
def test_a_fake_of_unknown_values_is_no_value_of_another(propagates: bool, name: str) -> None:
    mode = FakeTensorMode(propagate_real_tensors=propagates)
    fake = mode.fake_tensor_converter.from_meta_and_device(mode, torch.empty((), device="meta"), "cpu")
    with pytest.raises(ValueError, match=f"{name} is a fake tensor whose values are unknown"):
        FakeTensor(mode, torch.empty((), device="meta"), "cpu", **{name: fake})
