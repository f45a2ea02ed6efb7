"""out= arguments: resized, laid out and refused like the real kernels do."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from torchfake import fake_mode

pytestmark = pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")

Call = Callable[[], list[Tensor]]
CLAST = torch.channels_last


def empty(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(*(sizes or (0,)), dtype=dtype)


def transposed(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.ones(*reversed(sizes), dtype=dtype).t()


def written(function: Callable[..., object], *outs: Tensor) -> list[Tensor]:
    function(out=outs if len(outs) > 1 else outs[0])
    return list(outs)


CFLOAT = torch.complex64
LONG = torch.int64
A = (4, 3)

CALLS: dict[str, Call] = {
    "abs": lambda: written(lambda out: torch.abs(transposed(*A), out=out), empty()),
    "abs of complex numbers": lambda: written(lambda out: torch.abs(transposed(*A, dtype=CFLOAT), out=out), empty()),
    "angle": lambda: [torch.angle(transposed(*A, dtype=CFLOAT))],
    "conj_physical": lambda: written(
        lambda out: torch.conj_physical(transposed(*A, dtype=CFLOAT), out=out), empty(dtype=CFLOAT)
    ),
    "bernoulli, in another dtype": lambda: written(
        lambda out: torch.bernoulli(torch.ones(*A), out=out), empty(dtype=LONG)
    ),
    "_add_relu with a factor of another dtype": lambda: [
        torch._VF._add_relu(torch.ones(*A, dtype=LONG), torch.ones(3, dtype=LONG), alpha=2.5)
    ],
    "conj_physical_": lambda: [transposed(*A, dtype=CFLOAT).conj_physical_()],
    "where": lambda: written(
        lambda out: torch.where(transposed(*A) > 0, transposed(*A), transposed(*A), out=out), empty()
    ),
    "addr": lambda: written(lambda out: torch.addr(transposed(*A), torch.ones(4), torch.ones(3), out=out), empty()),
    "polar": lambda: written(lambda out: torch.polar(transposed(*A), transposed(*A), out=out), empty(dtype=CFLOAT)),
    "mode": lambda: written(lambda out: torch.mode(transposed(*A), out=out), empty(), empty(dtype=LONG)),
    "geqrf": lambda: written(lambda out: torch.geqrf(torch.ones(*A), out=out), empty(), empty()),
    "geqrf, one of another size": lambda: written(lambda out: torch.geqrf(torch.ones(*A), out=out), empty(), empty(7)),
    "histogram": lambda: written(lambda out: torch.histogram(torch.ones(4), 3, out=out), empty(), empty()),
    "householder_product": lambda: written(
        lambda out: torch.linalg.householder_product(torch.ones(*A), torch.ones(3), out=out), empty()
    ),
    "householder_product, of another dtype": lambda: written(
        lambda out: torch.linalg.householder_product(torch.ones(*A), torch.ones(3), out=out),
        empty(dtype=torch.float64),
    ),
    "eig": lambda: written(
        lambda out: torch.linalg.eig(torch.eye(3), out=out), empty(dtype=CFLOAT), empty(dtype=CFLOAT)
    ),
    "nonzero": lambda: written(lambda out: torch.nonzero(torch.ones(*A), out=out), empty(dtype=LONG)),
    "masked_select": lambda: written(
        lambda out: torch.masked_select(torch.ones(*A), torch.eye(*A).bool(), out=out), empty()
    ),
    "lstsq": lambda: written(
        lambda out: torch.linalg.lstsq(torch.eye(3), torch.ones(3, 2), out=out),
        empty(),
        empty(),
        empty(dtype=LONG),
        empty(),
    ),
    "multinomial": lambda: written(lambda out: torch.multinomial(torch.ones(*A), 2, out=out), empty(dtype=LONG)),
    "batch norm in evaluation": lambda: list(
        torch.ops.aten.native_batch_norm.out(
            torch.ones(2, 3, 4),
            None,
            None,
            torch.ones(3),
            torch.ones(3),
            False,
            0.1,
            1e-5,
            out=empty(),
            save_mean=empty(),
            save_invstd=empty(5),
        )
    ),
    "batch norm that updates, and reserves nothing": lambda: list(
        torch.ops.aten._batch_norm_with_update.out(
            torch.ones(2, 3, 4),
            None,
            None,
            torch.ones(3),
            torch.ones(3),
            0.1,
            1e-5,
            out=empty(),
            save_mean=empty(),
            save_invstd=empty(),
            reserve=empty(2, 2),
        )
    ),
    "the greatest, in another dtype": lambda: written(
        lambda out: torch.max(torch.ones(3), out=out), empty(dtype=torch.float64)
    ),
    "the least of nothing": lambda: written(lambda out: torch.min(torch.ones(0), out=out), empty(2)),
    "a number looked for in a tensor": lambda: written(
        lambda out: torch.isin(1, torch.arange(3), out=out), empty(dtype=torch.bool)
    ),
    "the gradient of a padded image of another dtype": lambda: written(
        lambda out: torch.ops.aten.reflection_pad2d_backward.grad_input(
            torch.ones(1, 5, 5), torch.ones(1, 3, 3, dtype=torch.float64), [1] * 4, grad_input=out
        ),
        empty(),
    ),
    "the gradient of a padded volume, channels last": lambda: written(
        lambda out: torch.ops.aten.reflection_pad3d_backward.grad_input(
            torch.ones(1, 4, 3, 3), torch.ones(1, 3, 2, 3).to(memory_format=CLAST), [0, 0, 0, 1, 0, 1], grad_input=out
        ),
        empty(),
    ),
    "the gradient of a loss, channels last": lambda: written(
        lambda out: torch.ops.aten.nll_loss2d_backward.grad_input(
            torch.ones(1, 2, 3),
            torch.ones(1, 4, 2, 3).to(memory_format=CLAST),
            torch.ones(1, 2, 3, dtype=torch.int64),
            None,
            0,
            -100,
            torch.ones(()),
            grad_input=out,
        ),
        empty(),
    ),
    "slow_conv_transpose2d, channels last": lambda: written(
        lambda out: torch.ops.aten.slow_conv_transpose2d.out(
            torch.ones(1, 4, 2, 2).to(memory_format=CLAST), torch.ones(4, 4, 2, 2), [2, 2], out=out
        ),
        empty(),
    ),
    "numbers stacked": lambda: written(
        lambda out: torch.ops.aten._stack.out([torch.ones(()), torch.ones(())], 0, out=out), empty()
    ),
    "lu_solve from the right": lambda: written(
        lambda out: torch.linalg.lu_solve(
            *torch.linalg.lu_factor(torch.eye(3, dtype=CFLOAT)), torch.ones(2, 3, dtype=CFLOAT), left=False, out=out
        ),
        empty(dtype=CFLOAT),
    ),
}


def seen(tensors: list[Tensor]) -> list[tuple[object, ...]]:
    return [(tuple(t.shape), t.stride(), t.dtype, t.is_conj()) for t in tensors]


@pytest.mark.parametrize("name", CALLS)
def test_an_out_argument_ends_up_as_a_real_one(name):
    real = seen(CALLS[name]())
    with fake_mode():
        assert seen(CALLS[name]()) == real
        assert seen(CALLS[name]()) == real  # and from the cache


@pytest.mark.parametrize("space", [torch.linspace, torch.logspace])
@pytest.mark.parametrize("size", [(), (1,), (3, 2), (0,)])
@pytest.mark.parametrize("steps", [0, 1, 6])
def test_points_between_unknown_numbers_fill_an_argument_of_any_shape(
    space: Callable[..., Tensor], size: tuple[int, ...], steps: int
) -> None:
    def shape() -> torch.Size:
        return space(torch.ones(()), 2.0, steps, out=torch.ones(size)).shape

    real = shape()
    with fake_mode(known_values_limit=0):
        assert shape() == real


def test_an_out_argument_may_not_overlap_what_is_read():
    with fake_mode():
        x = torch.ones(3, 3)
        with pytest.raises(RuntimeError, match="single memory location"):
            torch.take(x, torch.zeros(9, dtype=LONG), out=x.view(9))
        with pytest.raises(RuntimeError, match="single memory location"):
            torch.kthvalue(x, 1, out=(x[0], torch.empty(3, dtype=LONG)))


def test_an_in_place_sum_over_batches_resizes_what_it_adds_to():
    with fake_mode():
        for _ in range(3):  # a constant comes from the cache from the third time on
            x = torch.ones(1)
            assert x.addbmm_(torch.ones(2, 5, 3), torch.ones(2, 3, 4)) is x
            assert x.shape == (5, 4)


# Arguments that PyTorch's composites resize by a function call above the engine, with known values in the out=
# argument.
KNOWN_OUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "randperm": lambda out: torch.randperm(5, out=out.long()),
    "kron": lambda out: torch.kron(torch.ones(2, 2), torch.ones(3, 3), out=out),
    "linalg_matmul": lambda out: torch.linalg.matmul(torch.ones(4, 4), torch.ones(4, 4), out=out),
    "pinv": lambda out: torch.linalg.pinv(torch.eye(4), out=out),
    "matrix_rank": lambda out: torch.linalg.matrix_rank(torch.ones(7, 4, 4), out=out.long()),
    "quantile": lambda out: torch.quantile(torch.ones(6, 4), 0.5, dim=0, out=out),
    "nanquantile": lambda out: torch.nanquantile(torch.ones(6, 9), 0.5, dim=0, out=out),
    "nuclear_norm": lambda out: torch.nuclear_norm(torch.ones(9, 4, 4), (1, 2), out=out),
    "tensordot": lambda out: torch.tensordot(torch.ones(4, 4), torch.ones(4, 4), dims=1, out=out),
}


@pytest.mark.parametrize("size", [0, 1, 5, 100])
@pytest.mark.parametrize("name", KNOWN_OUTS)
def test_an_out_argument_with_known_values_is_resized_as_a_real_one(name: str, size: int) -> None:
    real = torch.ones(size)
    KNOWN_OUTS[name](real)
    with fake_mode():
        for _ in range(2):
            fake = torch.ones(size)
            result = KNOWN_OUTS[name](fake)
            assert (fake.shape, fake.stride(), fake.dtype) == (real.shape, real.stride(), real.dtype)
            assert result.untyped_storage().nbytes() >= result.numel() * result.element_size()


def test_an_out_argument_that_was_resized_knows_its_new_values() -> None:
    with fake_mode():
        out = torch.ones(2)
        torch.kron(torch.full((2, 2), 2.0), torch.full((3, 3), 3.0), out=out)
        assert out.shape == (6, 6)
        assert out.tolist() == [[6.0] * 6] * 6


def test_a_storage_observed_and_known_survives_being_resized() -> None:
    with fake_mode():
        out = torch.ones(3)
        view = out[1:]
        torch.linalg.matmul(torch.ones(4, 4), torch.ones(4, 4), out=out)
        assert view.shape == (2,) and out.shape == (4, 4)
        out.fill_(7.0)
        assert out.sum().item() == 7.0 * 16


def test_an_out_argument_whose_elements_share_their_place_is_written_to() -> None:
    with fake_mode():
        out = torch.ones(1).expand(2)
        torch.linalg.vecdot(torch.ones(2, 2), torch.ones(2, 2), out=out)
        assert out.shape == (2,)


def test_an_out_argument_that_is_not_resized_is_computed_at_its_own_size() -> None:
    with fake_mode():
        out = torch.zeros(2, 4)
        torch.ops.aten._compute_linear_combination.out(torch.ones(3, 4), torch.ones(2, 3), out=out)
        assert out.tolist() == [[3.0] * 4] * 2


def test_an_out_argument_that_is_resized_warns_once() -> None:
    with fake_mode(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        out = torch.zeros(3)
        torch.add(torch.ones(2), 1, out=out)
        assert out.tolist() == [2.0, 2.0]
    assert len(caught) == 1
