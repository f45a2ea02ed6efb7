"""torch.use_deterministic_algorithms(True): kernels without a deterministic implementation are refused as real ones."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from torchfake import fake_mode

Program = Callable[[], object]


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def on_gpu(*sizes: int) -> Tensor:
    return torch.rand(*sizes, device="cuda", requires_grad=True)


def places(*sizes: int) -> Tensor:
    return torch.zeros(sizes, dtype=torch.long, device="cuda")


def backward(result: Tensor) -> None:
    result.sum().backward()


#: The names of CUDA kernels in the error, from PyTorch's sources.
REFUSED: dict[str, Program] = {
    "max_unpooling2d_forward_out": lambda: F.max_unpool2d(on_gpu(1, 1, 2, 2), places(1, 1, 2, 2), 2),
    "max_unpooling3d_forward_out": lambda: F.max_unpool3d(on_gpu(1, 1, 2, 2, 2), places(1, 1, 2, 2, 2), 2),
    "put_": lambda: torch.zeros(9, device="cuda").put_(places(2), torch.ones(2, device="cuda"), accumulate=True),
    "_bincount_cuda": lambda: torch.bincount(torch.tensor([1, 2], device="cuda"), torch.ones(2, device="cuda")),
    "_histc_cuda with floating point input": lambda: torch.histc(on_gpu(9)),
    "median CUDA with indices output": lambda: on_gpu(3, 3).median(0),
    "index_reduce_cuda": lambda: torch.zeros(3, device="cuda").index_reduce_(
        0, places(3), torch.ones(3, device="cuda"), "prod"
    ),
    "scatter_reduce_cuda_prod_": lambda: torch.zeros(3, device="cuda").scatter_reduce_(
        0, places(3), torch.ones(3, device="cuda"), "prod"
    ),
    "scatter_reduce_cuda_kernel": lambda: torch.zeros(3, device="cuda").scatter_(
        0, places(3), torch.ones(3, device="cuda"), reduce="multiply"
    ),
    "nll_loss2d_forward_out_cuda_template": lambda: F.cross_entropy(on_gpu(1, 2, 3, 3), places(1, 3, 3)),
    "embedding_bag_backward_cuda_max": lambda: backward(F.embedding_bag(places(2, 2), on_gpu(4, 3), mode="max")),
    "adaptive_avg_pool2d_backward_cuda": lambda: backward(F.adaptive_avg_pool2d(on_gpu(1, 1, 5, 5), 2)),
    "adaptive_avg_pool3d_backward_cuda": lambda: backward(F.adaptive_avg_pool3d(on_gpu(1, 1, 5, 5, 5), 2)),
    "adaptive_max_pool2d_backward_cuda": lambda: backward(F.adaptive_max_pool2d(on_gpu(1, 1, 5, 5), 2)),
    "avg_pool3d_backward_cuda": lambda: backward(F.avg_pool3d(on_gpu(1, 1, 4, 4, 4), 2)),
    "max_pool3d_with_indices_backward_cuda": lambda: backward(F.max_pool3d(on_gpu(1, 1, 4, 4, 4), 2)),
    "fractional_max_pool2d_backward_cuda": lambda: backward(F.fractional_max_pool2d(on_gpu(1, 1, 6, 6), 2, 3)),
    "reflection_pad1d_backward_out_cuda": lambda: backward(F.pad(on_gpu(1, 1, 4), (1, 1), mode="reflect")),
    "upsample_bicubic2d_backward_out_cuda": lambda: backward(  # F.interpolate avoids it since PyTorch 2.15
        torch.ops.aten.upsample_bicubic2d(on_gpu(1, 1, 4, 4), [8, 8], False)
    ),
    "upsample_linear1d_backward_out_cuda": lambda: backward(
        F.interpolate(on_gpu(1, 1, 4), scale_factor=2, mode="linear")
    ),
}


@pytest.mark.parametrize("kernel", REFUSED)
def test_a_kernel_of_a_gpu_without_a_deterministic_implementation_is_refused(kernel: str) -> None:
    """Before and after the setting has changed: the outcomes of both are in the cache."""
    with fake_mode():
        for _ in range(2):
            REFUSED[kernel]()
            torch.use_deterministic_algorithms(True)
            try:
                with pytest.raises(RuntimeError, match=f"^{kernel} does not have a deterministic implementation"):
                    REFUSED[kernel]()
            finally:
                torch.use_deterministic_algorithms(False)


ACCEPTED: list[Program] = [
    lambda: torch.zeros(9, device="cuda").scatter_add_(0, places(3), torch.ones(3, device="cuda")),
    lambda: torch.zeros(9, device="cuda").scatter_(0, places(3), torch.ones(3, device="cuda")),
    lambda: torch.zeros(9, device="cuda").scatter_(0, places(3), torch.ones(3, device="cuda"), reduce="add"),
    lambda: torch.zeros(9, device="cuda").index_add_(0, places(3), torch.ones(3, device="cuda")),
    lambda: torch.histc(torch.ones(9, dtype=torch.int, device="cuda")),
    lambda: on_gpu(3, 3).median(),
    lambda: on_gpu(3, 3).cumsum(0),
    lambda: F.cross_entropy(on_gpu(1, 2, 3, 3), places(1, 3, 3), reduction="none"),
    lambda: backward(F.embedding_bag(places(2, 2), on_gpu(4, 3), mode="sum")),
    lambda: backward(F.interpolate(on_gpu(1, 1, 4, 4), scale_factor=2, mode="nearest")),
    lambda: backward(F.conv2d(on_gpu(1, 1, 4, 4), on_gpu(1, 1, 2, 2))),
    lambda: backward(on_gpu(3, 4) @ on_gpu(4, 3)),
]


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("program", ACCEPTED)
def test_what_a_gpu_computes_in_order_is_accepted(program: Program) -> None:
    with fake_mode():
        program()


def on_cpu() -> list[Program]:
    ones, at = torch.ones(1, 1, 2, 2), torch.zeros(1, 1, 2, 2, dtype=torch.long)
    return [
        lambda: F.max_unpool2d(ones, at, 2),
        lambda: torch.zeros(9).put_(at.view(-1), ones.view(-1)),
        lambda: torch.zeros(9).put_(at.view(-1), ones.view(-1), accumulate=True),
        lambda: torch.zeros(9).put(at.view(-1), ones.view(-1)),
        lambda: torch.histc(ones),
        lambda: ones.median(0),
        lambda: torch.zeros(9).scatter_(0, at.view(-1), ones.view(-1), reduce="multiply"),
    ]


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("index", range(len(on_cpu())))
def test_the_cpu_refuses_what_the_real_one_refuses(index: int) -> None:
    def outcome() -> str:
        try:
            on_cpu()[index]()
        except RuntimeError as error:
            return str(error)
        return ""

    real = outcome()
    with fake_mode():
        assert outcome() == real


def test_a_program_that_asked_for_a_warning_gets_one() -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with fake_mode(), warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            on_gpu(5, 3).median(0)
    finally:
        torch.use_deterministic_algorithms(False)
    assert any("median CUDA with indices output" in str(warning.message) for warning in seen)
