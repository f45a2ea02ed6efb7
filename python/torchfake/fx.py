"""Runs a `torch.fx` graph node by node on fake tensors, and records what each node returns."""

from __future__ import annotations

from collections.abc import MutableMapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._subclasses.fake_tensor import FakeTensor as PyTorchsFakeTensor
from torch.fx import Graph, GraphModule, Interpreter, Node
from torch.fx import node as fx_node
from torch.fx.experimental import symbolic_shapes
from torch.fx.node import Target, map_aggregate
from torch.fx.traceback import has_preserved_node_meta
from torch.utils._ordered_set import OrderedSet
from torch.utils._pytree import arg_tree_leaves, tree_leaves, tree_map_only
from torch.utils.weak import WeakTensorKeyDictionary

from torchfake import _C
from torchfake.converter import FakeTensorConverter
from torchfake.fake import find_fake, holds_fake, maybe_get_fake_mode
from torchfake.fake_tensor_mode import FakeTensorMode
from torchfake.interop import from_pytorch_fake
from torchfake.modes import Mode, current_mode

__all__ = ["FakeTensorProp"]

#: map_arg, without its check of the function that it applies.
_map_arg = getattr(fx_node, "_fx_map_arg", fx_node.map_arg)


def _find_mode(args: Any, module: nn.Module) -> Mode | None:
    """The active mode, or that of a fake among the arguments, or among the module's parameters and buffers."""
    mode = current_mode()
    if mode is not None:
        return mode
    tensors = chain(tree_leaves(args), module.parameters(), module.buffers())
    return next((mode for mode in map(maybe_get_fake_mode, tensors) if mode is not None), None)


class _Fakes:
    """Converts real tensors, and fakes that the mode would refuse, to fakes of a mode, once each.

    Does not keep the tensors alive.
    """

    def __init__(self, mode: Mode) -> None:
        self.mode = mode
        self._converter = FakeTensorConverter()
        self._of: MutableMapping[Tensor, Tensor] = WeakTensorKeyDictionary()

    def convert(self, tensor: Tensor) -> Tensor:
        """The fake of `tensor`; a fake that the mode accepts is returned unchanged."""
        if self.takes(tensor):
            return tensor
        fake = self._of.get(tensor)
        if fake is None:
            fake = self._of[tensor] = self._convert(tensor)
        return fake

    def takes(self, tensor: Tensor) -> bool:
        """Whether `tensor` is a fake that the mode accepts."""
        fake = tensor if _C.is_plain_fake(tensor) else find_fake((tensor,))
        if fake is None:
            return False
        state = _C.mode_of(fake)
        return state is self.mode._state or not (state.exclusive or self.mode._state.exclusive)

    def _convert(self, tensor: Tensor) -> Tensor:
        if isinstance(tensor, PyTorchsFakeTensor):
            return from_pytorch_fake(tensor, self.mode)
        return self._converter.from_real_tensor(self.mode, tensor)

    def lift(self, constant: Tensor) -> Tensor:
        """A fake of `constant` with its values, if the mode tracks that many."""
        if holds_fake(constant):
            return self.convert(constant)
        fake: Tensor = torch.ops.aten.lift_fresh.default(constant)
        return fake


#: The operators that mark a constant of the program, whose values are known.
_LIFTS = (torch.ops.aten.lift_fresh.default, torch.ops.aten.lift_fresh_copy.default)


class FakeTensorProp(Interpreter):
    """Runs a graph on fake tensors and stores what each node returns in its `meta["val"]`.

    A `val` is a detached fake, a container of fakes, or a number, depending on what the node returns. Later in-place
    changes of sizes and strides do not affect it, and tensors that share a storage in the program have vals that share
    one. Subgraphs are propagated too.

    In a mode with a `shape_env`, data-dependent sizes and values are symbols. Where each appears first is stored
    in the node's `meta["unbacked_bindings"]`, and a graph that is propagated again keeps their names.

    Parameters and buffers may be real, or fakes of another mode: each is converted once, and none is modified.

    Args:
        module: A graph module, from `torch.fx.symbolic_trace`, `make_fx` or `torch.export`.
        mode: The mode to run in, a `FakeTensorMode` or a `fake_mode`. By default the active one, that of a fake among
            the arguments or the parameters, or a new `FakeTensorMode`.

    Errors of operators are raised unchanged, with the node and its stack trace added to the message.

    Examples:
        >>> import torch
        >>> from torchfake.fx import FakeTensorProp
        >>> graph = torch.fx.symbolic_trace(torch.nn.Linear(4, 2))
        >>> FakeTensorProp(graph).propagate(torch.randn(8, 4)).shape
        torch.Size([8, 2])
        >>> [(node.name, tuple(node.meta["val"].shape)) for node in graph.graph.nodes if node.op != "output"]
        [('input_1', (8, 4)), ('weight', (2, 4)), ('bias', (2,)), ('linear', (8, 2))]
    """

    def __init__(self, module: GraphModule, mode: Mode | None = None) -> None:
        if not isinstance(module, GraphModule):
            raise TypeError(f"FakeTensorProp: expected a GraphModule, got {type(module).__qualname__}")
        if mode is not None and not isinstance(mode, Mode):
            raise TypeError(f"FakeTensorProp: expected a mode of torchfake, got {type(mode).__qualname__}")
        super().__init__(module, garbage_collect_values=False)  # computed faster below
        self.garbage_collect_values = True
        self.user_to_last_uses = _last_uses(self.graph)
        self._finds_mode = mode is None
        self._use(mode or FakeTensorMode())
        self._constants = {
            node.target
            for node in self.graph.find_nodes(op="get_attr")
            if any(user.target in _LIFTS for user in node.users)
        }

    def propagate(self, *args: object) -> Any:
        """Runs the graph on `args`, after converting them to fakes of the mode, and returns its result."""
        self._find_mode(args)
        with self._mode:
            return self.run(*tree_map_only(Tensor, self._convert_input, args))

    def _convert_input(self, tensor: Tensor) -> Tensor:
        if isinstance(self._mode, FakeTensorMode) and self._mode.makes_sizes_symbolic and not self._fakes.takes(tensor):
            return self._mode.from_tensor(tensor)
        return self._fakes.convert(tensor)

    def propagate_dont_convert_inputs(self, *args: object) -> Any:
        """Runs the graph on `args`, which must be fakes of the mode, and returns its result."""
        self._find_mode(args)
        with self._mode:
            return self.run(*args)

    def _find_mode(self, args: object) -> None:
        mode = _find_mode(args, self.module) if self._finds_mode else None
        if mode is not None and mode is not self._mode:
            self._use(mode)

    def _use(self, mode: Mode) -> None:
        self._mode = mode
        self._fakes = _Fakes(mode)
        self._stays_real = False
        self._states: dict[str, dict[str, Tensor]] = {}
        self._subgraphs: dict[GraphModule, GraphModule] = {}
        #: The identifiers of the subgraphs that `invoke_subgraph` has called.
        self.seen_subgraphs: OrderedSet[str] = OrderedSet()
        if isinstance(mode, FakeTensorMode):
            mode.epoch += 1
            mode.reset_nt_tensor_id_counter()

    def run(self, *args: Any, initial_env: dict[Node, Any] | None = None, enable_io_processing: bool = True) -> Any:
        """Runs the graph as `Interpreter.run` does: outside the mode, real tensors among themselves stay real."""
        self._stays_real = current_mode() is None and find_fake(tree_leaves(args)) is None
        # Faster than Interpreter's loop, whose overhead would exceed the operators', which take a microsecond on fakes.
        env = self.env = {} if initial_env is None else initial_env
        self.args_iter = iter(self.graph.process_inputs(*args) if enable_io_processing else args)
        last_uses = self.user_to_last_uses if self.garbage_collect_values else {}
        for node in self.graph.nodes:
            if node in env:
                continue
            try:
                result = env[node] = self.run_node(node)
            except Exception as error:
                _name_node(error, node)
                raise
            for used in last_uses.get(node, ()):
                del env[used]
            if node.op == "output":
                return self.graph.process_outputs(result) if enable_io_processing else result
        return None

    def fetch_args_kwargs_from_env(self, n: Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The values of the node's arguments, as `Interpreter` finds them."""
        try:
            load = self.env.__getitem__
            return _map_arg(n.args, load), _map_arg(n.kwargs, load) if n.kwargs else {}
        except KeyError:
            return super().fetch_args_kwargs_from_env(n)  # names the node that is missing

    def run_node(self, n: Node) -> Any:
        """Runs one node and stores its `val`."""
        if has_preserved_node_meta():
            result = super().run_node(n)
        else:
            result = getattr(self, n.op)(n.target, *self.fetch_args_kwargs_from_env(n))
        env = self._mode.shape_env
        if env is not None:
            symbolic_shapes.rebind_unbacked(env, n, result)
        if isinstance(result, Tensor):
            of_mode = _C.is_plain_fake(result) and _C.mode_of(result) is self._mode._state
            val = _alias(result) if of_mode else self._snapshot(result)
        else:
            val = map_aggregate(result, self._snapshot)
        if val is not None:
            n.meta["val"] = val
            bindings = None if env is None else symbolic_shapes.compute_unbacked_bindings(env, result)
            if bindings:
                n.meta["unbacked_bindings"] = bindings
        return result

    def get_attr(self, target: Target, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The attribute, converted to a fake."""
        value = super().get_attr(target, args, kwargs)
        if isinstance(value, Tensor) and not self._stays_real:
            return self._fakes.lift(value) if target in self._constants else self._fakes.convert(value)
        return self._subgraph(value) if isinstance(value, GraphModule) else value

    def call_function(self, target: Target, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls the function; subgraphs are run node by node."""
        if target is torch.ops.higher_order.invoke_subgraph:
            subgraph, identifier, *operands = args
            self.seen_subgraphs.add(identifier)
            return subgraph(*operands)
        assert not isinstance(target, str)
        return target(*args, **kwargs)

    def call_module(self, target: Target, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls the module with its parameters and buffers replaced by fakes of the mode."""
        assert isinstance(target, str)
        module = self.fetch_attr(target)
        if isinstance(module, GraphModule):
            return self._subgraph(module)(*args, **kwargs)
        state = self._states.get(target)
        if state is None:
            state = self._states[target] = self._foreign_state(module)
        if not state or self._stays_real:
            return module(*args, **kwargs)
        return torch.func.functional_call(module, state, args, kwargs, tie_weights=False)

    def _foreign_state(self, module: nn.Module) -> dict[str, Tensor]:
        members = [
            *module.named_parameters(remove_duplicate=False),
            *module.named_buffers(remove_duplicate=False),
        ]
        return {name: self._fakes.convert(tensor) for name, tensor in members if not self._fakes.takes(tensor)}

    def _snapshot(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return None if is_functorch_wrapped_tensor(value) else _alias(self._fakes.convert(value))
        return value if isinstance(value, int | float | torch.SymInt | torch.SymFloat | torch.SymBool) else None

    def _subgraph(self, module: GraphModule) -> GraphModule:
        """A copy of `module` that shares its state and has a forward that propagates."""
        shadow = self._subgraphs.get(module)
        if shadow is None:
            inner = FakeTensorProp(module, self._mode)
            inner._fakes = self._fakes
            shadow = object.__new__(type(module))
            shadow.__dict__ = {**module.__dict__, "forward": inner._forward}
            self._subgraphs[module] = shadow
        return shadow

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs:
            args = tuple(arg_tree_leaves(*args, **kwargs))
        return self.run(*args)


def _last_uses(graph: Graph) -> dict[Node, list[Node]]:
    """By node: those that no later node uses."""
    found: dict[Node, list[Node]] = {}
    seen: set[Node] = set()
    for node in reversed(graph.nodes):
        for used in node.all_input_nodes:
            if used not in seen:
                seen.add(used)
                found.setdefault(node, []).append(used)
    return found


def _alias(fake: Tensor) -> Tensor:
    if torch._C._len_torch_dispatch_stack() == 0:
        return fake.data
    with torch._C._DisableTorchDispatch():  # hidden from modes that record operators
        return fake.data


def _name_node(error: Exception, node: Node) -> None:
    """Adds `node` and its stack trace to the message of `error`."""
    where = f"While executing {node.format_node()}"
    if node.stack_trace:
        where += f"\nOriginal traceback:\n{node.stack_trace}"
    if error.args and isinstance(error.args[0], str):
        error.args = (f"{error.args[0]}\n\n{where}", *error.args[1:])
    else:
        error.add_note(where)
