"""Tensors as text: an expression that creates the same tensor for real and, inside a mode, a fake."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

FLOATS = ("float32", "float64", "bfloat16", "float16")
INTEGERS = ("int64", "int32", "uint8", "int8", "int16")
COMPLEX = ("complex64", "complex128")
OTHERS = ("bool", "float8_e4m3fn", "float8_e5m2", "uint16", "complex32")
DTYPES = FLOATS + INTEGERS + COMPLEX + OTHERS

#: The memory layout of the elements; a layout that does not apply to a shape changes nothing.
LAYOUTS = ("plain", "transposed", "sliced", "expanded", "channels_last", "offset", "requires_grad", "conj", "neg")

Shape = tuple[int, ...]


@dataclass(frozen=True)
class TensorText:
    """The properties of a tensor; `str` gives the expression."""

    shape: Shape
    dtype: str = "float32"
    layout: str = "plain"
    fill: str = "count"

    def __str__(self) -> str:
        shape, after = self._laid_out()
        return _filled(shape, self.dtype, self.fill) + after

    def _laid_out(self) -> tuple[Shape, str]:
        """The shape to create, and the expression that derives the requested shape from it."""
        shape = self.shape
        if self.layout == "transposed" and len(shape) >= 2:
            return (*shape[:-2], shape[-1], shape[-2]), ".mT"
        if self.layout == "sliced" and shape:
            return (*shape[:-1], 2 * shape[-1]), "[..., ::2]"
        if self.layout == "expanded" and shape and shape[0] > 1:
            return (1, *shape[1:]), f".expand({_tuple(shape)})"
        if self.layout == "channels_last" and len(shape) in (4, 5):
            return shape, f".to(memory_format=torch.channels_last{'_3d' if len(shape) == 5 else ''})"
        if self.layout == "offset" and shape:
            return (shape[0] + 1, *shape[1:]), "[1:]"
        if self.layout == "requires_grad" and self.dtype in FLOATS + COMPLEX:
            return shape, ".requires_grad_()"
        if self.layout == "conj" and self.dtype in COMPLEX:
            return shape, ".conj()"
        if self.layout == "neg" and self.dtype in COMPLEX:
            return shape, ".conj().imag" if self.dtype == "complex64" else ".conj()"
        return shape, ""


def _tuple(shape: Shape) -> str:
    return f"({shape[0]},)" if len(shape) == 1 else f"({', '.join(map(str, shape))})"


def _filled(shape: Shape, dtype: str, fill: str) -> str:
    suffix = "" if dtype == "float32" else f", dtype=torch.{dtype}"
    if fill in ("ones", "zeros", "empty"):
        return f"torch.{fill}({_tuple(shape)}{suffix})"
    if fill in ("-1", "1e9", "nan"):
        value = {"-1": "-1", "1e9": "1000000000", "nan": 'float("nan")'}[fill]
        return f"torch.ones({_tuple(shape)}).mul({value}).to(torch.{dtype})"
    numel = math.prod(shape)
    counted = f"torch.arange({numel})" if len(shape) == 1 else f"torch.arange({numel}).reshape({_tuple(shape)})"
    if fill == "index":  # small enough to be a valid index in most cases
        return f"{counted}.remainder(2).to(torch.{dtype})"
    return f"{counted}.to(torch.{dtype})"


def random_shape(rng: random.Random, least: int = 0, most: int = 4) -> Shape:
    """Small: there are many calls, and no particular size matters."""
    dims = rng.randint(least, most)
    return tuple(rng.choice((1, 2, 2, 3, 4)) if rng.random() < 0.96 else 0 for _ in range(dims))


def broadcastable(rng: random.Random, shape: Shape) -> Shape:
    """A shape that broadcasts to `shape`."""
    kept = shape[rng.randint(0, len(shape)) :] if rng.random() < 0.4 else shape
    return tuple(1 if rng.random() < 0.3 else size for size in kept)


def wrong(rng: random.Random, right: TensorText) -> TensorText:
    """A wrong replacement: another number of dimensions, other sizes, another dtype or layout."""
    shape = list(right.shape)
    match rng.randrange(10):
        case 0:
            return replace(right, shape=())
        case 1 if shape:
            return replace(right, shape=tuple(shape[1:]))
        case 2 if shape:
            return replace(right, shape=tuple(shape[:-1]))
        case 3:
            return replace(right, shape=(2, *shape))
        case 4 if shape:
            shape[rng.randrange(len(shape))] = rng.choice((0, 1, 5))
            return replace(right, shape=tuple(shape))
        case 5 if shape:
            return replace(right, shape=(0,))
        case 6:
            return replace(right, layout=rng.choice(LAYOUTS))
        case 7:
            return replace(right, fill=rng.choice(("-1", "1e9", "nan", "zeros", "ones")))
        case 8:
            return replace(right, shape=random_shape(rng, 0, 5))
        case _:
            return replace(right, dtype=rng.choice(DTYPES))
