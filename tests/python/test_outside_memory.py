"""Arrays, buffers and files become fakes in the mode, and share their values with them."""

from __future__ import annotations

import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from metadata import assert_same_metadata
from torch import Tensor
from undrawn import fake_mode

from torchfake import DataAccessError, is_fake


class _Exporter:
    """An array of another library, which only implements the DLPack protocol."""

    def __init__(self, values: Any) -> None:
        self._values = values

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self._values.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> Any:
        return self._values.__dlpack_device__()


OUTSIDE: dict[str, Callable[[], Tensor]] = {
    "from_numpy": lambda: torch.from_numpy(numpy.arange(6.0).reshape(2, 3)),
    "from_numpy_transposed": lambda: torch.from_numpy(numpy.arange(6.0).reshape(2, 3).T),
    "from_numpy_number": lambda: torch.from_numpy(numpy.array(3)),
    "from_numpy_int": lambda: torch.from_numpy(numpy.arange(3, dtype=numpy.int16)),
    "tensor": lambda: torch.tensor(numpy.arange(3)),
    "as_tensor": lambda: torch.as_tensor(numpy.arange(3)),
    "as_tensor_dtype": lambda: torch.as_tensor(numpy.arange(3), dtype=torch.half),
    "as_tensor_buffer": lambda: torch.as_tensor(array.array("f", [1, 2])),
    "as_tensor_number": lambda: torch.as_tensor(numpy.float32(3)),
    "asarray": lambda: torch.asarray(numpy.arange(3)),
    "asarray_copy": lambda: torch.asarray(numpy.arange(3), copy=True),
    "asarray_buffer": lambda: torch.asarray(bytearray(8), dtype=torch.int32),
    "asarray_buffer_copy": lambda: torch.asarray(bytearray(8), dtype=torch.int32, copy=True),
    "asarray_buffer_grad": lambda: torch.asarray(bytearray(8), dtype=torch.float32, requires_grad=True),
    "asarray_list": lambda: torch.asarray([1, 2]),
    "asarray_exporter": lambda: torch.asarray(_Exporter(numpy.arange(3))),
    "frombuffer": lambda: torch.frombuffer(bytearray(8), dtype=torch.float32),
    "frombuffer_part": lambda: torch.frombuffer(bytearray(16), dtype=torch.int16, count=2, offset=4),
    "frombuffer_grad": lambda: torch.frombuffer(bytearray(8), dtype=torch.float32, requires_grad=True),
    "from_dlpack": lambda: torch.from_dlpack(numpy.arange(3)),
    "from_dlpack_copy": lambda: torch.from_dlpack(numpy.arange(3), copy=True),
    "utils_from_dlpack": lambda: torch.utils.dlpack.from_dlpack(_Exporter(numpy.arange(3))),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_tensor_over_outside_memory_is_fake_in_the_mode_and_knows_its_values(name: str) -> None:
    real = OUTSIDE[name]()
    assert not is_fake(real)
    with fake_mode():
        fake = OUTSIDE[name]()
        assert_same_metadata(fake, real, device="cpu")
        assert fake.tolist() == real.tolist()
    assert not is_fake(OUTSIDE[name]())


ON_A_DEVICE: dict[str, Callable[[], Tensor]] = {
    "as_tensor": lambda: torch.as_tensor(numpy.arange(3), device="cuda:1"),
    "asarray": lambda: torch.asarray(numpy.arange(3), device="cuda:1"),
    "asarray_buffer": lambda: torch.asarray(bytearray(8), dtype=torch.int32, device="cuda:1"),
    "from_dlpack": lambda: torch.from_dlpack(numpy.arange(3), device="cuda:1"),
    "tensor": lambda: torch.tensor(numpy.arange(3), device="cuda:1"),
}


@pytest.mark.parametrize("name", ON_A_DEVICE)
def test_a_tensor_over_outside_memory_claims_the_device_asked_for(name: str) -> None:
    with fake_mode():
        fake = ON_A_DEVICE[name]()
        assert is_fake(fake) and fake.device == torch.device("cuda:1")
        assert fake.tolist() in ([0, 1, 2], [0, 0])


def test_the_default_device_is_used_where_pytorch_uses_it() -> None:
    with fake_mode(), torch.device("cuda"):
        assert torch.asarray(numpy.ones(3)).device.type == "cuda"
        assert torch.asarray(bytearray(4), dtype=torch.uint8).device.type == "cuda"
        assert torch.as_tensor(numpy.ones(3)).device.type == "cuda"
        assert torch.from_numpy(numpy.ones(3)).device.type == "cpu"
        assert torch.frombuffer(bytearray(4), dtype=torch.uint8).device.type == "cpu"


@pytest.mark.parametrize("share", [torch.from_numpy, torch.as_tensor, torch.asarray, torch.from_dlpack])
def test_an_array_and_its_fake_see_each_others_writes(share: Callable[[Any], Tensor]) -> None:
    values = numpy.zeros(3)
    with fake_mode():
        fake = share(values)
        values[0] = 5
        assert fake.tolist() == [5.0, 0.0, 0.0]
        fake.add_(1)
        assert values.tolist() == [6.0, 1.0, 1.0]
        fake.add_(torch.rand(3))
        with pytest.raises(DataAccessError):
            fake.tolist()


def test_a_copy_of_an_array_does_not_see_later_writes() -> None:
    values = numpy.zeros(3)
    with fake_mode():
        copies = [torch.tensor(values), torch.asarray(values, copy=True), torch.from_dlpack(values, copy=True)]
        values[0] = 5
        assert [fake.tolist() for fake in copies] == [[0.0, 0.0, 0.0]] * 3


def test_a_buffer_and_its_fake_see_each_others_writes() -> None:
    buffer = bytearray(4)
    with fake_mode():
        fake = torch.frombuffer(buffer, dtype=torch.uint8)
        buffer[1] = 9
        assert fake.tolist() == [0, 9, 0, 0]
        fake[0] = 3
        assert buffer[0] == 3


def test_a_large_array_becomes_a_fake_that_knows_nothing() -> None:
    with fake_mode():
        fake = torch.from_numpy(numpy.zeros(100_000))
        assert is_fake(fake) and fake.shape == (100_000,)
        with pytest.raises(DataAccessError):
            fake.tolist()


def test_a_file_becomes_a_fake(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(range(8)))
    with fake_mode():
        fake = torch.from_file(str(tmp_path / "data"), size=8, dtype=torch.uint8)
        assert is_fake(fake) and fake.tolist() == list(range(8))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_fake_that_comes_back_through_dlpack_shares_its_storage(device: str) -> None:
    with fake_mode():
        x = torch.ones(3, device=device)
        y = torch.from_dlpack(x)
        assert is_fake(y) and y.device == x.device and not y._is_view()
        y.zero_()
        assert x.tolist() == [0.0] * 3
        y.add_(torch.rand(3, device=device))
        with pytest.raises(DataAccessError):
            x.tolist()
        assert x._version == 0, "versions are not shared through DLPack"
        unknown = torch.from_dlpack(torch.rand(2, device=device))
        assert is_fake(unknown)


def test_dlpack_refuses_of_a_fake_what_it_refuses_of_a_real_tensor() -> None:
    def messages() -> list[str]:
        errors = []
        for bad in (torch.ones(2, requires_grad=True), torch.ones(2, dtype=torch.cfloat).conj()):
            with pytest.raises(BufferError) as caught:
                torch.from_dlpack(bad)
            errors.append(str(caught.value))
        return errors

    expected = messages()
    with fake_mode():
        assert messages() == expected
        assert torch.from_dlpack(torch.ones(2), device="cuda").device.type == "cuda"
        with pytest.raises(ValueError, match="without copying"):
            torch.from_dlpack(torch.ones(2), device="cuda", copy=False)
        x = torch.ones(2)
        torch.from_dlpack(x, copy=True).zero_()
        assert x.tolist() == [1.0, 1.0]


def test_real_tensors_stay_real() -> None:
    real = torch.ones(3)
    with fake_mode():
        assert torch.asarray(real) is real and torch.as_tensor(real) is real
        assert not is_fake(torch.from_dlpack(real))
