"""Single calls whose time is recorded on a card and counted on fakes: see record_step_time.py and fit_step_time.py.

A case is described by data, from which `build` makes the tensors on "cuda" and the call. It needs nothing but PyTorch.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

Case = dict[str, Any]
DTYPES = {
    "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64,
    "tf32": torch.float32, "int64": torch.int64, "bool": torch.bool,
}  # fmt: skip
USUAL = ("fp32", "bf16", "fp16")


class Call(NamedTuple):
    """A call, and the leaves of its graph: with leaves, the backward pass is recorded too."""

    run: Callable[[], Any]
    leaves: list[torch.Tensor]


class _Draw(random.Random):
    def size(self, low: float, high: float, multiple: int = 1) -> int:
        """Log-uniform, mostly a multiple of a power of two."""
        value = math.exp(self.uniform(math.log(low), math.log(high)))
        step = self.choice([multiple, 8 * multiple, 32 * multiple, 64 * multiple])
        return int(max(multiple, round(value / step) * step)) or multiple

    def dtype(self, names: tuple[str, ...] = USUAL) -> str:
        return self.choice(names)


def _randn(shape: list[int], dtype: str, grad: bool = False) -> torch.Tensor:
    """Small values without the cost of drawing them in each element."""
    made = torch.empty(shape, device="cuda", dtype=DTYPES[dtype])
    if DTYPES[dtype].is_floating_point:
        made.normal_(0, 0.1)
    else:
        made.zero_()
    return made.requires_grad_(grad and made.is_floating_point())


# ---- Products --------------------------------------------------------------------------------------------------------


def _products(draw: _Draw, count: int) -> Iterator[Case]:
    for n in (64, 128, 256, 512, 1024, 2048, 4096, 8192):
        for dtype in ("fp32", "tf32", "bf16", "fp16"):
            yield {"kind": "mm", "m": n, "k": n, "n": n, "b": 1, "layout": "nn", "dtype": dtype}
    for _ in range(count):
        dtype = draw.choice(["fp32", "fp32", "bf16", "bf16", "fp16", "tf32", "fp64"])
        layout = draw.choice(["nn", "nt", "tn", "linear", "linear", "linear", "bmm", "bmm"])
        b = draw.size(2, 512) if layout == "bmm" else 1
        high = 1024 if layout == "bmm" else 10000
        m, k, n = draw.size(1, high), draw.size(8, high), draw.size(8, high)
        limit = 5e10 if dtype == "fp64" else 4e11 if dtype == "fp32" else 2e12
        if 2.0 * b * m * n * k < limit and b * (m * k + k * n + m * n) < 4e8:
            yield {"kind": "mm", "m": m, "k": k, "n": n, "b": b, "layout": layout, "dtype": dtype}


def _mm(c: Case) -> Call:
    m, k, n, dtype = c["m"], c["k"], c["n"], c["dtype"]
    if c["layout"] == "linear":
        x, w, bias = _randn([m, k], dtype, True), _randn([n, k], dtype, True), _randn([n], dtype, True)
        return Call(lambda: F.linear(x, w, bias), [x, w, bias])
    if c["layout"] == "bmm":
        x, w = _randn([c["b"], m, k], dtype, True), _randn([c["b"], k, n], dtype, True)
        return Call(lambda: torch.bmm(x, w), [x, w])
    x = _randn([k, m], dtype).t() if c["layout"] == "tn" else _randn([m, k], dtype)
    w = _randn([n, k], dtype).t() if c["layout"] == "nt" else _randn([k, n], dtype)
    return Call(lambda: x @ w, [])


# ---- Convolutions ----------------------------------------------------------------------------------------------------


def _convolutions(draw: _Draw, count: int) -> Iterator[Case]:
    for _ in range(count):
        dims = draw.choice([1, 2, 2, 2, 2, 2, 3])
        kernel = draw.choice([1, 1, 2, 3, 3, 3, 3, 4, 5, 7])
        stride = draw.choice([1, 1, 1, 2]) if kernel < 4 else draw.choice([1, 2, kernel])
        inner, out = draw.size(3, 512), draw.size(4, 512)
        groups = draw.choice([1, 1, 1, 1, 1, inner, 8])
        if groups > 1:
            out = inner = max(8, inner // 8 * 8)
            groups = min(groups, inner)
        high = {1: 8000, 2: 224, 3: 40}[dims]
        size = draw.size(8, high)
        case = {
            "kind": "conv", "dims": dims, "kernel": kernel, "stride": stride, "inner": inner, "out": out,
            "groups": groups, "size": size, "batch": draw.size(1, 64), "dtype": draw.choice(["fp32", "bf16", "fp16"]),
            "last": dims == 2 and draw.random() < 0.4, "transposed": groups == 1 and draw.random() < 0.12,
        }  # fmt: skip
        places = (size / (1 if case["transposed"] else stride)) ** dims
        work = 2.0 * case["batch"] * places * out * inner / groups * kernel**dims
        elements = case["batch"] * size**dims * (inner + out * (stride**dims if case["transposed"] else 1))
        if 1e5 < work < 4e11 and elements < 2e8 and size > kernel:
            yield case


def _conv(c: Case) -> Call:
    dims, dtype, kernel = c["dims"], c["dtype"], c["kernel"]
    x = _randn([c["batch"], c["inner"], *[c["size"]] * dims], dtype)
    shape = [c["inner"], c["out"]] if c["transposed"] else [c["out"], c["inner"] // c["groups"]]
    w = _randn([*shape, *[kernel] * dims], dtype)
    if c["last"]:
        x, w = (t.to(memory_format=torch.channels_last) for t in (x, w))
    x.requires_grad_()
    w.requires_grad_()
    name = f"conv{'_transpose' if c['transposed'] else ''}{dims}d"
    function = getattr(F, name)
    padding = kernel // 2
    return Call(lambda: function(x, w, None, c["stride"], padding, groups=c["groups"]), [x, w])


# ---- Attention -------------------------------------------------------------------------------------------------------


def _attentions(draw: _Draw, count: int) -> Iterator[Case]:
    for _ in range(count):
        dtype = draw.dtype()
        size = draw.choice([32, 48, 64, 64, 64, 80, 128, 128])
        heads, batch = draw.choice([2, 4, 6, 8, 12, 16]), draw.size(1, 48)
        queries = draw.choice([1, 0, 0, 0, 0]) or draw.size(32, 4096)
        keys = queries if queries > 1 and draw.random() < 0.8 else draw.size(32, 4096)
        if batch * heads * queries * keys * size * 4.0 < (5e10 if dtype == "fp32" else 6e11):
            yield {
                "kind": "attention", "batch": batch, "heads": heads, "queries": queries, "keys": keys, "size": size,
                "causal": queries == keys and draw.random() < 0.5, "dropout": draw.choice([0.0, 0.0, 0.1]),
                "mask": draw.choice(["no", "no", "no", "yes", "grad"]), "dtype": dtype,
            }  # fmt: skip


def _attention(c: Case) -> Call:
    def heads(length: int) -> torch.Tensor:
        # As after a projection: the heads of a token are adjacent.
        return _randn([c["batch"], length, c["heads"], c["size"]], c["dtype"], True)

    q, k, v = heads(c["queries"]), heads(c["keys"]), heads(c["keys"])
    leaves = [q, k, v]
    mask = None
    if c["mask"] != "no" and not c["causal"]:
        mask = _randn([1, c["heads"], c["queries"], c["keys"]], c["dtype"], c["mask"] == "grad")
        leaves += [mask] if c["mask"] == "grad" else []

    def run() -> torch.Tensor:
        return F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), mask, c["dropout"], c["causal"]
        )

    return Call(run, leaves)


# ---- Memory-bound operators ------------------------------------------------------------------------------------------

_UNARY: dict[str, Callable[[torch.Tensor], Any]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "tanh": torch.tanh,
    "exp": torch.exp,
    "sin": torch.sin,
    "hardswish": F.hardswish,
    "leaky_relu": F.leaky_relu,
    "softplus": F.softplus,
    "square": torch.square,
    "rsqrt": lambda x: torch.rsqrt(x * x + 1),
    "scaled": lambda x: x * 0.5,
    "plus": lambda x: x + 1,
    "dropout": lambda x: F.dropout(x, 0.1),
    "cast": lambda x: x.to(torch.bfloat16 if x.dtype == torch.float32 else torch.float32),
    "transposed_copy": lambda x: x.transpose(0, 1).contiguous(),
    "clone": torch.clone,
    "neg": torch.neg,
    "add": lambda x: x + x.detach(),
    "mul": lambda x: x * x.detach(),
    "row": lambda x: x + x.detach()[0],
    "column": lambda x: x * x.detach()[:, :1],
    "where": lambda x: torch.where(x.detach() > 0, x, 0.0),
    "masked_fill": lambda x: x.masked_fill(x.detach() > 0, 0.0),
    "lerp": lambda x: torch.lerp(x, x.detach(), 0.1),
    "addcmul": lambda x: torch.addcmul(x, x.detach(), x.detach()),
    "cat": lambda x: torch.cat((x, x), 1),
    "stack": lambda x: torch.stack((x, x)),
    "halves": lambda x: x[:, : x.size(1) // 2] * 2,
    "flip": lambda x: x.flip(0),
    "roll": lambda x: x.roll(3, 1),
    "pad": lambda x: F.pad(x, (1, 1)),
    "sum": lambda x: x.sum(),
    "mean": lambda x: x.mean(),
    "row_sum": lambda x: x.sum(1),
    "column_sum": lambda x: x.sum(0),
    "row_max": lambda x: x.max(1).values,
    "amax": lambda x: x.amax(1),
    "norm": lambda x: x.norm(),
    "var": lambda x: x.var(1),
    "logsumexp": lambda x: x.logsumexp(1),
    "argmax": lambda x: x.detach().argmax(1),
    "any": lambda x: (x.detach() > 0).any(),
    "softmax": lambda x: x.softmax(1),
    "log_softmax": lambda x: x.log_softmax(1),
    "cumsum": lambda x: x.cumsum(1),
    "sort": lambda x: x.sort(1).values,
    "topk": lambda x: x.topk(min(50, x.size(1)), 1).values,
    "layer_norm": lambda x: F.layer_norm(x, x.shape[1:], x.detach()[0], x.detach()[0]),
    "rms_norm": lambda x: F.rms_norm(x, x.shape[1:], x.detach()[0]),
    "mse": lambda x: F.mse_loss(x, x.detach() + 1),
    "normalize": lambda x: F.normalize(x, dim=1),
}


def _memory_bound(draw: _Draw, each: int) -> Iterator[Case]:
    for name in _UNARY:
        for i in range(each):
            elements = math.exp(draw.uniform(math.log(1e3), math.log(1.5e8 if i % 2 else 1e7)))
            rows = draw.size(1, min(elements / 2, 65536)) if elements > 8 else 1
            columns = max(2, int(elements / rows))
            columns = columns if columns < 64 else columns // 16 * 16
            if name in ("sort", "topk", "cumsum", "logsumexp") and rows * columns > 2e7:
                continue
            yield {
                "kind": "unary",
                "name": name,
                "rows": rows,
                "columns": columns,
                "dtype": draw.dtype(("fp32", "fp32", "bf16", "fp16")),
            }


def _unary(c: Case) -> Call:
    function = _UNARY[c["name"]]
    x = _randn([c["rows"], c["columns"]], c["dtype"], c["name"] not in ("argmax", "any"))
    return Call(lambda: function(x), [x] if x.requires_grad else [])


def _image_operators(draw: _Draw, each: int) -> Iterator[Case]:
    for name in _IMAGES:
        for _ in range(each):
            size, channels, batch = draw.size(4, 160), draw.size(8, 512), draw.size(1, 128)
            if size * size * channels * batch < 1e8:
                yield {
                    "kind": "image", "name": name, "size": size, "channels": max(8, channels // 8 * 8), "batch": batch,
                    "last": draw.random() < 0.4, "dtype": draw.dtype(("fp32", "fp32", "bf16", "fp16")),
                }  # fmt: skip


_IMAGES: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "batch_norm": lambda x, w: F.batch_norm(x, w.detach().clone(), w.detach() + 1, w, w, True),
    "batch_norm_inference": lambda x, w: F.batch_norm(x, w.detach(), w.detach() + 1, w, w, False),
    "group_norm": lambda x, w: F.group_norm(x, 8, w, w),
    "instance_norm": lambda x, w: F.instance_norm(x, None, None, w, w),
    "max_pool": lambda x, w: F.max_pool2d(x, 3, 2, 1),
    "avg_pool": lambda x, w: F.avg_pool2d(x, 2),
    "adaptive_pool": lambda x, w: F.adaptive_avg_pool2d(x, 1),
    "nearest": lambda x, w: F.interpolate(x, scale_factor=2),
    "bilinear": lambda x, w: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "channel_bias": lambda x, w: x + w[:, None, None],
    "in_place_relu": lambda x, w: F.relu(x * 1, inplace=True),
    "to_tokens": lambda x, w: x.flatten(2).transpose(1, 2).contiguous(),
}


def _image(c: Case) -> Call:
    x = _randn([c["batch"], c["channels"], c["size"], c["size"]], c["dtype"])
    if c["last"]:
        x = x.to(memory_format=torch.channels_last)
    x.requires_grad_()
    w = torch.ones(c["channels"], device="cuda", dtype=torch.float32 if c["name"].startswith("batch") else x.dtype)
    w.requires_grad_()
    function = _IMAGES[c["name"]]
    uses_weight = c["name"].endswith("norm") or c["name"] in ("batch_norm_inference", "channel_bias")
    return Call(lambda: function(x, w), [x, w] if uses_weight else [x])


def _indexed(draw: _Draw, each: int) -> Iterator[Case]:
    for name in _INDEXED:
        for _ in range(each):
            table, width, count = draw.size(50, 200_000), draw.size(1, 2048), draw.size(16, 100_000)
            if table * width < 2e8 and count * width < 1e8:
                yield {
                    "kind": "index", "name": name, "table": table, "width": width, "count": count,
                    "dtype": draw.dtype(("fp32", "fp32", "bf16")),
                }  # fmt: skip


_INDEXED: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Any]] = {
    "embedding": lambda t, i, v: F.embedding(i, t),
    "index": lambda t, i, v: t[i],
    "index_select": lambda t, i, v: t.index_select(0, i),
    "index_add": lambda t, i, v: t.index_add(0, i, v),
    "gather": lambda t, i, v: t.gather(0, i[:, None].expand(-1, t.size(1))),
    "scatter": lambda t, i, v: t.scatter(0, i[:, None].expand(-1, t.size(1)), v),
    "scatter_add": lambda t, i, v: t.scatter_add(0, i[:, None].expand(-1, t.size(1)), v),
    "index_put": lambda t, i, v: t.index_put((i,), v),
    "cross_entropy": lambda t, i, v: F.cross_entropy(t, i[: t.size(0)]),
    "nll": lambda t, i, v: F.nll_loss(t, i[: t.size(0)]),
    "one_hot": lambda t, i, v: F.one_hot(i, 64),
    "bag": lambda t, i, v: F.embedding_bag(i.view(-1, 8), t, mode="sum"),
}


def _index(c: Case) -> Call:
    name, table = c["name"], _randn([c["table"], c["width"]], c["dtype"], True)
    count = c["table"] if name in ("cross_entropy", "nll") else max(8, c["count"] // 8 * 8)
    high = {"cross_entropy": c["width"], "nll": c["width"], "one_hot": 64}.get(name, c["table"])
    rows = torch.randint(0, high, (count,), device="cuda")
    values = _randn(
        [count, c["width"]] if name in ("index_add", "scatter", "scatter_add", "index_put") else [1], c["dtype"]
    )
    function = _INDEXED[name]
    return Call(lambda: function(table, rows, values), [] if name == "one_hot" else [table])


def _fills(draw: _Draw, each: int) -> Iterator[Case]:
    for name in _FILLS:
        for _ in range(each):
            yield {
                "kind": "fill",
                "name": name,
                "size": draw.size(1000, 1.5e8),
                "dtype": draw.dtype(("fp32", "fp32", "bf16")),
            }


_FILLS: dict[str, Callable[[torch.Tensor], Any]] = {
    "zeros": torch.zeros_like,
    "ones": torch.ones_like,
    "empty": torch.empty_like,
    "randn": torch.randn_like,
    "rand": torch.rand_like,
    "bernoulli": lambda x: x.bernoulli_(0.5),
    "zero_": lambda x: x.zero_(),
    "arange": lambda x: torch.arange(x.numel(), device="cuda"),
    "copy_": lambda x: x.copy_(x.flip(0)),
    "add_": lambda x: x.add_(1),
    "mul_": lambda x: x.mul_(0.5),
    "to_cpu": lambda x: x[:4_000_000].cpu(),
    "randperm": lambda x: torch.randperm(min(x.numel(), 1_000_000), device="cuda"),
}


def _fill(c: Case) -> Call:
    x, function = _randn([c["size"]], c["dtype"]), _FILLS[c["name"]]
    return Call(lambda: function(x), [])


# ---- Recurrent networks and optimizers -------------------------------------------------------------------------------


def _recurrents(draw: _Draw, count: int) -> Iterator[Case]:
    for _ in range(count):
        case = {
            "kind": "recurrent", "name": draw.choice(["LSTM", "LSTM", "GRU", "RNN"]), "inner": draw.size(16, 1024),
            "hidden": draw.size(16, 1024), "layers": draw.choice([1, 2, 3]), "both": draw.random() < 0.3,
            "length": draw.size(8, 256), "batch": draw.size(1, 128),
            "dtype": draw.choice(["fp32", "fp32", "fp16", "bf16"]),
        }  # fmt: skip
        if case["length"] * case["batch"] * case["hidden"] * max(case["hidden"], case["inner"]) < 2e10:
            yield case


def _recurrent(c: Case) -> Call:
    network = getattr(nn, c["name"])(c["inner"], c["hidden"], c["layers"], bidirectional=c["both"])
    network.to("cuda", DTYPES[c["dtype"]])
    x = _randn([c["length"], c["batch"], c["inner"]], c["dtype"], True)
    return Call(lambda: network(x)[0], [x, *network.parameters()])


OPTIMIZERS: dict[str, Callable[[list[torch.Tensor]], torch.optim.Optimizer]] = {
    "AdamW": torch.optim.AdamW, "Adam": torch.optim.Adam,
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD_momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-4),
    "AdamW_fused": lambda p: torch.optim.AdamW(p, fused=True),
    "AdamW_loop": lambda p: torch.optim.AdamW(p, foreach=False),
    "AdamW_capturable": lambda p: torch.optim.AdamW(p, capturable=True),
    "SGD_loop": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=False),
    "RMSprop": torch.optim.RMSprop, "Adagrad": torch.optim.Adagrad, "NAdam": torch.optim.NAdam,
    "Adamax": torch.optim.Adamax, "Adafactor": torch.optim.Adafactor,
}  # fmt: skip


def _optimizers(draw: _Draw, each: int) -> Iterator[Case]:
    for name in OPTIMIZERS:
        for _ in range(each):
            count, size = draw.choice([1, 4, 16, 50, 150]), draw.size(100, 4e6)
            if count * size < 1e8:
                yield {
                    "kind": "optimizer",
                    "name": name,
                    "count": count,
                    "size": size,
                    "dtype": draw.dtype(("fp32", "fp32", "bf16")),
                }
    for _ in range(2 * each):
        count, size = draw.choice([1, 4, 16, 50, 150]), draw.size(100, 4e6)
        if count * size < 1e8:
            yield {"kind": "optimizer", "name": "clip", "count": count, "size": size, "dtype": "fp32"}


def _optimizer(c: Case) -> Call:
    parameters = [_randn([c["size"]], c["dtype"], True) for _ in range(c["count"])]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    if c["name"] == "clip":
        return Call(lambda: nn.utils.clip_grad_norm_(parameters, 1.0), [])
    return Call(OPTIMIZERS[c["name"]](parameters).step, [])


_KINDS: dict[str, Callable[[Case], Call]] = {
    "mm": _mm, "conv": _conv, "attention": _attention, "unary": _unary, "image": _image, "index": _index,
    "fill": _fill, "recurrent": _recurrent, "optimizer": _optimizer,
}  # fmt: skip


def build(case: Case) -> Call:
    """The tensors and the call of a case. Sets whether float32 products may use TF32."""
    torch.backends.cuda.matmul.allow_tf32 = case["dtype"] == "tf32"
    return _KINDS[case["kind"]](case)


def all_cases(quick: bool = False) -> list[Case]:
    """The cases in an order in which any first part is a fair sample."""
    draw = _Draw(17)
    part = 20 if quick else 1
    cases = [
        *_products(draw, 700 // part), *_convolutions(draw, 800 // part), *_attentions(draw, 360 // part),
        *_memory_bound(draw, max(1, 14 // part)), *_image_operators(draw, max(1, 18 // part)),
        *_indexed(draw, max(1, 14 // part)), *_fills(draw, max(1, 8 // part)), *_recurrents(draw, 100 // part),
        *_optimizers(draw, max(1, 8 // part)),
    ]  # fmt: skip
    draw.shuffle(cases)
    return cases
