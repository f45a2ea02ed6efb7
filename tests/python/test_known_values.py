"""Values derived from constants are known; no others are, and none are guessed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from metadata import assert_like_real
from undrawn import fake_mode

from torchfake import DataDependentOutputException, DynamicOutputShapeException, is_fake, to_fake

DEVICES = ["cpu", "cuda", "cuda:3", "xpu"]

# Each creates a small tensor from constants only.
PROGRAMS: dict[str, Callable[[str], torch.Tensor]] = {
    "ones": lambda d: torch.ones(2, 3, device=d),
    "full": lambda d: torch.full((2, 2), 7, device=d),
    "arange": lambda d: torch.arange(1, 9, 2, device=d),
    "linspace": lambda d: torch.linspace(0, 0.1, 12, device=d),
    "tensor": lambda d: torch.tensor([[1, -2], [3, 4]], device=d),
    "scalar": lambda d: torch.scalar_tensor(2.5, device=d),
    "tril_mask": lambda d: torch.ones(4, 4, device=d).tril().bool(),
    "comparison": lambda d: torch.arange(5, device=d)[None, :] <= torch.arange(5, device=d)[:, None],
    "where": lambda d: torch.where(torch.arange(4, device=d) > 1, 0.0, -1e9),
    "cumsum": lambda d: torch.ones(5, dtype=torch.int64, device=d).cumsum(0),
    "cat": lambda d: torch.cat([torch.zeros(2, device=d), torch.ones(1, device=d)]),
    "matmul": lambda d: torch.eye(2, device=d) @ torch.arange(4.0, device=d).view(2, 2),
    "like": lambda d: torch.ones_like(torch.empty(3, device=d)),
    "new": lambda d: torch.empty(3, device=d).new_tensor([1, 2, 3]),
    "new_full": lambda d: torch.empty(1, device=d).new_full((2,), 3),
    "dtype_change": lambda d: torch.arange(3, device=d).to(torch.float16),
    "transposed": lambda d: torch.arange(6, device=d).view(2, 3).t(),
    "expanded": lambda d: torch.arange(3, device=d).expand(2, 3),
    "gathered": lambda d: torch.arange(6, device=d)[torch.tensor([4, 1], device=d)],
    "sorted": lambda d: torch.tensor([3, 1, 2], device=d).sort().indices,
    "one_hot": lambda d: torch.nn.functional.one_hot(torch.tensor([0, 2], device=d)),
    "complex": lambda d: torch.tensor([1 + 2j], device=d).conj(),
    "empty": lambda d: torch.tensor([], device=d),
    "zero_dim_view": lambda d: torch.arange(4, device=d)[2],
    "topk": lambda d: torch.arange(6, device=d).topk(2).values,
    "repeat_interleave": lambda d: torch.arange(3, device=d).repeat_interleave(torch.tensor([1, 0, 2], device=d)),
    "bfloat16": lambda d: torch.tensor([0.5, 2], dtype=torch.bfloat16, device=d) * 2,
}

UNKNOWN: dict[str, Callable[[], torch.Tensor]] = {
    "rand": lambda: torch.rand(3),
    "randn": lambda: torch.randn(3),
    "randint": lambda: torch.randint(4, (3,)),
    "randperm": lambda: torch.randperm(3),
    "rand_like": lambda: torch.rand_like(torch.ones(3)),
    "normal": lambda: torch.normal(torch.zeros(3), torch.ones(3)),
    "bernoulli": lambda: torch.bernoulli(torch.full((3,), 0.5)),
    "multinomial": lambda: torch.multinomial(torch.ones(3), 3),
    "poisson": lambda: torch.poisson(torch.ones(3)),
    "dropout": lambda: torch.nn.functional.dropout(torch.ones(3), 0.5),
    "uniform_": lambda: torch.ones(3).uniform_(),
    "normal_": lambda: torch.ones(3).normal_(),
    "exponential_": lambda: torch.ones(3).exponential_(),
    "rrelu": lambda: torch.rrelu(-torch.ones(3), training=True),
    "empty": lambda: torch.empty(3),
    "empty_like": lambda: torch.empty_like(torch.ones(3)),
    "empty_strided": lambda: torch.empty_strided((3,), (1,)),
    "resized": lambda: torch.ones(1).resize_(3),
    "storage": lambda: torch.ones(1).set_(torch.empty(3)),
    "legacy": lambda: torch.Tensor(3),
    "unknown_plus_known": lambda: torch.ones(3) + torch.empty(3),
    "written_by_unknown": lambda: torch.ones(3).add_(torch.empty(3)),
    "copied_from_unknown": lambda: torch.ones(3).copy_(torch.empty(3)),
    "partly_unknown": lambda: torch.empty(3).index_fill_(0, torch.tensor([0]), 1.0),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_constants_and_what_follows_from_them_are_known(name: str, device: str) -> None:
    expected = PROGRAMS[name]("cpu").tolist()
    with fake_mode():
        tensor = PROGRAMS[name](device)
        assert tensor.device.type == device.split(":")[0]
        assert tensor.tolist() == expected
    assert tensor.tolist() == expected, "the values are gone outside the mode"


@pytest.mark.parametrize("name", UNKNOWN)
def test_random_and_uninitialised_values_are_never_known(name: str) -> None:
    with fake_mode():
        tensor = UNKNOWN[name]()
        with pytest.raises(DataDependentOutputException):
            tensor[0].item()
        with pytest.raises(DataDependentOutputException):
            bool((tensor == (3 if name == "randint" else 0)).any())


@pytest.mark.parametrize("device", DEVICES)
def test_single_values_come_out_as_python_numbers(device: str) -> None:
    with fake_mode():
        one = torch.ones(1, device=device)
        assert (one.item(), int(one), float(one), bool(one)) == (1.0, 1, 1.0, True)
        assert torch.tensor(3, device=device).__index__() == 3
        assert torch.tensor(2 + 1j, device=device).item() == 2 + 1j
        assert [x.item() for x in torch.linspace(0, 1, 5, device=device)] == [0, 0.25, 0.5, 0.75, 1]
        assert list(range(torch.tensor(2, device=device))) == [0, 1]
        assert torch.equal(torch.arange(3, device=device), torch.tensor([0, 1, 2], device=device))
        assert not torch.allclose(torch.ones(2, device=device), torch.zeros(2, device=device))
        assert 2 in torch.arange(3, device=device)
        assert torch.ones((), device=device).is_nonzero()


@pytest.mark.parametrize("device", DEVICES)
def test_shapes_that_depend_on_known_values_are_right(device: str) -> None:
    def program(device: str) -> list[torch.Tensor]:
        mask = torch.tensor([[True, False, True], [False, False, True]], device=device)
        numbers = torch.tensor([3, 1, 3, 0], device=device)
        data = torch.empty(2, 3, 5, device=device)
        return [
            mask.nonzero(),
            *mask.nonzero(as_tuple=True),
            *torch.where(mask),
            torch.argwhere(mask),
            numbers.unique(),
            *torch.unique(numbers, return_inverse=True, return_counts=True),
            *torch.unique_consecutive(numbers, return_counts=True),
            torch.masked_select(mask.float(), mask),
            data[mask],
            data[:, mask[0]],
            data[mask, 2:4],
            data[0, torch.tensor([0, 2], device=device)],
            torch.masked_select(data[:, :, 0], mask),
            torch.bincount(numbers),
            torch.repeat_interleave(numbers, numbers),
            data[0].repeat_interleave(torch.tensor([1, 0, 2], device=device), 0),
            data[:, : int(numbers.max())],
            torch.zeros(numbers.tolist()),
            torch.nn.functional.one_hot(numbers),
        ]

    with fake_mode():
        fakes = program(device)
    for fake, real in zip(fakes, program("cpu"), strict=True):
        assert is_fake(fake) and fake.shape == real.shape and fake.stride() == real.stride()


def test_masks_of_unknown_values_give_no_shape() -> None:
    with fake_mode():
        data = torch.randn(4)
        for give_shape in (torch.nonzero, torch.unique, lambda x: x[x > 0], lambda x: x.masked_select(x > 0)):
            with pytest.raises(DynamicOutputShapeException, match="aten::"):
                give_shape(data)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_unknown_masks_select_everything_where_that_is_asked_for(device: str) -> None:
    with fake_mode(selects_all=True):
        x = torch.rand(2, 3, device=device)
        assert x[x > 0.5].shape == torch.masked_select(x, x > 0.5).shape == (6,)
        places = (x > 0.5).nonzero()
        assert places.device.type == device
        assert places.tolist() == [[i, j] for i in range(2) for j in range(3)]
        rows, columns = torch.where(x > 0.5)
        assert (rows.tolist(), columns.shape) == ([0, 0, 0, 1, 1, 1], (6,))
        assert torch.rand(200, 200, device=device).nonzero().shape == (40_000, 2)
        # Known values are not replaced by assumptions, and single values are never assumed.
        assert torch.eye(3, device=device).nonzero().shape == (3, 2)
        with pytest.raises(DataDependentOutputException):
            x.sum().item()


def test_writing_by_a_known_mask_keeps_values_and_by_an_unknown_one_ends_them() -> None:
    with fake_mode():
        tensor = torch.zeros(4)
        tensor[torch.tensor([True, False, True, False])] = 5.0
        assert tensor.tolist() == [5, 0, 5, 0]
        tensor[torch.randn(4) > 0] = 1.0
        with pytest.raises(DataDependentOutputException):
            tensor.sum().item()


@pytest.mark.parametrize("device", DEVICES)
def test_writes_through_a_view_are_seen_by_the_base_and_by_other_views(device: str) -> None:
    with fake_mode():
        base = torch.zeros(2, 3, device=device)
        row, column = base[1], base[:, 2]
        row.fill_(4)
        column.add_(1)
        base.view(-1)[0] = 9
        assert base.tolist() == [[9, 0, 1], [4, 4, 5]]
        assert row.tolist() == [4, 4, 5] and column.tolist() == [1, 5]
        base.detach().mul_(2)
        base.data[0, 1] = 7
        assert row.tolist() == [8, 8, 10] and base[0].tolist() == [18, 7, 2]


@pytest.mark.parametrize("device", DEVICES)
def test_an_unknown_write_through_a_view_ends_what_all_aliases_know(device: str) -> None:
    with fake_mode():
        base = torch.zeros(4, device=device)
        view, detached, kept = base[:2], base.detach(), base.clone()
        view.copy_(torch.randn(2, device=device))
        for tensor in (base, view, detached):
            with pytest.raises(DataDependentOutputException):
                tensor.sum().item()
        assert kept.tolist() == [0, 0, 0, 0], "a copy has its own values"
        base.zero_()
        assert base.tolist() == [0, 0, 0, 0], "overwritten whole by a constant, they are known again"


@pytest.mark.parametrize(
    "write",
    [
        lambda x, r: torch.add(r, 1, out=x),
        lambda x, r: x.index_copy_(0, torch.tensor([0, 1]), r),
        lambda x, r: x.scatter_(0, torch.tensor([0, 1]), r),
        lambda x, r: x.masked_scatter_(torch.tensor([True, True]), r),
        lambda x, r: x.mul_(r),
        lambda x, r: torch._foreach_add_([x], [r]),
        lambda x, r: torch._foreach_copy_([x], [r]),
        lambda x, r: x.set_(r),
        lambda x, r: setattr(x, "data", r),
        lambda x, r: x.uniform_(),
        lambda x, r: torch.nn.init.normal_(x),
        lambda x, r: x.resize_(3),
        lambda x, r: x.untyped_storage().resize_(0).resize_(8),
    ],
)
def test_every_kind_of_unknown_write_ends_what_is_known(write: Callable) -> None:
    with fake_mode():
        tensor = torch.ones(2)
        write(tensor, torch.randn(2))
        with pytest.raises(DataDependentOutputException):
            tensor.sum().item()


def test_only_tensors_up_to_the_limit_are_known() -> None:
    with fake_mode(known_values_limit=8):
        assert torch.ones(8).sum().item() == 8
        with pytest.raises(DataDependentOutputException):
            torch.ones(9).sum().item()
        assert torch.cat([torch.ones(8), torch.ones(1)])[:1].sum().shape == ()
    with fake_mode():
        assert torch.ones(16_384).sum().item() == 16_384
        with pytest.raises(DataDependentOutputException):
            torch.ones(16_385)[0].item()
    with fake_mode(known_values_limit=0), pytest.raises(DataDependentOutputException):
        torch.ones(1).item()


def test_a_big_expand_of_a_small_known_tensor_costs_no_memory() -> None:
    with fake_mode():
        small = torch.tensor([2.0])
        big = small.expand(1_000_000_000_000)
        assert big[123_456_789].item() == 2.0
        assert (big + 1).shape == big.shape
        with pytest.raises(DataDependentOutputException):
            (big + 1)[0].item()
        small.fill_(3)
        assert big[-1].item() == 3.0


def test_copies_between_devices_carry_values() -> None:
    with fake_mode():
        tensor = torch.arange(3).to("cuda").to("cuda:1").cpu()
        assert tensor.tolist() == [0, 1, 2]
        target = torch.empty(3, device="cuda")
        target.copy_(tensor)
        tensor.zero_()
        assert target.tolist() == [0, 1, 2]
        assert target.half().cpu().numpy().tolist() == [0, 1, 2]


def test_lifted_numbers_do_not_follow_the_real_tensor_they_came_from() -> None:
    real = torch.tensor(3.0)
    with fake_mode():
        total = torch.ones(2) * real
        real.fill_(5.0)
        assert total.tolist() == [3, 3]
    assert not is_fake(real) and real.item() == 5


def test_a_converted_tensor_knows_nothing() -> None:
    with pytest.raises(DataDependentOutputException):
        to_fake(torch.ones(2)).sum().item()


def test_autograd_over_known_values_computes_them() -> None:
    with fake_mode():
        x = torch.arange(3.0, requires_grad=True)
        (x * x).sum().backward()
        assert x.grad.tolist() == [0, 2, 4]
        x.grad.add_(torch.randn(3))
        with pytest.raises(DataDependentOutputException):
            x.grad.sum().item()


def test_an_out_argument_may_be_part_of_a_new_tensor() -> None:
    def program() -> list[torch.Tensor]:
        sizes = torch.tensor([3, 4, 5])
        offsets = sizes.new_empty(4)
        offsets.narrow(0, 0, 1).zero_()
        torch.cumsum(sizes, 0, out=offsets.narrow(0, 1, 3))
        torch.add(sizes, 1, out=(rest := sizes.new_empty(5))[1:4])
        return [offsets, rest[1:4]]

    for fake, real in zip(assert_like_real(program), program(), strict=True):
        assert fake.tolist() == real.tolist()


def test_zero_tensors_without_memory_are_zeros() -> None:
    def program() -> list[torch.Tensor]:
        zero, one = torch._efficientzerotensor((2, 3)), torch.ones(2, 3)
        x = torch.ones(2, 3, requires_grad=True)
        (sign,) = torch.autograd.grad(x.abs().sum(), x, create_graph=True)
        sign.sum().backward()
        return [zero.clone(), zero + one, one.clone().copy_(zero), zero.t().contiguous(), (zero * one).clone(), x.grad]

    for fake, real in zip(assert_like_real(program), program(), strict=True):
        assert fake.clone().tolist() == real.clone().tolist()  # a real zero tensor has no memory to list either


def test_views_of_zero_tensors_are_fake_and_take_numbers() -> None:
    def program() -> list[torch.Tensor]:
        zero = torch._efficientzerotensor((2, 3))
        views = [zero.view(6), zero.as_strided((3,), (2,)), zero.unsqueeze(0).expand(4, 2, 3).reshape(8, 3)]
        return [*views, 1 - zero, zero * 2, (zero / 2).view(3, 2), views[2] @ torch.ones(3, 2)]

    assert_like_real(lambda: [torch._efficientzerotensor((2, 3)) + 1])
    for fake, real in zip(assert_like_real(program), program(), strict=True):
        assert fake.clone().tolist() == real.clone().tolist()


def test_forward_derivatives_of_gradients_run_under_vmap() -> None:
    def program() -> torch.Tensor:
        weight = torch.ones(16, 1)
        return torch.func.vmap(torch.func.hessian(lambda row: (weight @ row).tanh().sum()))(torch.ones(3, 1))

    assert_like_real(lambda: [program()])


def test_real_errors_about_known_values_are_raised() -> None:
    with fake_mode():
        with pytest.raises(IndexError):
            torch.arange(3)[torch.tensor([5])]
        with pytest.raises(RuntimeError):
            torch.arange(3).div(torch.zeros(3, dtype=torch.int64), rounding_mode="floor")


def test_known_tensors_look_like_real_ones() -> None:
    assert_like_real(lambda: [PROGRAMS[name]("cpu") for name in PROGRAMS])


def _partly_written() -> torch.Tensor:
    x = torch.empty(4)
    x[0] = 1.0
    return x


#: Each writes to a tensor of which one element is known.
WRITES_TO_A_PART: dict[str, Callable[[torch.Tensor], object]] = {
    "random": lambda x: x.normal_(),
    "scaled": lambda x: x.mul_(2),
    "copied": lambda x: x.copy_(torch.rand(4)),
    "foreach": lambda x: torch._foreach_add_([x], 1),
    "out": lambda x: torch.add(torch.rand(4), 1, out=x),
    "view": lambda x: x.view(2, 2).clamp_(0, 1),
    "slice": lambda x: x[:2].uniform_(),
}


@pytest.mark.parametrize("name", list(WRITES_TO_A_PART))
def test_a_write_ends_what_is_known_of_a_part(name: str) -> None:
    with fake_mode():
        x = _partly_written()
        assert x[0].item() == 1
        WRITES_TO_A_PART[name](x)
        with pytest.raises(DataDependentOutputException):
            x[0].item()


@pytest.mark.parametrize("write", [torch.Tensor.neg_, torch.Tensor.uniform_, lambda x: torch._foreach_mul_([x], 2)])
def test_a_write_across_repeated_values_ends_them(write: Callable[[torch.Tensor], object]) -> None:
    with fake_mode():
        x = torch.arange(4.0).view(4, 1).expand(4, 5001).reshape(-1)
        write(x)
        with pytest.raises(DataDependentOutputException):
            x[-1].item()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_running_statistics_are_known_until_they_are_updated(device: str) -> None:
    with fake_mode():
        norm = torch.nn.BatchNorm1d(3, device=device).eval()
        norm(torch.randn(4, 3, device=device))
        assert norm.running_mean.tolist() == [0, 0, 0]
        norm.train()(torch.randn(4, 3, device=device))
        for statistic in (norm.running_mean, norm.running_var):
            with pytest.raises(DataDependentOutputException):
                statistic[0].item()


def test_one_element_of_a_partly_written_tensor_can_be_used() -> None:
    with fake_mode():
        x = torch.empty(3, 2)
        x[0, 0] = 1.0
        assert x[:1, 0].sum().item() == 1


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_products_in_half_precision_are_known(dtype: torch.dtype, device: str) -> None:
    # In single precision: half-precision kernels crash on machines that report instructions which they do not support.
    with fake_mode():
        x = torch.ones(4, 8, dtype=dtype, device=device)
        column = torch.arange(8, dtype=dtype, device=device)
        for product in (x @ x.t(), torch.nn.functional.linear(x, x), torch.bmm(x[None], x.t()[None])):
            assert product.dtype == dtype
            assert set(product.flatten().tolist()) == {8.0}
        assert torch.mv(x, column).tolist() == [28.0] * 4
        assert torch.dot(column, column).item() == 140
        total = torch.ones(4, 4, dtype=dtype, device=device).addmm_(x, x.t())
        assert set(total.flatten().tolist()) == {9.0}
        repeated = torch.ones(4, 4, dtype=dtype, device=device).addmm_(x[:1].expand(4, 8), x.t())
        assert set(repeated.flatten().tolist()) == {9.0}
        out = torch.empty(0, dtype=dtype, device=device)
        assert set(torch.mm(x, x.t(), out=out).flatten().tolist()) == {8.0}
        assert out.shape == (4, 4)
        picture = torch.ones(1, 1, 3, 3, dtype=dtype, device=device)
        assert torch.nn.functional.conv2d(picture, picture).item() == 9


def test_a_product_in_half_precision_is_rounded_once() -> None:
    factors = torch.rand(16, 64), torch.rand(64, 16)
    with fake_mode():
        half = [torch.tensor(factor.tolist(), dtype=torch.bfloat16) for factor in factors]
        known = (half[0] @ half[1]).tolist()
    expected = (factors[0].bfloat16().float() @ factors[1].bfloat16().float()).bfloat16()
    assert known == expected.tolist()


def test_products_of_bytes_are_not_known() -> None:
    with fake_mode():
        x = torch.ones(64, 64, dtype=torch.int8)
        assert (x + x).sum().item() == 2 * 64 * 64
        product = torch._int_mm(x, x)
        assert product.shape == (64, 64)
        with pytest.raises(DataDependentOutputException):
            product.sum().item()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_known_tensors_under_autocast_do_not_end_the_process(device: str) -> None:
    with fake_mode(), torch.autocast(device, torch.bfloat16):
        x = torch.ones(64, 64, device=device)
        for result in (
            x @ x,
            torch.bmm(x[None], x[None]),
            torch.nn.functional.linear(x, x, x[0]),
            torch.addmm(x, x, x),
        ):
            assert result.dtype == torch.bfloat16
        picture, weight = torch.ones(2, 8, 16, 16, device=device), torch.ones(8, 8, 3, 3, device=device)
        assert torch.nn.functional.conv2d(picture, weight).dtype == torch.bfloat16
        query = torch.ones(2, 4, 32, 16, device=device)
        assert torch.nn.functional.scaled_dot_product_attention(query, query, query).dtype == torch.bfloat16


@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
def test_values_computed_from_empty_tensors_are_known_on_every_call(device: str) -> None:
    with fake_mode():
        for _ in range(4):
            x = torch.rand(0, 5, device=device)
            assert not (x < 0).any().item()
            assert (x < 0).all().item()
            assert x.sum(0).tolist() == [0] * 5
            assert torch.sum(x, 0, out=torch.rand(5, device=device)).tolist() == [0] * 5


def test_overwriting_with_a_constant_again_and_again_gives_its_values() -> None:
    with fake_mode():
        for value in (1.0, 2.0, 1.0, 1.0, 2.0, 2.0):  # misses, then hits of the cache
            tensor = torch.empty(3, 2)
            tensor.fill_(value)
            assert tensor.tolist() == [[value, value]] * 3
            tensor.add_(1)
            assert tensor.zero_().tolist() == [[0.0, 0.0]] * 3


def test_an_overwritten_tensor_keeps_its_memory_and_counts_its_version() -> None:
    with fake_mode():
        tensor = torch.ones(4)
        array = tensor.numpy()
        for count in range(1, 6):
            tensor.fill_(7.0)
            assert array.tolist() == [7.0] * 4
            assert tensor._version == count
            array[0] = 0.0
            assert tensor.tolist() == [0.0, 7.0, 7.0, 7.0]


def test_a_part_of_a_storage_is_overwritten_alone() -> None:
    with fake_mode():
        for _ in range(4):
            whole = torch.ones(8)
            whole.fill_(3.0)  # the same sizes as the part below, in a storage that it fills
            part = torch.ones(16)[4:12]
            base = part._base
            part.fill_(3.0)
            assert base is not None
            assert base.tolist() == [1.0] * 4 + [3.0] * 8 + [1.0] * 4


def test_a_copy_of_unknown_values_ends_what_was_known() -> None:
    with fake_mode():
        for _ in range(4):
            tensor = torch.ones(4)
            tensor.copy_(torch.rand(4))
            with pytest.raises(DataDependentOutputException):
                tensor.sum().item()
            assert tensor.fill_(2.0).sum().item() == 8.0


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("unique", [torch.unique, torch.unique_consecutive])
def test_one_element_is_unique_whatever_it_is(unique: Any, device: str) -> None:
    for sizes in ((), (1,), (1, 1)):
        real = unique(torch.rand(sizes), return_inverse=True, return_counts=True)
        with fake_mode():
            found = unique(torch.rand(sizes, device=device), return_inverse=True, return_counts=True)
            assert unique(torch.rand(sizes, device=device)).shape == (1,)
        assert [(t.shape, t.dtype, t.stride()) for t in found] == [(t.shape, t.dtype, t.stride()) for t in real]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("unique", [torch.unique, torch.unique_consecutive])
def test_one_slice_is_unique_whatever_it_holds(unique: Any, device: str) -> None:
    real = unique(torch.rand(3, 1, 2), dim=1, return_inverse=True, return_counts=True)
    with fake_mode():
        found = unique(torch.rand(3, 1, 2, device=device), dim=1, return_inverse=True, return_counts=True)
        with pytest.raises(DynamicOutputShapeException):
            unique(torch.rand(3, 1, 2, device=device), dim=0)
    assert [(t.shape, t.dtype, t.stride()) for t in found] == [(t.shape, t.dtype, t.stride()) for t in real]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_result_is_kept_for_the_values_that_it_was_computed_from(device: str) -> None:
    with fake_mode():
        first, second = torch.tensor([1, 0, 3], device=device), torch.tensor([2, 0, 3], device=device)
        row = torch.arange(6.0, device=device)
        for _ in range(4):  # the first is a miss, the second stores the values it computed, later ones reuse them
            assert (1 - first).tolist() == [0, 1, -2]
            assert (1 - second).tolist() == [-1, 1, -2]
            assert (2 - first).tolist() == [1, 2, -1]
            assert torch.add(first, second, alpha=2).tolist() == [5, 0, 9]
            assert torch.add(first, second, alpha=3).tolist() == [7, 0, 12]
            assert torch.add(second, first, alpha=3).tolist() == [5, 0, 12]
            assert row[2:4].mul(2).tolist() == [4.0, 6.0]
            assert row[3:5].mul(2).tolist() == [6.0, 8.0]


def test_a_kept_result_is_a_copy_and_sees_what_was_written() -> None:
    with fake_mode():
        x = torch.ones(3)
        for _ in range(4):
            doubled = x * 2
            assert doubled.tolist() == [2.0, 2.0, 2.0]
            doubled.fill_(7.0)
        x.numpy()[0] = 5.0  # not an operator: the version is not incremented
        assert (x * 2).tolist() == [10.0, 2.0, 2.0]
        x.mul_(2)
        assert (x * 2).tolist() == [20.0, 4.0, 4.0]


def test_what_one_mode_has_computed_is_not_known_in_one_that_knows_less() -> None:
    with fake_mode():
        x = torch.arange(8)
        for _ in range(3):
            assert (x * 2).tolist()[-1] == 14
    with fake_mode(known_values_limit=4):
        x = torch.arange(8)
        with pytest.raises(DataDependentOutputException):
            (x * 2).tolist()
        with pytest.raises(DataDependentOutputException):
            torch.tensor([1, 2]).expand(8, 2).sum(1).tolist()


def test_known_weights_leave_an_unknown_input_unknown() -> None:
    with fake_mode():
        weight, x = torch.ones(4), torch.rand(30, 4)
        for _ in range(3):
            with pytest.raises(DataDependentOutputException):
                (x * weight).sum().item()
            assert (weight * 2).tolist() == [2.0] * 4
            with pytest.raises(IndexError):
                torch.nn.functional.embedding(torch.tensor([30]), x)
        mask, unknown = torch.zeros(30, dtype=torch.bool), torch.rand(30) > 0.5
        for _ in range(3):
            assert (mask & unknown).tolist() == [False] * 30
