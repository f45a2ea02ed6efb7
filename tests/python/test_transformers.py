"""The fused layers used by torch.nn's transformers in evaluation, compared with real CPU tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from metadata import assert_answers_like_real
from torch import Tensor, nn

from torchfake import fake_mode

aten = torch.ops.aten


def attention(
    query: Tensor | None = None, key: Tensor | None = None, heads: int = 2, width: int = 8, **more: Any
) -> Any:
    query = torch.ones(2, 3, 8) if query is None else query
    key = query if key is None else key
    weight, bias, out = torch.ones(3 * width, width), torch.ones(3 * width), torch.ones(width)
    return aten._native_multi_head_attention(query, key, key, 8, heads, weight, bias, torch.ones(8, 8), out, **more)


def encoder_layer(source: Tensor, norm_first: bool = False) -> Tensor:
    norm = [torch.ones(8)] * 4
    return aten._transformer_encoder_layer_fwd(
        source, 8, 2, torch.ones(24, 8), torch.ones(24), torch.ones(8, 8), torch.ones(8), True, norm_first, 1e-5,
        *norm, torch.ones(16, 8), torch.ones(16), torch.ones(8, 16), torch.ones(8),
    )  # fmt: skip


def masked_softmax(*mask: int, kind: int | None = None, x: Tensor | None = None) -> Tensor:
    return aten._masked_softmax(torch.ones(2, 3, 4, 4) if x is None else x, torch.zeros(mask).bool(), None, kind)


CALLS: dict[str, Callable[[], Any]] = {
    "attention": attention,
    "attention of each head": lambda: attention(average_attn_weights=False),
    "attention without weights": lambda: attention(need_weights=False),
    "attention of transposed rows": lambda: attention(torch.ones(3, 2, 8).transpose(0, 1)),
    "attention of nothing": lambda: attention(torch.ones(0, 3, 8)),
    "attention to others": lambda: attention(key=torch.ones(2, 5, 8)),
    "attention of a matrix": lambda: attention(torch.ones(3, 8)),
    "attention of three heads": lambda: attention(heads=3),
    "attention of another width": lambda: attention(width=6),
    "attention of another dtype": lambda: attention(torch.ones(2, 3, 8).double()),
    "encoder layer": lambda: encoder_layer(torch.ones(2, 3, 8)),
    "encoder layer of transposed rows": lambda: encoder_layer(torch.ones(3, 2, 8).transpose(0, 1), norm_first=True),
    "encoder layer of nothing": lambda: encoder_layer(torch.ones(0, 3, 8)),
    "encoder layer of another width": lambda: encoder_layer(torch.ones(2, 3, 6)),
    "masked softmax": lambda: masked_softmax(2, 3, 4, 4),
    "masked softmax of scores": lambda: masked_softmax(4, 4, kind=0),
    "masked softmax of keys": lambda: masked_softmax(2, 4, kind=1),
    "masked softmax of what": lambda: masked_softmax(4, 4),
    "masked softmax of too few scores": lambda: masked_softmax(4, 3, kind=0),
    "masked softmax of too many keys": lambda: masked_softmax(4, 4, kind=1),
    "masked softmax of integers": lambda: masked_softmax(2, 3, 4, 4, x=torch.ones(2, 3, 4, 4).int()),
    "masked softmax backward": lambda: aten._masked_softmax_backward(
        torch.ones(2, 4).t(), torch.ones(2, 4).t(), torch.zeros(4, 2).bool()
    ),
    "projections": lambda: aten._transform_bias_rescale_qkv(torch.ones(2, 3, 24), torch.ones(24), 2),
    "projections for three heads": lambda: aten._transform_bias_rescale_qkv(torch.ones(2, 3, 24), torch.ones(24), 3),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_fused_layer_looks_like_the_real_one(name):
    assert_answers_like_real(CALLS[name])


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_an_encoder_in_evaluation_takes_the_fast_path(device, norm_first):
    with fake_mode(), torch.no_grad():
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=norm_first, device=device)
        encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
        assert encoder(torch.ones(2, 3, 8, device=device)).stride() == (24, 8, 1)


def test_a_recurrent_network_of_cudnn_keeps_its_sizes():
    with fake_mode():
        x = torch.ones(3, 2, 4, device="cuda")
        h = torch.zeros(4, 2, 3, device="cuda")
        c = torch.zeros(4, 2, 5, device="cuda")
        outputs = aten._cudnn_rnn(x, [], 4, None, h, c, 2, 5, 3, 2, False, 0.0, True, True, [], None)
        assert [tuple(t.shape) for t in outputs[:3]] == [(3, 2, 6), (4, 2, 3), (4, 2, 5)]
        packed = aten._cudnn_rnn(x[0], [], 4, None, h, None, 3, 5, 0, 2, False, 0.0, True, True, [1, 1], None)
        assert [tuple(t.shape) for t in packed[:3]] == [(2, 10), (4, 1, 5), (0,)]
