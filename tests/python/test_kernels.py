"""Operators with a kernel of torchfake's own, against real CPU tensors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from undrawn import fake_mode

from torchfake import DataDependentOutputException, DynamicOutputShapeException


def image(*sizes: int) -> Tensor:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return torch.ones(*sizes).contiguous(memory_format=formats[len(sizes)])


CALLS: dict[str, Callable[[], Tensor]] = {
    "pixel_shuffle": lambda: F.pixel_shuffle(image(2, 8, 3, 3), 2),
    "pixel_unshuffle": lambda: F.pixel_unshuffle(image(2, 2, 6, 6), 2),
    "pixel_unshuffle of nothing": lambda: F.pixel_unshuffle(torch.ones(0, 2, 6, 6), 2),
    "channel_shuffle": lambda: F.channel_shuffle(image(2, 4, 3, 3), 2),
    "max_unpool2d": lambda: F.max_unpool2d(image(2, 3, 2, 2), torch.zeros(2, 3, 2, 2, dtype=torch.int64), 2),
    "replication_pad2d": lambda: F.pad(image(2, 3, 4, 4), (-1, 1, 0, 0), mode="replicate"),
    "conv_transpose3d of one image": lambda: F.conv_transpose3d(image(1, 4, 3, 3, 3), image(4, 2, 2, 2, 2)),
    "conv_transpose3d of two images": lambda: F.conv_transpose3d(image(2, 4, 3, 3, 3), image(4, 2, 2, 2, 2)),
    "conv3d of one image": lambda: F.conv3d(image(1, 4, 3, 3, 3), image(2, 4, 2, 2, 2)),
    "conv3d of two images": lambda: F.conv3d(image(2, 4, 3, 3, 3), image(2, 4, 2, 2, 2)),
    "conv3d, dilated": lambda: F.conv3d(image(1, 4, 5, 5, 5), image(2, 4, 2, 2, 2), dilation=2),
    "conv3d in float16": lambda: F.conv3d(image(2, 4, 3, 3, 3).half(), image(2, 4, 2, 2, 2).half()),
    "max_pool1d": lambda: F.max_pool1d(torch.ones(4, 3, 10).transpose(0, 1), 3, 2),
    "native_dropout_backward": lambda: torch.ops.aten.native_dropout_backward(
        torch.ones(3, dtype=torch.int64), torch.ones(3).bool(), 2.0
    ),
    "geometric_": lambda: torch.ones(3, dtype=torch.int64).geometric_(0.5),
    "index_add of nothing": lambda: torch.ones(0).index_add(0, torch.empty(0, dtype=torch.int64), torch.ones(0)),
    "narrow_copy": lambda: torch.narrow_copy(torch.ones(3, 4).t(), 0, 1, 2),
    "addmv of no columns": lambda: torch.addmv(torch.ones(1), torch.ones(3, 0), torch.ones(0)),
    "addmv of no columns, and nothing of self": lambda: torch.addmv(
        torch.ones(1), torch.ones(3, 0), torch.ones(0), beta=0
    ),
    "nan_to_num_ of one integer, expanded": lambda: torch.ones(1, dtype=torch.int64).expand(3).nan_to_num_(),
    "a number looked for in a tensor": lambda: torch.isin(1, torch.arange(3)),
    "binomial with more probabilities than counts": lambda: torch.binomial(torch.ones(3, 1), torch.ones(1, 2)),
    "the gradient of gamma, broadcast": lambda: torch.ops.aten._standard_gamma_grad(torch.ones(2, 1), torch.ones(2, 3)),
    "the gradient of dirichlet, broadcast": lambda: torch.ops.aten._dirichlet_grad(
        torch.ones(2, 1), torch.ones(2, 3), torch.ones(2, 3)
    ),
    "the gradient of logsigmoid, broadcast": lambda: torch.ops.aten.log_sigmoid_backward(
        torch.ones(4), torch.ones(3, 4), torch.ones(1)
    ),
    "hardtanh_backward of an integer": lambda: torch.ops.aten.hardtanh_backward(
        torch.ones(3), torch.ones(3, dtype=torch.int64), -1, 1
    ),
    "weight_norm of half precision": lambda: torch._weight_norm_interface(
        torch.ones(3, 2).half(), torch.ones(3, 1).half()
    )[1],
    "statistics of half precision": lambda: torch.batch_norm_update_stats(
        torch.ones(2, 3, 4).half(), torch.ones(3).half(), torch.ones(3).half(), 0.5
    )[0],
    "batch_norm that updates nothing": lambda: torch.ops.aten._batch_norm_no_update(
        torch.ones(2, 3, 4), None, None, torch.ones(3), torch.ones(3), 0.1, 1e-5
    )[0],
    "mse_loss_backward of larger gradients": lambda: torch.ops.aten.mse_loss_backward(
        torch.ones(0, 4, 2), torch.ones(1), torch.ones(4, 2), 0
    ),
    "huber_loss with a number that names no reduction": lambda: torch.ops.aten.huber_loss(
        torch.ones(2, 1, 4), torch.ones(1, 1, 4), -5, 0.5
    ),
    "cholesky of nothing": lambda: torch.ops.aten.cholesky(torch.ones(0)),
    "oneDNN's convolution": lambda: torch.mkldnn_convolution(
        torch.ones(1, 4, 5), torch.ones(2, 4, 2), None, [0], [1], [1], 1
    ),
    "a foreach with a tensor of factors": lambda: torch._foreach_addcmul(
        [torch.ones(2, 3)], [torch.ones(2, 3)], [torch.ones(3)], torch.ones(1)
    )[0],
    "weight_norm over strides": lambda: torch._weight_norm_interface(
        torch.ones(2, 3, 3), torch.ones(2, 3, 6)[..., ::2]
    )[1],
    "one image through slow_conv_transpose2d": lambda: torch.ops.aten.slow_conv_transpose2d(
        torch.ones(2, 3, 3), torch.ones(2, 2, 1, 1), [1, 1]
    ),
    "a histogram of half precision": lambda: torch.histogram(torch.ones(3).half(), torch.arange(3).half())[0],
    "a comparison of an unsigned number": lambda: torch.tensor(1, dtype=torch.uint16) <= torch.ones(()),
    "_convolution": lambda: torch.ops.aten._convolution(
        torch.ones(1, 2, 4), torch.ones(2, 2, 1), None, [1], [0], [1], False, [0], 1, False, False, False, False
    ),
    "dropout of nothing": lambda: torch.native_dropout(torch.ones(0), 0.5, True)[1],
    "dropout that drops nothing": lambda: torch.native_dropout(torch.ones(2), 2.0, False)[1],
    "integers below a tensor": lambda: torch.ops.aten.randint_like.Tensor(torch.ones(2, 3).t(), torch.tensor(5)),
    "a lazy clone": lambda: torch._lazy_clone(torch.ones(4, 6).t()[1:, ::2]),
    "pinv under autocast": lambda: autocast_pinv(),
    "pinv after autocast": lambda: [autocast_pinv(), torch.linalg.pinv(torch.eye(3) + 1)][1],
}
if not hasattr(torch.ops.aten, "cholesky"):  # PyTorch 2.15 has removed it
    del CALLS["cholesky of nothing"]


def autocast_pinv() -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return torch.linalg.pinv(torch.eye(3) + 1)


@pytest.mark.parametrize("name", CALLS)
def test_a_result_looks_like_the_real_one(name):
    real = CALLS[name]()
    with fake_mode():
        for _ in range(2):
            fake = CALLS[name]()
            assert (fake.shape, fake.stride(), fake.dtype) == (real.shape, real.stride(), real.dtype)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_ctc_loss_takes_lengths_as_numbers_and_as_known_tensors(reduction, device):
    with fake_mode():
        log_probs = torch.randn(50, 3, 15, device=device, requires_grad=True)
        targets = torch.randint(1, 15, (3, 30), device=device)
        for lengths in ((50, 50, 50), (30, 25, 20)), (torch.tensor([50, 50, 50]), torch.tensor([30, 25, 20])):
            loss = F.ctc_loss(log_probs, targets, *lengths, reduction=reduction)
            loss.sum().backward()
            assert loss.shape == ((3,) if reduction == "none" else ())
            assert log_probs.grad.shape == (50, 3, 15)


def test_ctc_loss_of_unknown_lengths_says_which():
    with fake_mode():
        lengths = torch.randint(1, 5, (3,), device="cuda")
        with pytest.raises(DataDependentOutputException, match="_lengths"):
            F.ctc_loss(torch.randn(50, 3, 15, device="cuda"), lengths, lengths, lengths)


def test_multinomial_refuses_what_the_real_one_refuses():
    with fake_mode():
        with pytest.raises(RuntimeError, match="without replacement"):
            torch.multinomial(torch.rand(3), 4)
        with pytest.raises(RuntimeError, match="element < 0"):
            torch.multinomial(torch.tensor([1.0, -1.0]), 1)


def test_an_embedding_on_the_cpu_has_no_row_beyond_its_last():
    with fake_mode():
        positions = nn.Embedding(8, 4)
        positions(torch.arange(8))
        with pytest.raises(IndexError, match="index out of range"):
            positions(torch.arange(9))


def test_bags_of_an_embedding_without_rows_hold_nothing():
    with fake_mode():
        rows, first = torch.empty(0, 4), torch.tensor([0])
        assert F.embedding_bag(torch.empty(0, dtype=torch.int64), rows, first).shape == (1, 4)
        with pytest.raises(RuntimeError, match="there are no embeddings"):
            F.embedding_bag(torch.tensor([1]), rows, first)


def test_an_empty_mask_takes_no_values():
    with fake_mode():
        nothing, mask = torch.empty(0, 2), torch.empty(0, 2, dtype=torch.bool)
        nothing[mask] = torch.ones(1)
        with pytest.raises(RuntimeError, match="shape mismatch"):
            nothing[mask] = torch.ones(3)


def test_the_gradient_of_complex_singular_vectors_needs_no_values():
    with fake_mode():
        x = torch.randn(4, 3, dtype=torch.complex64, requires_grad=True)
        u, s, vh = torch.linalg.svd(x, full_matrices=False)
        (u @ vh).abs().sum().backward()
        assert x.grad.shape == (4, 3)
        with pytest.raises(DataDependentOutputException):
            torch.allclose(s, s * 2)


@pytest.mark.parametrize("product", [torch.prod, lambda x: x.prod(1), lambda x: x.cumprod(0)])
def test_the_gradient_of_a_product_needs_no_values_where_they_decide_nothing(product):
    with fake_mode():
        x = torch.rand(4, 3, requires_grad=True)
        product(x).sum().backward()
        assert x.grad.stride() == (3, 1)
        y = torch.rand(4, 3).t().requires_grad_()
        with pytest.raises((DataDependentOutputException, DynamicOutputShapeException)):
            product(y).sum().backward()


def test_points_between_unknown_numbers_have_a_shape():
    with fake_mode():
        assert torch.linspace(torch.rand(()), torch.rand(()), 5).shape == (5,)
        assert torch.logspace(0, torch.rand((), dtype=torch.complex64), 5).dtype == torch.complex64
        assert torch.linspace(torch.tensor(0), torch.tensor(4), 5).tolist() == [0, 1, 2, 3, 4]


def test_an_empty_tensor_is_always_known():
    with fake_mode():
        assert torch.rand(0, 3).sum().item() == 0
        assert torch.rand(0).tolist() == []
        sign = torch.tensor(1.0)
        sign[sign.lt(0)] = 2.0  # selects nothing
        assert sign.item() == 1.0


def test_right_singular_vectors_lie_in_rows_on_a_gpu():
    with fake_mode():
        assert torch.linalg.svd(torch.rand(4, 3), full_matrices=False)[2].stride() == (1, 3)
        assert torch.linalg.svd(torch.rand(4, 3, device="cuda"), full_matrices=False)[2].stride() == (3, 1)


@pytest.mark.parametrize("sizes", [((5, 3), (5, 2)), ((3, 5), (3, 2)), ((2, 5, 3), (2, 5)), ((2, 4, 4), (1, 4, 2))])
@pytest.mark.parametrize("driver", [None, "gels", "gelsy", "gelsd"])
def test_least_squares_need_no_values_where_the_rank_decides_nothing(sizes, driver):
    matrix, right = (torch.rand(size) for size in sizes)
    real = torch.linalg.lstsq(matrix, right, driver=driver)
    with fake_mode():
        arguments = torch.rand(sizes[0]), torch.rand(sizes[1])
        if driver == "gelsd" and sizes[0][-2] > sizes[0][-1]:
            with pytest.raises(DynamicOutputShapeException, match="full rank"):
                torch.linalg.lstsq(*arguments, driver=driver)
        else:
            fake = torch.linalg.lstsq(*arguments, driver=driver)
            assert [(x.shape, x.stride(), x.dtype) for x in fake] == [(x.shape, x.stride(), x.dtype) for x in real]
            assert torch.linalg.lstsq(arguments[0].cuda(), arguments[1].cuda()).rank.shape == (0,)


def test_one_image_is_left_as_it_is_by_slow_conv_transpose2d():
    with fake_mode():
        image = torch.ones(2, 3, 3)
        torch.ops.aten.slow_conv_transpose2d(image, torch.ones(2, 2, 1, 1), [1, 1])
        assert image.shape == (2, 3, 3)


@pytest.mark.parametrize("with_out", [False, True])
@pytest.mark.parametrize("contiguous", [False, True])
def test_one_image_gives_a_batch_as_the_real_slow_conv_transpose2d(contiguous, with_out):
    def shape() -> torch.Size:
        image = torch.ones(4, 3, 4)[..., ::2]
        arguments = (image.contiguous() if contiguous else image, torch.ones(4, 4, 1, 1), [1, 1])
        if with_out:
            return torch.ops.aten.slow_conv_transpose2d.out(*arguments, out=torch.empty(0)).shape
        return torch.ops.aten.slow_conv_transpose2d(*arguments).shape

    real = shape()
    with fake_mode():
        assert shape() == real


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_the_choice_of_an_attention_kernel_is_that_of_the_cpu(dtype, dropout):
    def choice() -> int:
        return torch._fused_sdp_choice(*(torch.ones(2, 2, 3, 4, dtype=dtype) for _ in range(3)), None, dropout, True)

    real = choice()
    with fake_mode():
        assert [choice(), choice()] == [real, real]


def test_the_choice_of_an_attention_kernel_is_that_of_a_claimed_gpu():
    with fake_mode(), torch.device("cuda"):
        half = [torch.ones(2, 2, 4, 8, dtype=torch.float16) for _ in range(3)]
        assert torch._fused_sdp_choice(*half) == int(SDPBackend.CUDNN_ATTENTION.value)
        assert torch._fused_sdp_choice(*(x.double() for x in half)) == int(SDPBackend.MATH.value)


def test_a_mask_that_takes_gradients_changes_the_choice_of_an_attention_kernel_whatever_was_cached() -> None:
    choices = []
    for device in ("cuda", "cpu"):
        for takes_gradients in (False, True, False):
            with fake_mode(), torch.device(device):
                query = torch.rand(2, 4, 16, 64, dtype=torch.float16)
                mask = torch.rand(2, 4, 16, 16, dtype=torch.float16, requires_grad=takes_gradients)
                choices.append(SDPBackend(torch._fused_sdp_choice(query, query, query, mask)).name)
    cuda = ["CUDNN_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION"]
    assert choices == [*cuda, "FLASH_ATTENTION", "MATH", "FLASH_ATTENTION"]


def test_the_choice_of_an_attention_kernel_follows_the_order_that_the_program_sets() -> None:
    def choice() -> str:
        return SDPBackend(torch._fused_sdp_choice(half, half, half)).name

    with fake_mode(), torch.device("cuda"):
        half = torch.ones(2, 2, 4, 8, dtype=torch.float16)
        assert choice() == "CUDNN_ATTENTION"
        with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION], set_priority=True):
            assert choice() == "EFFICIENT_ATTENTION"
            kernel = F.scaled_dot_product_attention(half.requires_grad_(), half, half).grad_fn
            assert type(kernel).__name__ == "ScaledDotProductEfficientAttentionBackward0"
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION], set_priority=True):
            assert choice() == "FLASH_ATTENTION"
        assert choice() == "CUDNN_ATTENTION"


def test_attention_on_a_claimed_gpu_is_refused_if_no_enabled_kernel_takes_the_inputs() -> None:
    with fake_mode(), torch.device("cuda"):
        double = torch.ones(2, 2, 4, 8, dtype=torch.float64)
        for kernel in (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION):
            with sdpa_kernel(kernel), pytest.raises(RuntimeError, match="No available kernel"):
                F.scaled_dot_product_attention(double, double, double)
        with sdpa_kernel([]), pytest.raises(RuntimeError, match="No viable backend"):
            F.scaled_dot_product_attention(double, double, double)
        with sdpa_kernel(SDPBackend.MATH):
            assert F.scaled_dot_product_attention(double, double, double).shape == (2, 2, 4, 8)


def test_group_normalisation_on_a_gpu_has_the_format_of_the_release() -> None:
    keeps = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 15)
    strides = (4096, 1, 512, 64) if keeps else (4096, 64, 8, 1)
    with fake_mode():
        x = torch.randn(2, 64, 8, 8, device="cuda").to(memory_format=torch.channels_last).requires_grad_()
        out = F.group_norm(x, 8)
        out.sum().backward()
        assert out.stride() == strides
        assert x.grad is not None and x.grad.stride() == x.stride()  # like the leaf, whatever the kernel returns
