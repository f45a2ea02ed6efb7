"""Collectives of known values under stand-ins: all ranks are assumed to contribute the same as this one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from torchfake import DataDependentOutputException
from torchfake.modes import fake_mode

WORLD = 4


@pytest.fixture(autouse=True)
def process_group() -> Iterator[None]:
    dist.init_process_group("fake", rank=1, world_size=WORLD, store=FakeStore())
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(
    "op, expected",
    [("SUM", [8, 12]), ("PRODUCT", [16, 81]), ("AVG", [2, 3]), ("MIN", [2, 3]), ("MAX", [2, 3]), ("BXOR", [0, 0])],
)
def test_a_reduction_assumes_equal_values_on_all_ranks(op, expected):
    with fake_mode(unknown="stand-in", gpus=f"{WORLD}xH200") as mode:
        x = torch.tensor([2, 3], device="cuda")
        dist.all_reduce(x, getattr(dist.ReduceOp, op))
        assert x.tolist() == expected
        (entry,) = mode.stand_ins.entries
        assert (entry.what, entry.answer) == ("all_reduce", "as if every rank had this rank's values")


def test_ranks_gather_equal_values():
    with fake_mode(unknown="stand-in", gpus=f"{WORLD}xH200"):
        sizes = torch.tensor([5, 7], device="cuda")
        gathered = [torch.zeros_like(sizes) for _ in range(WORLD)]
        dist.all_gather(gathered, sizes)
        assert all((each == sizes).all() for each in gathered)
        out = torch.empty(WORLD, 2, dtype=torch.long, device="cuda")
        dist.all_gather_into_tensor(out, sizes)
        assert out.tolist() == [[5, 7]] * WORLD
        count = torch.tensor(3, device="cuda")
        out = torch.empty(WORLD, dtype=torch.long, device="cuda")
        work = dist.all_gather_into_tensor(out, count, async_op=True)
        work.wait()
        assert out.tolist() == [3] * WORLD


def test_the_source_of_a_broadcast_has_the_values_of_this_rank():
    with fake_mode(unknown="stand-in", gpus=f"{WORLD}xH200") as mode:
        x = torch.tensor([2, 3], device="cuda")
        dist.broadcast(x, 1)
        assert mode.stand_ins.entries == []
        dist.broadcast(x, src=0)
        assert x.tolist() == [2, 3]
        assert [entry.what for entry in mode.stand_ins.entries] == ["broadcast"]
        state = torch.Generator().get_state().cuda()
        dist.broadcast(state, 0)
        torch.Generator().set_state(state.cpu())


def test_what_this_rank_does_not_know_stays_unknown():
    with fake_mode(unknown="stand-in", gpus=f"{WORLD}xH200") as mode:
        x = torch.randn(100, device="cuda")
        dist.all_reduce(x)
        assert mode.stand_ins.entries == []
        assert x.sum().item() == 1.0


def test_contributions_are_only_assumed_under_stand_ins():
    with fake_mode(gpus=f"{WORLD}xH200"):
        x = torch.ones(2, device="cuda")
        dist.all_reduce(x)
        with pytest.raises(DataDependentOutputException):
            x.sum().item()
    alone = dist.new_group([1])
    with fake_mode(unknown="stand-in", gpus=f"{WORLD}xH200") as mode:
        x = torch.ones(2, device="cuda")
        dist.all_reduce(x, group=alone)
        assert x.tolist() == [1.0, 1.0]
        assert mode.stand_ins.entries == []


class _Branches(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, both: bool = False) -> dict[str, torch.Tensor]:
        return {"out": self.unused(self.used(x)) if both else self.used(x), "given": x}


@pytest.mark.parametrize("options", [{"find_unused_parameters": True}, {"static_graph": True}])
def test_parameters_may_be_unused_in_a_forward_pass(options):
    with fake_mode(gpus=f"{WORLD}xH200"):
        torch.cuda.set_device(1)
        model = torch.nn.parallel.DistributedDataParallel(_Branches().cuda(), device_ids=[1], **options)
        for both in (False, False, True):
            model.zero_grad()
            model(torch.randn(4, 8, device="cuda"), both)["out"].sum().backward()
            assert model.module.used.weight.grad is not None
            assert (model.module.unused.weight.grad is not None) == both
        with model.no_sync():
            model(torch.randn(4, 8, device="cuda"))["out"].sum().backward()
        with torch.no_grad():
            assert not model(torch.randn(4, 8, device="cuda"))["out"].requires_grad
