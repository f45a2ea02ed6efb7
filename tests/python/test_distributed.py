"""Sharded tensors and modules over a process group that is not there either: one process stands for eight."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

from torchfake import DataAccessError, fake_mode, is_fake

WORLD = 8
DEVICES = ["cpu", "cuda"]


@pytest.fixture(autouse=True)
def process_group() -> Iterator[None]:
    dist.init_process_group("fake", rank=0, world_size=WORLD, store=FakeStore())
    yield
    dist.destroy_process_group()


@pytest.fixture
def mesh(device: str) -> DeviceMesh:
    return init_device_mesh(device, (WORLD,))


def stack(device: str) -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 128, device=device), nn.ReLU(), nn.Linear(128, 64, device=device))


@pytest.mark.parametrize("device", DEVICES)
def test_collectives_give_what_they_would(device: str) -> None:
    with fake_mode():
        x = torch.ones(8, device=device)
        dist.all_reduce(x)
        dist.broadcast(x, 0)
        gathered = [torch.empty_like(x) for _ in range(WORLD)]
        dist.all_gather(gathered, x)
        summed = functional.all_reduce(x, "sum", dist.group.WORLD)
    assert summed.shape == (8,)
    assert summed.device.type == device
    assert all(map(is_fake, gathered))


@pytest.mark.parametrize("device", DEVICES)
def test_a_sharded_tensor_is_multiplied_and_differentiated(device: str, mesh: DeviceMesh) -> None:
    with fake_mode():
        x = distribute_tensor(torch.randn(64, 32, device=device, requires_grad=True), mesh, [Shard(0)])
        w = distribute_tensor(torch.randn(32, 16, device=device, requires_grad=True), mesh, [Replicate()])
        y = (x @ w).relu()
        y.sum().backward()
    assert y.placements == (Shard(0),)
    assert y.to_local().shape == (8, 16)
    assert isinstance(w.grad, DTensor)
    assert w.grad.to_local().device.type == device


@pytest.mark.parametrize("device", DEVICES)
def test_a_module_is_split_by_columns_and_rows(device: str, mesh: DeviceMesh) -> None:
    with fake_mode():
        model = parallelize_module(stack(device), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        y = model(torch.randn(4, 64, device=device))
        y.sum().backward()
    assert y.shape == (4, 64)
    assert model[0].weight.to_local().shape == (16, 64)
    assert model[2].weight.grad.to_local().shape == (64, 16)


@pytest.mark.parametrize("device", DEVICES)
def test_a_fully_sharded_module_takes_a_training_step(device: str, mesh: DeviceMesh) -> None:
    with fake_mode():
        model = stack(device)
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            y = model(torch.randn(4, 64, device=device))
            y.sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert y.shape == (4, 64)
    assert y.device.type == device
    assert model[0].weight.to_local().shape == (16, 64)
    assert all(is_fake(state["exp_avg"].to_local()) for state in optimizer.state.values())


def test_an_address_is_told_to_nobody_else() -> None:
    with fake_mode():
        storage = torch.empty(4).untyped_storage()
    with pytest.raises(DataAccessError):
        storage.data_ptr()
