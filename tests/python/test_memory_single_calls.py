"""Single calls: what a kernel requests from the allocator, in order, compared with recordings of a real card."""

from __future__ import annotations

import collections
import gzip
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import torchfake
from torchfake import memory

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
from compare_single_calls import RECORDED, calls_of, on_fakes, pairs
from single_calls import record_chunk

SECTIONS: dict[str, list[dict[str, Any]]] = json.loads(gzip.decompress(RECORDED.read_bytes()))


def errors_of(section: str, every: int) -> Iterator[tuple[str, bool]]:
    """The operator of each call, and whether its requests differ from the card's."""
    wanted = {json.dumps(case["case"]): case for case in SECTIONS[section][::every]}
    found = {json.dumps(case["case"]): case for case in on_fakes(section, set(wanted))}
    assert set(found) == set(wanted)
    for label, case in wanted.items():
        assert ("error" in found[label]) == ("error" in case), label
        for mine, card in pairs(calls_of(found[label]), calls_of(case)):
            yield (card or mine or ("",))[0], mine is None or card is None or mine[2] != card[2]


def wrong_shares(section: str, every: int) -> dict[str, float]:
    counts: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0])
    for operator, is_wrong in errors_of(section, every):
        counts[operator][0] += is_wrong
        counts[operator][1] += 1
    return {operator: wrong / count for operator, (wrong, count) in counts.items()}


def test_recurrent_networks_request_what_they_request_on_a_real_card() -> None:
    shares = wrong_shares("recurrent", 6)
    assert shares["aten._cudnn_rnn.default"] <= 0.04
    assert shares["aten._cudnn_rnn_backward.default"] <= 0.04


def test_attention_requests_what_it_requests_on_a_real_card() -> None:
    wrong = {operator: share for operator, share in wrong_shares("attention", 2).items() if share > 0}
    assert not wrong


def test_what_a_recurrent_network_saves_has_the_size_that_cudnn_states() -> None:
    checked = 0
    with torchfake.fake_mode():
        for case in SECTIONS["reserves"]:
            kind, batch, length, width, hidden, layers, bidirectional, _, dropout, projection, packed, *_, dtype = case[
                "case"
            ]
            options = {"proj_size": projection} if kind == "LSTM" else {}
            if kind in ("tanh", "relu"):
                kind, options = "RNN", {"nonlinearity": kind}
            model = getattr(torch.nn, kind)(
                width, hidden, layers, dropout=dropout, bidirectional=bidirectional, device="cuda",
                dtype=getattr(torch, dtype), **options,
            )  # fmt: skip
            batch_sizes = [
                sum(max(1, length * (i + 1) // batch) > step for i in range(batch)) for step in range(length)
            ]
            shape = (sum(batch_sizes), width) if packed else (length, batch, width)
            x = torch.empty(*shape, device="cuda", dtype=getattr(torch, dtype))
            directions = 2 if bidirectional else 1
            h = x.new_zeros(layers * directions, batch, projection or hidden)
            c = x.new_zeros(layers * directions, batch, hidden) if kind == "LSTM" else None
            mode = {"LSTM": 2, "GRU": 3}.get(kind, 1)
            weights = model._flat_weights
            *_, reserve, _ = torch._cudnn_rnn(
                x, weights, len(weights) // layers // directions, None, h, c, mode, hidden, projection, layers, False,
                dropout, True, bidirectional, batch_sizes if packed else [], None,
            )  # fmt: skip
            assert reserve.numel() == case["reserve"], case["case"]
            checked += 1
    assert checked >= 100


def test_attention_without_an_available_kernel_is_refused() -> None:
    with torchfake.fake_mode(gpus="H200"):
        q = torch.empty(2, 4, 16, 64, device="cuda", dtype=torch.half)
        mask = torch.empty(2, 4, 16, 16, device="cuda", dtype=torch.half)
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION), pytest.raises(RuntimeError, match="No available kernel"):
            torch.nn.functional.scaled_dot_product_attention(q, q, q, mask)


def test_a_bias_that_alone_needs_a_gradient_fails_in_the_backward_as_on_a_card() -> None:
    with torchfake.fake_mode(gpus="H200"):
        q = torch.empty(2, 4, 16, 64, device="cuda")
        bias = torch.empty(2, 4, 16, 16, device="cuda", requires_grad=True)
        with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
            y = torch.nn.functional.scaled_dot_product_attention(q, q, q, bias)
        with pytest.raises(RuntimeError, match="LSE is not correctly aligned"):
            y.sum().backward()


@pytest.mark.parametrize(("keys", "stride"), [(100, 104), (96, 96), (99, 104)])
def test_the_rows_of_a_bias_are_padded_to_eight_elements(keys: int, stride: int) -> None:
    with torchfake.fake_mode(gpus="H200"):
        q = torch.empty(1, 1, 16, 64, device="cuda")
        k = torch.empty(1, 1, keys, 64, device="cuda")
        before = memory.stats()["requested_bytes.all.allocated"]
        bias = torch.empty(1, 1, 16, keys, device="cuda")
        with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
            torch.nn.functional.scaled_dot_product_attention(q, k, k, bias)
        taken = memory.stats()["requested_bytes.all.allocated"] - before
    padded = 16 * stride * 4 if stride != keys else 0
    assert taken == 16 * keys * 4 + padded + 16 * 64 * 4


MIB = 1 << 20


def requests_of(operator: str, call: Callable[[], object]) -> list[int]:
    """What the last call of the operator requests and frees, on fakes, in the allocator's rounded bytes."""
    with torchfake.fake_mode(gpus="H200"):
        (case,) = record_chunk([(operator, call)], 1, time.time() + 3600)
    assert "error" not in case, case
    return [sizes for name, _, sizes in calls_of(case) if name == operator][-1]


def rolled() -> None:
    torch.empty(8, 14, 14, 384, device="cuda").roll((-3, -3), (1, 2))


def power_of_number() -> None:
    500000 ** torch.empty(32, device="cuda")


def grouped_attention() -> None:
    q, k, v = (
        torch.empty(3, 500, heads, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for heads in (8, 2, 2)
    )
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        y = torch.nn.functional.scaled_dot_product_attention(
            *(t.transpose(1, 2) for t in (q, k, v)), is_causal=True, enable_gqa=True
        )
    y.backward(torch.empty(3, 500, 8, 64, device="cuda", dtype=torch.bfloat16).transpose(1, 2))


def trilinear() -> None:
    gradient = torch.empty(2, 48, 48, 64, 64, device="cuda")[:, :32]
    torch.ops.aten.upsample_trilinear3d_backward(gradient, [48, 64, 64], [2, 32, 24, 32, 32], False, 2.0, 2.0, 2.0)


def bilinear() -> None:
    gradient = torch.empty(6, 640, 32, 32, device="cuda")[:, :128]
    torch.ops.aten.upsample_bilinear2d_backward(gradient, [32, 32], [6, 128, 1, 1], False)


def images(*size: int) -> torch.Tensor:
    return torch.empty(size, device="cuda", dtype=torch.bfloat16, memory_format=torch.channels_last)


def batch_norm() -> None:
    c = [torch.empty(64, device="cuda") for _ in range(4)]
    torch.ops.aten.native_batch_norm(images(24, 64, 112, 112), *c, True, 0.1, 1e-5)


def batch_norm_backward() -> None:
    x, c = images(24, 512, 7, 7), [torch.empty(512, device="cuda") for _ in range(5)]
    torch.ops.aten.native_batch_norm_backward(torch.empty_like(x), x, *c, True, 1e-5, [True, True, True])


def channels_last_in_cudnn() -> None:
    x = torch.empty(18, 128, 22, 22, device="cuda", memory_format=torch.channels_last, requires_grad=True)
    y = torch.nn.functional.batch_norm(x, *(torch.empty(128, device="cuda") for _ in range(4)), training=True)
    y.backward(torch.empty_like(y))


def encoder_layer() -> None:
    layer = torch.nn.TransformerEncoderLayer(640, 10, 2560, 0.0, batch_first=True, device="cuda").eval()
    with torch.no_grad():
        for _ in range(2):  # the first call of a process also takes workspaces
            layer(torch.empty(12, 128, 640, device="cuda"))


def recurrence_in_half() -> None:
    network = torch.nn.GRU(48, 640, 3, batch_first=True, device="cuda")
    with torch.autocast("cuda", torch.float16):
        network(torch.empty(96, 56, 48, device="cuda"))


def gradients_of_slices() -> None:
    gradient = torch.empty(96, 264, 8, 8, device="cuda")[:, -24:]
    x, w = torch.empty(96, 96, 8, 8, device="cuda"), torch.empty(24, 96, 3, 3, device="cuda")
    how = [[1, 1], [1, 1], [1, 1], False, [0, 0], 1]
    torch.ops.aten.convolution_backward(gradient, x, w, [0], *how, [True, False, False])


@pytest.mark.parametrize(
    ("operator", "call", "wanted"),
    [
        ("aten.roll.default", rolled, [2408448, 2408448, -2408448]),
        ("aten.pow.Scalar", power_of_number, [512, 512, -512]),
        (
            "aten._scaled_dot_product_cudnn_attention_backward.default",
            grouped_attention,
            [1536000, 384000, 384000, 6192640, -6192640],
        ),
        ("aten.upsample_trilinear3d_backward.default", trilinear, [6 * MIB, 48 * MIB, -48 * MIB]),
        ("aten.upsample_bilinear2d_backward.default", bilinear, [3072, 3 * MIB, -3 * MIB]),
        (
            "aten.native_batch_norm.default",
            batch_norm,
            [38535168, 512, 512, 131072, 512, -512, -131072],
        ),
        (
            "aten.native_batch_norm_backward.default",
            batch_norm_backward,
            [2048, 2048, 2048, 2048, 1204224, -2048, -2048],
        ),
        ("aten.cudnn_batch_norm.default", channels_last_in_cudnn, [4460544, 512, 512, 142848, -142848]),
        ("aten.cudnn_batch_norm_backward.default", channels_last_in_cudnn, [4460544, 512, 512, 94720, -94720]),
        (
            "aten._transformer_encoder_layer_fwd.default",
            encoder_layer,
            [
                11796480, 3932160, 3932160, -3932160, -11796480, 3932160, 6144, 6144, -6144, -6144, -3932160, 15728640,
                3932160, -15728640, 3932160, 6144, 6144, -6144, -6144, -3932160, -3932160,
            ],
        ),
        (
            "aten._cudnn_rnn.default",
            recurrence_in_half,
            [516096, 6881280, 368640, 67523584, 137626112, -67523584, -516096],
        ),
    ],
)  # fmt: skip
def test_calls_of_programs_request_what_they_request_on_a_real_card(
    operator: str, call: Callable[[], None], wanted: list[int]
) -> None:
    assert requests_of(operator, call) == wanted


def test_a_gradient_with_gaps_is_copied_after_the_gradient_of_the_input_is_allocated() -> None:
    found = requests_of("aten.convolution_backward.default", gradients_of_slices)
    assert found[:2] == [2359296, 589824]
    assert found[-1] == -589824
