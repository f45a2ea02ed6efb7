"""A mix of 60 everyday operators on 16x16 inputs, some of them with values that a fake knows. Imports no engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F


class Inputs:
    """What a program has at hand: random tensors, and constants (`torch.ones` tokens and masks)."""

    def __init__(self) -> None:
        self.x, self.y, self.weight, self.buffer = (torch.rand(16, 16) for _ in range(4))
        self.row = torch.rand(16)
        self.batch = torch.rand(4, 16, 16)
        self.picture = torch.rand(2, 4, 16, 16)
        self.channels = torch.rand(4)
        self.kernel = torch.rand(4, 4, 3, 3)
        self.heads = torch.rand(1, 4, 16, 16)
        self.mask = torch.rand(16, 16) > 0.5
        self.ids = torch.randint(0, 16, (2, 16))
        self.targets = torch.randint(0, 16, (16,))
        self.tokens = torch.ones(2, 16, dtype=torch.long)
        self.known_mask = torch.ones(2, 16)


#: Those that read or make values which a fake keeps.
KNOWN: dict[str, Callable[[Inputs], Any]] = {
    "embedding, known ids": lambda s: F.embedding(s.tokens, s.weight),
    "ones": lambda s: torch.ones(16, 16),
    "zeros_like": lambda s: torch.zeros_like(s.x),
    "arange": lambda s: torch.arange(16),
    "full": lambda s: torch.full((16, 16), 2.0),
    "tril of ones": lambda s: torch.ones(16, 16).tril(),
    "fill_": lambda s: s.buffer.fill_(1.0),
    "zero_": lambda s: s.buffer.zero_(),
    "known mask to bool": lambda s: s.known_mask.bool(),
    "known mask expanded": lambda s: s.known_mask[:, None, None, :].expand(2, 1, 16, 16),
    "1 - known mask": lambda s: 1.0 - s.known_mask,
    "known tokens != 0": lambda s: s.tokens.ne(0),
    "cumsum of known mask": lambda s: s.known_mask.cumsum(-1),
}

UNKNOWN: dict[str, Callable[[Inputs], Any]] = {
    "add": lambda s: s.x + s.y,
    "add a number": lambda s: s.x + 1,
    "mul": lambda s: s.x * s.y,
    "div": lambda s: s.x / s.y,
    "pow": lambda s: s.x**2,
    "exp": lambda s: s.x.exp(),
    "relu": lambda s: F.relu(s.x),
    "gelu": lambda s: F.gelu(s.x),
    "silu": lambda s: F.silu(s.x),
    "sigmoid": lambda s: s.x.sigmoid(),
    "softmax": lambda s: s.x.softmax(-1),
    "dropout": lambda s: F.dropout(s.x, 0.1),
    "matmul": lambda s: s.x @ s.y,
    "linear": lambda s: F.linear(s.x, s.weight, s.row),
    "einsum": lambda s: torch.einsum("bij,bjk->bik", s.batch, s.batch),
    "layer_norm": lambda s: F.layer_norm(s.x, (16,), s.row, s.row),
    "group_norm": lambda s: F.group_norm(s.picture, 2, s.channels, s.channels),
    "batch_norm": lambda s: F.batch_norm(s.picture, s.channels, s.channels),
    "rms_norm": lambda s: F.rms_norm(s.x, (16,), s.row),
    "conv2d": lambda s: F.conv2d(s.picture, s.kernel, padding=1),
    "max_pool2d": lambda s: F.max_pool2d(s.picture, 2),
    "interpolate": lambda s: F.interpolate(s.picture, scale_factor=2.0),
    "attention": lambda s: F.scaled_dot_product_attention(s.heads, s.heads, s.heads),
    "cross_entropy": lambda s: F.cross_entropy(s.x, s.targets),
    "mse_loss": lambda s: F.mse_loss(s.x, s.y),
    "embedding": lambda s: F.embedding(s.ids, s.weight),
    "sum": lambda s: s.x.sum(),
    "mean over a dimension": lambda s: s.x.mean(-1, keepdim=True),
    "max over a dimension": lambda s: s.x.max(-1),
    "argmax": lambda s: s.x.argmax(-1),
    "norm": lambda s: torch.norm(s.x),
    "topk": lambda s: s.x.topk(4),
    "cat": lambda s: torch.cat((s.x, s.y), 1),
    "chunk": lambda s: s.x.chunk(2, -1),
    "view": lambda s: s.x.view(4, 64),
    "transpose": lambda s: s.x.transpose(0, 1),
    "contiguous": lambda s: s.x.t().contiguous(),
    "slice": lambda s: s.x[:, :8],
    "index rows": lambda s: s.x[s.targets],
    "gather": lambda s: s.x.gather(1, s.targets[:, None]),
    "where": lambda s: torch.where(s.mask, s.x, s.y),
    "masked_fill": lambda s: s.x.masked_fill(s.mask, 0.0),
    "clamp": lambda s: s.x.clamp(0.0, 1.0),
    "to bfloat16": lambda s: s.x.to(torch.bfloat16),
    "add_": lambda s: s.buffer.add_(s.x),
    "empty": lambda s: torch.empty(16, 16),
    "rand": lambda s: torch.rand(16, 16),
}

OPS: dict[str, Callable[[Inputs], Any]] = UNKNOWN | KNOWN

#: The same operators without the Python function that programs call them through: what remains is PyTorch's binding,
#: its dispatcher, autograd, and the engine.
DIRECT: dict[str, Callable[[Inputs], Any]] = {
    "embedding, known ids": lambda s: torch.embedding(s.weight, s.tokens),
    "embedding": lambda s: torch.embedding(s.weight, s.ids),
    "norm": lambda s: torch.linalg.vector_norm(s.x),
    "interpolate": lambda s: torch._C._nn.upsample_nearest2d(s.picture, None, (2.0, 2.0)),
    "group_norm": lambda s: torch.group_norm(s.picture, 2, s.channels, s.channels),
    "layer_norm": lambda s: torch.layer_norm(s.x, (16,), s.row, s.row),
    "batch_norm": lambda s: torch.batch_norm(s.picture, None, None, s.channels, s.channels, False, 0.1, 1e-5, True),
    "mse_loss": lambda s: torch._C._nn.mse_loss(s.x, s.y),
    "cross_entropy": lambda s: torch._C._nn.cross_entropy_loss(s.x, s.targets),
    "silu": lambda s: torch._C._nn.silu(s.x),
    "einsum": lambda s: torch.bmm(s.batch, s.batch),
    "1 - known mask": lambda s: torch.rsub(s.known_mask, 1.0),
    "slice": lambda s: torch.narrow(s.x, 1, 0, 8),
}
