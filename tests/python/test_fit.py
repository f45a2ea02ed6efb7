"""`torchfake fit`: the largest value that fits, found in few runs, and the measures to save memory."""

from __future__ import annotations

import dataclasses
import json
import random
import subprocess
import sys
import textwrap
from pathlib import Path
from unittest.mock import ANY

import jsonschema
import pytest
import torch

from torchfake import fake_mode
from torchfake import fit as fitting
from torchfake._fit_cli import print_fit
from torchfake._measures import (
    Accumulation,
    Checkpointing,
    EightBitAdam,
    ExpandableSegments,
    FullyShard,
    Sgd,
    repeated_blocks,
)
from torchfake._search import Search
from torchfake._trials import Runner, TrialFailedError
from torchfake._varied import BadRangeError, Varied, without_option
from torchfake.run_program import Program, ProgramNotFoundError

SCHEMA = Path(__file__).parents[2] / "docs" / "schemas" / "fit.schema.json"

TRAINING = """
    import argparse, os
    import torch
    from torch import nn

    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    batch = parser.parse_args().batch_size

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(512), nn.Linear(512, 2048), nn.Linear(2048, 512)

        def forward(self, x):
            return x + self.down(nn.functional.gelu(self.up(self.norm(x))))

    model = nn.Sequential(*(Block() for _ in range(4))).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(4):
        model(torch.randn(batch, 1024, 512, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def runner(folder: Path, text: str = TRAINING, *arguments: str, gpu_memory: str | None = "4GiB") -> Runner:
    (folder / "train.py").write_text(textwrap.dedent(text))
    return Runner(Program(str(folder / "train.py"), False, list(arguments)), gpu_memory=gpu_memory)


# ---- The search ------------------------------------------------------------------------------------------------------


def test_the_search_finds_the_largest_value_in_few_runs_whatever_the_curve() -> None:
    draw = random.Random(0)
    counts = []
    for _ in range(500):
        last, base, slope = draw.choice([16, 512, 2000]), draw.uniform(0, 2e10), draw.uniform(1e7, 1e9)
        bend, gap, share = draw.choice([0, slope / last]), draw.uniform(0, 0.1), draw.random()
        limit, runs = int(draw.uniform(1e10, 1.5e11)), []

        def need(value: int, base=base, slope=slope, bend=bend, gap=gap) -> tuple[int, int]:
            least = int(base + slope * value + bend * value * value)
            return least, int(least * (1 + gap))

        def fits(value: int, need=need, share=share, limit=limit) -> bool:
            least, most = need(value)
            return least + (most - least) * share <= limit

        def measure(value: int, runs=runs, need=need) -> tuple[int, int]:
            runs.append(value)
            return need(value)

        def confirm(value: int, runs=runs, fits=fits) -> bool:
            runs.append(value)
            return fits(value)

        values = range(1, last + 1)
        found = Search(values, limit, measure, confirm).largest()
        assert found == max((value for value in values if fits(value)), default=None)
        counts.append(len(runs))
    assert sum(counts) / len(counts) < 7


# ---- What is varied --------------------------------------------------------------------------------------------------


def test_ranges_and_lists_are_parsed_and_invalid_ones_refused() -> None:
    assert list(Varied.parse("batch_size=1..4").values) == [1, 2, 3, 4]
    assert list(Varied.parse("--batch-size=8..32:8").values) == [8, 16, 24, 32]
    assert Varied.parse("b=4,1,2").values == [1, 2, 4]
    assert Varied.parse("BATCH=1..2").is_environment
    assert Varied.parse("env:batch=1..2").name == "batch"
    for text in ("batch_size", "=1..2", "b=5..1", "b=1..5:0", "b=x", "b=1..99999999"):
        with pytest.raises(BadRangeError, match="--vary"):
            Varied.parse(text)


def test_an_option_that_is_given_already_is_replaced() -> None:
    given = ["-b", "4", "--lr=1", "--batch-size=3", "--", "-b", "5"]
    assert without_option(given, ["-b", "--batch-size"]) == ["--lr=1", "--", "-b", "5"]


PARSER = "import argparse; p = argparse.ArgumentParser(); p.add_argument("


@pytest.mark.parametrize(
    ("vary", "read", "arguments"),
    [
        ("n=1..9", PARSER + "'--n', type=int); n = p.parse_args().n", ["--n", "3"]),
        ("the_n=1..9", PARSER + "'-n', '--the-n', type=int, required=True); n = p.parse_args().the_n", []),
        ("--n=1..9", "import sys; n = int(sys.argv[1].partition('=')[2])", []),
        ("n=1..9", "import sys; n = int(sys.argv[1].removeprefix('x.n='))", ["x.n={n}"]),
        ("SOME_N=1..9", "import os; n = int(os.environ['SOME_N'])", []),
    ],
)
def test_the_program_gets_the_value(tmp_path: Path, vary: str, read: str, arguments: list[str]) -> None:
    program = f"import torch\n{read}\ntorch.empty(n << 30, dtype=torch.uint8, device='cuda')\n"
    found = fitting.fit_card(runner(tmp_path, program, *arguments), Varied.parse(vary), "L4")
    assert found.findings[0].largest == 3  # and the context


COMMANDS = {
    "click": """
        import click, torch

        @click.command()
        @click.option("--batch-size", "-b", type=int, default=1)
        def main(batch_size):
            torch.empty(batch_size << 30, dtype=torch.uint8, device="cuda")

        main()
    """,
    "typer": """
        import torch, typer

        app = typer.Typer()

        @app.command()
        def train(size_of_batch: int = typer.Option(1, "--batch-size")):
            torch.empty(size_of_batch << 30, dtype=torch.uint8, device="cuda")

        @app.command()
        def other():
            pass

        app()
    """,
    "a subclass of argparse's parser": """
        import argparse, torch

        class Parser(argparse.ArgumentParser):
            def parse_args(self, *args, **keywords):
                return super().parse_args(*args, **keywords)

        parser = Parser()
        parser.add_argument("--batch-size", type=int, default=1)
        torch.empty(parser.parse_args().batch_size << 30, dtype=torch.uint8, device="cuda")
    """,
}


@pytest.mark.parametrize("library", COMMANDS)
def test_an_option_is_found_in_the_parser_of_a_library(tmp_path: Path, library: str) -> None:
    arguments = ["train", "--batch-size", "2"] if library == "typer" else []
    run = runner(tmp_path, COMMANDS[library], *arguments)
    found = fitting.fit_card(run, Varied.parse("batch_size=1..9"), "L4")
    assert found.findings[0].largest == 3


@pytest.mark.parametrize("library", ["click", "a subclass of argparse's parser"])
def test_a_missing_option_is_reported_with_the_available_ones(tmp_path: Path, library: str) -> None:
    with pytest.raises(TrialFailedError, match=r"no option for width; it has .*--batch-size"):
        fitting.fit_card(runner(tmp_path, COMMANDS[library]), Varied.parse("width=1..9"), "L4")


def test_a_value_reaches_a_file_of_settings(tmp_path: Path) -> None:
    program = """
        import json, sys, torch

        settings = json.load(open(sys.argv[1]))
        for setting in sys.argv[2:]:
            key, _, value = setting.partition("=")
            settings[key] = json.loads(value)
        torch.empty(settings["batch"] << 30, dtype=torch.uint8, device="cuda")
    """
    (tmp_path / "settings.json").write_text('{"batch": 1}')
    run = runner(tmp_path, program, str(tmp_path / "settings.json"), "batch={n}")
    assert fitting.fit_card(run, Varied.parse("n=1..9"), "L4").findings[0].largest == 3


def test_a_program_without_the_option_or_that_fails_is_reported(tmp_path: Path) -> None:
    with pytest.raises(TrialFailedError, match=r"no option for width; it has .*--batch-size"):
        fitting.fit_card(runner(tmp_path), Varied.parse("width=1..9"), "L4")
    broken = "import sys\nprint('what it said')\nraise ValueError('broken')\n"
    with pytest.raises(TrialFailedError, match=r"(?s)ValueError: broken.*what it said"):
        fitting.fit_card(runner(tmp_path, broken), Varied.parse("--n=1..9"), "L4")


# ---- Whole runs ------------------------------------------------------------------------------------------------------


def test_the_found_batch_fits_and_the_next_does_not(tmp_path: Path) -> None:
    run, varied = runner(tmp_path), Varied.parse("batch_size=1..200")
    found = fitting.fit_card(run, varied, "L4")
    largest = found.findings[0].largest
    assert largest is not None
    assert run.run("L4", varied, largest, unlimited=False).refusals == 0
    assert run.run("L4", varied, largest + 1, unlimited=False).refusals > 0
    assert found.runs <= 8


def test_a_process_that_has_trained_on_a_claimed_device_finds_the_largest_value(
    tmp_path: Path,
) -> None:
    with fake_mode():
        torch.ones(2, device="cuda", requires_grad=True).sum().backward()
    found = fitting.fit_card(runner(tmp_path), Varied.parse("batch_size=1,2"), "L4")
    assert found.findings[0].largest == 2


def test_measures_are_applied_or_say_why_not(tmp_path: Path) -> None:
    run, varied = runner(tmp_path), Varied.parse("batch_size=1..200")
    plain = run.run("L4", varied, 16)
    for make in (Checkpointing, EightBitAdam, Sgd, lambda: FullyShard(4)):
        tried = run.run("L4", varied, 16, measure=make())
        assert tried.not_applicable is None, make
        assert tried.allocated < plain.allocated
    told = {}
    other = runner(tmp_path, f"import torch; {PARSER}'--batch-size'); p.parse_args()")
    for make in fitting.usual(True):
        told[make().name] = other.run("L4", varied, 16, measure=make()).not_applicable
    assert told["checkpointing"] == "no model was called"
    assert told["8-bit Adam"] == "neither Adam nor AdamW takes a step"
    assert told.pop("expandable segments") is None  # whatever the program does
    assert all(told.values())


def test_blocks_are_the_outermost_that_repeat() -> None:
    from torch import nn

    def block() -> nn.Module:
        return nn.TransformerEncoderLayer(8, 2)

    model = nn.ModuleDict({"layers": nn.ModuleList([block(), block()]), "head": nn.Linear(2, 2)})
    assert repeated_blocks(model) == list(model["layers"])
    assert repeated_blocks(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))) == []


def test_names_and_errors_that_look_like_markup_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    finding = fitting.Finding("L4", 1 << 30, None, None, {}, error="failed: [/bold]")
    advice = [fitting.Advice("checkpointing", "", None, not_applicable="[/red] has no blocks")]
    print_fit(fitting.Fit("[/b].py", Varied.parse("--x[/i]=1..2"), [finding], advice))
    printed = capsys.readouterr().out
    assert all(text in printed for text in ("[/b].py", "--x[/i]", "[/bold]", "[/red]"))


def test_accumulation_is_measured_with_the_optimizers_state_even_in_few_steps(tmp_path: Path) -> None:
    varied, run = Varied.parse("batch_size=1..64"), runner(tmp_path)
    whole = run.run("L4", varied, 8, measure=Accumulation(2))
    assert dataclasses.replace(run, steps=2).run("L4", varied, 8, measure=Accumulation(2)) == dataclasses.replace(
        whole, seconds=ANY
    )
    refused = run.run("L4", varied, 8, measure=Accumulation(4))
    assert refused.not_applicable == "the program takes fewer than 8 steps"


def test_expandable_segments_reserve_less_and_are_left_to_an_environment_that_sets_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    varied, run = Varied.parse("batch_size=1..64"), runner(tmp_path)
    plain = run.run("L4", varied, 8)
    expandable = run.run("L4", varied, 8, measure=ExpandableSegments())
    assert (plain.allocated, expandable.not_applicable) == (expandable.allocated, None)
    assert expandable.allocated <= expandable.reserved < plain.reserved
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    refused = run.run("L4", varied, 8, measure=ExpandableSegments()).not_applicable
    assert refused == "the environment already sets this option"


def test_a_program_that_is_not_there_is_a_mistake_in_the_command(tmp_path: Path) -> None:
    run = Runner(Program(str(tmp_path / "none.py"), False, []))
    with pytest.raises(ProgramNotFoundError, match="no such script"):
        run.run("L4", Varied.parse("batch_size=1..2"), 1)


def test_the_command_prints_json_of_the_schema_and_advice(tmp_path: Path) -> None:
    run = runner(tmp_path)
    command = [sys.executable, "-m", "torchfake", "fit", run.program.name, "--gpu", "L4", "--gpu-memory", "2GiB"]
    done = subprocess.run(
        [*command, "--vary", "batch_size=8,16", "--steps", "2", "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    jsonschema.validate(found, json.loads(SCHEMA.read_text()))
    assert found["cards"][0]["largest"] == 8
    by_name = {entry["measure"]: entry for entry in found["advice"]}
    assert by_name["checkpointing"]["largest"] > found["cards"][0]["largest"]
    assert {"bf16 weights", "Adafactor", "accumulation over 2", "fully_shard over 8"} <= set(by_name)
    assert "batch_size = 16: needs" in done.stderr
    command += ["--vary", "batch_size=500..501", "--no-advice"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "none" in done.stdout


def test_results_for_all_cards_share_runs(tmp_path: Path) -> None:
    found = fitting.fit_cards(runner(tmp_path, gpu_memory=None), Varied.parse("batch_size=8,32,128,512"))
    by_memory = sorted(found.findings, key=lambda finding: finding.total_memory)
    assert len(by_memory) > 10
    largest = [finding.largest or 0 for finding in by_memory]
    assert largest == sorted(largest)
    assert found.runs < 2 * len(largest)
