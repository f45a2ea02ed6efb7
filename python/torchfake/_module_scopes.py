"""Tells the engine which module is running, and whether in a forward pass or an optimizer step."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, ClassVar, Self

from torch import nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from torchfake import _C

OUTSIDE, FORWARD, BACKWARD, OPTIMIZER = range(4)  # Activity in csrc/torchfake/memory/ledger.h

#: By the id of a module: the module and the number of its path. Ids are reused after a module has died.
_Numbers = dict[int, tuple["weakref.ref[nn.Module]", int]]


def _ignore(what: object) -> None:
    pass


def _path(root: nn.Module, path: str) -> str:
    """The path of a module inside `root`, beginning with the class of `root`."""
    name = type(root).__name__
    return f"{name}.{path}" if path else name


def _parts(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """The children of a module; none if its constructor failed before creating the attributes of `nn.Module`."""
    return [(name, part) for name, part in vars(module).get("_modules", {}).items() if part is not None]


def _tree(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules in an outermost module, including itself, with their paths, each once."""
    seen: set[int] = set()
    left = [("", root)]
    while left:
        path, module = left.pop()
        if id(module) not in seen and "_modules" in vars(module):
            seen.add(id(module))
            yield path, module
            left += [(f"{path}.{name}" if path else name, part) for name, part in reversed(_parts(module))]


class ModuleScopes(contextlib.AbstractContextManager["ModuleScopes"]):
    """While entered, hooks all modules and optimizers.

    Args:
        on_root: Called with an outermost module (one not called by another module) on its first call.
        on_forward: Called with an outermost module before each of its calls.
        before_step: Called with an optimizer before its step.
        after_step: Called with an optimizer after its step.
    """

    #: All entered instances. Only the first one tells the engine: two would overwrite each other's state.
    _all: ClassVar[list[ModuleScopes]] = []

    def __init__(
        self,
        *,
        on_root: Callable[[nn.Module], None] = _ignore,
        on_forward: Callable[[nn.Module], None] = _ignore,
        before_step: Callable[[Optimizer], None] = _ignore,
        after_step: Callable[[Optimizer], None] = _ignore,
    ) -> None:
        self._on_root, self._on_forward = on_root, on_forward
        self._step_callbacks = before_step, after_step
        self._exits = contextlib.ExitStack()
        #: For each outermost module, the numbers of the modules inside it. Weak references.
        self._numbers: weakref.WeakKeyDictionary[nn.Module, _Numbers] = weakref.WeakKeyDictionary()
        self._current: _Numbers = {}  # those of the running outermost module
        #: The state to restore after each running module, if this instance tells the engine.
        self._entered: list[tuple[int, int] | None] = []

    def __enter__(self) -> Self:
        self._all.append(self)
        self._exits.callback(self._all.remove, self)
        hooks = [
            nn.modules.module.register_module_forward_pre_hook(self._before_module),
            nn.modules.module.register_module_forward_hook(self._after_module, always_call=True),
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]
        for hook in hooks:
            self._exits.callback(hook.remove)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._exits.close()

    def roots(self) -> list[nn.Module]:
        """The live outermost modules that have been called."""
        return list(self._numbers)

    def inside(self, root: nn.Module) -> list[tuple[nn.Module, int]]:
        """The modules in an outermost module, including itself, with the numbers of their paths."""
        found = ((reference(), number) for reference, number in self._numbers[root].values())
        return [(module, number) for module, number in found if module is not None]

    def uncalled(self) -> list[tuple[nn.Module, int]]:
        """Live modules that no call has reached, with the numbers of their paths: a model whose `.cuda()` ran out of
        memory, or one that nothing has called yet. Looks through all objects of the program, so call it rarely."""
        called = {id(module) for root in self.roots() for module, _ in self.inside(root)}
        # Compares types: `isinstance` may run code of the program.
        modules = [thing for thing in gc.get_objects() if issubclass(type(thing), nn.Module)]
        parts = {id(part) for module in modules for _, part in _parts(module)}
        return [
            (inner, _C.memory_scope_number(_path(root, path)))
            for root in modules
            if id(root) not in parts
            for path, inner in _tree(root)
            if id(inner) not in called
        ]

    def _enter_root(self, root: nn.Module) -> None:
        numbers = self._numbers.get(root)
        if numbers is None:
            numbers = self._numbers[root] = {
                id(inner): (weakref.ref(inner), _C.memory_scope_number(_path(root, path)))
                for path, inner in root.named_modules()
            }
            self._on_root(root)
        self._current = numbers
        self._on_forward(root)

    def _before_module(self, module: nn.Module, arguments: Any) -> None:
        if not self._entered:
            self._enter_root(module)
        known = self._current.get(id(module))
        if known is None or known[0]() is not module:  # created since, or not held by any module
            known = weakref.ref(module), _C.memory_scope_number(type(module).__name__)
            self._current[id(module)] = known
        tells = self._all[0] is self
        self._entered.append(_C.exchange_memory_context(known[1], FORWARD) if tells else None)

    def _after_module(self, module: nn.Module, arguments: Any, output: Any) -> None:
        before = self._entered.pop() if self._entered else None  # none if it was called before the hooks existed
        if before is not None:
            _C.exchange_memory_context(*before)

    def _before_step(self, optimizer: Optimizer, arguments: Any, keywords: Any) -> None:
        self._step_callbacks[0](optimizer)
        _C.exchange_memory_context(None, OPTIMIZER)

    def _after_step(self, optimizer: Optimizer, arguments: Any, keywords: Any) -> None:
        self._step_callbacks[1](optimizer)
        _C.exchange_memory_context(None, OUTSIDE)
