"""The claimed card determines the kernels: attention, recurrent networks, convolutions, scaled products."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from torchfake import fake_mode
from torchfake._cards import CARDS

HOPPER = ("H200", "H100-80GB", "H100-94GB")
AMPERE = ("A100-40GB", "A100-80GB")
ADA = ("L40S", "L4", "RTX-4090")
CONSUMER_AMPERE = ("A10", "RTX-3090")
BEFORE_AMPERE = ("T4", "V100")


def choice(card: str, dtype: torch.dtype, head: int = 64, **options) -> SDPBackend:
    with fake_mode(gpus=card):
        trains = options.pop("trains", False)
        query = torch.empty(2, 4, 128, head, dtype=dtype, device="cuda", requires_grad=trains)
        return SDPBackend(torch._fused_sdp_choice(query, query, query, **options))


def test_every_card_of_the_table_is_of_one_generation_of_these():
    assert {*HOPPER, *AMPERE, *ADA, *CONSUMER_AMPERE, *BEFORE_AMPERE, "B200"} == set(CARDS)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_attention_in_half_precision(dtype):
    for card in (*HOPPER, "B200"):
        assert choice(card, dtype) == SDPBackend.CUDNN_ATTENTION
    for card in (*AMPERE, *ADA, *CONSUMER_AMPERE):
        assert choice(card, dtype) == SDPBackend.FLASH_ATTENTION
    for card in BEFORE_AMPERE:
        expected = SDPBackend.EFFICIENT_ATTENTION if dtype is torch.float16 else SDPBackend.MATH
        assert choice(card, dtype) == expected


@pytest.mark.parametrize("card", CARDS)
def test_attention_in_single_precision_is_memory_efficient_everywhere(card):
    assert choice(card, torch.float32) == SDPBackend.EFFICIENT_ATTENTION


def test_heads_that_one_generation_takes_and_another_does_not():
    assert choice("H200", torch.float16, 256) == SDPBackend.CUDNN_ATTENTION
    assert choice("B200", torch.float16, 256) == SDPBackend.FLASH_ATTENTION
    assert choice("A100-80GB", torch.float16, 256, trains=True) == SDPBackend.FLASH_ATTENTION
    for card in (*ADA, *CONSUMER_AMPERE):
        assert choice(card, torch.float16, 224) == SDPBackend.FLASH_ATTENTION
        assert choice(card, torch.float16, 224, trains=True) == SDPBackend.EFFICIENT_ATTENTION
        assert choice(card, torch.float16, 256, trains=True) == SDPBackend.FLASH_ATTENTION
        assert choice(card, torch.float16, 256, trains=True, dropout_p=0.5) == SDPBackend.EFFICIENT_ATTENTION
    # Tensor cores for float32 require head sizes that are multiples of 4; cards without them accept any.
    assert choice("A100-80GB", torch.float32, 66) == SDPBackend.MATH
    assert choice("T4", torch.float32, 66) == SDPBackend.EFFICIENT_ATTENTION


def test_cudnn_comes_last_where_it_is_not_preferred():
    with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
        assert choice("A100-80GB", torch.float16) == SDPBackend.CUDNN_ATTENTION
        with pytest.raises(RuntimeError, match="No available kernel"):
            choice("T4", torch.float16)


def test_the_choice_is_part_of_the_key_of_the_cache():
    def kept(card):
        with fake_mode(gpus=card):
            query = torch.empty(2, 4, 128, 64, dtype=torch.float16, device="cuda", requires_grad=True)
            result = torch.nn.functional.scaled_dot_product_attention(query, query, query)
            return type(result.grad_fn).__name__

    for _ in range(2):
        assert "Cudnn" in kept("H200")
        assert "Flash" in kept("A100-80GB")
        assert "Efficient" in kept("T4")


def test_kernels_that_are_called_by_name_are_refused_where_they_are_not_built():
    for card in BEFORE_AMPERE:
        with fake_mode(gpus=card):
            query = torch.empty(2, 4, 128, 64, dtype=torch.float16, device="cuda")
            with pytest.raises(RuntimeError, match="only supports Ampere GPUs or newer"):
                torch.ops.aten._scaled_dot_product_flash_attention(query, query, query)
            low = query.bfloat16()
            with pytest.raises(RuntimeError, match="no kernel found"):
                torch.ops.aten._scaled_dot_product_efficient_attention(low, low, low, None, False)


def scaled(rows: int = 32):
    a = torch.empty(rows, 64, dtype=torch.float8_e4m3fn, device="cuda")
    b = torch.empty(48, 64, dtype=torch.float8_e4m3fn, device="cuda").t()
    one = torch.ones((), device="cuda")
    return torch._scaled_mm(a, b, one, one, out_dtype=torch.bfloat16)


@pytest.mark.parametrize("card", CARDS)
def test_products_of_float8_need_a_card_that_has_them(card):
    with fake_mode(gpus=card):
        if CARDS[card].capability >= (8, 9):
            assert scaled().shape == (32, 48)
            return
        with pytest.raises(NotImplementedError, match=r"compute capability >= 9.0 or 8.9"):
            scaled()


def test_products_scaled_by_blocks_are_only_for_hopper():
    def product():
        a = torch.empty(256, 256, dtype=torch.float8_e4m3fn, device="cuda")
        b = torch.empty(256, 256, dtype=torch.float8_e4m3fn, device="cuda").t()
        scale_a = torch.empty(2, 256, device="cuda").t()
        scale_b = torch.empty(2, 2, device="cuda").t()
        return torch._scaled_mm(a, b, scale_a, scale_b, out_dtype=torch.bfloat16)

    with fake_mode(gpus="H100-80GB"):
        assert product().shape == (256, 256)
    for card in ("L40S", "B200"):
        with fake_mode(gpus=card), pytest.raises(NotImplementedError, match="only supported in CUDA for SM90"):
            product()


def test_recurrent_networks_in_bfloat16_run_whole_from_ampere_on():
    def calls(card):
        with fake_mode(gpus=card):
            network = torch.nn.LSTM(8, 8).to("cuda", torch.bfloat16)
            output, _ = network(torch.empty(5, 2, 8, dtype=torch.bfloat16, device="cuda"))
            names, node = set(), output.grad_fn
            while node is not None:
                names.add(node.name())
                node = node.next_functions[0][0] if node.next_functions else None
            return names

    assert any("CudnnRnn" in name for name in calls("A100-80GB"))
    assert not any("CudnnRnn" in name for name in calls("T4"))


def test_convolutions_in_bfloat16_are_channels_last_from_ampere_on():
    def is_channels_last(card):
        with fake_mode(gpus=card):
            x = torch.empty(2, 3, 8, 8, dtype=torch.bfloat16, device="cuda").to(memory_format=torch.channels_last)
            weight = torch.empty(4, 3, 3, 3, dtype=torch.bfloat16, device="cuda")
            result = torch.nn.functional.conv2d(x, weight)
            return result.is_contiguous(memory_format=torch.channels_last)

    assert is_channels_last("A100-80GB")
    assert not is_channels_last("T4")
