"""Single operators at shapes and layouts beyond those of operator_grid.py. The order is random, fixed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator

import torch
from operator_grid import with_backward
from torch.nn import functional as F

Calls = Iterator[tuple[object, Callable[[], object]]]
FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def normal(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = False) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype).requires_grad_(grad)


def whole(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, high, shape, device="cuda")


def probabilities(rows: int, n: int, dtype: torch.dtype) -> torch.Tensor:
    """Positive, with a sum that half precision can represent."""
    return torch.rand(rows, n, device="cuda", dtype=dtype).add_(0.05).div_(n)


def named(label: object, call: Callable[..., object], *args: object) -> tuple[object, Callable[[], object]]:
    return label, lambda: call(*args)


def selection() -> Calls:
    shapes = (
        (1,), (31,), (257,), (1024,), (1025,), (2048,), (4097,), (10_000,), (65_537,), (300_000,), (2_000_000,),
        (4, 16), (4, 1024), (4, 3000), (100, 2048), (100, 5000), (1000, 33), (3000, 3000), (50_000, 4), (7, 200_000),
        (8, 64, 64), (64, 3, 500),
    )  # fmt: skip
    dtypes = (torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool)
    for shape, dtype in itertools.product(shapes, dtypes):
        x = (torch.randn(shape, device="cuda") * 100).to(dtype)
        for dim in {0, -1}:
            at = [list(shape), str(dtype), dim]
            yield named(["sort", *at], lambda x, d: x.sort(d), x, dim)
            yield named(["sort stable", *at], lambda x, d: x.sort(dim=d, stable=True, descending=True), x, dim)
            yield named(["argsort", *at], lambda x, d: x.argsort(d), x, dim)
            if dtype != torch.bool:
                for k in (1, 10, 64, 1000):
                    yield named(["topk", k, *at], lambda x, k, d: x.topk(min(k, x.size(d)), d), x, k, dim)
                yield named(["topk unsorted", *at], lambda x, d: x.topk(min(50, x.size(d)), d, sorted=False), x, dim)
                yield named(["kthvalue", *at], lambda x, d: x.kthvalue(1, d), x, dim)
                yield named(["median", *at], lambda x, d: x.median(d), x, dim)
                yield named(["mode", *at], lambda x, d: x.mode(d), x, dim)
                yield named(["cumsum", *at], lambda x, d: x.cumsum(d), x, dim)
                yield named(["cummax", *at], lambda x, d: x.cummax(d), x, dim)
            yield named(["argmax", *at], lambda x, d: x.float().argmax(d), x, dim)
            yield named(["max", *at], lambda x, d: x.max(d), x, dim)
            yield named(["unique dim", *at], lambda x, d: x[:200].unique(dim=d), x, dim)
        at = [list(shape), str(dtype)]
        yield named(["unique", *at], lambda x: x.unique(), x)
        yield named(["unique all", *at], lambda x: x.unique(return_inverse=True, return_counts=True), x)
        yield named(["unique consecutive", *at], lambda x: x.unique_consecutive(return_counts=True), x)
        yield named(["nonzero", *at], lambda x: x.nonzero(), x)
        yield named(["masked_select", *at], lambda x: x.masked_select(x > 0), x)
        yield named(["any", *at], lambda x: (x > 0).any(), x)
        yield named(["msort", *at], lambda x: x.msort(), x)
        if dtype.is_floating_point:
            for name in ("sum", "mean", "prod", "std", "var", "norm", "logsumexp", "amax", "aminmax", "cumprod"):
                if name in ("logsumexp", "cumprod"):
                    yield named([name, *at], lambda x, n: getattr(x, n)(-1), x, name)
                else:
                    yield named([name, *at], lambda x, n: getattr(x, n)(), x, name)
                if name not in ("aminmax", "cumprod") and (name != "prod"):
                    yield named([name, 0, *at], lambda x, n: getattr(x, n)(dim=0), x, name)


def drawing() -> Calls:
    for rows, n in itertools.product((1, 3, 64, 500), (10, 100, 1000, 1025, 5000, 50_000, 200_000)):
        for count, again in ((1, False), (5, False), (1, True), (64, True)):
            for dtype in FLOATS:
                yield named(
                    ["multinomial", rows, n, count, again, str(dtype)],
                    lambda r, n, c, a, d: torch.multinomial(probabilities(r, n, d), min(c, n), a),
                    rows, n, count, again, dtype,
                )  # fmt: skip
    for n in (1, 100, 5000, 30_000, 100_000, 3_000_000):
        yield named(["randperm", n], lambda n: torch.randperm(n, device="cuda"), n)
        yield named(["bincount", n], lambda n: torch.bincount(whole(500, n)), n)
        yield named(["bincount weighted", n], lambda n: torch.bincount(whole(50, n), normal(n)), n)
        yield named(["histc", n], lambda n: torch.histc(normal(n), 100), n)
        yield named(["isin", n], lambda n: torch.isin(whole(99, n), whole(99, n // 2 + 1)), n)
        yield named(["quantile", n], lambda n: torch.quantile(normal(n), 0.5), n)
        yield named(["bernoulli", n], lambda n: torch.bernoulli(torch.rand(n, device="cuda")), n)


def indexing() -> Calls:
    sizes = (
        (10, 8, 16), (1000, 64, 100), (1000, 64, 3072), (1000, 64, 3076), (5000, 320, 2048), (50_000, 128, 8192),
        (300, 4, 10_000), (30_000, 768, 4096), (200_000, 16, 32_768), (128, 512, 512),
    )  # fmt: skip
    for (rows, width, count), dtype in itertools.product(sizes, FLOATS):
        at = [rows, width, count, str(dtype)]

        def table(rows=rows, width=width, dtype=dtype) -> torch.Tensor:
            return normal(rows, width, dtype=dtype, grad=True)

        def picks(rows=rows, count=count) -> torch.Tensor:
            return whole(rows, count)

        def source(count=count, width=width, dtype=dtype) -> torch.Tensor:
            return normal(count, width, dtype=dtype)

        yield named(["embedding", *at], lambda t, p: with_backward(F.embedding(p(), t())), table, picks)
        yield named(
            ["embedding by frequency", *at],
            lambda t, p: with_backward(F.embedding(p(), t(), scale_grad_by_freq=True)), table, picks,
        )  # fmt: skip
        yield named(["embedding int32", *at], lambda t, p: with_backward(F.embedding(p().int(), t())), table, picks)
        for mode in ("sum", "mean", "max"):
            yield named(
                ["embedding_bag", mode, *at],
                lambda t, p, m: with_backward(F.embedding_bag(p().view(-1, 4), t(), mode=m)), table, picks, mode,
            )  # fmt: skip
        yield named(["index", *at], lambda t, p: with_backward(t()[p()]), table, picks)
        yield named(["index 2", *at], lambda t, p: with_backward(t()[p(), p() % t().size(1)]), table, picks)
        if rows * count <= 1 << 25:
            yield named(["index column", *at], lambda t, p: with_backward(t()[:, p() % t().size(1)]), table, picks)
        yield named(["index bool", *at], lambda t: with_backward(t()[t() > 0]), table)
        yield named(["index_select", *at], lambda t, p: with_backward(t().index_select(0, p())), table, picks)
        for dim in (0, 1) if rows * count <= 1 << 25 else (0,):
            yield named(
                ["index_add", dim, *at],
                lambda t, p, s, d: t().detach().index_add(
                    d, p() % t().size(d), s() if d == 0 else t().detach()[:, p() % t().size(1)]
                ), table, picks, source, dim,
            )  # fmt: skip
        yield named(
            ["index_put", *at],
            lambda t, p, s: t().detach().index_put((p(),), s(), accumulate=True), table, picks, source,
        )  # fmt: skip
        yield named(["index_copy", *at], lambda t, p, s: t().detach().index_copy(0, p(), s()), table, picks, source)
        yield named(["index_fill", *at], lambda t, p: t().detach().index_fill(0, p(), 1.0), table, picks)
        yield named(
            ["scatter_reduce", *at],
            lambda t, p, s: t().detach().scatter_reduce(0, p()[:, None].expand_as(s()), s(), "amax"),
            table, picks, source,
        )  # fmt: skip
        yield named(
            ["scatter", *at],
            lambda t, p, s: t().detach().scatter(0, p()[:, None].expand_as(s()), s()), table, picks, source,
        )  # fmt: skip
        yield named(["take", *at], lambda t, p: with_backward(t().take(p())), table, picks)
        yield named(["repeat_interleave", *at], lambda t: with_backward(t().repeat_interleave(3, 0)), table)
        yield named(["one_hot", *at], lambda p: F.one_hot(p() % 50), picks)
        yield named(["cat backward", *at], lambda t: with_backward(torch.cat([t(), t()], 1)), table)


def normalization() -> Calls:
    rows = (1, 7, 64, 197, 1024, 4096, 12_608, 65_536, 70_000)
    widths = (1, 8, 33, 64, 128, 192, 300, 512, 768, 1000, 1024, 2048, 4096, 8192, 20_000)
    for n, width, dtype in itertools.product(rows, widths, FLOATS):
        if n * width > 1 << 26:
            continue

        def inputs(n=n, width=width, dtype=dtype) -> torch.Tensor:
            return normal(n, width, dtype=dtype, grad=True)

        def weight(width=width, dtype=dtype) -> torch.Tensor:
            return normal(width, dtype=dtype, grad=True)

        at = [n, width, str(dtype)]
        yield named(
            ["layer_norm", *at],
            lambda x, w: with_backward(F.layer_norm(x(), w().shape, w(), w())), inputs, weight,
        )  # fmt: skip
        yield named(["rms_norm", *at], lambda x, w: with_backward(F.rms_norm(x(), w().shape, w())), inputs, weight)
        yield named(["softmax", *at], lambda x: with_backward(x().softmax(-1)), inputs)
        yield named(["log_softmax 0", *at], lambda x: with_backward(x().log_softmax(0)), inputs)
        yield named(
            ["cross_entropy", *at],
            lambda x: with_backward(F.cross_entropy(x(), whole(x().size(1), x().size(0)), ignore_index=0)), inputs,
        )  # fmt: skip
        yield named(
            ["cross_entropy none", *at],
            lambda x: with_backward(F.cross_entropy(x(), whole(x().size(1), x().size(0)), reduction="none")), inputs,
        )  # fmt: skip
        yield named(["sum of gradient", *at], lambda x, w: with_backward(x() + w()), inputs, weight)
        yield named(
            ["linear", *at],
            lambda x, w: with_backward(F.linear(x(), w().expand(64, -1).contiguous(), normal(64, dtype=x().dtype))),
            inputs, weight,
        )  # fmt: skip
        for name in ("l1_loss", "mse_loss", "smooth_l1_loss", "huber_loss"):
            yield named([name, *at], lambda x, n: with_backward(getattr(F, n)(x(), x().detach())), inputs, name)
        yield named(["glu", *at], lambda x: with_backward(F.glu(torch.cat([x(), x()], 1))), inputs)
        yield named(["normalize", *at], lambda x: with_backward(F.normalize(x())), inputs)
        yield named(["std", *at], lambda x: with_backward(x().std(-1)), inputs)
        yield named(["norm", *at], lambda x: with_backward(x().norm(dim=-1)), inputs)
        yield named(["cumsum", *at], lambda x: with_backward(x().cumsum(-1)), inputs)


def images() -> Calls:
    shapes = (
        (1, 3, 224, 224), (8, 64, 28, 28), (8, 64, 56, 56), (32, 16, 32, 32), (2, 320, 64, 64), (64, 256, 7, 7),
        (4, 100, 17, 31), (16, 512, 14, 14), (128, 32, 8, 8), (2, 1280, 8, 8),
    )  # fmt: skip
    for shape, dtype, last in itertools.product(shapes, FLOATS, (False, True)):
        layout = torch.channels_last if last else torch.contiguous_format
        at = [list(shape), str(dtype), last]
        c = shape[1]

        def x(shape=shape, dtype=dtype, layout=layout) -> torch.Tensor:
            return normal(*shape, dtype=dtype).to(memory_format=layout).requires_grad_()

        def w(dtype=dtype, c=c) -> torch.Tensor:
            return normal(c, dtype=dtype, grad=True)

        for half_weight, training in itertools.product((False, True), (False, True)):
            yield named(
                ["batch_norm", half_weight, training, *at],
                lambda x, c, d, t: with_backward(
                    F.batch_norm(
                        x(), normal(c), normal(c).abs(), normal(c, dtype=d, grad=True), normal(c, dtype=d, grad=True), t
                    )
                ), x, c, dtype if half_weight else torch.float32, training,
            )  # fmt: skip
        for groups in (1, 4, 8, 32, c):
            if c % groups == 0:
                yield named(
                    ["group_norm", groups, *at],
                    lambda x, w, g: with_backward(F.group_norm(x(), g, w(), w())), x, w, groups,
                )  # fmt: skip
        yield named(
            ["instance_norm", *at], lambda x, w: with_backward(F.instance_norm(x(), weight=w(), bias=w())), x, w
        )
        yield named(["max_pool", *at], lambda x: with_backward(F.max_pool2d(x(), 3, 2, 1)), x)
        yield named(["max_pool 2", *at], lambda x: with_backward(F.max_pool2d(x(), 2)), x)
        yield named(["avg_pool", *at], lambda x: with_backward(F.avg_pool2d(x(), 3, 2, 1)), x)
        for size in (1, 7, 3):
            yield named(["adaptive_avg", size, *at], lambda x, s: with_backward(F.adaptive_avg_pool2d(x(), s)), x, size)
            yield named(["adaptive_max", size, *at], lambda x, s: with_backward(F.adaptive_max_pool2d(x(), s)), x, size)
        for mode in ("nearest", "bilinear", "bicubic", "area"):
            for factor in (2, 0.5):
                yield named(
                    ["interpolate", mode, factor, *at],
                    lambda x, m, f: with_backward(F.interpolate(x(), scale_factor=f, mode=m)), x, mode, factor,
                )  # fmt: skip
        yield named(
            ["grid_sample", *at],
            lambda x: with_backward(
                F.grid_sample(x(), normal(x().size(0), 20, 30, 2, dtype=x().dtype, grad=True), align_corners=False)
            ), x,
        )  # fmt: skip
        yield named(["pad", *at], lambda x: with_backward(F.pad(x(), (2, 2, 2, 2), mode="reflect")), x)
        yield named(["pixel_shuffle", *at], lambda x: with_backward(F.pixel_unshuffle(x()[..., :6, :6], 2)), x)
        yield named(["unfold", *at], lambda x: with_backward(F.unfold(x()[:2, :64], 3)), x)
        yield named(["mean of image", *at], lambda x: with_backward(x().mean((2, 3))), x)
        yield named(["sum of channels", *at], lambda x: with_backward(x().sum((0, 2, 3))), x)
        yield named(["dropout2d", *at], lambda x: with_backward(F.dropout2d(x(), 0.1)), x)
        yield named(["softmax 1", *at], lambda x: with_backward(x().softmax(1)), x)
        yield named(["log_softmax 1", *at], lambda x: with_backward(x().log_softmax(1)), x)
        yield named(
            ["cross_entropy 2d", *at],
            lambda x: with_backward(F.cross_entropy(x(), whole(x().size(1), x().size(0), *x().shape[2:]))), x,
        )  # fmt: skip
        yield named(["prelu", *at], lambda x, w: with_backward(F.prelu(x(), w())), x, w)


GROUPS: dict[str, Callable[[], Calls]] = {
    "selection": selection, "drawing": drawing, "indexing": indexing, "normalization": normalization, "images": images,
}  # fmt: skip


def by_shares(groups: dict[str, Callable[[], Calls]]) -> Calls:
    """The calls of all groups in a random order in which every group has its share of each stretch."""
    found = []
    for group in groups.values():
        of_group = list(group())
        random.Random(17).shuffle(of_group)
        found += [(i / len(of_group), i, pair) for i, pair in enumerate(of_group)]
    found.sort(key=lambda item: item[:2])
    yield from (pair for _, _, pair in found)


def calls() -> Calls:
    return by_shares(GROUPS)
