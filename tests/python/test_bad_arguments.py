"""Fakes refuse what real kernels refuse: dtypes, sizes and overlaps that meta kernels accept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from torchfake import fake_mode

R = torch.rand
aten = torch.ops.aten


def doubled(*sizes: int) -> Tensor:
    return R(sizes).double()


def complex_of(*sizes: int) -> Tensor:
    return R(sizes).to(torch.complex64)


def whole(*sizes: int) -> Tensor:
    return torch.ones(sizes, dtype=torch.int64)


def under_autocast(call: Callable[[], Tensor], dtype: torch.dtype = torch.bfloat16) -> Tensor:
    with torch.autocast("cpu", dtype):
        return call()


#: Each is refused by real CPU tensors, whatever their values.
REFUSED: dict[str, Callable[[], Tensor]] = {
    "mm of two dtypes": lambda: torch.mm(R(2, 3), R(3, 2).bfloat16()),
    "mm of two dtypes, empty": lambda: torch.mm(R(0, 3), doubled(3, 2)),
    "bmm of two dtypes": lambda: torch.bmm(R(1, 2, 3), doubled(1, 3, 2)),
    "linear of two dtypes": lambda: F.linear(R(2, 3), R(2, 3).half()),
    "linear with a bias of another dtype": lambda: F.linear(R(2, 3), R(2, 3), doubled(2)),
    "linear with a bias of another size": lambda: F.linear(R(4, 3), R(2, 3), R(5)),
    "addmm with too many dimensions": lambda: torch.addmm(R(1, 2, 2), R(2, 3), R(3, 2)),
    "layer_norm of two dtypes": lambda: F.layer_norm(R(2, 3), (3,), R(3).bfloat16()),
    "softmax of integers": lambda: torch.softmax(torch.randint(3, (4,)), 0),
    "bitwise_and of floats": lambda: torch.bitwise_and(R(3), R(3)),
    "bitwise_and of a float and an integer": lambda: torch.bitwise_and(R(3), torch.randint(3, (3,))),
    "comparing complex numbers": lambda: torch.ge(R(3).to(torch.complex64), R(3)),
    "comparing with a complex number": lambda: torch.ge(R(3), R(()).to(torch.complex64)),
    "a polynomial of half beside a number": lambda: torch.special.zeta(R(3).half(), R(())),
    "the least of complex numbers": lambda: torch.aminmax(R(3).to(torch.complex64)),
    "the least along a dimension of complex numbers": lambda: torch.aminmax(complex_of(3), dim=0)[0],
    "the least of one complex number": lambda: torch.aminmax(complex_of())[0],
    "the least along a dimension of one complex number": lambda: torch.aminmax(complex_of(), dim=0)[0],
    "the least of no complex numbers": lambda: torch.aminmax(complex_of(0))[0],
    "the least so far of complex numbers": lambda: torch.cummin(R(3).to(torch.complex64), 0),
    "relu of booleans": lambda: torch.relu(whole(3).bool()),
    "hardtanh of booleans": lambda: F.hardtanh(whole(3).bool()),
    "the variance of integers": lambda: torch.var(whole(3)),
    "nansum of complex numbers": lambda: torch.nansum(complex_of(3)),
    "complex numbers of integers": lambda: torch.complex(whole(3), whole(3)),
    "complex numbers of a float and an integer": lambda: torch.complex(R(3), whole(3)),
    "a real transform of complex numbers": lambda: aten._fft_r2c(complex_of(3), [0], 0, True),
    "renorm of rows of integers": lambda: aten.embedding_renorm_(whole(4, 3), whole(2), 1.0, 2.0),
    "binary_cross_entropy of two dtypes": lambda: F.binary_cross_entropy(doubled(3), R(3)),
    "multilabel_margin_loss of classes that are floats": lambda: F.multilabel_margin_loss(R(2, 3), R(2, 3)),
    "the gradient of a softmax in another dtype": lambda: torch._softmax_backward_data(
        doubled(2, 3), R(2, 3), 1, torch.float32
    ),
    "group_norm of integers": lambda: F.group_norm(torch.randint(3, (2, 4)), 2, R(4)),
    "native_group_norm with a weight of another size": lambda: torch.native_group_norm(
        R(2, 4, 3), R(5), None, 2, 4, 3, 2, 1e-5
    ),
    "batch_norm with statistics of two dimensions": lambda: F.batch_norm(R(2, 3), R(1, 3), R(1, 3)),
    "rolling half under autocast to bfloat16": lambda: under_autocast(lambda: R(3).half().roll(1)),
    "unique rows of half under autocast to bfloat16": lambda: under_autocast(lambda: R(3, 3).half().unique(dim=0)),
    "adding float8": lambda: R(3).to(torch.float8_e4m3fn) + R(3).to(torch.float8_e4m3fn),
    "cholesky of half": lambda: torch.linalg.cholesky(R(3, 3).half()),
    "slice_scatter of another size": lambda: torch.slice_scatter(R(4, 4), R(3, 3), 0, 0, 2),
    "select_scatter of another size": lambda: torch.select_scatter(R(4, 4), R(3), 0, 0),
    "diagonal_scatter of another size": lambda: torch.diagonal_scatter(R(4, 4), R(3)),
    "put of another number": lambda: R(4).put(torch.randint(2, (3,)), R(2)),
    "index_put that does not broadcast": lambda: R(4).index_put((torch.randint(2, (3,)),), R(2)),
    "index_put by floats": lambda: R(4).index_put((R(3),), R(3)),
    "masked_fill by floats": lambda: R(4).masked_fill(R(4), 1),
    "index_fill by floats": lambda: R(4).index_fill(0, R(2), 1.0),
    "embedding without rows": lambda: F.embedding(torch.randint(1, (2,)), R(0, 3)),
    "as_strided_copy beyond the storage": lambda: torch.as_strided_copy(R(3), (3, 3), (3, 1)),
    "renorm of integers": lambda: torch.randint(3, (2, 2)).renorm(2, 0, 1.0),
    "cumsum_ of an expanded tensor": lambda: R(4).expand(2, 4).cumsum_(0),
    "put_ of an expanded tensor": lambda: R(4).expand(2, 4).put_(torch.tensor([0]), R(1)),
    "bernoulli_ of an expanded tensor": lambda: R(4).expand(2, 4).bernoulli_(),
    "a loss with a class that does not exist": lambda: F.cross_entropy(R(2, 3), torch.tensor([0, 7])),
    "solving with a vector for a factor": lambda: aten._cholesky_solve_helper(R(3), R(3), False),
    "group_norm in no groups": lambda: torch.native_group_norm(R(2, 4, 3), None, None, 2, 4, 3, 0, 1e-5)[0],
    "group_norm in groups that do not divide": lambda: torch.native_group_norm(
        R(2, 4, 3), None, None, 2, 4, 3, 3, 1e-5
    )[0],
    "a transform over no dimension": lambda: aten._fft_r2c(R(3, 3), [], 0, True),
    "a transform of a size that does not fit": lambda: aten._fft_c2r(complex_of(3, 3), [1], 0, 9),
    "a transform over one dimension twice": lambda: aten._fft_c2c(complex_of(3, 3), [0, 0, 1, 1], 0, True),
    "the gradient of a padded vector, as an image": lambda: aten.reflection_pad2d_backward(R(3), R(3), [1] * 4),
    "the gradient of a padded number, as an image": lambda: aten.reflection_pad2d_backward(R(()), R(()), [1] * 4),
    "the gradient of a padded vector, as a volume": lambda: aten.replication_pad3d_backward(R(3), R(3), [1] * 6),
    "the gradient of a replicated vector, as an image": lambda: aten.replication_pad2d_backward(R(3), R(3), [1] * 4),
    "the gradient of a padded matrix, as an image": lambda: aten.reflection_pad2d_backward(R(5, 5), R(3, 3), [1] * 4),
    "the gradient of a padded image of another dtype": lambda: aten.reflection_pad2d_backward(
        R(1, 5, 5), doubled(1, 3, 3), [1] * 4
    ),
    "the gradient of batch_norm of a vector": lambda: aten.native_batch_norm_backward(
        R(3), R(3), None, None, None, None, None, True, 1e-5, [True] * 3
    )[0],
    "the gradient of batch_norm of two dtypes": lambda: aten.native_batch_norm_backward(
        doubled(2, 3), R(2, 3), R(3), None, None, R(3), R(3), True, 1e-5, [True] * 3
    )[0],
    "packed sequences whose sizes are a matrix": lambda: aten._pad_packed_sequence(R(4, 2), whole(2, 2), True, 0.0, 0)[
        0
    ],
    "batch_norm with a running mean alone": lambda: aten.native_batch_norm(
        R(9, 2, 9), None, None, R(2), None, True, 0.1, 1e-5
    )[0],
    "multi_margin_loss into another dtype": lambda: aten.multi_margin_loss.out(
        R(9, 9), whole(9), out=torch.empty(0).double()
    ),
    "the gradient of multi_margin_loss into another dtype": lambda: aten.multi_margin_loss_backward.grad_input(
        R(()), R(9, 9), whole(9), 1, 1, grad_input=torch.empty(0).double()
    ),
    "multilabel_margin_loss into another dtype": lambda: aten.multilabel_margin_loss.out(
        R(9, 9), whole(9, 9), out=torch.empty(0).double()
    ),
    "the fallback of grid_sample for doubles": lambda: aten._grid_sampler_2d_cpu_fallback_backward(
        R(1, 4, 2, 2), doubled(1, 4, 9, 9), doubled(1, 2, 2, 2), 1, 2, False
    )[0],
    "packed sequences of no steps": lambda: aten._pad_packed_sequence(R(3), torch.empty(0).long(), False, 0.0, 0)[0],
    "flash attention with dropout on the CPU": lambda: aten._scaled_dot_product_flash_attention_for_cpu(
        R(2, 2, 3, 8), R(2, 2, 3, 8), R(2, 2, 3, 8), 0.5
    )[0],
    "attention that another backend brings": lambda: aten._scaled_dot_product_fused_attention_overrideable(
        R(2, 2, 3, 8), R(2, 2, 3, 8), R(2, 2, 3, 8)
    )[0],
    "normal_ of integers on the way": lambda: torch.randn(3, out=torch.empty(0).long()),
    "uniform_ of integers on the way": lambda: torch.rand(3, out=torch.empty(0).long()),
    "log_normal of booleans": lambda: aten.log_normal.out(R(3).bool(), 1.0, 2.0, out=torch.empty(0).bool()),
    "bernoulli of complex numbers": lambda: torch.bernoulli(complex_of(3), 0.5),
    "randperm of complex numbers": lambda: torch.randperm(3, out=torch.empty(0, dtype=torch.complex64)),
    "gamma of bfloat16": lambda: torch._standard_gamma(R(3).bfloat16()),
    "conv_transpose2d of int8": lambda: F.conv_transpose2d(whole(1, 2, 4, 3).char(), whole(2, 2, 1, 1).char()),
    "set_ beyond the storage": lambda: R(4, 4).set_(R(4).untyped_storage(), 2, (4, 4), (4, 1)),
    "set_ to a tensor of a smaller dtype": lambda: doubled().set_(R(()).bool()),
    "set_ beyond the storage of a tensor": lambda: R(4, 4).set_(R(4), 2, (4, 4), (4, 1)),
    "a foreach with too few factors": lambda: torch._foreach_addcmul([R(2)] * 2, [R(2)] * 2, [R(2)] * 2, R(1))[0],
    "max_pool1d of integers": lambda: F.max_pool1d(whole(1, 2, 4), 2),
    "the mode with places that are floats": lambda: torch.mode(R(3), out=(torch.empty(0), torch.empty(0)))[0],
    "a loss with a weight of another dtype": lambda: aten.nll_loss2d_forward.output(
        R(2, 3, 2, 2), whole(2, 2, 2), None, 1, -100, output=torch.empty(0), total_weight=doubled(0)
    )[0],
    "_convolution of two dtypes": lambda: aten._convolution(
        R(1, 2, 4), doubled(2, 2, 1), None, [1], [0], [1], False, [0], 1, False, False, False, False
    ),
    "nansum in one dtype into another": lambda: torch.nansum(whole(3), 0, dtype=torch.int32, out=whole(0)),
    "resize_as_sparse of dense tensors": lambda: aten.resize_as_sparse(R(2), R(3)),
    "randperm of an unsigned dtype": lambda: torch.randperm(4, dtype=torch.uint16),
    "flash attention of integers": lambda: aten._scaled_dot_product_flash_attention_for_cpu(
        *[whole(2, 2, 3, 8)] * 3, 0.0
    )[0],
    "binomial of bfloat16": lambda: torch.binomial(R(3).bfloat16(), R(3).bfloat16()),
    "randperm of more than a float can tell apart": lambda: torch.randperm(2**25, dtype=torch.float32),
    "batch_norm with statistics of another dtype": lambda: aten._native_batch_norm_legit.out(
        R(2, 3), None, None, R(3), R(3), True, 0.1, 1e-5, out=R(0), save_mean=R(0), save_invstd=doubled(0)
    )[0],
    "binomial of two dtypes": lambda: torch.binomial(doubled(3), R(3)),
    "an out= form of what the CPU has no kernel for": lambda: aten.miopen_batch_norm.out(
        R(2, 3), R(3), None, R(3), R(3), False, 0.1, 1e-5, out0=R(0), out1=R(0), out2=R(0)
    )[0],
    "an out= form of what the CPU has no kernel for, and Python has": lambda: aten.cudnn_batch_norm_backward.out(
        *[R(2, 3)] * 2, R(3), None, *[R(3)] * 3, 1e-5, R(2, 3), out0=R(0), out1=R(0), out2=R(0)
    )[0],
    "an out= form that every device shares, of integers": lambda: aten._batch_norm_with_update.out(
        whole(2, 3),
        None,
        None,
        *[whole(3)] * 2,
        1.0,
        1e-5,
        out=whole(0),
        save_mean=whole(0),
        save_invstd=whole(0),
        reserve=whole(0),
    )[0],
    "oneDNN's convolution of double, into an argument": lambda: aten.mkldnn_convolution.out(
        doubled(1, 2, 3, 2), doubled(2, 2, 2, 2), None, [0, 0], [1, 1], [1, 1], 1, out=doubled(0)
    ),
    "the gradient of weights in bags that are floats": lambda: aten._embedding_bag_per_sample_weights_backward.out(
        R(1, 2), R(3, 2), whole(3), whole(1), R(3), 0, out=R(0)
    ),
    "an out= form whose plain form has no half": lambda: torch.linalg.det(R(3, 3).half(), out=R(0).half()),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_real_tensors_refuse_is_refused_with_the_same_type(name: str) -> None:
    with pytest.raises(Exception) as real:
        REFUSED[name]()
    with fake_mode():
        for _ in range(2):  # from the kernel, and from the cache
            with pytest.raises(real.type):
                REFUSED[name]()


#: Each resembles a call that is refused, but is accepted.
ACCEPTED: dict[str, Callable[[], Tensor]] = {
    "a layer_norm with parameters of more precision": lambda: F.layer_norm(R(2, 3).bfloat16(), (3,), R(3), R(3)),
    "group_norm with parameters of more precision": lambda: torch.native_group_norm(
        R(2, 4, 3).bfloat16(), R(4), R(4), 2, 4, 3, 2, 1e-5
    )[1],
    "group_norm, channels last": lambda: F.group_norm(R(2, 4, 3, 3).to(memory_format=torch.channels_last), 2),
    "promotion": lambda: R(3) * torch.randint(3, (3,)),
    "promotion of a scalar": lambda: R(3).bfloat16() + torch.tensor(2.0, dtype=torch.float64),
    "a sum in another dtype": lambda: R(3).to(torch.float8_e4m3fn).float().sum(),
    "index_fill_ of an expanded tensor": lambda: R(4).expand(2, 4).index_fill_(0, torch.tensor([0]), 1.0),
    "index_fill by a value of another dtype": lambda: R(4).index_fill(0, torch.tensor([0]), torch.tensor(1.0).double()),
    "masked_fill_ of an expanded tensor": lambda: R(4).expand(2, 4).masked_fill_(R(2, 4) > 0.5, 1.0),
    "huber_loss of two dtypes": lambda: F.huber_loss(R(2).bfloat16(), R(2)),
    "a loss that ignores a class": lambda: F.cross_entropy(R(2, 3), torch.tensor([0, -100])),
    "rolling half under autocast to half": lambda: under_autocast(lambda: R(3).half().roll(1), torch.float16),
    "blocks of half under autocast": lambda: under_autocast(lambda: torch.block_diag(R(2, 2).half())),
    "rolling half without autocast": lambda: R(3).half().roll(1),
    "a product of nothing": lambda: torch.mm(R(0, 3), R(3, 2)),
    "a difference that a number makes float": lambda: torch.ones(3, dtype=torch.uint16) - 1.5,
    "a gradient of hardswish beside integers": lambda: aten.hardswish_backward(doubled(3), whole(3)),
    "multi_margin_loss of nothing into another dtype": lambda: aten.multi_margin_loss.out(
        R(0, 3), whole(0), out=torch.empty(0).double()
    ),
    "the fallback of grid_sample": lambda: aten._grid_sampler_2d_cpu_fallback(
        R(1, 4, 9, 9), R(1, 2, 2, 2), 1, 2, False
    ),
    "the gradient of the fallback of grid_sample": lambda: aten._grid_sampler_2d_cpu_fallback_backward(
        R(1, 4, 2, 2), R(1, 4, 9, 9), R(1, 2, 2, 2), 1, 2, False
    )[0],
    "a quotient of complex numbers that is not rounded": lambda: torch.div(
        complex_of(3), complex_of(3), rounding_mode=None
    ),
}


@pytest.mark.filterwarnings("ignore:Use of .* on expanded tensors is deprecated")
@pytest.mark.parametrize("name", list(ACCEPTED))
def test_what_real_tensors_accept_is_accepted(name: str) -> None:
    real = ACCEPTED[name]()
    with fake_mode():
        fake = ACCEPTED[name]()
    assert (fake.dtype, fake.shape, fake.stride()) == (real.dtype, real.shape, real.stride())


SGD = {"nesterov": False, "maximize": False, "is_first_step": False}
ADAM = {"amsgrad": False, "maximize": False}
ADAGRAD = {"weight_decay": 0.0, "eps": 1e-8, "maximize": False}

#: Each real call reads out of bounds or divides by zero, and may crash the process.
READS_BEYOND: dict[str, Callable[[], Any]] = {
    "the gradient of batch_norm without its statistics": lambda: aten.native_batch_norm_backward(
        R(2, 3), R(2, 3), R(3), None, None, None, None, True, 1e-5, [True] * 3
    ),
    "the gradient of batch_norm with too few statistics": lambda: aten.native_batch_norm_backward(
        R(2, 3), R(2, 3), R(3), None, None, R(2), R(2), True, 1e-5, [True] * 3
    ),
    "the gradient of batch_norm of another size": lambda: aten.native_batch_norm_backward(
        R(2, 3), R(5, 3, 2), R(3), None, None, R(3), R(3), True, 1e-5, [True] * 3
    ),
    "batch_norm in evaluation without statistics": lambda: aten._native_batch_norm_legit.no_stats(
        R(2, 3), None, None, False, 0.1, 1e-5
    ),
    "projections for no heads": lambda: aten._transform_bias_rescale_qkv(R(2, 3, 6), R(6), 0),
    "attention with no heads": lambda: aten._native_multi_head_attention(
        R(2, 3, 4), R(2, 3, 4), R(2, 3, 4), 4, 0, R(12, 4), R(12), R(4, 4), R(4)
    ),
    "a transform over a dimension that is not there": lambda: aten._fft_c2r(complex_of(3, 3), [5], 0, 4),
    "a Sobol state that is too small": lambda: aten._sobol_engine_initialize_state_(whole(2, 2), 2),
    "one state of a quantized LSTM cell": lambda: aten.quantized_lstm_cell(
        R(2, 1), [R(2, 1)], *[R(4, 1)] * 2, *[R(4)] * 2, *[R(4, 1)] * 2, *[R(4)] * 2, 1, 1, 0, 0
    ),
    "gates of a GRU that are no three": lambda: aten._thnn_differentiable_gru_cell_backward(
        R(2, 1), R(2, 2), R(2, 2), R(2, 1), None, None
    ),
    "gates of an LSTM that are no four": lambda: aten._thnn_differentiable_lstm_cell_backward(
        None, R(2, 1), R(2, 1), R(2, 1), None, None, R(2, 1), R(2, 1)
    ),
    "zeros with more batch dimensions than there are": lambda: aten._new_zeros_with_same_feature_meta(
        R(3), R(3), self_num_batch_dims=100
    ),
    "a step with a momentum that is too small": lambda: aten._fused_sgd_(
        [R(3, 2)], [R(3, 2)], [R(())], weight_decay=0.0, momentum=0.5, lr=0.1, dampening=0.0, **SGD
    ),
    "a step with averages that are too small": lambda: aten._fused_adam_(
        *[[R(3, 2)]] * 3, [R(2)], [], [torch.ones(())], lr=0.1, beta1=0.9, beta2=0.9, weight_decay=0.0, eps=1e-8, **ADAM
    ),
    "a step with gradients that are expanded": lambda: aten._fused_adagrad_(
        [R(3, 2)], [R(1, 2).expand(3, 2)], [R(3, 2)], [torch.ones(())], lr=0.1, lr_decay=0.0, **ADAGRAD
    ),
    "padding with too few numbers": lambda: aten.reflection_pad2d_backward(R(1, 3, 3), R(1, 3, 3), [1]),
}


@pytest.mark.parametrize("known_values", [0, 16384])
@pytest.mark.parametrize("name", READS_BEYOND)
def test_arguments_that_would_be_read_out_of_bounds_are_refused(name: str, known_values: int) -> None:
    with fake_mode(known_values_limit=known_values):
        for _ in range(2):
            with pytest.raises((RuntimeError, IndexError)) as raised:
                READS_BEYOND[name]()
            assert "INTERNAL ASSERT" not in str(raised.value)


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_cudnn_batch_norm_in_evaluation_needs_all_that_it_reads(missing: int) -> None:
    with fake_mode(), torch.device("cuda"):
        vectors = [torch.ones(3) for _ in range(3)]
        assert aten.cudnn_batch_norm(torch.ones(2, 3, 4), torch.ones(3), *vectors, False, 0.1, 1e-5)[0].shape == (
            2,
            3,
            4,
        )
        name = ("bias", "running_mean", "running_var")[missing]
        for given, said in ((None, f"'{name}', got None"), (torch.ones(2), name)):
            vectors[missing] = given
            with pytest.raises(RuntimeError, match=said):
                aten.cudnn_batch_norm(torch.ones(2, 3, 4), torch.ones(3), *vectors, False, 0.1, 1e-5)


def test_the_gradient_of_cudnn_batch_norm_needs_its_statistics() -> None:
    with fake_mode(), torch.device("cuda"), pytest.raises(RuntimeError, match="save_mean and save_var"):
        aten.cudnn_batch_norm_backward(R(2, 3), R(2, 3), R(3), None, None, None, None, 1e-5, R(0).byte())


def test_the_error_names_operator_argument_and_dtypes() -> None:
    with fake_mode(), pytest.raises(RuntimeError, match=r"aten::bmm: argument 'mat2' is Double .*'self' that is Float"):
        torch.bmm(R(1, 2, 3), doubled(1, 3, 2))
    with (
        fake_mode(),
        pytest.raises(NotImplementedError, match=r"not implemented for 'Long' \(aten::_softmax on cuda"),
    ):
        torch.softmax(torch.randint(3, (4,), device="cuda"), 0)


def test_each_device_refuses_what_its_own_kernels_refuse() -> None:
    with fake_mode():
        assert torch.mm(torch.randint(3, (2, 3)), torch.randint(3, (3, 2))).dtype == torch.int64
        with pytest.raises(NotImplementedError, match="addmm_cuda"):
            torch.mm(torch.randint(3, (2, 3), device="cuda"), torch.randint(3, (3, 2), device="cuda"))
        # Nothing is recorded for other devices.
        assert torch.softmax(torch.randint(3, (4,), device="xpu"), 0).shape == (4,)


def test_a_refused_write_changes_nothing() -> None:
    with fake_mode():
        x, version = R(2, 2), 0
        with pytest.raises(RuntimeError):
            x.addmm_(R(2, 3), doubled(3, 2))
        assert x._version == version


def ints(*sizes: int) -> Tensor:
    return torch.ones(sizes, dtype=torch.int64, device="cuda")


# What an H200 refused, and with which exception.
ON_A_GPU: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "conv2d of integers": (
        lambda: F.conv2d(ints(1, 3, 8, 8), ints(4, 3, 3, 3)),
        RuntimeError,
        "not supported for Long",
    ),
    "padded conv_transpose2d of integers": (
        lambda: F.conv_transpose2d(ints(1, 3, 8, 8), ints(3, 4, 3, 3), output_padding=1, dilation=2),
        NotImplementedError,
        "slow_conv_transpose2d",
    ),
    "addmm of integers and a scalar": (
        lambda: torch.addmm(ints(), ints(2, 3), ints(3, 4)),
        NotImplementedError,
        "not implemented for 'Long'",
    ),
    "histogram": (lambda: torch.histogram(torch.rand(9, device="cuda"), 3), NotImplementedError, "CUDA"),
    "scatter_reduce of booleans": (
        lambda: ints(3).bool().scatter_reduce(0, ints(3) - 1, ints(3).bool(), "amax"),
        NotImplementedError,
        "not implemented for 'Bool'",
    ),
    "batch norm over strides": (
        lambda: torch.ops.aten._batch_norm_with_update(
            torch.rand(2, 4, 3, device="cuda").mT,
            *(torch.rand(3, device="cuda"), torch.rand(3, device="cuda")),
            *(torch.zeros(3, device="cuda"), torch.ones(3, device="cuda"), 0.1, 1e-5),
        ),
        RuntimeError,
        "is_contiguous",
    ),
}


@pytest.mark.parametrize("name", ON_A_GPU)
def test_what_a_gpu_refuses_is_refused(name: str) -> None:
    call, kind, words = ON_A_GPU[name]
    with fake_mode():
        for _ in range(2):  # the second time from the cache
            with pytest.raises(kind, match=words) as raised:
                call()
            assert raised.type is kind


def test_a_foreach_copy_of_more_tensors_than_there_are_is_refused() -> None:
    """The real kernel reads beyond the end of the list."""
    with fake_mode(), pytest.raises(RuntimeError, match="must have the same number of tensors, got 1 and 2"):
        aten._foreach_copy([R(2)], [R(2), R(2)])
