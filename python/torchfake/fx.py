"""Runs a `torch.fx` graph node by node on fake tensors, and records what each node returns."""

from __future__ import annotations

from collections.abc import MutableMapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._subclasses.fake_tensor import FakeTensor as PyTorchsFakeTensor
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.node import Target, map_aggregate
from torch.fx.traceback import has_preserved_node_meta
from torch.utils._pytree import arg_tree_leaves, tree_leaves, tree_map_only
from torch.utils.weak import WeakTensorKeyDictionary

from torchfake import _C
from torchfake.converter import FakeTensorConverter
from torchfake.fake import find_fake, is_fake, maybe_get_fake_mode
from torchfake.fake_tensor_mode import FakeTensorMode
from torchfake.interop import from_pytorch_fake
from torchfake.modes import Mode, current_mode

__all__ = ["FakeTensorProp"]


def _find_mode(args: Any, module: nn.Module) -> Mode | None:
    """The mode that is active, or that of a fake among the arguments, or among the module's tensors."""
    mode = current_mode()
    if mode is not None:
        return mode
    tensors = chain(tree_leaves(args), module.parameters(), module.buffers())
    return next((mode for mode in map(maybe_get_fake_mode, tensors) if mode is not None), None)


class _Fakes:
    """Tensors made fakes of a mode, each of them once: real ones, and fakes that the mode would refuse.

    Does not keep alive what it converts.
    """

    def __init__(self, mode: Mode) -> None:
        self.mode = mode
        self._converter = FakeTensorConverter()
        self._of: MutableMapping[Tensor, Tensor] = WeakTensorKeyDictionary()

    def convert(self, tensor: Tensor) -> Tensor:
        """The fake that stands for `tensor`; one that the mode takes comes back as it is."""
        if self.takes(tensor):
            return tensor
        fake = self._of.get(tensor)
        if fake is None:
            fake = self._of[tensor] = self._convert(tensor)
        return fake

    def takes(self, tensor: Tensor) -> bool:
        """Whether `tensor` is a fake that the mode takes as it is."""
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
        """A fake that knows the values of `constant`, where the mode keeps that many."""
        if is_fake(constant):
            return self.convert(constant)
        fake: Tensor = torch.ops.aten.lift_fresh.default(constant)
        return fake


#: What a constant of the program passes through; its values are known.
_LIFTS = (torch.ops.aten.lift_fresh.default, torch.ops.aten.lift_fresh_copy.default)


class FakeTensorProp(Interpreter):
    """Runs a graph on fake tensors and writes what each node gives to its `meta["val"]`.

    A `val` is a detached fake (a list, tuple or dictionary of them where the node gives several; a number where it
    gives one): later in-place changes of sizes and strides leave it as it was, and what shares a storage in the
    program shares one here. Graphs within the graph are propagated too.

    Parameters and buffers may be real, or fakes of another mode: each is converted once, and none is changed.

    Args:
        module: The graph module: from `torch.fx.symbolic_trace`, `make_fx` or `torch.export`.
        mode: The mode to run in, a `FakeTensorMode` or a `fake_mode`. By default the one the thread is in, or that of
            the fakes among the arguments, or of those among the parameters, or else a new `FakeTensorMode`.

    An operator that fails raises what it raises by itself; the message goes on with the node and its stack trace.

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
        super().__init__(module)
        self._finds_mode = mode is None
        self._use(mode or FakeTensorMode())
        self._constants = {
            node.target
            for node in self.graph.find_nodes(op="get_attr")
            if any(user.target in _LIFTS for user in node.users)
        }

    def propagate(self, *args: object) -> Any:
        """Runs the graph on `args`, made fakes of the mode where they are not; gives back the graph's result."""
        self._find_mode(args)
        with self._mode:
            return self.run(*tree_map_only(Tensor, self._fakes.convert, args))

    def propagate_dont_convert_inputs(self, *args: object) -> Any:
        """Runs the graph on `args` as they are, which are fake already."""
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
        self._states: dict[str, dict[str, Tensor]] = {}
        self._subgraphs: dict[GraphModule, GraphModule] = {}
        if isinstance(mode, FakeTensorMode):
            mode.epoch += 1
            mode.reset_nt_tensor_id_counter()

    def run(self, *args: Any, initial_env: dict[Node, Any] | None = None, enable_io_processing: bool = True) -> Any:
        """Runs the graph as `Interpreter.run` does."""
        # Of its own, for the loop is a good part of the time: operators on fakes take a microsecond.
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

    def run_node(self, n: Node) -> Any:
        """Runs one node and writes its `val`."""
        if has_preserved_node_meta():
            result = super().run_node(n)
        else:
            result = getattr(self, n.op)(n.target, *self.fetch_args_kwargs_from_env(n))
        val = self._snapshot(result) if isinstance(result, Tensor) else map_aggregate(result, self._snapshot)
        if val is not None:
            n.meta["val"] = val
        return result

    def get_attr(self, target: Target, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The attribute, made fake."""
        value = super().get_attr(target, args, kwargs)
        if isinstance(value, Tensor):
            return self._fakes.lift(value) if target in self._constants else self._fakes.convert(value)
        return self._subgraph(value) if isinstance(value, GraphModule) else value

    def call_function(self, target: Target, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls the function; a subgraph is gone through node by node."""
        if target is torch.ops.higher_order.invoke_subgraph:
            subgraph, _, *operands = args
            return subgraph(*operands)
        return super().call_function(target, args, kwargs)

    def call_module(self, target: Target, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls the module with fakes of the mode in the place of its parameters and buffers."""
        assert isinstance(target, str)
        module = self.fetch_attr(target)
        if isinstance(module, GraphModule):
            return self._subgraph(module)(*args, **kwargs)
        state = self._states.get(target)
        if state is None:
            state = self._states[target] = self._foreign_state(module)
        if not state:
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
        """`module` with a forward that propagates; a second object over the same state, for the first is the user's."""
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


def _alias(fake: Tensor) -> Tensor:
    if torch._C._len_torch_dispatch_stack() == 0:
        return fake.data
    with torch._C._DisableTorchDispatch():  # or a mode that records would see it
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
