"""Which guards a symbolic call records: those that the real operator's behaviour needs, and no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from torchfake import FakeTensorMode, ShapeEnv
from torchfake.errors import DynamicShapesError, UnbackedSymbolError

Sizes = tuple[int, ...]


class Symbols:
    """An environment and fakes with one symbol per dimension."""

    def __init__(self) -> None:
        self.env = ShapeEnv()
        self.mode = FakeTensorMode(shape_env=self.env)

    def fake(self, real: Tensor, names: str) -> Tensor:
        """`names` has a letter for each dimension that is a symbol, and a dot for the others."""
        dynamic = {dim: name for dim, name in enumerate(names) if name != "."}
        return self.mode.from_tensor(real, dynamic=dynamic)

    def guards(self) -> list[str]:
        return [str(guard) for guard in self.env.guards if not str(guard).endswith(">= 2")]


def images() -> Tensor:
    return torch.randn(2, 3, 9, 8, requires_grad=True)


# Calls that a decomposition, a strided destination or a missing rule used to fix at the sizes of the trace.
UNGUARDED: dict[str, tuple[Callable[..., Tensor], Sizes]] = {
    "constant padding": (lambda x: F.pad(x, (1, 2, 0, 3)), (4, 6)),
    "circular padding": (lambda x: F.pad(x, (1, 1), mode="circular"), (4, 6, 5)),
    "a write to a slice": (lambda x: x.new_zeros(x.shape[0], 2 * x.shape[1])[:, ::2].copy_(x), (4, 6)),
    "slice_scatter": (lambda x: x.slice_scatter(x[:, 1:], 1, 1), (4, 6)),
    "select_scatter": (lambda x: x.select_scatter(x[:, 0], 1, 2), (4, 6)),
    "diagonal_scatter": (lambda x: x.diagonal_scatter(x.diagonal()), (4, 6)),
    "rot90": (lambda x: x.rot90(), (4, 6)),
    "polar": (lambda x: torch.polar(x, x), (4, 6)),
    "mish": (lambda x: F.mish(x), (4, 6)),
    "hardshrink": (lambda x: F.hardshrink(x), (4, 6)),
    "a transform of real numbers": (lambda x: torch.fft.rfft(x), (4, 6)),
    "matrix_exp": (lambda x: torch.matrix_exp(x @ x.transpose(-1, -2)), (4, 6, 5)),
    "nan_to_num": (lambda x: x.nan_to_num(), (4, 6)),
    "isclose": (lambda x: torch.isclose(x, x), (4, 6)),
    "randint_like": (lambda x: torch.randint_like(x, 5), (4, 6)),
    "take": (lambda x: x.take(torch.zeros(x.shape, dtype=torch.int64)), (4, 6)),
    "put": (lambda x: x.put(torch.zeros(x.shape, dtype=torch.int64), x), (4, 6)),
    "index_put_": (lambda x: x.clone().index_put_((torch.zeros(x.shape[1], dtype=torch.int64),), x[0]), (4, 6)),
    "a product with zeros among the factors": (lambda x: x.prod(), (4, 6)),
    "bilinear": (lambda x: F.bilinear(x, x[:, 1:], x.new_ones(3, x.shape[1], x.shape[1] - 1)), (4, 6)),
    "masked_scatter": (lambda x: x.masked_scatter(x > 0, x), (4, 6)),
    "interpolation by a factor": (lambda x: F.interpolate(x, scale_factor=1.5), (2, 3, 9, 8)),
    "bilinear interpolation": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), (2, 3, 9, 8)),
    "interpolation to sizes": (lambda x: F.interpolate(x, size=(x.shape[3], 7), mode="bicubic"), (2, 3, 9, 8)),
}


@pytest.mark.parametrize("name", UNGUARDED)
def test_no_size_becomes_a_number(name: str) -> None:
    operation, sizes = UNGUARDED[name]
    symbols = Symbols()
    names = "abcdefgh"[: len(sizes)]
    x = symbols.fake(torch.rand(sizes, requires_grad=True), names)
    with symbols.mode:
        outputs = operation(x)
        gradient = torch.autograd.grad(outputs.real.sum(), x)[0] if outputs.requires_grad else None
    assert not [guard for guard in symbols.guards() if any(f"{letter} == " in guard for letter in names)]
    values = {letter: size + 2 for letter, size in zip(names, sizes, strict=True)}
    assert symbols.env.guards_hold(values), symbols.guards()
    real = torch.rand([size + 2 for size in sizes], requires_grad=True)
    expected = operation(real)

    def at(x: Tensor) -> list[Any]:
        return [[symbols.env.evaluate(number, values) for number in numbers] for numbers in (x.shape, x.stride())]

    assert at(outputs) == [list(expected.shape), list(expected.stride())]
    if gradient is not None:
        assert at(gradient)[0] == list(real.shape)


def test_a_size_that_is_read_as_a_number_is_guarded_alone() -> None:
    symbols = Symbols()
    x = symbols.fake(torch.ones(1, 4, 6), ".ab")
    pooled = F.adaptive_max_pool2d(x, (None, 3))
    assert pooled.shape == (1, 4, 3)
    assert symbols.guards()[0] == "a == 4" and not any("b ==" in guard for guard in symbols.guards())


def test_a_size_that_only_data_knows_is_not_read_as_a_number() -> None:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    with mode:
        found = torch.randn(8).nonzero()
        with pytest.raises(UnbackedSymbolError):
            torch.linspace(0, 1, found.shape[0])


def test_equal_sizes_broadcast_without_a_question_about_one() -> None:
    symbols = Symbols()
    x = symbols.fake(torch.ones(4, 2), "ab")
    halves = x.narrow(1, 0, x.shape[1] // 2)
    assert str((halves + halves).shape[1]) == "b//2"
    assert not [guard for guard in symbols.guards() if "== 1" in guard or "!= 1" in guard]


def test_the_layout_of_a_size_that_is_one_here_needs_no_guard() -> None:
    symbols = Symbols()
    x = symbols.fake(torch.ones(4, 2, 8, 8, requires_grad=True), "ab..")
    halves = x.narrow(1, 0, x.shape[1] // 2).clone()
    assert halves.is_contiguous() and not [guard for guard in symbols.guards() if "b//2 ==" in guard]


def test_a_view_can_have_symbolic_sizes() -> None:
    symbols = Symbols()
    x = symbols.fake(torch.arange(24).view(4, 6), "ab")
    assert str((x + 1).shape) == "torch.Size([a, b])"
    weight = torch.ones(4, 6, requires_grad=True)
    with pytest.raises(DynamicShapesError, match="autograd"):
        symbols.fake(weight.view(2, 12), "cd")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_on_a_claimed_gpu_keeps_batch_and_length(dtype: torch.dtype) -> None:
    symbols = Symbols()
    real = torch.empty(2, 4, 32, 16, dtype=dtype, device="meta")
    x = symbols.fake(real, "b.s.")
    with symbols.mode:
        query = x.to("cuda").requires_grad_()
        attended = F.scaled_dot_product_attention(query, query, query, is_causal=True)
        (gradient,) = torch.autograd.grad(attended.sum(), query)
    assert [str(size) for size in attended.shape] == ["b", "4", "s", "16"]
    assert [str(size) for size in gradient.shape] == ["b", "4", "s", "16"]
    assert symbols.env.guards_hold({"b": 5, "s": 77})
