"""No cached result survives a change of a setting that it depends on.

Each sample is called repeatedly while settings are changed between the calls, and on every hit the kernel runs too and
the results are compared. A kernel that reads a setting missing from the key is detected by the next value of it.
"""

from __future__ import annotations

import contextlib
import random
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import suite_operators
import torch
from engines import fake_tree
from settings import SETTINGS, all_restored, shuffled
from torch.utils import _pytree as pytree
from variants import Arguments, arguments_of, channels_last

import torchfake

CALLS = 8
DTYPES = (torch.float32, torch.bfloat16)


class _Fakes:
    """Converts each tensor to a fake that claims `device`."""

    def __init__(self, device: str) -> None:
        self.device = device

    def fake(self, tensor: torch.Tensor, device: str | None) -> torch.Tensor:
        return torchfake.to_fake(tensor, device=self.device)

    def inside(self) -> contextlib.AbstractContextManager[Any]:
        return torchfake.fake_mode()


def samples(subject: str) -> Iterator[Arguments]:
    for op in suite_operators.operators()[subject]:
        for dtype in DTYPES:
            if dtype not in op.supported_dtypes("cpu"):
                continue
            for sample in list(op.sample_inputs("cpu", dtype))[:2]:
                arguments = arguments_of(sample)
                yield arguments
                yield pytree.tree_map_only(torch.Tensor, channels_last, arguments)


def call_with_shuffled_settings(subject: str, arguments: Arguments, device: str, chance: random.Random) -> None:
    op = suite_operators.operators()[subject][0]
    for _ in range(CALLS):
        try:
            args, kwargs = fake_tree(_Fakes(device), arguments)
        except torchfake.UnsupportedFakeTensorException:
            return  # a sparse sample
        with shuffled(chance) as chosen, torchfake.fake_mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                op(*args, **kwargs)
            except torchfake.MetadataMismatchError as error:
                pytest.fail(f"{subject} on {device} with {', '.join(chosen)}: {error}")
            except (RuntimeError, TypeError, ValueError, IndexError, AssertionError):
                continue  # refusals are compared like results


@pytest.mark.parametrize("subject", suite_operators.subjects())
def test_no_hit_survives_a_change_of_what_it_depends_on(subject: str) -> None:
    chance = random.Random(subject)
    with all_restored(), torchfake.cross_check_cache():
        for arguments in samples(subject):
            for device in ("cpu", "cuda"):
                call_with_shuffled_settings(subject, arguments, device, chance)


def test_every_setting_can_be_changed_and_put_back() -> None:
    for name, setting in SETTINGS.items():
        before = setting.get()
        for value in setting.values:
            with setting.put(value):
                assert setting.get() == value, name
        assert setting.get() == before, name
