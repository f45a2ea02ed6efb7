"""Values that a cache hit reuses from an earlier call equal those that the operator would compute."""

from __future__ import annotations

import pytest
import torch
from undrawn import fake_mode

from torchfake import DataDependentOutputException

TIMES = 6  # a miss, a hit that stores the values it derives, and hits that reuse them


@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
def test_known_inputs_that_change_give_other_results(device: str) -> None:
    with fake_mode():
        for time in range(TIMES):
            for value in (0.0, 1.0, 1.0, float(time)):
                mask = torch.full((2, 4), value, device=device)
                assert mask.bool().tolist() == [[value != 0] * 4] * 2
                assert (1.0 - mask).tolist() == [[1 - value] * 4] * 2
                assert mask.cumsum(-1)[0].tolist() == [value, 2 * value, 3 * value, 4 * value]
                assert mask.max(-1).indices.tolist() == [0, 0]


def test_inputs_that_always_change_give_their_own_results() -> None:
    with fake_mode():
        for step in range(12):
            assert (torch.full((3,), step) + 1).tolist() == [step + 1] * 3
        for step in range(12):
            assert (torch.full((3,), step) + 1).tolist() == [step + 1] * 3


def test_a_write_through_a_pointer_is_seen() -> None:
    with fake_mode():
        x = torch.zeros(3)
        array = x.numpy()
        for time in range(TIMES):
            array[0] = time
            assert (x + 1).tolist() == [time + 1, 1, 1]


def test_numbers_that_only_scale_are_sources_too() -> None:
    with fake_mode():
        x = torch.ones(3)
        for time in range(TIMES):
            assert (x * 2).tolist() == [2, 2, 2]
            assert (x * time).tolist() == [time] * 3
            assert torch.add(x, x, alpha=time).tolist() == [1 + time] * 3
            assert torch.sub(x, 0.5, alpha=time).tolist() == [1 - 0.5 * time] * 3


def test_each_result_has_values_of_its_own() -> None:
    with fake_mode():
        x = torch.arange(4)
        for _ in range(TIMES):
            result = x + 1
            assert result.tolist() == [1, 2, 3, 4]
            result.zero_()
            result.numpy()[0] = 7


def test_parts_of_a_storage_are_distinguished() -> None:
    with fake_mode():
        whole = torch.arange(8)
        for _ in range(TIMES):
            assert (whole[:4] + 1).tolist() == [1, 2, 3, 4]
            assert (whole[4:] + 1).tolist() == [5, 6, 7, 8]


def test_bounds_follow_those_of_the_inputs() -> None:
    with fake_mode():
        for _ in range(TIMES):
            small, large = torch.rand(4), torch.rand(4) * 3
            assert bool((small + 1 <= 2).all())
            with pytest.raises(DataDependentOutputException):
                bool((large + 1 <= 2).all())
            assert bool((large + 1 <= 4).all())
            assert bool(torch.empty(2, 5).argmax(-1).max() < 5)
            assert bool(torch.empty(2, 5).topk(2).indices.max() < 5)


def test_unknown_inputs_between_known_ones_stay_unknown() -> None:
    with fake_mode():
        for _ in range(TIMES):
            assert (torch.ones(3) != 0).all().item()
            with pytest.raises(DataDependentOutputException):
                (torch.empty(3).uniform_(-1, 1) != 0).all().item()


def test_a_tensor_compared_with_itself_is_told_from_another() -> None:
    with fake_mode():
        x, y = (torch.empty(4, 5).argmax(-1) for _ in range(2))  # unknown, with the same bounds
        for _ in range(TIMES):
            assert not (x < x).any().item()
            with pytest.raises(DataDependentOutputException):
                (x < y).any().item()


def test_indices_are_checked_on_every_call() -> None:
    with fake_mode():
        table, loss = torch.empty(4, 2), torch.nn.functional.nll_loss
        for _ in range(TIMES):
            assert torch.nn.functional.embedding(torch.tensor([0, 3]), table).shape == (2, 2)
            with pytest.raises(IndexError):
                torch.nn.functional.embedding(torch.tensor([0, 4]), table)
            assert loss(table, torch.tensor([0, 1, 1, 0])).shape == ()
            with pytest.raises(IndexError):
                loss(table, torch.tensor([0, 1, 2, 0]))


def test_a_mode_with_a_lower_limit_knows_less() -> None:
    for _ in range(2):
        with fake_mode():
            for _ in range(TIMES):
                assert (torch.ones(8) + 1).tolist() == [2] * 8
        with fake_mode(known_values_limit=4):
            for _ in range(TIMES):
                with pytest.raises(DataDependentOutputException):
                    (torch.ones(8) + 1).tolist()
                assert (torch.ones(4) + 1).tolist() == [2] * 4


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_statistics_are_known_until_they_are_updated(device: str) -> None:
    with fake_mode():
        norm = torch.nn.BatchNorm2d(3, device=device)
        picture = torch.empty(2, 3, 4, 4, device=device)
        for _ in range(TIMES):
            norm.eval()(picture)
            assert norm.running_var is not None
            assert norm.running_var.tolist() == [1, 1, 1]
        norm.train()(picture)
        with pytest.raises(DataDependentOutputException):
            norm.running_var.tolist()


@pytest.mark.parametrize("count", [1, 32, 33, 256, 257, 1024])
def test_values_of_every_size_are_copied_whole(count: int) -> None:
    with fake_mode():
        for _ in range(TIMES):
            kept = [torch.arange(count) + 1 for _ in range(3)]
            assert all(each.tolist() == list(range(1, count + 1)) for each in kept)
            kept[0].resize_(2 * count)
            assert kept[1].tolist() == list(range(1, count + 1))
