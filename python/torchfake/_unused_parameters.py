"""DistributedDataParallel with parameters that a forward pass does not use, in a group of one process.

PyTorch's reducer uses the memory of a pinned tensor to agree with the other ranks on which parameters were used. In the
fake group, all parameters are declared used, and unused ones take part in the backward pass without a gradient. The
other ranks are assumed to use the same parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from torchfake import _C


def _is_in_fake_group(module: Any) -> bool:
    if dist.get_backend(module.process_group) != "fake":
        return False
    return any(_C.is_fake(parameter) for parameter in module.module.parameters())


def make_reducer(original: Callable[..., None], self: Any, *args: Any, **kwargs: Any) -> None:
    finds_unused = self.find_unused_parameters
    self.find_unused_parameters = finds_unused and not _is_in_fake_group(self)
    try:
        original(self, *args, **kwargs)
    finally:
        self.find_unused_parameters = finds_unused


def set_static_graph(original: Callable[..., None], self: Any) -> None:
    """In a static graph, unused parameters are the same in each step. Here they are searched for in each step."""
    if _is_in_fake_group(self):
        self.find_unused_parameters = True
    else:
        original(self)


def _nodes(outputs: list[Tensor]) -> Iterator[Any]:
    """The nodes of the graph behind these tensors."""
    seen: set[Any] = set()
    waiting = [output.grad_fn for output in outputs]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            waiting += [following for following, _ in node.next_functions]


class _TakesPart(torch.autograd.Function):
    """Returns its first argument. The others take part in the backward pass without a gradient."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, *unused: nn.Parameter) -> Tensor:
        ctx.without_gradient = [parameter for parameter in unused if parameter.grad is None]
        ctx.count = len(unused)
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        parameters, engine = ctx.without_gradient, torch.autograd.Variable._execution_engine

        def forget_gradients() -> None:
            for parameter in parameters:
                parameter.grad = None

        # The reducer sets the gradients in a callback that it has not queued yet.
        engine.queue_callback(lambda: engine.queue_callback(forget_gradients))
        return grad, *([None] * ctx.count)


def post_forward(original: Callable[..., Any], self: Any, output: Any) -> Any:
    reduces = torch.is_grad_enabled() and self.require_backward_grad_sync
    if not (self.find_unused_parameters and reduces and _is_in_fake_group(self)):
        return original(self, output)
    tensors = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.grad_fn is not None]
    used = {id(node.variable) for node in _nodes(tensors) if hasattr(node, "variable")}
    unused = [parameter for parameter in self._module_parameters if id(parameter) not in used]
    if tensors and unused:
        with_all = _TakesPart.apply(tensors[0], *unused)  # type: ignore[no-untyped-call]
        output = tree_map(lambda leaf: with_all if leaf is tensors[0] else leaf, output)
    return original(self, output)
