"""meta_like: a fake's metadata as a meta tensor."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from torchfake import fake, fake_mode, is_fake, meta_like, to_fake

MAKE = {
    "plain": lambda: torch.ones(2, 3),
    "cuda": lambda: torch.empty(2, 3, device="cuda:1"),
    "transposed": lambda: torch.empty(2, 3).t(),
    "offset": lambda: torch.empty(10)[4:],
    "expanded": lambda: torch.empty(3, 1).expand(3, 1000),
    "channels_last": lambda: torch.empty(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "half": lambda: torch.empty(2, dtype=torch.half),
    "complex": lambda: torch.empty(2, dtype=torch.cfloat),
    "bool": lambda: torch.zeros(3, dtype=torch.bool),
    "no_dims": lambda: torch.tensor(1),
    "empty": lambda: torch.empty(0, 3),
    "requires_grad": lambda: torch.ones(2, requires_grad=True),
    "in_a_graph": lambda: torch.ones(2, requires_grad=True) * 2,
    "parameter": lambda: nn.Parameter(torch.ones(2)),
}


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("name", MAKE)
def test_the_meta_tensor_has_sizes_strides_and_dtype_of_the_fake(name: str, inside: bool) -> None:
    with fake_mode():
        tensor = MAKE[name]()
        meta = meta_like(tensor) if inside else None
    meta = meta if inside else meta_like(tensor)
    assert meta.is_meta and meta.device == torch.device("meta") and not is_fake(meta)
    assert (meta.shape, meta.stride(), meta.dtype) == (tensor.shape, tensor.stride(), tensor.dtype)
    assert not meta.requires_grad and meta.grad_fn is None and meta.is_leaf
    assert meta.layout == tensor.layout


def test_the_meta_tensor_is_independent_of_the_fake() -> None:
    with fake_mode():
        tensor = torch.zeros(3)
    meta = meta_like(tensor)
    meta.add_(1).resize_(5)
    assert tensor.shape == (3,) and tensor.tolist() == [0, 0, 0] and tensor._version == 0
    assert meta.untyped_storage()._cdata != tensor.untyped_storage()._cdata


def test_a_meta_tensor_works_with_other_meta_tensors() -> None:
    with fake_mode():
        meta = meta_like(torch.zeros(3, device="cuda"))
        assert (meta + torch.empty(3, device="meta")).is_meta
    assert (meta * 2).is_meta


@pytest.mark.parametrize("make", [lambda: torch.ones(2), lambda: torch.ones(2, device="meta")])
def test_a_tensor_that_is_not_fake_is_refused(make) -> None:
    with pytest.raises(ValueError, match="meta_like"):
        meta_like(make())


def test_what_is_no_tensor_is_refused() -> None:
    with pytest.raises(TypeError):
        meta_like(3)


def test_the_names_of_the_ancestor_are_there() -> None:
    assert fake.meta_like is meta_like and fake.is_fake is is_fake and issubclass(fake.fake_mode, fake_mode)
    with fake.fake_mode(fake_cuda=True):
        assert fake.is_fake(torch.ones(1, device="cuda"))
    assert is_fake(to_fake(torch.ones(2)))
