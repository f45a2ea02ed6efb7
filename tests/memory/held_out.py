"""Workloads with other sizes than those used to develop the model, and batch sizes around a memory limit."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from workloads import (
    Block,
    Decoder,
    Llama,
    Phase,
    RelativeBias,
    UNet,
    VisionTransformer,
    classification_loss,
    next_token_loss,
    resnet,
    train,
)

HELD_OUT: dict[str, Callable[[Phase], None]] = {}
#: By name: a function of the batch size, the limit in MiB, and the batch sizes.
LIMITED: dict[str, tuple[Callable[[int], None], int, list[int]]] = {}


def held_out(function: Callable[[Phase], None]) -> Callable[[Phase], None]:
    HELD_OUT[function.__name__] = function
    return function


@held_out
def narrow_decoder(phase: Phase) -> None:
    model = Decoder(vocab=5003, width=320, heads=5, layers=7, length=300, dropout=0.05).cuda()
    phase("model")
    train(model, torch.optim.AdamW(model.parameters()), next_token_loss(6, 290, 5003), phase)


@held_out
def wide_decoder_bf16(phase: Phase) -> None:
    model = Decoder(vocab=20000, width=1280, heads=10, layers=3, length=700).to("cuda", torch.bfloat16)
    phase("model")
    train(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), next_token_loss(3, 700, 20000), phase)


@held_out
def llama_autocast(phase: Phase) -> None:
    model = Llama(vocab=12000, width=640, heads=10, groups=2, layers=5, inner=1728).cuda()
    phase("model")
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    train(model, optimizer, next_token_loss(5, 480, 12000), phase, autocast=torch.bfloat16, clip=1.0)


@held_out
def encoder_gelu(phase: Phase) -> None:
    layer = nn.TransformerEncoderLayer(384, 6, 1536, dropout=0.0, batch_first=True, activation="gelu")
    model = nn.TransformerEncoder(layer, 5, enable_nested_tensor=False).cuda()
    x = torch.randn(12, 190, 384, device="cuda")
    phase("model")
    train(model, torch.optim.AdamW(model.parameters()), lambda m: m(x).square().mean(), phase)


@held_out
def relative_bias_other(phase: Phase) -> None:
    model = RelativeBias(5, 384, 6, 0.2).cuda()
    x = torch.randn(6, 200, 384, device="cuda")
    phase("model")
    train(model, torch.optim.Adam(model.parameters()), lambda m: m(x).square().mean(), phase)


@held_out
def resnet_other(phase: Phase) -> None:
    model = resnet(48, 200).cuda()
    phase("model")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(model, optimizer, classification_loss(24, 160, 200), phase)


@held_out
def resnet_half_inference(phase: Phase) -> None:
    model = resnet(64).to("cuda", torch.float16).to(memory_format=torch.channels_last).eval()
    phase("model")
    with torch.no_grad():
        x = torch.randn(48, 3, 192, 192, device="cuda", dtype=torch.float16).to(memory_format=torch.channels_last)
        model(x)
        phase("forward")


@held_out
def unet_autocast(phase: Phase) -> None:
    model = UNet(48).cuda()
    x, t = torch.randn(6, 3, 48, 48, device="cuda"), torch.randn(6, 48, device="cuda")
    phase("model")

    def loss_of(m):
        return m(x, t).float().square().mean()

    train(model, torch.optim.AdamW(model.parameters()), loss_of, phase, autocast=torch.bfloat16)


@held_out
def vit_other(phase: Phase) -> None:
    model = VisionTransformer(width=512, heads=8, layers=4, classes=100).cuda()
    phase("model")
    train(model, torch.optim.AdamW(model.parameters(), foreach=False), classification_loss(20, 224, 100), phase)


@held_out
def lstm_other(phase: Phase) -> None:
    model = nn.LSTM(200, 360, 3, batch_first=True).cuda()
    x = torch.randn(24, 50, 200, device="cuda")
    phase("model")
    train(model, torch.optim.Adam(model.parameters()), lambda m: m(x)[0].square().mean(), phase)


@held_out
def perceptron_other(phase: Phase) -> None:
    model = nn.Sequential(
        nn.Linear(700, 3000), nn.GELU(), nn.LayerNorm(3000), nn.Linear(3000, 1500), nn.Linear(1500, 30)
    ).cuda()
    x = torch.randn(3000, 700, device="cuda")
    phase("model")
    train(model, torch.optim.Adamax(model.parameters()), lambda m: m(x).square().mean(), phase)


@held_out
def blocks_inference(phase: Phase) -> None:
    model = nn.Sequential(*(Block(640, 10, 0.0, causal=True) for _ in range(5))).to("cuda", torch.bfloat16).eval()
    phase("model")
    with torch.no_grad():
        for length in (700, 300, 900):
            model(torch.randn(5, length, 640, device="cuda", dtype=torch.bfloat16))
            phase(f"length {length}")


def _steps(model: nn.Module, loss_of) -> None:
    train(model, torch.optim.AdamW(model.parameters()), loss_of, lambda _: None, steps=2)


def _decoder(batch: int) -> None:
    _steps(Decoder(layers=3).cuda(), next_token_loss(batch, 512))


def _llama(batch: int) -> None:
    _steps(Llama(layers=3).to("cuda", torch.bfloat16), next_token_loss(batch, 512, 16384))


def _resnet(batch: int) -> None:
    _steps(resnet(32, 100).cuda(), classification_loss(batch, 128, 100))


def _vit(batch: int) -> None:
    _steps(VisionTransformer(layers=4).cuda(), classification_loss(batch, 224))


def _encoder(batch: int) -> None:
    layer = nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.1, batch_first=True)
    x = torch.randn(batch, 128, 512, device="cuda")
    _steps(nn.TransformerEncoder(layer, 3).cuda(), lambda m: m(x).square().mean())


def _unet(batch: int) -> None:
    x, t = torch.randn(batch, 3, 64, 64, device="cuda"), torch.randn(batch, 64, device="cuda")
    _steps(UNet().cuda(), lambda m: m(x, t).square().mean())


LIMITED |= {
    "decoder": (_decoder, 1024, [4, 6, 7, 8, 9, 10]),
    "llama": (_llama, 1024, [4, 5, 6, 7, 8, 9]),
    "resnet": (_resnet, 1024, [64, 96, 112, 128, 144, 176]),
    "vit": (_vit, 1024, [16, 24, 28, 32, 36, 40]),
    "encoder": (_encoder, 768, [16, 24, 28, 32, 36, 44]),
    "unet": (_unet, 1024, [8, 12, 14, 16, 18, 22]),
}
