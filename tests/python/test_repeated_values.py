"""Large tensors with few distinct values are known like small ones, and forgotten like them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from metadata import metadata
from torch import Tensor
from undrawn import fake_mode

from torchfake import DataDependentOutputException, DynamicOutputShapeException

SIDE = 300  # a square of it has more elements than the mode allows to know


def row(device: str) -> Tensor:
    return torch.arange(SIDE, device=device)


def grid() -> Tensor:
    """One number, in a large storage."""
    return torch.ones(1).expand(SIDE, SIDE).clone()


def square(device: str) -> Tensor:
    """Each row is the same."""
    return row(device).expand(SIDE, SIDE)


# Each creates a small tensor from a large one.
PROGRAMS: dict[str, Callable[[str], Tensor]] = {
    "corner_of_a_view": lambda d: square(d)[7, :9],
    "corner_of_a_copy": lambda d: square(d).clone()[7, :9],
    "column": lambda d: square(d).float()[:, 3],
    "steps": lambda d: (square(d) + 1)[::100, 5::50],
    "transposed": lambda d: (square(d).t() * 2)[::100, 4],
    "converted": lambda d: square(d).to(torch.float16).bool()[0, :3],
    "inverted_mask": lambda d: (1.0 - square(d).float()).masked_fill(square(d) > 3, -7.0)[2, :6],
    "two_ways": lambda d: torch.where(square(d) > 4, row(d)[:1], square(d))[0, ::37],
    "scalar_and_row": lambda d: (square(d) + row(d) - torch.tensor(1, device=d))[299, 290:],
    "expanded_again": lambda d: (square(d) + 1)[None].expand(2, SIDE, SIDE)[1, 2, :3],
    "unfolded": lambda d: (square(d) + 1).view(SIDE, 30, 10)[5, 29, 8:],
    "sum": lambda d: (square(d) + 1).sum(1)[:3],
    "all": lambda d: (square(d) >= 0).all(),
    "maximum": lambda d: square(d).amax(dim=(0, 1)),
    "pooled": lambda d: torch.nn.functional.interpolate(torch.ones(1, device=d).expand(1, 1, SIDE, SIDE), size=(3, 3)),
    "last_channel": lambda d: (
        torch.arange(3.0, device=d).view(1, 3, 1, 1).expand(2, 3, SIDE, SIDE).contiguous(
            memory_format=torch.channels_last
        )
        * 2
    )[1, :, 5, 6],
    "flat": lambda d: torch.ones(1, device=d).expand(SIDE, SIDE).clone().flatten()[SIDE - 2 : SIDE + 2],
    "conjugate": lambda d: (torch.tensor([1 + 2j], device=d).expand(SIDE, SIDE).clone().conj())[0, :2],
}  # fmt: skip


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_comes_out_of_a_large_tensor_of_few_values_is_known(name: str, device: str) -> None:
    real = PROGRAMS[name]("cpu")
    with fake_mode():
        fake = PROGRAMS[name](device)
        assert fake.tolist() == real.tolist()
    assert metadata(fake) == metadata(real)


def test_a_mask_repeated_over_features_selects_a_known_number() -> None:
    with fake_mode():
        tokens = torch.tensor([[1, 9, 9, 2], [1, 9, 2, 2]])
        embedded = torch.randn(2, 4, 1_000_000)
        mask = (tokens == 9)[..., None].expand_as(embedded)
        assert embedded[mask].shape == (3_000_000,)
        assert embedded.masked_select(mask).shape == (3_000_000,)
        assert embedded.masked_scatter(mask, torch.randn(3, 1_000_000)).shape == embedded.shape


UNKNOWN: dict[str, Callable[[], Tensor]] = {
    "written": lambda: grid().add_(1),
    "written_in_a_corner": lambda: written_in_a_corner(grid()),
    "written_through_a_view": lambda: written_in_a_corner(grid().t()).t(),
    "random": lambda: torch.rand(1).expand(SIDE, SIDE),
    "random_among_them": lambda: grid() + torch.rand(SIDE, SIDE),
    "running_sum": lambda: grid().cumsum(0),
    "all_differ": lambda: row("cpu")[:, None] + row("cpu"),
    "across": lambda: (square("cpu") + 1).flatten()[SIDE - 1 :],
    "diagonal": lambda: (square("cpu") + 1).diagonal(),
    "resized": lambda: grid().resize_(SIDE, SIDE + 1),
    "dropout": lambda: torch.nn.functional.dropout(grid()),
}


def written_in_a_corner(tensor: Tensor) -> Tensor:
    tensor[0, 0] = 5
    return tensor


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_does_not_repeat_or_was_written_is_not_known(name: str) -> None:
    with fake_mode():
        tensor = UNKNOWN[name]()
        with pytest.raises(DataDependentOutputException):
            tensor.reshape(-1)[:2].sum().item()


def test_the_limit_counts_values_not_elements() -> None:
    with fake_mode(known_values_limit=8):
        assert torch.arange(8).expand(100, 8).clone()[99].tolist() == list(range(8))
        with pytest.raises(DynamicOutputShapeException):
            torch.arange(9).expand(100, 9).clone()[99].nonzero()


def test_a_tensor_too_large_to_read_is_not_read_whole() -> None:
    with fake_mode():
        mask = torch.ones(1, dtype=torch.bool).expand(10_000, 10_000)
        with pytest.raises(DataDependentOutputException):
            bool(mask.all())
        with pytest.raises(DataDependentOutputException):
            (~mask)[0, 0].item()
        assert mask[0, :2].tolist() == [True, True]


def test_a_pointer_to_a_large_tensor_of_one_value_is_refused() -> None:
    with fake_mode():
        tensor = grid()
        assert tensor[0, 0].item() == 1
        with pytest.raises(RuntimeError, match="no data"):
            tensor.numpy()
