"""torchfake.memory: the figures of torch.cuda for fakes, and the owners of memory."""

from __future__ import annotations

import gc
import gzip
import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import torchfake
from torchfake import memory
from torchfake._memory_report import size, sparkline
from torchfake._memory_summary import summary_of

MiB = 1 << 20
RECORDED = Path(__file__).parents[1] / "memory" / "recorded"


@pytest.fixture
def card() -> Iterator[None]:
    with torchfake.fake_mode():
        memory.attach(total_memory=1 << 30, context_memory=0)
        yield


@pytest.mark.usefixtures("card")
def test_allocated_and_reserved_follow_the_life_of_tensors() -> None:
    x = torch.empty(3 * MiB, dtype=torch.uint8, device="cuda")
    assert memory.allocated() == 3 * MiB
    assert memory.reserved() == 20 * MiB
    y = x[:5]
    del x
    assert memory.allocated() == 3 * MiB
    del y
    assert memory.allocated() == 0
    assert memory.max_allocated() == 3 * MiB
    memory.reset_peak_stats()
    assert memory.max_allocated() == 0
    memory.empty_cache()
    assert memory.reserved() == 0


@pytest.mark.usefixtures("card")
def test_devices_have_memory_of_their_own() -> None:
    x = torch.empty(MiB, dtype=torch.uint8, device="cuda:1")
    assert memory.allocated("cuda:0") == 0
    assert memory.allocated("cuda:1") == memory.allocated(1) == memory.allocated(x.device) == MiB


@pytest.mark.usefixtures("card")
def test_a_full_card_raises_out_of_memory_with_pytorchs_message_and_goes_on() -> None:
    x = torch.empty(700 * MiB, dtype=torch.uint8, device="cuda")
    with pytest.raises(
        torch.OutOfMemoryError, match=r"Tried to allocate 700.00 MiB. GPU 0 has a total capacity of 1024.00 MiB"
    ):
        x + 1
    assert memory.allocated() == 700 * MiB
    del x
    torch.empty(900 * MiB, dtype=torch.uint8, device="cuda")
    assert memory.stats()["num_ooms"] == 1


@pytest.mark.usefixtures("card")
def test_a_fraction_of_the_card_can_be_set() -> None:
    memory.set_per_process_memory_fraction(0.25)
    assert memory.memory_fraction() == 0.25
    with pytest.raises(torch.OutOfMemoryError, match=r"256.00 MiB allowed"):
        torch.empty(300 * MiB, dtype=torch.uint8, device="cuda")
    with pytest.raises(ValueError, match="Invalid fraction"):
        memory.set_per_process_memory_fraction(1.5)


@pytest.mark.usefixtures("card")
def test_free_memory_shrinks_by_what_is_reserved() -> None:
    assert memory.mem_get_info() == (1 << 30, 1 << 30)
    x = torch.empty(5, device="cuda")
    assert memory.mem_get_info() == ((1 << 30) - 2 * MiB, 1 << 30)
    del x


@pytest.mark.usefixtures("card")
def test_statistics_have_all_the_keys_of_pytorchs() -> None:
    recording = json.loads(gzip.decompress((RECORDED / "allocator.json.gz").read_bytes()))
    assert set(recording["stat_keys"]) <= set(memory.stats())


def test_the_summary_is_pytorchs_table() -> None:
    recording = json.loads(gzip.decompress((RECORDED / "allocator.json.gz").read_bytes()))
    program = recording["programs"][0]
    step, values = program["stats"][-1]
    assert step == len(program["steps"]) - 1
    stats = dict(zip(recording["stat_keys"], values, strict=True))
    assert summary_of(stats, 0, abbreviated=False) == program["summary"]


@pytest.mark.usefixtures("card")
def test_a_snapshot_lists_segments_and_blocks() -> None:
    x = torch.empty(1000, dtype=torch.uint8, device="cuda")
    [segment] = memory.snapshot()
    assert segment["total_size"] == 2 * MiB
    assert [(b["size"], b["requested_size"], b["state"]) for b in segment["blocks"]] == [
        (1024, 1000, "active_allocated"),
        (2 * MiB - 1024, 0, "inactive"),
    ]
    del x


def test_without_a_model_the_question_says_what_to_do() -> None:
    with torchfake.fake_mode(), pytest.raises(RuntimeError, match=r"memory.attach"):
        memory.allocated()


def train(steps: int = 1) -> None:
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10)).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.randn(64, 256, device="cuda")
    for _ in range(steps):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def test_owners_add_up_to_what_is_allocated_at_every_event() -> None:
    with memory.track(total_memory=8 << 30) as tracked:
        train(steps=2)
    assert tracked.timeline
    assert max(point.total for point in tracked.timeline) == tracked.peak
    moment = tracked.at_peak()
    assert sum(moment.owners.values()) == moment.total == tracked.peak
    for point in tracked.timeline[::17]:
        assert tracked.at(point.event).owners == point.owners


def convolutions() -> None:
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(14400, 10)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(torch.randn(8, 3, 32, 32, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)


def attention() -> None:
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, batch_first=True), 2).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    x = torch.randn(4, 128, 64, device="cuda")
    for _ in range(2):
        torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def resized() -> None:
    x = torch.empty(1000, device="cuda")
    x.untyped_storage().resize_(5 * MiB)
    x.untyped_storage().resize_(0)
    torch.sort(torch.randn(100_000, device="cuda"))


@pytest.mark.parametrize("program", [train, convolutions, attention, resized])
def test_owners_add_up_to_the_allocators_bytes_at_every_event(program: Callable[[], None]) -> None:
    with torchfake.fake_mode():
        memory.attach(total_memory=8 << 30)
        with memory.track() as tracked:
            program()
            gc.collect()
            assert tracked.timeline[-1].total == memory.allocated()
        assert tracked.peak == memory.max_allocated()
    births = {piece.born: piece.nbytes for piece in tracked.pieces}
    deaths = {piece.died: -piece.nbytes for piece in tracked.pieces if piece.died != -1}
    total = 0
    for point in tracked.timeline:
        total += births.get(point.event, 0) + deaths.get(point.event, 0)
        assert point.total == total
        assert min(point.owners.values()) >= 0


def test_parameters_gradients_and_state_are_listed_under_the_module_that_holds_them() -> None:
    with memory.track(total_memory=8 << 30) as tracked:
        train(steps=2)
    kept = [p for p in tracked.pieces if p.owner in ("parameters", "gradients", "optimizer state")]
    assert {p.module for p in kept} == {"Sequential.0", "Sequential.2"}
    weights = 4 * (256 * 512 + 512)
    assert sum(p.requested for p in kept if p.module == "Sequential.0" and p.owner == "parameters") == weights
    assert sum(p.requested for p in kept if p.module == "Sequential.0" and p.owner == "optimizer state") == 2 * weights


def test_parameters_gradients_and_optimizer_state_are_told_apart() -> None:
    parameters = 4 * (256 * 512 + 512 + 512 * 10 + 10)
    with memory.track(total_memory=8 << 30) as tracked:
        train(steps=2)
    pieces = tracked.pieces
    of = {
        owner: [p.requested for p in pieces if p.owner == owner and p.device == "cuda:0"] for owner in memory_owners()
    }
    assert sum(of["parameters"]) == parameters
    assert sum(of["gradients"]) == 2 * parameters  # of two steps
    assert sum(of["optimizer state"]) == 2 * parameters
    assert of["activations"]
    assert 64 * 256 * 4 in of["inputs"]
    assert 32 * MiB in of["workspaces"]


def memory_owners() -> list[str]:
    return list(memory.Moment("", 0, 0, []).owners)


def test_what_a_module_made_is_listed_under_its_path() -> None:
    with memory.track(total_memory=8 << 30) as tracked:
        train()
    modules = {piece.module for piece in tracked.pieces}
    assert {"", "Sequential.0", "Sequential.1", "Sequential.2"} <= modules


def test_a_report_prints_a_table_and_gives_json_and_a_page() -> None:
    with memory.track(total_memory=8 << 30) as tracked:
        train()
        tracked.phase("<b>end</b>")
        torch.empty(5, device="cuda")
    report = tracked.report()
    assert str(report).startswith(f"cuda:0: peak {size(tracked.peak)} allocated")
    assert "workspaces" in str(report)
    data = json.loads(report.json())
    assert data["schema"] == 1
    [device] = data["devices"]
    assert sum(device["owners"].values()) == device["peak"] == tracked.peak
    page = report.html()
    assert "<svg" in page
    assert "http" not in page
    assert "<b>end</b>" not in page
    assert "&lt;b&gt;end" in page


def test_a_tracker_uses_the_model_that_a_mode_has() -> None:
    with torchfake.fake_mode():
        memory.attach(total_memory=1 << 30)
        x = torch.empty(MiB, dtype=torch.uint8, device="cuda")
        with memory.track() as tracked:
            del x
        assert tracked.peak == MiB
        assert memory.allocated() == 0
        with pytest.raises(ValueError, match="already"), memory.track(total_memory=5):
            pass


def test_a_sparkline_shows_the_highest_of_each_stretch() -> None:
    assert sparkline([0, 0, 7, 0], width=2) == "▁█"
    assert sparkline([]) == ""
    assert size(1536 * 1024) == "1.50 MiB"


@pytest.mark.parametrize(("limit", "expected"), [(1000, 950), (250, 200), (100, None)])
def test_the_largest_value_that_fits_is_found(limit: int, expected: int | None) -> None:
    tried = []

    def run(mebibytes: int) -> None:
        tried.append(mebibytes)
        torch.empty(mebibytes * MiB, dtype=torch.uint8, device="cuda")

    values = range(150, 1000, 50)
    assert memory.largest(run, values, total_memory=limit * MiB, context_memory=50 * MiB) == expected
    assert len(tried) <= 5


@pytest.mark.usefixtures("card")
def test_a_snapshot_can_be_saved_for_pytorchs_viewer(tmp_path: Path) -> None:
    x = torch.empty(1000, device="cuda")
    memory.dump_snapshot(tmp_path / "snapshot.pickle")
    content = pickle.loads((tmp_path / "snapshot.pickle").read_bytes())
    assert content["segments"] == memory.snapshot()
    assert content["device_traces"] == [[]]
    del x


@pytest.mark.usefixtures("card")
def test_the_random_state_of_recurrent_networks_is_allocated_once_and_kept() -> None:
    state = 24 * 132 * 2048
    for dropout, expected in ((0.0, 0), (0.5, state), (0.5, state)):
        model = nn.LSTM(8, 8, 2, dropout=dropout).cuda()
        model(torch.randn(3, 2, 8, device="cuda"))
        del model
        gc.collect()
        assert memory.allocated() == expected
