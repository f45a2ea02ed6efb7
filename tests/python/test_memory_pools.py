"""Streams, pools and the memory history of claimed cards."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from torch.cuda import _memory_viz

import torchfake

MIB = 1 << 20


def filled(mebibytes: int) -> torch.Tensor:
    return torch.empty(mebibytes * MIB, dtype=torch.uint8, device="cuda")


def pools() -> dict[tuple[int, int], int]:
    found: dict[tuple[int, int], int] = {}
    for segment in torch.cuda.memory_snapshot():
        pool = tuple(segment["segment_pool_id"])
        found[pool] = found.get(pool, 0) + segment["total_size"]
    return found


def test_memory_of_one_stream_is_not_reused_on_another() -> None:
    with torchfake.fake_mode(gpus="H200"):
        first = filled(30)
        del first
        with torch.cuda.stream(torch.cuda.Stream()):
            second = filled(30)
        assert torch.cuda.memory_reserved() == 60 * MIB
        third = filled(30)
        assert torch.cuda.memory_reserved() == 60 * MIB
        assert {segment["stream"] for segment in torch.cuda.memory_snapshot()} > {0}
        del second, third


def test_a_block_that_another_stream_uses_is_free_at_the_next_allocation() -> None:
    with torchfake.fake_mode(gpus="H200"):
        for _ in range(2):  # the call is never a cache hit
            x = filled(30)
            x.record_stream(torch.cuda.Stream())
            del x
            assert torch.cuda.memory_stats()["active_bytes.all.current"] == 30 * MIB
            assert torch.cuda.memory_allocated() == 0
            filled(30)
            assert torch.cuda.memory_reserved() == 30 * MIB
            assert torch.cuda.memory_stats()["active_bytes.all.current"] == 0


def test_the_gradient_is_allocated_on_the_stream_of_its_forward() -> None:
    with torchfake.fake_mode(gpus="H200"):
        x = torch.zeros(MIB, device="cuda", requires_grad=True)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            loss = (x * 2).sum()
        loss.backward()
        assert torch.cuda.current_stream() == torch.cuda.default_stream()
        streams = {segment["stream"] for segment in torch.cuda.memory_snapshot()}
        assert streams == {0, stream.stream_id}


def test_what_a_graph_allocates_lies_in_its_pool() -> None:
    with torchfake.fake_mode(gpus="H200"):
        x = filled(30)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x + 1
        assert pools() == {(0, 0): 30 * MIB, graph.pool(): 30 * MIB}
        with torch.cuda.graph(torch.cuda.CUDAGraph(), pool=graph.pool()):
            filled(20)
        assert pools()[graph.pool()] == 50 * MIB
        z = x + 1
        assert pools()[0, 0] == 60 * MIB
        del y, z, graph
        torch.cuda.empty_cache()
        assert pools() == {(0, 0): 30 * MIB}


def test_a_pool_of_the_user_holds_what_is_allocated_in_its_scope() -> None:
    with torchfake.fake_mode(gpus="H200"):
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            x = filled(30)
        y = filled(30)
        assert pools() == {(0, 0): 30 * MIB, pool.id: 30 * MIB}
        assert [segment["total_size"] for segment in pool.snapshot()] == [30 * MIB]
        del x, y
        torch.cuda.empty_cache()
        assert pools() == {}


def test_settings_hold_for_what_is_allocated_from_then_on() -> None:
    with torchfake.fake_mode(gpus="H200"):
        torch.cuda.memory._set_allocator_settings("expandable_segments:True")
        x = filled(30)
        assert [segment["is_expandable"] for segment in torch.cuda.memory_snapshot()] == [True]
        assert torch.cuda.memory_reserved() == 40 * MIB  # two pages of 20 MiB
        with pytest.raises(ValueError, match="nothing_of_the_kind"):
            torch.cuda.memory._set_allocator_settings("nothing_of_the_kind:1")
        del x


def test_the_history_opens_in_the_memory_viewer(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    with torchfake.fake_mode(gpus="H200"):
        torch.cuda.memory._record_memory_history(stacks="python")
        kept = filled(30)
        dropped = kept + 1
        del dropped
        torch.cuda.memory._dump_snapshot(str(path))
        torch.cuda.memory._record_memory_history(None)
        filled(1)
        (trace,) = torch.cuda.memory._snapshot()["device_traces"]
    content = pickle.loads(path.read_bytes())
    (events,) = content["device_traces"]
    actions = [event["action"] for event in events]
    assert actions == ["segment_alloc", "alloc", "segment_alloc", "alloc", "free_requested", "free_completed"]
    assert all(any(frame["filename"] == __file__ for frame in event["frames"]) for event in events)
    assert len(trace) == len(events)
    live = [block for segment in content["segments"] for block in segment["blocks"] if block["frames"]]
    assert [(block["size"], block["frames"][0]["name"]) for block in live] == [(30 * MIB, "filled")]
    assert "30.0MiB" in _memory_viz.segsum(content)
    assert "alloc" in _memory_viz.trace(content)
    assert "Active Memory Timeline" in _memory_viz.trace_plot(content)


def test_the_history_of_a_backward_pass_has_no_deadlock_and_keeps_the_last_events() -> None:
    with torchfake.fake_mode(gpus="H200"):
        torch.cuda.memory._record_memory_history(max_entries=5, context="alloc", stacks="python")
        model = torch.nn.Linear(64, 64, device="cuda")
        model(torch.zeros(8, 64, device="cuda")).sum().backward()
        (events,) = torch.cuda.memory._snapshot()["device_traces"]
        assert len(events) == 5
        torch.cuda.memory._record_memory_history(None)


def test_bad_options_of_the_history_are_refused() -> None:
    with torchfake.fake_mode(gpus="H200"):
        for options in ({"enabled": "some"}, {"context": "some"}, {"stacks": "some"}):
            with pytest.raises(ValueError, match="some"):
                torch.cuda.memory._record_memory_history(**options)


def test_a_mode_that_only_counts_says_that_it_has_no_history() -> None:
    with torchfake.fake_mode(), pytest.warns(UserWarning, match="counts live bytes alone"):
        torch.cuda.memory._record_memory_history()


def test_a_dropout_allocates_its_mask_before_its_output() -> None:
    for _ in range(2):  # a miss, then a hit
        with torchfake.fake_mode(gpus="H200"):
            x = torch.empty(16 * MIB, device="cuda")
            free = torch.empty(16 * MIB, device="cuda")
            del free
            # The mask splits the free block, so that the output needs a new one.
            y = torch.dropout(x, 0.5, True)
            assert torch.cuda.memory_reserved() == 3 * 64 * MIB
            assert torch.cuda.memory_allocated() == 2 * 64 * MIB
            del y


def test_views_of_one_buffer_that_an_operator_returns_are_one_block() -> None:
    with torchfake.fake_mode(gpus="H200"):
        model = torch.nn.LSTM(64, 64, batch_first=True, device="cuda")
        before = torch.cuda.memory_allocated()
        for _ in range(2):
            model(torch.zeros(8, 20, 64, device="cuda"))[0].sum().backward()
            model.zero_grad()
        # Only a workspace of cuBLAS may remain.
        assert torch.cuda.memory_allocated() - before <= 33 * MIB


def test_memory_that_runs_out_amid_an_operator_is_given_back() -> None:
    with torchfake.fake_mode(gpus="H200", gpu_memory="1GiB"):
        torch.cuda.set_per_process_memory_fraction(0.25)
        x = torch.empty(30 * MIB, device="cuda")  # 120 of 256 MiB
        before = torch.cuda.memory_allocated()
        for _ in range(2):
            with pytest.raises(torch.cuda.OutOfMemoryError):
                torch.dropout(x, 0.5, True)  # the mask fits, the output does not
            assert torch.cuda.memory_allocated() == before


def test_what_a_kernel_takes_on_the_side_is_given_back_once_in_a_mode_that_counts() -> None:
    with torchfake.fake_mode():
        x = torch.empty(100 * MIB, device="cuda")
        for _ in range(2):
            x.sum()
        assert torch.cuda.memory_allocated() == x.nbytes
        assert torch.cuda.memory_stats()["allocation.all.current"] == 1
