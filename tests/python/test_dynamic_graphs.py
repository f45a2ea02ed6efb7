"""`FakeTensorProp` with symbols, compared with PyTorch's own pass, and `torchfake trace --dynamic`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode as TheirMode
from torch.fx import GraphModule, symbolic_trace
from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext
from torch.fx.experimental.symbolic_shapes import ShapeEnv as TheirEnv
from torch.fx.passes.fake_tensor_prop import FakeTensorProp as Theirs
from torch.utils._pytree import keystr, tree_leaves
from typer.testing import CliRunner, Result

from torchfake import FakeTensorMode, ShapeEnv
from torchfake.cli import app
from torchfake.fx import FakeTensorProp

HINTS = {"batch": 4, "seq": 6}
ASSIGNMENTS = [{"batch": batch, "seq": seq} for batch in (2, 3, 4, 9, 16) for seq in (5, 6)]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Any:
        batch, seq, width = x.shape
        heads = x.view(batch, seq, 2, 4).transpose(1, 2)
        weights = (heads @ heads.transpose(-1, -2)).softmax(-1)
        mixed = (weights @ heads).transpose(1, 2).reshape(batch, seq, width)
        return x + self.down(F.gelu(self.up(self.norm(mixed)))), mixed.flatten(0, 1), x.mean(1)


class Data(nn.Module):
    """Data-dependent sizes and values."""

    def forward(self, x: Tensor) -> Any:
        rows = x.flatten(0, 1)
        kept = rows[rows[:, 0] > 0]
        return kept * 2, torch.nonzero(x), kept.sum(0), torch.cat([kept, rows])


GRAPHS: dict[str, Callable[[], GraphModule]] = {
    "block": lambda: symbolic_trace(Block()),
    "data": lambda: symbolic_trace(Data()),
    "sequential": lambda: symbolic_trace(nn.Sequential(nn.Linear(8, 3), nn.ReLU(), nn.Linear(3, 8), nn.Softmax(-1))),
}


def ours(graph: GraphModule) -> tuple[ShapeEnv, FakeTensorMode]:
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env, allow_non_fake_inputs=True)
    x = mode.from_tensor(torch.randn(4, 6, 8), dynamic={0: "batch", 1: "seq"})
    FakeTensorProp(graph, mode).propagate(x)
    return env, mode


def theirs(graph: GraphModule) -> Any:
    env = TheirEnv()
    mode = TheirMode(shape_env=env, allow_non_fake_inputs=True)
    sizes = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC, DimDynamic.DYNAMIC, DimDynamic.STATIC])
    x = mode.from_tensor(torch.randn(4, 6, 8), symbolic_context=sizes, source=ConstantSource("x"))
    Theirs(graph, mode).propagate_dont_convert_inputs(x)
    return env


def their_numbers(env: Any, values: dict[str, int], size: Any) -> int:
    """The value of one of PyTorch's sizes where its symbols have these values; u0, u1... by their numbers."""
    if isinstance(size, int):
        return size
    by_hint = {HINTS[name]: value for name, value in values.items() if name in HINTS}
    substituted = {
        symbol: values[str(symbol)] if str(symbol) in values else by_hint[int(env.backed_var_to_val[symbol])]
        for symbol in size.node.expr.free_symbols
    }
    return int(size.node.expr.xreplace(substituted))


@pytest.mark.parametrize("name", GRAPHS)
def test_vals_are_those_of_pytorchs_pass_at_other_sizes(name: str) -> None:
    graph, reference = GRAPHS[name](), GRAPHS[name]()
    env, _ = ours(graph)
    their_env = theirs(reference)
    compared = 0
    for sizes in ASSIGNMENTS:
        values = sizes | {symbol: 3 for symbol in env.symbols if symbol.startswith("u")}
        assert env.guards_hold(values), env.format_guards()
        for node, other in zip(graph.graph.nodes, reference.graph.nodes, strict=True):
            pairs = zip(tree_leaves(node.meta.get("val")), tree_leaves(other.meta.get("val")), strict=True)
            for mine, their in pairs:
                if isinstance(mine, Tensor):
                    geometry = [*mine.shape, *mine.stride(), mine.storage_offset()]
                    expected = [*their.shape, *their.stride(), their.storage_offset()]
                    assert (mine.dtype, str(mine.device)) == (their.dtype, str(their.device))
                elif mine is None or isinstance(mine, str):
                    continue
                else:
                    geometry, expected = [mine], [their]
                mine_now = [each if isinstance(each, int) else env.evaluate(each, values) for each in geometry]
                assert mine_now == [their_numbers(their_env, values, each) for each in expected], node
                compared += 1
    assert compared >= 50


def test_symbols_are_bound_where_they_appear_first() -> None:
    graph, reference = GRAPHS["data"](), GRAPHS["data"]()
    ours(graph)
    theirs(reference)

    def bindings(graph: GraphModule) -> dict[str, dict[str, str]]:
        return {
            node.name: {str(symbol): keystr(path) for symbol, path in node.meta["unbacked_bindings"].items()}
            for node in graph.graph.nodes
            if "unbacked_bindings" in node.meta
        }

    assert bindings(graph) == bindings(reference) and len(bindings(graph)) == 2


def test_a_graph_that_runs_again_keeps_the_names() -> None:
    graph = GRAPHS["data"]()
    env, mode = ours(graph)
    before = {node.name: str(node.meta.get("val")) for node in graph.graph.nodes}
    x = mode.from_tensor(torch.randn(4, 6, 8), dynamic={0: "batch", 1: "seq"})
    FakeTensorProp(graph, mode).propagate(x)
    assert {node.name: str(node.meta.get("val")) for node in graph.graph.nodes} == before
    assert env.pending_fresh_unbacked_symbols == []


def test_a_val_is_a_snapshot_with_a_version_of_its_own() -> None:
    graph = symbolic_trace(lambda x: x.add_(1).mul_(2))
    mode = FakeTensorMode(shape_env=ShapeEnv())
    x = mode.from_tensor(torch.ones(4, 3), dynamic=[0])
    FakeTensorProp(graph, mode).propagate(x)
    vals = [node.meta["val"] for node in graph.graph.nodes]
    assert all(val is not x and val._version == 0 for val in vals) and x._version == 2
    assert all(str(val.shape[0]) == "s0" for val in vals)


def test_seen_subgraphs_are_named() -> None:
    root = nn.Module()
    root.add_module("region", symbolic_trace(lambda x: (x + 1,)))
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    call = torch.ops.higher_order.invoke_subgraph
    graph.output(graph.call_function(call, (graph.get_attr("region"), "region_0", x)))
    prop = FakeTensorProp(GraphModule(root, graph), FakeTensorMode())
    prop.propagate(torch.ones(2))
    assert list(prop.seen_subgraphs) == ["region_0"]


def test_a_missing_argument_is_named() -> None:
    graph = symbolic_trace(Block())
    with pytest.raises(RuntimeError, match=r"placeholder x|argument.*'?x'?"):
        FakeTensorProp(graph, FakeTensorMode(shape_env=ShapeEnv())).propagate()


# ---- torchfake trace --dynamic ---------------------------------------------------------------------------------------

MODEL = """
import torch
from torch import nn

class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, ids):
        return self.head(self.embed(ids)).softmax(-1)
"""


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    (tmp_path / "tiny.py").write_text(MODEL)
    return f"{tmp_path / 'tiny.py'}:Tiny"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["trace", *arguments])


def test_trace_prints_symbolic_sizes_and_bytes(tiny: str) -> None:
    options = ("--input", "ids=4x7:int64", "--dynamic", "ids.0=batch", "--dynamic", "ids.1=seq")
    printed = run(tiny, *options)
    assert printed.exit_code == 0, printed.output
    assert "batch×seq×8" in printed.output and "12*batch*seq B" in printed.output
    assert "batch >= 2" in printed.output
    report = json.loads(run(tiny, *options, "--json").output)
    last = report["nodes"][-1]["outputs"][0]
    assert last["size"] == ["batch", "seq", 3] and last["stride"] == ["3*seq", 3, 1]
    assert report["totals"]["inputs_nbytes"] == "8*batch*seq" and "seq >= 2" in report["guards"]


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("ids", "expected NAME.DIM=SYMBOL"),
        ("ids.2=n", "ids has 2 dimensions"),
        ("mask.0=n", "is called with ids"),
        ("ids.0=n", "sizes of 0 and 1 are special"),
    ],
)
def test_a_wrong_dynamic_size_is_refused_by_name(tiny: str, option: str, said: str) -> None:
    result = run(tiny, "--input", "ids=1x7:int64", "--dynamic", option)
    assert result.exit_code == 2 and said in result.output and f"--dynamic {option}" in result.output


def test_one_symbol_for_two_sizes_is_refused(tiny: str) -> None:
    result = run(tiny, "--input", "ids=4x7:int64", "--dynamic", "ids.0=n", "--dynamic", "ids.1=n")
    assert result.exit_code == 2 and "n is 4 elsewhere, and the size here is 7" in result.output
