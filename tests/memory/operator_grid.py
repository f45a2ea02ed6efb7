"""Single operators over a grid of shapes and dtypes, for recording the memory that their kernels take."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import torch
from torch.nn import functional as F

HALVES = (torch.float32, torch.bfloat16)
ALL = (torch.float32, torch.bfloat16, torch.float16)
GROUPS: dict[str, Callable[[], Iterator[Callable[[], object]]]] = {}


def group(function):
    GROUPS[function.__name__] = function
    return function


def rand(*shape, dtype=torch.float32, grad=False):
    return torch.randn(*shape, device="cuda", dtype=torch.float32).to(dtype).requires_grad_(grad)


def with_backward(output):
    """Runs the backward pass of `output`, one tensor or several."""
    outputs = [
        o for o in (output if isinstance(output, (tuple, list)) else [output]) if torch.is_tensor(o) and o.requires_grad
    ]
    torch.autograd.backward(outputs, [torch.ones_like(o) for o in outputs])


@group
def products():
    sizes = (16, 128, 1000, 1024, 4096)
    for dtype in (*ALL, torch.float64):
        for m, k, n in itertools.product(sizes, repeat=3):
            if dtype == torch.float64 and m * k * n > 1 << 31:
                continue
            yield lambda m=m, k=k, n=n, dtype=dtype: rand(m, k, dtype=dtype) @ rand(k, n, dtype=dtype)
    for dtype, (m, k, n) in itertools.product(
        ALL, [(8, 64, 64), (128, 512, 512), (4096, 1024, 3072), (2048, 4096, 1024), (333, 77, 55)]
    ):
        yield lambda m=m, k=k, n=n, dtype=dtype: with_backward(
            F.linear(
                rand(m, k, dtype=dtype, grad=True), rand(n, k, dtype=dtype, grad=True), rand(n, dtype=dtype, grad=True)
            )
        )
        yield lambda m=m, k=k, n=n, dtype=dtype: torch.baddbmm(
            rand(4, m, n, dtype=dtype), rand(4, m, k, dtype=dtype), rand(4, k, n, dtype=dtype)
        )
        yield lambda m=m, k=k, n=n, dtype=dtype: torch.addmm(
            rand(n, dtype=dtype), rand(m, k, dtype=dtype), rand(k, n, dtype=dtype)
        )
        yield lambda m=m, k=k, dtype=dtype: torch.mv(rand(m, k, dtype=dtype), rand(k, dtype=dtype))
        yield lambda k=k, m=m, dtype=dtype: torch.dot(rand(m * k, dtype=dtype), rand(m * k, dtype=dtype))


@group
def convolutions():
    cases = []
    for batch, size in ((1, 224), (8, 56), (32, 56), (16, 14), (64, 28), (4, 112), (128, 8), (2, 64)):
        for channels, out, kernel, stride, groups in (
            (64, 64, 3, 1, 1),
            (64, 128, 3, 2, 1),
            (64, 256, 1, 1, 1),
            (256, 64, 1, 1, 1),
            (3, 64, 7, 2, 1),
            (128, 128, 3, 1, 1),
            (256, 256, 3, 1, 1),
            (64, 64, 5, 1, 1),
            (64, 64, 3, 1, 64),
            (64, 64, 3, 1, 4),
            (512, 512, 3, 1, 1),
            (32, 16, 4, 2, 1),
            (320, 320, 3, 1, 1),
            (16, 3, 3, 1, 1),
        ):
            cases.append((batch, size, channels, out, kernel, stride, groups))
    for dtype, last in (
        (torch.float32, False),
        (torch.float32, True),
        (torch.float16, False),
        (torch.float16, True),
        (torch.bfloat16, True),
    ):
        for batch, size, channels, out, kernel, stride, groups in cases:
            if batch * size * size * max(channels, out) > 1 << 28:
                continue

            def call(
                batch=batch,
                size=size,
                channels=channels,
                out=out,
                kernel=kernel,
                stride=stride,
                groups=groups,
                dtype=dtype,
                last=last,
            ):
                layout = torch.channels_last if last else torch.contiguous_format
                x = rand(batch, channels, size, size, dtype=dtype).to(memory_format=layout).requires_grad_()
                w = rand(out, channels // groups, kernel, kernel, dtype=dtype).to(memory_format=layout).requires_grad_()
                with_backward(F.conv2d(x, w, None, stride, kernel // 2, 1, groups))

            yield call
    for dtype in (torch.float32, torch.float16):
        for batch, size, channels, out, kernel, stride in (
            (8, 8, 256, 128, 4, 2),
            (64, 16, 128, 64, 4, 2),
            (4, 32, 64, 3, 4, 2),
            (64, 1, 100, 256, 4, 1),
        ):
            yield lambda b=batch, s=size, c=channels, o=out, k=kernel, t=stride, dtype=dtype: with_backward(
                F.conv_transpose2d(
                    rand(b, c, s, s, dtype=dtype, grad=True),
                    rand(c, o, k, k, dtype=dtype, grad=True),
                    rand(o, dtype=dtype, grad=True),
                    t,
                    1 if t == 2 else 0,
                )
            )
        for batch, length, channels, out, kernel, stride in (
            (8, 16000, 1, 64, 10, 5),
            (8, 3200, 64, 128, 3, 2),
            (4, 1000, 256, 256, 3, 1),
            (16, 3000, 80, 384, 3, 1),
        ):
            yield lambda b=batch, s=length, c=channels, o=out, k=kernel, t=stride, dtype=dtype: with_backward(
                F.conv1d(
                    rand(b, c, s, dtype=dtype, grad=True),
                    rand(o, c, k, dtype=dtype, grad=True),
                    rand(o, dtype=dtype, grad=True),
                    t,
                )
            )
        for batch, d, size, channels, out in ((2, 8, 32, 3, 32), (2, 8, 16, 32, 64), (1, 16, 64, 16, 16)):
            yield lambda b=batch, d=d, s=size, c=channels, o=out, dtype=dtype: with_backward(
                F.conv3d(
                    rand(b, c, d, s, s, dtype=dtype, grad=True),
                    rand(o, c, 3, 3, 3, dtype=dtype, grad=True),
                    rand(o, dtype=dtype, grad=True),
                    1,
                    1,
                )
            )


@group
def norms_and_pools():
    for dtype in ALL:
        for shape in ((8, 64, 28, 28), (32, 128, 14, 14), (2, 512, 7, 7), (16, 16, 64, 64)):
            c = shape[1]
            for last in (False, True):

                def x(shape=shape, dtype=dtype, last=last):
                    return (
                        rand(*shape, dtype=dtype)
                        .to(memory_format=torch.channels_last if last else torch.contiguous_format)
                        .requires_grad_()
                    )

                yield lambda x=x, c=c: with_backward(
                    F.batch_norm(x(), rand(c), rand(c).abs(), rand(c, grad=True), rand(c, grad=True), True)
                )
                yield lambda x=x, c=c: with_backward(
                    F.batch_norm(x(), rand(c), rand(c).abs(), rand(c, grad=True), rand(c, grad=True), False)
                )
                yield lambda x=x, c=c, dtype=dtype: with_backward(
                    F.group_norm(x(), 8, rand(c, dtype=dtype, grad=True), rand(c, dtype=dtype, grad=True))
                )
                yield lambda x=x: with_backward(F.max_pool2d(x(), 3, 2, 1))
                yield lambda x=x: with_backward(F.avg_pool2d(x(), 2))
                yield lambda x=x: with_backward(F.adaptive_avg_pool2d(x(), 1))
                yield lambda x=x: with_backward(F.interpolate(x(), scale_factor=2, mode="bilinear"))
                yield lambda x=x: with_backward(F.interpolate(x(), scale_factor=2))
        for rows, width in ((128, 512), (4096, 768), (8192, 4096), (5, 1000), (100_000, 64)):
            yield lambda rows=rows, width=width, dtype=dtype: with_backward(
                F.layer_norm(
                    rand(rows, width, dtype=dtype, grad=True),
                    (width,),
                    rand(width, dtype=dtype, grad=True),
                    rand(width, dtype=dtype, grad=True),
                )
            )
            yield lambda rows=rows, width=width, dtype=dtype: with_backward(
                F.rms_norm(rand(rows, width, dtype=dtype, grad=True), (width,), rand(width, dtype=dtype, grad=True))
            )


@group
def attentions():
    for dtype in ALL:
        for batch, heads, length, other, size in (
            (2, 4, 128, 128, 64),
            (8, 12, 512, 512, 64),
            (1, 32, 2048, 2048, 128),
            (4, 8, 77, 333, 40),
            (4, 16, 1, 500, 64),
            (2, 8, 1000, 1000, 96),
            (1, 2, 300, 300, 256),
        ):
            for causal, bias, dropout in (
                (False, None, 0.0),
                (True, None, 0.0),
                (False, None, 0.1),
                (False, "plain", 0.0),
                (False, "grad", 0.0),
                (False, "grad", 0.1),
                (False, "expanded", 0.1),
                (False, "bool", 0.0),
            ):

                def call(
                    batch=batch,
                    heads=heads,
                    length=length,
                    other=other,
                    size=size,
                    causal=causal,
                    bias=bias,
                    dropout=dropout,
                    dtype=dtype,
                ):
                    q, k, v = (rand(batch, heads, n, size, dtype=dtype, grad=True) for n in (length, other, other))
                    mask = None
                    if bias == "bool":
                        mask = torch.ones(batch, 1, length, other, dtype=torch.bool, device="cuda")
                    elif bias == "expanded":
                        mask = rand(1, heads, length, other, dtype=dtype, grad=True).expand(batch, -1, -1, -1)
                    elif bias:
                        mask = rand(batch, heads, length, other, dtype=dtype, grad=bias == "grad")
                    with_backward(F.scaled_dot_product_attention(q, k, v, mask, dropout, causal))

                yield call


@group
def recurrences():
    for dtype in (torch.float32, torch.float16):
        for kind in ("LSTM", "GRU", "RNN"):
            for batch, length, width, inner, layers, both, dropout in (
                (8, 20, 64, 64, 1, False, 0),
                (32, 64, 400, 800, 2, False, 0.2),
                (64, 120, 128, 256, 2, True, 0),
                (1, 100, 512, 512, 3, False, 0),
                (16, 16, 100, 300, 1, True, 0),
            ):
                for training in (True, False):

                    def call(
                        kind=kind,
                        batch=batch,
                        length=length,
                        width=width,
                        inner=inner,
                        layers=layers,
                        both=both,
                        dropout=dropout,
                        training=training,
                        dtype=dtype,
                    ):
                        model = getattr(torch.nn, kind)(
                            width, inner, layers, batch_first=True, bidirectional=both, dropout=dropout
                        ).to("cuda", dtype)
                        model.train(training)
                        x = rand(batch, length, width, dtype=dtype)
                        if training:
                            with_backward(model(x)[0])
                        else:
                            with torch.no_grad():
                                model(x)

                    yield call


@group
def sorting():
    shapes = (
        (10,),
        (1000,),
        (4096,),
        (5000,),
        (100_000,),
        (3_000_000,),
        (8, 1000),
        (8, 5000),
        (200, 20000),
        (1024, 128),
        (4, 32000),
        (3, 7, 500),
        (2000, 2000),
    )
    for shape in shapes:
        for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.int32):

            def x(shape=shape, dtype=dtype):
                return (torch.randn(shape, device="cuda") * 1000).to(dtype)

            for dim in {0, -1}:
                yield lambda x=x, dim=dim: x().sort(dim)
                yield lambda x=x, dim=dim: x().sort(dim=dim, stable=True)
                yield lambda x=x, dim=dim: x().argsort(dim, descending=True)
                yield lambda x=x, dim=dim: x().topk(min(5, x().size(dim)), dim)
                yield lambda x=x, dim=dim: x().topk(min(300, x().size(dim)), dim)
                yield lambda x=x, dim=dim: x().cumsum(dim)
                yield lambda x=x, dim=dim: x().kthvalue(2, dim)
                yield lambda x=x, dim=dim: x().median(dim)
            yield lambda x=x: x().unique()
            yield lambda x=x: x().unique(return_inverse=True, return_counts=True)
            yield lambda x=x: x().nonzero()
            yield lambda x=x: x()[x() > 0]
            yield lambda x=x: x().max()
            yield lambda x=x: x().sum()
            yield lambda x=x: x().flatten().unique_consecutive()
            yield lambda x=x: (x() > 0).sum()
            yield lambda x=x: x().argmax()
            if dtype == torch.float32:
                yield lambda x=x: x().abs().histc(50)
                yield lambda x=x: x().logcumsumexp(-1)
                yield lambda x=x: x().cumprod(-1)
                yield lambda x=x: x().norm()
                yield lambda x=x: x().std(-1)
                yield lambda x=x: x().mean()
                yield lambda x=x: x().logsumexp(-1)
    for n in (100, 1000, 30000):
        yield lambda n=n: torch.multinomial(torch.rand(4, n, device="cuda"), 1)
        yield lambda n=n: torch.multinomial(torch.rand(4, n, device="cuda"), 5, replacement=True)
        yield lambda n=n: torch.randperm(n, device="cuda")
        yield lambda n=n: torch.bincount(torch.randint(0, 50, (n,), device="cuda"))
        yield lambda n=n: torch.searchsorted(torch.arange(n, device="cuda"), torch.arange(n, device="cuda"))
        yield lambda n=n: torch.isin(torch.arange(n, device="cuda"), torch.arange(50, device="cuda"))


@group
def indexing():
    for dtype in HALVES:
        for rows, width, count in (
            (1000, 64, 100),
            (1000, 64, 5000),
            (50_000, 256, 4096),
            (100_000, 32, 16384),
            (32, 8, 65536),
            (32000, 1024, 8192),
        ):
            yield lambda r=rows, w=width, c=count, dtype=dtype: with_backward(
                F.embedding(torch.randint(0, r, (c,), device="cuda"), rand(r, w, dtype=dtype, grad=True))
            )
            yield lambda r=rows, w=width, c=count, dtype=dtype: with_backward(
                F.embedding(torch.randint(0, r, (c,), device="cuda"), rand(r, w, dtype=dtype, grad=True), padding_idx=0)
            )
            yield lambda r=rows, w=width, c=count, dtype=dtype: with_backward(
                F.embedding_bag(
                    torch.randint(0, r, (c // 4, 4), device="cuda"), rand(r, w, dtype=dtype, grad=True), mode="sum"
                )
            )
            yield lambda r=rows, w=width, c=count, dtype=dtype: with_backward(
                rand(r, w, dtype=dtype, grad=True)[torch.randint(0, r, (c,), device="cuda")]
            )
            yield lambda r=rows, w=width, c=count, dtype=dtype: with_backward(
                rand(r, w, dtype=dtype, grad=True).index_select(0, torch.randint(0, r, (c,), device="cuda"))
            )
            yield lambda r=rows, w=width, c=count, dtype=dtype: with_backward(
                rand(r, w, dtype=dtype, grad=True).gather(0, torch.randint(0, r, (c, w), device="cuda"))
            )
            yield lambda r=rows, w=width, c=count, dtype=dtype: rand(r, w, dtype=dtype).index_put_(
                (torch.randint(0, r, (c,), device="cuda"),), rand(c, w, dtype=dtype), accumulate=True
            )
            yield lambda r=rows, w=width, c=count, dtype=dtype: rand(r, w, dtype=dtype).index_put_(
                (torch.randint(0, r, (c,), device="cuda"),), rand(c, w, dtype=dtype)
            )
            yield lambda r=rows, w=width, c=count, dtype=dtype: rand(r, w, dtype=dtype).index_add_(
                0, torch.randint(0, r, (c,), device="cuda"), rand(c, w, dtype=dtype)
            )
            yield lambda r=rows, w=width, c=count, dtype=dtype: rand(r, w, dtype=dtype).scatter_add_(
                0, torch.randint(0, r, (c, w), device="cuda"), rand(c, w, dtype=dtype)
            )
            yield lambda r=rows, w=width, c=count, dtype=dtype: rand(r, w, dtype=dtype).masked_fill(rand(r, w) > 0, 0.0)
            yield lambda r=rows, w=width, c=count, dtype=dtype: rand(r, w, dtype=dtype).masked_select(rand(r, w) > 0)
            yield lambda r=rows, w=width, c=count, dtype=dtype: torch.cat([rand(r, w, dtype=dtype)] * 3)
            yield lambda r=rows, w=width, c=count, dtype=dtype: rand(r, w, dtype=dtype).roll(1, 0).flip(0).repeat(2, 1)


@group
def losses_and_lists():
    for dtype in ALL:
        for rows, classes in ((100, 10), (4096, 1000), (2048, 32000), (16384, 64)):
            labels = torch.randint(0, classes, (rows,), device="cuda")
            yield lambda r=rows, c=classes, dtype=dtype, labels=labels: with_backward(
                F.cross_entropy(rand(r, c, dtype=dtype, grad=True), labels)
            )
            yield lambda r=rows, c=classes, dtype=dtype, labels=labels: with_backward(
                F.cross_entropy(rand(r, c, dtype=dtype, grad=True), labels, label_smoothing=0.1)
            )
            yield lambda r=rows, c=classes, dtype=dtype: with_backward(rand(r, c, dtype=dtype, grad=True).softmax(-1))
            yield lambda r=rows, c=classes, dtype=dtype: with_backward(
                rand(r, c, dtype=dtype, grad=True).log_softmax(0)
            )
            yield lambda r=rows, c=classes, dtype=dtype: with_backward(
                F.dropout(rand(r, c, dtype=dtype, grad=True), 0.1, True)
            )
            yield lambda r=rows, c=classes, dtype=dtype: with_backward(F.gelu(rand(r, c, dtype=dtype, grad=True)))
            yield lambda r=rows, c=classes, dtype=dtype: with_backward(
                F.mse_loss(rand(r, c, dtype=dtype, grad=True), rand(r, c, dtype=dtype))
            )
            yield lambda r=rows, c=classes, dtype=dtype: with_backward(
                F.kl_div(rand(r, c, dtype=dtype, grad=True), rand(r, c, dtype=dtype), reduction="batchmean")
            )
            yield lambda r=rows, c=classes, dtype=dtype: with_backward(
                F.binary_cross_entropy_with_logits(rand(r, c, dtype=dtype, grad=True), rand(r, c, dtype=dtype))
            )
            yield lambda r=rows, c=classes, dtype=dtype: with_backward(
                F.smooth_l1_loss(rand(r, c, dtype=dtype, grad=True), rand(r, c, dtype=dtype))
            )
            yield lambda r=rows, c=classes, dtype=dtype: with_backward(rand(r, c, dtype=dtype, grad=True).std(-1))
            yield lambda r=rows, c=classes, dtype=dtype: with_backward(rand(r, c, dtype=dtype, grad=True).norm())
    log_probs = rand(50, 16, 20).log_softmax(2).detach().requires_grad_()
    targets = torch.randint(1, 20, (16, 30), device="cuda")
    lengths = torch.full((16,), 50, dtype=torch.long), torch.full((16,), 30, dtype=torch.long)
    yield lambda: with_backward(F.ctc_loss(log_probs, targets, *lengths))
    for sizes in ([1000] * 10, [512 * 512] * 30, [1_000_000, 5, 77, 30_000_000], [64] * 400):
        for dtype in HALVES:

            def lists(sizes=sizes, dtype=dtype):
                return [rand(n, dtype=dtype) for n in sizes]

            yield lambda lists=lists: torch._foreach_norm(lists())
            yield lambda lists=lists: torch._foreach_add(lists(), lists())
            yield lambda lists=lists: torch._foreach_mul_(lists(), 2.0)
            yield lambda lists=lists: torch._foreach_sqrt(lists())
            yield lambda lists=lists: torch._foreach_addcdiv_(lists(), lists(), lists(), 1.0)
            yield lambda lists=lists: torch._foreach_lerp_(lists(), lists(), 0.5)
            yield lambda lists=lists: torch.nn.utils.get_total_norm(lists())
            yield lambda lists=lists: torch._amp_foreach_non_finite_check_and_unscale_(
                lists(), torch.zeros(1, device="cuda"), torch.ones(1, device="cuda")
            )
            for fused in (True, False):

                def step(lists=lists, fused=fused):
                    parameters = [t.requires_grad_() for t in lists()]
                    for p in parameters:
                        p.grad = torch.ones_like(p)
                    torch.optim.AdamW(parameters, fused=fused, foreach=not fused).step()

                yield step


@group
def linear_algebra():
    for n in (8, 64, 300, 1024):
        for batch in ((), (4,)):

            def a(n=n, batch=batch):
                x = torch.randn(*batch, n, n, device="cuda")
                return x @ x.mT + n * torch.eye(n, device="cuda")

            yield lambda a=a: torch.linalg.cholesky(a())
            yield lambda a=a: torch.linalg.inv(a())
            yield lambda a=a: torch.linalg.solve(a(), a())
            yield lambda a=a: torch.linalg.qr(a())
            yield lambda a=a: torch.linalg.svd(a())
            yield lambda a=a: torch.linalg.eigh(a())
            yield lambda a=a: torch.linalg.det(a())
            yield lambda a=a: torch.fft.fft2(a())
            yield lambda a=a: torch.fft.rfft(a())
            yield lambda a=a: torch.cdist(a(), a())
            yield lambda a=a: torch.linalg.vector_norm(a(), 3)
            yield lambda a=a: torch.linalg.matrix_exp(a() / 1e4)
