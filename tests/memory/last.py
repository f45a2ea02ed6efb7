"""More programs that were recorded with those of fresh*.py, with the predictions noted before."""

from __future__ import annotations

from collections.abc import Callable

import torch
from fresh_images import Denoiser, Inverted, Modulated, efficient_net, stages
from fresh_scenes import conv_norm
from fresh_text import (
    Dispatched,
    GrowingCache,
    LatentAttention,
    Mistral,
    StaticCache,
    TextToTextAttention,
    shifted_loss,
)
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from workloads import Phase

LAST: dict[str, Callable[[Phase], None]] = {}


def last(function: Callable[[Phase], None]) -> Callable[[Phase], None]:
    LAST[function.__name__] = function
    return function


def learn(
    net, optimizer, loss_of, phase: Phase, autocast: torch.dtype | None = None, clip: float | None = None
) -> None:
    phase("built")
    for step in range(2):
        with torch.autocast("cuda", autocast, enabled=autocast is not None):
            loss = loss_of(net)
        phase(f"forward {step}")
        loss.backward()
        phase(f"backward {step}")
        if clip:
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
        phase(f"step {step}")


def language_loss(batch: int, length: int, vocab: int):
    def loss_of(net):
        ids = torch.randint(0, vocab, (batch, length), device="cuda")
        return shifted_loss(net(ids), ids)

    return loss_of


def labelled_images(batch: int, side: int, classes: int, channels_last: bool = False):
    def loss_of(net):
        x = torch.randn(batch, 3, side, side, device="cuda")
        if channels_last:
            x = x.to(memory_format=torch.channels_last)
        return F.cross_entropy(net(x), torch.randint(0, classes, (batch,), device="cuda"))

    return loss_of


@last
def wide_gqa_autocast_half(phase: Phase) -> None:
    net = Mistral(26_000, 896, 14, 7, 2400, 4).cuda()
    learn(
        net, torch.optim.AdamW(net.parameters(), fused=True), language_loss(3, 900, 26_000), phase, torch.float16, 1.0
    )


@last
def long_window_float32(phase: Phase) -> None:
    net = Mistral(9000, 512, 8, 4, 1376, 5, window=300, tied=True).cuda()
    learn(net, torch.optim.SGD(net.parameters(), lr=0.1), language_loss(2, 1300, 9000), phase)


@last
def small_bf16_single_tensor(phase: Phase) -> None:
    net = Mistral(50_304, 384, 6, 6, 1024, 8).cuda().bfloat16()
    learn(net, torch.optim.Adam(net.parameters(), foreach=False), language_loss(7, 333, 50_304), phase)


@last
def cache_of_many_layers(phase: Phase) -> None:
    net = Mistral(40_000, 768, 12, 3, 2048, 12).cuda().bfloat16().eval()
    phase("built")
    with torch.inference_mode():
        caches = [StaticCache(9, 3, 700, 64, dtype=torch.bfloat16) for _ in range(12)]
        ids = torch.randint(0, 40_000, (9, 610), device="cuda")
        token = net(ids, caches)[:, -1:].argmax(-1)
        phase("prompt")
        for i in range(25):
            token = net(token, caches, 610 + i).argmax(-1)
        phase("decoded")


@last
def cache_by_concatenation(phase: Phase) -> None:
    net = Mistral(15_000, 1024, 16, 16, 2730, 6).cuda().half().eval()
    phase("built")
    with torch.no_grad():
        caches = [GrowingCache() for _ in range(6)]
        token = torch.randint(0, 15_000, (12, 100), device="cuda")
        at = 0
        for i in range(50):
            logits = net(token, caches, at)[:, -1] / 0.8
            at += token.size(1)
            low = logits.topk(50).values[:, -1:]
            token = torch.multinomial(logits.masked_fill(logits < low, -1e4).float().softmax(-1), 1)
            if i == 0:
                phase("prompt")
    phase("decoded")


@last
def more_experts_bf16(phase: Phase) -> None:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(8000, 384), nn.Linear(384, 8000)
            self.layers = nn.ModuleList(Dispatched(384, 900, 16) for _ in range(4))

        def forward(self, ids):
            x, total = self.embed(ids), 0.0
            for layer in self.layers:
                y, balance = layer(x)
                x, total = x + y, total + balance
            return shifted_loss(self.head(x), ids) + 0.01 * total

    net = Net().cuda()

    def loss_of(m):
        return m(torch.randint(0, 8000, (8, 210), device="cuda"))

    learn(net, torch.optim.AdamW(net.parameters()), loss_of, phase, torch.bfloat16, 1.0)


@last
def latent_float32_checkpointed(phase: Phase) -> None:
    net = nn.ModuleList(LatentAttention(640, 10, 160) for _ in range(6)).cuda()

    def loss_of(m):
        x = torch.randn(5, 450, 640, device="cuda", requires_grad=True)
        for layer in m:
            x = x + checkpoint(layer, x, use_reentrant=False)
        return x.square().mean()

    learn(net, torch.optim.Adagrad(net.parameters()), loss_of, phase)


@last
def explicit_scores_autocast(phase: Phase) -> None:
    net = nn.ModuleList(TextToTextAttention(512, 8) for _ in range(5)).cuda()

    def loss_of(m):
        x, memory = torch.randn(4, 350, 512, device="cuda"), torch.randn(4, 280, 512, device="cuda")
        for layer in m:
            x = x + layer(x, memory)
        return x.square().mean()

    learn(net, torch.optim.Adafactor(net.parameters()), loss_of, phase, torch.bfloat16)


@last
def resnet_half_the_width(phase: Phase) -> None:
    net = nn.Sequential(*stages(32, (3, 4, 6, 3)), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1024, 365)).cuda()
    sgd = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    learn(net, sgd, labelled_images(40, 192, 365), phase)


@last
def resnet_scaled_channels_last(phase: Phase) -> None:
    net = nn.Sequential(*stages(64, (2, 2, 2, 2)), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 10))
    net = net.cuda().to(memory_format=torch.channels_last)
    sgd = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    learn(net, sgd, labelled_images(32, 160, 10, channels_last=True), phase, torch.float16)


@last
def efficient_net_autocast(phase: Phase) -> None:
    net = efficient_net(200).cuda().to(memory_format=torch.channels_last)
    learn(net, torch.optim.AdamW(net.parameters()), labelled_images(28, 192, 200, True), phase, torch.bfloat16, 2.0)


@last
def mobile_float32_small_images(phase: Phase) -> None:
    blocks = [Inverted(24, 32, 3, 2, 4), *(Inverted(32, 32, 5, 1, 4) for _ in range(3)), Inverted(32, 64, 3, 2, 6)]
    net = nn.Sequential(
        nn.Conv2d(3, 24, 3, padding=1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 100)
    ).cuda()
    learn(net, torch.optim.RMSprop(net.parameters()), labelled_images(80, 64, 100), phase)


@last
def denoiser_float32(phase: Phase) -> None:
    net = Denoiser(64, (1, 2, 2, 4), (2, 3)).cuda()

    def loss_of(m):
        x = torch.randn(14, 3, 64, 64, device="cuda")
        return F.mse_loss(m(x, torch.randint(0, 1000, (14,), device="cuda")), x)

    learn(net, torch.optim.Adam(net.parameters()), loss_of, phase)


@last
def denoiser_bf16_sampling(phase: Phase) -> None:
    net = Denoiser(128, (1, 2, 2), (1, 2)).cuda().bfloat16().eval()
    phase("built")

    with torch.inference_mode():
        x = torch.randn(8, 3, 64, 64, device="cuda", dtype=torch.bfloat16)
        for t in (900, 500, 100):
            half = net.base // 2
            assert half == 64
            with torch.autocast("cuda", torch.bfloat16):
                x = x - 0.1 * net(x, torch.full((8,), t, device="cuda"))
    phase("sampled")


@last
def modulated_float32(phase: Phase) -> None:
    net = nn.ModuleList(Modulated(576, 9) for _ in range(5)).cuda()

    def loss_of(m):
        x, c = torch.randn(6, 400, 576, device="cuda"), torch.randn(6, 576, device="cuda")
        for block in m:
            x = block(x, c)
        return x.square().mean()

    learn(net, torch.optim.AdamW(net.parameters()), loss_of, phase)


@last
def atrous_autocast(phase: Phase) -> None:
    net = nn.Sequential(
        *stages(32, (1, 2, 2, 1), (1, 1, 2, 2)), conv_norm(1024, 256, 3, 6), nn.Conv2d(256, 32, 1),
        nn.Upsample(scale_factor=8, mode="bilinear", align_corners=False),
    ).cuda()  # fmt: skip

    def loss_of(m):
        x, y = torch.randn(8, 3, 192, 192, device="cuda"), torch.randint(0, 32, (8, 192, 192), device="cuda")
        return F.cross_entropy(m(x), y)

    learn(net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), loss_of, phase, torch.bfloat16)


@last
def stacked_convolutions(phase: Phase) -> None:
    layers: list[nn.Module] = []
    inside = 3
    for out in (64, 64, 128, 128, 256, 256, 512):
        layers += [nn.Conv2d(inside, out, 3, padding=1), nn.BatchNorm2d(out), nn.LeakyReLU(0.1, inplace=True)]
        if out != inside and inside != 3:
            layers.append(nn.MaxPool2d(2))
        inside = out
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 80)).cuda()
    learn(net, torch.optim.Adam(net.parameters()), labelled_images(20, 128, 80), phase, clip=10.0)


@last
def volumes_autocast(phase: Phase) -> None:
    net = nn.Sequential(
        nn.Conv3d(1, 24, 3, padding=1), nn.GroupNorm(4, 24), nn.ReLU(), nn.Conv3d(24, 48, 3, 2, 1), nn.GroupNorm(4, 48),
        nn.ReLU(), nn.Conv3d(48, 96, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(96, 2),
    ).cuda()  # fmt: skip

    def loss_of(m):
        return F.cross_entropy(m(torch.randn(4, 1, 56, 56, 56, device="cuda")), torch.zeros(4, device="cuda").long())

    learn(net, torch.optim.AdamW(net.parameters()), loss_of, phase, torch.float16)


@last
def keywords_in_sound(phase: Phase) -> None:
    net = nn.Sequential(
        nn.Conv1d(1, 96, 80, 16), nn.BatchNorm1d(96), nn.ReLU(), nn.MaxPool1d(4), nn.Conv1d(96, 96, 3),
        nn.BatchNorm1d(96), nn.ReLU(), nn.Conv1d(96, 192, 3), nn.BatchNorm1d(192), nn.ReLU(), nn.AdaptiveAvgPool1d(1),
        nn.Flatten(), nn.Linear(192, 35),
    ).cuda()  # fmt: skip

    def loss_of(m):
        x, y = torch.randn(256, 1, 16_000, device="cuda"), torch.randint(0, 35, (256,), device="cuda")
        return F.cross_entropy(m(x), y)

    learn(net, torch.optim.Adam(net.parameters(), weight_decay=1e-4), loss_of, phase)


@last
def tagging_lstm(phase: Phase) -> None:
    net = nn.ModuleDict({
        "words": nn.Embedding(22_000, 300), "network": nn.LSTM(300, 500, 2, bidirectional=True, dropout=0.4),
        "head": nn.Linear(1000, 45),
    }).cuda()  # fmt: skip

    def loss_of(m):
        ids, lengths = torch.randint(0, 22_000, (75, 40), device="cuda"), 75 - torch.arange(40)
        packed = nn.utils.rnn.pack_padded_sequence(m["words"](ids), lengths)
        y = m["head"](m["network"](packed)[0].data)
        return F.cross_entropy(y, torch.zeros(y.size(0), dtype=torch.long, device="cuda"))

    learn(net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), loss_of, phase, clip=5.0)


@last
def forecasting_gru_autocast(phase: Phase) -> None:
    net = nn.GRU(48, 640, 3, batch_first=True).cuda()

    def loss_of(m):
        return m(torch.randn(96, 56, 48, device="cuda"))[0].float().square().mean()

    learn(net, torch.optim.AdamW(net.parameters()), loss_of, phase, torch.float16)


@last
def message_passing(phase: Phase) -> None:
    net = nn.ModuleList(nn.Linear(2 * 160, 160) for _ in range(4)).cuda()
    a, b = (torch.randint(0, 9000, (90_000,), device="cuda") for _ in range(2))

    def loss_of(m):
        x = torch.randn(9000, 160, device="cuda")
        degree = torch.zeros(9000, device="cuda").scatter_add(0, b, torch.ones(90_000, device="cuda")).clamp(min=1)
        for layer in m:
            mean = torch.zeros_like(x).index_add_(0, b, x.index_select(0, a)) / degree[:, None]
            x = F.normalize(F.relu(layer(torch.cat((x, mean), 1))))
        return x[a].mul(x[b]).sum(-1).sigmoid().mean()

    learn(net, torch.optim.Adam(net.parameters()), loss_of, phase)


@last
def sparse_embeddings(phase: Phase) -> None:
    net = nn.ModuleList((nn.Embedding(300_000, 48, sparse=True), nn.Embedding(100_000, 48, sparse=True))).cuda()

    def loss_of(m):
        a = m[0](torch.randint(0, 300_000, (20_000,), device="cuda"))
        b = m[1](torch.randint(0, 100_000, (20_000, 5), device="cuda"))
        return -F.logsigmoid((a[:, None] * b).sum(-1)).mean()

    learn(net, torch.optim.SGD(net.parameters(), lr=0.05), loss_of, phase)


@last
def paired_views(phase: Phase) -> None:
    net = nn.Sequential(*stages(24, (1, 1, 1, 1)), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(768, 256)).cuda()

    def loss_of(m):
        z = F.normalize(m(torch.randn(512, 3, 48, 48, device="cuda")), dim=1)
        logits = (z @ z.t() / 0.5).masked_fill(torch.eye(512, dtype=torch.bool, device="cuda"), -1e9)
        return F.cross_entropy(logits, (torch.arange(512, device="cuda") + 256) % 512)

    learn(net, torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9), loss_of, phase)


@last
def curvature_penalty(phase: Phase) -> None:
    net = nn.Sequential(nn.Linear(24, 400), nn.SiLU(), nn.Linear(400, 400), nn.SiLU(), nn.Linear(400, 8)).cuda()

    def loss_of(m):
        x = torch.randn(9000, 24, device="cuda", requires_grad=True)
        y = m(x)
        (slope,) = torch.autograd.grad(y.logsumexp(1).sum(), x, create_graph=True)
        return y.square().mean() + slope.norm(dim=1).mean()

    learn(net, torch.optim.NAdam(net.parameters()), loss_of, phase)


@last
def decoder_with_prefix_masks(phase: Phase) -> None:
    layer = nn.TransformerDecoderLayer(448, 7, 1792, 0.1, "gelu", batch_first=True, norm_first=True)
    net = nn.TransformerDecoder(layer, 4).cuda()

    def loss_of(m):
        x, memory = torch.randn(9, 140, 448, device="cuda"), torch.randn(9, 190, 448, device="cuda")
        future = nn.Transformer.generate_square_subsequent_mask(140, device="cuda")
        padding = torch.zeros(9, 190, dtype=torch.bool, device="cuda")
        return m(x, memory, tgt_mask=future, tgt_is_causal=True, memory_key_padding_mask=padding).square().mean()

    learn(net, torch.optim.AdamW(net.parameters(), capturable=True), loss_of, phase)


@last
def encoder_inference_float32(phase: Phase) -> None:
    layer = nn.TransformerEncoderLayer(640, 10, 2560, 0.0, batch_first=True)
    net = nn.TransformerEncoder(layer, 6).cuda().eval()
    phase("built")
    with torch.no_grad():
        for batch, length in ((12, 128), (30, 64), (3, 500)):
            net(torch.randn(batch, length, 640, device="cuda"))
            phase(f"{batch} of {length}")
