"""Fakes in pickles, copies and other processes stay fakes, with the same device, aliases and known values."""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import pickle
import weakref
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
import torch
from metadata import assert_same_metadata, metadata, storage_groups
from torch import Tensor, nn
from undrawn import fake_mode

import torchfake
from torchfake import _serialization, is_fake


def through_pickle(obj: Any) -> Any:
    return pickle.loads(pickle.dumps(obj))


def through_old_pickle(obj: Any) -> Any:
    return pickle.loads(pickle.dumps(obj, protocol=0))


def through_torch_save(obj: Any) -> Any:
    file = io.BytesIO()
    torch.save(obj, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def through_any_torch_save(obj: Any) -> Any:
    file = io.BytesIO()
    torch.save(obj, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def through_legacy_torch_save(obj: Any) -> Any:
    file = io.BytesIO()
    torch.save(obj, file, _use_new_zipfile_serialization=False)
    file.seek(0)
    return torch.load(file, weights_only=True)


def through_forking_pickler(obj: Any) -> Any:
    return pickle.loads(ForkingPickler.dumps(obj))


WAYS: list[Callable[[Any], Any]] = [
    through_pickle,
    through_old_pickle,
    through_torch_save,
    through_any_torch_save,
    through_legacy_torch_save,
    through_forking_pickler,
    copy.deepcopy,
]
PLACES = {"inside": fake_mode, "outside": contextlib.nullcontext}


@pytest.fixture(params=WAYS, ids=lambda way: way.__name__)
def way(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(params=PLACES)
def _place(request: pytest.FixtureRequest) -> Iterator[None]:
    with PLACES[request.param]():
        yield


def make_tensors(device: str) -> dict[str, Any]:
    base = torch.randn(6, 4, device=device)
    return {
        "base": base,
        "row": base[2],
        "transposed": base.t(),
        "as_int": base.view(torch.int32),
        "other": torch.randn(6, 4, device=device),
        "requires_grad": torch.randn(2, device=device, requires_grad=True),
        "expanded": torch.randn(1, 4, device=device).expand(5, 4),
        "complex": torch.randn(2, dtype=torch.complex64, device=device),
        "empty": torch.empty(0, 3, device=device),
        "channels_last": torch.empty(2, 3, 4, 5, device=device).to(memory_format=torch.channels_last),
        "float8": torch.empty(4, device=device).to(torch.float8_e4m3fn),
        "complex128": torch.ones(3, dtype=torch.complex128, device=device),
        "odd_bytes": torch.empty(7, dtype=torch.uint8, device=device)[:4].view(torch.int32),
        "number": 7,
    }


@pytest.mark.usefixtures("_place")
@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
def test_fakes_come_back_as_they_were(way: Callable[[Any], Any], device: str) -> None:
    with fake_mode():
        before = make_tensors(device)
    after = way(before)
    for name, tensor in before.items():
        if not isinstance(tensor, Tensor):
            assert after[name] == tensor
            continue
        assert is_fake(after[name]) and after[name].device == tensor.device, name
        kept = {"type", "dtype", "size", "stride", "storage_offset", "storage_nbytes", "requires_grad", "is_leaf"}
        got, wanted = metadata(after[name]), metadata(tensor)
        assert {key: got[key] for key in kept} == {key: wanted[key] for key in kept}, name
    tensors = [value for value in before.values() if isinstance(value, Tensor)]
    copies = [value for value in after.values() if isinstance(value, Tensor)]
    assert storage_groups(copies) == storage_groups(tensors)
    assert storage_groups([*tensors, *copies])[len(tensors)] == len(tensors)  # the copies share none with the originals


@pytest.mark.usefixtures("_place")
def test_a_parameter_stays_a_parameter_and_the_same_one(way: Callable[[Any], Any]) -> None:
    with fake_mode():
        weight = nn.Parameter(torch.randn(3, device="cuda"))
        frozen = nn.Parameter(torch.ones(2, dtype=torch.int32), requires_grad=False)
    one, two, other = way([weight, weight, frozen])
    assert one is two and type(one) is nn.Parameter and type(other) is nn.Parameter
    assert is_fake(one) and one.requires_grad and one.device == torch.device("cuda:0")
    assert is_fake(other) and not other.requires_grad


@pytest.mark.usefixtures("_place")
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_known_values_come_back_and_are_not_shared(way: Callable[[Any], Any], device: str) -> None:
    with fake_mode():
        known = torch.tensor([1.5, 2.5, -3.5, 0.5], device=device)
        mask = torch.tensor([True, False], device=device)
    copied, part, copied_mask = way([known, known[1:3], mask])
    assert copied.tolist() == [1.5, 2.5, -3.5, 0.5] and part.tolist() == [2.5, -3.5]
    assert copied_mask.tolist() == [True, False]
    part.zero_()
    assert copied.tolist() == [1.5, 0, 0, 0.5] and known.tolist() == [1.5, 2.5, -3.5, 0.5]
    known.fill_(9)
    assert copied.tolist() == [1.5, 0, 0, 0.5]


def test_unknown_values_stay_unknown(way: Callable[[Any], Any]) -> None:
    with fake_mode():
        random = torch.rand(2)
    with pytest.raises(torchfake.DataDependentOutputException):
        way(random)[0].item()


@pytest.mark.parametrize("way", [through_pickle, through_any_torch_save, copy.deepcopy])
@pytest.mark.usefixtures("_place")
def test_a_module_with_tied_weights_comes_back_tied(way: Callable[[Any], Any]) -> None:
    with fake_mode():
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)).cuda()
        model[2].weight = model[0].weight
    copied = way(model)
    assert copied[2].weight is copied[0].weight is not model[0].weight
    assert all(is_fake(value) and value.device.type == "cuda" for value in copied.state_dict().values())
    with fake_mode():
        assert copied(torch.randn(3, 4, device="cuda")).shape == (3, 4)


def test_optimizer_state_comes_back(way: Callable[[Any], Any]) -> None:
    with fake_mode():
        model = nn.Linear(3, 4, device="cuda")
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.randn(2, 3, device="cuda")).sum().backward()
        optimizer.step()
        state = way(optimizer.state_dict())
        optimizer.load_state_dict(state)
        optimizer.step()
    assert state["state"][0]["exp_avg"].device == torch.device("cuda:0")
    assert optimizer.state[model.weight]["step"].item() == 2


@pytest.mark.parametrize("device", ["cuda:5", "xpu:1", "mps", "hpu"])
def test_any_claimed_device_comes_back_outside_the_mode(way: Callable[[Any], Any], device: str) -> None:
    with fake_mode():
        fake = torch.empty(3, device=device)
    copied = way(fake)
    assert is_fake(copied) and copied.device == fake.device
    assert is_fake(copied + copied) and (copied + copied).device == fake.device


def test_a_pickle_holds_metadata_alone() -> None:
    with fake_mode():
        weights = torch.empty(1_000_000, 70_000, device="cuda")
    assert len(pickle.dumps([weights, weights[5], weights.t()])) < 1_000
    file = io.BytesIO()
    torch.save({"weights": weights}, file)
    assert len(file.getvalue()) < 10_000


@pytest.mark.parametrize(
    ("map_location", "device"),
    [("cuda:3", "cuda:3"), ({"cuda:1": "cpu"}, "cpu"), (lambda storage, location: storage.cuda(2), "cuda:2")],
)
@pytest.mark.parametrize("zip_format", [True, False])
@pytest.mark.usefixtures("_place")
def test_map_location_moves_saved_fakes(map_location: Any, device: str, zip_format: bool) -> None:
    with fake_mode():
        fake = torch.empty(3, device="cuda:1")
    file = io.BytesIO()
    torch.save(fake, file, _use_new_zipfile_serialization=zip_format)
    file.seek(0)
    assert torch.load(file, map_location=map_location).device == torch.device(device)
    assert through_pickle(fake).device == torch.device("cuda:1")


def test_real_tensors_are_saved_inside_the_mode() -> None:
    real = torch.randn(3)
    file = io.BytesIO()
    with fake_mode():
        fake = torch.empty(2)
        torch.save([real, fake], file)
    file.seek(0)
    loaded_real, loaded_fake = torch.load(file)
    assert not is_fake(loaded_real) and torch.equal(loaded_real, real)
    assert is_fake(loaded_fake)


def test_attributes_and_subclasses_come_back(way: Callable[[Any], Any]) -> None:
    with fake_mode():
        named = torch.randn(3)
        tagged = torch.randn(3, device="cuda").as_subclass(Tagged)
    named.note = "a name"  # type: ignore[attr-defined]
    tagged.tag = [1]
    with torch.serialization.safe_globals([Tagged]):
        named_copy, tagged_copy = way([named, tagged])
    assert is_fake(named_copy) and is_fake(tagged_copy)
    assert type(tagged_copy) is Tagged and tagged_copy.device == torch.device("cuda:0")
    if way is not through_forking_pickler:  # which drops attributes of real tensors as well
        assert named_copy.note == "a name" and tagged_copy.tag == [1]


class Tagged(Tensor):
    """A subclass with an attribute."""

    tag: list[int]


def test_deepcopy_of_many_subclass_tensors_confuses_none() -> None:
    with fake_mode():
        tensors = [torch.empty(size).as_subclass(Tagged) for size in range(50)]
    assert [copied.numel() for copied in copy.deepcopy(tensors)] == list(range(50))


def test_a_conjugate_view_comes_back_as_one() -> None:
    with fake_mode():
        base = torch.tensor([1 + 2j, 3 - 1j])
    loaded_base, conj = through_pickle([base, base.conj()])
    assert conj.is_conj() and conj.untyped_storage()._cdata == loaded_base.untyped_storage()._cdata
    assert conj.tolist() == [1 - 2j, 3 + 1j]
    assert copy.deepcopy(base.conj()).tolist() == [1 - 2j, 3 + 1j]


def test_an_expanded_storage_is_not_made_dense() -> None:
    with fake_mode():
        wide = torch.tensor([1.0]).expand(1_000_000)
    for way in (through_pickle, copy.deepcopy):
        assert way(wide).stride() == (0,) and way(wide).untyped_storage().nbytes() == 4
        assert way(wide)[7].item() == 1


def test_a_damaged_pickle_does_not_read_beyond_its_values() -> None:
    with fake_mode():
        storage = _serialization._rebuild_fake_storage(4, "cpu", 4, b"\0\0\0\0")
        tensor = _serialization._rebuild_fake_tensor(storage, torch.float32, 0, (1000,), (1,), False, {})
    with pytest.raises(torchfake.FakeTensorError):
        tensor.tolist()
    with pytest.raises(Exception, match="unpack requires"):
        _serialization._rebuild_fake_storage(400, "cpu", 4, b"\0\0\0\0")


def test_pickling_leaves_nothing_behind() -> None:
    with fake_mode():
        fake = torch.empty(3)
    through_pickle([fake, fake[1:]])
    gc.collect()
    assert not list(_serialization._being_saved)
    alive = weakref.ref(fake)
    del fake
    gc.collect()
    assert alive() is None


# Copies


@pytest.mark.usefixtures("_place")
def test_copy_shares_the_storage() -> None:
    with fake_mode():
        fake = torch.tensor([1.0, 2.0], device="cuda")
        parameter = nn.Parameter(torch.ones(2))
    copied = copy.copy(fake[1:])
    assert is_fake(copied) and copied.device == fake.device and copied.storage_offset() == 1
    assert copied.untyped_storage()._cdata == fake.untyped_storage()._cdata
    copied.fill_(7)
    assert fake.tolist() == [1, 7]
    assert type(copy.copy(parameter)) is nn.Parameter and is_fake(copy.copy(parameter))


@pytest.mark.parametrize("copier", [copy.deepcopy, copy.copy, through_pickle, through_forking_pickler])
def test_a_tensor_with_a_history_is_treated_as_a_real_one(copier: Callable[[Any], Any]) -> None:
    def outcome(x: Tensor) -> Any:
        try:
            copied = copier(x * 2)
        except RuntimeError as error:
            return str(error)
        return copied.requires_grad, copied.is_leaf

    with fake_mode():
        fake = torch.ones(3, requires_grad=True)
    assert outcome(fake) == outcome(torch.ones(3, requires_grad=True))


def test_deepcopy_copies_gradients() -> None:
    with fake_mode():
        x = torch.ones(3, requires_grad=True)
        (x * 2).sum().backward()
    copied = copy.deepcopy(x)
    assert copied.grad is not x.grad and copied.grad.tolist() == [2, 2, 2]


def test_deepcopy_of_a_view_copies_the_whole_storage_as_for_real_tensors() -> None:
    with fake_mode():
        fake = copy.deepcopy(torch.zeros(10, 10)[2:4].t())
    assert_same_metadata(fake, copy.deepcopy(torch.zeros(10, 10)[2:4].t()), device="cpu")


def test_deepcopy_of_a_model_larger_than_memory_takes_no_memory() -> None:
    with fake_mode():
        model = nn.Linear(1_000_000, 1_000_000, device="cuda")
    assert copy.deepcopy(model).weight.shape == (1_000_000, 1_000_000)


# Storages, identity, other processes


def test_storages_are_told_apart_and_found_again() -> None:
    with fake_mode():
        a, b = torch.empty(4, device="cuda"), torch.empty(4, device="cuda")
    assert a.untyped_storage()._cdata == a[1:].untyped_storage()._cdata != b.untyped_storage()._cdata
    assert a.untyped_storage() is a.view(2, 2).untyped_storage()
    typed = a.storage()
    assert (typed.dtype, len(typed), typed.untyped().nbytes()) == (torch.float32, 4, 16)


def test_weak_references_follow_a_fake() -> None:
    with fake_mode():
        fake = torch.empty(4)
    reference, view = weakref.ref(fake), fake[1:]
    dictionary = weakref.WeakKeyDictionary({fake: 1})
    assert reference() is fake and len(dictionary) == 1
    del fake
    view = view.detach()
    gc.collect()
    assert reference() is None and len(dictionary) == 0 and is_fake(view)


def test_swapped_fakes_exchange_everything() -> None:
    with fake_mode():
        a = nn.Parameter(torch.tensor([1.0, 2.0], device="cuda"))
        b = torch.tensor([[3.0]])
    a_id, b_id = id(a), id(b)
    torch.utils.swap_tensors(a, b)
    assert (id(a), id(b)) == (a_id, b_id)
    assert type(a) is Tensor and a.tolist() == [[3]] and a.device == torch.device("cpu")
    assert type(b) is nn.Parameter and b.tolist() == [1, 2] and b.device == torch.device("cuda:0")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_sharing_memory_is_answered_as_for_real_tensors(device: str) -> None:
    with fake_mode():
        fake = torch.empty(3, device=device)
        model = nn.Linear(2, 2, device=device)
    assert fake.is_shared() is (device == "cuda")
    assert fake.share_memory_() is fake
    assert fake.is_shared() and fake[1:].is_shared()
    assert model.share_memory().weight.is_shared()
    assert not torch.empty(3).is_shared() and torch.empty(3).share_memory_().is_shared()


def add_one(inbox: Any, outbox: Any) -> None:
    tensor, part = inbox.get()
    outbox.put((is_fake(tensor), str(tensor.device), tensor.untyped_storage()._cdata == part.untyped_storage()._cdata))
    outbox.put(tensor + 1)


def test_a_fake_travels_to_another_process_and_back() -> None:
    context = torch.multiprocessing.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    process = context.Process(target=add_one, args=(inbox, outbox))
    process.start()
    with fake_mode():
        fake = torch.tensor([1.0, 2.0], device="cuda:1")
    inbox.put((fake, fake[1:]))
    assert outbox.get(timeout=60) == (True, "cuda:1", True)
    result = outbox.get(timeout=60)
    process.join()
    assert is_fake(result) and result.device == fake.device and result.tolist() == [2, 3]


class FakeImages(torch.utils.data.Dataset[Any]):
    """Fake images and labels, as in a dry run."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        with fake_mode():
            return torch.rand(3, 8, 8), torch.tensor(index)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_data_loader_brings_batches_of_fakes(num_workers: int) -> None:
    first, second = torch.utils.data.DataLoader(FakeImages(), batch_size=4, num_workers=num_workers)
    assert is_fake(first[0]) and first[0].shape == (4, 3, 8, 8)
    assert is_fake(second[1]) and second[1].tolist() == [4, 5]
