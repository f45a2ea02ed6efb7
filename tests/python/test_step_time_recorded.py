"""torchfake.step_time against an H200: errors over whole programs, and the commands that record and fit."""

from __future__ import annotations

import gzip
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from torchfake._card_speeds import speed_of
from torchfake._cards import CARDS
from torchfake._step_time_model import recordings
from torchfake.modes import fake_mode
from torchfake.step_time import _cost

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
import fit_step_time
import record_step_time
import step_time_kernels
import step_time_programs

RECORDED = json.loads(gzip.decompress(fit_step_time.PACKED.read_bytes()))
FITTED = recordings()["NVIDIA H200"]

#: By set of programs: the median and the worst relative error of a step, and of the card's part, rounded up.
MEASURED = {
    "workloads": (0.26, 0.80, 0.20, 1.3),
    "held_out": (0.22, 0.60, 0.20, 1.7),
    "later": (0.22, 0.50, 0.12, 0.9),
}


@pytest.mark.parametrize("kind", MEASURED)
def test_steps_of_programs_take_as_long_as_on_the_card(kind: str) -> None:
    with fake_mode(gpus="H200", unlimited=True, unknown="stand-in"):
        counted = {name: fit_step_time.count_program(name) for name in step_time_programs.SETS[kind]}
    steps, cards = [], []
    for name, rows in counted.items():
        costs = [_cost(row, speed_of(CARDS["H200"]), FITTED, 8) for row in rows]
        seconds, recorded = sum(cost.seconds for cost in costs), RECORDED["programs"][name]
        busy = recorded["busy"] + recorded["kernels"] * RECORDED["gap"] * 1e-6
        steps.append(abs(max(seconds, sum(cost.host for cost in costs)) / recorded["measured"] - 1))
        cards.append(abs(seconds / busy - 1))
    median, worst, median_of_card, worst_of_card = MEASURED[kind]
    assert statistics.median(steps) <= median
    assert max(steps) <= worst
    assert statistics.median(cards) <= median_of_card
    assert max(cards) <= worst_of_card


def test_the_error_that_a_report_states_is_that_of_programs_not_used_for_fitting() -> None:
    held = [program for program in FITTED.programs if program["set"] != "workloads"]
    assert len(held) == len(step_time_programs.SETS["held_out"]) + len(step_time_programs.SETS["later"])
    assert FITTED.error is not None
    assert FITTED.error <= 0.25


# ---- The commands


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> record_step_time.Folders:
    """A recording of fakes: that the commands run, not what they find."""
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: None, raising=False)
    cases = record_step_time.all_cases()[:10]
    monkeypatch.setattr(record_step_time, "all_cases", lambda quick: cases)
    found = record_step_time.Folders(tmp_path / "out", tmp_path / "begun")
    for folder in found:
        folder.mkdir()
    return found


@pytest.mark.parametrize("part", ["host", "operators", "programs", "program_kernels", "operator_kernels"])
def test_a_part_of_a_recording_has_no_errors_and_is_not_repeated(
    part: str, folders: record_step_time.Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = [("later", "policy_gradient"), ("workloads", "video_convolutions")]
    monkeypatch.setattr(record_step_time, "_all_programs", lambda quick: few)
    file = folders.out / f"{part}.jsonl"
    with fake_mode(gpus="H200"):
        record_step_time._RECORDERS[part](folders, time.time() + 100, True)
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        record_step_time._RECORDERS[part](folders, time.time() + 100, True)
    assert rows
    assert [row for row in rows if "error" in row] == []
    assert len(file.read_text().splitlines()) == len(rows)


def test_a_case_that_fails_is_recorded_with_its_error(folders: record_step_time.Folders) -> None:
    writer = record_step_time.Writer(folders, "operators")

    def fail() -> dict[str, Any]:
        raise ValueError("no such kernel")

    with fake_mode(gpus="H200"):
        record_step_time.guarded(writer, "1", {"index": 1}, fail)
    assert json.loads((folders.out / "operators.jsonl").read_text()) == {
        "index": 1,
        "error": "ValueError: no such kernel",
    }


class Event:
    """An event as PyTorch's profiler gives it."""

    def __init__(self, name: str, device: str, ids: tuple[int, int], start: int, is_mark: bool = False) -> None:
        self.name = lambda: name
        self.device_type = lambda: f"DeviceType.{device}"
        self.correlation_id, self.linked_correlation_id = (lambda: ids[0]), (lambda: ids[1])
        self.start_ns, self.duration_ns = (lambda: start), (lambda: 1500)
        self.is_user_annotation = lambda: is_mark
        self.shapes, self.dtypes = (lambda: [[2, 3]]), (lambda: ["float"])


def test_kernels_belong_to_the_case_and_the_operator_that_launched_them() -> None:
    events = [
        Event("case:0:forward", "CPU", (1, 0), 1000, is_mark=True),
        Event("case:0:forward", "CUDA", (1, 0), 1500, is_mark=True),
        Event("aten::mm", "CPU", (2, 0), 1100),
        Event("cudaLaunchKernel", "CPU", (77, 2), 1120),
        Event("gemm", "CUDA", (77, 2), 2000),
        Event("case:1:backward", "CPU", (3, 0), 7000, is_mark=True),
        Event("aten::add", "CPU", (4, 0), 7100),
        Event("add", "CUDA", (78, 4), 8000),
        Event("cudaDeviceSynchronize", "CPU", (4, 0), 9000),
    ]
    assert step_time_kernels.by_case(events) == [
        ["case:0:forward", [["gemm", "aten::mm", [[2, 3]], ["float"], 1, 1.5]]],
        ["case:1:backward", [["add", "aten::add", [[2, 3]], ["float"], 1, 1.5]]],
    ]
    found = step_time_kernels.described(events, is_full=False)
    assert (found["kernels"], found["busy"], found["rows"]) == (2, pytest.approx(3e-6), [[0, 0.0, 1.5], [1, 6.0, 1.5]])
    assert found["runtime"] == {"cudaLaunchKernel": 1, "cudaDeviceSynchronize": 1}
