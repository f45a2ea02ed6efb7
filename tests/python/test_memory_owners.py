"""Owners of memory: gradients before any optimizer's step, communication, and sums over random programs."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

import torchfake
from torchfake import memory, step_time

KiB = 1 << 10


def owned(tracked: memory.Tracker, owner: str) -> list[memory.Piece]:
    return [piece for piece in tracked.pieces if piece.owner == owner]


def model_of(*widths: int) -> nn.Sequential:
    layers = [nn.Linear(a, b) for a, b in itertools.pairwise(widths)]
    return nn.Sequential(*layers).cuda()


def test_gradients_belong_to_their_module_without_an_optimizer() -> None:
    with memory.track(total_memory=8 << 30) as tracked:
        model = model_of(256, 512, 8)
        model(torch.randn(4, 256, device="cuda")).sum().backward()
        model.zero_grad()
    gradients = owned(tracked, "gradients")
    assert {piece.module for piece in gradients} == {"Sequential.0", "Sequential.1"}
    assert sum(piece.requested for piece in gradients) == 4 * (256 * 512 + 512 + 512 * 8 + 8)


def test_gradients_are_told_apart_at_a_peak_within_the_backward_pass() -> None:
    with memory.track(total_memory=8 << 30) as tracked:
        model = model_of(64, 4096, 4096, 64)
        model(torch.randn(2, 64, device="cuda")).sum().backward()
    moment = tracked.at_peak()
    assert {piece.phase for piece in moment.pieces if piece.owner == "gradients"} == {"backward"}
    assert moment.owners["gradients"] >= 4 * 4096 * 4096


def test_parameters_of_a_model_that_nothing_called_are_no_inputs() -> None:
    with memory.track(total_memory=8 << 30) as tracked:
        called, other = model_of(64, 64), nn.ModuleDict({"teacher": model_of(256, 512)})
        other.register_buffer("scale", torch.ones(1024, device="cuda"))
        called(torch.randn(2, 64, device="cuda"))
    assert {piece.module for piece in owned(tracked, "parameters")} == {"Sequential.0", "ModuleDict.teacher.0"}
    assert [(piece.module, piece.requested) for piece in owned(tracked, "buffers")] == [("ModuleDict", 4 * KiB)]
    assert {piece.requested for piece in owned(tracked, "inputs")} == {2 * 64 * 4}


def test_a_module_that_an_error_left_half_made_does_no_harm() -> None:
    class HalfMade(nn.Module):
        def __init__(self) -> None:
            self.__dict__["size"] = 1

    half = HalfMade()
    with memory.track(total_memory=8 << 30) as tracked:
        model = model_of(64, 64)
        model._modules["half"] = half
    assert {piece.module for piece in owned(tracked, "parameters")} == {"Sequential.0"}


def test_parameters_that_die_before_any_call_were_parameters() -> None:
    with memory.track(total_memory=8 << 30) as tracked:
        model = nn.Linear(256, 512, device="cuda")
        model.weight = nn.Parameter(model.weight[:64].clone())
    assert {piece.requested for piece in owned(tracked, "parameters")} == {4 * 256 * 512, 4 * 512, 4 * 64 * 256}
    assert {piece.module for piece in owned(tracked, "parameters") if piece.died == -1} == {"Linear"}


def test_a_model_that_the_card_cannot_hold_is_parameters() -> None:
    model = nn.Sequential(*(nn.Linear(1024, 1024, bias=False, device="meta") for _ in range(32)))
    tracker = memory.track(total_memory=64 << 20, context_memory=0)
    with pytest.raises(torch.OutOfMemoryError), tracker:
        model.to_empty(device="cuda")
    assert tracker.at_peak().owners["parameters"] == tracker.peak >= 60 << 20


def test_a_loss_outside_of_modules_is_activations_and_what_it_is_computed_on_is_not() -> None:
    with memory.track(total_memory=8 << 30) as tracked:
        model = model_of(64, 2048)
        x, weight = torch.randn(128, 64, device="cuda").mul(2), torch.ones(128, 2048, device="cuda")
        loss = (model(x).exp() * weight).sum()
        loss.backward()
    by_op = {(piece.op, piece.owner) for piece in tracked.pieces if not piece.module}
    assert {("aten::exp", "activations"), ("aten::mul", "inputs"), ("aten::ones", "inputs")} <= by_op
    assert not [piece for piece in owned(tracked, "inputs") if piece.op in ("aten::exp", "aten::sum")]


def test_a_measurement_of_time_does_not_change_who_owns_memory() -> None:
    def pieces(timed: bool) -> list[tuple[str, str, str]]:
        with memory.track(total_memory=8 << 30) as tracked, step_time.measure() if timed else nullcontext():
            model = model_of(64, 64)
            optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
            for _ in range(2):
                model(torch.randn(2, 64, device="cuda")).exp().sum().backward()
                optimizer.step()
        return [(piece.op, piece.owner, piece.module) for piece in tracked.pieces]

    assert pieces(timed=True) == pieces(timed=False)


def test_what_a_backward_pass_creates_belongs_to_the_module_of_its_forward_pass() -> None:
    with memory.track(total_memory=8 << 30) as tracked:
        model = model_of(64, 2048, 512)
        model(torch.randn(128, 64, device="cuda")).exp().sum().backward()
    products = {piece.requested: piece.module for piece in tracked.pieces if piece.phase == "backward"}
    assert products[4 * 2048 * 512] == products[4 * 128 * 2048] == "Sequential.1"  # of its weight and its input
    assert products[4 * 64 * 2048] == "Sequential.0"
    assert products[4 * 128 * 512] == ""  # of exp


def test_a_parameter_that_dies_is_forgotten() -> None:
    with memory.track(total_memory=8 << 30) as tracked:
        for _ in range(3):
            model = model_of(64, 64)
            model(torch.randn(2, 64, device="cuda")).sum().backward()
            del model
    assert len(owned(tracked, "gradients")) == 6


def test_the_state_of_an_optimizer_is_found_in_nested_parts() -> None:
    class Nested(torch.optim.Optimizer):
        def __init__(self, parameters: Iterator[nn.Parameter]) -> None:
            super().__init__(parameters, {})

        def step(self, closure: object = None) -> None:  # type: ignore[override]
            for parameter in self.param_groups[0]["params"]:
                self.state[parameter] = {"factors": [torch.zeros_like(parameter), {"row": torch.zeros_like(parameter)}]}

    with memory.track(total_memory=8 << 30) as tracked:
        model = model_of(256, 512)
        optimizer = Nested(model.parameters())
        model(torch.randn(4, 256, device="cuda")).sum().backward()
        optimizer.step()
    state = owned(tracked, "optimizer state")
    assert sum(piece.requested for piece in state) == 2 * 4 * (256 * 512 + 512)
    assert {piece.module for piece in state} == {"Sequential.0"}


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


@pytest.mark.usefixtures("group")
def test_what_collectives_send_and_receive_is_communication() -> None:
    with memory.track(total_memory=8 << 30) as tracked:
        part = torch.empty(64 * KiB, device="cuda")
        whole = torch.empty(256 * KiB, device="cuda")
        other = torch.empty(32 * KiB, device="cuda")
        dist.all_gather_into_tensor(whole, part)
        dist.all_reduce(part)
    communication = {piece.requested for piece in owned(tracked, "communication")}
    assert communication == {4 * part.numel(), 4 * whole.numel()}
    assert [piece.requested for piece in owned(tracked, "inputs")] == [4 * other.numel()]


@pytest.mark.usefixtures("group")
def test_parameters_and_gradients_stay_so_when_they_are_reduced() -> None:
    with memory.track(total_memory=8 << 30) as tracked:
        model = DistributedDataParallel(model_of(256, 512))
        for _ in range(2):
            model(torch.randn(4, 256, device="cuda")).sum().backward()
    size = 4 * (256 * 512 + 512)
    assert sum(piece.requested for piece in owned(tracked, "parameters")) == size
    assert sum(piece.requested for piece in owned(tracked, "gradients")) == size
    assert size in {piece.requested for piece in owned(tracked, "communication")}  # the bucket


@pytest.mark.usefixtures("group")
def test_gathered_and_scattered_buffers_of_sharded_modules_are_communication() -> None:
    with memory.track(total_memory=8 << 30) as tracked:
        model = model_of(1024, 1024, 1024)
        mesh = init_device_mesh("cuda", (4,))
        for layer in (*model, model):
            fully_shard(layer, mesh=mesh)
        model(torch.randn(4, 1024, device="cuda")).sum().backward()
        optimizer = torch.optim.Adam(model.parameters())
        optimizer.step()
    weight = 4 * 1024 * 1024
    assert max(piece.requested for piece in owned(tracked, "communication")) >= weight
    for owner, copies in (("parameters", 1), ("gradients", 1), ("optimizer state", 2)):
        shards = [piece for piece in owned(tracked, owner) if piece.requested >= weight // 4]
        assert len(shards) == 2 * copies, owner
        assert all(piece.requested <= weight // 4 + 1024 for piece in shards)  # gradients lie with the bias's
        assert {piece.module for piece in shards} == {"FSDPSequential.0", "FSDPSequential.1"}


class Program:
    """A random program of forward and backward passes, steps, and tensors that are created and freed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.kept: list[torch.Tensor] = []
        self.make_model()

    def make_model(self) -> None:
        widths = [self.random.choice([64, 300, 1000]) for _ in range(self.random.randint(2, 4))]
        self.model, self.width = model_of(*widths), widths[0]
        kind = self.random.choice([torch.optim.SGD, torch.optim.Adam, torch.optim.Adagrad])
        self.optimizer = kind(self.model.parameters())

    def forward(self) -> None:
        with torch.autocast("cuda", torch.bfloat16, enabled=self.random.random() < 0.5):
            self.kept.append(self.model(torch.randn(self.random.randint(1, 500), self.width, device="cuda")))

    def backward(self) -> None:
        losses = [tensor.sum() for tensor in self.kept if tensor.grad_fn is not None]
        self.kept = []
        for loss in losses:
            loss.float().backward()

    def step(self) -> None:
        self.kept = [tensor for tensor in self.kept if tensor.grad_fn is None]  # its saved weights would be overwritten
        self.optimizer.step()

    def zero_grad(self) -> None:
        self.optimizer.zero_grad(set_to_none=self.random.random() < 0.5)

    def make(self) -> None:
        self.kept.append(torch.empty(self.random.randint(1, 1 << 20), device="cuda"))

    def sort(self) -> None:
        torch.randn(self.random.randint(1, 100_000), device="cuda").sort()

    def resize(self) -> None:
        x = torch.empty(self.random.randint(1, 1000), device="cuda")
        x.untyped_storage().resize_(self.random.randint(0, 1 << 22))
        self.kept.append(x)

    def drop(self) -> None:
        self.kept = [tensor for tensor in self.kept if self.random.random() < 0.5]

    def run(self, length: int) -> None:
        names = ("forward", "forward", "backward", "step", "zero_grad", "make", "sort", "resize", "drop", "make_model")
        for _ in range(length):
            getattr(self, self.random.choice(names))()


@pytest.mark.parametrize("seed", range(12))
def test_owners_add_up_to_the_allocators_bytes_in_random_programs(seed: int) -> None:
    with torchfake.fake_mode():
        memory.attach(total_memory=80 << 30)
        early = torch.empty(1000, device="cuda")  # before the tracker
        totals = []
        with memory.track() as tracked:
            program = Program(seed)
            for _ in range(15):
                program.run(4)
                totals.append((tracked.timeline[-1].event, memory.allocated()))
        assert tracked.peak == memory.max_allocated()
        del early
    by_event = {point.event: point for point in tracked.timeline}
    for event, allocated in totals:
        assert by_event[event].total == allocated
    for point in tracked.timeline[:: max(len(tracked.timeline) // 40, 1)]:
        moment = tracked.at(point.event)
        assert moment.owners == point.owners
        assert sum(moment.by_module().values()) == moment.total == point.total
    changes: dict[int, int] = {}
    for piece in tracked.pieces:
        changes[piece.born] = piece.nbytes
        if piece.died != -1:
            changes[piece.died] = -piece.nbytes
    total = 0
    for point in tracked.timeline:
        total += changes.pop(point.event)
        assert point.total == total
        assert min(point.owners.values()) >= 0
    assert not changes


def helper() -> torch.Tensor:
    return torch.zeros(1000, device="cuda")


def test_stacks_are_recorded_on_request() -> None:
    with memory.track(total_memory=8 << 30, stacks=True) as tracked:
        kept = [helper(), helper()]
    first, second = tracked.pieces
    here = helper.__code__
    assert (first.file, first.line) == first.stack[0] == (here.co_filename, here.co_firstlineno + 1)
    assert len(first.stack) > 2
    assert first.stack[1] == second.stack[1]
    assert first.stack[1][1] > here.co_firstlineno + 1
    with memory.track(total_memory=8 << 30, lines=True) as tracked:
        kept.append(helper())
    assert (tracked.pieces[0].line, tracked.pieces[0].stack) == (first.line, ())
