"""Operators whose decomposition reads data on the CPU."""

from __future__ import annotations

import pytest
import torch
from metadata import metadata

from torchfake import fake_mode


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
