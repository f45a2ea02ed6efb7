"""`torchfake run` and memory: the exit code of a full card, runs past its size, and the files it writes."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from torchfake.modes import fake_mode
from torchfake.run_program import OUT_OF_MEMORY, Program, run_program

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


def test_an_unlimited_run_goes_on_and_says_what_is_needed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, report = run(tmp_path, TRAINING, gpu_memory="700MiB", unlimited=True)
    assert (code, report["unlimited"]) == (0, True)
    [card] = report["cards"]
    assert card["needed"] > card["total_memory"] == 700 << 20
    mode = fake_mode(gpu_memory="700MiB", unlimited=True)
    run_program(Program(str(tmp_path / "train.py"), False), mode)
    assert "needs 0.9 of 0.7 GiB" in capsys.readouterr().err


def test_only_cards_that_were_asked_for_have_a_limit_to_go_past() -> None:
    with pytest.raises(ValueError, match="unlimited"):
        fake_mode(unlimited=True)
