"""PyTorch's compiler, tracers and tools with fakes and modes of torchfake, compared with PyTorch's own fakes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._functorch.aot_autograd import aot_function
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed._tools.mod_tracker import ModTracker
from torch.fx.experimental.proxy_tensor import make_fx

import torchfake

THEIRS = torch._subclasses.FakeTensorMode
OURS = torchfake.FakeTensorMode


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).relu()


def described(tensor: Tensor | None) -> tuple[Any, ...]:
    assert tensor is not None
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad


def operators(graph: torch.fx.Graph) -> list[str]:
    return [str(node.target) for node in graph.nodes if node.op.startswith("call")]


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    torch._dynamo.reset()


def compiled_inside(mode: Any, backend: str) -> Any:
    with mode():
        layer = Layer()
        output = torch.compile(layer, backend=backend, fullgraph=True)(torch.randn(2, 4))
        output.sum().backward()
        return described(output), described(layer.linear.weight.grad)


def compiled_outside(mode: Any, backend: str) -> Any:
    with mode():
        layer, x = Layer(), torch.randn(2, 4)
    return described(torch.compile(layer, backend=backend)(x))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("use", [compiled_inside, compiled_outside], ids=lambda use: use.__name__)
def test_the_compiler_takes_fakes_as_it_takes_pytorchs(use: Callable[[Any, str], Any], backend: str) -> None:
    assert use(OURS, backend) == use(THEIRS, backend)


def export_strictly(mode: Any) -> list[str]:
    with mode():
        return operators(torch.export.export(Layer(), (torch.randn(2, 4),), strict=True).graph)


def export_outside(mode: Any) -> list[str]:
    with mode():
        layer, x = Layer(), torch.randn(2, 4)
    return operators(torch.export.export(layer, (x,), strict=False).graph)


def trace(mode: Any) -> list[str]:
    with mode():
        return operators(make_fx(Layer())(torch.randn(2, 4)).graph)


def export_by_dynamo(mode: Any) -> list[str]:
    with mode():
        return operators(torch._dynamo.export(Layer(), aten_graph=True)(torch.randn(2, 4))[0].graph)


@pytest.mark.parametrize(
    "use",
    [export_strictly, export_outside, trace, export_by_dynamo],
    ids=lambda use: use.__name__,
)
def test_tracers_write_the_same_graph_as_for_pytorchs_fakes(use: Callable[[Any], list[str]]) -> None:
    graph = use(OURS)
    assert graph and graph == use(THEIRS)


def fakes_of(graph: torch.fx.Graph, mode: Any) -> list[tuple[str, bool]]:
    """Each tensor of a graph, and whether it is a fake of the mode."""
    values = ((node.name, node.meta.get("val")) for node in graph.nodes)
    return [(name, getattr(val, "fake_mode", None) is mode) for name, val in values if isinstance(val, Tensor)]


@pytest.mark.parametrize("tracing", ["real", "fake"])
@pytest.mark.parametrize("inside", [True, False], ids=["inside", "outside"])
def test_make_fx_traces_with_the_mode_of_the_fakes(tracing: str, inside: bool) -> None:
    def traced(make: Any) -> list[tuple[str, bool]]:
        mode = make()
        with mode:
            layer, x = Layer(), torch.randn(2, 4)
        with mode if inside else nullcontext():
            return fakes_of(make_fx(layer, tracing_mode=tracing)(x).graph, mode)

    graph = traced(OURS)
    assert graph == traced(THEIRS)
    assert all(is_of_mode for _, is_of_mode in graph) and len(graph) > 4


def test_make_fx_with_symbolic_sizes_names_what_is_missing() -> None:
    with OURS():
        x = torch.ones(2, 3)
    with pytest.raises(torchfake.DynamicShapesError, match="tracing_mode='symbolic'"):
        make_fx(torch.sin, tracing_mode="symbolic")(x)


def test_aot_autograd_traces_with_the_mode_of_the_fakes() -> None:
    def compiled(make: Any) -> tuple[Any, ...]:
        mode, graphs = make(), []

        def compiler(graph: torch.fx.GraphModule, example: list[Any]) -> Any:
            graphs.append((fakes_of(graph.graph, mode), operators(graph.graph), len(example)))
            return graph

        with mode:
            x = torch.randn(2, 4, requires_grad=True)
            output = aot_function(lambda x: x.sin() @ x.T, compiler, compiler)(x)
            output.sum().backward()
        return graphs, described(output), described(x.grad)

    ours = compiled(OURS)
    assert ours == compiled(THEIRS)
    assert all(is_of_mode for fakes, _, _ in ours[0] for _, is_of_mode in fakes)


def test_pytorch_finds_the_mode_that_is_active_or_that_tensors_have() -> None:
    def detect(inputs: Any = None) -> Any:  # looked up when called: replaced when a mode is first entered
        return torch._guards.detect_fake_mode(inputs)

    mode, other = OURS(), OURS()
    with mode:
        x = torch.ones(2)
        assert detect() is mode is detect([x])
        with pytest.raises(AssertionError, match="different modes"):
            detect([other.from_tensor(torch.ones(2))])
    assert detect([1, {"x": x}]) is mode and detect([torch.ones(2)]) is None and detect() is None
    with torchfake.fake_mode():
        assert detect() is None is detect([torch.ones(2)])  # an ordinary program


def test_the_memory_tracker_counts_the_same_bytes() -> None:
    def peak(mode: Any) -> dict[str, dict[str, int]]:
        with mode():
            layer = Layer()
            optimizer = torch.optim.Adam(layer.parameters())
            tracker = MemTracker()
            tracker.track_external(layer, optimizer)
            with tracker:
                layer(torch.randn(2, 4)).sum().backward()
                optimizer.step()
            return {
                str(device): {str(kind): size for kind, size in sizes.items()}
                for device, sizes in tracker.get_tracker_snapshot("peak").items()
            }

    sizes = peak(OURS)
    assert sizes and sizes == peak(THEIRS)


def test_the_module_tracker_sees_the_same_modules() -> None:
    def parents(mode: Any) -> list[list[str]]:
        seen: list[list[str]] = []
        with mode():
            layer, tracker = Layer(), ModTracker()
            layer.linear.register_forward_hook(lambda *_: seen.append(sorted(tracker.parents)))
            with tracker:
                layer(torch.randn(2, 4)).sum().backward()
        return seen

    assert parents(OURS) == parents(THEIRS) == [["Global", "Layer"]]
