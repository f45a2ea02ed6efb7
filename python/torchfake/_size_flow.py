"""Whether a number that a program reads may become a size, as its source tells: for the report on stand-ins.

A stand-in for a logged number affects nothing; one that ends up in `torch.zeros(n)` decides how much memory is used.
The number is followed through assignments, arithmetic, returns and calls of functions of the same file.
"""

from __future__ import annotations

import ast
import functools
import linecache
from types import CodeType, FrameType

#: Functions and methods whose integers are sizes or counts of elements.
_OF_SIZES = [
    "zeros",
    "ones",
    "empty",
    "full",
    "rand",
    "randn",
    "randint",
    "randperm",
    "arange",
    "linspace",
    "eye",
    "range",
    "new_zeros",
    "new_ones",
    "new_empty",
    "new_full",
    "view",
    "reshape",
    "expand",
    "repeat",
    "repeat_interleave",
    "tile",
    "split",
    "chunk",
    "narrow",
    "unfold",
    "unflatten",
    "pad",
    "interpolate",
    "topk",
    "multinomial",
    "one_hot",
    "bincount",
    "Linear",
    "Embedding",
    "Conv1d",
    "Conv2d",
    "LSTM",
    "GRU",
    "slice",
]

#: Functions that return an integer if given one.
_PASSING = ("int", "abs", "max", "min", "sum", "round", "ceil", "floor", "tuple", "list", "sorted", "Size")

#: A number that has been passed on more often than this is not followed.
_DEPTH = 8


class _Flow:
    """The uses of values in one file."""

    def __init__(self, source: str) -> None:
        self.tree = ast.parse(source)
        self.parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}
        self.seen: set[ast.AST] = set()

    def at(self, place: tuple[int | None, ...]) -> ast.AST | None:
        """The expression at these positions: first and last line, first and last column."""
        for node in self.parents:
            is_there = isinstance(node, ast.expr) and place == (
                node.lineno,
                node.end_lineno,
                node.col_offset,
                node.end_col_offset,
            )
            if is_there:
                return node
        return None

    def becomes_size(self, node: ast.AST, depth: int = 0) -> bool:
        """Whether the value of an expression may become a size."""
        parent = self.parents.get(node)
        if parent is None or node in self.seen or depth > _DEPTH:
            return False
        self.seen.add(node)
        if isinstance(parent, ast.Slice):
            return True
        if isinstance(parent, ast.keyword):
            return self.becomes_size(parent, depth)
        if isinstance(parent, ast.Call):
            return node is not parent.func and self._is_argument_of_size(parent, node, depth)
        if isinstance(parent, ast.BinOp):
            return not isinstance(parent.op, ast.Div) and self.becomes_size(parent, depth)
        if isinstance(parent, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr)):
            targets = parent.targets if isinstance(parent, ast.Assign) else [parent.target]
            return any(self._target_becomes_size(target, depth) for target in targets)
        if isinstance(parent, (ast.For, ast.comprehension)):
            return node is parent.iter and self._target_becomes_size(parent.target, depth)
        if isinstance(parent, ast.Return):
            return self._calls_become_sizes(parent, depth)
        if isinstance(parent, ast.Subscript):
            return node is parent.value and self.becomes_size(parent, depth)
        passes_on = (ast.List, ast.Tuple, ast.Starred, ast.IfExp, ast.ListComp, ast.GeneratorExp, ast.UnaryOp)
        return isinstance(parent, passes_on) and self.becomes_size(parent, depth)

    def _is_argument_of_size(self, call: ast.Call, node: ast.AST, depth: int) -> bool:
        name = _name_of(call.func)
        if name in _OF_SIZES:
            return True
        if name in _PASSING:
            return self.becomes_size(call, depth)
        for function in ast.walk(self.tree):
            if isinstance(function, ast.FunctionDef) and function.name == name:
                names = [argument.arg for argument in function.args.args]
                names = names[1:] if names[:1] == ["self"] else names
                given = node.arg if isinstance(node, ast.keyword) else None
                if node in call.args[: len(names)]:
                    given = names[call.args.index(node)]
                if given is not None and self._name_becomes_size(given, function, depth + 1):
                    return True
        return False

    def _target_becomes_size(self, target: ast.AST, depth: int) -> bool:
        if isinstance(target, (ast.Tuple, ast.List)):
            return any(self._target_becomes_size(part, depth) for part in target.elts)
        if isinstance(target, ast.Attribute):
            return self._name_becomes_size(target.attr, self.tree, depth + 1)
        return isinstance(target, ast.Name) and self._name_becomes_size(target.id, self._scope_of(target), depth + 1)

    def _name_becomes_size(self, name: str, scope: ast.AST, depth: int) -> bool:
        uses = (node for node in ast.walk(scope) if isinstance(node, (ast.Name, ast.Attribute)))
        loaded = [node for node in uses if isinstance(node.ctx, ast.Load) and _name_of(node) == name]
        return any(self.becomes_size(node, depth) for node in loaded)

    def _calls_become_sizes(self, node: ast.AST, depth: int) -> bool:
        function = self._scope_of(node)
        name = getattr(function, "name", None)
        calls = [call for call in ast.walk(self.tree) if isinstance(call, ast.Call) and _name_of(call.func) == name]
        return name is not None and any(self.becomes_size(call, depth + 1) for call in calls)

    def _scope_of(self, node: ast.AST) -> ast.AST:
        while node in self.parents and not isinstance(node, (ast.FunctionDef, ast.Lambda)):
            node = self.parents[node]
        return node


def _name_of(called: ast.AST) -> str:
    return called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")


def may_become_size(frame: FrameType) -> bool:
    """Whether an integer that `frame` is reading may become a size, or is read as one."""
    return _may_become_size(frame.f_code, frame.f_lasti)


@functools.lru_cache(maxsize=1024)
def _may_become_size(code: CodeType, offset: int) -> bool:
    positions = getattr(code, "co_positions", None)
    place = next(iter(list(positions())[offset // 2 : offset // 2 + 1]), None) if positions is not None else None
    if place is None:
        return False
    try:
        flow = _Flow("".join(linecache.getlines(code.co_filename)))
    except (SyntaxError, ValueError):
        return False
    node = flow.at(place)
    if isinstance(node, ast.Call) and _name_of(node.func) in _OF_SIZES:
        return True  # torch.zeros(n) of a tensor
    if isinstance(node, ast.Subscript):
        return any(isinstance(part, ast.Slice) for part in ast.walk(node.slice))  # x[:n] of a tensor
    return node is not None and flow.becomes_size(node)
