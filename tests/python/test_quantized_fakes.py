"""Quantized fakes, compared with real tensors. PyTorch's own fakes create a float tensor instead, or refuse."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import torchfake
from torchfake import DataDependentOutputException, FakeTensorMode, fake_mode, is_fake, to_fake

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


def per_tensor(*sizes: int, dtype: torch.dtype = torch.quint8) -> Tensor:
    return torch.quantize_per_tensor(torch.zeros(*sizes), 0.1, 3, dtype)


def per_channel(*sizes: int, axis: int = 0) -> Tensor:
    scales = torch.full((sizes[axis],), 0.5, dtype=torch.float64)
    zeros = torch.zeros(sizes[axis], dtype=torch.long)
    return torch.quantize_per_channel(torch.zeros(*sizes), scales, zeros, axis, torch.qint8)


def images() -> Tensor:
    return per_tensor(2, 3, 8, 8)


CALLS: dict[str, Callable[[], Any]] = {
    "per tensor": lambda: per_tensor(4, 5),
    "per tensor, qint32": lambda: per_tensor(4, 5, dtype=torch.qint32),
    "per tensor, channels last": lambda: torch.quantize_per_tensor(
        torch.zeros(2, 3, 4, 4).contiguous(memory_format=torch.channels_last), 0.1, 0, torch.qint8
    ),
    "per channel": lambda: per_channel(4, 5),
    "per channel, axis 1": lambda: per_channel(4, 5, axis=1),
    "by tensors": lambda: torch.quantize_per_tensor(torch.zeros(3), torch.tensor(0.1), torch.tensor(2), torch.qint8),
    "dynamic": lambda: torch.quantize_per_tensor_dynamic(torch.zeros(3, 2), torch.quint8, False),
    "empty": lambda: torch._empty_affine_quantized([3, 2], scale=0.1, zero_point=1, dtype=torch.quint8),
    "empty, like another": lambda: torch.empty_quantized((2, 3), per_tensor(4)),
    "from integers": lambda: torch._make_per_tensor_quantized_tensor(torch.zeros(3, dtype=torch.int8), 0.5, 0),
    "int_repr": lambda: per_tensor(4, 5).int_repr(),
    "dequantize": lambda: per_tensor(4, 5).dequantize(),
    "dequantize per channel": lambda: per_channel(4, 5).dequantize(),
    "clone": lambda: per_tensor(4, 5).clone(),
    "detach": lambda: per_tensor(4, 5).detach(),
    "view": lambda: per_tensor(4, 5).view(2, 10),
    "transpose": lambda: per_tensor(4, 5).t(),
    "contiguous": lambda: per_tensor(4, 5).t().contiguous(),
    "select": lambda: per_tensor(4, 5)[1],
    "slice": lambda: per_tensor(4, 5)[:, 1:3],
    "reshape": lambda: per_tensor(4, 5).t().reshape(-1),
    "cat": lambda: torch.cat([per_tensor(4, 5), per_tensor(2, 5)]),
    "relu": lambda: per_tensor(4, 5).relu(),
    "relu_": lambda: per_tensor(4, 5).relu_(),
    "copy_": lambda: per_tensor(4, 5).copy_(torch.zeros(4, 5)),
    "empty_like": lambda: torch.empty_like(per_tensor(4, 5)),
    "equal sizes": lambda: per_tensor(4, 5) == per_tensor(4, 5),
    "max_pool2d": lambda: torch.nn.functional.max_pool2d(images(), 2),
    "avg_pool2d": lambda: torch.nn.functional.avg_pool2d(images(), 2),
    "interpolate": lambda: torch.nn.functional.interpolate(images(), scale_factor=2),
    "mean": lambda: images().mean((2, 3)),
    "add": lambda: torch.ops.quantized.add(per_tensor(4), per_tensor(4), 0.2, 0),
    "QFunctional": lambda: torch.ao.nn.quantized.QFunctional().mul(per_tensor(4), per_tensor(4)),
    "Quantize": lambda: torch.ao.nn.quantized.Quantize(0.1, 0, torch.quint8)(torch.zeros(3)),
    "Linear": lambda: torch.ao.nn.quantized.Linear(5, 3)(per_tensor(2, 5)),
    "Conv2d": lambda: torch.ao.nn.quantized.Conv2d(3, 4, 3)(images()),
    "dynamic Linear": lambda: torch.ao.nn.quantized.dynamic.Linear(5, 3)(torch.zeros(2, 5)),
}


def described(tensor: Tensor) -> dict[str, Any]:
    what = {name: getattr(tensor, name) for name in ("shape", "dtype", "device", "layout", "is_quantized")}
    what |= {"stride": tensor.stride(), "offset": tensor.storage_offset(), "bytes": tensor.untyped_storage().nbytes()}
    return what | ({"qscheme": tensor.qscheme()} if tensor.is_quantized else {})


@pytest.fixture(params=[fake_mode, FakeTensorMode], ids=["fake_mode", "FakeTensorMode"])
def mode(request: pytest.FixtureRequest) -> Iterator[Any]:
    with request.param() as entered:
        yield entered


@pytest.mark.parametrize("name", CALLS)
def test_a_call_gives_what_it_gives_for_real(name: str, mode: Any) -> None:
    with torchfake.no_fake_mode():
        real = described(CALLS[name]())
    fake = CALLS[name]()
    assert is_fake(fake) and described(fake) == real


def test_parameters_that_are_numbers_are_known(mode: Any) -> None:
    q = per_tensor(4, 5)
    assert (q.q_scale(), q.q_zero_point(), q.qscheme()) == (0.1, 3, torch.per_tensor_affine)
    assert (q.t().q_scale(), q.relu().q_zero_point()) == (0.1, 3)
    c = per_channel(4, 5)
    assert (c.q_per_channel_axis(), c.q_per_channel_scales().shape) == (0, (4,))


def test_parameters_that_follow_from_values_are_refused() -> None:
    with FakeTensorMode():
        q = torch.quantize_per_tensor(torch.zeros(3), torch.rand(()), torch.tensor(0), torch.quint8)
        assert q.dequantize().dtype == torch.float32
        for again in (q, q.view(3, 1), q.clone()):
            with pytest.raises(DataDependentOutputException, match="q_scale"):
                again.q_scale()
    with fake_mode():
        assert (
            torch.quantize_per_tensor(torch.zeros(3), torch.tensor(0.5), torch.tensor(0), torch.quint8).q_scale() == 0.5
        )


def test_a_view_shares_the_storage_of_its_base(mode: Any) -> None:
    q = per_tensor(4, 5)
    for view in (q.view(20), q.t(), q[1], q.detach(), q[0].view(5, 1)):
        assert view.untyped_storage()._cdata == q.untyped_storage()._cdata
    assert q.clone().untyped_storage()._cdata != q.untyped_storage()._cdata


@pytest.mark.parametrize("make", [per_tensor, per_channel])
def test_real_quantized_tensors_are_converted(make: Callable[..., Tensor]) -> None:
    real = make(4, 5)
    mode = FakeTensorMode()
    fake = mode.from_tensor(real)
    assert fake is mode.from_tensor(real) and described(fake) == described(real) == described(to_fake(real))
    assert is_fake(fake.dequantize()) and not is_fake(real)
    view = mode.from_tensor(real[:2])
    assert view.shape == (2, 5) and view.is_quantized


def test_they_claim_a_gpu() -> None:
    with fake_mode():
        q = torch.quantize_per_tensor(torch.zeros(4, device="cuda"), 0.1, 0, torch.qint8)
        assert q.device == q.int_repr().device == q.dequantize().device == torch.device("cuda:0")
        assert q.cpu().device.type == "cpu" and per_tensor(3).to("cuda").device.type == "cuda"


def test_a_file_of_quantized_tensors_is_loaded_as_fakes(tmp_path: Path, mode: Any) -> None:
    path = tmp_path / "quantized.pt"
    with torchfake.no_fake_mode():
        saved = {"a": per_tensor(4, 5), "c": per_channel(4, 5)}
        torch.save(saved, path)
        expected = {name: described(real) for name, real in saved.items()}
    loaded = torch.load(path)
    assert {name: described(fake) for name, fake in loaded.items()} == expected
    assert all(is_fake(fake) for fake in loaded.values())


def test_large_tensors_are_quantized_without_memory(mode: Any) -> None:
    q = torch.quantize_per_tensor(torch.empty(100_000, 100_000), 0.1, 0, torch.qint8)
    assert q.untyped_storage().nbytes() == 10**10 and q.dequantize().shape == q.int_repr().shape == (100_000, 100_000)


def test_they_are_copied(mode: Any) -> None:
    q = per_tensor(4, 5)
    copied = copy.deepcopy(q)
    assert described(copied) == described(q) and copied.untyped_storage()._cdata != q.untyped_storage()._cdata


def test_what_real_operators_refuse_is_refused(mode: Any) -> None:
    with pytest.raises(RuntimeError):
        torch.quantize_per_tensor(torch.zeros(3, dtype=torch.float64), 0.1, 0, torch.quint8)
    with pytest.raises(RuntimeError):
        per_tensor(3) + per_tensor(3)
    with pytest.raises(RuntimeError):
        per_tensor(3).q_per_channel_axis()
