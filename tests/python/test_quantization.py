"""Quantization-aware training, compared with real CPU tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from metadata import assert_answers_like_real
from torch import Tensor, nn

from torchfake import fake_mode

aten = torch.ops.aten


def matrix() -> Tensor:
    return torch.ones(6, 4).t()


def observed(per_row: bool, size: int, axis: int = 0, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    on = torch.ones(1)
    ranges = [torch.zeros(size), torch.zeros(size), torch.zeros(size), torch.zeros(size, dtype=torch.int32)]
    x = matrix().to(dtype)
    quantized = aten._fused_moving_avg_obs_fq_helper(x, on, on, *ranges, 0.01, -128, 127, axis, per_row, False)
    return [*quantized, *ranges]


def per_channel(axis: int, size: int, zero_point: torch.dtype = torch.int32) -> Any:
    zeros = torch.zeros(size, dtype=zero_point)
    return aten.fake_quantize_per_channel_affine_cachemask(matrix(), torch.ones(size), zeros, axis, -128, 127)


def learnable(operator: Any, dtype: torch.dtype, *arguments: int, size: int = 1, grad: bool = True) -> Any:
    x, scale, zero = matrix().to(dtype), torch.ones(size, dtype=dtype), torch.zeros(size, dtype=dtype)
    return operator(*([x] if grad else []), x, scale, zero, *arguments, -128, 127)


TENSOR, CHANNEL = aten._fake_quantize_learnable_per_tensor_affine, aten._fake_quantize_learnable_per_channel_affine
TENSOR_BACKWARD = aten._fake_quantize_learnable_per_tensor_affine_backward
CHANNEL_BACKWARD = aten._fake_quantize_learnable_per_channel_affine_backward

CALLS: dict[str, Callable[[], Any]] = {
    "per tensor": lambda: aten.fake_quantize_per_tensor_affine_cachemask(matrix(), 1.0, 0, -128, 127),
    "per tensor, of integers": lambda: aten.fake_quantize_per_tensor_affine_cachemask(
        matrix().int(), 1.0, 0, -128, 127
    ),
    "per tensor, out of range": lambda: aten.fake_quantize_per_tensor_affine_cachemask(matrix(), 1.0, 300, -128, 127),
    "per tensor, no range": lambda: aten.fake_quantize_per_tensor_affine_cachemask(matrix(), 1.0, 0, 128, -127),
    "per tensor, by tensors": lambda: torch.fake_quantize_per_tensor_affine(
        matrix(), torch.ones(1), torch.zeros(1, dtype=torch.int32), -128, 127
    ),
    "per channel": lambda: per_channel(0, 4),
    "per channel, of floats": lambda: per_channel(1, 6, torch.float32),
    "per channel, of longs": lambda: per_channel(1, 6, torch.int64),
    "per channel, of a wrong size": lambda: per_channel(0, 6),
    "per channel, of no axis": lambda: per_channel(3, 4),
    "learnable": lambda: learnable(TENSOR, torch.float32, grad=False),
    "learnable backward": lambda: learnable(TENSOR_BACKWARD, torch.float32),
    "learnable backward of bfloat16": lambda: learnable(TENSOR_BACKWARD, torch.bfloat16),
    "learnable per channel": lambda: learnable(CHANNEL, torch.float32, 1, size=6, grad=False),
    "learnable per channel backward": lambda: learnable(CHANNEL_BACKWARD, torch.float32, 1, size=6),
    "learnable per channel backward of bfloat16": lambda: learnable(CHANNEL_BACKWARD, torch.bfloat16, 0, size=4),
    "observed": lambda: observed(False, 1),
    "observed by rows": lambda: observed(True, 4),
    "observed by rows for the first time": lambda: observed(True, 0),
    "observed by columns": lambda: observed(True, 0, axis=1),
    "observed along no axis": lambda: observed(False, 1, axis=3),
    "observed halves": lambda: observed(False, 1, dtype=torch.bfloat16),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_quantized_tensor_looks_like_the_real_one(name):
    assert_answers_like_real(CALLS[name])


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_network_trains_for_quantization(device):
    from torch.ao import quantization

    with fake_mode():
        linear = torch.ao.nn.qat.Linear(8, 4, qconfig=quantization.get_default_qat_qconfig("fbgemm", version=1))
        model = nn.Sequential(linear, nn.ReLU()).to(device)
        model(torch.randn(2, 8, device=device)).sum().backward()
        assert linear.weight.grad.shape == (4, 8)
