"""Checks of a program on numbers that follow from stand-ins: they pass, and are reported.

`losses.append(loss.item())` leaves numbers that Python computes with, and `assert losses[-1] < losses[0]` compares two
stand-ins. `torchfake run` compiles the program so that a failing check first asks `_holds`: whether its condition may
depend on a line that got a stand-in. Checks are `assert` statements, conditions that guard a `raise` or an exit with an
error, and calls of functions called `assert...` as statements. A check that no stand-in reaches fails as in Python.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from torchfake._reading_code import HOLDS
from torchfake._stand_in_flow import StandInFlow
from torchfake.modes import current_mode, fake_mode
from torchfake.stand_ins import CHECK


class _Checks(ast.NodeTransformer):
    """Adds the question to every check. Positions stay those of the program, for tracebacks."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.count = 0

    def _question(self, check: ast.expr) -> ast.expr:
        self.count += 1
        place = (check.lineno, check.end_lineno or 0, check.col_offset, check.end_col_offset or 0)
        call = ast.Call(ast.Name(HOLDS, ast.Load()), [ast.Constant(part) for part in (self._path, *place)], [])
        for node in (call, call.func, *call.args):
            ast.copy_location(node, check)
        return call

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        """`assert a, b` becomes `assert a or _holds(...), b`."""
        self.generic_visit(node)
        node.test = ast.copy_location(ast.BoolOp(ast.Or(), [node.test, self._question(node.test)]), node.test)
        return node

    def visit_If(self, node: ast.If) -> ast.AST:
        """`if a: raise b` becomes `if a and not _holds(...): raise b`."""
        self.generic_visit(node)
        if _ends_in_error(node.body):
            fails = ast.copy_location(ast.UnaryOp(ast.Not(), self._question(node.test)), node.test)
            node.test = ast.copy_location(ast.BoolOp(ast.And(), [node.test, fails]), node.test)
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        """`assert_close(a, b)` becomes that, and `except AssertionError: if not _holds(...): raise`."""
        self.generic_visit(node)
        called = node.value.func if isinstance(node.value, ast.Call) else None
        name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        if not name.startswith("assert"):
            return node
        fails = ast.UnaryOp(ast.Not(), self._question(node.value))
        kind = ast.Name("AssertionError", ast.Load())
        handler = ast.ExceptHandler(kind, None, [ast.If(fails, [ast.Raise()], [])])
        checked = ast.Try([node], [handler], [], [])
        for part in ast.walk(checked):
            if not hasattr(part, "lineno") and isinstance(part, (ast.stmt, ast.expr, ast.ExceptHandler)):
                ast.copy_location(part, node.value)
        return checked


def _ends_in_error(body: Sequence[ast.stmt]) -> bool:
    """Whether a branch ends in a `raise`, or in an exit with an error."""
    last = body[-1]
    if isinstance(last, ast.Raise):
        return True
    call = last.value if isinstance(last, ast.Expr) else None
    if not isinstance(call, ast.Call) or len(call.args) != 1 or not isinstance(call.args[0], ast.Constant):
        return False
    return ast.unparse(call.func) in ("sys.exit", "exit", "quit", "os._exit") and call.args[0].value not in (0, None)


class AssumedChecks:
    """The checks of one program: compiles its files, and answers for their checks that fail."""

    def __init__(self) -> None:
        self._sources: dict[str, bytes] = {}
        self._flow: StandInFlow | None = None

    def compile(self, source: bytes, path: str) -> CodeType:
        """Compiles a file of the program, with questions at its checks."""
        checks = _Checks(path)
        tree = checks.visit(ast.parse(source, path))
        self._sources[path] = source
        self._flow = None
        return compile(tree if checks.count else source, path, "exec", dont_inherit=True)

    @contextlib.contextmanager
    def active(self, folder: str) -> Iterator[None]:
        """While entered, compiled files find `_holds`, and modules imported from `folder` are compiled like them."""
        finder = _Finder(self, str(Path(folder).resolve()))
        builtin: dict[str, Any] = vars(builtins)
        builtin[HOLDS] = self._holds
        sys.meta_path.insert(0, finder)
        try:
            yield
        finally:
            sys.meta_path.remove(finder)
            del builtin[HOLDS]

    def _holds(self, path: str, *place: int) -> bool:
        """Whether a check that failed may depend on stand-ins: it then passes."""
        mode = current_mode()
        if not isinstance(mode, fake_mode) or not mode._state.has_stand_ins:
            return False
        if self._flow is None:
            self._flow = StandInFlow({file: ast.parse(source) for file, source in self._sources.items()})
        check = self._flow.at(path, place)
        lines = {file: mode.stand_ins.lines_in(file) for file in self._sources}
        size_lines = {file: mode.stand_ins.lines_in(file, about_sizes=True) for file in self._sources}
        if check is None or not self._flow.depends_on(check, lines, size_lines):
            return False
        mode.stand_ins.hear(CHECK, "passes, since it follows from stand-ins")
        return True


class _Loader(importlib.machinery.SourceFileLoader):
    """Compiles a module of the program. Python's cache of compiled modules is neither read nor written."""

    def __init__(self, checks: AssumedChecks, fullname: str, path: str) -> None:
        super().__init__(fullname, path)
        self._checks = checks

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self._checks.compile(self.get_data(path), path)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules in the program's folder."""

    def __init__(self, checks: AssumedChecks, folder: str) -> None:
        self._checks = checks
        self._folder = folder + os.sep

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or type(spec.loader) is not importlib.machinery.SourceFileLoader or spec.origin is None:
            return None
        if not os.path.realpath(spec.origin).startswith(self._folder) or "site-packages" in spec.origin:
            return None
        spec.loader = _Loader(self._checks, fullname, spec.origin)
        return spec
