"""Sharded tensors and modules in a fake process group: one process represents eight."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import _functional_collectives as functional
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

from torchfake import DataAccessError, DataDependentOutputException, FakeTensorMode, fake_mode, is_fake

WORLD = 8
DEVICES = ["cpu", "cuda"]


@pytest.fixture(autouse=True)
def process_group(request: pytest.FixtureRequest) -> Iterator[None]:
    rank, world = getattr(request, "param", (0, WORLD))
    dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
    yield
    dist.destroy_process_group()


@pytest.fixture
def mesh(device: str) -> DeviceMesh:
    return init_device_mesh(device, (WORLD,))


def stack(device: str) -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 128, device=device), nn.ReLU(), nn.Linear(128, 64, device=device))


@pytest.mark.parametrize("device", DEVICES)
def test_collectives_return_what_they_return_in_a_real_run(device: str) -> None:
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


def test_an_address_is_not_sent_to_other_ranks() -> None:
    with fake_mode():
        storage = torch.empty(4).untyped_storage()
    with pytest.raises(DataAccessError):
        storage.data_ptr()


# ---- Values ----

#: Collectives that write values from other ranks to their argument.
RECEIVED: dict[str, Callable[[Tensor], Tensor]] = {
    "all_reduce": lambda x: (dist.all_reduce(x), x)[1],
    "reduce": lambda x: (dist.reduce(x, 3), x)[1],
    "broadcast": lambda x: (dist.broadcast(x, 0), x)[1],
    "recv": lambda x: (dist.recv(x, 0), x)[1],
    "scatter": lambda x: (dist.scatter(x, None, 0), x)[1],
    "all_gather": lambda x: gathered(lambda into: dist.all_gather(into, x), x),
    "gather": lambda x: gathered(lambda into: dist.gather(x, into, 3), x),
    "all_gather_into_tensor": lambda x: into(lambda out: dist.all_gather_into_tensor(out, x), WORLD),
    "reduce_scatter": lambda x: into(lambda out: dist.reduce_scatter(out, [x] * WORLD), 1),
    "reduce_scatter_tensor": lambda x: into(lambda out: dist.reduce_scatter_tensor(out, torch.ones(WORLD)), 1),
    "all_to_all": lambda x: gathered(lambda into: dist.all_to_all(into, [x] * WORLD), x),
    "all_to_all_single": lambda x: into(lambda out: dist.all_to_all_single(out, torch.ones(WORLD)), WORLD),
    "functional all_reduce": lambda x: functional.all_reduce(x, "sum", dist.group.WORLD),
    "functional all_reduce_": lambda x: torch.ops._c10d_functional.all_reduce_(x, "sum", "0"),
    "functional broadcast": lambda x: functional.broadcast(x, 0, dist.group.WORLD),
    "functional all_gather": lambda x: functional.all_gather_tensor(x, 0, dist.group.WORLD),
    "functional reduce_scatter": lambda x: functional.reduce_scatter_tensor(
        torch.ones(WORLD), "sum", 0, dist.group.WORLD
    ),
}


def gathered(call: Callable[[list[Tensor]], object], like: Tensor) -> Tensor:
    """The last tensor of a list, initially zeros, that a collective fills."""
    outputs = [torch.zeros_like(like) for _ in range(WORLD)]
    call(outputs)
    return outputs[-1]


def into(call: Callable[[Tensor], object], size: int) -> Tensor:
    """The tensor, initially zeros, that a collective fills."""
    output = torch.zeros(size)
    call(output)
    return output


@pytest.mark.parametrize("process_group", [(3, WORLD)], indirect=True)
@pytest.mark.parametrize("name", RECEIVED)
def test_what_other_ranks_contribute_is_not_known(name: str) -> None:
    with fake_mode():
        x = torch.ones(1)
        view = x[:]
        result = RECEIVED[name](x)
        assert is_fake(functional.wait_tensor(result))
        for tensor in [result, view] if result is x else [result]:
            with pytest.raises(DataDependentOutputException):
                tensor[0].item()


@pytest.mark.parametrize("process_group", [(3, WORLD)], indirect=True)
def test_values_of_other_ranks_are_no_real_values_either() -> None:
    with FakeTensorMode(propagate_real_tensors=True):
        x = torch.ones(1)
        dist.all_reduce(x)
        y = functional.all_reduce(torch.ones(1), "sum", dist.group.WORLD)
    for tensor in (x, y):
        with pytest.raises(DataDependentOutputException):
            tensor.item()


@pytest.mark.parametrize("process_group", [(3, WORLD)], indirect=True)
def test_what_this_rank_gives_stays_known() -> None:
    with fake_mode():
        x, y = torch.ones(1), torch.full((WORLD,), 2.0)
        dist.broadcast(x, 3)
        dist.send(x, 0)
        dist.all_gather([torch.zeros(1) for _ in range(WORLD)], x)
        dist.reduce_scatter_tensor(torch.zeros(1), y)
        assert x.item() == 1 and y.tolist() == [2.0] * WORLD


@pytest.mark.parametrize("process_group", [(0, 1)], indirect=True)
def test_a_group_of_one_keeps_its_values() -> None:
    with fake_mode():
        x = torch.ones(1)
        dist.all_reduce(x)
        dist.broadcast(x, 0)
        assert x.item() == 1
