"""The operators measured one by one, and the inputs they are called on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

SHAPES = {"16x16": (16, 16), "2x4x16x16": (2, 4, 16, 16)}
BOTH, FLAT, DEEP = tuple(SHAPES), ("16x16",), ("2x4x16x16",)


class Inputs:
    """Random tensors of one shape on one device, so that no fake knows their values; ids below 16."""

    def __init__(self, shape: tuple[int, ...], device: str) -> None:
        self.shape, self.device = shape, device
        options: dict[str, Any] = {"device": device}
        self.x, self.y, self.out = (torch.rand(shape, **options) for _ in range(3))
        self.row = torch.rand(16, **options)
        self.mask = torch.rand(shape, **options) > 0.5
        self.ids = torch.randint(0, 16, shape, **options)
        self.targets = torch.randint(0, 16, (16,), **options)
        self.channels = torch.rand(4, **options)
        self.variances = torch.rand(4, **options)
        self.kernel = torch.rand(4, 4, 3, 3, **options)
        self.kernel_1d = torch.rand(16, 16, 3, **options)
        self.square = torch.rand(16, 16, **options)
        self.batch = torch.rand(4, 16, 16, **options)
        # Four parameters with their gradients and AdamW's state.
        self.params, self.grads, self.means, self.squares = (
            [torch.rand(16, 16, **options) for _ in range(4)] for _ in range(4)
        )
        self.steps = [torch.rand((), **options) + 1 for _ in range(4)]


@dataclass(frozen=True)
class Case:
    """One operator call. `shapes` names those of `SHAPES` on which it makes sense."""

    name: str
    call: Callable[[Inputs], object]
    shapes: tuple[str, ...] = field(default=BOTH)


def fused_adamw(s: Inputs) -> object:
    return torch._fused_adamw_(
        s.params,
        s.grads,
        s.means,
        s.squares,
        [],
        s.steps,
        lr=1e-3,
        beta1=0.9,
        beta2=0.999,
        weight_decay=0.01,
        eps=1e-8,
        amsgrad=False,
        maximize=False,
    )


def write_slice(s: Inputs) -> Tensor:
    s.x[..., 2:4] = 1.0
    return s.x


POINTWISE = (
    Case("add", lambda s: s.x + s.y),
    Case("add number", lambda s: s.x + 2),
    Case("sub", lambda s: s.x - s.y),
    Case("mul broadcast", lambda s: s.x * s.row),
    Case("div", lambda s: s.x / s.y),
    Case("pow", lambda s: s.x**2),
    Case("neg", lambda s: -s.x),
    Case("exp", lambda s: s.x.exp()),
    Case("log", lambda s: s.x.log()),
    Case("sqrt", lambda s: s.x.sqrt()),
    Case("rsqrt", lambda s: s.x.rsqrt()),
    Case("sin", lambda s: s.x.sin()),
    Case("tanh", lambda s: s.x.tanh()),
    Case("sigmoid", lambda s: s.x.sigmoid()),
    Case("relu", lambda s: F.relu(s.x)),
    Case("gelu", lambda s: F.gelu(s.x)),
    Case("silu", lambda s: F.silu(s.x)),
    Case("leaky_relu", lambda s: F.leaky_relu(s.x)),
    Case("clamp", lambda s: s.x.clamp(0.1, 0.9)),
    Case("where", lambda s: torch.where(s.mask, s.x, s.y)),
    Case("maximum", lambda s: torch.maximum(s.x, s.y)),
    Case("eq", lambda s: s.x == s.y),
    Case("logical_and", lambda s: torch.logical_and(s.mask, s.mask)),
    Case("addcmul", lambda s: torch.addcmul(s.x, s.x, s.y)),
    Case("lerp", lambda s: torch.lerp(s.x, s.y, 0.5)),
    Case("masked_fill", lambda s: s.x.masked_fill(s.mask, 0.0)),
    Case("tril", lambda s: s.x.tril()),
    Case("to half", lambda s: s.x.half()),
    Case("clone", lambda s: s.x.clone()),
)
REDUCTIONS = (
    Case("sum", lambda s: s.x.sum()),
    Case("sum dim", lambda s: s.x.sum(-1)),
    Case("mean", lambda s: s.x.mean(-1, keepdim=True)),
    Case("var", lambda s: s.x.var(-1)),
    Case("amax", lambda s: s.x.amax(-1)),
    Case("argmax", lambda s: s.x.argmax(-1)),
    Case("any", lambda s: s.mask.any(-1)),
    Case("prod", lambda s: s.x.prod(-1)),
    Case("norm", lambda s: torch.linalg.vector_norm(s.x)),
    Case("logsumexp", lambda s: s.x.logsumexp(-1)),
    Case("softmax", lambda s: s.x.softmax(-1)),
    Case("log_softmax", lambda s: s.x.log_softmax(-1)),
    Case("cumsum", lambda s: s.x.cumsum(-1)),
    Case("sort", lambda s: s.x.sort(-1)),
    Case("topk", lambda s: s.x.topk(4)),
    Case("max dim", lambda s: s.x.max(-1)),
)
PRODUCTS = (
    Case("mm", lambda s: torch.mm(s.x, s.y), FLAT),
    Case("addmm", lambda s: torch.addmm(s.row, s.x, s.y), FLAT),
    Case("matmul", lambda s: s.x @ s.y),
    Case("bmm", lambda s: torch.bmm(s.batch, s.batch), FLAT),
    Case("linear", lambda s: F.linear(s.x, s.square, s.row)),
    Case("einsum", lambda s: torch.einsum("...ij,...kj->...ik", s.x, s.y)),
    Case("scaled_dot_product_attention", lambda s: F.scaled_dot_product_attention(s.x, s.x, s.x), DEEP),
    Case("conv2d", lambda s: F.conv2d(s.x, s.kernel, s.channels, padding=1), DEEP),
    Case("conv1d", lambda s: F.conv1d(s.batch, s.kernel_1d, s.row), FLAT),
    Case("conv_transpose2d", lambda s: F.conv_transpose2d(s.x, s.kernel, stride=2), DEEP),
)
VIEWS = (
    Case("view", lambda s: s.x.view(-1)),
    Case("reshape", lambda s: s.x.transpose(-1, -2).reshape(-1)),
    Case("transpose", lambda s: s.x.transpose(-1, -2)),
    Case("permute", lambda s: s.x.permute(0, 2, 1, 3), DEEP),
    Case("unsqueeze", lambda s: s.x.unsqueeze(0)),
    Case("expand", lambda s: s.row.expand(s.shape)),
    Case("slice", lambda s: s.x[..., 2:9]),
    Case("select", lambda s: s.x[0]),
    Case("flatten", lambda s: s.x.flatten()),
    Case("detach", lambda s: s.x.detach()),
    Case("contiguous", lambda s: s.x.transpose(-1, -2).contiguous()),
    Case("cat", lambda s: torch.cat([s.x, s.y], -1)),
    Case("stack", lambda s: torch.stack([s.x, s.y])),
    Case("split", lambda s: s.x.split(4, -1)),
    Case("chunk", lambda s: s.x.chunk(2, -1)),
    Case("repeat", lambda s: s.x.repeat(*[2] * len(s.shape))),
    Case("roll", lambda s: s.x.roll(1, -1)),
    Case("flip", lambda s: s.x.flip(-1)),
    Case("pad", lambda s: F.pad(s.x, (1, 1))),
)
INDEXING = (
    Case("index_select", lambda s: s.x.index_select(-1, s.targets)),
    Case("index", lambda s: s.square[s.targets], FLAT),
    Case("gather", lambda s: s.x.gather(-1, s.ids)),
    Case("scatter", lambda s: s.x.scatter(-1, s.ids, s.y)),
    Case("scatter_add", lambda s: s.x.scatter_add(-1, s.ids, s.y)),
    Case("index_put_", lambda s: s.square.index_put_((s.targets,), s.row), FLAT),
    Case("index_add", lambda s: s.square.index_add(0, s.targets, s.square), FLAT),
    Case("write to a slice", write_slice),
    Case("embedding", lambda s: F.embedding(s.ids, s.square)),
    Case("one_hot", lambda s: F.one_hot(s.targets, 16), FLAT),
)
LAYERS = (
    Case("layer_norm", lambda s: F.layer_norm(s.x, (16,), s.row, s.row)),
    Case("rms_norm", lambda s: F.rms_norm(s.x, (16,), s.row)),
    Case("group_norm", lambda s: F.group_norm(s.x, 2, s.channels, s.channels), DEEP),
    Case("batch_norm", lambda s: F.batch_norm(s.x, s.channels, s.variances, training=True), DEEP),
    Case("max_pool2d", lambda s: F.max_pool2d(s.x, 2), DEEP),
    Case("avg_pool2d", lambda s: F.avg_pool2d(s.x, 2), DEEP),
    Case("adaptive_avg_pool2d", lambda s: F.adaptive_avg_pool2d(s.x, 4), DEEP),
    Case("interpolate", lambda s: F.interpolate(s.x, scale_factor=2.0, mode="bilinear"), DEEP),
    Case("pixel_shuffle", lambda s: F.pixel_shuffle(s.x, 2), DEEP),
    Case("dropout", lambda s: F.dropout(s.x, 0.1)),
    Case("cross_entropy", lambda s: F.cross_entropy(s.square, s.targets), FLAT),
    Case("nll_loss", lambda s: F.nll_loss(s.square, s.targets), FLAT),
    Case("mse_loss", lambda s: F.mse_loss(s.x, s.y)),
    Case("smooth_l1_loss", lambda s: F.smooth_l1_loss(s.x, s.y)),
    Case("binary_cross_entropy", lambda s: F.binary_cross_entropy(s.x, s.y)),
)
WRITES = (
    Case("add_", lambda s: s.x.add_(s.y)),
    Case("mul_", lambda s: s.x.mul_(1.0)),
    Case("copy_", lambda s: s.x.copy_(s.y)),
    Case("zero_", lambda s: s.out.zero_()),
    Case("clamp_", lambda s: s.x.clamp_(0, 1)),
    Case("add out=", lambda s: torch.add(s.x, s.y, out=s.out)),
    Case("matmul out=", lambda s: torch.matmul(s.x, s.y, out=s.out)),
)
FACTORIES = (
    Case("empty", lambda s: torch.empty(s.shape, device=s.device)),
    Case("zeros", lambda s: torch.zeros(s.shape, device=s.device)),
    Case("full", lambda s: torch.full(s.shape, 2.0, device=s.device)),
    Case("arange", lambda s: torch.arange(16, device=s.device), FLAT),
    Case("zeros_like", lambda s: torch.zeros_like(s.x)),
    Case("new_empty", lambda s: s.x.new_empty(s.shape)),
    Case("rand", lambda s: torch.rand(s.shape, device=s.device)),
    Case("randn_like", lambda s: torch.randn_like(s.x)),
    Case("randint", lambda s: torch.randint(0, 9, s.shape, device=s.device)),
    Case("bernoulli", lambda s: s.x.bernoulli(0.5)),
    Case("normal_", lambda s: s.out.normal_()),
)
OPTIMIZERS = (
    Case("_foreach_add_", lambda s: torch._foreach_add_(s.params, s.grads), FLAT),
    Case("_foreach_mul_", lambda s: torch._foreach_mul_(s.params, 1.0), FLAT),
    Case("_foreach_sqrt", lambda s: torch._foreach_sqrt(s.squares), FLAT),
    Case("_foreach_lerp_", lambda s: torch._foreach_lerp_(s.means, s.grads, 0.1), FLAT),
    Case("_foreach_addcdiv_", lambda s: torch._foreach_addcdiv_(s.params, s.means, s.squares, 1e-3), FLAT),
    Case("_foreach_norm", lambda s: torch._foreach_norm(s.grads), FLAT),
    Case("_fused_adamw_", fused_adamw, FLAT),
)
CASES = POINTWISE + REDUCTIONS + PRODUCTS + VIEWS + INDEXING + LAYERS + WRITES + FACTORIES + OPTIMIZERS
