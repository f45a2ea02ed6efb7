"""Whether an expression of a program may depend on lines that got stand-ins, as its source tells.

The counterpart of `_size_flow`, in the other direction: from an expression back through assignments, arguments,
returns, attributes and changes of containers. Names are followed within the files of the program and without regard to
the order of statements, so this may say yes where no stand-in arrives, and says no only if none can arrive by name.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)

#: Nodes that say nothing about values. All trees share them.
_MARKS = (ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop)

#: What is asked about a tensor or a container, whatever the values in it.
_ABOUT_SIZES = ("len", "isinstance", "type", "shape", "size", "numel", "nelement", "dim", "ndim", "dtype", "device")

#: Where a name lives: the function that binds it, or the module, and the name.
_Place = tuple[ast.AST, str]

#: By file.
Lines = dict[str, set[int]]


class StandInFlow:
    """The sources of values in the files of a program."""

    def __init__(self, files: dict[str, ast.Module]) -> None:
        self._files = {tree: file for file, tree in files.items()}
        self._parents = {
            child: node
            for tree in self._files
            for node in ast.walk(tree)
            for child in ast.iter_child_nodes(node)
            if not isinstance(child, _MARKS)
        }
        #: The function, or else the module, around every node.
        self._scopes: dict[ast.AST, ast.AST] = {}
        self._bound: dict[ast.AST, set[str]] = defaultdict(set)
        self._imported: dict[ast.AST, set[str]] = defaultdict(set)
        self._sources: dict[_Place, list[ast.expr]] = defaultdict(list)
        self._attributes: dict[str, list[ast.expr]] = defaultdict(list)
        self._results: dict[str, list[ast.expr]] = defaultdict(list)
        self._conditions: set[ast.AST] = set()
        self._calls: dict[str, list[ast.Call]] = defaultdict(list)
        for node in self._parents:  # in the order of the tree: parents come first
            self._find_names(node)
        for node in self._parents:
            self._add(node)
            if isinstance(node, _FUNCTIONS):
                self._add_arguments(node)

    def at(self, file: str, place: tuple[int, ...]) -> ast.expr | None:
        """The expression at these positions: first and last line, first and last column."""
        for node in self._parents:
            if isinstance(node, ast.expr):
                positions = (node.lineno, node.end_lineno, node.col_offset, node.end_col_offset)
                if positions == place and self._file_of(node) == file:
                    return node
        return None

    def depends_on(self, node: ast.expr, lines: Lines, size_lines: Lines) -> bool:
        """Whether the value of `node` may depend on an expression at one of `lines`.

        Questions about sizes, such as `len(x)`, depend on expressions at `size_lines` and on the conditions under which
        `x` has been changed.
        """
        seen: set[tuple[ast.AST, bool]] = set()
        waiting: list[tuple[ast.AST, bool]] = [(node, False)]
        while waiting:
            current, is_size = waiting.pop()
            if (current, is_size) in seen:
                continue
            seen.add((current, is_size))
            is_size = is_size or _asks_about_sizes(current)
            if isinstance(current, ast.expr):
                found = (size_lines if is_size else lines).get(self._file_of(current), set())
                if not found.isdisjoint(range(current.lineno, _last_line(current) + 1)):
                    return True
            waiting += [(source, is_size and source not in self._conditions) for source in self._sources_of(current)]
        return False

    def _sources_of(self, node: ast.AST) -> Iterator[ast.AST]:
        """The expressions from which the value of `node` is computed, and the conditions for that."""
        if isinstance(node, ast.Name):
            yield from self._sources[self._place_of(node)]
            if node.id in self._imported[self._module_of(node)]:  # from another file of the program, perhaps
                for module in self._files:
                    yield from self._sources[module, node.id]
        elif isinstance(node, ast.Attribute):
            yield from self._attributes[node.attr]
        elif isinstance(node, ast.Call):
            yield from self._results[_last_name(node.func)]
        if not isinstance(node, ast.Lambda):
            yield from ast.iter_child_nodes(node)

    def _find_names(self, node: ast.AST) -> None:
        """Records the scope of `node`, and the names that it binds there."""
        parent = self._parents[node]
        scope = parent if isinstance(parent, (*_FUNCTIONS, ast.Module)) else self._scopes[parent]
        self._scopes[node] = scope
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            self._bound[scope].add(node.id)
        elif isinstance(node, ast.arg):
            self._bound[scope].add(node.arg)
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            self._bound[scope] -= set(node.names)
        elif isinstance(node, ast.alias):
            self._imported[self._module_of(node)].add(node.asname or node.name.partition(".")[0])
        elif isinstance(node, ast.Call):
            self._calls[_last_name(node.func)].append(node)

    def _add(self, node: ast.AST) -> None:
        """Records what a statement or an expression assigns or changes."""
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._assign(target, node.value)
        elif isinstance(node, (ast.AnnAssign, ast.AugAssign, ast.NamedExpr)) and node.value is not None:
            self._assign(node.target, node.value)
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
            self._assign(node.target, node.iter)
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            self._assign(node.optional_vars, node.context_expr)
        elif isinstance(node, (ast.Return, ast.Yield, ast.YieldFrom)) and node.value is not None:
            self._results[getattr(self._scopes[node], "name", "")] += [node.value, *self._conditions_of(node)]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            for argument in [*node.args, *(keyword.value for keyword in node.keywords)]:
                self._assign(node.func.value, argument)  # losses.append(x), history["loss"].append(x), meter.update(x)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            for part in target.elts:
                self._assign(part, value)
        elif isinstance(target, (ast.Starred, ast.Subscript)):
            self._assign(target.value, value)
        elif isinstance(target, (ast.Attribute, ast.Name)) and not self._is_imported(target):
            found = (
                self._sources[self._place_of(target)] if isinstance(target, ast.Name) else self._attributes[target.attr]
            )
            found += [value, *self._conditions_of(target)]

    def _is_imported(self, node: ast.expr) -> bool:
        """Whether this is a module, or a part of it: np.mean(x) does not change `np`."""
        while isinstance(node, ast.Attribute):
            node = node.value
        return isinstance(node, ast.Name) and node.id in self._imported[self._module_of(node)]

    def _conditions_of(self, node: ast.AST) -> Iterator[ast.expr]:
        """The conditions under which a statement is executed."""
        parent = self._parents.get(node)
        while parent is not None and not isinstance(parent, _FUNCTIONS):
            if isinstance(parent, (ast.If, ast.While)):
                self._conditions.add(parent.test)
                yield parent.test
            parent = self._parents.get(parent)

    def _add_arguments(self, function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> None:
        """Records what the calls of a function, method or class of the file pass to it."""
        names = [argument.arg for argument in function.args.args]
        owner = self._parents[function]
        called = self._calls[getattr(function, "name", "")]
        if isinstance(owner, ast.ClassDef):
            names = names[1:]
            called = called + self._calls[owner.name] * (getattr(function, "name", "") == "__init__")
        elif isinstance(owner, ast.Assign) and isinstance(function, ast.Lambda):  # area = lambda x: ...
            for target in owner.targets:
                called = called + self._calls[_last_name(target)]
                self._results[_last_name(target)].append(function.body)
        for call in called:
            for name, argument in zip(names, call.args, strict=False):
                self._sources[function, name].append(argument)
            for keyword in call.keywords:
                if keyword.arg is not None:
                    self._sources[function, keyword.arg].append(keyword.value)

    def _place_of(self, node: ast.Name) -> _Place:
        """Where a name lives: in the innermost function that binds it, or in the module."""
        scope = self._scopes[node]
        while not isinstance(scope, ast.Module) and node.id not in self._bound[scope]:
            scope = self._scopes[scope]
        return scope, node.id

    def _module_of(self, node: ast.AST) -> ast.AST:
        while node in self._parents:
            node = self._scopes[node]
        return node

    def _file_of(self, node: ast.AST) -> str:
        return self._files[self._module_of(node)]  # type: ignore[index]


def _last_name(called: ast.AST) -> str:
    return called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")


def _asks_about_sizes(node: ast.AST) -> bool:
    asked = node.func if isinstance(node, ast.Call) else node if isinstance(node, ast.Attribute) else None
    return asked is not None and _last_name(asked) in _ABOUT_SIZES


def _last_line(node: ast.expr) -> int:
    return node.lineno if isinstance(node, ast.Lambda) else node.end_lineno or node.lineno
