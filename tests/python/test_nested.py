"""Nested tensors of the strided layout cannot be fake: calls that would create or take one raise a typed error."""

import io
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchfake
from torchfake import (
    DataDependentOutputException,
    FakeCopyMode,
    FakeTensorMode,
    RealTensorError,
    UnsupportedFakeTensorException,
    fake_mode,
)


@pytest.fixture
def nested() -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the warning that nested tensors are a prototype
        return torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)])


def shapes() -> Tensor:
    return torch.tensor([[2, 3], [4, 3]])


MAKERS: dict[str, Callable[[], Tensor]] = {
    "nested_tensor": lambda: torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)]),
    "nested_tensor_of_lists": lambda: torch.nested.nested_tensor([[1.0, 2.0], [3.0]]),
    "as_nested_tensor": lambda: torch.nested.as_nested_tensor([torch.ones(2, 3), torch.ones(4, 3)]),
    "as_nested_tensor_of_tensor": lambda: torch.nested.as_nested_tensor(torch.ones(2, 3, 4)),
    "from_mask": lambda: torch._nested_tensor_from_mask(torch.ones(2, 3, 4), torch.ones(2, 3, dtype=torch.bool)),
    "from_padded": lambda: torch._nested_from_padded(torch.ones(2, 4, 3), shapes()),
    "view_from_buffer": lambda: torch._nested_view_from_buffer(
        torch.ones(18), shapes(), torch.tensor([[3, 1], [3, 1]]), torch.tensor([0, 6])
    ),
}


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("mode", [FakeTensorMode, fake_mode])
def test_no_fake_is_made_nested(make: str, mode: Any) -> None:
    with mode(), pytest.raises(UnsupportedFakeTensorException, match="nested"):
        MAKERS[make]()


TAKERS: dict[str, Callable[[Tensor], object]] = {
    "add": lambda x: x + x,
    "mul_by_fake": lambda x: x * torch.ones(3),
    "linear": lambda x: nn.functional.linear(x, torch.ones(5, 3)),
    "matmul": lambda x: torch.matmul(x, torch.ones(3, 5)),
    "softmax": lambda x: x.softmax(-1),
    "unbind": lambda x: x.unbind(),
    "to_padded_tensor": lambda x: x.to_padded_tensor(0.0),
    "zeros_like": lambda x: torch.zeros_like(x),
    "clone": lambda x: x.clone(),
}


@pytest.mark.parametrize("take", TAKERS)
def test_a_real_nested_tensor_is_not_converted(take: str, nested: Tensor) -> None:
    with FakeTensorMode(allow_non_fake_inputs=True), pytest.raises(UnsupportedFakeTensorException, match="nested"):
        TAKERS[take](nested)
    with FakeTensorMode(), pytest.raises(RealTensorError, match="Please convert all Tensors"):
        TAKERS[take](nested)


def test_real_nested_tensors_among_themselves_are_left_alone(nested: Tensor) -> None:
    with fake_mode():
        assert torch.equal((nested + nested).to_padded_tensor(0.0), nested.to_padded_tensor(0.0) * 2)
        assert nn.functional.linear(nested, nested.unbind()[0]).is_nested
        with pytest.raises(UnsupportedFakeTensorException, match="argument 'input' is a nested tensor"):
            nn.functional.linear(nested, torch.ones(5, 3))


def test_conversion_and_files_of_nested_tensors_are_refused(nested: Tensor) -> None:
    for convert in (FakeTensorMode().from_tensor, torchfake.to_fake):
        with pytest.raises(UnsupportedFakeTensorException, match="nested"):
            convert(nested)
    with FakeCopyMode(FakeTensorMode()), pytest.raises(UnsupportedFakeTensorException, match="nested"):
        nested.clone()
    file = io.BytesIO()
    torch.save(nested, file)
    file.seek(0)
    with FakeTensorMode(), pytest.raises(UnsupportedFakeTensorException, match="nested"):
        torch.load(file, weights_only=False)


# ---- Padded batches --------------------------------------------------------------------------------------------------

PADDED = {"last": [[False] * 5, [False] * 3 + [True] * 2], "first": [[False] * 5, [True] * 2 + [False] * 3]}


def test_whether_padding_comes_last_follows_from_a_known_mask() -> None:
    for name, rows in PADDED.items():
        real = torch._nested_tensor_from_mask_left_aligned(torch.ones(2, 5, 8), ~torch.tensor(rows))
        with fake_mode():
            fake = torch._nested_tensor_from_mask_left_aligned(torch.ones(2, 5, 8), ~torch.tensor(rows))
        assert fake is real is (name == "last")


def test_whether_padding_comes_last_is_not_guessed() -> None:
    for _ in range(2):  # the second call is not a cache hit
        with fake_mode(), pytest.raises(DataDependentOutputException, match="padding comes last") as error:
            torch._nested_tensor_from_mask_left_aligned(torch.ones(2, 5, 8), torch.rand(2, 99)[:, :5] > 0.5)
        assert error.value.func is torch.ops.aten._nested_tensor_from_mask_left_aligned.default
    with fake_mode(unknown="stand-in") as mode:
        assert torch._nested_tensor_from_mask_left_aligned(torch.ones(2, 5, 8), torch.rand(2, 99)[:, :5] > 0.5)
    assert mode.stand_ins.entries


def encode(mask: Tensor, *, nested: bool) -> Tensor:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested).eval()
        result: Tensor = encoder(torch.ones(2, 5, 8), src_key_padding_mask=mask)
    return result


@pytest.mark.parametrize("mode", [FakeTensorMode, fake_mode])
@pytest.mark.parametrize("rows", PADDED)
def test_an_encoder_runs_on_a_padded_batch_without_nested_tensors(mode: Any, rows: str) -> None:
    real = encode(torch.tensor(PADDED[rows]), nested=True)
    with mode():
        known = encode(torch.tensor(PADDED[rows]), nested=False)
        unknown = encode(torch.rand(2, 500)[:, :5] > 0.5, nested=False)
    for fake in (known, unknown):
        assert (fake.shape, fake.stride(), fake.dtype) == (real.shape, real.stride(), real.dtype)


@pytest.mark.parametrize("rows", PADDED)
def test_an_encoder_that_packs_a_batch_keeps_it_padded(rows: str) -> None:
    real = encode(torch.tensor(PADDED[rows]), nested=True)
    with fake_mode():
        known = encode(torch.tensor(PADDED[rows]), nested=True)
        unknown = encode(torch.rand(2, 500)[:, :5] > 0.5, nested=True)
        encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).cuda().eval()
        with torch.no_grad():
            claimed = encoder(known.cuda(), src_key_padding_mask=torch.tensor(PADDED[rows]).cuda())
        assert encoder.use_nested_tensor
    for fake in (known, unknown, claimed):
        assert (fake.shape, fake.stride(), fake.dtype) == (real.shape, real.stride(), real.dtype)


def test_an_encoder_that_packs_a_batch_is_refused_in_the_mode_that_behaves_like_pytorchs() -> None:
    for mask in (torch.tensor(PADDED["last"]), torch.rand(2, 500)[:, :5] > 0.5):
        refused = pytest.raises((UnsupportedFakeTensorException, DataDependentOutputException))
        with FakeTensorMode(allow_non_fake_inputs=True), refused:
            encode(mask, nested=True)
