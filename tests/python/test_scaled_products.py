"""Products with a separate result dtype: scaled float8 matrices, quantized weights, and half precision in float."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from metadata import assert_answers_like_real
from torch import Tensor

from torchfake import fake_mode

aten = torch.ops.aten


def rows(m: int = 32, k: int = 64, dtype: torch.dtype = torch.float8_e4m3fn, device: str = "cpu") -> Tensor:
    return torch.ones(m, k, device=device).to(dtype)


def columns(k: int = 64, n: int = 16, dtype: torch.dtype = torch.float8_e4m3fn, device: str = "cpu") -> Tensor:
    return torch.ones(n, k, device=device).to(dtype).t()


def bytes_of(*sizes: int) -> Tensor:
    return torch.ones(*sizes, dtype=torch.int8)


def scaled_mm(a: Tensor, b: Tensor, scales: tuple[Tensor, Tensor] | None = None, **options: Any) -> Tensor:
    one = torch.ones((), device=a.device)
    return torch._scaled_mm(a, b, *(scales or (one, one)), **{"out_dtype": torch.bfloat16, **options})


def scaled_mm_v2(a: Tensor, b: Tensor, scales: tuple[Tensor, Tensor], kind: int, bias: Tensor | None = None) -> Tensor:
    scale_a, scale_b = scales
    return aten._scaled_mm_v2(a, b, [scale_a], [kind], [0], [scale_b], [kind], [0], bias, torch.bfloat16)


def offs(*ends: int) -> Tensor:
    return torch.tensor(ends, dtype=torch.int32)


def grouped_mm(a: tuple[int, ...], b: tuple[int, ...], ends: Tensor | None = None) -> Tensor:
    return torch._grouped_mm(torch.ones(a), torch.ones(b), offs=ends)


CALLS: dict[str, Callable[[], Any]] = {
    "scaled by rows": lambda: scaled_mm(rows(), columns(), (torch.ones(32, 1), torch.ones(1, 16))),
    "scaled by too few rows": lambda: scaled_mm(rows(), columns(), (torch.ones(31, 1), torch.ones(1, 16))),
    "scaled, one by rows": lambda: scaled_mm(rows(), columns(), (torch.ones(32, 1), torch.ones(()))),
    "scaled bfloat16": lambda: scaled_mm(rows(dtype=torch.bfloat16), columns()),
    "scaled with a bias of a wrong size": lambda: scaled_mm(rows(), columns(), bias=torch.ones(15)),
    "scaled of wrong sizes": lambda: scaled_mm(rows(), columns(32)),
    "scaled vector": lambda: scaled_mm(rows()[0], columns()),
    "scaled with two scales of the result": lambda: scaled_mm(rows(), columns(), scale_result=torch.ones(2)),
    "scaled by rows, by recipe": lambda: scaled_mm_v2(rows(), columns(), (torch.ones(32, 1), torch.ones(1, 16)), 1),
    "scaled by a recipe for others": lambda: scaled_mm_v2(
        rows(dtype=torch.bfloat16), columns(), (torch.ones(()), torch.ones(())), 0
    ),
    "scaled by recipe, of wrong sizes": lambda: scaled_mm_v2(rows(), columns(32), (torch.ones(()), torch.ones(())), 0),
    "scaled by recipe, with a bias of a wrong size": lambda: scaled_mm_v2(
        rows(), columns(), (torch.ones(()), torch.ones(())), 0, torch.ones(15)
    ),
    "of halves to floats, which the CPU has not": lambda: torch.mm(
        torch.ones(2, 3).half(), torch.ones(3, 4).half(), out_dtype=torch.float32
    ),
    "of integers": lambda: torch._int_mm(bytes_of(3, 4), bytes_of(4, 5)),
    "of unsigned integers": lambda: torch._int_mm(bytes_of(3, 4).byte(), bytes_of(4, 5)),
    "of integers and floats": lambda: torch._int_mm(bytes_of(3, 4), torch.ones(4, 5)),
    "of integers of wrong sizes": lambda: torch._int_mm(bytes_of(3, 4), bytes_of(5, 5)),
    "of integers to out": lambda: torch._int_mm(bytes_of(3, 4), bytes_of(4, 5), out=torch.empty(3, 5).int()),
    "of integers to out of a wrong size": lambda: torch._int_mm(
        bytes_of(3, 4), bytes_of(4, 5), out=torch.empty(0, dtype=torch.int32)
    ),
    "with bytes": lambda: aten._weight_int8pack_mm(torch.ones(3, 64), bytes_of(32, 64), torch.ones(32)),
    "of doubles with bytes": lambda: aten._weight_int8pack_mm(
        torch.ones(3, 64).double(), bytes_of(32, 64), torch.ones(32)
    ),
    "with too few bytes": lambda: aten._weight_int8pack_mm(torch.ones(3, 64), bytes_of(32, 63), torch.ones(32)),
    "packed": lambda: aten._convert_weight_to_int4pack_for_cpu(torch.ones(32, 64).int(), 2),
    "packed of odd rows": lambda: aten._convert_weight_to_int4pack_for_cpu(torch.ones(30, 64).int(), 2),
    "with packed weights": lambda: aten._weight_int4pack_mm_for_cpu(
        torch.ones(3, 64), torch.ones(32, 32).byte(), 32, torch.ones(2, 32, 2)
    ),
    "with packed weights in groups of 31": lambda: aten._weight_int4pack_mm_for_cpu(
        torch.ones(3, 64), torch.ones(32, 32).byte(), 31, torch.ones(2, 32, 2)
    ),
}

GROUPS: dict[str, Callable[[], Any]] = {
    "rows by matrices": lambda: grouped_mm((16, 8), (2, 8, 24), offs(8, 16)),
    "rows by columns": lambda: grouped_mm((16, 8), (8, 24), offs(4, 8)),
    "matrices by matrices": lambda: grouped_mm((2, 16, 8), (2, 8, 24)),
    "matrices by columns": lambda: grouped_mm((2, 16, 8), (8, 24), offs(8, 24)),
    "padded rows": lambda: torch._grouped_mm(torch.ones(16, 8), torch.ones(2, 21, 8).mT, offs=offs(8, 16)),
    "rows that are not aligned": lambda: grouped_mm((16, 8), (2, 8, 21), offs(8, 16)),
    "sizes that do not match": lambda: grouped_mm((16, 8), (2, 16, 24), offs(8, 16)),
    "no offsets": lambda: grouped_mm((16, 8), (2, 8, 24)),
    "offsets of too many groups": lambda: grouped_mm((16, 8), (2, 8, 24), offs(4, 8, 16)),
    "offsets of another dtype": lambda: grouped_mm((16, 8), (2, 8, 24), offs(8, 16).long()),
    "gaps": lambda: torch._grouped_mm(torch.ones(16, 16)[:, ::2], torch.ones(2, 8, 24), offs=offs(8, 16)),
    "doubles": lambda: torch._grouped_mm(torch.ones(16, 8).double(), torch.ones(2, 8, 24).double(), offs=offs(8, 16)),
}
CALLS.update({f"of groups, {name}": call for name, call in GROUPS.items()})


@pytest.mark.parametrize("name", CALLS)
def test_a_product_looks_like_the_real_one(name):
    assert_answers_like_real(CALLS[name])


def test_whole_matrices_are_scaled():
    # Not every CPU multiplies float8 in this way for real.
    with fake_mode(known_values_limit=0):
        one = torch.ones(())
        out = torch.empty(0, dtype=torch.bfloat16)
        for result in (
            scaled_mm(rows(), columns()),
            scaled_mm(rows(), columns(), bias=torch.ones(16)),
            scaled_mm(rows(32, 0), columns(0)),
            scaled_mm_v2(rows(), columns(), (one, one), 0),
            aten._scaled_mm.out(rows(), columns(), one, one, out=out),
        ):
            assert (result.shape, result.stride(), result.dtype) == ((32, 16), (16, 1), torch.bfloat16)
        assert scaled_mm(rows(), columns(), out_dtype=None).dtype == torch.float8_e4m3fn


@pytest.mark.parametrize(
    ("message", "call"),
    {
        "divisible by 16": lambda: scaled_mm(rows(k=60, device="cuda"), columns(60, device="cuda")),
        "must be divisible by 16": lambda: scaled_mm(rows(device="cuda"), columns(n=15, device="cuda")),
        "row-major and column-major": lambda: scaled_mm(rows(device="cuda"), rows(64, 16, device="cuda")),
        "two Float8_e5m2": lambda: scaled_mm(
            rows(dtype=torch.float8_e5m2, device="cuda"), columns(dtype=torch.float8_e5m2, device="cuda")
        ),
        "Bias must be BFloat16 or Half": lambda: scaled_mm(
            rows(device="cuda"), columns(device="cuda"), bias=torch.ones(16, device="cuda")
        ),
        "greater than 16": lambda: torch._int_mm(bytes_of(16, 32).cuda(), bytes_of(32, 16).cuda()),
        "a multiple of 8": lambda: torch._int_mm(bytes_of(32, 30).cuda(), bytes_of(30, 16).cuda()),
        "out_dtype must be the same": lambda: torch.mm(
            torch.ones(4, 4, device="cuda"), torch.ones(4, 4, device="cuda"), out_dtype=torch.half
        ),
    }.items(),
)
def test_a_gpu_asks_for_more(message, call):
    with fake_mode(), pytest.raises((RuntimeError, ValueError), match=message):
        call()


def test_blocks_are_scaled_on_a_gpu():
    with fake_mode():
        by_rows = torch.ones(2, 256, device="cuda")
        a, b = rows(256, 256, device="cuda"), columns(256, 256, device="cuda")
        assert scaled_mm(a, b, (by_rows.t(), by_rows)).shape == (256, 256)
        assert scaled_mm(a, b, (by_rows.t(), torch.ones(2, 2, device="cuda").t())).shape == (256, 256)


def test_halves_are_multiplied_to_floats():
    with fake_mode():
        x, y = torch.ones(2, 3, device="cuda").half(), torch.ones(3, 4, device="cuda").half()
        bias = torch.ones(4, device="cuda").half()
        assert torch.mm(x, y, out_dtype=torch.float32).dtype == torch.float32
        assert torch.addmm(bias, x, y, out_dtype=torch.float32).shape == (2, 4)
        assert torch.bmm(x[None], y[None], out_dtype=torch.float32).dtype == torch.float32
        assert torch.baddbmm(bias, x[None], y[None], out_dtype=torch.float32).stride() == (8, 4, 1)


def test_weights_are_packed_for_a_gpu():
    with fake_mode():
        packed = aten._convert_weight_to_int4pack(torch.ones(64, 64, device="cuda").byte(), 4)
        assert (packed.shape, packed.dtype) == ((8, 2, 32, 2), torch.int32)
        x = torch.ones(5, 128, device="cuda", dtype=torch.bfloat16)
        scales = torch.ones(4, 64, 2, device="cuda", dtype=torch.bfloat16)
        assert aten._weight_int4pack_mm(x, packed, 32, scales).shape == (5, 64)
        with pytest.raises(RuntimeError, match="columns of A"):
            aten._weight_int4pack_mm(x[:, :64].contiguous(), packed, 32, scales)


def test_scaled_groups_are_multiplied_on_a_gpu():
    with fake_mode():
        a, b = rows(device="cuda"), rows(2 * 48, 64, device="cuda").view(2, 48, 64).mT
        ends = torch.tensor([16, 32], dtype=torch.int32, device="cuda")
        scales = torch.ones(32, device="cuda"), torch.ones(2, 48, device="cuda")
        result = torch._scaled_grouped_mm(a, b, *scales, offs=ends)
        assert (result.shape, result.dtype) == ((32, 48), torch.bfloat16)
        with pytest.raises(RuntimeError, match="transposed"):
            torch._scaled_grouped_mm(a, b.contiguous(), *scales, offs=ends)
        with pytest.raises(RuntimeError, match="same length"):
            torch._scaled_grouped_mm(a, b, scales[0][1:], scales[1], offs=ends)
