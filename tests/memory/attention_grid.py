"""Scaled dot product attention over a grid: what is kept for the backward pass, and what is taken for a time."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from distinct import distinct
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

MOST_SCORES = 1 << 26


class Attention(NamedTuple):
    backend: str  # "" is PyTorch's choice
    batch: int
    heads: int
    key_heads: int
    rows: int
    columns: int
    width: int
    value_width: int
    #: "", "grad", "expanded" or "bool" over the whole batch; "row" over columns alone
    bias: str
    dropout: float
    causal: bool
    heads_inside: bool  # heads lie inside rows in memory, as projections leave them
    gradients: str  # which of q, k, v get one
    dtype: str

    def is_usable(self) -> bool:
        return self.batch * self.heads * self.rows * self.columns <= MOST_SCORES


def run(case: Attention) -> None:
    """Forward and backward twice, then forward without gradients."""
    dtype = getattr(torch, case.dtype)

    def made(name: str, heads: int, length: int, width: int) -> torch.Tensor:
        needed = name in case.gradients
        if case.heads_inside:
            flat = torch.zeros(case.batch, length, heads * width, device="cuda", dtype=dtype, requires_grad=needed)
            return flat.view(case.batch, length, heads, width).transpose(1, 2)
        return torch.zeros(case.batch, heads, length, width, device="cuda", dtype=dtype, requires_grad=needed)

    q = made("q", case.heads, case.rows, case.width)
    k = made("k", case.key_heads, case.columns, case.width)
    v = made("v", case.key_heads, case.columns, case.value_width)
    mask = None
    if case.bias == "bool":
        mask = torch.ones(case.batch, 1, case.rows, case.columns, device="cuda", dtype=torch.bool)
    elif case.bias == "row":
        mask = torch.zeros(case.batch, 1, 1, case.columns, device="cuda", dtype=dtype)
    elif case.bias:
        batch = 1 if case.bias == "expanded" else case.batch
        mask = torch.zeros(batch, case.heads, case.rows, case.columns, device="cuda", dtype=dtype)
        mask = mask.requires_grad_(case.bias != "plain").expand(case.batch, -1, -1, -1)
    chosen = sdpa_kernel(getattr(SDPBackend, case.backend)) if case.backend else contextlib.nullcontext()
    options = {"enable_gqa": True} if case.key_heads != case.heads else {}
    with chosen:
        for _ in range(2):
            y = F.scaled_dot_product_attention(q, k, v, mask, case.dropout, case.causal, **options)
            if y.requires_grad:
                # The gradient arrives as the next projection gives it: heads inside rows.
                gradient = torch.zeros(y.size(0), y.size(2), y.size(1), y.size(3), device="cuda", dtype=dtype)
                y.backward(gradient.transpose(1, 2) if case.heads_inside else gradient.transpose(1, 2).contiguous())
            del y
        with torch.no_grad():
            F.scaled_dot_product_attention(q, k, v, mask, case.dropout, case.causal, **options)


def as_in_t5() -> Iterator[Attention]:
    for batch, heads, length, width in ((8, 8, 256, 64), (4, 6, 128, 64), (2, 12, 512, 64), (8, 8, 100, 40)):
        for dtype in ("float32", "bfloat16", "float16"):
            for bias in ("grad", "expanded", "plain", "bool", "row", ""):
                for dropout in (0.1, 0.0):
                    for backend in ("", "EFFICIENT_ATTENTION", "MATH", "CUDNN_ATTENTION", "FLASH_ATTENTION"):
                        yield Attention(
                            backend, batch, heads, heads, length, length, width, width, bias, dropout, False, True,
                            "qkv", dtype,
                        )  # fmt: skip


def drawn(random_of: random.Random) -> Iterator[Attention]:
    pick = random_of.choice
    while True:
        heads = pick((1, 2, 4, 6, 8, 12, 16, 32))
        rows = pick((1, 7, 50, 64, 100, 128, 197, 256, 300, 512, 1000, 2048))
        width = pick((16, 32, 40, 64, 64, 64, 72, 80, 96, 128, 128, 160, 256))
        columns = rows if random_of.random() < 0.7 else pick((1, 33, 77, 128, 500, 1024))
        bias = pick(("", "", "", "grad", "expanded", "plain", "bool", "row"))
        yield Attention(
            pick(("", "", "", "EFFICIENT_ATTENTION", "FLASH_ATTENTION", "MATH", "CUDNN_ATTENTION")),
            pick((1, 2, 4, 8, 16, 32)), heads, heads if heads < 4 or random_of.random() < 0.85 else heads // 4,
            rows, columns, width, width if random_of.random() < 0.9 else pick((32, 64, 128)), bias,
            pick((0.0, 0.0, 0.1)), not bias and random_of.random() < 0.4, random_of.random() < 0.7,
            pick(("qkv", "qkv", "qkv", "qkv", "v", "q", "")), pick(("float32", "bfloat16", "float16")),
        )  # fmt: skip


def cases(count: int = 6_000) -> Iterator[Attention]:
    random_of = random.Random(17)
    first = list(as_in_t5())
    random_of.shuffle(first)
    return distinct(count, Attention.is_usable, first, drawn(random_of))


def calls() -> Iterator[tuple[object, Callable[[], object]]]:
    for case in cases():
        yield list(case), lambda case=case: run(case)
