"""Single calls: what a kernel requests from the allocator, in order, compared with recordings of a real card."""

from __future__ import annotations

import collections
import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import torchfake
from torchfake import memory

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
from compare_single_calls import RECORDED, calls_of, on_fakes, pairs

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
