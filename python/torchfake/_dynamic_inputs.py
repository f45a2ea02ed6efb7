"""`--dynamic NAME.DIM=SYMBOL`: model inputs with symbolic sizes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from torchfake import _C
from torchfake._models import ModelSpecError

__all__ = ["DynamicSize", "make_dynamic", "parse_dynamic"]

_FORM = re.compile(r"(?P<input>[A-Za-z_]\w*)\.(?P<dim>-?\d+)=(?P<symbol>[A-Za-z_]\w*)")


@dataclass(frozen=True)
class DynamicSize:
    """An input dimension with a symbolic size."""

    input: str
    dim: int
    symbol: str

    def __str__(self) -> str:
        return f"--dynamic {self.input}.{self.dim}={self.symbol}"


def parse_dynamic(text: str) -> DynamicSize:
    """Parses a dynamic size.

    >>> parse_dynamic("input_ids.1=seq")
    DynamicSize(input='input_ids', dim=1, symbol='seq')

    Raises:
        ModelSpecError: `text` has another form.
    """
    found = _FORM.fullmatch(text)
    if found is None:
        raise ModelSpecError(f"--dynamic {text}: expected NAME.DIM=SYMBOL, such as input_ids.0=batch")
    return DynamicSize(found["input"], int(found["dim"]), found["symbol"])


def make_dynamic(
    env: _C.ShapeEnv, model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], sizes: Sequence[DynamicSize]
) -> None:
    """Makes sizes of the fakes passed to `model` symbols of `env`, with the current sizes as hints.

    Raises:
        ModelSpecError: There is no such input or dimension, its size is 0 or 1, or one symbol was given two sizes.
    """
    inputs = inspect.signature(model.forward).bind(*args, **kwargs).arguments
    names: dict[str, dict[int, str]] = {}
    hints: dict[str, int] = {}
    for size in sizes:
        tensor = inputs.get(size.input)
        if not isinstance(tensor, Tensor):
            raise ModelSpecError(f"{size}: {type(model).__name__} is called with {', '.join(inputs)}")
        if not -tensor.dim() <= size.dim < tensor.dim():
            raise ModelSpecError(f"{size}: {size.input} has {tensor.dim()} dimensions")
        dim = size.dim % tensor.dim()
        hint = int(tensor.shape[dim])
        if hint < 2:
            raise ModelSpecError(
                f"{size}: sizes of 0 and 1 are special and cannot stand for others; the size is {hint}"
            )
        if hints.setdefault(size.symbol, hint) != hint:
            raise ModelSpecError(
                f"{size}: {size.symbol} is {hints[size.symbol]} elsewhere, and the size here is {hint}"
            )
        if names.setdefault(size.input, {}).setdefault(dim, size.symbol) != size.symbol:
            raise ModelSpecError(f"{size}: the dimension was given twice")
    for name, of_input in names.items():
        _C.make_symbolic(inputs[name], env, of_input, name)
