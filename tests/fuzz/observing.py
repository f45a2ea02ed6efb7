"""Step 3: makes one call and describes its result or its refusal."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from .calls import Call, operator

#: The ways to make a call on fakes: the device they claim, and whether their values are known.
VARIANTS = ("cpu known", "cpu unknown", "cuda known", "cuda unknown")
REAL = "real"
KNOWN_ELEMENTS = 16384

#: Parts of error texts that vary between runs: addresses, and numbers that a kernel found in memory.
_ADDRESS = re.compile(r"0x[0-9a-f]+|-?\d{9,}")


@dataclass(frozen=True)
class Observation:
    """The result of a call: a row per result and then per argument, or its exception's type names and text."""

    rows: list[list[Any]] | None
    results: int = 0
    types: tuple[str, ...] = ()
    text: str = ""
    #: Whether a result is a real tensor although the call was on fakes.
    has_real: bool = False

    @property
    def raised(self) -> str:
        return f"{self.types[0]}: {self.text[:300]}" if self.types else ""

    def __str__(self) -> str:
        return self.raised or f"{(self.rows or [])[: self.results]}"


def observe(call: Call, variant: str) -> list[Observation]:
    """Makes the call once for real, or twice on fakes: the second time the cache may have the result."""
    if variant == REAL:
        return [_observe_once(call, "cpu", lambda _: True)]
    import torchfake

    device, values = variant.split()
    mode = torchfake.fake_mode(known_values_limit=KNOWN_ELEMENTS if values == "known" else 0)
    with mode, torch.device(device):
        return [_observe_once(call, device, torchfake.is_fake) for _ in range(2)]


def _observe_once(call: Call, device: str, is_right: Callable[[torch.Tensor], bool]) -> Observation:
    names = {"torch": torch, "device": device}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        try:
            values = [(name, eval(text, names)) for name, text in call.texts()]
            arguments = [value for name, value in values if name is None]
            keywords = {name: value for name, value in values if name is not None}
            results = operator(call.overload)(*arguments, **keywords)
            given = pytree.tree_leaves((arguments, keywords))
            leaves = pytree.tree_leaves(results)
            rows = [*(_row(x, given) for x in leaves), *(_row(x, []) for x in given)]
            has_real = not all(is_right(x) for x in leaves if isinstance(x, torch.Tensor))
            return Observation(rows, len(leaves), has_real=has_real)
        except BaseException as error:  # a pybind11 error or a SystemError is a finding and must not end the run
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            types = tuple(kind.__name__ for kind in type(error).__mro__[:-2]) or (type(error).__name__,)
            return Observation(None, 0, types, _ADDRESS.sub("0x", str(error)))


def _row(value: Any, given: list[Any]) -> list[Any]:
    """A tensor: sizes, strides that matter, dtype, device, layout, and which argument it is."""
    if not isinstance(value, torch.Tensor):
        return [type(value).__name__, str(value) if isinstance(value, bool | int | float | str) else ""]
    if value.layout != torch.strided or value.is_nested or value.is_quantized:
        return [list(value.shape), str(value.layout), str(value.dtype), value.device.type, None]
    strides = [0 if size == 1 else step for size, step in zip(value.shape, value.stride(), strict=True)]
    same = next((i for i, other in enumerate(given) if other is value), None)
    return [list(value.shape), strides if value.numel() > 0 else [], str(value.dtype), value.device.type, same]
