"""The properties by which fakes are compared: everything that a program can see of a tensor except its values."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchfake import fake_mode, is_fake


def metadata(tensor: Tensor) -> dict[str, Any]:
    """All properties that must agree with a real tensor, except the device."""
    inference = tensor.is_inference()
    return {
        "type": type(tensor),
        "dtype": tensor.dtype,
        "layout": tensor.layout,
        "size": tuple(tensor.shape),
        "stride": tensor.stride(),
        "storage_offset": tensor.storage_offset(),
        "storage_nbytes": tensor.untyped_storage().nbytes(),
        "requires_grad": tensor.requires_grad,
        "is_leaf": tensor.is_leaf,
        "grad_fn": tensor.grad_fn.name() if tensor.grad_fn is not None else None,
        "is_view": tensor._is_view(),
        "is_conj": tensor.is_conj(),
        "is_neg": tensor.is_neg(),
        "is_zerotensor": tensor._is_zerotensor(),
        "is_inference": inference,
        "version": None if inference else tensor._version,
    }


def storage_groups(tensors: Iterable[Tensor]) -> list[int]:
    """For each tensor, the position of the first one that shares its storage."""
    ids = [tensor.untyped_storage()._cdata for tensor in tensors]
    return [ids.index(each) for each in ids]


def tensors_in(result: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]


def assert_same_metadata(
    fake: Any, real: Any, *, device: str | torch.device | None = None, ignored: tuple[str, ...] = ()
) -> None:
    """`fake` must hold fakes, on `device` if given, that match the tensors of `real`, and the same other values."""
    fake_leaves, real_leaves = tree_leaves(fake), tree_leaves(real)
    assert len(fake_leaves) == len(real_leaves)
    for position, (got, expected) in enumerate(zip(fake_leaves, real_leaves, strict=True)):
        if not isinstance(expected, Tensor):
            assert got == expected, f"result {position}: {got} where real tensors give {expected}"
            continue
        assert isinstance(got, Tensor) and is_fake(got), f"result {position} is not fake: {got}"
        wanted, found = metadata(expected), metadata(got)
        different = {
            name: (found[name], wanted[name]) for name in wanted if found[name] != wanted[name] and name not in ignored
        }
        assert not different, f"result {position} differs, (fake, real): {different}"
        assert device is None or got.device == torch.device(device), f"result {position} claims {got.device}"
    assert storage_groups(tensors_in(fake)) == storage_groups(tensors_in(real)), "other tensors share a storage"


def assert_answers_like_real(
    call: Callable[[], Any], *, while_fake: Callable[[], AbstractContextManager[Any]] = nullcontext
) -> None:
    """Checks that `call` has the same result or error on fakes of unknown values; twice, for the cache."""
    try:
        real = call()
    except Exception as error:
        real = error
    with fake_mode(known_values_limit=0):
        for _ in range(2):
            with while_fake():
                if isinstance(real, Exception):
                    with pytest.raises(type(real)):
                        call()
                else:
                    assert_same_metadata(call(), real)


def assert_like_real(program: Callable[[], Any], *, device: str | torch.device | None = "cpu") -> Any:
    """Runs `program` for real and in the mode, compares the results, and returns the fake one."""
    real = program()
    with fake_mode():
        fake = program()
    assert_same_metadata(fake, real, device=device)
    return fake
