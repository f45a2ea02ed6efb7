"""Sparse fakes (COO, CSR, CSC, BSR, BSC), compared with real tensors and PyTorch's own fakes."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from undrawn import fake_mode

import torchfake
from torchfake import FakeTensorMode, is_fake, to_fake
from torchfake.errors import (
    DeviceMismatchError,
    DynamicOutputShapeException,
    RealTensorError,
    UnsupportedOperatorException,
)

COMPRESSED = [torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc]
LAYOUTS = [torch.sparse_coo, *COMPRESSED]


def of_layout(layout: torch.layout, dtype: torch.dtype = torch.float32) -> Tensor:
    """A real tensor of 4 x 6 that stores three elements, or the blocks that they are in."""
    with torchfake.no_fake_mode():
        return made_of_dense(layout, dtype)


def made_of_dense(layout: torch.layout, dtype: torch.dtype) -> Tensor:
    dense = torch.zeros(4, 6, dtype=dtype)
    dense[0, 1] = dense[1, 5] = dense[3, 2] = 2
    blocks = (2, 3) if layout in (torch.sparse_bsr, torch.sparse_bsc) else None
    return dense.to_sparse(layout=layout, blocksize=blocks)


def real(make: Callable[[], Tensor]) -> Tensor:
    """The result outside of the mode."""
    with torchfake.no_fake_mode():
        return make()


def members(sparse: Tensor) -> list[Tensor]:
    if sparse.layout == torch.sparse_coo:
        return [sparse._indices(), sparse._values()]
    if sparse.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [sparse.crow_indices(), sparse.col_indices(), sparse.values()]
    return [sparse.ccol_indices(), sparse.row_indices(), sparse.values()]


def assert_same(fake: Tensor, real: Tensor) -> None:
    """Both show the same metadata."""
    assert is_fake(fake) and not is_fake(real)
    assert fake.layout == real.layout
    assert fake.shape == real.shape
    assert fake.dtype == real.dtype
    assert fake.device == real.device
    assert fake.requires_grad == real.requires_grad
    if real.layout == torch.strided:
        assert fake.stride() == real.stride()
        return
    assert (fake.sparse_dim(), fake.dense_dim(), fake._nnz()) == (real.sparse_dim(), real.dense_dim(), real._nnz())
    if real.layout == torch.sparse_coo:
        assert fake.is_coalesced() == real.is_coalesced()
    for member, expected in zip(members(fake), members(real), strict=True):
        assert is_fake(member)
        assert (member.shape, member.dtype, member.device) == (expected.shape, expected.dtype, expected.device)


# ---- Construction


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_fake_of_a_sparse_tensor_shows_its_metadata(layout: torch.layout) -> None:
    real = of_layout(layout)
    assert_same(to_fake(real), real)
    with fake_mode():
        assert_same(to_fake(real), real)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_fake_of_a_sparse_tensor_can_claim_another_device(layout: torch.layout) -> None:
    fake = to_fake(of_layout(layout), device="cuda:1")
    assert fake.device == torch.device("cuda:1") and fake.layout == layout
    assert all(member.device == torch.device("cuda:1") for member in members(fake))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_pytorchs_converter_leaves_stored_elements_out_and_so_does_ours(layout: torch.layout) -> None:
    real = of_layout(layout)
    ours = FakeTensorMode().from_tensor(real)
    theirs = torch._subclasses.FakeTensorMode().from_tensor(real)
    assert ours._nnz() == theirs._nnz() == 0
    assert (ours.shape, ours.dtype, ours.layout) == (theirs.shape, theirs.dtype, theirs.layout)
    for member, expected in zip(members(ours), members(theirs), strict=True):
        assert (member.shape, member.dtype) == (expected.shape, expected.dtype)


def test_the_constructors_make_what_they_make_for_real() -> None:
    def coo() -> Tensor:
        return torch.sparse_coo_tensor(torch.tensor([[0, 1], [2, 0]]), torch.ones(2, 3), (2, 4, 3))

    def csr() -> Tensor:
        return torch.sparse_csr_tensor(torch.tensor([0, 1, 2]), torch.tensor([2, 0]), torch.ones(2), (2, 4))

    def bsc() -> Tensor:
        return torch.sparse_bsc_tensor(
            torch.tensor([0, 1, 2]), torch.tensor([0, 0]), torch.ones(2, 2, 2), (2, 4), dtype=torch.float64
        )

    def inferred() -> Tensor:
        return torch.sparse_coo_tensor(torch.tensor([[0, 1], [2, 0]]), torch.ones(2))

    makers: list[Callable[[], Tensor]] = [
        coo,
        csr,
        bsc,
        inferred,
        lambda: torch.sparse_coo_tensor((3, 4)),
        lambda: torch.zeros(3, 4, layout=torch.sparse_coo),
        lambda: torch.zeros(3, 4, layout=torch.sparse_csr),
        lambda: torch.empty(3, 4, layout=torch.sparse_csc),
    ]
    for make in makers:
        with fake_mode():
            fake = make()
        assert_same(fake, make())


def test_a_constructor_refuses_what_the_real_one_refuses() -> None:
    def wrong(i: Tensor) -> Tensor:
        return torch.sparse_coo_tensor(i, torch.ones(3), (2, 4))

    with pytest.raises(RuntimeError) as real:
        wrong(torch.tensor([[0, 1], [2, 0]]))
    with fake_mode(), pytest.raises(RuntimeError) as fake:
        wrong(torch.tensor([[0, 1], [2, 0]]))
    assert str(fake.value) == str(real.value)


def test_a_size_that_follows_from_unknown_indices_is_refused() -> None:
    with fake_mode(), pytest.raises(DynamicOutputShapeException, match="pass the size"):
        torch.sparse_coo_tensor(torch.randint(0, 4, (2, 5)), torch.rand(5))


def test_members_share_memory_with_what_they_were_made_of() -> None:
    with fake_mode():
        values = torch.rand(2)
        sparse = torch.sparse_coo_tensor(torch.tensor([[0, 1], [2, 0]]), values, (2, 4))
    assert sparse._values().untyped_storage()._cdata == values.untyped_storage()._cdata


# ---- Operators


def elementwise() -> list[Callable[[Tensor], Tensor]]:
    return [
        torch.abs,
        torch.sin,
        torch.sqrt,
        torch.neg,
        torch.relu,
        torch.sign,
        torch.isnan,
        lambda x: x * 2,
        lambda x: x / 2,
        lambda x: x.clone(),
        lambda x: x.detach(),
        lambda x: x.to(torch.float64),
        lambda x: torch.zeros_like(x),
        lambda x: torch.empty_like(x),
        lambda x: x.sum(),
        lambda x: x.to_dense(),
        lambda x: x.transpose(0, 1),
    ]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_operators_on_one_sparse_tensor_give_what_they_give_for_real(layout: torch.layout) -> None:
    real = of_layout(layout)
    for number, operator in enumerate(elementwise()):
        try:
            expected = operator(real)
        except RuntimeError:
            with pytest.raises(RuntimeError):
                operator(to_fake(real))
            continue
        if number in (12, 13):  # the number of stored elements of an empty tensor is not said
            assert operator(to_fake(real)).layout == expected.layout
            continue
        assert_same(operator(to_fake(real)), expected)


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc], ids=str)
def test_products_with_dense_matrices(layout: torch.layout) -> None:
    real = of_layout(layout)
    right, vector, bias = torch.rand(6, 5), torch.rand(6), torch.rand(4, 5)
    with fake_mode():
        fakes = [to_fake(real), to_fake(right), to_fake(vector), to_fake(bias)]
    assert_same(fakes[0] @ fakes[1], real @ right)
    assert_same(torch.sparse.mm(fakes[0], fakes[1]), torch.sparse.mm(real, right))
    assert_same(fakes[0] @ fakes[2], real @ vector)
    assert_same(torch.addmm(fakes[3], fakes[0], fakes[1]), torch.addmm(bias, real, right))
    with pytest.raises(RuntimeError):
        _ = fakes[0] @ fakes[3]


def test_products_of_large_matrices_take_no_memory() -> None:
    with fake_mode():
        indices = torch.randint(0, 100_000, (2, 1_000_000))
        sparse = torch.sparse_coo_tensor(indices, torch.rand(1_000_000), (100_000, 100_000))
        result = torch.sparse.mm(sparse, torch.rand(100_000, 4096))
        assert result.shape == (100_000, 4096) and is_fake(result)
        assert sparse.to_dense().shape == (100_000, 100_000)
        with pytest.raises(UnsupportedOperatorException, match="too large"):
            torch.sparse.sum(sparse, dim=0)


def test_sampled_products_have_the_places_of_the_first() -> None:
    real = of_layout(torch.sparse_csr)
    left, right = torch.rand(4, 3), torch.rand(3, 6)
    fake = torch.sparse.sampled_addmm(to_fake(real), to_fake(left), to_fake(right))
    assert_same(fake, torch.sparse.sampled_addmm(real, left, right))


def test_dense_and_sparse_are_added() -> None:
    real, dense = of_layout(torch.sparse_coo), torch.rand(4, 6)
    assert_same(to_fake(dense) + to_fake(real), dense + real)
    fake = to_fake(dense)
    assert fake.add_(to_fake(real), alpha=-0.1) is fake
    with pytest.raises(RuntimeError):
        _ = to_fake(real) + to_fake(dense)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_conversion_from_dense_needs_known_values(layout: torch.layout) -> None:
    blocks = (2, 3) if layout in (torch.sparse_bsr, torch.sparse_bsc) else None
    with fake_mode():
        with pytest.raises(DynamicOutputShapeException):
            torch.rand(4, 6).to_sparse(layout=layout, blocksize=blocks)
        dense = torch.zeros(4, 6)
        dense[0, 1] = dense[1, 5] = dense[3, 2] = 2
        assert_same(dense.to_sparse(layout=layout, blocksize=blocks), of_layout(layout))


def test_coalescing_needs_known_indices() -> None:
    def uncoalesced() -> Tensor:
        return torch.sparse_coo_tensor(torch.tensor([[0, 1, 0], [2, 0, 2]]), torch.rand(3, 5), (2, 4, 5))

    with fake_mode():
        assert not uncoalesced().is_coalesced()
        assert_same(uncoalesced().coalesce(), real(uncoalesced).coalesce())
        unknown = torch.sparse_coo_tensor(torch.randint(0, 2, (2, 3)), torch.rand(3), (2, 4))
        with pytest.raises(DynamicOutputShapeException):
            unknown.coalesce()


def test_sums_of_sparse_tensors_are_refused_unless_the_places_are_known() -> None:
    with fake_mode():
        one = torch.sparse_coo_tensor(torch.tensor([[0, 1], [2, 0]]), torch.ones(2), (2, 4))
        assert (one + one)._nnz() == 2
        unknown = torch.sparse_coo_tensor(torch.randint(0, 2, (2, 3)), torch.rand(3), (2, 4))
        with pytest.raises(DynamicOutputShapeException):
            _ = one + unknown


def test_sums_of_sparse_tensors_on_a_gpu_store_the_elements_of_both() -> None:
    def step(embedding: nn.Embedding, device: str) -> Tensor | None:
        first, second = torch.randint(0, 40, (2, 100), device=device)
        (embedding(first).sum() + embedding(second).sum()).backward()
        return embedding.weight.grad

    with fake_mode():
        with pytest.raises(DynamicOutputShapeException):
            step(nn.Embedding(40, 8, sparse=True), "cpu")
        embedding = nn.Embedding(40, 8, sparse=True).cuda()
        grad = step(embedding, "cuda")
        assert grad is not None and grad._nnz() == 200 and not grad.is_coalesced()
        with pytest.raises(DynamicOutputShapeException):  # more than its 320 numbers: the GPU coalesces
            step(embedding, "cuda")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_under_stand_ins_the_rows_of_a_sparse_gradient_differ_as_far_as_they_can(device: str) -> None:
    with torchfake.fake_mode(unknown="stand-in"):
        embedding = nn.Embedding(40, 8, sparse=True).to(device)
        optimizer = torch.optim.SparseAdam(embedding.parameters(), lr=0.1)
        rows = [embedding(torch.randint(0, 40, (size,), device=device)) for size in (90, 70)]
        torch.cat(rows).sum().backward()
        assert embedding.weight.grad is not None
        assert embedding.weight.grad._nnz() == 160 and embedding.weight.grad.coalesce()._nnz() == 40
        optimizer.step()


def test_a_real_sparse_tensor_among_fakes_is_refused() -> None:
    with fake_mode():
        fake = torch.rand(6, 2)
    with pytest.raises(RealTensorError):
        torch.sparse.mm(of_layout(torch.sparse_coo), fake)
    with pytest.raises(RealTensorError):
        torch.sparse.mm(to_fake(of_layout(torch.sparse_coo)), torch.rand(6, 2))


def test_devices_have_to_agree() -> None:
    with fake_mode():
        dense = torch.rand(6, 2, device="cuda")
    with pytest.raises(DeviceMismatchError, match="found two different devices"):
        torch.sparse.mm(to_fake(of_layout(torch.sparse_coo)), dense)
    assert torch.sparse.mm(to_fake(of_layout(torch.sparse_coo), device="cuda"), dense).device.type == "cuda"


def test_real_sparse_tensors_are_as_they_were() -> None:
    real = of_layout(torch.sparse_coo)
    before = (real * 2).to_dense()
    with fake_mode():
        to_fake(real).abs()
    assert torch.equal((real * 2).to_dense(), before)
    assert not is_fake(real) and type(real) is Tensor


# ---- Training


def test_a_sparse_embedding_is_trained_by_sgd() -> None:
    with fake_mode():
        embedding = nn.Embedding(1000, 16, sparse=True)
        optimizer = torch.optim.SGD(embedding.parameters(), lr=0.1)
        embedding(torch.randint(0, 1000, (4, 8))).sum().backward()
        grad = embedding.weight.grad
        assert grad is not None and grad.is_sparse and grad._nnz() == 32 and grad.shape == (1000, 16)
        optimizer.step()
        optimizer.zero_grad()


def test_a_sparse_embedding_is_trained_by_sparse_adam_where_its_indices_are_known() -> None:
    def step() -> tuple[Tensor, Tensor]:
        embedding = nn.Embedding(100, 16, sparse=True)
        optimizer = torch.optim.SparseAdam(embedding.parameters(), lr=0.1)
        embedding(torch.tensor([[1, 5, 1], [7, 5, 5]])).sum().backward()
        optimizer.step()
        grad = embedding.weight.grad
        assert grad is not None
        return grad.coalesce(), optimizer.state[embedding.weight]["exp_avg"]

    with fake_mode():
        fakes = step()
    for fake, real in zip(fakes, step(), strict=True):
        assert_same(fake, real)


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_sparse_bag_of_embeddings_has_a_row_of_gradient_for_each_index(mode: str, device: str) -> None:
    def gradients(device: str) -> list[Tensor]:
        bag = nn.EmbeddingBag(10, 4, mode=mode, sparse=True).to(device)
        found = []
        for indices in (torch.tensor([1, 2, 4, 5, 4]), torch.zeros(0, dtype=torch.int64)):
            weights = torch.ones(indices.shape, device=device) if mode == "sum" else None
            bag(indices.to(device), torch.tensor([0, 0]).to(device), per_sample_weights=weights).sum().backward()
            assert bag.weight.grad is not None
            found.append(bag.weight.grad)
            bag.weight.grad = None
        return found

    with fake_mode():
        fakes = gradients(device)
    for fake, real in zip(fakes, gradients("cpu"), strict=True):
        assert_same(fake.cpu(), real)
        assert fake.device.type == device


def test_gradients_flow_through_sparse_tensors() -> None:
    def gradients() -> tuple[Tensor, Tensor]:
        indices = torch.tensor([[0, 1], [2, 0]])
        values = torch.ones(2, requires_grad=True)
        dense = torch.ones(4, 3, requires_grad=True)
        sparse = torch.sparse_coo_tensor(indices, values, (2, 4), is_coalesced=True)
        torch.sparse.mm(sparse, dense).sum().backward()
        assert values.grad is not None and dense.grad is not None
        return values.grad, dense.grad

    with fake_mode():
        fakes = gradients()
    for fake, real in zip(fakes, gradients(), strict=True):
        assert_same(fake, real)


def test_diagonals_are_placed_by_known_offsets() -> None:
    def make() -> Tensor:
        return torch.sparse.spdiags(torch.ones(2, 4), torch.tensor([0, -1]), (4, 5))

    with fake_mode():
        fake = make()
        with pytest.raises(DynamicOutputShapeException):
            torch.sparse.spdiags(torch.ones(2, 4), torch.randint(0, 2, (2,)), (4, 5))
    assert_same(fake, make())


# ---- Conversion and files


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_sparse_fake_can_be_copied_and_pickled(layout: torch.layout) -> None:
    real = of_layout(layout)
    assert_same(copy.deepcopy(to_fake(real)), real)
    assert_same(pickle.loads(pickle.dumps(to_fake(real))), real)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_sparse_tensors_of_a_file_are_loaded_as_fakes(layout: torch.layout) -> None:
    file = io.BytesIO()
    torch.save(of_layout(layout), file)
    file.seek(0)
    with fake_mode():
        assert_same(torch.load(file), of_layout(layout))


def test_a_sparse_fake_prints_its_layout() -> None:
    fake = to_fake(of_layout(torch.sparse_csr))
    assert repr(fake) == "tensor(..., size=(4, 6), nnz=3, layout=torch.sparse_csr, fake=True)"


def test_data_is_replaced_by_a_fake_of_the_same_layout_alone() -> None:
    real, fake = of_layout(torch.sparse_coo), to_fake(of_layout(torch.sparse_coo))
    with pytest.raises(RealTensorError):
        fake.data = real
    fake.data = to_fake(torch.zeros(4, 6).to_sparse())
    assert fake._nnz() == 0


def test_a_sum_over_one_dimension_depends_on_the_places() -> None:
    fake = to_fake(of_layout(torch.sparse_coo))
    for dim in (0, 1):
        with pytest.raises(DynamicOutputShapeException):
            torch.sparse.sum(fake, dim=dim)


def test_a_real_sparse_tensor_is_converted_where_the_mode_allows_it() -> None:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    result = torch.sparse.mm(of_layout(torch.sparse_coo), mode.from_tensor(torch.ones(6, 2)))
    assert is_fake(result) and result.shape == (4, 2)


@pytest.mark.parametrize("reduce", ["sum", "mean", "amax", "amin"])
def test_products_that_reduce_have_gradients(reduce: str) -> None:
    def gradients() -> tuple[Tensor, Tensor]:
        left = torch.eye(4).to_sparse_csr().requires_grad_()
        right = torch.ones(4, 3, requires_grad=True)
        torch.sparse.mm(left, right, reduce).sum().backward()
        assert left.grad is not None and right.grad is not None
        return left.grad, right.grad

    with fake_mode():
        fakes = gradients()
    for fake, expected in zip(fakes, gradients(), strict=True):
        assert_same(fake, expected)


def test_results_go_to_the_arguments_that_are_given_for_them() -> None:
    real, right = of_layout(torch.sparse_csr), torch.rand(6, 5)
    with fake_mode():
        out = torch.empty(4, 5)
        assert torch.mm(to_fake(real), to_fake(right), out=out) is out
        with pytest.raises(RuntimeError, match="sparse csr layout"):
            torch.sparse.sampled_addmm(to_fake(real), torch.rand(4, 3), torch.rand(3, 6), out=torch.empty(4, 6))
    with pytest.raises(RuntimeError, match="sparse csr layout"):
        torch.sparse.sampled_addmm(real, torch.rand(4, 3), torch.rand(3, 6), out=torch.empty(4, 6))


def test_an_expanded_tensor_has_a_stand_in() -> None:
    real = of_layout(torch.sparse_coo)
    fake = to_fake(torch.ones(1)).expand(4, 6)
    assert_same(to_fake(real) * fake, real * torch.ones(1).expand(4, 6))
