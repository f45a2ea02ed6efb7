"""Batch sizes around limits, recorded before any rule had seen these programs."""

from __future__ import annotations

import torch
from fresh import limited
from fresh_images import Denoiser, Modulated, efficient_net, stages
from fresh_scenes import conv_norm
from fresh_text import GrowingCache, LatentAttention, Mistral, TextToTextAttention, shifted_loss
from torch import nn
from torch.nn import functional as F


def steps(net: nn.Module, loss_of, optimizer: torch.optim.Optimizer, autocast: torch.dtype | None = None) -> None:
    for _ in range(2):
        with torch.autocast("cuda", autocast, enabled=autocast is not None):
            loss = loss_of(net)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@limited(1500, 5, 6, 7, 8)
def tied_window(batch: int) -> None:
    net = Mistral(20_000, 576, 9, 3, 1536, 4, window=96, tied=True).cuda()
    ids = torch.randint(0, 20_000, (batch, 448), device="cuda")
    steps(net, lambda m: shifted_loss(m(ids), ids), torch.optim.AdamW(net.parameters()), torch.bfloat16)


@limited(1300, 3, 4, 5, 6)
def grouped(batch: int) -> None:
    net = Mistral(16_000, 768, 12, 4, 2048, 4).cuda().bfloat16()
    ids = torch.randint(0, 16_000, (batch, 700), device="cuda")
    steps(net, lambda m: shifted_loss(m(ids), ids), torch.optim.Adafactor(net.parameters()))


@limited(700, 21, 22, 25, 26)
def generation(batch: int) -> None:
    net = Mistral(30_000, 640, 10, 5, 1700, 6).cuda().half().eval()
    with torch.inference_mode():
        caches = [GrowingCache() for _ in range(6)]
        ids = torch.randint(0, 30_000, (batch, 260), device="cuda")
        logits = net(ids, caches)[:, -1:]
        for i in range(12):
            logits = net(logits.argmax(-1), caches, 260 + i)


@limited(900, 28, 30, 33, 35)
def latent(batch: int) -> None:
    net = nn.Sequential(nn.Linear(96, 768), LatentAttention(), LatentAttention(), nn.Linear(768, 96)).cuda()
    x = torch.randn(batch, 512, 96, device="cuda")
    steps(net, lambda m: F.mse_loss(m(x), x), torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))


@limited(1000, 41, 45, 48, 52)
def biased_encoder(batch: int) -> None:
    layers = nn.ModuleList(TextToTextAttention(448, 7) for _ in range(4)).cuda()
    table = nn.Parameter(torch.zeros(1, 7, 192, 192, device="cuda"))
    x = torch.randn(batch, 192, 448, device="cuda")

    def loss_of(m):
        y = x
        for layer in m:
            y = y + layer(y, y, table)
        return y.square().mean()

    steps(layers, loss_of, torch.optim.Adam([table, *layers.parameters()]))


@limited(2000, 122, 131, 140, 150)
def residual_channels_last(batch: int) -> None:
    net = nn.Sequential(*stages(48, (2, 2, 2, 2)), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1536, 100))
    net = net.cuda().to(memory_format=torch.channels_last)
    x = torch.randn(batch, 3, 176, 176, device="cuda").to(memory_format=torch.channels_last)
    y = torch.randint(0, 100, (batch,), device="cuda")
    sgd = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    steps(net, lambda m: F.cross_entropy(m(x), y), sgd, torch.bfloat16)


@limited(1800, 34, 37, 40, 43)
def efficient(batch: int) -> None:
    net = efficient_net(100).cuda()
    x, y = torch.randn(batch, 3, 160, 160, device="cuda"), torch.randint(0, 100, (batch,), device="cuda")
    steps(net, lambda m: F.cross_entropy(m(x), y), torch.optim.RMSprop(net.parameters(), momentum=0.9))


@limited(1600, 32, 34, 37, 40)
def denoised(batch: int) -> None:
    net = Denoiser(64, (1, 2, 3), (2,)).cuda()
    x, t = torch.randn(batch, 3, 40, 40, device="cuda"), torch.arange(batch, device="cuda")
    steps(net, lambda m: F.mse_loss(m(x, t), x), torch.optim.AdamW(net.parameters()), torch.float16)


@limited(1100, 20, 21, 24, 25)
def modulated(batch: int) -> None:
    blocks = nn.ModuleList(Modulated(448, 7) for _ in range(4)).cuda()
    x, c = torch.randn(batch, 196, 448, device="cuda"), torch.randn(batch, 448, device="cuda")

    def loss_of(m):
        y = x
        for block in m:
            y = block(y, c)
        return y.square().mean()

    steps(blocks, loss_of, torch.optim.AdamW(blocks.parameters(), fused=True))


@limited(1200, 40, 44, 47, 51)
def upsampled(batch: int) -> None:
    net = nn.Sequential(
        conv_norm(3, 48, 3), conv_norm(48, 96, 3, stride=2), conv_norm(96, 96, 3, 4),
        nn.Upsample(scale_factor=2, mode="bilinear"), conv_norm(96, 48, 3), nn.Conv2d(48, 10, 1),
    ).cuda()  # fmt: skip
    x, y = torch.randn(batch, 3, 96, 96, device="cuda"), torch.randint(0, 10, (batch, 96, 96), device="cuda")
    steps(net, lambda m: F.cross_entropy(m(x), y), torch.optim.Adam(net.parameters()))


@limited(800, 111, 119, 128, 136)
def sequences(batch: int) -> None:
    net = nn.GRU(160, 288, 2, bidirectional=True, dropout=0.2).cuda()
    x = torch.randn(90, batch, 160, device="cuda")
    steps(net, lambda m: m(x)[0].square().mean(), torch.optim.Adagrad(net.parameters()))


@limited(1000, 6418, 6917, 7346, 7845)
def contrasted(batch: int) -> None:
    net = nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 256)).cuda()
    a, b = torch.randn(batch, 512, device="cuda"), torch.randn(batch, 512, device="cuda")
    same = torch.arange(batch, device="cuda")

    def loss_of(m):
        return F.cross_entropy(F.normalize(m(a)) @ F.normalize(m(b)).t() / 0.07, same)

    steps(net, loss_of, torch.optim.Adam(net.parameters()))
