"""`torchfake trace`: the graph as a table and as JSON, and the inputs it creates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from metadata import assert_same_metadata, storage_groups, tensors_in
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from typer.testing import CliRunner, Result

from torchfake import fake_mode, is_fake
from torchfake._models import InputSpec, ModelSpecError, parse_input
from torchfake.cli import app
from torchfake.fx import FakeTensorProp
from torchfake.trace_model import Trace, trace

MODEL_FILE = """
import torch
from torch import nn

class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 4)
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x):
        y = self.linear(x)
        return (y * self.scale).t(), y.chunk(2)

class Masked(nn.Module):
    def forward(self, x, mask):
        return x.sum() if mask.all() else x

class Alone(nn.Module):
    def forward(self):
        return torch.zeros(3)

class Failing(nn.Module):
    def forward(self, x):
        return x @ x
"""


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    path = tmp_path / "traced_models.py"
    path.write_text(MODEL_FILE)
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["trace", *map(str, arguments)])


def report(*arguments: object) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


# ---- What is printed ----


def test_json_has_every_node_with_what_it_gives(model_file: Path) -> None:
    answer = report(f"{model_file}:Small", "--input", "2x8")
    nodes = {node["name"]: node for node in answer["nodes"]}
    assert [(node["kind"], node["target"]) for node in answer["nodes"]] == [
        ("input", "x"),
        ("parameter", "linear.weight"),
        ("call", "aten.t.default"),
        ("parameter", "linear.bias"),
        ("call", "aten.addmm.default"),
        ("buffer", "scale"),
        ("call", "aten.mul.Tensor"),
        ("call", "aten.t.default"),
        ("call", "aten.split.Tensor"),
        ("call", "<built-in function getitem>"),
        ("call", "<built-in function getitem>"),
        ("output", "output"),
    ]
    assert nodes["addmm"]["module"] == "linear"
    assert nodes["addmm"]["inputs"] == ["linear_bias", "x", "t"]
    assert nodes["mul"]["outputs"] == [
        {"size": [2, 4], "stride": [4, 1], "dtype": "float32", "device": "cpu", "nbytes": 32, "alias_of": None}
    ]
    assert [output["alias_of"] for output in nodes["output"]["outputs"]] == ["mul", "addmm", "addmm"]
    assert answer["totals"] == {
        "nodes": 12,
        "operators": 5,
        "flops": 128,
        "state_nbytes": 4 * (8 * 4 + 4 + 4),
        "inputs_nbytes": 64,
        "computed_nbytes": 2 * 32,
    }


def test_the_table_has_a_row_per_node_and_totals(model_file: Path) -> None:
    result = run(f"{model_file}:Small", "--input", "2x8")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    [row] = [line for line in lines if "aten.addmm.default" in line]
    assert all(text in row for text in ("addmm", "linear", "2×4", "4, 1", "float32", "cpu", "32 B"))
    [view] = [line for line in lines if "4×2" in line and "aten.t.default" in line]
    assert "1, 4" in view and "= mul" in view
    assert (
        lines[-1]
        == "Total: 12 nodes, 5 operators, 128 FLOP, 160 B of parameters and buffers, 64 B of inputs, 64 B computed"
    )


def test_device_and_dtype_are_those_of_model_and_inputs(model_file: Path) -> None:
    answer = report(f"{model_file}:Small", "--input", "2x8", "--device", "cuda:1", "--dtype", "bfloat16")
    outputs = [output for node in answer["nodes"] for output in node["outputs"]]
    assert {output["device"] for output in outputs} == {"cuda:1"}
    assert {output["dtype"] for output in outputs} == {"bfloat16"}


def test_a_model_larger_than_the_machine_is_run() -> None:
    answer = report("torch.nn:Identity", "--input", "1000000x1000000", "--device", "cuda")
    assert answer["totals"]["inputs_nbytes"] == 4 * 10**12


def test_training_mode_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "dropout.py"
    path.write_text("from torch import nn\n\nmodel = nn.Dropout()\n")
    assert report(path, "--input", "3")["totals"]["nodes"] == 2
    assert "aten.bernoulli_.float" in {node["target"] for node in report(path, "--input", "3", "--train")["nodes"]}


# ---- Inputs ----


def test_inputs_are_given_by_position_and_by_name(model_file: Path) -> None:
    answer = report(f"{model_file}:Masked", "--input", "4x2:float16", "--input", "mask=3:bool")
    inputs = {node["name"]: node["outputs"][0] for node in answer["nodes"] if node["kind"] == "input"}
    assert (inputs["x"]["size"], inputs["x"]["dtype"]) == ([4, 2], "float16")
    assert (inputs["mask"]["size"], inputs["mask"]["dtype"]) == ([3], "bool")
    assert "aten.sum.default" in {node["target"] for node in answer["nodes"]}, "a mask is known to be of ones"


def test_a_model_without_arguments_needs_no_input(model_file: Path) -> None:
    assert [node["target"] for node in report(f"{model_file}:Alone")["nodes"]] == ["aten.zeros.default", "output"]


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("1x3x224x224", InputSpec(None, (1, 3, 224, 224), None)),
        ("7", InputSpec(None, (7,), None)),
        ("0x2:int64", InputSpec(None, (0, 2), torch.int64)),
        ("mask=2x2:bool", InputSpec("mask", (2, 2), torch.bool)),
        ("scalar:float64", InputSpec(None, (), torch.float64)),
    ],
)
def test_an_input_is_read(text: str, spec: InputSpec) -> None:
    assert parse_input(text) == spec


@pytest.mark.parametrize("text", ["", "x", "1x", "1,2", "1x2:int99", "1x2:nn", "=3", "a=", "-1x2"])
def test_an_input_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(ModelSpecError, match="expected sizes"):
        parse_input(text)


@pytest.mark.parametrize(
    ("model", "kinds"),
    [
        ("BertModel", {"input_ids": [2, 16]}),
        ("ViTModel", {"pixel_values": [2, 3, 224, 224]}),
        ("T5Model", {"input_ids": [2, 16], "decoder_input_ids": [2, 16]}),
        ("WhisperModel", {"input_features": [2, 80, 3000], "decoder_input_ids": [2, 16]}),
        ("Wav2Vec2Model", {"input_values": [2, 16000]}),
        ("CLIPModel", {"input_ids": [2, 16], "pixel_values": [2, 3, 224, 224]}),
    ],
)
def test_classes_of_transformers_have_usual_inputs(model: str, kinds: dict[str, list[int]]) -> None:
    pytest.importorskip("transformers")
    answer = report(model, "--batch", 2, "--length", 16)
    inputs = {node["name"]: node["outputs"][0]["size"] for node in answer["nodes"] if node["kind"] == "input"}
    assert inputs == kinds
    assert answer["totals"]["nodes"] > 100


def length_of(answer: dict[str, Any]) -> int:
    """How many tokens the model was given."""
    (size,) = (node["outputs"][0]["size"] for node in answer["nodes"] if node["kind"] == "input")
    return int(size[1])


@pytest.mark.parametrize("model", ["LlamaForCausalLM", "BertModel", "GPT2Model"])
def test_a_length_beyond_the_default_configuration_is_run(model: str) -> None:
    pytest.importorskip("transformers")
    assert length_of(report(model, "--length", 4096)) == 4096


def test_the_usual_length_is_no_more_than_the_model_takes() -> None:
    pytest.importorskip("transformers")
    assert length_of(report("CLIPTextModel")) == 77


def test_a_length_beyond_a_given_configuration_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    config = tmp_path / "config.json"
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    config.write_text(json.dumps({"model_type": "llama", "vocab_size": 64, "max_position_embeddings": 256, **sizes}))
    assert length_of(report("LlamaModel", "--config", config, "--length", 256)) == 256
    result = run("LlamaModel", "--config", config, "--length", 257)
    assert result.exit_code == 2
    assert result.stderr == (
        "torchfake trace: --length 257: LlamaModel is configured for 256 tokens at most; raise max_position_embeddings "
        "in its configuration, or describe the inputs, as in --input input_ids=1x257:int64\n"
    )
    assert length_of(report("LlamaModel", "--config", config, "--input", "input_ids=1x257:int64")) == 257


# ---- Bad input ----


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["torch.nn:Identity"], "Identity: takes input; describe them with --input"),
        (["torch.nn:Identity", "--input", "axb"], "--input axb: expected sizes"),
        (["torch.nn:Identity", "--input", "2", "--device", "warp"], "--device warp: no such device"),
        (["no.such.module:thing"], "no.such.module: no such module"),
    ],
)
def test_invalid_input_is_reported_in_one_line_with_exit_code_2(arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr and result.stderr.startswith("torchfake trace: ")
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""


def test_a_model_that_fails_is_told_with_code_1_and_its_place(model_file: Path) -> None:
    result = run(f"{model_file}:Failing", "--input", "2x3")
    assert result.exit_code == 1
    assert "running the model failed: RuntimeError: " in result.stderr
    assert "mat1 and mat2 shapes cannot be multiplied" in result.stderr
    assert "traced_models.py:" in result.stderr


@pytest.mark.parametrize(
    ("model", "inputs", "message"),
    [
        ("Small", ["2x8", "2"], "Small: takes x; --input was given 2 times without a name"),
        ("Small", ["nope=3"], "Small: takes x; there is no nope for --input nope="),
        ("Small", ["2x8", "x=2x8"], "Small: takes x; --input was given twice for x"),
        ("Masked", ["2x8"], "Masked: takes x, mask; describe mask with --input too"),
        ("Alone", ["2"], "Alone: takes no input; --input was given 1 times without a name"),
    ],
)
def test_inputs_that_the_model_does_not_take_are_told_with_code_2(
    model_file: Path, model: str, inputs: list[str], message: str
) -> None:
    result = run(f"{model_file}:{model}", *(part for text in inputs for part in ("--input", text)))
    assert result.exit_code == 2 and result.stderr == f"torchfake trace: {message}\n"


# ---- The graph itself ----


def traced(model: nn.Module, *args: Any) -> tuple[Trace, GraphModule]:
    recorded = trace(model, *args)
    return recorded, GraphModule(recorded.attributes, recorded.graph)


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
        self.loose = torch.ones(4)

    def forward(self, x: Tensor) -> Any:
        y = self.layers(x)
        values, where = y.flatten(1).topk(2)
        return {"values": values, "where": where, "sum": y.mean((2, 3)) + self.loose + torch.tensor(2.0)}


def test_the_graph_replays_to_the_same_vals() -> None:
    with fake_mode():
        x = torch.randn(2, 3, 8, 8)
        recorded, graph = traced(Mixed().eval(), x)
        expected = {node.name: node.meta["val"] for node in recorded.graph.nodes}
        FakeTensorProp(graph).propagate(x)
    vals = [node.meta["val"] for node in graph.graph.nodes]
    assert_same_metadata(vals, list(expected.values()), ignored=("version", "type", "is_leaf"))
    assert storage_groups(tensors_in(vals)) == storage_groups(tensors_in(list(expected.values())))


def test_the_operators_are_those_that_make_fx_records() -> None:
    with fake_mode():
        model, x = Mixed().eval(), torch.randn(2, 3, 8, 8)
        recorded, _ = traced(model, x)
        with torch.no_grad():
            expected = make_fx(model)(x)

    def calls(graph: torch.fx.Graph) -> list[str]:
        return [str(n.target).replace("lift_fresh_copy", "lift_fresh") for n in graph.nodes if n.op == "call_function"]

    assert [name for name in calls(recorded.graph) if "getitem" not in name] == [
        name for name in calls(expected.graph) if "getitem" not in name
    ]


def test_a_val_is_what_the_tensor_was_right_then() -> None:
    class Turned(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x * 2
            y.t_()
            return y

    with fake_mode():
        recorded, _ = traced(Turned(), torch.randn(2, 3))
    sizes = [step.outputs[0].size for step in recorded.steps()]
    assert sizes == [(2, 3), (2, 3), (3, 2), (3, 2)]


def test_nothing_is_left_behind_by_a_model_that_fails() -> None:
    class Fails(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise KeyError("no")

    with pytest.raises(KeyError), fake_mode():
        trace(Fails(), torch.randn(2))
    assert not is_fake(torch.ones(1))
    assert not torch.nn.modules.module._global_forward_pre_hooks
