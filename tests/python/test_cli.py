"""`torchfake inspect`: the table, the JSON, and errors for bad input. `torchfake trace` is in test_trace.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner, Result

import torchfake
from torchfake.cli import app
from torchfake.inspect_model import fold, format_bytes, survey

MODEL_FILE = """
import torch
from torch import nn

class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(1000, 64)
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))
        self.head = nn.Linear(64, 1000, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.ones(5))

def huge():
    return nn.Linear(1_000_000, 1_000_000)

def broken():
    raise RuntimeError("no such weather")

def number():
    return 7

class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(1000, 64)
        self.head = nn.Linear(64, 10)

    def forward(self, tokens):
        return self.head(self.embed(tokens).mean(1))
"""


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    path = tmp_path / "my_models.py"
    path.write_text(MODEL_FILE)
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def report(*arguments: object) -> dict[str, Any]:
    result = run("inspect", *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


# ---- What is printed ----


def test_json_counts_every_layer_and_shared_parameters_once(model_file: Path) -> None:
    answer = report(f"{model_file}:Tied")
    assert answer["totals"] == {
        "parameters": 1000 * 64 + 3 * (64 * 64 + 64),
        "trainable": 1000 * 64 + 3 * (64 * 64 + 64),
        "buffers": 5,
        "nbytes": 4 * (1000 * 64 + 3 * (64 * 64 + 64) + 5),
    }
    layers = {layer["name"]: layer for layer in answer["layers"]}
    assert list(layers) == ["", "embed", "layers", "layers.0", "layers.1", "layers.2", "head"]
    assert layers["layers"]["parameters"] == 3 * (64 * 64 + 64)
    assert layers["head"]["parameters"] == 0
    assert layers["head"]["tensors"][0]["shared_with"] == "embed.weight"
    assert layers["embed"]["tensors"][0] == {
        "name": "weight",
        "size": [1000, 64],
        "dtype": "float32",
        "device": "cpu",
        "is_parameter": True,
        "trainable": True,
        "numel": 64000,
        "nbytes": 256000,
        "shared_with": None,
    }


def test_the_table_folds_equal_layers_and_shows_totals(model_file: Path) -> None:
    result = run("inspect", f"{model_file}:Tied")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    [row] = [line for line in lines if "0-2" in line]
    assert "3 × Linear" in row
    assert "weight 64×64, bias 64" in row
    assert "12,480" in row
    assert any("weight 1000×64 = embed.weight" in line for line in lines)
    assert lines[-1] == "Total: 76,480 parameters, 5 elements in buffers, 298.8 KiB of memory"


def test_all_prints_equal_layers_one_by_one(model_file: Path) -> None:
    result = run("inspect", f"{model_file}:Tied", "--all")
    assert result.stdout.count("weight 64×64, bias 64") == 3


def test_depth_limits_the_rows_and_not_the_counts(model_file: Path) -> None:
    answer = report(f"{model_file}:Tied", "--depth", 1)
    assert [layer["name"] for layer in answer["layers"]] == ["", "embed", "layers", "head"]
    assert answer["layers"][0]["parameters"] == answer["totals"]["parameters"]
    assert len(report(f"{model_file}:Tied", "--depth", 0)["layers"]) == 1


def test_device_and_dtype_are_what_the_model_then_claims(model_file: Path) -> None:
    answer = report(f"{model_file}:Tied", "--device", "cuda:1", "--dtype", "bfloat16")
    tensors = [tensor for layer in answer["layers"] for tensor in layer["tensors"]]
    assert {tensor["device"] for tensor in tensors} == {"cuda:1"}
    assert {tensor["dtype"] for tensor in tensors} == {"bfloat16"}
    assert answer["totals"]["nbytes"] == 2 * (76480 + 5)


def test_a_model_larger_than_the_machine_is_built(model_file: Path) -> None:
    assert report(f"{model_file}:huge")["totals"]["nbytes"] == 4 * (10**12 + 10**6)


# ---- How a model is named ----


def test_a_file_alone_means_its_build_model(tmp_path: Path) -> None:
    path = tmp_path / "one.py"
    path.write_text("from torch import nn\n\ndef build_model():\n    return nn.Linear(2, 3)\n")
    assert report(path)["totals"]["parameters"] == 9


def test_a_file_alone_may_hold_a_model(tmp_path: Path) -> None:
    path = tmp_path / "two.py"
    path.write_text("from torch import nn\n\nmodel = nn.Linear(100_000_000, 100)\n")
    assert report(path)["totals"]["parameters"] == 10_000_000_100


def test_a_file_may_import_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "neighbour_of_three.py").write_text("WIDTH = 4\n")
    path = tmp_path / "three.py"
    path.write_text("from torch import nn\nfrom neighbour_of_three import WIDTH\n\nmodel = nn.Linear(WIDTH, 1)\n")
    assert report(path)["totals"]["parameters"] == 5


def test_module_and_callable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "package_of_models.py").write_text(
        "from torch import nn\n\nclass Zoo:\n    @staticmethod\n    def small():\n        return nn.Linear(2, 2)\n"
    )
    monkeypatch.chdir(tmp_path)
    assert report("package_of_models:Zoo.small")["totals"]["parameters"] == 6


def test_a_class_of_transformers_has_its_default_config() -> None:
    pytest.importorskip("transformers")
    assert report("BertModel")["totals"]["parameters"] == 109_482_240


def test_a_class_of_transformers_takes_a_local_config(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "bert", "num_hidden_layers": 1, "vocab_size": 100}))
    small = report("BertModel", "--config", path)["totals"]["parameters"]
    assert 0 < small < 10_000_000
    assert report("AutoModel", "--config", path)["totals"]["parameters"] == small


# ---- Bad input ----


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.py"], "nowhere.py: no such file"),
        (["no.such.module:thing"], "no.such.module: no such module"),
        (["torch.nn:Lineal"], "torch.nn: has no 'Lineal'; did you mean Linear"),
        (["BertModle"], "BertModle: no such class in transformers; did you mean BertModel"),
        (["AutoModel"], "AutoModel: has no default configuration; give one with --config"),
        (["BertModel", "--config", "nowhere.json"], "nowhere.json: No such file or directory"),
        (["torch.nn:Identity", "--config", "x.json"], "--config is only for classes of transformers"),
        (["torch.nn:Identity", "--device", "warp"], "--device warp: no such device"),
        (["torch.nn:Identity", "--dtype", "int8"], "--dtype int8: no such floating-point dtype"),
        ([":thing"], "expected module:callable"),
    ],
)
def test_invalid_input_is_reported_in_one_line_with_exit_code_2(arguments: list[str], message: str) -> None:
    result = run("inspect", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""


@pytest.mark.parametrize("options", [[], ["--train", "--backward"], ["--selects-all"]])
def test_a_model_that_is_run_ends_with_the_totals_of_its_operators(model_file: Path, options: list[str]) -> None:
    arguments = ["inspect", f"{model_file}:Classifier", "--input", "2x3:int64", *options]
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    assert "operators" in result.stdout.splitlines()[-1] and "FLOP" in result.stdout.splitlines()[-1]
    totals = json.loads(run(*arguments, "--json").stdout)["run"]
    assert totals["operators"] > 0 and totals["computed_nbytes"] > 0
    assert "run" not in report(f"{model_file}:Classifier")


def test_a_config_that_is_not_json_is_reported(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    path = tmp_path / "config.json"
    path.write_text("{")
    result = run("inspect", "BertModel", "--config", path)
    assert result.exit_code == 2
    assert "not JSON" in result.stderr


def test_a_file_with_neither_name_is_reported(model_file: Path) -> None:
    result = run("inspect", model_file)
    assert result.exit_code == 2
    assert "defines neither build_model() nor model" in result.stderr


def test_a_model_whose_code_fails_is_reported_with_exit_code_1_and_its_line(model_file: Path) -> None:
    result = run("inspect", f"{model_file}:broken")
    assert result.exit_code == 1
    assert "building the model failed: RuntimeError: no such weather" in result.stderr
    assert "my_models.py:18" in result.stderr


def test_an_object_that_is_not_a_module_is_reported(model_file: Path) -> None:
    result = run("inspect", f"{model_file}:number")
    assert result.exit_code == 1
    assert "got an object of type int, not a torch.nn.Module" in result.stderr


def test_the_mode_is_left_after_a_failure(model_file: Path) -> None:
    run("inspect", f"{model_file}:broken")
    assert not torchfake.is_fake(torch.ones(1))


# ---- As a command ----


def test_the_command_writes_only_json_to_standard_output(model_file: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "torchfake", "inspect", f"{model_file}:Tied", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(result.stdout)["totals"]["parameters"] == 76480
    assert "Traceback" not in result.stderr


def test_the_version_is_printed() -> None:
    assert run("--version").stdout == f"torchfake {torchfake.__version__} (PyTorch {torch.__version__})\n"


# ---- The survey itself ----


def test_survey_takes_real_models_too() -> None:
    root = survey(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    assert [layer.type for layer in root.walk()] == ["Sequential", "Linear", "ReLU"]
    assert root.parameters == 6


def test_survey_tells_frozen_parameters_apart() -> None:
    model = nn.Linear(2, 2)
    model.weight.requires_grad_(False)
    assert (survey(model).parameters, survey(model).trainable) == (6, 2)


def test_survey_shows_lazy_parameters_without_a_size() -> None:
    [weight, _] = survey(nn.LazyLinear(3)).tensors
    assert weight.size is None
    assert weight.numel == 0


def test_fold_keeps_counts_and_unequal_layers() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 3), nn.Linear(2, 2))
    root = survey(model)
    folded = fold(root)
    assert [layer.name for layer in folded.children] == ["0-1", "2", "3"]
    assert folded.parameters == root.parameters


def test_fold_multiplies_nested_repeats() -> None:
    model = nn.ModuleList(nn.ModuleList(nn.Linear(1, 1, bias=False) for _ in range(3)) for _ in range(2))
    [outer] = fold(survey(model)).children
    [inner] = outer.children
    assert (outer.name, inner.name, inner.repeats, inner.parameters) == ("0-1", "0-1.0-2", 6, 6)


def test_format_bytes_picks_the_unit() -> None:
    assert [format_bytes(n) for n in (0, 1023, 1024, 5 << 20, 3 << 40)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "5.0 MiB",
        "3.0 TiB",
    ]
