"""Operators whose decomposition reads data on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from metadata import metadata
from torch import Tensor
from undrawn import fake_mode

from torchfake import (
    DataDependentOutputException,
    FakeTensorMode,
    UnsupportedOperatorException,
    to_fake,
)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("shape", [(2, 3, 16), (3, 16), (2, 1, 16), (0, 3, 16)])
def test_max_pool1d_looks_like_the_real_one(shape: tuple[int, ...], grad: bool) -> None:
    def pool() -> torch.Tensor:
        x = torch.zeros(shape, requires_grad=grad) + 1
        return torch.nn.functional.max_pool1d(x, 4, stride=3, padding=1, dilation=1, ceil_mode=True)

    real = pool()
    with fake_mode():
        assert metadata(pool()) == metadata(real)


def test_max_pool1d_of_known_values_is_known() -> None:
    with fake_mode(), torch.no_grad():
        assert torch.nn.functional.max_pool1d(torch.arange(6.0)[None], 2).tolist() == [[1, 3, 5]]
        assert torch.nn.functional.max_pool1d(torch.randn(1, 6), 2).shape == (1, 3)


R = torch.rand

#: Each checks or counts values, although the shape of its result does not depend on them.
STATIC: dict[str, Callable[[str], Tensor]] = {
    "quantile": lambda d: torch.quantile(R(4, 4, device=d), R(3, device=d), dim=1),
    "nanquantile": lambda d: torch.nanquantile(R(4, device=d), 0.5),
    "cov": lambda d: torch.cov(R(4, 4, device=d)),
    "weighted cov": lambda d: torch.cov(
        R(4, 4, device=d), fweights=torch.randint(1, 4, (4,), device=d), aweights=R(4, device=d)
    ),
    "corrcoef": lambda d: torch.corrcoef(R(4, 4, device=d)),
    "istft": lambda d: torch.istft(R(9, 5, device=d).to(torch.complex64), 16, window=R(16, device=d) + 1),
    "weighted smooth cross_entropy": lambda d: F.cross_entropy(
        R(3, 4, device=d, requires_grad=True),
        torch.randint(4, (3,), device=d),
        weight=R(4, device=d),
        label_smoothing=0.1,
    ),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("mode", [fake_mode, FakeTensorMode])
@pytest.mark.parametrize("name", list(STATIC))
def test_checks_of_values_do_not_stop_what_has_a_fixed_shape(name: str, mode: Callable[[], Any]) -> None:
    real = STATIC[name]("cpu")
    for device in ("cpu", "cuda"):
        with mode():
            fake = STATIC[name](device)
        assert (fake.shape, fake.stride(), fake.dtype, fake.requires_grad) == (
            real.shape,
            real.stride(),
            real.dtype,
            real.requires_grad,
        )
        assert fake.device.type == device


def test_values_that_are_known_to_be_bad_are_still_refused() -> None:
    with fake_mode(), pytest.raises(RuntimeError, match="q values must be in the range"):
        torch.quantile(R(4), torch.tensor([2.0]))


def test_a_condition_in_the_users_code_is_not_treated_as_a_validity_check() -> None:
    with fake_mode(), pytest.raises(DataDependentOutputException):
        torch.equal(R(()) > 0.5, torch.tensor(True))


#: Each checks its input in Python.
CHECKED: dict[str, Callable[[str], Tensor]] = {
    "normal": lambda d: torch.distributions.Normal(R(3, device=d), R(3, device=d)).log_prob(R(3, device=d)),
    "categorical": lambda d: torch.distributions.Categorical(logits=R(3, 4, device=d)).entropy(),
    "geometric": lambda d: torch.distributions.Geometric(R(3, device=d) / 2 + 0.1).mean,
    "gaussian_nll_loss": lambda d: F.gaussian_nll_loss(R(3, device=d), R(3, device=d), R(3, device=d)),
}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", list(CHECKED))
def test_input_of_unknown_values_is_taken_for_valid(name: str, device: str) -> None:
    real = CHECKED[name]("cpu")
    with fake_mode():
        assert CHECKED[name](device).shape == real.shape
        with pytest.raises(DataDependentOutputException):
            bool((R(3, device=device) > 0).all())


def test_input_that_is_known_to_be_invalid_is_refused() -> None:
    with fake_mode():
        with pytest.raises(ValueError, match="to satisfy the constraint"):
            torch.distributions.Normal(torch.zeros(3), -torch.ones(3), validate_args=True)  # Dynamo turns it off
        with pytest.raises(ValueError, match="negative"):
            F.gaussian_nll_loss(R(3), R(3), -torch.ones(3))


#: Each has a derivative formula that reads values, and a gradient whose layout does not depend on them.
DIFFERENTIATED: dict[str, Callable[[Tensor], Tensor]] = {
    "max": torch.max,
    "min": torch.min,
    "median": torch.median,
    "nanmedian": torch.nanmedian,
    "masked_fill": lambda x: R(3).masked_fill(R(3) > 0.5, x.sum()),
    "index_fill": lambda x: R(3).index_fill(0, torch.randint(3, (2,)), x.sum()),
}


@pytest.mark.parametrize("name", list(DIFFERENTIATED))
def test_a_gradient_that_only_checks_values_is_computed(name: str) -> None:
    def gradient() -> Tensor:
        x = R(3, 4).t().detach().requires_grad_()
        return torch.autograd.grad(DIFFERENTIATED[name](x).sum(), x)[0]

    real = gradient()
    with fake_mode():
        fake = gradient()
    assert (fake.shape, fake.stride()) == (real.shape, real.stride())


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("sizes", [(), (2,), (2, 0, 3)])
def test_a_shape_as_a_tensor_is_known_and_on_the_cpu(sizes: tuple[int, ...], device: str) -> None:
    with fake_mode():
        for _ in range(2):
            shape = torch._shape_as_tensor(torch.empty(sizes, device=device))
            assert (shape.tolist(), shape.dtype, shape.device.type) == (list(sizes), torch.int64, "cpu")


#: Each reads the data of its arguments, or prints it in an error.
READ_DATA: dict[str, Callable[[], Any]] = {
    "packing for fbgemm": lambda: torch.fbgemm_pack_gemm_matrix_fp16(R(3, 2)),
    "quantizing for fbgemm": lambda: torch.fbgemm_linear_quantize_weight(R(3, 2)),
    "checking the indices of a sparse tensor": lambda: torch.ops.aten._validate_sparse_coo_tensor_args(
        torch.randint(2, (1, 2)), R(2), [2]
    ),
    "choosing a scale": lambda: torch.choose_qparams_optimized(R(4), 4, 2, 0.16, 8),
    "a grid of matrices": lambda: torch.meshgrid(R(2, 2), indexing="ij"),
}


@pytest.mark.parametrize("name", READ_DATA)
def test_a_decomposition_that_reads_data_raises_our_error(name: str) -> None:
    with fake_mode(known_values_limit=0), pytest.raises(UnsupportedOperatorException, match="tensor has no data"):
        READ_DATA[name]()


def test_batch_sizes_have_to_be_on_the_cpu() -> None:
    with fake_mode(known_values_limit=0), torch.device("cuda"), pytest.raises(RuntimeError, match="batch sizes"):
        torch.ops.aten.gru.data(
            R(3, 2), torch.ones(3, dtype=torch.int64), R(1, 1, 2), [R(6, 2), R(6, 2)], False, 1, 0.0, False, False
        )


BATCH_SIZES = torch.tensor([3, 2])


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_real_batch_sizes_are_read_like_known_ones(device: str) -> None:
    with fake_mode(), torch.device(device):
        data, hidden, weights = R(5, 2), R(1, 3, 2), [R(6, 2), R(6, 2)]
        packed = torch.ops.aten.gru.data(data, BATCH_SIZES, hidden, weights, False, 1, 0.0, False, False)
        assert packed[0].shape == (5, 2)
        padded, lengths = torch.ops.aten._pad_packed_sequence(data, BATCH_SIZES, False, 0.0, 4)
        assert padded.shape == (4, 3, 2)
        assert lengths.tolist() == [2, 2, 1]


def test_unknown_batch_sizes_on_a_card_are_refused() -> None:
    with fake_mode(known_values_limit=0), torch.device("cuda"):
        unknown = torch.randint(1, 6, (4,))
        with pytest.raises(DataDependentOutputException, match="argument 'batch_sizes' is read"):
            torch.ops.aten._pad_packed_sequence(R(5, 2), unknown, False, 0.0, 4)


@pytest.mark.parametrize("sizes", [torch.tensor(3), torch.tensor([[3]]), torch.tensor([3.0])], ids=str)
def test_batch_sizes_have_to_be_a_row_of_integers(sizes: Tensor) -> None:
    with fake_mode(), pytest.raises(RuntimeError, match="expected batch sizes in a row of int64"):
        torch.ops.aten._pad_packed_sequence(R(5, 2), sizes, False, 0.0, 4)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_real_batch_sizes_go_with_fake_sequences(device: str) -> None:
    sizes = torch.tensor([2, 1, 1])
    padded, lengths = torch.ops.aten._pad_packed_sequence(to_fake(R(4, 2), device), sizes, True, 0.0, -1)
    assert padded.device.type == device and padded.shape == (2, 3, 2) and lengths.tolist() == [3, 1]
    with fake_mode(), torch.device(device):
        out, (hidden, _) = torch.nn.LSTM(2, 3)(torch.nn.utils.rnn.PackedSequence(R(4, 2), sizes))
    assert out.data.shape == (4, 3) and hidden.shape == (1, 2, 3) and out.data.device.type == device


def test_per_sample_weights_are_only_accepted_for_sums() -> None:
    with fake_mode():
        places = torch.zeros(3, dtype=torch.long)
        with pytest.raises(RuntimeError, match=r"per_sample_weights are only supported for mode 0 \(sum\), got mode 1"):
            torch.ops.aten._embedding_bag_sparse_backward(
                torch.rand(1, 200), places, places[:1], places, places[:1], 3, False, 1, torch.ones(3)
            )
