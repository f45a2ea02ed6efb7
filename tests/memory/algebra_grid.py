"""Linear algebra, transforms, products, sparse matrices, optimizers and losses at many shapes, in a fixed order."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from more_operators import FLOATS, Calls, by_shares, named, normal, whole
from operator_grid import with_backward
from torch.nn import functional as F


def positive(batch: tuple[int, ...], n: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.eye(n, device="cuda", dtype=dtype).expand(*batch, n, n) * n + 0.01


def decompositions() -> Calls:
    linalg = torch.linalg
    squares: dict[str, Callable[[torch.Tensor], object]] = {
        "cholesky": linalg.cholesky, "inv": linalg.inv, "det": linalg.det, "slogdet": linalg.slogdet, "qr": linalg.qr,
        "svd": linalg.svd, "svdvals": linalg.svdvals, "eigh": linalg.eigh, "eigvalsh": linalg.eigvalsh,
        "lu_factor": linalg.lu_factor, "lu": linalg.lu, "pinv": linalg.pinv, "matrix_exp": linalg.matrix_exp,
        "eig": linalg.eig, "solve": lambda a: linalg.solve(a, a), "lstsq": lambda a: linalg.lstsq(a, a),
        "solve vector": lambda a: linalg.solve(a, a[..., 0]), "ldl": linalg.ldl_factor,
        "matrix_rank": linalg.matrix_rank, "matrix_power": lambda a: linalg.matrix_power(a, 5),
        "triangular": lambda a: linalg.solve_triangular(a, a, upper=True), "cond": linalg.cond,
        "cholesky_solve": lambda a: torch.cholesky_solve(a, a), "cholesky_inverse": torch.cholesky_inverse,
    }  # fmt: skip
    for n, batch, dtype in itertools.product(
        (1, 4, 16, 32, 33, 64, 100, 128, 256, 300, 512, 1000),
        ((), (1,), (2,), (16,), (100,)),
        (torch.float32, torch.float64),
    ):
        count = batch[0] if batch else 1
        for name, function in squares.items():
            heavy = name in ("svd", "svdvals", "eig", "eigh", "eigvalsh", "pinv", "matrix_rank", "cond")
            if count * n * n <= (1 << 19 if heavy else 1 << 22):
                yield named(
                    [name, n, list(batch), str(dtype)],
                    lambda f, b, n, d: f(positive(b, n, d)), function, batch, n, dtype,
                )  # fmt: skip
    for (m, n), batch in itertools.product(((10, 3), (100, 30), (30, 100), (1000, 50), (500, 300)), ((), (4,))):
        for name in ("qr", "svd", "pinv", "svdvals"):
            yield named([name, m, n, list(batch)], lambda f, *s: f(normal(*s)), getattr(linalg, name), *batch, m, n)
        yield named(
            ["lstsq", m, n, list(batch)], lambda b, m, n: linalg.lstsq(normal(*b, m, n), normal(*b, m, 2)), batch, m, n
        )


def transforms() -> Calls:
    lengths = (8, 100, 101, 256, 1000, 1024, 2039, 4096, 16_384, 65_536, 100_003, 1 << 20)
    for n, batch in itertools.product(lengths, (1, 16, 300)):
        if n * batch > 1 << 22:
            continue
        for dtype in (torch.float32, torch.float64, torch.complex64):
            for name in ("fft", "ifft", "rfft", "irfft", "hfft"):
                if name != "rfft" or not dtype.is_complex:
                    yield named(
                        [name, batch, n, str(dtype)],
                        lambda f, b, n, d: f(normal(b, n, dtype=d)), getattr(torch.fft, name), batch, n, dtype,
                    )  # fmt: skip
            yield named(
                ["fft 0", batch, n, str(dtype)],
                lambda b, n, d: torch.fft.fft(normal(n, b, dtype=d), dim=0),
                batch,
                n,
                dtype,
            )
    for (m, n), batch, name in itertools.product(
        ((16, 16), (64, 64), (100, 60), (224, 224), (257, 131), (512, 512)),
        (1, 8, 64),
        ("fft2", "rfft2", "ifft2", "irfft2"),
    ):
        yield named([name, batch, m, n], lambda f, *s: f(normal(*s)), getattr(torch.fft, name), batch, m, n)
    for d in (16, 32, 64):
        yield named(["rfftn", d], lambda d: torch.fft.rfftn(normal(4, d, d, d), dim=(1, 2, 3)), d)
    for n, window in itertools.product((16_000, 160_000), (256, 400, 1024)):
        yield named(
            ["stft", n, window],
            lambda n, w: torch.stft(
                normal(4, n), w, w // 4, window=torch.hann_window(w, device="cuda"), return_complex=True
            ),
            n, window,
        )  # fmt: skip


def products() -> Calls:
    sizes = (1, 33, 128, 512, 3000)
    for (m, k, n), dtype in itertools.product(itertools.product(sizes, repeat=3), FLOATS):
        if m * k * n > 1 << 30:
            continue
        at = [m, k, n, str(dtype)]
        for layout in ("nn", "nt", "tn", "strided"):

            def operands(m=m, k=k, n=n, dtype=dtype, layout=layout) -> tuple[torch.Tensor, torch.Tensor]:
                a = normal(k, m, dtype=dtype).t() if layout == "tn" else normal(m, k, dtype=dtype)
                b = normal(n, k, dtype=dtype).t() if layout == "nt" else normal(k, n, dtype=dtype)
                return (normal(m, 2 * k, dtype=dtype)[:, ::2], b) if layout == "strided" else (a, b)

            yield named(["mm", layout, *at], lambda o: torch.mm(*o()), operands)
            yield named(
                ["addmm", layout, *at], lambda o, n, d: torch.addmm(normal(n, dtype=d), *o()), operands, n, dtype
            )
            if m * k * n <= 1 << 27:
                yield named(["bmm", layout, *at], lambda o: torch.bmm(*(t.expand(6, -1, -1) for t in o())), operands)
        if m * k * n <= 1 << 27:
            yield named(
                ["bmm turned", *at],
                lambda m, k, n, d: with_backward(
                    torch.bmm(
                        normal(m, 8, k, dtype=d, grad=True).transpose(0, 1), normal(8, n, k, dtype=d, grad=True).mT
                    )
                ), m, k, n, dtype,
            )  # fmt: skip
            yield named(
                ["matmul 3d 2d", *at],
                lambda m, k, n, d: with_backward(
                    normal(4, m, k, dtype=d, grad=True) @ normal(k, n, dtype=d, grad=True)
                ),
                m, k, n, dtype,
            )  # fmt: skip
            yield named(
                ["experts", *at],
                lambda m, k, n, d: with_backward(
                    torch.einsum("nd,edh->enh", normal(m, k, dtype=d, grad=True), normal(4, k, n, dtype=d, grad=True))
                ), m, k, n, dtype,
            )  # fmt: skip
            yield named(
                ["einsum heads", *at],
                lambda m, k, n, d: with_backward(
                    torch.einsum(
                        "bihd,bjhd->bhij",
                        normal(2, m, 4, k, dtype=d, grad=True), normal(2, n, 4, k, dtype=d, grad=True),
                    )
                ), m, k, n, dtype,
            )  # fmt: skip
            yield named(
                ["cdist", *at],
                lambda m, k, n: with_backward(torch.cdist(normal(m, k, grad=True), normal(n, k))),
                m,
                k,
                n,
            )
    for m, n in itertools.product((1, 100, 3000), (7, 512, 4096)):
        yield named(["mv", m, n], lambda m, n: with_backward(normal(m, n, grad=True) @ normal(n, grad=True)), m, n)
        yield named(["outer", m, n], lambda m, n: torch.outer(normal(m), normal(n)), m, n)
        yield named(
            ["bilinear", m, n],
            lambda m, n: F.bilinear(normal(m % 64, n % 99), normal(m % 64, 8), normal(5, n % 99, 8)),
            m,
            n,
        )


def sparse() -> Calls:
    for rows, columns, count, width in itertools.product((100, 5000), (64, 3000), (50, 20_000), (8, 256)):
        at = [rows, columns, count, width]

        def coo(rows=rows, columns=columns, count=count) -> torch.Tensor:
            indices = torch.stack((whole(rows, count), whole(columns, count)))
            return torch.sparse_coo_tensor(indices, normal(count), (rows, columns), check_invariants=False)

        yield named(["coalesce", *at], lambda a: a().coalesce(), coo)
        yield named(["to_dense", *at], lambda a: a().to_dense(), coo)
        yield named(["sparse mm", *at], lambda a, c, w: torch.sparse.mm(a(), normal(c, w)), coo, columns, width)
        yield named(
            ["sparse mm coalesced", *at],
            lambda a, c, w: torch.sparse.mm(a().coalesce(), normal(c, w)),
            coo,
            columns,
            width,
        )
        yield named(["csr", *at], lambda a: a().coalesce().to_sparse_csr(), coo)
        yield named(["csr mm", *at], lambda a, c, w: a().coalesce().to_sparse_csr() @ normal(c, w), coo, columns, width)
        yield named(["csr mv", *at], lambda a, c: a().coalesce().to_sparse_csr() @ normal(c), coo, columns)
        yield named(["sparse sum", *at], lambda a: torch.sparse.sum(a()), coo)
        yield named(["to_sparse", *at], lambda r, c: (normal(r, c) > 1).float().to_sparse(), rows, columns)


def losses_and_optimizers() -> Calls:
    for steps, batch, classes, length in itertools.product((20, 300, 1500), (1, 8, 32), (30, 500), (5, 100, 400)):
        if length > steps:
            continue

        def ctc(steps=steps, batch=batch, classes=classes, length=length) -> object:
            lengths = torch.full((batch,), steps, dtype=torch.long), torch.full((batch,), length, dtype=torch.long)
            log_probs = normal(steps, batch, classes, grad=True).log_softmax(2)
            return with_backward(F.ctc_loss(log_probs, 1 + whole(classes - 1, batch, length), *lengths))

        yield named(["ctc", steps, batch, classes, length], ctc)
    kinds = ("SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "Adadelta", "NAdam", "RAdam", "Adamax", "ASGD", "Rprop")
    for sizes in ([100], [1000] * 20, [300_000] * 12, [5, 2_000_000, 77, 9_000_000], [64] * 150, [1 << 24]):
        for dtype, kind, form in itertools.product(
            (torch.float32, torch.bfloat16), kinds, ("foreach", "fused", "single")
        ):
            if form == "fused" and kind not in ("SGD", "Adam", "AdamW", "Adagrad"):
                continue
            if form == "single" and len(sizes) > 20:
                continue

            def step(sizes=sizes, dtype=dtype, kind=kind, form=form) -> None:
                parameters = [normal(n, dtype=dtype, grad=True) for n in sizes]
                for p in parameters:
                    p.grad = torch.ones_like(p)
                options = {"foreach": form == "foreach"} | ({"fused": True} if form == "fused" else {})
                optimizer = getattr(torch.optim, kind)(parameters, **options)
                optimizer.step()
                torch.nn.utils.clip_grad_norm_(parameters, 1.0)
                optimizer.step()

            yield named([kind, form, str(dtype), len(sizes), max(sizes)], step)
    for n, classes, dtype in itertools.product((16, 4096, 100_000), (2, 100), FLOATS):

        def scores(n=n, classes=classes, dtype=dtype) -> torch.Tensor:
            return normal(n, classes, dtype=dtype, grad=True)

        at = [n, classes, str(dtype)]
        yield named(
            ["bce", *at], lambda s: with_backward(F.binary_cross_entropy(s().sigmoid(), s().detach().sigmoid())), scores
        )
        yield named(
            ["kl", *at],
            lambda s: with_backward(F.kl_div(s().log_softmax(1), s().detach().softmax(1), reduction="batchmean")),
            scores,
        )
        yield named(["margin", *at], lambda s: with_backward(F.multi_margin_loss(s(), whole(2, s().size(0)))), scores)
        yield named(["cosine", *at], lambda s: with_backward(F.cosine_similarity(s(), s())), scores)
        yield named(["triplet", *at], lambda s: with_backward(F.triplet_margin_loss(s(), s(), s())), scores)
        yield named(
            ["soft labels", *at], lambda s: with_backward(F.cross_entropy(s(), s().detach().softmax(1))), scores
        )
        yield named(
            ["nll weighted", *at],
            lambda s: with_backward(
                F.nll_loss(s().log_softmax(1), whole(2, s().size(0)), torch.ones_like(s()[0]).detach())
            ), scores,
        )  # fmt: skip
        yield named(
            ["gaussian", *at], lambda s: with_backward(F.gaussian_nll_loss(s(), s().detach(), s().exp())), scores
        )
        yield named(["gelu", *at], lambda s: with_backward(F.gelu(s(), approximate="tanh")), scores)
        yield named(["dropout", *at], lambda s: with_backward(F.dropout(s(), 0.3)), scores)


GROUPS: dict[str, Callable[[], Calls]] = {
    "decompositions": decompositions, "transforms": transforms, "products": products, "sparse": sparse,
    "losses_and_optimizers": losses_and_optimizers,
}  # fmt: skip


def calls() -> Calls:
    return by_shares(GROUPS)
