"""The compiler, tracers and tools of PyTorch, given fakes and modes of torchfake, beside PyTorch's own fakes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
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
