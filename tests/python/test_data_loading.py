"""Loaders and samplers in the mode: indices are drawn for real, batches are fake."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    random_split,
)
from torch.utils.data.distributed import DistributedSampler
from undrawn import fake_mode

import torchfake
from torchfake import DataAccessError, is_fake


class _Samples(Dataset[tuple[Tensor, Tensor, int]]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        return torch.rand(3, 4), torch.full((2,), index), index


class _Stream(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        for _ in range(5):
            yield torch.rand(3)


class _DrawsItsOwn(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(10).tolist()

    def __len__(self) -> int:
        return 10


LOADERS: dict[str, Callable[[], DataLoader[Any]]] = {
    "in_order": lambda: DataLoader(_Samples(), batch_size=4),
    "shuffled": lambda: DataLoader(_Samples(), batch_size=4, shuffle=True),
    "stream": lambda: DataLoader(_Stream(), batch_size=2),
    "own_sampler": lambda: DataLoader(_Samples(), batch_size=4, sampler=_DrawsItsOwn()),
    "workers": lambda: DataLoader(_Samples(), batch_size=4, shuffle=True, num_workers=2),
    "persistent": lambda: DataLoader(_Samples(), batch_size=4, num_workers=1, persistent_workers=True),
    "tensors": lambda: DataLoader(TensorDataset(torch.rand(6, 2), torch.arange(6)), batch_size=3, shuffle=True),
}


@pytest.mark.parametrize("name", LOADERS)
def test_a_loader_gives_fake_batches_of_the_real_shapes(name: str) -> None:
    def program() -> list[Any]:
        loader = LOADERS[name]()
        return [*loader, *loader]  # two epochs

    real = program()
    with fake_mode():
        fake = program()
        assert is_fake(torch.ones(1)), "the mode was lost on the way"
    assert len(fake) == len(real)
    for got, expected in zip(fake, real, strict=True):
        got, expected = ([each] if isinstance(each, Tensor) else each for each in (got, expected))
        assert [(is_fake(x), x.shape, x.dtype) for x in got] == [(True, x.shape, x.dtype) for x in expected]


def test_a_loader_shuffles_with_the_generator_of_a_claimed_default_device() -> None:
    with torchfake.fake_mode(), torch.device("cuda"):
        generator = torch.Generator("cuda").manual_seed(1)
        loader = DataLoader(_Samples(), batch_size=5, shuffle=True, generator=generator)
        epochs = [[index for *_, batch in loader for index in batch.tolist()] for _ in range(2)]
    assert sorted(epochs[0]) == list(range(10)) and epochs[0] != epochs[1]
    assert loader.sampler.generator is generator


def test_a_shuffled_epoch_visits_every_sample_once() -> None:
    with fake_mode():
        indices = [i for _, _, batch in DataLoader(_Samples(), batch_size=4, shuffle=True) for i in batch.tolist()]
    assert sorted(indices) == list(range(10))


SAMPLERS: dict[str, Callable[[], Any]] = {
    "random": lambda: list(RandomSampler(range(6))),
    "replacement": lambda: list(RandomSampler(range(6), replacement=True, num_samples=40)),
    "generator": lambda: list(RandomSampler(range(6), generator=torch.Generator().manual_seed(3))),
    "subset": lambda: list(SubsetRandomSampler([3, 5, 7])),
    "weighted": lambda: list(WeightedRandomSampler([0.1, 0.9, 0.0], 5)),
    "weighted_by_tensor": lambda: list(WeightedRandomSampler(torch.tensor([0.1, 0.9, 0.0]), 5)),
    "distributed": lambda: list(DistributedSampler(range(6), num_replicas=2, rank=0)),
    "batches": lambda: list(BatchSampler(RandomSampler(range(5)), 2, drop_last=False)),
    "split": lambda: [list(part.indices) for part in random_split(range(5), [2, 3])],
    "split_by_fraction": lambda: [list(part.indices) for part in random_split(range(10), [0.3, 0.7])],
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_samplers_draw_in_the_mode_what_they_draw_outside(name: str) -> None:
    torch.manual_seed(0)
    expected = SAMPLERS[name]()
    torch.manual_seed(0)
    with fake_mode():
        assert SAMPLERS[name]() == expected


def test_between_two_samples_the_mode_is_on() -> None:
    with fake_mode():
        for _ in RandomSampler(range(3)):
            assert is_fake(torch.ones(1))


def test_weights_that_are_not_known_are_a_typed_error() -> None:
    with fake_mode(), pytest.raises(DataAccessError):
        WeightedRandomSampler(torch.rand(3), 2)
