"""Programs recorded after the model was fitted to the others, and batch sizes around other limits."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from workloads import (
    Block,
    Decoder,
    DepthwiseBlock,
    Llama,
    Phase,
    Residual,
    SelfAttention,
    classification_loss,
    next_token_loss,
    resnet,
    train,
)

LATER: dict[str, Callable[[Phase], None]] = {}
#: By name: a function of the batch size, the limit in MiB, and the batch sizes.
LATER_LIMITED: dict[str, tuple[Callable[[int], None], int, list[int]]] = {}


def later(function: Callable[[Phase], None]) -> Callable[[Phase], None]:
    LATER[function.__name__] = function
    return function


@later
def vgg_sgd(phase: Phase) -> None:
    layers: list[nn.Module] = []
    channels = 3
    for out in (48, 48, 0, 96, 96, 0, 192, 192, 0):
        layers += [nn.Conv2d(channels, out, 3, padding=1), nn.ReLU(inplace=True)] if out else [nn.MaxPool2d(2)]
        channels = out or channels
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(192 * 144, 512), nn.ReLU(), nn.Dropout(), nn.Linear(512, 50))
    model.cuda()
    phase("model")
    train(model, torch.optim.SGD(model.parameters(), lr=0.01), classification_loss(20, 96, 50), phase)


class ConvNextBlock(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 1e-6))

    def forward(self, x):
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + (self.scale * self.down(F.gelu(self.up(y)))).permute(0, 3, 1, 2)


@later
def convnext_autocast(phase: Phase) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 80, 4, 4), ConvNextBlock(80), ConvNextBlock(80), nn.Conv2d(80, 160, 2, 2), ConvNextBlock(160),
        ConvNextBlock(160), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(160, 100),
    ).cuda()  # fmt: skip
    phase("model")
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer, classification_loss(16, 160, 100), phase, autocast=torch.bfloat16)


@later
def bottlenecks_channels_last(phase: Phase) -> None:
    class Bottleneck(nn.Module):
        def __init__(self, width: int, inner: int):
            super().__init__()
            self.layers = nn.Sequential(
                nn.Conv2d(width, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU(inplace=True),
                nn.Conv2d(inner, inner, 3, padding=1, groups=8, bias=False), nn.BatchNorm2d(inner),
                nn.ReLU(inplace=True), nn.Conv2d(inner, width, 1, bias=False), nn.BatchNorm2d(width),
            )  # fmt: skip

        def forward(self, x):
            return F.relu(x + self.layers(x), inplace=True)

    model = nn.Sequential(
        nn.Conv2d(3, 128, 7, 2, 3, bias=False), nn.BatchNorm2d(128), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1),
        Bottleneck(128, 64), Bottleneck(128, 64), nn.Conv2d(128, 256, 1, 2, bias=False), Bottleneck(256, 128),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 200),
    ).to("cuda", memory_format=torch.channels_last)  # fmt: skip
    phase("model")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(model, optimizer, classification_loss(18, 176, 200, channels_last=True), phase)


@later
def mobile_half(phase: Phase) -> None:
    blocks = [DepthwiseBlock(40) for _ in range(3)]
    model = nn.Sequential(
        nn.Conv2d(3, 40, 3, 2, 1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(40, 64)
    ).cuda()
    phase("model")
    scaler = torch.amp.GradScaler("cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer, classification_loss(20, 144, 64), phase, autocast=torch.float16, scaler=scaler)


@later
def segmentation(phase: Phase) -> None:
    model = nn.Sequential(
        Residual(3, 40, 2), Residual(40, 80, 2), nn.Conv2d(80, 80, 3, padding=2, dilation=2), nn.BatchNorm2d(80),
        nn.ReLU(), nn.ConvTranspose2d(80, 40, 2, 2), nn.ReLU(), nn.ConvTranspose2d(40, 20, 2, 2), nn.ReLU(),
        nn.Conv2d(20, 12, 1),
    ).cuda()  # fmt: skip
    x, y = torch.randn(10, 3, 128, 128, device="cuda"), torch.randint(0, 12, (10, 128, 128), device="cuda")
    phase("model")
    train(model, torch.optim.Adam(model.parameters()), lambda m: F.cross_entropy(m(x), y), phase)


@later
def variational_autoencoder(phase: Phase) -> None:
    encoder = nn.Sequential(
        nn.Conv2d(3, 32, 4, 2, 1), nn.SiLU(), nn.Conv2d(32, 64, 4, 2, 1), nn.SiLU(), nn.Conv2d(64, 32, 4, 2, 1)
    )
    decoder = nn.Sequential(
        nn.Conv2d(16, 64, 3, padding=1), nn.SiLU(), nn.Upsample(scale_factor=2), nn.Conv2d(64, 32, 3, padding=1),
        nn.GroupNorm(4, 32), nn.SiLU(), nn.Upsample(scale_factor=4, mode="bilinear"), nn.Conv2d(32, 3, 3, padding=1),
    )  # fmt: skip
    model = nn.ModuleList((encoder, decoder)).cuda()
    x = torch.randn(24, 3, 96, 96, device="cuda")
    phase("model")

    def loss_of(m):
        mean, log_variance = m[0](x).chunk(2, 1)
        z = mean + (log_variance / 2).exp() * torch.randn_like(mean)
        return F.mse_loss(m[1](z), x) + (mean.square() + log_variance.exp() - 1 - log_variance).mean()

    train(model, torch.optim.Adam(model.parameters()), loss_of, phase)


@later
def volumes(phase: Phase) -> None:
    model = nn.Sequential(
        nn.Conv3d(1, 16, 3, padding=1), nn.InstanceNorm3d(16, affine=True), nn.LeakyReLU(), nn.Conv3d(16, 32, 3, 2, 1),
        nn.InstanceNorm3d(32, affine=True), nn.LeakyReLU(), nn.ConvTranspose3d(32, 16, 2, 2), nn.Conv3d(16, 4, 1),
    ).cuda()  # fmt: skip
    x, y = torch.randn(3, 1, 40, 48, 48, device="cuda"), torch.randint(0, 4, (3, 40, 48, 48), device="cuda")
    phase("model")
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), lambda m: F.cross_entropy(m(x), y), phase)


@later
def speech_recognition(phase: Phase) -> None:
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.convolutions = nn.Sequential(nn.Conv1d(80, 256, 3, padding=1), nn.GELU(), nn.Conv1d(256, 256, 3, 2, 1))
            self.network = nn.LSTM(256, 320, 2, batch_first=True, bidirectional=True, dropout=0.1)
            self.head = nn.Linear(640, 40)

        def forward(self, x):
            return self.head(self.network(self.convolutions(x).transpose(1, 2))[0]).log_softmax(-1).transpose(0, 1)

    model = Model().cuda()
    x, y = torch.randn(12, 80, 400, device="cuda"), torch.randint(1, 40, (12, 50), device="cuda")
    lengths = torch.full((12,), 200), torch.full((12,), 50)
    phase("model")
    train(model, torch.optim.Adam(model.parameters()), lambda m: F.ctc_loss(m(x), y, *lengths), phase)


@later
def translation_gru(phase: Phase) -> None:
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(6000, 256)
            self.reader, self.writer = nn.GRU(256, 384, 2), nn.GRU(256, 384, 2)
            self.head = nn.Linear(384, 6000)

        def forward(self, a, b):
            state = self.reader(self.words(a))[1]
            return self.head(self.writer(self.words(b), state)[0])

    model = Model().cuda()
    a, b = torch.randint(0, 6000, (30, 24), device="cuda"), torch.randint(0, 6000, (28, 24), device="cuda")
    phase("model")
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    train(model, optimizer, lambda m: F.cross_entropy(m(a, b).flatten(0, 1), b.flatten()), phase, clip=5.0)


@later
def lstm_half_packed(phase: Phase) -> None:
    model = nn.LSTM(160, 640, 2, batch_first=True).to("cuda", torch.float16)
    x = torch.randn(64, 70, 160, device="cuda", dtype=torch.float16)
    lengths = torch.arange(70, 6, -1)
    phase("model")

    def loss_of(m):
        return m(nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True))[0].data.float().square().mean()

    train(model, torch.optim.SGD(model.parameters(), lr=0.1), loss_of, phase)


@later
def elman_inference(phase: Phase) -> None:
    model = nn.RNN(96, 192, 3).cuda().eval()
    phase("model")
    with torch.no_grad():
        for length in (50, 200, 120):
            model(torch.randn(length, 40, 96, device="cuda"))
            phase(f"length {length}")


@later
def relative_bias_autocast(phase: Phase) -> None:
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.norm = SelfAttention(448, 7, 0.15, causal=False), nn.LayerNorm(448)
            self.table = nn.Embedding(40, 7)

        def forward(self, x):
            at = torch.arange(x.size(1), device=x.device)
            bias = self.table((at[:, None] - at).clamp(-19, 20) + 19).permute(2, 0, 1)[None]
            return x + self.attention(self.norm(x), bias.to(torch.bfloat16))

    model = nn.Sequential(*(Layer() for _ in range(4))).cuda()
    x = torch.randn(7, 224, 448, device="cuda")
    phase("model")
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer, lambda m: m(x).float().square().mean(), phase, autocast=torch.bfloat16)


@later
def windows(phase: Phase) -> None:
    """Attention within windows of an image, with a learned bias, in float32 with dropout."""

    class Window(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.norm = SelfAttention(128, 4, 0.1, causal=False), nn.LayerNorm(128)
            self.bias = nn.Parameter(torch.zeros(1, 4, 64, 64))

        def forward(self, x):
            b, h, w, c = x.shape
            y = self.norm(x).view(b, h // 8, 8, w // 8, 8, c).transpose(2, 3).reshape(-1, 64, c)
            y = self.attention(y, self.bias.expand(y.size(0), -1, -1, -1))
            return x + y.view(b, h // 8, w // 8, 8, 8, c).transpose(2, 3).reshape(b, h, w, c)

    model = nn.Sequential(*(Window() for _ in range(3))).cuda()
    x = torch.randn(6, 48, 48, 128, device="cuda")
    phase("model")
    train(model, torch.optim.AdamW(model.parameters()), lambda m: m(x).square().mean(), phase)


@later
def masked_language_model(phase: Phase) -> None:
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.places = nn.Embedding(9000, 320), nn.Embedding(160, 320)
            self.blocks = nn.Sequential(*(Block(320, 5, 0.1, causal=False) for _ in range(5)))

        def forward(self, ids):
            x = self.blocks(F.dropout(self.words(ids) + self.places.weight[: ids.size(1)], 0.1))
            return F.linear(x, self.words.weight)

    model = Model().cuda()
    ids = torch.randint(0, 9000, (14, 150), device="cuda")
    chosen = torch.rand(14, 150, device="cuda") < 0.15
    phase("model")
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    labels = ids.where(chosen, -100).flatten()
    train(model, optimizer, lambda m: F.cross_entropy(m(ids).flatten(0, 1), labels), phase)


@later
def reentrant_checkpoints(phase: Phase) -> None:
    blocks = nn.ModuleList(Block(576, 9, 0.1) for _ in range(6)).cuda()
    x = torch.randn(6, 320, 576, device="cuda", requires_grad=True)
    phase("model")

    def loss_of(m):
        y = x
        for block in m:
            y = checkpoint(block, y, use_reentrant=True)
        return y.square().mean()

    train(blocks, torch.optim.AdamW(blocks.parameters()), loss_of, phase, autocast=torch.float16)


@later
def low_rank_adapters(phase: Phase) -> None:
    class Adapted(nn.Module):
        def __init__(self, inner: nn.Linear):
            super().__init__()
            self.inner = inner.requires_grad_(False)
            self.down = nn.Linear(inner.in_features, 12, bias=False)
            self.up = nn.Linear(12, inner.out_features, bias=False)

        def forward(self, x):
            return self.inner(x) + self.up(F.dropout(self.down(x), 0.05))

    model = Llama(vocab=9000, width=512, heads=8, groups=4, layers=5, inner=1400).requires_grad_(False)
    for layer in model.layers:
        layer.q, layer.v = Adapted(layer.q), Adapted(layer.v)
    model.to("cuda", torch.bfloat16)
    phase("model")
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    train(model, optimizer, next_token_loss(5, 400, 9000), phase)


@later
def distillation(phase: Phase) -> None:
    teacher = Decoder(vocab=6000, width=640, heads=10, layers=4, length=256).to("cuda", torch.bfloat16).eval()
    student = Decoder(vocab=6000, width=256, heads=4, layers=3, length=256).cuda()
    ids = torch.randint(0, 6000, (9, 250), device="cuda")
    phase("model")

    def loss_of(m):
        with torch.no_grad():
            wanted = teacher(ids).float().softmax(-1)
        return F.kl_div(m(ids).log_softmax(-1), wanted, reduction="batchmean")

    train(student, torch.optim.Adam(student.parameters()), loss_of, phase)


@later
def sampling_with_beams(phase: Phase) -> None:
    model = Llama(vocab=11_000, width=576, heads=9, groups=3, layers=5, inner=1536).to("cuda", torch.float16).eval()
    phase("model")
    with torch.inference_mode():
        caches: list[list[torch.Tensor]] = [[] for _ in range(5)]
        ids = torch.randint(0, 11_000, (6, 170), device="cuda")
        logits = model(ids, caches)
        phase("prefill")
        for step in range(24):
            values, chosen = logits[:, -1].float().topk(40)
            beams = torch.randint(0, 6, (6,), device="cuda")
            token = chosen.gather(1, torch.multinomial(values.softmax(-1), 1))[beams]
            for cache in caches:
                cache[:] = [t.index_select(0, beams) for t in cache]
            logits = model(token, caches, 170 + step)
        phase("decode")


@later
def routed_experts(phase: Phase) -> None:
    class Routed(nn.Module):
        def __init__(self, width=384, inner=768, count=6):
            super().__init__()
            self.router = nn.Linear(width, count)
            self.experts = nn.ModuleList(
                nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width)) for _ in range(count)
            )

        def forward(self, x):
            weights, chosen = self.router(x).softmax(-1).max(-1)
            made = torch.zeros_like(x)
            # As many rows for each expert, so that sizes do not depend on values.
            order = chosen.argsort().view(len(self.experts), -1)
            for expert, rows in zip(self.experts, order, strict=True):
                made = made.index_add(0, rows, expert(x[rows]) * weights[rows, None])
            return x + made

    model = nn.Sequential(Routed(), nn.LayerNorm(384), Routed()).cuda()
    x = torch.randn(3000, 384, device="cuda")
    phase("model")
    train(model, torch.optim.AdamW(model.parameters()), lambda m: m(x).square().mean(), phase, clip=1.0)


@later
def graph_convolution(phase: Phase) -> None:
    layers = nn.ModuleList((nn.Linear(128, 256), nn.Linear(256, 256), nn.Linear(256, 40))).cuda()
    x, labels = torch.randn(20_000, 128, device="cuda"), torch.randint(0, 40, (20_000,), device="cuda")
    sources, targets = (torch.randint(0, 20_000, (150_000,), device="cuda") for _ in range(2))
    phase("model")

    def loss_of(m):
        h = x
        for layer in m:
            h = F.relu(torch.zeros_like(h).index_add(0, targets, h[sources])) + h
            h = layer(h)
        return F.cross_entropy(h, labels)

    train(layers, torch.optim.Adam(layers.parameters()), loss_of, phase)


@later
def policy_gradient(phase: Phase) -> None:
    model = nn.Sequential(nn.Linear(60, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 18)).cuda()
    states = torch.randn(8192, 60, device="cuda")
    actions, gains = torch.randint(0, 18, (8192,), device="cuda"), torch.randn(8192, device="cuda")
    phase("model")
    optimizer = torch.optim.RMSprop(model.parameters())
    for epoch in range(2):
        order = torch.randperm(8192, device="cuda")
        for rows in order.split(2048):
            log_probs = model(states[rows]).log_softmax(-1).gather(1, actions[rows, None]).squeeze(1)
            (-(log_probs * gains[rows]).mean()).backward()
            optimizer.step()
            optimizer.zero_grad()
        phase(f"epoch {epoch}")


@later
def physics_informed(phase: Phase) -> None:
    model = nn.Sequential(nn.Linear(2, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 1)).cuda()
    x = torch.rand(20_000, 2, device="cuda", requires_grad=True)
    phase("model")

    def loss_of(m):
        u = m(x)
        (first,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first[:, 0].sum(), x, create_graph=True)
        return (first[:, 1] - 0.01 * second[:, 0]).square().mean() + u[:100].square().mean()

    train(model, torch.optim.Adam(model.parameters()), loss_of, phase)


@later
def spectral_operator(phase: Phase) -> None:
    class Spectral(nn.Module):
        def __init__(self, width=24, modes=12):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(width, width, modes, modes, 2) * 0.02)
            self.local, self.modes = nn.Conv2d(width, width, 1), modes

        def forward(self, x):
            n = self.modes
            spectrum = torch.fft.rfft2(x)
            kept = torch.einsum("bixy,ioxy->boxy", spectrum[..., :n, :n], torch.view_as_complex(self.weight))
            wide = torch.zeros_like(spectrum)
            wide[..., :n, :n] = kept
            return F.gelu(torch.fft.irfft2(wide, s=x.shape[-2:]) + self.local(x))

    model = nn.Sequential(nn.Conv2d(1, 24, 1), Spectral(), Spectral(), nn.Conv2d(24, 1, 1)).cuda()
    x = torch.randn(12, 1, 80, 80, device="cuda")
    phase("model")
    train(model, torch.optim.Adam(model.parameters()), lambda m: m(x).square().mean(), phase)


def _steps(model: nn.Module, loss_of, optimizer=torch.optim.AdamW) -> None:
    train(model, optimizer(model.parameters()), loss_of, lambda _: None, steps=2)


def _mixed(batch: int) -> None:
    model = Decoder(layers=4, width=384, heads=6, vocab=6000).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer, next_token_loss(batch, 400, 6000), lambda _: None, autocast=torch.bfloat16)


def _wide_resnet(batch: int) -> None:
    _steps(resnet(40, 60).cuda(), classification_loss(batch, 112, 60))


def _convnext(batch: int) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 64, 4, 4), ConvNextBlock(64), ConvNextBlock(64), nn.Flatten(), nn.Linear(64 * 784, 10)
    )
    _steps(model.cuda(), classification_loss(batch, 112, 10))


def _recurrent(batch: int) -> None:
    x = torch.randn(batch, 80, 256, device="cuda")
    _steps(nn.LSTM(256, 512, 2, batch_first=True).cuda(), lambda m: m(x)[0].square().mean())


def _biased(batch: int) -> None:
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(Block(384, 6, 0.1, causal=False) for _ in range(3))
            self.bias = nn.Parameter(torch.zeros(1, 6, 200, 200))

        def forward(self, x):
            for block in self.blocks:
                x = block(x, self.bias.expand(x.size(0), -1, -1, -1))
            return x

    x = torch.randn(batch, 200, 384, device="cuda")
    _steps(Model().cuda(), lambda m: m(x).square().mean())


def _checkpointed(batch: int) -> None:
    _steps(Decoder(vocab=5000, width=512, layers=6, checkpointed=True).cuda(), next_token_loss(batch, 512, 5000))


LATER_LIMITED |= {
    "mixed_decoder": (_mixed, 900, [9, 11, 12, 13, 14, 16]),
    "wide_resnet": (_wide_resnet, 1200, [220, 280, 292, 300, 308, 360]),
    "convnext": (_convnext, 700, [70, 90, 93, 96, 99, 120]),
    "recurrent": (_recurrent, 600, [90, 108, 114, 122, 128, 150]),
    "biased": (_biased, 800, [24, 27, 28, 29, 30, 34]),
    "checkpointed": (_checkpointed, 900, [9, 11, 12, 13, 14, 16]),
}
