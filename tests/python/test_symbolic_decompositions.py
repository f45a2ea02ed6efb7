"""Operators that PyTorch decomposes over numbers, on symbolic sizes: compared with real tensors at other sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from torchfake import FakeTensorMode, ShapeEnv

OTHERS = ({"batch": 3, "seq": 5}, {"batch": 8, "seq": 13}, {"batch": 5, "seq": 7})


def lstm(**options: Any) -> Callable[[torch.Tensor], Any]:
    return lambda x: nn.LSTM(16, 8, **options)(x)


def square(x: torch.Tensor) -> torch.Tensor:
    return x @ x.mT + torch.eye(x.shape[1])


CASES: dict[str, Callable[[torch.Tensor], Any]] = {
    "nearest by a factor": lambda x: F.interpolate(x, scale_factor=2.0),
    "nearest by half": lambda x: F.interpolate(x, scale_factor=0.5),
    "nearest by no fraction": lambda x: F.interpolate(x, scale_factor=1.3),
    "nearest to a size": lambda x: F.interpolate(x, size=5),
    "nearest to a symbol": lambda x: F.interpolate(x, size=2 * x.shape[1]),
    "exact": lambda x: F.interpolate(x[:, None], scale_factor=3, mode="nearest-exact"),
    "linear": lambda x: F.interpolate(x, scale_factor=1.5, mode="linear"),
    "bilinear": lambda x: F.interpolate(x[:, None], size=(6, 7), mode="bilinear", align_corners=True),
    "antialiased": lambda x: F.interpolate(x[:, None], scale_factor=0.5, mode="bilinear", antialias=True),
    "bicubic": lambda x: F.interpolate(x[:, None], scale_factor=2, mode="bicubic"),
    "trilinear": lambda x: F.interpolate(x[:, None, None], scale_factor=(1, 2, 2), mode="trilinear"),
    "kron": lambda x: torch.kron(x[0], x[0]),
    "kron of two ranks": lambda x: torch.kron(x, x[0, 0]),
    "a product of two": lambda x: torch.linalg.multi_dot([x[0], x[0].T]),
    "a chain of products": lambda x: torch.linalg.multi_dot([x[0], torch.ones(16, 2), torch.ones(2, 16), x[0, 0]]),
    "take_along_dim": lambda x: x.take_along_dim(x.argsort(1), 1),
    "take_along_dim with one row": lambda x: x.take_along_dim(x[:1].argsort(1), 1),
    "pad_sequence": lambda x: nn.utils.rnn.pad_sequence([x[0], x[1, 1:]], batch_first=True),
    "pad_sequence on the left": lambda x: nn.utils.rnn.pad_sequence([x[0], x[1, 1:]], padding_side="left"),
    "unsafe_chunk": lambda x: x.unsafe_chunk(2, 2),
    "unfold": lambda x: F.unfold(x[:, None], 2, padding=1, stride=2),
    "fold": lambda x: F.fold(F.unfold(x[:, None], 2), (x.shape[1], 16), 2),
    "affine_grid": lambda x: F.affine_grid(x[:, :2, :3], [x.shape[0], 1, x.shape[1], 6], align_corners=False),
    "quantile": lambda x: x.quantile(0.5, 1),
    "quantile of the last dimension": lambda x: x.quantile(0.5, -1, keepdim=True),
    "quantile of all": lambda x: x.quantile(0.5),
    "several quantiles": lambda x: x.quantile(torch.tensor([0.25, 0.5, 0.75]), 0, interpolation="nearest"),
    "several quantiles of the last dimension": lambda x: x.quantile(torch.tensor([0.25, 0.5]), 2, keepdim=True),
    "nanquantile": lambda x: x.nanquantile(0.3, 1, keepdim=True, interpolation="midpoint"),
    "inverse": lambda x: torch.linalg.inv(square(x)),
    "geqrf": lambda x: torch.geqrf(x.detach()),
    "lstsq": lambda x: torch.linalg.lstsq(square(x.detach()), x.detach()),
    "lstsq with singular values": lambda x: torch.linalg.lstsq(x.detach(), x.detach(), driver="gelsd"),
    "histogram": lambda x: torch.histogram(x.detach(), torch.arange(x.shape[1]).float()),
    "lstm": lstm(num_layers=2),
    "lstm with batches first": lstm(batch_first=True, bidirectional=True),
    "lstm without biases": lstm(bias=False, num_layers=2, dropout=0.5),
    "singular values of nothing": lambda x: torch.linalg.svd(x[0, :0], full_matrices=False),
    "cov": lambda x: torch.cov(x[0]),
    "cov of one variable": lambda x: torch.cov(x[0, :, 0], correction=0),
    "corrcoef": lambda x: torch.corrcoef(x[0]),
    "corrcoef of one variable": lambda x: torch.corrcoef(x[0, :, 0]),
    "combinations": lambda x: torch.combinations(x[0, :, 0]),
    "combinations with replacement": lambda x: torch.combinations(x[0, :, 0], 3, with_replacement=True),
    "cumprod": lambda x: x.cumprod(1),
    "vander": lambda x: torch.linalg.vander(x[0]),
    "gradient": lambda x: torch.gradient(x, dim=1),
    "gradient at a distance": lambda x: torch.gradient(x, spacing=2.0, dim=1, edge_order=2),
    "gradient at distances": lambda x: torch.gradient(x, spacing=(2, 3), dim=(1, -1)),
    "gradient between places": lambda x: torch.gradient(x, spacing=(x.detach()[0, :, 0].cumsum(0),), dim=(1,)),
    "gradient between places in second order": lambda x: torch.gradient(
        x, spacing=(x.detach()[0, :, 0].cumsum(0),), dim=1, edge_order=2
    ),
    "stft": lambda x: torch.view_as_real(torch.stft(x.flatten(1), 16, window=torch.ones(16), return_complex=True)),
    "stft of one signal": lambda x: torch.stft(
        x.flatten(), 8, 3, 6, center=False, return_complex=False, onesided=False
    ),
    "stft from the window's start": lambda x: torch.stft(
        x.flatten(), 8, 3, 6, center=False, return_complex=False, align_to_window=True
    ),
    "istft": lambda x: torch.istft(torch.stft(x.flatten(1), 16, return_complex=True), 16),
    "istft of a length": lambda x: torch.istft(torch.stft(x.flatten(), 16, return_complex=True), 16, length=200),
    "block_diag": lambda x: torch.block_diag(x[0].detach(), x[1, 0].detach(), x.detach().sum()),
    "max": lambda x: x.max(),
    "min": lambda x: x.min(),
    "median": lambda x: x.median(),
    "nanmedian": lambda x: x.nanmedian(),
    "sgn": lambda x: x.sgn(),
    "chunks of which the last is short": lambda x: x.flatten().chunk(3),
    "a number expanded to a column": lambda x: x.sum().expand(x.shape[0], 4, 1),
}


def results(function: Callable[[torch.Tensor], Any], x: torch.Tensor) -> list[torch.Tensor]:
    """The tensors that it returns, and the gradient of `x`."""
    found = [leaf for leaf in torch.utils._pytree.tree_leaves(list(returned(function, x))) if is_tensor(leaf)]
    roots = [leaf.sum() for leaf in found if leaf.requires_grad]
    return found + (list(torch.autograd.grad(roots, [x])) if roots else [])


def returned(function: Callable[[torch.Tensor], Any], x: torch.Tensor) -> Any:
    result = function(x)
    return result if isinstance(result, list | tuple) else [result]


def is_tensor(leaf: object) -> bool:
    return isinstance(leaf, torch.Tensor)


@pytest.mark.parametrize("name", CASES)
def test_a_decomposition_holds_at_other_sizes(name: str) -> None:
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    x = mode.from_tensor(torch.randn(4, 7, 16), dynamic={0: "batch", 1: "seq"}).requires_grad_()
    with mode:
        fakes = results(CASES[name], x)
    for values in OTHERS:
        assert env.guards_hold(values), env.format_guards()
        real = results(CASES[name], torch.randn(values["batch"], values["seq"], 16).requires_grad_())
        for fake, each in zip(fakes, real, strict=True):
            geometry = (*fake.shape, *fake.stride(), fake.storage_offset())
            assert tuple(env.evaluate(number, values) for number in geometry) == (
                *each.shape,
                *each.stride(),
                each.storage_offset(),
            )


READ_IN_INFERENCE = (
    "cov",
    "corrcoef",
    "combinations",
    "gradient",
    "stft of one signal",
    "istft",
    "block_diag",
    "quantile",
)


@pytest.mark.parametrize("name", READ_IN_INFERENCE)
def test_a_decomposition_holds_at_other_sizes_in_inference_mode(name: str) -> None:
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    x = mode.from_tensor(torch.randn(4, 7, 16), dynamic={0: "batch", 1: "seq"})
    with torch.inference_mode(), mode:
        fakes = returned(CASES[name], x)
    for values in OTHERS:
        assert env.guards_hold(values), env.format_guards()
        real = returned(CASES[name], torch.randn(values["batch"], values["seq"], 16))
        for fake, each in zip(fakes, real, strict=True):
            assert tuple(env.evaluate(size, values) for size in fake.shape) == tuple(each.shape)


def test_gradients_of_reductions_do_not_fix_the_size() -> None:
    env = ShapeEnv()
    x = FakeTensorMode(shape_env=env).from_tensor(torch.randn(4, 7), dynamic={0: "a", 1: "b"}).requires_grad_()
    (gradient,) = torch.autograd.grad(x.max() * x.median(), x, create_graph=True)
    (second,) = torch.autograd.grad(gradient.sum(), x)
    assert [str(each.shape) for each in (gradient, second)] == ["torch.Size([a, b])"] * 2
    assert env.guards_hold({"a": 9, "b": 2})


def test_the_sizes_of_half_an_image_are_integer_divisions() -> None:
    env = ShapeEnv()
    x = FakeTensorMode(shape_env=env).from_tensor(torch.ones(2, 3, 32), dynamic={2: "width"})
    assert [str(F.interpolate(x, scale_factor=factor).shape[2]) for factor in (0.5, 2.5)] == [
        "width//2",
        "2*width + width//2",
    ]


def test_the_cheapest_order_of_products_is_guarded() -> None:
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    a = mode.from_tensor(torch.ones(2, 50), dynamic={0: "few", 1: "many"})
    b = mode.from_tensor(torch.ones(50, 3), dynamic={0: "many", 1: "columns"})
    product = torch.linalg.multi_dot([a, b, b.mT])
    assert list(map(str, product.shape)) == ["few", "many"]
    assert env.guards_hold({"few": 2, "many": 40, "columns": 3})
    assert not env.guards_hold({"few": 90, "many": 2, "columns": 80})


def test_a_wrong_call_over_symbols_has_pytorchs_error() -> None:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    x = mode.from_tensor(torch.ones(4, 7, 16), dynamic={0: "batch", 1: "seq"})
    with pytest.raises(RuntimeError, match="exactly one of output_size and scale_factors"):
        torch._C._nn.upsample_nearest1d(x, None, None)
    with pytest.raises(RuntimeError, match="multi_dot"):
        torch.linalg.multi_dot([x[0], x[0]])
    with pytest.raises(RuntimeError, match="Long"):
        x.take_along_dim(x, 1)
