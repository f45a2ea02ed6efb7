"""FakeTensorProp: what it takes to write a fake to every node of a graph, against PyTorch's own pass.

With numbers on graphs of about 600 and 1,000 nodes, and with symbols for batch and length on graphs of 250 to 1,000.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from rich.progress import track
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode as PyTorchsMode
from torch.fx import GraphModule
from torch.fx.experimental import symbolic_shapes
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.fake_tensor_prop import FakeTensorProp as PyTorchsProp

import torchfake
from torchfake.fx import FakeTensorProp
from torchfake_bench import sides
from torchfake_bench.report import Report, console, new_table, number, ratio
from torchfake_bench.timing import loop_seconds, median, seconds

WANTED = 20  # times PyTorch's
WANTED_OF_SYMBOLS = 30
REPEATS = 3  # passes to a timed loop

Args = tuple[Tensor, ...]


class Block(nn.Module):
    """A layer of a decoder."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.project = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.out(y)
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


def perceptron() -> nn.Module:
    return nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64)) for _ in range(25)))


def forward(model: nn.Module, x: Tensor) -> tuple[GraphModule, Args]:
    names, tensors = zip(*model.named_parameters(), strict=True)

    def run(x: Tensor, *tensors: Tensor) -> Tensor:
        return torch.func.functional_call(model, dict(zip(names, tensors, strict=True)), (x,))

    args = (x, *(tensor.detach() for tensor in tensors))
    return make_fx(run)(*args), args


def training(model: nn.Module, x: Tensor) -> tuple[GraphModule, Args]:
    names, tensors = zip(*model.named_parameters(), strict=True)

    def step(x: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        tensors = tuple(tensor.requires_grad_() for tensor in tensors)
        loss = torch.func.functional_call(model, dict(zip(names, tensors, strict=True)), (x,)).square().mean()
        return torch.autograd.grad(loss, tensors)

    args = (x, *(tensor.detach() for tensor in tensors))
    return make_fx(step)(*args), args


GRAPHS: dict[str, Callable[[], tuple[GraphModule, Args]]] = {
    "perceptron, forward and backward": lambda: training(perceptron(), torch.randn(8, 64)),
    "decoder, forward": lambda: forward(nn.Sequential(*(Block(64, 4) for _ in range(12))), torch.randn(2, 16, 64)),
    "decoder, forward and backward": lambda: training(
        nn.Sequential(*(Block(64, 4) for _ in range(5))), torch.randn(2, 16, 64)
    ),
    "decoder, forward, 1,000 nodes": lambda: forward(
        nn.Sequential(*(Block(64, 4) for _ in range(22))), torch.randn(2, 16, 64)
    ),
}

# Layers of a decoder forward, to about 250, 500 and 1,000 nodes.
SYMBOLIC_LAYERS = (5, 11, 22)


def propagate(prop: Any, graph: GraphModule, mode: Any, args: Args) -> Any:
    """All that a user does: a new pass over the graph, real tensors given to it."""
    return prop(graph, mode).propagate(*args)


def measure(name: str, rounds: int) -> dict[str, Any]:
    graph, args = GRAPHS[name]()
    row: dict[str, Any] = {"nodes": len(graph.graph.nodes)}
    passes = {
        "torchfake": partial(propagate, FakeTensorProp, graph, torchfake.FakeTensorMode(), args),
        "PyTorch": partial(propagate, PyTorchsProp, graph, PyTorchsMode(), args),
    }
    for run in passes.values():
        run()  # imports and registries
    first: dict[str, list[float]] = {side: [] for side in passes}
    warm: dict[str, list[float]] = {side: [] for side in passes}
    for _ in range(rounds):
        sides.clear_caches()
        for side, run in passes.items():
            first[side].append(seconds(run))
        for side, run in passes.items():
            warm[side].append(loop_seconds(run, REPEATS) / REPEATS)
    for side in passes:
        row[side] = {"first": median(first[side]), "warm": median(warm[side])}
    return row


def symbolic_graph(layers: int) -> tuple[GraphModule, Args]:
    """A graph with symbols for batch and length, as tracers record it."""
    model = nn.Sequential(*(Block(64, 4) for _ in range(layers)))
    names, tensors = zip(*model.named_parameters(), strict=True)
    args = (torch.randn(3, 17, 64), *(tensor.detach() for tensor in tensors))

    def run(x: Tensor, *tensors: Tensor) -> Tensor:
        return torch.func.functional_call(model, dict(zip(names, tensors, strict=True)), (x,))

    env = symbolic_shapes.ShapeEnv()
    mode = PyTorchsMode(shape_env=env)
    return make_fx(run)(*with_symbols(mode, args)), args


def with_symbols(mode: Any, args: Args) -> Args:
    """The inputs as fakes: symbols for batch and length of the first, numbers for the parameters."""
    dynamic, static = symbolic_shapes.DimDynamic.DYNAMIC, symbolic_shapes.DimDynamic.STATIC
    context = symbolic_shapes.StatelessSymbolicContext(dynamic_sizes=[dynamic, dynamic, static])
    return (
        mode.from_tensor(args[0], symbolic_context=context),
        *(mode.from_tensor(arg, static_shapes=True) for arg in args[1:]),
    )


def symbolic_seconds(side: str, graph: GraphModule, args: Args) -> float:
    """One pass in an environment of its own, so that no symbol has been seen before; making the inputs is left out."""
    ours = side == "torchfake"
    prop: Any = FakeTensorProp if ours else PyTorchsProp
    mode: Any = (
        torchfake.FakeTensorMode(shape_env=torchfake.ShapeEnv())
        if ours
        else PyTorchsMode(shape_env=symbolic_shapes.ShapeEnv())
    )
    fakes = with_symbols(mode, args)
    return seconds(lambda: prop(graph, mode).propagate_dont_convert_inputs(*fakes))


def measure_symbolic(layers: int, rounds: int) -> dict[str, Any]:
    graph, args = symbolic_graph(layers)
    row: dict[str, Any] = {"nodes": len(graph.graph.nodes)}
    names = ("torchfake", "PyTorch")
    for side in names:
        symbolic_seconds(side, graph, args)  # imports and registries
    first: dict[str, list[float]] = {side: [] for side in names}
    warm: dict[str, list[float]] = {side: [] for side in names}
    for _ in range(rounds):
        sides.clear_caches()
        for side in names:
            first[side].append(symbolic_seconds(side, graph, args))
            warm[side].append(median(symbolic_seconds(side, graph, args) for _ in range(REPEATS)))
    for side in names:
        row[side] = {"first": median(first[side]), "warm": median(warm[side])}
    return row


def run_symbolic(report: Report) -> None:
    table = new_table(
        "FakeTensorProp with symbols, in milliseconds", "nodes", "empty caches", "PyTorch", "", "warm", "PyTorch", ""
    )
    rows = report.results["fx with symbols"] = {}
    for layers in track(SYMBOLIC_LAYERS, "fx with symbols", console=console, transient=True):
        row = rows[str(layers)] = measure_symbolic(layers, max(1, report.rounds // 2))
        table.add_row(str(row["nodes"]), *times(row))
    console.print(table)
    least = min(row["PyTorch"][state] / row["torchfake"][state] for row in rows.values() for state in ("first", "warm"))
    report.goal("fx: FakeTensorProp with symbols against PyTorch's, cold or warm", least, at_least=WANTED_OF_SYMBOLS)
    per_node = [row["torchfake"]["warm"] / row["nodes"] for row in rows.values()]
    report.goal("fx: time per node with symbols, 250 to 1,000 nodes", per_node[-1] / per_node[0], at_most=1.2)


def times(row: dict[str, Any]) -> list[str]:
    ours, theirs = row["torchfake"], row["PyTorch"]
    return [
        text
        for state in ("first", "warm")
        for text in (number(1e3 * ours[state]), number(1e3 * theirs[state]), ratio(theirs[state], ours[state]))
    ]


def run(report: Report) -> None:
    sides.single_thread()
    table = new_table(
        "FakeTensorProp, in milliseconds", "graph", "nodes", "empty caches", "PyTorch", "", "warm", "PyTorch", ""
    )
    results = report.results["fx"] = {}
    for name in track(GRAPHS, "fx", console=console, transient=True):
        row = results[name] = measure(name, report.rounds)
        table.add_row(name, str(row["nodes"]), *times(row))
    console.print(table)
    slowest = min(row["PyTorch"]["warm"] / row["torchfake"]["warm"] for row in results.values())
    report.goal("fx: FakeTensorProp against PyTorch's, the least over graphs", slowest, at_least=WANTED)
    run_symbolic(report)
