"""`torch.load` and `load_state_dict` with fakes: files give fakes in the mode, and their data is not read."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import resource
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from metadata import assert_same_metadata
from torch import nn

import torchfake
from torchfake import fake_mode, is_fake, no_fake_mode, to_fake

FORMATS = {"zip": True, "legacy": False}


@pytest.fixture(params=FORMATS)
def zip_format(request: pytest.FixtureRequest) -> bool:
    return FORMATS[request.param]


@pytest.fixture(params=[True, False], ids=["weights_only", "any_object"])
def weights_only(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def saved(obj: Any, *, zip_format: bool = True) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(obj, file, _use_new_zipfile_serialization=zip_format)
    file.seek(0)
    return file


@contextlib.contextmanager
def saving_as_if_from(location: str) -> Iterator[None]:
    """Tags every saved storage with another device, as a machine with that device would."""
    torch.serialization.register_package(-1, lambda storage: location, lambda storage, tag: None)
    try:
        yield
    finally:
        torch.serialization._package_registry[:] = [
            entry for entry in torch.serialization._package_registry if entry[0] != -1
        ]


def many_tensors() -> dict[str, Any]:
    base = torch.randn(6, 4)
    tied = nn.Parameter(torch.randn(3))
    return {
        "base": base,
        "row": base[2],
        "transposed": base.t(),
        "other": torch.randn(6, 4),
        "parameter": tied,
        "tied": tied,
        "frozen": nn.Parameter(torch.randn(2), requires_grad=False),
        "requires_grad": torch.randn(2, requires_grad=True),
        "expanded": torch.randn(1, 4).expand(5, 4),
        "conj": torch.randn(2, dtype=torch.complex64).conj(),
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(3),
        "float8": torch.randn(4).to(torch.float8_e4m3fn),
        "uint16": torch.zeros(4, dtype=torch.uint16),
        "list": [torch.ones(2, dtype=torch.bool), torch.ones(2, dtype=torch.bfloat16)],
        "number": 7,
    }


def test_a_file_brings_fakes_that_look_and_alias_like_what_was_saved(zip_format: bool, weights_only: bool) -> None:
    tensors = many_tensors()
    file = saved(tensors, zip_format=zip_format)
    with fake_mode():
        fake = torch.load(file, weights_only=weights_only)
    # Real ones always from the zip format: PyTorch does not read float8 from the other.
    assert_same_metadata(fake, torch.load(saved(tensors)), device="cpu")
    assert fake["parameter"] is fake["tied"]


@pytest.mark.parametrize(
    ("map_location", "device"),
    [
        (None, "cpu"),
        ("cuda:1", "cuda:1"),
        ("cuda", "cuda:0"),
        (torch.device("xpu:2"), "xpu:2"),
        ({"cpu": "cuda:3"}, "cuda:3"),
        ({"cuda:0": "cuda:3"}, "cpu"),
        (lambda storage, location: storage, "cpu"),
        (lambda storage, location: storage.cuda(1), "cuda:1"),
        (lambda storage, location: storage.cuda().cpu(), "cpu"),
        (lambda storage, location: None, "cpu"),
    ],
)
def test_a_file_goes_to_the_mapped_device(zip_format: bool, weights_only: bool, map_location: Any, device: str) -> None:
    base = torch.randn(4, 3)
    file = saved((base, base[1]), zip_format=zip_format)
    with fake_mode():
        fake = torch.load(file, map_location=map_location, weights_only=weights_only)
    assert_same_metadata(fake, torch.load(saved((base, base[1]))), device=device)


@pytest.mark.parametrize("location", ["cuda:0", "cuda:5", "xpu:1", "mps", "hpu"])
def test_a_file_from_a_device_this_machine_lacks_comes_back_on_it(zip_format: bool, location: str) -> None:
    with saving_as_if_from(location):
        file = saved(torch.ones(2), zip_format=zip_format)
    with fake_mode():
        fake = torch.load(file)
    assert is_fake(fake)
    assert str(fake.device).removesuffix(":0") == location.removesuffix(":0")


def test_a_map_location_function_sees_size_and_saved_location() -> None:
    seen = []

    def map_location(storage: Any, location: str) -> Any:
        seen.append((storage.nbytes(), str(storage.device), location))
        return storage.cuda(int(location[-1]) + 1)

    with saving_as_if_from("cuda:3"):
        file = saved(torch.ones(5))
    with fake_mode():
        assert torch.load(file, map_location=map_location).device == torch.device("cuda:4")
    assert seen == [(20, "cpu", "cuda:3")]


def test_a_device_that_may_not_be_claimed_is_refused() -> None:
    file = saved(torch.ones(2))
    with fake_mode(fake_cuda=False), pytest.raises(torchfake.DeviceNotFakedError):
        torch.load(file, map_location="cuda")


def test_map_location_meta_brings_meta_tensors() -> None:
    file = saved(torch.ones(2))
    with fake_mode():
        loaded = torch.load(file, map_location="meta")
    assert loaded.is_meta and not is_fake(loaded)


def test_a_whole_module_is_loaded_and_runs() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.LSTM(4, 2))
    file = saved(model)
    with fake_mode():
        fake = torch.load(file, weights_only=False, map_location="cuda")
        assert_same_metadata(dict(fake.state_dict()), dict(model.state_dict()), device="cuda:0")
        out, _ = fake(torch.randn(5, 3, device="cuda"))
    assert out.device == torch.device("cuda:0")


def test_loaded_values_are_not_known(zip_format: bool) -> None:
    file = saved(torch.tensor([3, 4]), zip_format=zip_format)
    with fake_mode():
        loaded = torch.load(file)
    with pytest.raises(torchfake.DataDependentOutputException):
        loaded[0].item()


@pytest.mark.parametrize("value", [3, -2.5, True, 1 - 2j])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_single_element_is_read_and_known(zip_format: bool, value: Any, device: str) -> None:
    file = saved([torch.ones(5), torch.tensor(value), torch.ones(1, 1, dtype=torch.bfloat16)], zip_format=zip_format)
    with fake_mode():
        _, number, one = torch.load(file, map_location=device)
    assert is_fake(number) and number.item() == value
    assert is_fake(one) and one.tolist() == [[1]]


def test_nothing_is_known_in_a_mode_without_known_values() -> None:
    file = saved(torch.tensor(3))
    with fake_mode(known_values_limit=0):
        loaded = torch.load(file)
    with pytest.raises(torchfake.DataDependentOutputException):
        loaded.item()


@pytest.mark.parametrize("mmap", [False, True])
def test_a_file_larger_than_memory_is_loaded_at_once(tmp_path: Path, mmap: bool) -> None:
    path = tmp_path / "large.pt"
    large = torch.empty(2**31)  # 8 GiB that are never accessed
    with torch.serialization.skip_data():
        torch.save({"large": large, "part": large[1:]}, path)
    del large
    assert path.stat().st_size > 2**33
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with fake_mode():
        state = torch.load(path, mmap=mmap)
    path.unlink()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # kilobytes
    assert state["large"].shape == (2**31,)
    assert state["part"].untyped_storage()._cdata == state["large"].untyped_storage()._cdata


def test_data_is_not_read_from_a_file_object(zip_format: bool) -> None:
    class Counting(io.BytesIO):
        count = 0

        def read(self, size: int | None = -1, /) -> bytes:
            data = super().read(size)
            self.count += len(data)
            return data

        def readinto(self, buffer: Any, /) -> int:
            size = super().readinto(buffer)
            self.count += size
            return size

    file = Counting(saved(torch.randn(1_000_000), zip_format=zip_format).getvalue())
    with fake_mode():
        torch.load(file)
    assert 0 < file.count < 200_000


def test_two_legacy_objects_in_one_file_are_loaded_one_after_the_other() -> None:
    file = io.BytesIO()
    for obj in (torch.ones(2, 3), torch.ones(7)):
        torch.save(obj, file, _use_new_zipfile_serialization=False)
    file.seek(0)
    with fake_mode():
        assert torch.load(file).shape == (2, 3)
        assert torch.load(file).shape == (7,)


def test_a_tar_file_is_refused_with_a_typed_error(tmp_path: Path) -> None:
    path = tmp_path / "old.pt"
    with tarfile.open(path, "w") as archive:
        archive.add(os.devnull, "storages")
    with fake_mode(), pytest.raises(torchfake.UnsupportedFakeTensorException, match=r"torch\.load"):
        torch.load(path, weights_only=False)


def test_a_file_that_torch_did_not_write_is_refused() -> None:
    file = io.BytesIO(pickle.dumps(5, protocol=2))
    with fake_mode(), pytest.raises(RuntimeError, match="magic number"):
        torch.load(file)


def test_an_unsafe_file_is_refused_as_outside_the_mode() -> None:
    file = saved(nn.Linear(2, 2))
    with fake_mode(), pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        torch.load(file, weights_only=True)
    file = saved(torch.ones(2))
    with fake_mode():  # the failed load has left no state behind
        assert torch.load(file).device == torch.device("cpu")


@pytest.mark.parametrize("suspend", [contextlib.nullcontext, no_fake_mode])
def test_outside_the_mode_files_bring_real_tensors(suspend: Callable[[], Any], zip_format: bool) -> None:
    values = torch.randn(3)
    with fake_mode():
        pass
    with fake_mode() if suspend is no_fake_mode else contextlib.nullcontext(), suspend():
        loaded = torch.load(saved(values, zip_format=zip_format))
        assert not is_fake(loaded)
        assert torch.equal(loaded, values)


def test_a_pickled_real_tensor_comes_back_fake_inside_the_mode() -> None:
    data = pickle.dumps(torch.randn(4, 3).t())
    with fake_mode():
        fake = pickle.loads(data)
    assert_same_metadata(fake, pickle.loads(data), device="cpu")


def test_a_loaded_storage_is_like_that_of_any_fake() -> None:
    file = saved(torch.ones(3))
    with fake_mode():
        loaded, made = torch.load(file, map_location="cuda"), torch.empty(3, device="cuda")
    assert type(loaded.untyped_storage()) is torch.UntypedStorage
    assert loaded.untyped_storage().device == made.untyped_storage().device
    assert loaded.data_ptr() % 512 == 0 and loaded.data_ptr() != made.data_ptr()


# load_state_dict


def small_model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))


@pytest.mark.parametrize("assign", [False, True])
def test_a_fake_state_dict_goes_into_a_fake_module(assign: bool) -> None:
    file = saved(small_model().state_dict())
    with fake_mode():
        model = small_model()
        state = torch.load(file, map_location="cuda")
        pointers = [parameter.untyped_storage()._cdata for parameter in model.parameters()]
        assert model.load_state_dict(state, assign=assign).missing_keys == []
    assert all(map(is_fake, model.state_dict().values()))
    assert all(isinstance(parameter, nn.Parameter) and parameter.requires_grad for parameter in model.parameters())
    device = "cuda:0" if assign else "cpu"
    assert {str(value.device) for value in model.state_dict().values()} == {device}
    kept = [parameter.untyped_storage()._cdata for parameter in model.parameters()] == pointers
    assert kept is not assign


def test_a_size_mismatch_is_told_as_with_real_tensors() -> None:
    with fake_mode():
        model = nn.Linear(3, 4)
        with pytest.raises(RuntimeError, match=r"size mismatch for weight"):
            model.load_state_dict(nn.Linear(4, 4).state_dict())


def test_a_real_state_dict_does_not_go_into_a_fake_module() -> None:
    state = small_model().state_dict()
    with fake_mode():
        model = small_model()
        model[1].weight.data.fill_(5)
        with pytest.raises(torchfake.RealTensorError, match=r"load_state_dict: 0\.weight is real in the state dict"):
            model.load_state_dict(state)
    assert all(map(is_fake, model.state_dict().values()))
    assert model[1].weight.tolist() == [5] * 4


def test_a_fake_state_dict_does_not_go_into_a_real_module() -> None:
    model = small_model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with fake_mode():
        state = small_model().state_dict()
    state["0.weight"] = torch.ones(4, 3)  # not copied, although it could be
    with pytest.raises(torchfake.RealTensorError, match=r"load_state_dict: 0\.bias is real in the module"):
        model.load_state_dict(state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_assign_replaces_fakes_with_real_tensors() -> None:
    real = small_model()
    with fake_mode():
        model = small_model()
        model.load_state_dict(real.state_dict(), assign=True)
    assert not any(map(is_fake, model.state_dict().values()))
    assert torch.equal(model[0].weight, real[0].weight)


def test_to_fake_makes_a_real_state_dict_fit() -> None:
    state = {name: to_fake(value) for name, value in small_model().state_dict().items()}
    with fake_mode():
        model = small_model()
        model.load_state_dict(state)
    assert all(map(is_fake, model.state_dict().values()))


def test_an_optimizer_state_dict_is_loaded() -> None:
    model = nn.Linear(3, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(2, 3)).sum().backward()
    optimizer.step()
    file = saved(optimizer.state_dict())
    with fake_mode():
        fake_model = nn.Linear(3, 4, device="cuda")
        fake_optimizer = torch.optim.AdamW(fake_model.parameters())
        fake_optimizer.load_state_dict(torch.load(file))
        fake_model(torch.randn(2, 3, device="cuda")).sum().backward()
        fake_optimizer.step()
    moments = fake_optimizer.state[fake_model.weight]["exp_avg"]
    assert is_fake(moments) and moments.device == torch.device("cuda:0")


def test_a_storage_says_where_its_data_is_in_the_file(tmp_path: Path) -> None:
    torch.save({"a": torch.arange(4), "b": torch.ones(1)}, tmp_path / "state.pt")
    with fake_mode():
        state = torch.load(tmp_path / "state.pt")
    offset = state["a"].untyped_storage()._checkpoint_offset
    data = (tmp_path / "state.pt").read_bytes()[offset : offset + 32]
    assert torch.frombuffer(bytearray(data), dtype=torch.int64).tolist() == [0, 1, 2, 3]
    assert isinstance(state["b"].untyped_storage()._checkpoint_offset, int)
