"""Accessing data that a fake lacks: a typed error that names the operator and a way out; known values are read."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor
from undrawn import fake_mode

from torchfake import (
    DataAccessError,
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnknownValuesError,
    _saving,
)
from torchfake.errors import FakeTensorError

READS: dict[str, tuple[Callable[[Tensor], Any], type[FakeTensorError], str]] = {
    "item": (lambda x: x[0].item(), DataDependentOutputException, "aten::_local_scalar_dense"),
    "int": (lambda x: int(x[0]), DataDependentOutputException, "aten::_local_scalar_dense"),
    "float": (lambda x: float(x[0]), DataDependentOutputException, "aten::_local_scalar_dense"),
    "complex": (lambda x: complex(x[0]), DataDependentOutputException, "aten::_local_scalar_dense"),
    "bool": (lambda x: bool(x[0]), DataDependentOutputException, "aten::"),
    "if": (lambda x: 1 if x[0] > 0 else 2, DataDependentOutputException, "aten::"),
    "index": (lambda x: range(3)[x.long()[0]], DataDependentOutputException, "aten::_local_scalar_dense"),
    "is_nonzero": (lambda x: x[0].is_nonzero(), DataDependentOutputException, "aten::"),
    "contains": (lambda x: 1.0 in x, DataDependentOutputException, "aten::"),
    "equal": (lambda x: torch.equal(x, x + 1), DataDependentOutputException, "aten::equal"),
    "allclose": (lambda x: torch.allclose(x, x + 1), DataDependentOutputException, "aten::allclose"),
    "tolist": (lambda x: x.tolist(), DataAccessError, "tolist"),
    "numpy": (lambda x: x.numpy(), DataAccessError, "numpy"),
    "numpy_force": (lambda x: x.numpy(force=True), DataAccessError, "numpy"),
    "array": (lambda x: numpy.asarray(x), DataAccessError, "numpy"),
    "dunder_array": (lambda x: x.__array__(), DataAccessError, "numpy"),
    "dlpack": (lambda x: x.__dlpack__(), DataAccessError, "dlpack"),
    "to_dlpack": (lambda x: torch.utils.dlpack.to_dlpack(x), DataAccessError, "dlpack"),
    "format": (lambda x: f"{x[0]:.3f}", DataDependentOutputException, "aten::_local_scalar_dense"),
    "nonzero": (lambda x: x.nonzero(), DynamicOutputShapeException, "aten::nonzero"),
    "unique": (lambda x: x.unique(), DynamicOutputShapeException, "aten::_unique2"),
    "mask": (lambda x: x[x > 0], DynamicOutputShapeException, "aten::index"),
    "masked_select": (lambda x: x.masked_select(x > 0), DynamicOutputShapeException, "aten::masked_select"),
    "bincount": (lambda x: x.long().bincount(), DynamicOutputShapeException, "aten::bincount"),
    "split_by_tensor": (lambda x: x.tensor_split(x.long()), DataDependentOutputException, "aten::tensor_split"),
    "slice_by_tensor": (lambda x: x[: x.long()[0]], DataDependentOutputException, "aten::_local_scalar_dense"),
    "repeat_interleave": (
        lambda x: torch.repeat_interleave(x.long()),
        DynamicOutputShapeException,
        "aten::repeat_interleave",
    ),
}

# Refused for a claimed GPU as for a real one, before any data is accessed.
ON_CPU_ONLY = ("numpy", "array", "dunder_array", "split_by_tensor")


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", READS)
def test_reading_an_unknown_value_names_the_operator_and_a_way_out(name: str, device: str, inside: bool) -> None:
    read, kind, op = READS[name]
    if device != "cpu" and name in ON_CPU_ONLY:
        pytest.skip("a GPU tensor refuses it by its device")
    with fake_mode():
        tensor = torch.randn(3, device=device)
        if inside:
            with pytest.raises(kind) as caught:
                read(tensor)
    if not inside:
        with pytest.raises(kind) as caught:
            read(tensor)
    message = str(caught.value)
    assert op in message and op in caught.value.op
    assert "\n" not in message and len(message) > len(op) + 40, "no way out is named"
    assert isinstance(caught.value, RuntimeError) and isinstance(caught.value, FakeTensorError)


@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
def test_known_values_come_out(device: str) -> None:
    with fake_mode():
        tensor = torch.tensor([1.0, 0.0, 2.0], device=device)
        host = tensor.cpu()
    assert tensor.tolist() == [1, 0, 2] and tensor[2].item() == 2.0
    assert (int(tensor[0]), float(tensor[2]), bool(tensor[1]), complex(tensor[0])) == (1, 2.0, False, 1 + 0j)
    assert tensor.nonzero().tolist() == [[0], [2]] and tensor[tensor > 0].tolist() == [1, 2]
    assert host.numpy().tolist() == [1, 0, 2] and numpy.asarray(host).dtype == numpy.float32
    assert tensor.numpy(force=True).tolist() == [1, 0, 2]
    assert torch.equal(tensor, tensor.clone()) and 2.0 in tensor and [float(x) for x in tensor] == [1.0, 0.0, 2.0]


def test_numpy_of_a_claimed_gpu_tensor_is_refused_as_for_a_real_one() -> None:
    with fake_mode(), pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
        torch.ones(2, device="cuda").numpy()


def test_numpy_over_known_values_sees_and_makes_writes() -> None:
    with fake_mode():
        tensor = torch.zeros(3)
        array = tensor.numpy()
        array[1] = 7
        assert tensor.tolist() == [0, 7, 0]
        tensor[0] = 5
        assert array.tolist() == [5, 7, 0]
        tensor.copy_(torch.randn(3))
        with pytest.raises(DataAccessError):
            tensor.tolist()
        array[2] = 1  # the memory is not shared any more, and the write is harmless


def test_errors_know_their_operator_and_can_be_copied() -> None:
    with fake_mode(), pytest.raises(DynamicOutputShapeException) as caught:
        torch.randn(3).nonzero()
    assert caught.value.func is torch.ops.aten.nonzero.default
    again = copy.copy(caught.value)
    assert (type(again), str(again), again.op) == (type(caught.value), str(caught.value), caught.value.op)


def test_a_refused_read_changes_nothing() -> None:
    with fake_mode():
        tensor = torch.randn(3)
        for read, kind, _ in READS.values():
            with pytest.raises(kind):
                read(tensor)
        assert tensor._version == 0 and (tensor + 1).shape == (3,)
        assert torch.ones(2).sum().item() == 2


@pytest.mark.parametrize("kind", [fake_mode, FakeTensorMode])
def test_a_list_of_unknown_values_depends_on_data_as_pytorch_has_it(kind: Callable[[], Any]) -> None:
    with kind():
        x = torch.rand(2)
    with pytest.raises(DataDependentOutputException, match="tolist") as caught:
        x.tolist()
    assert isinstance(caught.value, UnknownValuesError) and isinstance(caught.value, DataAccessError)


@pytest.mark.parametrize("way", [torch.jit.script, "trace"])
@pytest.mark.parametrize("to_file", [True, False])
def test_a_scripted_module_of_fakes_is_saved_and_loaded(tmp_path, way, to_file) -> None:
    file = str(tmp_path / "script.pt") if to_file else io.BytesIO()
    x = torch.ones(4, 200)
    with fake_mode(gpus="2xH200"):
        module = torch.nn.Sequential(torch.nn.Linear(200, 300), torch.nn.BatchNorm1d(300)).cuda()
        module[0].bias.requires_grad_(False)
        script = torch.jit.trace(module, x.cuda(), check_trace=False) if way == "trace" else way(module)
        _saving._warned.discard("torch.jit.save")
        with pytest.warns(UserWarning, match=r"torch\.jit\.save: the tensors are fake"):
            torch.jit.save(script, file)
        assert script(x.cuda()).shape == (4, 300)  # unchanged
        for location, device in ((None, "cuda:0"), ("cuda:1", "cuda:1"), ("cpu", "cpu")):
            if not to_file:
                file.seek(0)
            loaded = torch.jit.load(file, map_location=location)
            assert {name: p.requires_grad for name, p in loaded.named_parameters()} == {
                name: p.requires_grad for name, p in script.named_parameters()
            }
            assert loaded(x.to(device)).device == torch.device(device)
            assert loaded(x.to(device)).shape == (4, 300)
            assert {str(t.device) for t in loaded.state_dict().values()} == {device}


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(300, 10)
        self.scale = torch.randn(300, device="cuda")

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x * self.scale)


def test_a_scripted_module_keeps_tensors_that_are_no_buffers(tmp_path) -> None:
    file = str(tmp_path / "script.pt")
    with fake_mode(gpus="H200"):
        x = torch.randn(2, 300, device="cuda")
        torch.jit.save(torch.jit.script(Scaled().cuda()), file)
        loaded = torch.jit.load(file)
        assert loaded(x).shape == (2, 10) and loaded.scale.device == x.device
        torch.jit.save(torch.jit.trace(Scaled().cuda(), x, check_trace=False), file)  # here it is a constant
        assert torch.jit.load(file)(x).shape == (2, 10)


def test_scripts_of_real_tensors_and_for_mobile_devices(tmp_path) -> None:
    real = torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(1, 2))
    torch.jit.save(real, str(tmp_path / "real.pt"))
    with fake_mode():
        script = torch.jit.script(torch.nn.Linear(2, 2).cuda())
        with pytest.raises(DataAccessError, match=r"torch\.jit: the module holds fake tensors"):
            script._save_for_lite_interpreter(str(tmp_path / "lite.pt"))
        torch.jit.save(script, str(tmp_path / "fake.pt"))
    assert torch.equal(torch.jit.load(str(tmp_path / "real.pt")).weight, real.weight)
    assert torch.jit.load(str(tmp_path / "fake.pt")).weight.shape == (0,)  # outside the mode there is no data
