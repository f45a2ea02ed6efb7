"""The operators of a model's forward pass, as a graph whose nodes have the metadata of their results.

>>> import torch
>>> from torchfake import fake_mode
>>> from torchfake.trace_model import trace
>>> with fake_mode():
...     model = torch.nn.Sequential(torch.nn.Linear(1000, 10), torch.nn.ReLU())
...     traced = trace(model, torch.randn(8, 1000, device="cpu"))
>>> for step in traced.steps():
...     print(step.name, step.target, [output.size for output in step.outputs])
input_1 input [(8, 1000)]
_0_weight 0.weight [(10, 1000)]
t aten.t.default [(1000, 10)]
_0_bias 0.bias [(10,)]
addmm aten.addmm.default [(8, 10)]
relu aten.relu.default [(8, 10)]
output output [(8, 10)]
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import SymBool, SymFloat, SymInt, Tensor, nn
from torch.fx import Graph, Node
from torch.nn.modules import module as hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry
from torch.utils.weak import WeakTensorKeyDictionary

from torchfake.fake import holds_fake, to_fake
from torchfake.inspect_model import format_bytes, print_table, table_html

__all__ = ["Step", "StepTensor", "Trace", "count_bytes", "print_steps", "step_table", "trace"]

_KINDS = {"call_function": "call", "placeholder": "input"}


@dataclass(frozen=True)
class StepTensor:
    """A tensor that a step returns.

    Attributes:
        alias_of: The first step that returned a tensor on the same storage; None if the storage is new.
    """

    size: tuple[int | SymInt, ...]
    stride: tuple[int | SymInt, ...]
    dtype: str
    device: str
    nbytes: int | SymInt
    alias_of: str | None


@dataclass(frozen=True)
class Step:
    """A node of the graph.

    Attributes:
        kind: input, parameter, buffer, constant, call or output.
        target: The operator, or the name of the parameter, buffer, constant or input.
        module: The dotted name of the layer that called it; empty for the model itself.
        inputs: The steps whose results it uses.
        flops: Its floating-point operations, as `torch.utils.flop_counter` counts them: products, convolutions and
            attention.
    """

    name: str
    kind: str
    target: str
    module: str
    inputs: tuple[str, ...]
    outputs: tuple[StepTensor, ...]
    flops: int | SymInt = 0

    @property
    def nbytes(self) -> int | SymInt:
        """The memory of its outputs that are not aliases, in bytes."""
        return sum(output.nbytes for output in self.outputs if output.alias_of is None)

    @property
    def is_operator(self) -> bool:
        """Whether it is an operator call, as opposed to one result of several."""
        return self.kind == "call" and not self.target.startswith("<")

    def to_json(self) -> dict[str, Any]:
        """The step in a form that `json.dumps` accepts. Symbolic numbers become strings."""
        of_outputs = [{name: as_json_number(value) for name, value in vars(output).items()} for output in self.outputs]
        return {**vars(self), "outputs": of_outputs, "flops": as_json_number(self.flops)}


def as_json_number(value: Any) -> Any:
    """`value`, with symbolic numbers as strings of their expressions."""
    return tree_map(lambda leaf: str(leaf) if isinstance(leaf, SymInt) else leaf, value)


@dataclass(frozen=True)
class Trace:
    """A graph, and the tensors of its `get_attr` nodes by target. Symbolic numbers among arguments are strings."""

    graph: Graph
    attributes: dict[str, Tensor]

    def _repr_html_(self) -> str:
        return table_html(step_table(self.steps()))

    def steps(self) -> Iterator[Step]:
        """The nodes in execution order."""
        first: dict[int, str] = {}
        for node in self.graph.nodes:
            tensors = [leaf for leaf in tree_leaves(node.meta.get("val")) if isinstance(leaf, Tensor)]
            yield Step(
                name=node.name,
                kind=node.meta.get("kind") or _KINDS.get(node.op, node.op),
                target=str(node.target),
                module=node.meta.get("module", ""),
                inputs=tuple(used.name for used in node.all_input_nodes),
                outputs=tuple(_describe(tensor, node.name, first) for tensor in tensors),
                flops=node.meta.get("flops", 0),
            )


def _describe(tensor: Tensor, name: str, first: dict[int, str]) -> StepTensor:
    giver = first.setdefault(tensor.untyped_storage()._cdata, name)
    return StepTensor(
        size=tuple(tensor.shape),
        stride=tensor.stride(),
        dtype=str(tensor.dtype).removeprefix("torch."),
        device=str(tensor.device),
        nbytes=tensor.numel() * tensor.element_size(),
        alias_of=None if giver == name else giver,
    )


def trace(model: nn.Module, *args: Any, backward: bool = False, **kwargs: Any) -> Trace:
    """Runs `model` on fakes and records every operator that reaches the engine.

    Unlike with `make_fx`, the model may branch on known values; the graph is that of the branches taken.

    Args:
        model: The model to run.
        *args: Its positional arguments.
        backward: Whether to also run the backward of the sum of its results.
        **kwargs: Its keyword arguments.

    Raises:
        ValueError: No result of the model requires gradients, so there is no backward.
    """
    recorder = _Recorder(model)
    bound = inspect.signature(model.forward).bind(*args, **kwargs)
    recorder.add_inputs(bound.arguments)
    with torch.set_grad_enabled(backward), recorder.watch_modules(), recorder:
        result = model(*args, **kwargs)
        if backward:
            _run_backward(result)
    recorder.add_output(result)
    return Trace(recorder.graph, recorder.attributes)


def _run_backward(result: Any) -> None:
    values = result.values() if isinstance(result, Mapping) else result
    leaves = [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor) and leaf.requires_grad]
    if not leaves:
        raise ValueError("no result of the model requires gradients, so there is no backward to run")
    torch.autograd.backward([leaf.sum() for leaf in leaves])


def _flops_of(func: Any, args: Any, kwargs: Any, result: Any) -> Any:
    count = flop_registry.get(getattr(func, "overloadpacket", func))
    return 0 if count is None else count(*args, **kwargs, out_val=result)


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    supports_higher_order_operators = True

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = Graph()
        self.attributes: dict[str, Tensor] = {}
        self._nodes: MutableMapping[Tensor, Node] = WeakTensorKeyDictionary()
        self._state: MutableMapping[Tensor, tuple[str, str]] = WeakTensorKeyDictionary()
        for name, tensor in model.named_buffers():
            self._state[tensor] = "buffer", name
        for name, tensor in model.named_parameters():
            self._state[tensor] = "parameter", name
        self._names = {module: name for name, module in model.named_modules()}
        self._running: list[nn.Module] = []

    def add_inputs(self, arguments: Any) -> None:
        for name, argument in arguments.items():
            tensors = [leaf for leaf in tree_leaves(argument) if isinstance(leaf, Tensor)]
            for tensor in tensors:
                self._note(self.graph.placeholder(name), tensor)

    def add_output(self, result: Any) -> None:
        leaves = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        node = self.graph.output(tuple(self._argument(leaf) for leaf in leaves))
        node.meta["val"] = tuple(map(_alias, leaves))

    @contextmanager
    def watch_modules(self) -> Iterator[None]:
        def enter(module: nn.Module, _: Any) -> None:
            if module in self._names:
                self._running.append(module)

        def leave(module: nn.Module, *_: Any) -> None:
            if module in self._names:
                self._running.pop()

        handles = [
            hooks.register_module_forward_pre_hook(enter),
            hooks.register_module_forward_hook(leave, always_call=True),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        node_args, node_kwargs = tree_map(self._argument, (tuple(args), kwargs))
        result = func(*args, **kwargs)
        packet = getattr(func, "overloadpacket", func)
        node = self.graph.create_node("call_function", func, node_args, node_kwargs, name=packet.__name__)
        node.meta["flops"] = _flops_of(func, args, kwargs, result)
        self._note(node, result)
        return result

    def _note(self, node: Node, result: Any) -> None:
        """Stores the result of `node`, and remembers which node returned it."""
        if self._running:
            node.meta["module"] = self._names[self._running[-1]]
        if isinstance(result, Tensor):
            node.meta["val"] = _alias(result)
            self._nodes[result] = node
            return
        node.meta["val"] = tree_map(lambda leaf: _alias(leaf) if isinstance(leaf, Tensor) else leaf, result)
        if isinstance(result, tuple | list):
            for i, part in enumerate(result):
                if isinstance(part, Tensor):
                    self._note(self.graph.call_function(operator.getitem, (node, i)), part)

    def _argument(self, value: Any) -> Any:
        if isinstance(value, SymInt | SymFloat | SymBool):
            return str(value)  # a graph that can be run again would need a node for each
        if not isinstance(value, Tensor):
            return value
        node = self._nodes.get(value)
        return self._read(value) if node is None else node

    def _read(self, tensor: Tensor) -> Node:
        """A node for a tensor that no step returned: a parameter, a buffer or a constant."""
        kind, name = self._state.get(tensor) or ("constant", f"constant_{len(self.attributes)}")
        self.attributes[name] = tensor
        node = self.graph.create_node("get_attr", name)
        node.meta["kind"] = kind
        self._note(node, tensor)
        return node


def _alias(tensor: Tensor) -> Tensor:
    """An alias of the tensor that later in-place changes of its sizes do not affect."""
    return (tensor if holds_fake(tensor) else to_fake(tensor)).data


# ---- Printing --------------------------------------------------------------------------------------------------------


def step_table(steps: Iterable[Step], *, title: str = "") -> Table:
    """A table with one row per step. Instead of a size in bytes, an alias shows the step that allocated its storage."""
    table = Table(title=title or None, title_justify="left", header_style="bold", row_styles=["", "dim"])
    for column in ("node", "op", "layer", "sizes", "strides", "dtype", "device"):
        table.add_column(column, overflow="fold")
    table.add_column("bytes", justify="right", no_wrap=True)
    for step in steps:
        table.add_row(
            Text(step.name),
            Text(step.target if step.kind in ("call", "output") else f"{step.kind} {step.target}"),
            Text(step.module),
            "\n".join("×".join(map(str, output.size)) or "scalar" for output in step.outputs),
            "\n".join(", ".join(map(str, output.stride)) or "-" for output in step.outputs),
            "\n".join(output.dtype for output in step.outputs),
            "\n".join(output.device for output in step.outputs),
            "\n".join(
                f"= {output.alias_of}" if output.alias_of else _bytes_text(output.nbytes) for output in step.outputs
            ),
        )
    return table


def _bytes_text(count: int | SymInt) -> str:
    return f"{count} B" if isinstance(count, SymInt) else format_bytes(count)


def count_bytes(steps: Sequence[Step]) -> dict[str, int | SymInt]:
    """The memory of all storages in bytes, by category: parameters and buffers, inputs, and computed tensors."""
    counted: dict[str, int | SymInt] = {"state": 0, "inputs": 0, "computed": 0}
    for step in steps:
        group = {"parameter": "state", "buffer": "state", "constant": "state", "input": "inputs"}.get(step.kind)
        counted[group or "computed"] += step.nbytes
    return counted


def format_flops(count: int | SymInt) -> str:
    """A number of floating-point operations with a suitable unit.

    >>> format_flops(2_500_000_000)
    '2.5 GFLOP'
    """
    if isinstance(count, SymInt):
        return f"{count} FLOP"
    size = float(count)
    for unit in ("FLOP", "KFLOP", "MFLOP", "GFLOP", "TFLOP"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "FLOP" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} PFLOP"


def by_layer(steps: Iterable[Step], depth: int) -> dict[str, tuple[int, int | SymInt, int | SymInt]]:
    """Operators, floating-point operations and bytes of results by layer, down to `depth` levels; 0 is the model."""
    summed: dict[str, tuple[int, int | SymInt, int | SymInt]] = {}
    for step in steps:
        if not step.is_operator:
            continue
        name = ".".join(step.module.split(".")[:depth]) if depth else ""
        operators, flops, nbytes = summed.get(name, (0, 0, 0))
        summed[name] = operators + 1, flops + step.flops, nbytes + step.nbytes
    return summed


def layer_steps_table(steps: Iterable[Step], depth: int, *, title: str = "") -> Table:
    """A table with one row per layer, in the order of their first operator."""
    table = Table(title=title or None, title_justify="left", header_style="bold", row_styles=["", "dim"])
    table.add_column("layer", overflow="fold")
    for column in ("operators", "FLOPs", "bytes"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, (operators, flops, nbytes) in by_layer(steps, depth).items():
        table.add_row(Text(name or "(the model)"), f"{operators:,}", format_flops(flops), _bytes_text(nbytes))
    return table


def print_steps(steps: Sequence[Step], *, title: str = "", depth: int | None = None, limit: int | None = None) -> None:
    """Prints table and totals to standard output; lines are not wrapped in a pipe or file.

    Args:
        steps: The steps.
        title: The table's title.
        depth: Sums up the operators by layer, down to this many levels, instead of one row each.
        limit: The maximum number of rows to print. The totals include all steps.
    """
    if depth is None:
        print_table(step_table(steps[:limit], title=title))
        if limit is not None and limit < len(steps):
            Console().print(f"... and {len(steps) - limit:,} nodes more", soft_wrap=True)
    else:
        print_table(layer_steps_table(steps, depth, title=title))
    print_totals(steps)


def print_totals(steps: Sequence[Step]) -> None:
    """Prints how many operators there are, their FLOPs and bytes, in one line on standard output."""
    operators = sum(step.is_operator for step in steps)
    flops = format_flops(sum(step.flops for step in steps))
    counted = {name: _bytes_text(count) for name, count in count_bytes(steps).items()}
    Console().print(
        f"Total: {len(steps):,} nodes, {operators:,} operators, {flops}, "
        f"{counted['state']} of parameters and buffers, {counted['inputs']} of inputs, "
        f"{counted['computed']} computed",
        style="bold",
        soft_wrap=True,
    )


def totals_of(steps: Sequence[Step]) -> dict[str, Any]:
    """What `print_totals` prints, for JSON."""
    counted = {f"{name}_nbytes": count for name, count in count_bytes(steps).items()}
    return {
        "nodes": len(steps),
        "operators": sum(step.is_operator for step in steps),
        "flops": as_json_number(sum(step.flops for step in steps)),
        **as_json_number(counted),
    }
