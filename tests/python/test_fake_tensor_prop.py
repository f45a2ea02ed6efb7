"""`FakeTensorProp`: the values it stores in a graph's nodes match real tensors and PyTorch's own pass."""

from __future__ import annotations

import copy
import gc
import operator
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from metadata import storage_groups, tensors_in
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode as TheirMode
from torch.fx import GraphModule, symbolic_trace
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.fake_tensor_prop import FakeTensorProp as Theirs
from torch.nn import functional as F
from torch.utils._pytree import tree_map, tree_map_only

from torchfake import (
    DataDependentOutputException,
    DeviceMismatchError,
    DeviceNotFakedError,
    FakeTensorMode,
    MixedModesError,
    RealTensorError,
    fake_mode,
    is_fake,
    to_fake,
)
from torchfake.fx import FakeTensorProp

Case = tuple[GraphModule, tuple[Any, ...]]


# ---- Graphs ----


class Block(nn.Module):
    """A residual block, as image models have them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1),
            nn.BatchNorm2d(2 * channels),
        )
        self.short = nn.Conv2d(channels, 2 * channels, 1, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool2d(torch.relu_(self.body(x) + self.short(x)), 2).mean((2, 3))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(width, 3 * width)
        self.norm = nn.LayerNorm(width)
        self.register_buffer("scale", torch.ones(width))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
        batch, length, width = x.shape
        q, k, v = self.project(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        y = y.transpose(1, 2).reshape(batch, length, width)
        return {"out": self.norm(x + y) * self.scale, "heads": q}


def views(x: Tensor) -> Any:
    a = x.t()
    b = a[1:, ::2]
    b.add_(1)
    c = x.chunk(2, dim=1)
    x.mul_(2)
    return a, b, [c[0], c[1]], x.size(0), x.expand(2, -1, -1), {"flat": x.flatten(), "copy": x.t().reshape(-1)}


def resized(x: Tensor) -> Any:
    y = x * 2
    z = y.t_()
    y.unsqueeze_(0)
    return y, z, y.squeeze_(0)


def factories(x: Tensor) -> Tensor:
    n = x.shape[1]
    mask = torch.full((n, n), float("-inf"), dtype=x.dtype).triu(1)
    return (x[..., None, :] + mask).softmax(-1) + torch.arange(n, dtype=torch.int64) + torch.eye(n)


def constant(x: Tensor) -> Tensor:
    return x + torch.tensor([1.0, 2.0, 3.0]) + torch.tensor(3)


def train(model: nn.Module, make: Callable[..., Any], *inputs: Tensor) -> Case:
    """Forward and backward in one graph."""
    parameters = dict(model.named_parameters())

    def step(parameters: dict[str, Tensor], *inputs: Tensor) -> Any:
        out = torch.func.functional_call(model, parameters, inputs)
        loss = sum(t.float().square().mean() for t in (out.values() if isinstance(out, dict) else [out]))
        return loss, torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)

    return make(step)(parameters, *inputs), (parameters, *inputs)


def exported(model: nn.Module, *inputs: Any) -> Case:
    program = torch.export.export(model, inputs)
    return program.module(), inputs


def exported_graph(model: nn.Module, *inputs: Any) -> Case:
    program = torch.export.export(model, inputs).run_decompositions()
    state = {**program.state_dict, **program.constants}
    parameters = [state[name] for name in (*program.graph_signature.parameters, *program.graph_signature.buffers)]
    return program.graph_module, (*parameters, *inputs)


def nested() -> Case:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = symbolic_trace(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
            self.other = symbolic_trace(lambda x, y: (x + y, y.t()))

        def forward(self, x: Tensor) -> Any:
            return self.other(x=self.inner(x), y=x)

    class Shallow(torch.fx.Tracer):
        def is_leaf_module(self, module: nn.Module, name: str) -> bool:
            return isinstance(module, GraphModule) or super().is_leaf_module(module, name)

    model = Outer()
    return GraphModule(model, Shallow().trace(model)), (torch.randn(4, 4),)


class Branches(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.t() @ x, lambda x: (x @ x).sin(), (x,)) + 1


class NoGrad(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            y = self.linear(x).relu()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.linear(y) @ x


def invoking() -> Case:
    """A subgraph called twice."""
    inner = symbolic_trace(lambda x, y: ((x @ y).relu(), x.t() * 2))
    root = nn.Module()
    root.add_module("region", inner)
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    region = graph.get_attr("region")
    call = torch.ops.higher_order.invoke_subgraph
    first = graph.call_function(call, (region, "region_0", x, x))
    left = graph.call_function(operator.getitem, (first, 0))
    second = graph.call_function(call, (region, "region_0", left, x))
    graph.output((first, second))
    return GraphModule(root, graph), (torch.randn(3, 3),)


def bert() -> Case:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, vocab_size=50
    )
    model = transformers.BertModel(config).eval()
    return exported(model, torch.arange(8).view(1, 8))


def llama_training() -> Case:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=32,
        vocab_size=50,
        use_cache=False,
    )
    model = transformers.LlamaForCausalLM(config)
    parameters = dict(model.named_parameters())

    def step(parameters: dict[str, Tensor], ids: Tensor) -> Any:
        loss = torch.func.functional_call(model, parameters, (), {"input_ids": ids, "labels": ids}).loss
        return loss, torch.autograd.grad(loss, list(parameters.values()))

    ids = torch.arange(8).view(1, 8)
    return make_fx(step)(parameters, ids), (parameters, ids)


def image(channels: int = 4) -> Tensor:
    return torch.randn(2, channels, 8, 8)


GRAPHS: dict[str, Callable[[], Case]] = {
    "mlp": lambda: (symbolic_trace(nn.Sequential(nn.Linear(8, 4), nn.GELU())), (torch.randn(2, 8),)),
    "convolutions": lambda: (symbolic_trace(Block(4)), (image(),)),
    "channels_last": lambda: (symbolic_trace(Block(4)), (image().to(memory_format=torch.channels_last),)),
    "attention": lambda: (symbolic_trace(Attention(8, 2)), (torch.randn(2, 5, 8),)),
    "attention_with_mask": lambda: (symbolic_trace(Attention(8, 2)), (torch.randn(2, 5, 8), torch.ones(5, 5) > 0)),
    "recurrent": lambda: (symbolic_trace(nn.Sequential(nn.LSTM(4, 3, 2))), (torch.randn(5, 2, 4),)),
    "encoder": lambda: exported(nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0), torch.randn(5, 2, 16)),
    "views": lambda: (symbolic_trace(views), (torch.randn(4, 6),)),
    "views_of_a_view": lambda: (symbolic_trace(views), (torch.randn(8, 12)[::2, 3:9],)),
    "traced_views": lambda: (make_fx(views)(torch.randn(4, 6)), (torch.randn(4, 6),)),
    "resized": lambda: (symbolic_trace(resized), (torch.randn(2, 3),)),
    "factories": lambda: (make_fx(factories)(torch.randn(2, 4)), (torch.randn(2, 4),)),
    "constant": lambda: (make_fx(constant)(torch.randn(3)), (torch.randn(3),)),
    "complex": lambda: (make_fx(lambda x: torch.fft.fft2(x).conj().imag)(image()), (image(),)),
    "mlp_training": lambda: train(nn.Sequential(nn.Linear(8, 4), nn.LayerNorm(4)), make_fx, torch.randn(2, 8)),
    "convolution_training": lambda: train(Block(4).eval(), make_fx, image()),
    "attention_training": lambda: train(Attention(8, 2), make_fx, torch.randn(2, 5, 8)),
    "functionalized": lambda: (make_fx(torch.func.functionalize(views))(torch.randn(4, 6)), (torch.randn(4, 6),)),
    "exported_block": lambda: exported(Block(4), image()),
    "exported_graph": lambda: exported_graph(Block(4).eval(), image()),
    "exported_attention": lambda: exported_graph(Attention(8, 2), torch.randn(2, 5, 8)),
    "exported_modes": lambda: exported(NoGrad(), torch.randn(3, 3)),
    "exported_branches": lambda: exported(Branches(), torch.randn(3, 3)),
    "nested": nested,
    "invoke_subgraph": invoking,
    "bert": bert,
    "llama_training": llama_training,
}


#: Nodes for which the strides written by PyTorch's pass differ from those of real tensors.
WRONG_IN_PYTORCH = {"llama_training": ["view_37", "view_38"]}


# ---- Against real tensors and PyTorch's pass ----


def look(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value if isinstance(value, int | float) else None
    return tuple(value.shape), value.stride(), value.storage_offset(), value.dtype, value.device, value.layout


class Real(torch.fx.Interpreter):
    """Records the real result of each node, as it is directly after that node."""

    def __init__(self, graph: GraphModule) -> None:
        super().__init__(graph, garbage_collect_values=False)
        self.results: dict[str, Any] = {}

    def run_node(self, n: torch.fx.Node) -> Any:
        result = super().run_node(n)
        self.results[n.name] = tree_map_only(Tensor, Tensor.detach, result)
        return result


def forget(graph: GraphModule) -> None:
    for module in graph.modules():
        for node in module.graph.nodes if isinstance(module, GraphModule) else ():
            node.meta.pop("val", None)


def vals(graph: GraphModule) -> dict[str, Any]:
    return {node.name: node.meta.get("val") for node in graph.graph.nodes}


def their_vals(graph: GraphModule, args: tuple[Any, ...]) -> dict[str, Any]:
    mode = TheirMode(allow_non_fake_inputs=True)
    fakes = tree_map_only(Tensor, mode.from_tensor, args)
    Theirs(graph, mode).propagate_dont_convert_inputs(*fakes)
    return vals(graph)


def looks(results: dict[str, Any]) -> dict[str, Any]:
    return {name: tree_map(look, result) for name, result in results.items()}


def aliases(results: dict[str, Any]) -> list[int]:
    return storage_groups(tensor for result in results.values() for tensor in tensors_in(result))


@pytest.mark.parametrize("name", GRAPHS)
def test_vals_equal_what_real_tensors_give_and_pytorchs_pass_writes(name: str) -> None:
    torch.manual_seed(0)
    graph, args = GRAPHS[name]()
    forget(graph)
    theirs = their_vals(copy.deepcopy(graph), args)
    FakeTensorProp(graph).propagate(*args)
    ours = vals(graph)
    assert all(is_fake(tensor) and not tensor.requires_grad for val in ours.values() for tensor in tensors_in(val))

    interpreter = Real(copy.deepcopy(graph))
    interpreter.run(*copy.deepcopy(args))
    real = interpreter.results
    assert looks(ours) == looks(real)
    assert aliases(ours) == aliases(real), "other tensors share a storage"

    # PyTorch's pass writes nothing for the first call of a subgraph; where it is wrong, ours must differ.
    said = {node: val for node, val in theirs.items() if val is not None}
    different = [node for node, val in said.items() if tree_map(look, val) != looks(ours)[node]]
    assert different == WRONG_IN_PYTORCH.get(name, [])


def test_aliases_are_those_of_pytorchs_pass() -> None:
    graph, args = GRAPHS["views"]()
    theirs = their_vals(copy.deepcopy(graph), args)
    FakeTensorProp(graph).propagate(*args)
    assert aliases(vals(graph)) == aliases(theirs)


# ---- Conversion ----


def test_real_parameters_are_converted_once_and_left_as_they_were() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x: Tensor) -> Any:
            y = self.norm(self.linear(self.linear(x)))
            return y, self.linear.weight, self.linear.weight.t()

    graph = symbolic_trace(Twice())
    tracked = graph.norm.num_batches_tracked
    propagation = FakeTensorProp(graph)
    _, weight, transposed = propagation.propagate(torch.randn(2, 4))
    assert weight._is_view() is False and transposed._base is weight
    _, again, _ = propagation.propagate(torch.randn(2, 4))
    assert again is weight
    assert not any(is_fake(tensor) for tensor in graph.state_dict(keep_vars=True).values())
    assert graph.norm.num_batches_tracked is tracked and tracked == 0


def test_tied_parameters_share_a_storage() -> None:
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 10, bias=False))
    model[1].weight = model[0].weight
    graph = make_fx(lambda parameters, x: torch.func.functional_call(model, parameters, (x,)))
    parameters = dict(model.named_parameters(remove_duplicate=False))
    graph = graph(parameters, torch.arange(3))
    FakeTensorProp(graph).propagate(parameters, torch.arange(3))
    first, second, _, *_ = vals(graph).values()
    assert storage_groups([first, second]) == [0, 0]


def test_fake_parameters_and_claimed_devices_are_taken_as_they_are() -> None:
    with fake_mode():
        model = nn.Sequential(nn.Linear(1_000_000, 1_000_000), nn.ReLU()).to("cuda:1")
        x = torch.randn(8, 1_000_000, device="cuda:1")
    graph = symbolic_trace(model)
    out = FakeTensorProp(graph).propagate(x)
    assert out.device == torch.device("cuda:1")
    assert {val.device for val in vals(graph).values()} == {torch.device("cuda:1")}


def test_arguments_are_not_kept_alive() -> None:
    graph = symbolic_trace(nn.ReLU())
    propagation = FakeTensorProp(graph)
    x = torch.randn(3)
    gone = weakref.ref(x)
    propagation.propagate(x)
    del x
    gc.collect()
    assert gone() is None


def test_arguments_may_be_left_as_they_are() -> None:
    graph = symbolic_trace(lambda x, n: x * n)
    x = to_fake(torch.randn(3))
    assert FakeTensorProp(graph).propagate_dont_convert_inputs(x, 2).shape == (3,)
    assert vals(graph)["n"] == 2
    with pytest.raises(RealTensorError, match=r"aten::mul\.Tensor.*(?s:.*)While executing %mul"):
        FakeTensorProp(graph).propagate_dont_convert_inputs(x, torch.randn(3, requires_grad=True))


def constant_read() -> GraphModule:
    root = nn.Module()
    root.register_buffer("constant", torch.tensor(5))
    graph = torch.fx.Graph()
    lifted = graph.call_function(torch.ops.aten.lift_fresh_copy.default, (graph.get_attr("constant"),))
    graph.output(graph.call_function(torch.ops.aten._local_scalar_dense.default, (lifted,)))
    return GraphModule(root, graph)


def test_a_constant_of_the_program_keeps_its_value() -> None:
    assert FakeTensorProp(constant_read()).propagate() == 5


def test_real_arguments_of_run_stay_real() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU())
    for graph in (torch.fx.symbolic_trace(module), make_fx(module)(torch.ones(2, 4))):
        x = torch.randn(2, 4)
        result = FakeTensorProp(graph).run(x)
        assert not is_fake(result) and torch.equal(result, module(x))
        assert all(is_fake(node.meta["val"]) for node in graph.graph.nodes if node.op != "output")


def test_sizes_and_numbers_are_vals_too() -> None:
    graph = symbolic_trace(lambda x: (x.shape[0] * 2, x.dim() > 1, x.is_contiguous()))
    assert FakeTensorProp(graph).propagate(torch.randn(3, 4)) == (6, True, True)
    assert vals(graph)["mul"] == 6
    assert vals(graph)["output"] == (6, True, True)


# ---- The mode ----


def test_a_given_mode_is_the_one_run_in() -> None:
    graph = constant_read()
    with pytest.raises(DataDependentOutputException):
        FakeTensorProp(graph, fake_mode(known_values_limit=0)).propagate()
    assert FakeTensorProp(graph, fake_mode()).propagate() == 5
    assert not is_fake(torch.ones(1))


def test_the_mode_of_the_thread_is_used() -> None:
    graph = symbolic_trace(lambda x: x + x.new_ones(3, device="cuda"))
    with fake_mode(fake_cuda=False), pytest.raises(DeviceNotFakedError):
        FakeTensorProp(graph).propagate(torch.randn(3))


def test_the_mode_of_a_fake_argument_is_used() -> None:
    with fake_mode(fake_cuda=False):
        x = torch.randn(3)
    graph = symbolic_trace(lambda x: x + x.new_ones(3, device="cuda"))
    with pytest.raises(DeviceNotFakedError):
        FakeTensorProp(graph).propagate(x)
    with pytest.raises(DeviceMismatchError):
        FakeTensorProp(graph).propagate(torch.randn(3))


def test_a_mode_is_made_and_kept_where_there_is_none() -> None:
    propagation = FakeTensorProp(symbolic_trace(nn.Linear(2, 2)))
    first = propagation.propagate(torch.randn(2, 2))
    second = propagation.propagate(torch.randn(2, 2))
    assert isinstance(first.fake_mode, FakeTensorMode) and first.fake_mode is second.fake_mode


def test_a_pass_begins_an_epoch_of_its_mode() -> None:
    mode = FakeTensorMode()
    before = mode.epoch
    FakeTensorProp(symbolic_trace(nn.ReLU()), mode)
    assert mode.epoch == before + 1


def test_vals_belong_to_the_mode_given() -> None:
    mode = FakeTensorMode()
    graph, args = GRAPHS["convolutions"]()
    FakeTensorProp(graph, mode).propagate(*args)
    assert all(tensor.fake_mode is mode for val in vals(graph).values() for tensor in tensors_in(val))


def test_the_mode_of_fake_parameters_is_used_for_real_arguments() -> None:
    with fake_mode() as mode:
        model = nn.Linear(2, 2)
    out = FakeTensorProp(symbolic_trace(model)).propagate(torch.randn(3, 2))
    assert out.shape == (3, 2) and out.fake_mode is mode


def test_another_mode_of_the_arguments_is_followed() -> None:
    propagation = FakeTensorProp(symbolic_trace(nn.Linear(2, 2)))
    modes = FakeTensorMode(), FakeTensorMode()
    for mode in modes:
        assert propagation.propagate(mode.from_tensor(torch.randn(3, 2))).fake_mode is mode


@pytest.mark.parametrize("kind", [FakeTensorMode, fake_mode])
def test_fakes_of_another_mode_are_converted(kind: Callable[[], Any]) -> None:
    other, mode = kind(), FakeTensorMode()
    with other:
        graph, x = symbolic_trace(nn.Sequential(nn.Linear(4, 3), nn.ReLU())), torch.ones(2, 4)
    result = FakeTensorProp(graph, mode).propagate(x)
    assert result.fake_mode is mode and result.shape == (2, 3)
    assert {node.meta["val"].fake_mode for node in graph.graph.nodes} == {mode}
    assert x.fake_mode is other and next(graph.parameters()).fake_mode is other


def test_arguments_of_two_modes_are_run_in_that_of_the_first() -> None:
    with FakeTensorMode() as first:
        x = torch.ones(2)
    with FakeTensorMode():
        y = torch.ones(2)
    assert FakeTensorProp(symbolic_trace(lambda x, y: x + y)).propagate(x, y).fake_mode is first


def test_fakes_of_pytorchs_are_converted() -> None:
    program = torch.export.export(nn.Linear(2, 2), (torch.randn(3, 2),))
    args = [node.meta["val"] for node in program.graph.find_nodes(op="placeholder")]
    assert not any(map(is_fake, args))
    [out] = FakeTensorProp(program.graph_module).propagate(*args)
    assert is_fake(out) and out.shape == (3, 2)


def test_pytorchs_mode_around_the_pass_is_refused() -> None:
    with TheirMode(), pytest.raises(MixedModesError):
        FakeTensorProp(symbolic_trace(nn.ReLU())).propagate(2)


# ---- Subgraphs ----


def inner_vals(graph: GraphModule) -> dict[str, Any]:
    return {
        node.name: node.meta.get("val")
        for module in graph.modules()
        if isinstance(module, GraphModule) and module is not graph
        for node in module.graph.nodes
    }


@pytest.mark.parametrize("name", ["nested", "invoke_subgraph", "exported_branches", "exported_modes"])
def test_nodes_of_inner_graphs_have_vals(name: str) -> None:
    graph, args = GRAPHS[name]()
    forget(graph)
    FakeTensorProp(graph).propagate(*args)
    inner = {node: val for node, val in inner_vals(graph).items() if not node.startswith("_guards")}
    assert inner and all(tensors_in(val) for val in inner.values()), inner


def test_an_inner_graph_keeps_its_forward() -> None:
    graph, args = nested()
    FakeTensorProp(graph).propagate(*args)
    assert "forward" not in vars(graph.inner)
    assert not is_fake(graph(*args)[0])


# ---- Errors ----


def test_an_error_names_the_node_and_where_it_was_written() -> None:
    class Product(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return (x * 2).mm(y)

    program = torch.export.export(Product(), (torch.randn(2, 3), torch.randn(3, 4)))
    with pytest.raises(RuntimeError) as caught:
        FakeTensorProp(program.graph_module).propagate(torch.randn(2, 3), torch.randn(5, 4))
    message = str(caught.value)
    assert "mat1 and mat2 shapes cannot be multiplied (2x3 and 5x4)" in message
    assert "While executing %mm : [num_users=1] = call_function[target=torch.ops.aten.mm.default]" in message
    assert "test_fake_tensor_prop.py" in message


def test_errors_of_the_engine_keep_their_type_and_operator() -> None:
    graph = symbolic_trace(lambda x, y: (x + y).sum().item())
    with pytest.raises(DeviceMismatchError, match="While executing %add") as caught:
        FakeTensorProp(graph).propagate(torch.randn(2), to_fake(torch.randn(2), "cuda"))
    assert caught.value.func is torch.ops.aten.add.Tensor
    with pytest.raises(DataDependentOutputException, match="While executing %item"):
        FakeTensorProp(graph).propagate(torch.randn(2), torch.randn(2))


def test_an_error_in_an_inner_graph_names_both_nodes() -> None:
    graph, _ = nested()
    with pytest.raises(RuntimeError) as caught:
        FakeTensorProp(graph).propagate(torch.randn(4, 5))
    assert "While executing %_0" in str(caught.value) and "While executing %inner" in str(caught.value)


def test_a_missing_argument_of_the_graph_is_reported() -> None:
    with pytest.raises(RuntimeError, match="Expected positional argument for parameter y"):
        FakeTensorProp(symbolic_trace(lambda x, y: x + y)).propagate(torch.randn(2))


def test_the_mode_is_left_after_an_error() -> None:
    with pytest.raises(RuntimeError):
        FakeTensorProp(symbolic_trace(lambda x: x @ x)).propagate(torch.randn(2, 3))
    assert not is_fake(torch.ones(1))


# ---- As an interpreter ----


def test_a_subclass_may_override_what_an_interpreter_has() -> None:
    class Counted(FakeTensorProp):
        calls = 0

        def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
            self.calls += 1
            return super().call_function(target, args, kwargs)

    propagation = Counted(symbolic_trace(lambda x: torch.relu(x) + 1))
    propagation.propagate(torch.randn(2))
    assert isinstance(propagation, torch.fx.Interpreter) and propagation.calls == 2
    assert list(propagation.env) == [propagation.graph.output_node()]


def test_a_node_whose_value_is_given_is_not_run() -> None:
    graph = symbolic_trace(lambda x: torch.relu(x) + 1)
    x, relu, *_ = graph.graph.nodes
    given = to_fake(torch.randn(7))
    assert FakeTensorProp(graph).run(initial_env={x: None, relu: given}).shape == (7,)


def test_a_recording_mode_sees_the_graphs_operators_alone() -> None:
    graph = make_fx(lambda x: torch.relu(x).t())(torch.randn(2, 3))
    again = make_fx(lambda x: FakeTensorProp(graph).propagate_dont_convert_inputs(x))(to_fake(torch.randn(2, 3)))
    assert again.code == graph.code


def test_metadata_of_nodes_travels_where_it_is_preserved() -> None:
    graph = make_fx(lambda x: torch.relu(x))(torch.randn(2))
    for node in graph.graph.nodes:
        node.meta["stack_trace"] = f"of {node.name}"
    with torch.fx.traceback.preserve_node_meta():
        again = make_fx(lambda x: FakeTensorProp(graph).propagate_dont_convert_inputs(x))(to_fake(torch.randn(2)))
    [relu] = again.graph.find_nodes(op="call_function", target=torch.ops.aten.relu.default)
    assert relu.meta["stack_trace"] == "of relu"
