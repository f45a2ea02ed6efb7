"""The quantity that `torchfake fit --vary` varies: an option of the program, or an environment variable.

`batch_size` is matched with the options of the program's own parser (`argparse`, click or typer), whether spelled
`--batch-size`, `--batch_size` or with that destination name. `--batch-size` is passed on the command line as written,
`env:BATCH` (or `BATCH`) in the environment. If the program's arguments contain `{batch_size}`, it is replaced there.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

_MOST_VALUES = 1 << 20


class BadRangeError(ValueError):
    """The argument of `--vary` is not a name with values."""


@dataclass
class Varied:
    """A name and its values, in ascending order."""

    name: str
    values: Sequence[int]
    is_environment: bool = False
    #: Whether the program used the value, and its options; set in the process that ran it.
    was_taken: bool = False
    seen: list[str] = field(default_factory=list)

    @classmethod
    def parse(cls, text: str) -> Varied:
        """`batch_size=1..512`, `batch_size=8..512:8`, `BATCH=1,2,4`.

        Raises:
            BadRangeError: The text has another form.
        """
        name, _, values = text.rpartition("=")
        if not name or not values:
            raise BadRangeError(f"--vary {text}: expected NAME=FIRST..LAST, as in batch_size=1..512")
        is_environment = name.startswith("env:") or (name.isupper() and not name.startswith("-"))
        return cls(name.removeprefix("env:"), _values(text, values), is_environment)

    def describe(self, value: int) -> str:
        """The value with its name, as passed to the program."""
        return f"{self.name}={value}" if self.name.startswith("-") or self.is_environment else f"{self.name} = {value}"

    @contextlib.contextmanager
    def given(self, value: int, arguments: list[str]) -> Iterator[list[str]]:
        """Passes `value` to the program; yields the arguments to start it with."""
        hole = "{" + self.name.lstrip("-") + "}"
        if any(hole in argument for argument in arguments):
            self.was_taken = True
            yield [argument.replace(hole, str(value)) for argument in arguments]
        elif self.is_environment:
            before = os.environ.get(self.name)
            os.environ[self.name] = str(value)
            self.was_taken = True
            try:
                yield arguments
            finally:
                if before is None:
                    del os.environ[self.name]
                else:
                    os.environ[self.name] = before
        elif self.name.startswith("-"):
            self.was_taken = True
            yield [f"{self.name}={value}", *without_option(arguments, [self.name])]
        else:
            with self._found_by_argparse(value), self._found_by_click(value):
                yield arguments

    @contextlib.contextmanager
    def _found_by_argparse(self, value: int) -> Iterator[None]:
        parse = argparse.ArgumentParser.parse_known_args

        @functools.wraps(parse)
        def with_value(
            parser: argparse.ArgumentParser, args: Sequence[str] | None = None, *rest: Any, **keywords: Any
        ) -> Any:
            given = list(sys.argv[1:] if args is None else args)
            for action in parser._actions:
                self.seen += action.option_strings
                if action.option_strings and self._is_named(action.dest, action.option_strings):
                    longest = max(action.option_strings, key=len)
                    given = [f"{longest}={value}", *without_option(given, action.option_strings)]
                    self.was_taken = True
                    break
            return parse(parser, given, *rest, **keywords)

        argparse.ArgumentParser.parse_known_args = with_value  # type: ignore[assignment,method-assign]
        try:
            yield
        finally:
            argparse.ArgumentParser.parse_known_args = parse  # type: ignore[method-assign]

    @contextlib.contextmanager
    def _found_by_click(self, value: int) -> Iterator[None]:
        with contextlib.ExitStack() as patched:
            for module in ("click.core", "typer._click.core"):  # typer has a copy of click
                if importlib.util.find_spec(module.partition(".")[0]) is not None:
                    with contextlib.suppress(ModuleNotFoundError):
                        patched.enter_context(self._found_by_command(importlib.import_module(module).Command, value))
            yield

    @contextlib.contextmanager
    def _found_by_command(self, command: Any, value: int) -> Iterator[None]:
        parse = command.parse_args

        @functools.wraps(parse)
        def with_value(this: Any, context: Any, args: list[str]) -> Any:
            given = list(args)
            for option in this.params:
                if option.param_type_name != "option":
                    continue
                self.seen += option.opts
                if self._is_named(option.name or "", option.opts):
                    given = [f"{max(option.opts, key=len)}={value}", *without_option(given, option.opts)]
                    self.was_taken = True
                    break
            return parse(this, context, given)

        command.parse_args = with_value
        try:
            yield
        finally:
            command.parse_args = parse

    def _is_named(self, destination: str, options: Sequence[str]) -> bool:
        wanted = _plain(self.name)
        return wanted == _plain(destination) or any(wanted == _plain(option) for option in options)


def _plain(name: str) -> str:
    return name.lstrip("-").replace("-", "_").lower()


def without_option(arguments: Sequence[str], spellings: Sequence[str]) -> list[str]:
    """The arguments without an option and its value."""
    kept: list[str] = []
    skip = False
    for position, argument in enumerate(arguments):
        if argument == "--":
            return kept + list(arguments[position:])
        if skip:
            skip = False
        elif argument in spellings:
            skip = True
        elif not argument.startswith(tuple(f"{spelling}=" for spelling in spellings)):
            kept.append(argument)
    return kept


def _values(text: str, values: str) -> Sequence[int]:
    found = re.fullmatch(r"(\d+)\.\.(\d+)(?::(\d+))?", values)
    if found is not None:
        first, last, step = int(found[1]), int(found[2]), int(found[3] or 1)
        if last < first or step == 0 or (last - first) // step >= _MOST_VALUES:
            raise BadRangeError(f"--vary {text}: expected at most {_MOST_VALUES:,} values, the last above the first")
        return range(first, last + 1, step)
    if re.fullmatch(r"\d+(,\d+)*", values):
        return sorted({int(value) for value in values.split(",")})
    raise BadRangeError(f"--vary {text}: '{values}' is not a range; write 1..512, 8..512:8 or 1,2,4")
