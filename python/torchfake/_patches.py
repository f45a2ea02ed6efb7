"""The mechanism that replaces functions of PyTorch: late, reversibly, and from one table (`_replacements.py`).

Note [Replacements]
Some functions of PyTorch never reach the dispatcher, or need data or a device. Each of these is a row of the table:
what is replaced, by what, under which condition, and why.

    Patch("torch.nn.init:_no_grad_trunc_normal_", _training.trunc_normal_, When.GIVEN_FAKE, "redraws values")

The name is bound to a stand-in of the engine (`_C.stand_in`), which evaluates the condition in C++ on every call. If it
holds, `trunc_normal_(original, *args, **kwargs)` is called, and otherwise the original with unchanged arguments.

Invariants:
- Importing torchfake replaces nothing. The engine calls `install` as the last step of its activation (Note [Activation]
  in activation.h), and `remove` when `torchfake.uninstall()` deactivates it.
- The original is whatever the name is bound to at that moment. Modules that are not imported yet are patched when they
  are.
- A stand-in compares equal to its original, and has its name, documentation and identity in pickles.
- Copies of a function in other modules (`from torch.cuda import current_device`) are replaced as well.
- `remove` does not touch a name that has been rebound by others in the meantime.

Rejected: a `TorchFunctionMode`. It would see only torch functions called inside the mode, and fakes have to work
outside it too.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import CellType, ModuleType
from typing import Any

from torchfake import _C
from torchfake._C import When

_MISSING = object()


@dataclass(frozen=True)
class Patch:
    """One row of the table: a function, method or property of PyTorch's and its replacement.

    Attributes:
        target: The module and the name in it: `torch:Tensor.numpy`. A final `[...]` names a key of a mapping, and a
            final `()` the generator inside a `contextlib.contextmanager`, since programs hold the function.
        by: Called as `by(original, *args, **kwargs)` if the condition holds. Otherwise the original is called.
        when: The condition.
        why: The problem that it solves.
        copies: Whether copies in other modules are replaced too.
        optional: Whether some supported releases of PyTorch do not have the name.
    """

    target: str
    by: Callable[..., Any]
    when: When
    why: str
    copies: bool = True
    optional: bool = False

    @property
    def module(self) -> str:
        return self.target.partition(":")[0]

    @property
    def condition(self) -> str:
        """The condition, in words."""
        return CONDITIONS[self.when]

    def make(self, original: Any) -> Any:
        """The value that replaces `original`."""
        if isinstance(original, (classmethod, staticmethod)):
            return type(original)(_C.stand_in(original.__func__, self.by, self.when))
        return _C.stand_in(original, self.by, self.when)


@dataclass(frozen=True)
class Put(Patch):
    """A row whose replacement is the value `by(original)`, used without checking a condition."""

    copies: bool = False
    condition_in_words: str = ""

    @property
    def condition(self) -> str:
        return self.condition_in_words

    def make(self, original: Any) -> Any:
        return self.by(None if original is _MISSING else original)


#: The conditions in words, as documented.
CONDITIONS = {
    When.IN_MODE: "the thread is in a mode",
    When.GIVEN_FAKE: "an argument is a fake",
    When.IN_MODE_OR_GIVEN_FAKE: "the thread is in a mode, or an argument is a fake",
    When.FAKES_EXIST: "a fake, or a mode that was entered, is alive",
    When.GIVEN_META_STORAGE: "the storage has no data, and fakes are alive",
    When.IN_MODE_OR_GIVEN_META_STORAGE: "the thread is in a mode, or the storage has no data and fakes are alive",
    When.ALWAYS: "always",
}


def instead(function: Callable[..., Any]) -> Callable[..., Any]:
    """A replacement that does not use the original."""

    def by(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    by.__qualname__, by.__module__ = function.__qualname__, function.__module__
    return by


def each(pattern: str, by: Mapping[str, Callable[..., Any]], when: When, why: str, **rest: bool) -> tuple[Patch, ...]:
    """A row for each name, which replaces `{}` in the pattern."""
    return tuple(Patch(pattern.format(name), function, when, why, **rest) for name, function in by.items())


def same(pattern: str, names: str, by: Callable[..., Any], when: When, why: str, **rest: bool) -> tuple[Patch, ...]:
    """The same for several names with one replacement."""
    return each(pattern, dict.fromkeys(names.split(), by), when, why, **rest)


_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a type whose attributes Python may set


@dataclass(frozen=True)
class _Place:
    """Where a value is stored: an attribute of a module or class, an item of a mapping, or a cell of a closure."""

    owner: Any
    key: Any
    is_item: bool

    def raw(self) -> Any:
        """The stored value; `_MISSING` if a class inherits it."""
        if isinstance(self.owner, CellType):
            return self.owner.cell_contents
        if self.key == "__class__":
            return type(self.owner)
        return (self.owner if self.is_item else vars(self.owner)).get(self.key, _MISSING)

    def original(self) -> Any:
        raw = self.raw()
        if raw is not _MISSING or not isinstance(self.owner, type):
            return raw
        return next((vars(base)[self.key] for base in self.owner.__mro__ if self.key in vars(base)), _MISSING)

    def put(self, value: Any) -> None:
        if self.is_item:
            self.owner[self.key] = value
        elif self._is_of_type_in_c():
            _C.set_attribute_of_type(self.owner, self.key, value)
        else:
            setattr(self.owner, self.key, value)

    def drop(self) -> None:
        if self.is_item:
            del self.owner[self.key]
        elif self._is_of_type_in_c():
            _C.set_attribute_of_type(self.owner, self.key, None)
        else:
            delattr(self.owner, self.key)

    def _is_of_type_in_c(self) -> bool:
        return isinstance(self.owner, type) and not self.owner.__flags__ & _HEAP_TYPE


def _place_of(target: str) -> _Place | None:
    """The place that a target names; None if this PyTorch does not have it. Its module must have been imported."""
    module, _, path = target.partition(":")
    path, _, key = path.removesuffix("]").partition("[")
    owner: Any = sys.modules[module]
    *classes, name = path.removesuffix("()").split(".")
    for part in classes:
        owner = getattr(owner, part, None)
    if owner is None:
        return None
    if path.endswith("()"):
        (cell,) = getattr(owner, name).__closure__
        return _Place(cell, "cell_contents", is_item=False)
    if not key:
        return _Place(owner, name, is_item=False)
    mapping: MutableMapping[Any, Any] = getattr(owner, name)
    package, _, kind = key.rpartition(".")
    return _Place(mapping, getattr(sys.modules[package], kind), is_item=True)


@dataclass(frozen=True)
class _Applied:
    place: _Place
    before: Any
    value: Any

    def undo(self) -> None:
        if self.place.raw() is not self.value:
            return  # rebound by others
        if self.before is _MISSING:
            self.place.drop()
        else:
            self.place.put(self.before)


class Patches:
    """A table of rows, installed and removed as a whole. Thread-safe."""

    def __init__(self, table: Iterable[Patch]) -> None:
        self.table: tuple[Patch, ...] = tuple(table)
        self._lock = threading.RLock()
        self._applied: list[_Applied] = []
        self._finder: _Finder | None = None

    def install(self) -> None:
        """Applies all rows; those of modules that are not imported yet, when they are imported."""
        with self._lock:
            if self._finder is not None:
                return
            waiting = {patch.module for patch in self.table if patch.module not in sys.modules}
            try:
                self._apply([patch for patch in self.table if patch.module not in waiting])
            except BaseException:
                self._undo()
                raise
            self._finder = _Finder(waiting, self._on_import)
            sys.meta_path.insert(0, self._finder)

    def remove(self) -> None:
        """Restores all originals."""
        with self._lock:
            if self._finder is None:
                return
            sys.meta_path.remove(self._finder)
            self._finder = None
            self._undo()

    def _on_import(self, finder: _Finder, module: str) -> None:
        with self._lock:
            if self._finder is finder:  # else removed in the meantime
                self._apply([patch for patch in self.table if patch.module == module])

    def _apply(self, rows: Sequence[Patch]) -> None:
        copied: dict[int, tuple[Any, Any]] = {}
        for patch in rows:
            place = _place_of(patch.target)
            original = _MISSING if place is None else place.original()
            if place is None or (original is _MISSING and not isinstance(patch, Put)):
                if patch.optional:
                    continue
                raise AttributeError(f"torchfake: this PyTorch has no {patch.target.replace(':', '.')}")
            value = patch.make(original)
            if patch.copies and isinstance(place.owner, ModuleType):
                copied[id(original)] = (original, value)
            self._put(place, value)
        if copied:
            self._replace_copies(copied)

    def _put(self, place: _Place, value: Any) -> None:
        self._applied.append(_Applied(place, place.raw(), value))
        place.put(value)

    def _replace_copies(self, copied: dict[int, tuple[Any, Any]]) -> None:
        for module in _modules():
            names = [(name, copied[id(value)]) for name, value in list(vars(module).items()) if id(value) in copied]
            for name, (original, value) in names:
                if vars(module)[name] is original:
                    self._put(_Place(module, name, is_item=False), value)

    def _undo(self) -> None:
        while self._applied:
            self._applied.pop().undo()


def _modules() -> Iterator[ModuleType]:
    """All imported modules but our own."""
    for name, module in list(sys.modules.items()):
        if isinstance(module, ModuleType) and name.partition(".")[0] != "torchfake":
            yield module


class _Finder(MetaPathFinder):
    """Delegates to the other finders, and calls `on_import` when an expected module has been executed."""

    def __init__(self, waiting: set[str], on_import: Callable[[_Finder, str], None]) -> None:
        self._waiting = waiting
        self._on_import = on_import
        self._searching = threading.local()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        searching: set[str] = vars(self._searching).setdefault("names", set())
        if fullname not in self._waiting or fullname in searching:
            return None
        searching.add(fullname)  # the search below calls this method again
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            searching.remove(fullname)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            # Only after execution: programs also search for modules without importing them.
            if fullname in self._waiting:
                self._waiting.discard(fullname)
                self._on_import(self, fullname)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
