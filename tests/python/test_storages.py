"""Writes to the storage of a fake without an operator invalidate its known values."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from torchfake import DataAccessError, FakeTensorMode, RealTensorError, fake_mode

pytestmark = pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")

WRITES: dict[str, Callable[[Tensor], Any]] = {
    "fill": lambda x: x.untyped_storage().fill_(0),
    "item": lambda x: x.untyped_storage().__setitem__(0, 7),
    "slice": lambda x: x.untyped_storage().__setitem__(slice(0, 4), 7),
    "copy": lambda x: x.untyped_storage().copy_(torch.UntypedStorage(12)),
    "copy_of_fake": lambda x: x.untyped_storage().copy_(torch.empty_like(x).untyped_storage()),
    "byteswap": lambda x: x.untyped_storage().byteswap(torch.float32),
    "resize": lambda x: x.untyped_storage().resize_(16),
    "typed_fill": lambda x: x.storage().fill_(0),
    "typed_item": lambda x: x.storage().__setitem__(0, 7),
    "typed_copy": lambda x: x.storage().copy_(torch.empty_like(x).storage()),
    "typed_resize": lambda x: x.storage().resize_(5),
}


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", WRITES)
def test_a_write_through_the_storage_ends_what_is_known(name: str, device: str, inside: bool) -> None:
    with fake_mode():
        x = torch.ones(3, device=device)
        view = x[1:]
        assert x.tolist() == [1.0] * 3
        if inside:
            WRITES[name](x)
    if not inside:
        WRITES[name](x)
    for fake in (x, view):
        with pytest.raises(DataAccessError):
            fake.tolist()


def test_a_storage_is_known_again_once_it_is_written_by_an_operator() -> None:
    with fake_mode():
        x = torch.ones(3)
        x.untyped_storage().fill_(0)
        x.fill_(2)
        assert x.tolist() == [2.0] * 3


def test_resizing_to_the_size_it_has_keeps_a_storage_known_to_be_right_or_unknown() -> None:
    with fake_mode():
        x = torch.ones(3)
        x.untyped_storage().resize_(12)
        assert x.untyped_storage().nbytes() == 12
        with pytest.raises(DataAccessError):
            x.tolist()


def test_data_can_be_copied_into_the_storage_of_a_fake_and_not_out_of_it() -> None:
    real = torch.UntypedStorage(12)
    with fake_mode():
        fake = torch.ones(3).untyped_storage()
        assert fake.copy_(real) is fake
        with pytest.raises(DataAccessError, match=r"UntypedStorage.copy_"):
            real.copy_(fake)
        with pytest.raises(DataAccessError, match=r"UntypedStorage"):
            fake.cpu().tolist()
        with pytest.raises(RuntimeError, match="size"):
            fake.copy_(torch.UntypedStorage(5))


def test_storages_of_real_tensors_are_written_as_ever() -> None:
    def program() -> list[list[float]]:
        results = []
        for name in ("fill", "item", "slice", "byteswap", "resize", "typed_fill", "typed_item", "typed_resize"):
            x = real.clone()
            WRITES[name](x)
            results.append(x.tolist())
        x = real.clone()
        x.untyped_storage().copy_(zeros.untyped_storage())
        x.storage()[0] = 5
        return [*results, x.tolist()]

    real, zeros = torch.ones(3), torch.zeros(3)
    expected = program()
    with fake_mode():
        assert program() == expected
    assert expected[0] == [0.0, 0.0, 0.0] and expected[-1] == [5.0, 0.0, 0.0]


READS: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda x: x.untyped_storage()[0],
    "list": lambda x: x.untyped_storage().tolist(),
    "bytes": lambda x: bytes(x.untyped_storage()),
    "typed_item": lambda x: x.storage()[0],
    "typed_list": lambda x: x.storage().tolist(),
}


@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize("mode", [fake_mode, FakeTensorMode])
def test_nothing_can_be_read_from_the_storage_of_a_fake(mode: Callable[[], Any], name: str) -> None:
    with mode():
        fake = torch.rand(3)
        with pytest.raises(DataAccessError, match="holds no data to read"):
            READS[name](fake)
    with pytest.raises(DataAccessError, match="holds no data to read"):
        READS[name](fake)
    with pytest.raises(NotImplementedError):  # as ever
        READS[name](torch.empty(3, device="meta"))


MORE_READS: dict[str, Callable[[Tensor], Any]] = {
    "shown": lambda x: str(x.untyped_storage()),
    "typed_shown": lambda x: str(x.storage()),
    "converted": lambda x: x.storage().double().tolist(),
    "cloned": lambda x: x.untyped_storage().clone().tolist(),
}


@pytest.mark.parametrize("name", [*READS, *MORE_READS])
@pytest.mark.parametrize("mode", [fake_mode, FakeTensorMode])
def test_storages_of_real_tensors_are_read_as_ever(mode: Callable[[], Any], name: str) -> None:
    real, read = torch.arange(3.0), {**READS, **MORE_READS}[name]
    expected = read(real)
    with mode():
        assert read(real) == expected


@pytest.mark.parametrize("mode", [fake_mode, FakeTensorMode])
def test_a_tensor_and_a_storage_are_both_fake_or_both_real(mode: Callable[[], Any]) -> None:
    real = torch.ones(3)
    with mode() as entered:
        fake = torch.ones(3)
        for context in (entered, contextlib.nullcontext()):
            with context:
                for storage in (real.untyped_storage(), real.storage()):
                    with pytest.raises(RealTensorError, match="the storage belongs to a real tensor"):
                        fake.set_(storage)
                with pytest.raises(RealTensorError, match="the storage belongs to a fake"):
                    real.set_(fake.untyped_storage(), 0, (3,), (1,))
        assert fake.set_(torch.zeros(2).untyped_storage()).shape == (2,)
    real.set_(torch.zeros(2).untyped_storage())
    assert real.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("inside", [True, False])
def test_a_storage_names_the_device_that_is_claimed_and_so_do_its_copies(inside: bool) -> None:
    with fake_mode():
        storage = torch.ones(3, device="cuda:1").untyped_storage()
    with fake_mode() if inside else contextlib.nullcontext():
        assert storage.device == torch.device("cuda:1")
        assert storage.is_cuda
        assert storage.get_device() == 1
        copies = {
            "cuda:1": storage.clone(),
            "cpu": storage.cpu(),
            "cuda:2": storage.cuda(2),
            "xpu:0": storage.to(device="xpu"),
        }
        for device, copy in copies.items():
            assert copy.device == torch.device(device)
            assert (copy.nbytes(), copy._cdata != storage._cdata) == (12, True)
        assert storage.to(device="cuda:1") is storage
        assert copies["cpu"].cpu() is copies["cpu"]
        doubles = storage.double()
        assert (doubles.device, doubles.dtype, doubles.nbytes()) == (torch.device("cuda:1"), torch.float64, 96)


def test_a_storage_prints_its_device_and_no_data() -> None:
    with fake_mode():
        x = torch.ones(3, device="cuda:1")
    assert str(x.untyped_storage()) == "...\n[torch.storage.UntypedStorage(device=cuda:1) of size 12]"
    assert str(x.storage()) == "...\n[torch.storage.TypedStorage(dtype=torch.float32, device=cuda:1) of size 3]"


def test_a_tensor_made_on_the_device_of_a_storage_can_have_it() -> None:
    with fake_mode():
        storage = torch.ones(3, device="cuda:1").untyped_storage()
        x = torch.tensor([], device=storage.device).set_(storage)
        assert (x.shape, x.device) == ((3,), torch.device("cuda:1"))


def test_storages_of_real_and_meta_tensors_are_what_they_were() -> None:
    real = torch.ones(3).untyped_storage()
    assert real.device == torch.device("cpu")
    assert real.clone().tolist() == real.tolist() == real.cpu().tolist()
    meta = torch.ones(3, device="meta").untyped_storage()
    assert meta.device == meta.clone().device == torch.device("meta")
