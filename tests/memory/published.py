"""Models of the transformers library with small configurations; their memory depends on its release (5.17)."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType

import torch
from torch.nn import functional as F
from workloads import Phase

PUBLISHED: dict[str, Callable[[Phase], None]] = {}


def published(function: Callable[[ModuleType, Phase], None]) -> Callable[[ModuleType, Phase], None]:
    """Imports the library only when a program runs."""
    PUBLISHED[function.__name__] = lambda phase: function(importlib.import_module("transformers"), phase)
    return function


def learn(net, optimizer, loss_of, phase: Phase, autocast: torch.dtype | None = None) -> None:
    phase("built")
    for step in range(2):
        with torch.autocast("cuda", autocast, enabled=autocast is not None):
            loss = loss_of(net)
        phase(f"forward {step}")
        loss.backward()
        phase(f"backward {step}")
        optimizer.step()
        optimizer.zero_grad()
        phase(f"step {step}")


def own_labels(batch: int, length: int, vocab: int):
    def loss_of(net):
        ids = torch.randint(5, vocab, (batch, length), device="cuda")
        return net(input_ids=ids, labels=ids).loss

    return loss_of


@published
def hf_bert(t: ModuleType, phase: Phase) -> None:
    config = t.BertConfig(vocab_size=20_000, hidden_size=512, num_hidden_layers=5, num_attention_heads=8,
                          intermediate_size=2048)  # fmt: skip
    net = t.BertForMaskedLM(config).cuda()
    learn(net, torch.optim.AdamW(net.parameters()), own_labels(8, 200, 20_000), phase)


@published
def hf_gpt2(t: ModuleType, phase: Phase) -> None:
    net = t.GPT2LMHeadModel(t.GPT2Config(vocab_size=30_000, n_embd=576, n_layer=5, n_head=9, n_positions=512)).cuda()
    learn(net, torch.optim.AdamW(net.parameters(), fused=True), own_labels(4, 400, 30_000), phase, torch.bfloat16)


@published
def hf_llama(t: ModuleType, phase: Phase) -> None:
    config = t.LlamaConfig(vocab_size=16_000, hidden_size=768, intermediate_size=2048, num_hidden_layers=4,
                           num_attention_heads=12, num_key_value_heads=4)  # fmt: skip
    net = t.LlamaForCausalLM(config).cuda().bfloat16()
    net.gradient_checkpointing_enable()
    learn(net, torch.optim.AdamW(net.parameters()), own_labels(4, 600, 16_000), phase)


@published
def hf_t5(t: ModuleType, phase: Phase) -> None:
    net = t.T5ForConditionalGeneration(t.T5Config(vocab_size=12_000, d_model=384, d_kv=64, d_ff=1024, num_layers=3,
                                                  num_heads=6, decoder_start_token_id=0)).cuda()  # fmt: skip
    learn(net, torch.optim.Adafactor(net.parameters()), own_labels(6, 180, 12_000), phase)


@published
def hf_vit(t: ModuleType, phase: Phase) -> None:
    net = t.ViTForImageClassification(t.ViTConfig(hidden_size=384, num_hidden_layers=5, num_attention_heads=6,
                                                  intermediate_size=1536, num_labels=100)).cuda()  # fmt: skip

    def loss_of(m):
        x, y = torch.randn(24, 3, 224, 224, device="cuda"), torch.randint(0, 100, (24,), device="cuda")
        return F.cross_entropy(m(x).logits, y)

    learn(net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), loss_of, phase)


@published
def hf_qwen_inference(t: ModuleType, phase: Phase) -> None:
    config = t.Qwen2Config(vocab_size=24_000, hidden_size=640, intermediate_size=1700, num_hidden_layers=6,
                           num_attention_heads=10, num_key_value_heads=2)  # fmt: skip
    net = t.Qwen2ForCausalLM(config).cuda().half().eval()
    phase("built")
    with torch.inference_mode():
        out = net(torch.randint(0, 24_000, (6, 300), device="cuda"), use_cache=True)
        for _ in range(20):
            token = out.logits[:, -1:].argmax(-1)
            out = net(token, past_key_values=out.past_key_values, use_cache=True)
    phase("decoded")


@published
def hf_whisper(t: ModuleType, phase: Phase) -> None:
    config = t.WhisperConfig(vocab_size=8000, d_model=256, encoder_layers=3, decoder_layers=3,
                             encoder_attention_heads=4, decoder_attention_heads=4,
                             encoder_ffn_dim=1024, decoder_ffn_dim=1024, pad_token_id=0,
                             bos_token_id=1, eos_token_id=2, decoder_start_token_id=1)  # fmt: skip
    net = t.WhisperForConditionalGeneration(config).cuda()

    def loss_of(m):
        return m(input_features=torch.randn(4, 80, 3000, device="cuda"),
                 labels=torch.randint(5, 8000, (4, 60), device="cuda")).loss  # fmt: skip

    learn(net, torch.optim.AdamW(net.parameters()), loss_of, phase)


@published
def hf_convnext(t: ModuleType, phase: Phase) -> None:
    net = t.ConvNextForImageClassification(t.ConvNextConfig(depths=[2, 2, 4, 2], hidden_sizes=[64, 128, 256, 512],
                                                            num_labels=50)).cuda()  # fmt: skip

    def loss_of(m):
        x, y = torch.randn(12, 3, 192, 192, device="cuda"), torch.randint(0, 50, (12,), device="cuda")
        return F.cross_entropy(m(x).logits, y)

    learn(net, torch.optim.AdamW(net.parameters()), loss_of, phase, torch.float16)
