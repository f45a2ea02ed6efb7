"""Operators with Python kernels on the Meta key: the C++ kernels give the results of the real CPU kernels."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from metadata import assert_answers_like_real
from torch import Tensor

from torchfake import cross_check_cache

aten = torch.ops.aten

LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "contiguous": lambda: torch.zeros(3, 4),
    "transposed": lambda: torch.zeros(4, 3).t(),
    "expanded": lambda: torch.zeros(1, 4).expand(3, 4),
    "with gaps": lambda: torch.zeros(3, 8)[:, ::2],
}

OF_A_MATRIX: dict[str, Callable[[Tensor], Any]] = {
    "alias_copy": lambda x: aten.alias_copy(x),
    "affine_grid_generator_backward": lambda x: aten.affine_grid_generator_backward(
        x.reshape(2, 1, 3, 2), [2, 5, 1, 3], True
    ),
    "affine_grid_generator_backward of volumes": lambda x: aten.affine_grid_generator_backward(
        x.reshape(2, 2, 1, 1, 3), [2, 5, 2, 1, 1], False
    ),
    "affine_grid_generator_backward of a wrong size": lambda x: aten.affine_grid_generator_backward(
        x.reshape(2, 1, 3, 2), [2, 5, 1, 4], False
    ),
    "as_strided_copy": lambda x: aten.as_strided_copy(x, [2, 2], [1, 2]),
    "as_strided_scatter": lambda x: aten.as_strided_scatter(x, torch.ones(2), [2], [1]),
    "bernoulli": lambda x: torch.bernoulli(x, 0.5),
    "conj_copy": lambda x: aten._conj_copy(x.cfloat()),
    "detach_copy": lambda x: aten.detach_copy(x),
    "diagonal_copy": lambda x: aten.diagonal_copy(x),
    "diag_embed": lambda x: x.diag_embed(1, 0, 2),
    "diag_embed of one dimension twice": lambda x: x.diag_embed(0, 1, 1),
    "diagonal_scatter of a wrong size": lambda x: x.diagonal_scatter(torch.ones(2)),
    "select_scatter of a wrong size": lambda x: x.select_scatter(torch.ones(3), 0, 1),
    "slice_scatter of a wrong size": lambda x: x.slice_scatter(torch.ones(3, 2), 1, 1, 2),
    "view_copy of a wrong size": lambda x: aten.view_copy(x, [11]),
    "diagonal_scatter": lambda x: x.diagonal_scatter(torch.ones(3)),
    "expand_copy": lambda x: aten.expand_copy(x, [2, 3, 4]),
    "logsumexp with out": lambda x: torch.logsumexp(x, 0, out=torch.empty(0)),
    "new_empty_strided": lambda x: x.new_empty_strided([2, 3], [1, 2]),
    "permute_copy": lambda x: aten.permute_copy(x, [1, 0]),
    "put": lambda x: x.put(torch.tensor([1, 2]), torch.ones(2)),
    "select_backward": lambda x: aten.select_backward(x[0], [3, 4], 0, 1),
    "select_copy": lambda x: aten.select_copy.int(x, 0, 1),
    "select_scatter": lambda x: x.select_scatter(torch.ones(4), 0, 1),
    "slice_copy": lambda x: aten.slice_copy.Tensor(x, 1, 0, 2),
    "slice_scatter": lambda x: x.slice_scatter(torch.ones(3, 1), 1, 1, 2),
    "split_copy": lambda x: aten.split_copy.Tensor(x, 2),
    "split_with_sizes_copy": lambda x: aten.split_with_sizes_copy(x, [1, 2]),
    "squeeze_copy": lambda x: aten.squeeze_copy(x[None]),
    "t_copy": lambda x: aten.t_copy(x),
    "transpose_copy": lambda x: aten.transpose_copy.int(x, 0, 1),
    "trilinear": lambda x: aten._trilinear(x, x, x, [], [], [], [1]),
    "unbind_copy": lambda x: aten.unbind_copy.int(x),
    "unfold_copy": lambda x: aten.unfold_copy(x, 0, 2, 1),
    "unsqueeze_copy": lambda x: aten.unsqueeze_copy(x, 1),
    "view_as_real_copy": lambda x: aten.view_as_real_copy(x.cfloat()),
    "view_copy": lambda x: aten.view_copy(x, [12]),
    "view_copy of a dtype": lambda x: aten.view_copy.dtype(x, torch.int32),
}


def places() -> Tensor:
    return torch.tensor([1, 2])


def mask(*sizes: int) -> Tensor:
    return torch.ones(*sizes, dtype=torch.bool)


def index_put(*indices: Tensor | None, values: Tensor | None = None, into: Tensor | None = None) -> Tensor:
    values = torch.ones(4) if values is None else values
    return aten._index_put_impl_(torch.zeros(3, 4) if into is None else into, list(indices), values)


def into_itself() -> Tensor:
    x = torch.zeros(3, 4)
    return index_put(places(), values=x[0], into=x)


WRITES: dict[str, Callable[[], Any]] = {
    "index_put_": lambda: index_put(places()),
    "index_put_ behind nothing": lambda: index_put(None, places(), values=torch.ones(2)),
    "index_put_ by a mask": lambda: index_put(mask(3)),
    "index_put_ by a mask of both dimensions": lambda: index_put(mask(3, 4), values=torch.ones(12)),
    "index_put_ of a number of another dtype": lambda: index_put(mask(3), values=torch.tensor(1.0).double()),
    "index_put_ of another dtype": lambda: index_put(places(), values=torch.ones(4).double()),
    "index_put_ by a mask of another dtype": lambda: index_put(mask(3), values=torch.ones(4).double()),
    "index_put_ of a wrong size": lambda: index_put(places(), values=torch.ones(5)),
    "index_put_ by a mask of a wrong size": lambda: index_put(mask(2)),
    "index_put_ by too many": lambda: index_put(places(), places(), places(), values=torch.ones(2)),
    "index_put_ by floats": lambda: index_put(torch.ones(2)),
    "index_put_ by what does not broadcast": lambda: index_put(places(), torch.arange(3)),
    "index_put_ to an expanded tensor": lambda: index_put(places(), into=torch.zeros(1, 4).expand(3, 4)),
    "index_put_ of a part of itself": into_itself,
    "masked_scatter_": lambda: torch.zeros(3, 4).masked_scatter_(mask(4), torch.ones(12)),
    "masked_scatter_ of another dtype": lambda: torch.zeros(3, 4).masked_scatter_(mask(4), torch.ones(12).double()),
    "masked_scatter_ by floats": lambda: torch.zeros(3, 4).masked_scatter_(torch.ones(4), torch.ones(12)),
    "masked_scatter_ by a wrong size": lambda: torch.zeros(3, 4).masked_scatter_(mask(5), torch.ones(12)),
    "masked_scatter_ to an expanded tensor": lambda: (
        torch.zeros(1, 4).expand(3, 4).masked_scatter_(mask(4), torch.ones(12))
    ),
    "masked_scatter broadcasts": lambda: torch.zeros(4).masked_scatter(mask(3, 4), torch.ones(12)),
    "put_": lambda: torch.zeros(3, 4).put_(places(), torch.ones(2)),
    "put_ by int": lambda: torch.zeros(3, 4).put_(places().int(), torch.ones(2)),
    "put_ of another number": lambda: torch.zeros(3, 4).put_(places(), torch.ones(3)),
    "put_ into nothing": lambda: torch.zeros(0).put_(places(), torch.ones(2)),
    "put_ to an expanded tensor": lambda: torch.zeros(1, 4).expand(3, 4).put_(places(), torch.ones(2)),
    "embedding_renorm_": lambda: aten.embedding_renorm_(torch.ones(5, 3), places(), 1.0, 2.0),
    "embedding_renorm_ of a vector": lambda: aten.embedding_renorm_(torch.ones(3), places(), 1.0, 2.0),
    "embedding_renorm_ by floats": lambda: aten.embedding_renorm_(torch.ones(5, 3), torch.ones(2), 1.0, 2.0),
    "as_strided_": lambda: torch.zeros(3, 4).as_strided_([2], [1]),
}


def complex_matrix() -> Tensor:
    return torch.ones(3, 4, dtype=torch.complex64)


OUTS: dict[str, Callable[[], Any]] = {
    "cholesky": lambda: torch.cholesky(torch.eye(3), out=torch.empty(0)),
    "cholesky to columns": lambda: torch.cholesky(torch.eye(3), out=torch.empty(3, 3).t()),
    "cholesky to int": lambda: torch.cholesky(torch.eye(3), out=torch.empty(0, dtype=torch.int32)),
    "fft to nothing": lambda: aten._fft_c2c.out(complex_matrix().t(), [0], 0, True, out=complex_matrix()[:0]),
    "fft to columns": lambda: aten._fft_c2c.out(complex_matrix(), [0], 0, True, out=complex_matrix().view(4, 3).t()),
    "fft to another dtype": lambda: aten._fft_c2c.out(complex_matrix(), [0], 0, True, out=torch.empty(0)),
    "rfft": lambda: aten._fft_r2c.out(torch.ones(3, 4), [1], 0, True, out=complex_matrix()[:0]),
    "irfft": lambda: aten._fft_c2r.out(complex_matrix(), [1], 0, 6, out=torch.empty(0)),
    "narrow_copy": lambda: aten.narrow_copy.out(torch.ones(3, 4).t(), 1, 1, 2, out=torch.empty(0)),
    "narrow_copy to another dtype": lambda: aten.narrow_copy.out(
        torch.ones(3, 4), 1, 1, 2, out=torch.empty(0, dtype=torch.float64)
    ),
}

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.float8_e5m2, torch.uint16)

DRAWS: dict[str, Callable[[Tensor], Any]] = {
    "bernoulli_": lambda x: x.bernoulli_(0.5),
    "bernoulli_ of each": lambda x: x.bernoulli_(torch.full((4,), 0.5)),
    "cauchy_": lambda x: x.cauchy_(),
    "exponential_": lambda x: x.exponential_(),
    "geometric_": lambda x: x.geometric_(0.5),
    "log_normal_": lambda x: x.log_normal_(),
    "normal_": lambda x: x.normal_(),
    "random_": lambda x: x.random_(),
    "random_ to": lambda x: x.random_(3),
    "random_ from": lambda x: x.random_(-5, None),
    "random_ beyond": lambda x: x.random_(2, 2**40),
}

REFUSED_DRAWS: dict[str, Callable[[], Any]] = {
    "bernoulli_ of 2": lambda: torch.zeros(3, 4).bernoulli_(2.0),
    "bernoulli_ of a wrong size": lambda: torch.zeros(3, 4).bernoulli_(torch.full((5,), 0.5)),
    "bernoulli_ of integers": lambda: torch.zeros(3, 4).bernoulli_(torch.ones(4, dtype=torch.int64)),
    "cauchy_ of -1": lambda: torch.zeros(3, 4).cauchy_(0, -1),
    "exponential_ of -1": lambda: torch.zeros(3, 4).exponential_(-1),
    "geometric_ of 1": lambda: torch.zeros(3, 4).geometric_(1),
    "log_normal_ of -1": lambda: torch.zeros(3, 4).log_normal_(0, -1),
    "normal_ of -1": lambda: torch.zeros(3, 4).normal_(0, -1),
    "random_ from 3 to 2": lambda: torch.zeros(3, 4).random_(3, 2),
    "random_ to an expanded tensor": lambda: torch.zeros(1, 4).expand(3, 4).random_(),
    "bernoulli_ to an expanded tensor": lambda: torch.zeros(1, 4).expand(3, 4).bernoulli_(0.5),
    "exponential_ to an expanded tensor": lambda: torch.zeros(1, 4).expand(3, 4).exponential_(),
}

OTHERS: dict[str, Callable[[], Any]] = {
    "amp_update_scale_": lambda: aten._amp_update_scale_(
        torch.ones(1), torch.ones(1, dtype=torch.int32), torch.zeros(1), 2.0, 0.5, 10
    ),
    "amp_update_scale_ by a tracker of floats": lambda: aten._amp_update_scale_(
        torch.ones(1), torch.ones(1), torch.zeros(1), 2.0, 0.5, 10
    ),
    "histogramdd": lambda: torch.histogramdd(torch.ones(5, 2), [3, 4]),
    "histogramdd between tensors": lambda: torch.histogramdd(torch.ones(5, 2), [torch.arange(4.0), torch.arange(5.0)]),
    "histogramdd of integers": lambda: torch.histogramdd(torch.ones(5, 2).int(), [3, 4]),
    "histogramdd of no bins": lambda: torch.histogramdd(torch.ones(5, 2), [3, 0]),
    "histogramdd of too few bins": lambda: torch.histogramdd(torch.ones(5, 2), [3]),
    "histogramdd of half a range": lambda: torch.histogramdd(torch.ones(5, 2), [3, 4], [0.0, 1.0]),
    "histogramdd of too few weights": lambda: torch.histogramdd(torch.ones(5, 2), [3, 4], weight=torch.ones(4)),
    "histogramdd of a vector": lambda: torch.histogramdd(torch.ones(5), [3]),
    "assert_async": lambda: torch._assert_async(torch.ones(1)),
    "assert_async of two": lambda: torch._assert_async(torch.ones(2), "two"),
    "assert_async in order": lambda: aten._functional_assert_async.msg(torch.ones(1), "one", torch.ones(3)),
}


def solve(of: Tensor, by: torch.dtype, **options: Any) -> Tensor:
    return torch.linalg.solve_triangular(torch.eye(3).to(by), of, upper=True, **options)


SOLVES: dict[str, Callable[[], Any]] = {
    "solve_triangular of another dtype": lambda: solve(torch.ones(3, 2, dtype=torch.bfloat16), torch.float32),
    "solve_triangular of more digits": lambda: solve(torch.ones(3, 2, dtype=torch.float64), torch.float32),
    "solve_triangular of integers": lambda: solve(torch.ones(3, 2, dtype=torch.int64), torch.float32),
    "solve_triangular by complex numbers": lambda: solve(torch.ones(3, 2), torch.complex64),
    "solve_triangular of another dtype in a batch": lambda: solve(torch.ones(4, 3, 2).double(), torch.float32),
    "solve_triangular of another dtype on the right": lambda: solve(
        torch.ones(2, 3).double(), torch.float32, left=False
    ),
    "solve_triangular by bfloat16": lambda: solve(torch.ones(3, 2), torch.bfloat16),
    "solve_triangular to an empty tensor": lambda: solve(torch.ones(3, 2).double(), torch.float32, out=torch.empty(0)),
}

CALLS = {**WRITES, **OUTS, **REFUSED_DRAWS, **OTHERS, **SOLVES}
CALLS.update(
    {f"{name}, {layout}": lambda f=f, x=x: f(x()) for name, f in OF_A_MATRIX.items() for layout, x in LAYOUTS.items()}
)
CALLS.update(
    {
        f"{name}, {dtype}": lambda f=f, d=dtype: f(torch.zeros(3, 4).to(d))
        for name, f in DRAWS.items()
        for dtype in DTYPES
    }
)


@contextlib.contextmanager
def no_kernel_of_python() -> Iterator[None]:
    """Fails if one of the Python functions that PyTorch registers on the Meta key is called."""
    entered = []

    def look(frame, event, _):
        name = frame.f_code.co_filename
        if event == "call" and any(part in name for part in ("_meta_registrations", "torch/_refs", "torch/_decomp")):
            entered.append(frame.f_code.co_name)

    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(None)
    assert not entered


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CALLS)
def test_an_operator_is_answered_by_cpp_as_by_the_real_kernel(name):
    with cross_check_cache():
        assert_answers_like_real(CALLS[name], while_fake=no_kernel_of_python)
