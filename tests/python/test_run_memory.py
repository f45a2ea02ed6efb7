"""`torchfake run` and memory: the exit code for a full card, runs past its size, and the files it writes."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch

from torchfake._memory_compare import NotAReportError, compare, load_report
from torchfake._memory_report import Report, size
from torchfake._run_outputs import Outputs
from torchfake.modes import fake_mode
from torchfake.run_program import OUT_OF_MEMORY, Program, run_program

pytest_plugins = ["pytester"]

SCHEMAS = Path(__file__).parents[2] / "docs" / "schemas"

TRAINING = """
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        loss = model(torch.randn(4096, 1024, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def run(folder: Path, text: str, **options: Any) -> tuple[int, dict[str, Any]]:
    (folder / "train.py").write_text(textwrap.dedent(text))
    unlimited = options.pop("unlimited", False)
    mode = fake_mode(gpus=options.pop("gpus", "L4"), gpu_memory=options.pop("gpu_memory", None), unlimited=unlimited)
    code = run_program(
        Program(str(folder / "train.py"), False), mode, quiet=True, json_file=folder / "report.json", **options
    )
    report = json.loads((folder / "report.json").read_text())
    jsonschema.validate(report, json.loads((SCHEMAS / "run.schema.json").read_text()))
    return code, report


def test_memory_that_runs_out_ends_with_3_and_anything_else_with_its_own_code(tmp_path: Path) -> None:
    code, report = run(tmp_path, TRAINING, gpu_memory="700MiB")
    assert (code, report["exit_code"], report["out_of_memory"]) == (OUT_OF_MEMORY, 3, True)
    assert report["error"].startswith("OutOfMemoryError: CUDA out of memory")
    code, report = run(tmp_path, TRAINING)
    assert (code, report["out_of_memory"], report["error"]) == (0, False, None)
    code, report = run(tmp_path, "raise SystemExit(3)")
    assert (code, report["out_of_memory"]) == (3, False)
    code, report = run(tmp_path, "raise ValueError('no')")
    assert (code, report["error"]) == (1, "ValueError: no")


def test_an_error_that_a_full_card_caused_counts_and_one_that_was_caught_does_not_end(tmp_path: Path) -> None:
    ask = "import torch\ntry:\n    torch.empty(1 << 36, device='cuda')\nexcept torch.OutOfMemoryError as error:\n    "
    assert run(tmp_path, ask + "raise RuntimeError('no room') from error")[0] == OUT_OF_MEMORY
    code, report = run(tmp_path, ask + "pass")
    assert (code, report["out_of_memory"], report["out_of_memory_errors"]) == (0, False, 1)


def test_a_report_names_the_setting_of_cudnn_whose_workspaces_are_not_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text("")
    with torch.backends.cudnn.flags(benchmark=True, benchmark_limit=None):
        run_program(Program(str(tmp_path / "train.py"), False), fake_mode(gpus="L4"))
    assert "torch.backends.cudnn.benchmark is on" in capsys.readouterr().err
    with torch.backends.cudnn.flags(benchmark=False, benchmark_limit=None):
        assert run(tmp_path, "")[1]["cudnn_benchmark"] is False


def test_an_unlimited_run_goes_on_and_says_what_is_needed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, report = run(tmp_path, TRAINING, gpu_memory="700MiB", unlimited=True)
    assert (code, report["unlimited"]) == (0, True)
    [card] = report["cards"]
    assert card["needed"] > card["total_memory"] == 700 << 20
    mode = fake_mode(gpu_memory="700MiB", unlimited=True)
    run_program(Program(str(tmp_path / "train.py"), False), mode)
    assert "needs 0.9 of 0.7 GiB" in capsys.readouterr().err


@pytest.mark.parametrize("memory, unlimited, verdict", [("700MiB", False, "ran out of memory"), ("2GiB", True, "fits")])
def test_the_page_says_whether_a_program_fits(tmp_path: Path, memory: str, unlimited: bool, verdict: str) -> None:
    outputs = Outputs(html=tmp_path / "page.html")
    run(tmp_path, TRAINING, gpu_memory=memory, unlimited=unlimited, outputs=outputs)
    page = (tmp_path / "page.html").read_text()
    assert {word for word in ("ran out of memory", "does not fit", "<td>fits") if word in page} == {
        "<td>fits" if verdict == "fits" else verdict
    }


def test_what_is_needed_includes_the_context_everywhere(tmp_path: Path) -> None:
    _, report = run(tmp_path, TRAINING, unlimited=True, track=True)
    [card], [device] = report["cards"], report["memory"]["devices"]
    total = (card["peak_allocated"] + card["needed"]) >> 21 << 20  # between them
    _, report = run(tmp_path, TRAINING, gpu_memory=str(total), unlimited=True, track=True)
    [card], [device] = report["cards"], report["memory"]["devices"]
    assert device["peak"] < total < device["needed"] == card["needed"]
    assert f"needs {size(card['needed'])} of {size(total)}" in str(Report(report["memory"]))


def test_only_cards_that_were_asked_for_have_a_limit_to_go_past() -> None:
    with pytest.raises(ValueError, match="unlimited"):
        fake_mode(unlimited=True)


HOSTILE = "<script>alert(1)</script>'\"onload=x"


def test_a_run_writes_a_page_a_snapshot_and_a_trace(tmp_path: Path) -> None:
    files = Outputs(*(tmp_path / name for name in ("page.html", "snapshot.pickle", "trace.json")))
    hostile = f"nn.Sequential()\n    model.add_module({HOSTILE!r}, nn.Linear(1024, 1024))\n"
    text = TRAINING.replace("nn.Sequential(", hostile + "    model = nn.Sequential(model, ")
    code, report = run(tmp_path, text, outputs=files)
    assert code == 0
    memory = report["memory"]
    jsonschema.validate(memory, json.loads((SCHEMAS / "memory.schema.json").read_text()))
    [device] = memory["devices"]
    assert device["peak"] == report["cards"][0]["peak_allocated"] == sum(device["owners"].values())
    assert sum(device["modules"].values()) == device["peak"]
    lines = {piece["line"] for piece in device["largest"] if piece["file"] == str(tmp_path / "train.py")}
    assert any("model(torch.randn" in textwrap.dedent(text).splitlines()[line - 1] for line in lines)

    page = (tmp_path / "page.html").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert not any(reference in page for reference in ("http:", "https:", "src=", "href=", "@import", "url("))

    snapshot = pickle.loads((tmp_path / "snapshot.pickle").read_bytes())
    alive: dict[int, int] = {}
    highest = 0
    for event in snapshot["device_traces"][0]:
        if event["action"] == "alloc":
            assert event["addr"] not in alive
            alive[event["addr"]] = event["size"]
        else:
            assert alive.pop(event["addr"]) == event["size"]
        highest = max(highest, sum(alive.values()))
    assert highest == device["peak"]

    trace = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert max(sum(event["args"].values()) for event in trace if event["ph"] == "C") == device["peak"]
    assert {"forward", "backward", "step"} <= {event["name"] for event in trace if event["ph"] == "X"}


def test_two_runs_are_compared_and_other_files_refused(tmp_path: Path) -> None:
    for name, batch in (("a", "16384"), ("b", "32768")):
        folder = tmp_path / name
        folder.mkdir()
        run(folder, TRAINING.replace("torch.randn(4096", f"torch.randn({batch}"), track=True)
    files = [tmp_path / name / "report.json" for name in ("a", "b")]
    rows = {(row["what"], row["name"]): row for row in compare(*map(load_report, files))}
    assert rows["peak", ""]["after"] > rows["peak", ""]["before"] > 0
    activations = rows["owner", "activations"]
    assert 0 < 2 * activations["before"] - activations["after"] <= 1024  # the loss does not grow
    assert ("owner", "parameters") not in rows  # unchanged
    done = subprocess.run(
        [sys.executable, "-m", "torchfake", "report", *map(str, files)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "activations" in done.stdout
    (tmp_path / "other.json").write_text("[1]")
    for other in ("other.json", "none.json"):
        with pytest.raises(NotAReportError, match=other):
            load_report(tmp_path / other)


def test_the_fixture_holds_a_test_to_a_budget(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import torch
        def test_fits(memory_budget):
            with memory_budget("2MiB", gpu="L4") as t:
                torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
            assert t.peak == 1 << 20
        def test_does_not(memory_budget):
            with memory_budget("2MiB"):
                torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
    """)
    result = pytester.runpytest_inprocess("-p", "torchfake.pytest_plugin")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*the peak of memory is 3.0 MiB, of 2.0 MiB*"])


def test_layers_and_traces_are_tables_in_a_notebook_with_names_escaped() -> None:
    import torch
    from torch import nn

    from torchfake.inspect_model import survey
    from torchfake.trace_model import trace

    with fake_mode():
        model = nn.Sequential()
        model.add_module("<b>bold</b>", nn.Linear(3, 7))
        pages = [survey(model)._repr_html_(), trace(model, torch.ones(2, 3))._repr_html_()]
    for page in pages:
        assert page.startswith("<pre")
        assert "&lt;b&gt;bold&lt;/b&gt;" in page
        assert "<b>bold" not in page
