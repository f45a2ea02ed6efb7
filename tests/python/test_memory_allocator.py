"""The allocator model against recordings of PyTorch's caching allocator on a real card, event by event."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import torchfake
from torchfake import _C, memory

RECORDED = Path(__file__).parents[1] / "memory" / "recorded" / "allocator.json.gz"
RECORDING = json.loads(gzip.decompress(RECORDED.read_bytes()))
PROGRAMS = {program["name"]: program for program in RECORDING["programs"]}
RELEASE = int(RECORDING["torch"].split(".")[1])
SEGMENT_EVENTS = {"segment_alloc", "segment_free"}
MiB = 1 << 20


def model_for(program: dict[str, Any]) -> _C.AllocatorModel:
    addresses = [address for action, address, *_ in program["trace"] if RECORDING["actions"][action] == "segment_alloc"]
    model = _C.AllocatorModel(
        config=program["setting"].get("conf", ""),
        total=program["total_memory"],
        release=RELEASE,
        addresses=addresses,
    )
    if program["fraction"] is not None:
        model.set_memory_fraction(program["fraction"])
    model.record_trace()
    return model


def replay(program: dict[str, Any], model: _C.AllocatorModel) -> tuple[dict[int, dict[str, int]], dict[int, str]]:
    """Runs the program's steps; the statistics after each of the steps for which they were recorded, and the errors."""
    wanted = {step for step, _ in program["stats"]}
    blocks: dict[int, int] = {}
    stats, errors = {}, {}
    for number, (kind, *arguments) in enumerate(program["steps"]):
        if kind == "empty_cache":
            model.empty_cache()
        elif kind == "free":
            model.free(blocks.pop(arguments[0]))
        elif kind == "record_stream":
            model.record_stream(blocks[arguments[0]], arguments[1])
        else:
            name, nbytes, stream, *pool = arguments
            in_pool = bool(pool) and pool[0] >= 0
            if in_pool:
                model.begin_pool(pool[0] + 1)
            try:
                blocks[name] = model.allocate(nbytes, stream)
            except MemoryError as error:
                errors[number] = str(error)
            except RuntimeError as error:
                errors[number] = str(error)
            finally:
                if in_pool:
                    model.end_pool()
        if number in wanted:
            stats[number] = flat(model.stats())
    return stats, errors


def flat(nested: dict[str, Any], prefix: str = "") -> dict[str, int]:
    found: dict[str, int] = {}
    for key, value in nested.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


def relocated(events: list[tuple[str, int, int, int]]) -> list[tuple[str, int, int, int]]:
    """Addresses in expandable segments, relative to the segment's start, which the driver chooses."""
    bases: dict[int, int] = {}
    found = []
    for action, address, size, stream in events:
        if action == "oom":
            found.append((action, 0, size, stream))
            continue
        base = max((b for b in bases if b <= address < b + (1 << 37)), default=None)
        if base is None:
            assert action == "segment_map"
            bases[address] = len(bases)
            base = address
        found.append((action, address - base + (bases[base] << 40), size, stream))
    return found


def in_any_order(events: list[tuple[str, int, int, int]]) -> list[tuple[str, int, int, int]]:
    """Runs of events that the real allocator takes from a hash table or by the addresses of streams, sorted."""
    found: list[tuple[str, int, int, int]] = []
    run: list[tuple[str, int, int, int]] = []
    for event in events:
        if event[0] in ("free_completed", "segment_free", "segment_unmap"):
            run.append(event)
            continue
        found += [*sorted(run), event]
        run = []
    return found + sorted(run)


def recorded_events(program: dict[str, Any]) -> list[tuple[str, int, int, int]]:
    events = [(RECORDING["actions"][action], *rest) for action, *rest in program["trace"]]
    return [event for event in events if event[0] != "snapshot"]


def comparable(events: list[tuple[str, int, int, int]], program: dict[str, Any]) -> list[tuple[str, int, int, int]]:
    if "expandable" in program["setting"].get("conf", ""):
        return in_any_order(relocated(events))
    return in_any_order([(a, 0 if a == "oom" else address, size, stream) for a, address, size, stream in events])


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_model_takes_the_blocks_that_the_real_allocator_took(name: str) -> None:
    program = PROGRAMS[name]
    model = model_for(program)
    replay(program, model)
    expected = comparable(recorded_events(program), program)
    found = comparable(model.trace(), program)
    for number, (wanted, got) in enumerate(zip(expected, found, strict=False)):
        assert got == wanted, f"event {number}"
    assert len(found) == len(expected)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_statistics_are_those_of_the_real_allocator(name: str) -> None:
    program = PROGRAMS[name]
    stats, _ = replay(program, model_for(program))
    for step, values in program["stats"]:
        wanted = dict(zip(RECORDING["stat_keys"], values, strict=True))
        assert stats[step] == wanted, f"step {step}"


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_last_snapshot_is_that_of_the_real_allocator(name: str) -> None:
    program = PROGRAMS[name]
    model = model_for(program)
    replay(program, model)
    keys = ("total_size", "allocated_size", "active_size", "requested_size", "stream", "segment_type", "is_expandable")
    found = [
        [*(s[key] for key in keys), [[b["size"], b["requested_size"], b["state"]] for b in s["blocks"]]]
        for s in model.segments()
    ]
    wanted = [[*fields, [block[1:] for block in blocks]] for _, *fields, blocks in program["segments"]]
    if "expandable" in program["setting"].get("conf", ""):
        found, wanted = sorted(found, key=str), sorted(wanted, key=str)
    assert found == wanted


@pytest.mark.parametrize("name", [name for name, program in PROGRAMS.items() if program["errors"]])
def test_out_of_memory_has_the_real_message_with_its_figures(name: str) -> None:
    program = PROGRAMS[name]
    _, errors = replay(program, model_for(program))
    for step, message in program["errors"]:
        asked, _, rest = message.partition(". GPU 0 has")
        # The message between them contains the card's free memory and its processes.
        assert errors[step].startswith(asked + ". GPU 0 has a total capacity of 139.80 GiB of which ")
        assert errors[step].endswith(rest[rest.index(" allowed; ") - 10 :])


def test_a_request_is_rounded_and_the_pool_chosen_as_documented() -> None:
    model = _C.AllocatorModel(total=1 << 34)
    model.allocate(1)
    assert flat(model.stats())["allocated_bytes.all.current"] == 512
    assert flat(model.stats())["reserved_bytes.small_pool.current"] == 2 * MiB
    model.allocate(MiB + 1)
    assert flat(model.stats())["reserved_bytes.large_pool.current"] == 20 * MiB
    model.allocate(29 * MiB)
    assert flat(model.stats())["reserved_bytes.large_pool.current"] == 50 * MiB


def test_a_card_that_is_full_ends_in_an_out_of_memory_error_and_can_go_on() -> None:
    model = _C.AllocatorModel(total=100 * MiB)
    block = model.allocate(60 * MiB)
    with pytest.raises(
        RuntimeError, match=r"CUDA out of memory. Tried to allocate 60.00 MiB. GPU 0 has a total capacity"
    ):
        model.allocate(60 * MiB)
    model.free(block)
    model.allocate(70 * MiB)  # the cached segment of 60 MiB is released for it
    stats = flat(model.stats())
    assert (stats["num_ooms"], stats["num_alloc_retries"]) == (1, 2)


def test_memory_beyond_the_card_can_be_refused_before_cached_segments_are_released() -> None:
    model = _C.AllocatorModel(config="throw_on_cudamalloc_oom:True", total=100 * MiB)
    model.free(model.allocate(60 * MiB))
    with pytest.raises(RuntimeError, match=r"preemptively rejected .* limit. Requested size: 70.00 MiB"):
        model.allocate(70 * MiB)
    stats = flat(model.stats())
    assert (stats["num_ooms"], stats["num_alloc_retries"], stats["reserved_bytes.all.current"]) == (0, 0, 60 * MiB)
    assert stats["num_oom_rejections"] == 1


def test_later_settings_keep_the_kind_of_segments_and_reset_the_others() -> None:
    with torchfake.fake_mode(gpus="L4"):
        settings = torch.cuda.memory._set_allocator_settings
        settings("expandable_segments:True,large_segment_size_mb:40")
        settings("max_split_size_mb:100")
        with pytest.raises(ValueError, match="must be >= 40"):
            settings("max_split_size_mb:30")
        kept = [torch.empty(3 * MiB, dtype=torch.uint8, device="cuda")]
        assert [segment["is_expandable"] for segment in memory.snapshot()] == [True]
        settings("expandable_segments:False")
        kept.append(torch.empty(300 * MiB, dtype=torch.uint8, device="cuda"))
        assert memory.stats()["oversize_segments.current"] == 0  # max_split_size_mb is reset
        assert [segment["is_expandable"] for segment in memory.snapshot()].count(False) == 1


@pytest.mark.parametrize(
    "config", ["release_lock_on_hipmalloc:True", "pinned_use_hip_host_register:True", "pinned_free_catch_all:False"]
)
def test_options_without_an_effect_on_cards_are_accepted(config: str) -> None:
    model = _C.AllocatorModel(config=config, total=1 << 30)
    model.allocate(MiB)
    assert flat(model.stats())["reserved_bytes.all.current"] == 2 * MiB


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("max_split_size_mb:5", "too small"),
        ("garbage_collection_threshold:2", "invalid"),
        ("expandable_segments:yes", "expected 'True' or 'False'"),
        ("no_such_option:1", "Unrecognized key"),
        ("roundup_power2_divisions:3", "power of 2"),
        ("backend:cudaMallocAsync", "only native"),
        ("max_split_size_mb", "expected"),
    ],
)
def test_options_that_pytorch_refuses_are_refused(config: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _C.AllocatorModel(config=config, total=1 << 30)
