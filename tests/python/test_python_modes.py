"""Modes written in Python sit above the engine and see fakes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from metadata import assert_like_real
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode
from undrawn import fake_mode

from torchfake import DataDependentOutputException, FakeTensorMode, is_fake


class Log(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.tensors: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append(str(func))
        result = func(*args, **(kwargs or {}))
        self.tensors += [t for t in tree_leaves((args, result)) if isinstance(t, Tensor)]
        return result


class FunctionLog(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


class Half(TorchDispatchMode):
    """Rewrites calls so that factories return half precision."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.ops.aten.ones.default:
            kwargs["dtype"] = torch.half
        return func(*args, **kwargs)


def mlp() -> Tensor:
    x = torch.randn(4, 8)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 2))
    loss = F.cross_entropy(model(x), torch.zeros(4, dtype=torch.int64))
    loss.backward()
    return model[0].weight.grad


def conv() -> Tensor:
    x = torch.randn(2, 3, 8, 8, requires_grad=True)
    F.conv2d(x, torch.randn(4, 3, 3, 3, requires_grad=True), padding=1, stride=2).sum().backward()
    return x.grad


def attention() -> Tensor:
    q = torch.randn(2, 4, 8, 16, requires_grad=True)
    F.scaled_dot_product_attention(q, q, q).sum().backward()
    return q.grad


def views() -> Tensor:
    x = torch.zeros(4, 4)
    x[0].add_(1)
    x.t()[1:].mul_(2)
    return torch.cat([x.view(-1), x.flatten()[2:]]).softmax(0)


PROGRAMS: list[Callable[[], Tensor]] = [mlp, conv, attention, views]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("mode_outside", [True, False])
def test_a_dispatch_mode_sees_the_operators_it_sees_on_real_tensors(program: Callable, mode_outside: bool) -> None:
    with Log() as real:
        program()
    if mode_outside:
        with Log() as log, fake_mode():
            program()
    else:
        with fake_mode(), Log() as log:
            program()
    assert log.calls == real.calls
    assert log.tensors and all(is_fake(tensor) for tensor in log.tensors)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_dispatch_mode_changes_nothing_that_comes_out(program: Callable[[], Tensor]) -> None:
    def watched() -> Tensor:
        with Log():
            return program()

    assert_like_real(watched)


def test_a_dispatch_mode_sees_fakes_outside_the_fake_mode() -> None:
    with fake_mode():
        x = torch.randn(3, device="cuda:1", requires_grad=True)
    with Log() as log:
        (x * 2).sum().backward()
    assert "aten.mul.Tensor" in log.calls and x.grad.device == torch.device("cuda:1")
    assert all(is_fake(tensor) for tensor in log.tensors)


def test_a_dispatch_mode_may_rewrite_calls_and_run_operators_of_its_own() -> None:
    with fake_mode(), Half():
        assert torch.ones(2, device="cuda").dtype == torch.half
    with Half(), fake_mode():
        assert is_fake(torch.ones(2)) and torch.ones(2).dtype == torch.half


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_function_mode_sees_the_functions_it_sees_on_real_tensors(program: Callable[[], Tensor]) -> None:
    with FunctionLog() as real:
        program()
    with fake_mode(), FunctionLog() as inner:
        program()
    with FunctionLog() as outer, fake_mode():
        program()
    assert inner.calls == real.calls == outer.calls


FLOPS: dict[str, Callable[[str], Any]] = {
    "linear": lambda d: nn.Linear(8, 16, device=d)(torch.randn(4, 8, device=d)).sum().backward(),
    "conv": lambda d: nn.Conv2d(3, 4, 3, device=d)(torch.randn(2, 3, 8, 8, device=d)).sum().backward(),
    "transposed_conv": lambda d: nn.ConvTranspose2d(3, 4, 3, device=d)(torch.randn(2, 3, 8, 8, device=d)).sum(),
    "bmm": lambda d: torch.randn(2, 3, 4, device=d) @ torch.randn(2, 4, 5, device=d),
    "encoder": lambda d: nn.TransformerEncoderLayer(16, 2, 32, device=d)(torch.randn(5, 2, 16, device=d)).sum(),
}


@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
@pytest.mark.parametrize("name", FLOPS)
def test_flops_are_counted_as_for_real_tensors(name: str, device: str) -> None:
    with FlopCounterMode(display=False) as real:
        FLOPS[name]("cpu")
    with fake_mode(), FlopCounterMode(display=False) as fake:
        FLOPS[name](device)
    assert fake.get_total_flops() == real.get_total_flops() > 0
    if device == "cpu":
        assert fake.get_flop_counts() == real.get_flop_counts()


def test_flops_of_a_model_too_large_for_any_machine_are_counted() -> None:
    with fake_mode(), FlopCounterMode(display=False) as counter:
        nn.Linear(1_000_000, 1_000_000, device="cuda")(torch.empty(8, 1_000_000, device="cuda"))
    assert counter.get_total_flops() == 2 * 8 * 1_000_000**2


TRACED: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Tensor, ...]]]] = {
    "arithmetic": (lambda x, y: (x * y + 1).sum(0), lambda: (torch.randn(3, 4), torch.randn(4))),
    "views": (lambda x: x.t()[1:].reshape(-1).add_(1), lambda: (torch.randn(3, 4),)),
    "factory": (lambda x: x + torch.ones(4) + torch.arange(4), lambda: (torch.randn(3, 4),)),
    "matmul": (lambda x, y: F.relu(x @ y), lambda: (torch.randn(3, 4), torch.randn(4, 2))),
    "softmax": (lambda x: F.layer_norm(x.softmax(-1), (4,)), lambda: (torch.randn(3, 4),)),
    "grad": (lambda x: torch.func.grad(lambda t: t.sin().sum())(x), lambda: (torch.randn(3),)),
    "vmap": (lambda x: torch.func.vmap(torch.sin)(x), lambda: (torch.randn(3, 2),)),
    "in_place": (lambda x: x.add_(1).mul_(x), lambda: (torch.randn(3),)),
}


@pytest.mark.parametrize("name", TRACED)
def test_a_traced_graph_equals_that_of_real_tensors(name: str) -> None:
    function, inputs = TRACED[name]
    expected = make_fx(function, tracing_mode="real")(*inputs())
    with fake_mode():
        graph = make_fx(function, tracing_mode="real")(*inputs())
    assert graph.code == expected.code
    assert [node.target for node in graph.graph.nodes] == [node.target for node in expected.graph.nodes]
    with fake_mode():
        assert is_fake(tree_leaves(graph(*inputs()))[0]), "the graph runs on fakes"


def test_a_traced_graph_carries_fakes_as_its_metadata() -> None:
    with fake_mode():
        graph = make_fx(lambda x: (x * 2).sum())(torch.randn(3, device="cuda"))
    kept = [node.meta["val"] for node in graph.graph.nodes if "val" in node.meta]
    assert [tuple(t.shape) for t in kept] == [(3,), (3,), ()]
    assert all(t.device == torch.device("cuda:0") for t in kept)


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("kind", [fake_mode, FakeTensorMode])
def test_what_a_graph_carries_can_be_used_with_the_fakes_traced(kind: Callable[[], Any], inside: bool) -> None:
    with kind() as mode:
        x = torch.ones(2, 3)
        if inside:
            graph = make_fx(lambda x: (x.sin(), x.split(1), x.max(0)))(x).graph
    if not inside:
        graph = make_fx(lambda x: (x.sin(), x.split(1), x.max(0)))(x).graph
    values = [leaf for node in graph.nodes for leaf in tree_leaves(node.meta.get("val")) if isinstance(leaf, Tensor)]
    assert len(values) > 5
    assert all(value.fake_mode is mode for value in values)
    assert (values[0] + x).shape == (2, 3)


def test_a_known_value_is_traced_as_the_number_it_is() -> None:
    with fake_mode():
        graph = make_fx(lambda x: x * x.sum().item())(torch.ones(2, 3)).graph
        assert graph.find_nodes(op="call_function", target=torch.ops.aten.mul.Tensor)[0].args[1] == 6.0
        with pytest.raises(DataDependentOutputException):
            make_fx(lambda x: x * x.sum().item())(torch.rand(2, 3))


def test_a_mode_that_fails_leaves_nothing_behind() -> None:
    class Fails(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise KeyError(str(func))

    with fake_mode():
        x = torch.ones(2)
        with pytest.raises(KeyError, match=r"aten\.add"), Fails():
            x + 1
        assert (x + 1).tolist() == [2, 2]
    assert not is_fake(torch.ones(1))


def test_functions_that_can_be_overridden_are_still_listed() -> None:
    assert torch.Tensor.add in torch.overrides._get_overridable_functions.__wrapped__()[0][torch.Tensor]
