"""Step 2: a call as a line of Python: random ones, and variations of accepted ones."""

from __future__ import annotations

import ast
import random
from dataclasses import dataclass
from typing import Any

import torch

from .arguments import Argument, make_argument, make_scene
from .tensors import DTYPES, LAYOUTS, TensorText, random_shape, wrong


@dataclass(frozen=True)
class Call:
    """`overload` is its name after torch.ops.aten; all arguments after the first `positional` are passed by name."""

    overload: str
    names: tuple[str, ...]
    arguments: tuple[Argument, ...]
    positional: int

    def texts(self) -> list[tuple[str | None, str]]:
        """Each argument as text, with its name if it is passed by name."""
        return [
            (None if i < self.positional else name, text_of(value))
            for i, (name, value) in enumerate(zip(self.names, self.arguments, strict=True))
        ]

    def __str__(self) -> str:
        given = (text if name is None else f"{name}={text}" for name, text in self.texts())
        return f"torch.ops.aten.{self.overload}({', '.join(given)})"

    def replaced(self, position: int, value: Argument) -> Call:
        arguments = (*self.arguments[:position], value, *self.arguments[position + 1 :])
        return Call(self.overload, self.names, arguments, self.positional)


def text_of(value: Argument) -> str:
    return f"[{', '.join(map(str, value))}]" if isinstance(value, list) else str(value)


def parsed(line: str) -> Call:
    """Parses the call made by a line. Raises ValueError if it is not a call of `torch.ops.aten`."""
    tree = ast.parse(line.strip(), mode="eval").body
    prefix = "torch.ops.aten."
    if not isinstance(tree, ast.Call) or not ast.unparse(tree.func).startswith(prefix):
        raise ValueError(f"a line has to be one call of torch.ops.aten.NAME.OVERLOAD, got: {line}")
    names = tuple(f"#{i}" for i in range(len(tree.args))) + tuple(str(k.arg) for k in tree.keywords)
    values = tuple(map(ast.unparse, (*tree.args, *(k.value for k in tree.keywords))))
    return Call(ast.unparse(tree.func).removeprefix(prefix), names, values, len(tree.args))


def all_overloads() -> list[str]:
    """Every overload of aten that the dispatcher knows: "add.Tensor", "relu.default"."""
    names = sorted(torch._C._dispatch_get_all_op_names())
    found = (name.removeprefix("aten::").partition(".") for name in names if name.startswith("aten::"))
    return [f"{name}.{overload or 'default'}" for name, _, overload in found]


def operator(overload: str) -> Any:
    name, _, which = overload.partition(".")
    return getattr(getattr(torch.ops.aten, name), which)


def random_call(rng: random.Random, overload: str) -> Call:
    arguments = operator(overload)._schema.arguments
    scene = make_scene(rng, overload)
    values = tuple(make_argument(scene, argument, str(argument.real_type)) for argument in arguments)
    positional = sum(not argument.kwarg_only for argument in arguments)
    return Call(overload, tuple(argument.name for argument in arguments), values, positional)


def _tensor_positions(call: Call) -> list[int]:
    return [i for i, value in enumerate(call.arguments) if isinstance(value, TensorText | list)]


def _wrong_number(rng: random.Random, text: str) -> str | None:
    """Other numbers instead of the given ones, another length of their list; None for any other text."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return None
    if isinstance(value, bool) or value is None:
        return str(not value) if value is not None else None
    if isinstance(value, int | float):
        return str(rng.choice((-1, 0, 1, 3, 7, -5, 100, 2**31, -(2**31), 2**62)))
    if isinstance(value, list):
        changed: list[Any] = list(value)
        match rng.randrange(4):
            case 0 if changed:
                changed.pop()
            case 1:
                changed.append(rng.choice((0, 1, 5)))
            case 2:
                changed = []
            case _ if changed:
                changed[rng.randrange(len(changed))] = rng.choice((-1, 0, 2, 7, -7, 2**31))
        return str(changed)
    return None


def with_one_wrong(rng: random.Random, call: Call) -> Call:
    """The call with one argument changed, probably to one that must be refused."""
    position = rng.randrange(len(call.arguments)) if call.arguments else 0
    value = call.arguments[position] if call.arguments else ""
    if isinstance(value, TensorText):
        # None instead of a tensor reaches an operator as an undefined tensor.
        return call.replaced(position, wrong(rng, value) if rng.random() < 0.95 else "None")
    if isinstance(value, list):
        changed: list[TensorText] = list(value)
        match rng.randrange(4):
            case 0:
                changed = []
            case 1:
                changed = changed[:-1]
            case 2:
                changed = [*changed, TensorText(random_shape(rng))]
            case _ if changed:
                at = rng.randrange(len(changed))
                changed[at] = wrong(rng, changed[at])
        return call.replaced(position, changed)
    number = _wrong_number(rng, value)
    if number is not None:
        return call.replaced(position, number)
    positions = _tensor_positions(call)
    if not positions:
        return call
    position = rng.choice(positions)
    value = call.arguments[position]
    if isinstance(value, TensorText):
        return call.replaced(position, wrong(rng, value))
    return call.replaced(position, [])


def out_positions(call: Call) -> list[int]:
    """The positions of the tensors to write to."""
    arguments = operator(call.overload)._schema.arguments
    return [i for i, argument in enumerate(arguments) if argument.is_out]


def with_other_outs(rng: random.Random, call: Call, results: list[list[Any]]) -> Call:
    """The call with other tensors to write to; `results` are those returned by the real call, as rows.

    Correct in size and dtype, or with another size, dtype or layout.
    """
    positions = out_positions(call)
    kinds = ("right", "layout", "dtype", "size", "empty", "full", "0-dim")
    for position, (sizes, _, dtype, *_) in zip(positions, results, strict=False):
        if not isinstance(call.arguments[position], TensorText):
            continue
        shape, dtype = tuple(sizes), str(dtype).removeprefix("torch.")
        dtype = dtype if dtype in DTYPES else "float32"
        right = TensorText(shape, dtype, fill=rng.choice(("ones", "empty")))
        made = {
            "right": right,
            "layout": TensorText(shape, dtype, rng.choice(LAYOUTS), "ones"),
            "dtype": TensorText(shape, rng.choice(DTYPES), fill="ones"),
            "size": TensorText(random_shape(rng), dtype, fill="ones"),
            "empty": TensorText((0,), rng.choice((dtype, rng.choice(DTYPES))), fill="empty"),
            "full": TensorText((*shape, 2), dtype, fill="ones"),
            "0-dim": TensorText((), dtype, fill="ones"),
        }
        call = call.replaced(position, made[rng.choice(kinds)])
    return call
