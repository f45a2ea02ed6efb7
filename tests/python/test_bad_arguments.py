"""What the real kernels refuse, fakes refuse: dtypes, sizes and overlaps that meta kernels let pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from torchfake import fake_mode

R = torch.rand


def doubled(*sizes: int) -> Tensor:
    return R(*sizes).double()


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
    "the least so far of complex numbers": lambda: torch.cummin(R(3).to(torch.complex64), 0),
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
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_real_tensors_refuse_is_refused_with_the_same_type(name: str) -> None:
    with pytest.raises(Exception) as real:
        REFUSED[name]()
    with fake_mode():
        for _ in range(2):  # from the kernel, and from the cache
            with pytest.raises(real.type):
                REFUSED[name]()


#: Each looks like one that is refused, and is accepted.
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
}


@pytest.mark.filterwarnings("ignore:Use of .* on expanded tensors is deprecated")
@pytest.mark.parametrize("name", list(ACCEPTED))
def test_what_real_tensors_accept_is_accepted(name: str) -> None:
    real = ACCEPTED[name]()
    with fake_mode():
        fake = ACCEPTED[name]()
    assert (fake.dtype, fake.shape, fake.stride()) == (real.dtype, real.shape, real.stride())


def test_the_error_names_operator_argument_and_dtypes() -> None:
    with fake_mode(), pytest.raises(RuntimeError, match=r"aten::bmm: argument 'mat2' is Double .*'self' that is Float"):
        torch.bmm(R(1, 2, 3), doubled(1, 3, 2))
    with (
        fake_mode(),
        pytest.raises(NotImplementedError, match=r"not implemented for 'Long' \(aten::_softmax on cuda\)"),
    ):
        torch.softmax(torch.randint(3, (4,), device="cuda"), 0)


def test_a_device_is_held_to_what_its_own_kernels_refuse() -> None:
    with fake_mode():
        assert torch.mm(torch.randint(3, (2, 3)), torch.randint(3, (3, 2))).dtype == torch.int64
        with pytest.raises(NotImplementedError, match="addmm_cuda"):
            torch.mm(torch.randint(3, (2, 3), device="cuda"), torch.randint(3, (3, 2), device="cuda"))
        # Of other devices nothing is recorded.
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
