"""Views, storages, in-place writes and version counters behave like those of real tensors."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from metadata import assert_like_real, assert_same_metadata, metadata
from torch import Tensor

from torchfake import fake_mode, is_fake, to_fake

VIEWS: dict[str, Callable[[Tensor], Any]] = {
    "view": lambda x: x.view(6, 4),
    "view_minus_one": lambda x: x.view(-1),
    "view_dtype": lambda x: x.view(torch.int32),
    "view_smaller_dtype": lambda x: x.view(torch.int16),
    "view_larger_dtype": lambda x: x.view(torch.int64),
    "reshape_view": lambda x: x.reshape(4, 6),
    "reshape_copy": lambda x: x.transpose(0, 2).reshape(-1),
    "flatten": lambda x: x.flatten(1),
    "unflatten": lambda x: x.unflatten(2, (2, 2)),
    "transpose": lambda x: x.transpose(0, 2),
    "permute": lambda x: x.permute(2, 0, 1),
    "mT": lambda x: x.mT,
    "movedim": lambda x: x.movedim(0, -1),
    "squeeze": lambda x: x[:1].squeeze(0),
    "squeeze_dims": lambda x: x[:1, :1].squeeze((0, 1)),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "expand": lambda x: x[:1].expand(5, -1, -1),
    "expand_as": lambda x: x[0, 0].expand_as(x),
    "broadcast_to": lambda x: torch.broadcast_to(x, (2, 2, 3, 4)),
    "select": lambda x: x.select(1, 2),
    "narrow": lambda x: x.narrow(2, 1, 2),
    "slice": lambda x: x[:, 1:, ::2],
    "slice_of_slice": lambda x: x[1:][:, 1:][..., 3:],
    "empty_slice": lambda x: x[2:],
    "newaxis": lambda x: x[None, ..., 1, None],
    "integer": lambda x: x[1, 2, 3],
    "diagonal": lambda x: x.diagonal(0, 1, 2),
    "diagonal_offset": lambda x: x.diagonal(1, 1, 2),
    "unfold": lambda x: x.unfold(2, 2, 1),
    "as_strided": lambda x: x.as_strided((2, 2), (3, 1), 5),
    "split": lambda x: x.split(2, 2),
    "split_sizes": lambda x: x.split([1, 3], 2),
    "chunk": lambda x: x.chunk(3, 2),
    "tensor_split": lambda x: x.tensor_split(3, 2),
    "unbind": lambda x: x.unbind(1),
    "unsafe_split": lambda x: x.unsafe_split(2, 2),
    "hsplit": lambda x: x.hsplit(3),
    "detach": lambda x: x.detach(),
    "data": lambda x: x.data,
    "alias": lambda x: torch.ops.aten.alias(x),
    "view_as": lambda x: x.view_as(x),
    "view_as_complex": lambda x: torch.view_as_complex(x.view(2, 3, 2, 2)),
    "view_as_real": lambda x: torch.view_as_real(torch.view_as_complex(x.view(2, 3, 2, 2))),
    "real_imag": lambda x: (torch.view_as_complex(x.view(2, 3, 2, 2)).imag, x.real),
    "conj": lambda x: torch.view_as_complex(x.view(2, 3, 2, 2)).conj(),
    "conj_imag": lambda x: torch.view_as_complex(x.view(2, 3, 2, 2)).conj().imag,
    "adjoint": lambda x: torch.view_as_complex(x.view(2, 3, 2, 2)).adjoint(),
    "swapaxes": lambda x: x.swapaxes(0, 1),
    "numpy_T": lambda x: x[0].T,
    "contiguous_view": lambda x: x.contiguous(),
    "contiguous_copy": lambda x: x.transpose(0, 1).contiguous(),
    "to_same": lambda x: x.to(torch.float32),
    "to_copy": lambda x: x.to(torch.float32, copy=True),
    "to_half": lambda x: x.half(),
    "to_channels_last": lambda x: x.view(1, 2, 3, 4).to(memory_format=torch.channels_last),
    "clone_transposed": lambda x: x.transpose(0, 2).clone(),
    "clone_contiguous": lambda x: x.transpose(0, 2).clone(memory_format=torch.contiguous_format),
    "clone_expanded": lambda x: x[:1].expand(4, -1, -1).clone(),
    "rearranged_add": lambda x: x.permute(2, 0, 1) + x.permute(2, 0, 1),
    "mixed_strides_add": lambda x: x.transpose(0, 1) + torch.empty(3, 2, 4),
    "index_copies": lambda x: x[torch.tensor([1, 0])],
    "index_transposed": lambda x: x.transpose(0, 2)[:, torch.tensor([1, 0])],
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_has_the_geometry_and_the_storage_of_a_real_one(name: str) -> None:
    def program() -> Any:
        base = torch.arange(24, dtype=torch.float32).view(2, 3, 4)
        offset = torch.zeros(30)[6:].view(2, 3, 4)
        return base, VIEWS[name](base), VIEWS[name](offset)

    assert_like_real(program)


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_of_what_requires_grad_joins_the_graph_as_a_real_one(name: str) -> None:
    def program() -> Any:
        base = torch.zeros(2, 3, 4, requires_grad=True)
        return VIEWS[name](base), VIEWS[name](base * 2)

    assert_like_real(program)


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_claims_the_device_of_its_base(name: str) -> None:
    with fake_mode(), torch.device("cuda:2"):
        base = torch.empty(2, 3, 4)
        for view in torch.utils._pytree.tree_leaves(VIEWS[name](base)):
            assert is_fake(view) and view.device == torch.device("cuda:2")


INPLACE: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "add_": lambda x, y: x.add_(y),
    "add_scalar": lambda x, y: x.add_(1),
    "augmented": lambda x, y: x.__imul__(y),
    "view_write": lambda x, y: x[0].zero_(),
    "setitem": lambda x, y: x.__setitem__((slice(None), 1), y[:, 1]),
    "setitem_number": lambda x, y: x.__setitem__((..., 0), 2.0),
    "setitem_index": lambda x, y: x.__setitem__(torch.tensor([0, 0]), 1.0),
    "setitem_mask": lambda x, y: x.__setitem__(y > 0, 1.0),
    "copy_": lambda x, y: x.copy_(y.double()),
    "copy_broadcast": lambda x, y: x.copy_(y[0]),
    "out": lambda x, y: torch.add(x, y, out=x),
    "out_view": lambda x, y: torch.mul(y[0], 2, out=x[1]),
    "out_resized": lambda x, y: torch.add(y, y, out=y.new_empty(0)),
    "out_of_two": lambda x, y: torch.max(y, 1, out=(y.new_empty(3), torch.empty(3, dtype=torch.int64))),
    "squeeze_": lambda x, y: x.unsqueeze_(0).squeeze_(0),
    "transpose_": lambda x, y: x.transpose_(0, 1),
    "t_": lambda x, y: x.t_(),
    "as_strided_": lambda x, y: x.as_strided_((2,), (2,), 1),
    "resize_smaller": lambda x, y: x.resize_(2),
    "resize_larger": lambda x, y: x.resize_(10, 10),
    "resize_as_": lambda x, y: x.resize_as_(torch.empty(7)),
    "set_": lambda x, y: x.set_(y),
    "set_storage": lambda x, y: x.set_(y.untyped_storage(), 1, (2,), (3,)),
    "set_nothing": lambda x, y: x.set_(),
    "data_set": lambda x, y: setattr(x, "data", y),
    "data_set_other_shape": lambda x, y: setattr(x, "data", y[0]),
    "data_write": lambda x, y: x.data.add_(1),
    "detach_write": lambda x, y: x.detach().add_(1),
    "detach_": lambda x, y: x.detach_(),
    "requires_grad_": lambda x, y: x.requires_grad_(),
    "clamp_": lambda x, y: x.clamp_(0, 1),
    "masked_fill_": lambda x, y: x.masked_fill_(y > 0, 0),
    "index_add_": lambda x, y: x.index_add_(0, torch.tensor([0, 1, 2]), y),
    "scatter_": lambda x, y: x.scatter_(1, torch.zeros(3, 2, dtype=torch.int64), y),
    "fill_diagonal_": lambda x, y: x.fill_diagonal_(1),
    "uniform_": lambda x, y: x.uniform_(),
    "foreach_add_": lambda x, y: torch._foreach_add_([x, x[0]], [y, y[0]]),
    "foreach_mul": lambda x, y: torch._foreach_mul([x, y], 2.0),
    "bump_nothing": lambda x, y: x.add(y),
    "swap": lambda x, y: torch.utils.swap_tensors(x, y),
    "no_grad_write": lambda x, y: torch.no_grad()(lambda: x.add_(1))(),
    "untyped_storage_resize": lambda x, y: x.untyped_storage().resize_(0).nbytes(),
    "rename": lambda x, y: x.mul_(2).div_(2).sub_(y).sqrt_().floor_(),
    "zero_of_expanded": lambda x, y: x[:1, :1].expand(3, 3).clone().zero_(),
}


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("name", INPLACE)
def test_a_change_in_place_leaves_what_a_real_one_leaves(name: str, requires_grad: bool) -> None:
    def program() -> Any:
        x = torch.ones(3, 3)
        y = torch.full((3, 3), 2.0, requires_grad=requires_grad)
        if requires_grad:
            y = y * 1
        alias, row = x.detach(), x[1]
        try:
            result = INPLACE[name](x, y)
        except RuntimeError as error:
            return x, y, alias, row, str(error)
        return x, y, alias, row, result, result is x

    assert_like_real(program)


def test_version_counters_are_shared_as_real_ones_are() -> None:
    def program() -> list[int]:
        x = torch.zeros(4)
        view, detached, data, clone = x[:2], x.detach(), x.data, x.clone()
        versions = []
        for tensor in (x, view, detached, data, clone):
            tensor.add_(1)
            versions += [t._version for t in (x, view, detached, data, clone)]
        return versions

    assert_like_real(program)


def test_writing_to_what_backward_needs_is_noticed() -> None:
    with fake_mode():
        x = torch.randn(3, requires_grad=True)
        y = x.exp()
        z = y * y
        y.detach().add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            z.sum().backward()


@pytest.mark.parametrize(
    "mistake",
    [
        lambda: torch.zeros(3, requires_grad=True).add_(1),
        lambda: torch.zeros(2, 3).view(4),
        lambda: torch.zeros(2, 3).t().view(6),
        lambda: torch.zeros(3)[5],
        lambda: torch.zeros(3).expand(4),
        lambda: torch.zeros(3).expand(4, 3).add_(1),
        lambda: torch.zeros(3).add_(torch.zeros(2, 3)),
        lambda: torch.add(torch.zeros(3), 1, out=torch.zeros(3, dtype=torch.int64)),
        lambda: torch.zeros(3).as_strided((3,), (1,), 2),
        lambda: torch.zeros(3, dtype=torch.int64).add_(0.5),
        lambda: torch.zeros(3).view(torch.int64),
        lambda: torch.zeros(3)[1:].t_().resize_(100).add_(torch.zeros(3)),
        lambda: torch.zeros(4, 4)[:, 0].unbind()[0].copy_(torch.zeros(2)),
        lambda: torch.zeros(3).index_add_(0, torch.tensor([0]), torch.zeros(2)),
        lambda: torch.zeros(3).unfold(0, 4, 1),
        lambda: torch.zeros(4)[:-1].add_(torch.zeros(4)[1:].double().long().view(1, 3, 1)),
        lambda: (lambda x: x[1:].add_(x[:-1]))(torch.zeros(4)),
        lambda: (lambda x: torch.add(x[1:], 1, out=x[:-1]))(torch.zeros(4)),
    ],
)
def test_what_real_tensors_refuse_fakes_refuse_with_the_same_type_of_error(mistake: Callable[[], Any]) -> None:
    with pytest.raises(Exception) as real:  # which error is the question
        mistake()
    with fake_mode(), pytest.raises(type(real.value)):
        mistake()


def test_a_failed_change_in_place_changes_nothing() -> None:
    with fake_mode():
        x = torch.zeros(3)
        before = metadata(x)
        for fail in (
            lambda: x.add_(torch.zeros(2)),
            lambda: x.view(2),
            lambda: torch.mm(x, x, out=x),
            lambda: x.set_(torch.zeros(2).double()),
        ):
            with pytest.raises(RuntimeError):
                fail()
        assert metadata(x) == before and x.tolist() == [0, 0, 0]


def test_swapped_fakes_trade_places() -> None:
    with fake_mode():
        a, b = torch.ones(2, device="cuda"), torch.zeros(3, dtype=torch.int8)
    storage = a.untyped_storage()._cdata
    torch.utils.swap_tensors(a, b)
    assert (a.dtype, a.shape, a.device.type) == (torch.int8, (3,), "cpu")
    assert (b.dtype, b.shape, b.device.type) == (torch.float32, (2,), "cuda")
    assert storage == b.untyped_storage()._cdata


def test_a_fake_dies_when_nothing_holds_it() -> None:
    with fake_mode():
        fake = torch.zeros(3)
        detached, ref = fake.detach(), weakref.ref(fake)
        assert ref() is fake
        del fake
        gc.collect()
        assert ref() is None and detached.shape == (3,)
        view = torch.zeros(3)[1:]
        assert view._base.shape == (3,) and is_fake(view._base), "a view holds its base, as a real one does"


def test_a_fake_keeps_its_python_attributes_and_identity() -> None:
    with fake_mode():
        fake = torch.zeros(3, requires_grad=True)
        fake.note = "mine"
        (fake * 2).sum().backward()
        assert fake.grad_fn is None and next(iter([fake])) is fake and fake.note == "mine"
        holder = torch.nn.ParameterList([torch.nn.Parameter(fake)])
        assert {id(fake): 1}[id(fake)] == 1 and len(holder) == 1 and hash(fake) == hash(fake)


def test_converted_tensors_share_storages_as_the_real_ones_did() -> None:
    base = torch.zeros(4, 4)
    real = [base, base.t(), base[1:, 2:], torch.zeros(2), base.view(torch.int32)]
    fakes = [to_fake(tensor) for tensor in real]
    assert_same_metadata([f.untyped_storage().nbytes() for f in fakes], [r.untyped_storage().nbytes() for r in real])
    assert [f.untyped_storage()._cdata for f in fakes].count(fakes[0].untyped_storage()._cdata) == 4
    for fake, tensor in zip(fakes, real, strict=True):
        assert (fake.shape, fake.stride(), fake.storage_offset()) == (
            tensor.shape,
            tensor.stride(),
            tensor.storage_offset(),
        )
