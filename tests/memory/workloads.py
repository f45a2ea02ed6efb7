"""Training and inference in plain PyTorch, to run unmodified on a real card and on fakes.

Every workload gets `phase`, which it calls with a name at the end of each part, and creates its tensors on "cuda".
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

Phase = Callable[[str], None]
WORKLOADS: dict[str, Callable[[Phase], None]] = {}


def workload(function: Callable[[Phase], None]) -> Callable[[Phase], None]:
    WORKLOADS[function.__name__] = function
    return function


def train(model, optimizer, loss_of, phase: Phase, steps: int = 2, autocast=None, scaler=None, clip=None) -> None:
    for step in range(steps):
        with torch.autocast("cuda", dtype=autocast, enabled=autocast is not None):
            loss = loss_of(model)
        phase(f"forward {step}")
        (scaler.scale(loss) if scaler else loss).backward()
        del loss
        phase(f"backward {step}")
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        phase(f"step {step}")
        optimizer.zero_grad()
        phase(f"zero_grad {step}")


class SelfAttention(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float = 0.0, causal: bool = True, explicit: bool = False):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.heads, self.dropout, self.causal, self.explicit = heads, dropout, causal, explicit

    def forward(self, x, bias=None):
        b, n, c = x.shape
        q, k, v = (t.view(b, n, self.heads, -1).transpose(1, 2) for t in self.qkv(x).split(c, dim=2))
        p = self.dropout if self.training else 0.0
        if self.explicit:
            scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
            if self.causal:
                scores = scores.masked_fill(torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1), float("-inf"))
            y = F.dropout(scores.softmax(-1), p, self.training) @ v
        else:
            y = F.scaled_dot_product_attention(
                q, k, v, attn_mask=bias, dropout_p=p, is_causal=self.causal and bias is None
            )
        return self.out(y.transpose(1, 2).reshape(b, n, c))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float = 0.0, causal: bool = True, explicit: bool = False):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = SelfAttention(width, heads, dropout, causal, explicit)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x, bias=None):
        x = x + self.attention(self.norm1(x), bias)
        return x + self.mlp(self.norm2(x))


class Decoder(nn.Module):
    def __init__(
        self, vocab=8192, width=512, heads=8, layers=4, length=512, dropout=0.0, explicit=False, checkpointed=False
    ):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout, True, explicit) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        self.checkpointed = checkpointed

    def forward(self, ids):
        x = self.tokens(ids) + self.positions(torch.arange(ids.size(1), device=ids.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return self.head(self.norm(x))


def next_token_loss(batch: int, length: int, vocab: int = 8192):
    ids = torch.randint(0, vocab, (batch, length), device="cuda")

    def loss_of(model):
        logits = model(ids)
        return F.cross_entropy(logits.view(-1, vocab), ids.view(-1))

    return loss_of


@workload
def decoder_adamw(phase: Phase) -> None:
    model = Decoder().cuda()
    phase("model")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    train(model, optimizer, next_token_loss(8, 512), phase, steps=3)


@workload
def decoder_bf16_fused(phase: Phase) -> None:
    model = Decoder(width=768, heads=12, layers=6).to("cuda", torch.bfloat16)
    phase("model")
    train(model, torch.optim.AdamW(model.parameters(), fused=True), next_token_loss(4, 512), phase)


@workload
def decoder_autocast_clip(phase: Phase) -> None:
    model = Decoder(dropout=0.1).cuda()
    phase("model")
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer, next_token_loss(8, 384), phase, autocast=torch.bfloat16, clip=1.0)


@workload
def decoder_single_tensor_adam(phase: Phase) -> None:
    model = Decoder(layers=3).cuda()
    phase("model")
    train(model, torch.optim.Adam(model.parameters(), foreach=False), next_token_loss(4, 512), phase)


@workload
def decoder_explicit_attention(phase: Phase) -> None:
    model = Decoder(layers=3, dropout=0.1, explicit=True).cuda()
    phase("model")
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), next_token_loss(4, 256), phase)


@workload
def decoder_checkpointed(phase: Phase) -> None:
    model = Decoder(width=768, heads=12, layers=8, checkpointed=True).cuda()
    phase("model")
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer, next_token_loss(8, 512), phase, autocast=torch.bfloat16)


@workload
def decoder_accumulation(phase: Phase) -> None:
    model = Decoder(layers=3).cuda()
    phase("model")
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    loss_of = next_token_loss(2, 512)
    for step in range(2):
        for micro in range(3):
            loss_of(model).backward()
            phase(f"micro {step}.{micro}")
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        phase(f"step {step}")


@workload
def decoder_prefill(phase: Phase) -> None:
    model = Decoder(vocab=32000, width=1024, heads=16, layers=4, length=2048).to("cuda", torch.bfloat16).eval()
    phase("model")
    with torch.no_grad():
        ids = torch.randint(0, 32000, (2, 2048), device="cuda")
        logits = model(ids)
        phase("prefill")
        probabilities = logits[:, -1].float().softmax(-1)
        probabilities.topk(50)
        torch.multinomial(probabilities, 1)
        phase("sample")


class RMSNorm(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * y.to(x.dtype)


class LlamaLayer(nn.Module):
    def __init__(self, width: int, heads: int, groups: int, inner: int):
        super().__init__()
        size = width // heads
        self.norm1, self.norm2 = RMSNorm(width), RMSNorm(width)
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, groups * size, bias=False)
        self.v = nn.Linear(width, groups * size, bias=False)
        self.o = nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)
        self.heads, self.groups = heads, groups

    def forward(self, x, cos, sin, cache=None):
        b, n, c = x.shape
        h = self.norm1(x)
        q = self.q(h).view(b, n, self.heads, -1).transpose(1, 2)
        k = self.k(h).view(b, n, self.groups, -1).transpose(1, 2)
        v = self.v(h).view(b, n, self.groups, -1).transpose(1, 2)
        q, k = (t * cos + torch.cat((-t[..., t.size(-1) // 2 :], t[..., : t.size(-1) // 2]), -1) * sin for t in (q, k))
        if cache is not None:
            if cache:
                k, v = torch.cat((cache[0], k), 2), torch.cat((cache[1], v), 2)
            cache[:] = [k, v]
        k, v = (t.repeat_interleave(self.heads // self.groups, 1) for t in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=n > 1)
        x = x + self.o(y.transpose(1, 2).reshape(b, n, c))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    def __init__(self, vocab=16384, width=768, heads=12, groups=4, layers=4, inner=2048, checkpointed=False):
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        self.layers = nn.ModuleList(LlamaLayer(width, heads, groups, inner) for _ in range(layers))
        self.norm, self.head = RMSNorm(width), nn.Linear(width, vocab, bias=False)
        self.size, self.checkpointed = width // heads, checkpointed

    def forward(self, ids, caches=None, start=0):
        x = self.tokens(ids)
        positions = torch.arange(start, start + ids.size(1), device=ids.device).float()
        frequencies = 10000 ** (-torch.arange(0, self.size, 2, device=ids.device).float() / self.size)
        angles = torch.cat(2 * [positions[:, None] * frequencies], -1)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for i, layer in enumerate(self.layers):
            if self.checkpointed:
                x = checkpoint(layer, x, cos, sin, use_reentrant=False)
            else:
                x = layer(x, cos, sin, None if caches is None else caches[i])
        return self.head(self.norm(x))


@workload
def llama_bf16(phase: Phase) -> None:
    model = Llama().to("cuda", torch.bfloat16)
    phase("model")
    train(model, torch.optim.AdamW(model.parameters()), next_token_loss(4, 1024, 16384), phase)


@workload
def llama_checkpointed(phase: Phase) -> None:
    model = Llama(checkpointed=True).cuda()
    phase("model")
    train(model, torch.optim.AdamW(model.parameters(), fused=True), next_token_loss(4, 512, 16384), phase)


@workload
def llama_generation(phase: Phase) -> None:
    model = Llama(layers=6).to("cuda", torch.bfloat16).eval()
    phase("model")
    with torch.no_grad():
        ids = torch.randint(0, 16384, (4, 300), device="cuda")
        caches = [[] for _ in range(6)]
        logits = model(ids, caches)
        phase("prefill")
        for step in range(40):
            token = logits[:, -1].argmax(-1, keepdim=True)
            logits = model(token, caches, 300 + step)
        phase("decode")


@workload
def encoder_training(phase: Phase) -> None:
    layer = nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.1, batch_first=True)
    model = nn.TransformerEncoder(layer, 4).cuda()
    x = torch.randn(8, 256, 512, device="cuda")
    phase("model")
    train(model, torch.optim.Adam(model.parameters()), lambda m: m(x).square().mean(), phase)


@workload
def encoder_masked_autocast(phase: Phase) -> None:
    layer = nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.1, batch_first=True, activation="gelu", norm_first=True)
    model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).cuda()
    x = torch.randn(8, 256, 512, device="cuda")
    mask = torch.zeros(8, 256, device="cuda", dtype=torch.bool)
    phase("model")
    scaler = torch.amp.GradScaler("cuda")

    def loss_of(m):
        return m(x, src_key_padding_mask=mask).float().square().mean()

    train(model, torch.optim.AdamW(model.parameters()), loss_of, phase, autocast=torch.float16, scaler=scaler)


@workload
def encoder_inference_fp16(phase: Phase) -> None:
    model = nn.Sequential(*(Block(768, 12, 0.1, causal=False) for _ in range(6))).to("cuda", torch.float16).eval()
    phase("model")
    with torch.inference_mode():
        x = torch.randn(16, 512, 768, device="cuda", dtype=torch.float16)
        y = model(x)
        phase("forward")
        del x, y
        phase("freed")


@workload
def sequence_to_sequence(phase: Phase) -> None:
    model = nn.Transformer(256, 4, 3, 3, 1024, dropout=0.1, batch_first=True).cuda()
    a, b = torch.randn(16, 100, 256, device="cuda"), torch.randn(16, 80, 256, device="cuda")
    mask = nn.Transformer.generate_square_subsequent_mask(80, device="cuda")
    phase("model")
    train(model, torch.optim.AdamW(model.parameters()), lambda m: m(a, b, tgt_mask=mask).square().mean(), phase)


class RelativeBias(nn.Module):
    def __init__(self, layers: int, width: int, heads: int, dropout: float):
        super().__init__()
        self.table = nn.Embedding(32, heads)
        self.blocks = nn.ModuleList(Block(width, heads, dropout, causal=False) for _ in range(layers))

    def forward(self, x):
        n = x.size(1)
        positions = torch.arange(n, device=x.device)
        bias = self.table((positions[:, None] - positions).abs().clamp(max=31)).permute(2, 0, 1)[None].to(x.dtype)
        for block in self.blocks:
            x = block(x, bias.expand(x.size(0), -1, -1, -1))
        return x


@workload
def relative_bias_dropout(phase: Phase) -> None:
    model = RelativeBias(4, 512, 8, 0.1).cuda()
    x = torch.randn(8, 256, 512, device="cuda")
    phase("model")
    train(model, torch.optim.AdamW(model.parameters()), lambda m: m(x).square().mean(), phase)


@workload
def relative_bias_no_dropout(phase: Phase) -> None:
    model = RelativeBias(3, 512, 8, 0.0).cuda()
    x = torch.randn(4, 256, 512, device="cuda")
    phase("model")
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), lambda m: m(x).square().mean(), phase)


@workload
def relative_bias_bf16(phase: Phase) -> None:
    model = RelativeBias(4, 512, 8, 0.1).to("cuda", torch.bfloat16)
    x = torch.randn(8, 256, 512, device="cuda", dtype=torch.bfloat16)
    phase("model")
    train(model, torch.optim.AdamW(model.parameters()), lambda m: m(x).float().square().mean(), phase)


class Residual(nn.Module):
    def __init__(self, channels: int, out: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(out), nn.BatchNorm2d(out)
        self.skip = nn.Identity()
        if stride != 1 or channels != out:
            self.skip = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        return F.relu(self.bn2(self.conv2(y)) + self.skip(x), inplace=True)


def resnet(width: int = 64, classes: int = 1000) -> nn.Module:
    layers = [
        nn.Conv2d(3, width, 7, 2, 3, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    channels = width
    for i in range(4):
        out = width << i
        layers += [Residual(channels, out, 1 if i == 0 else 2), Residual(out, out, 1)]
        channels = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def classification_loss(batch: int, size: int, classes: int = 1000, channels_last: bool = False):
    x = torch.randn(batch, 3, size, size, device="cuda")
    if channels_last:
        x = x.to(memory_format=torch.channels_last)
    labels = torch.randint(0, classes, (batch,), device="cuda")
    return lambda model: F.cross_entropy(model(x), labels)


@workload
def resnet_sgd(phase: Phase) -> None:
    model = resnet().cuda()
    phase("model")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    train(model, optimizer, classification_loss(32, 224), phase)


@workload
def resnet_small_images(phase: Phase) -> None:
    model = resnet(32, 10).cuda()
    phase("model")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    train(model, optimizer, classification_loss(128, 32, 10), phase)


@workload
def resnet_channels_last_amp(phase: Phase) -> None:
    model = resnet().cuda().to(memory_format=torch.channels_last)
    phase("model")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda")
    loss_of = classification_loss(32, 224, channels_last=True)
    train(model, optimizer, loss_of, phase, autocast=torch.float16, scaler=scaler)


@workload
def resnet_inference(phase: Phase) -> None:
    model = resnet().cuda().eval()
    phase("model")
    with torch.no_grad():
        x = torch.randn(64, 3, 224, 224, device="cuda")
        model(x)
        phase("forward")
        model(x)
        phase("again")


class DepthwiseBlock(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        inner = 4 * channels
        self.layers = nn.Sequential(
            nn.Conv2d(channels, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.Hardswish(),
            nn.Conv2d(inner, inner, 3, 1, 1, groups=inner, bias=False), nn.BatchNorm2d(inner), nn.Hardswish(),
            nn.Conv2d(inner, channels, 1, bias=False), nn.BatchNorm2d(channels),
        )  # fmt: skip

    def forward(self, x):
        return x + self.layers(x)


@workload
def depthwise_rmsprop(phase: Phase) -> None:
    blocks = [DepthwiseBlock(32) for _ in range(4)]
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, 2, 1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 100)
    ).cuda()
    phase("model")
    train(model, torch.optim.RMSprop(model.parameters(), momentum=0.9), classification_loss(16, 128, 100), phase)


class UNet(nn.Module):
    def __init__(self, width: int = 64):
        super().__init__()
        self.enter = nn.Conv2d(3, width, 3, padding=1)
        self.down1 = self.level(width, 2 * width)
        self.down2 = self.level(2 * width, 4 * width)
        self.middle = Block(4 * width, 4, causal=False)
        self.up2 = self.level(8 * width, 2 * width)
        self.up1 = self.level(4 * width, width)
        self.time = nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, 4 * width))
        self.leave = nn.Conv2d(width, 3, 3, padding=1)

    @staticmethod
    def level(channels: int, out: int) -> nn.Module:
        return nn.Sequential(
            nn.GroupNorm(8, channels), nn.SiLU(), nn.Conv2d(channels, out, 3, padding=1),
            nn.GroupNorm(8, out), nn.SiLU(), nn.Conv2d(out, out, 3, padding=1),
        )  # fmt: skip

    def forward(self, x, t):
        x = self.enter(x)
        a = self.down1(x)
        b = self.down2(F.avg_pool2d(a, 2))
        c = b + self.time(t)[:, :, None, None]
        m = self.middle(c.flatten(2).transpose(1, 2)).transpose(1, 2).reshape(c.shape)
        u = F.interpolate(self.up2(torch.cat((m, b), 1)), scale_factor=2, mode="nearest")
        return self.leave(self.up1(torch.cat((u, a), 1)))


@workload
def diffusion_unet(phase: Phase) -> None:
    model = UNet().cuda()
    x, t = torch.randn(8, 3, 64, 64, device="cuda"), torch.randn(8, 64, device="cuda")
    phase("model")

    def loss_of(m):
        noise = torch.randn_like(x)
        return F.mse_loss(m(x + noise, t), noise)

    train(model, torch.optim.AdamW(model.parameters()), loss_of, phase)


@workload
def lstm_language_model(phase: Phase) -> None:
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(5000, 400)
            self.lstm = nn.LSTM(400, 800, 2, dropout=0.2, batch_first=True)
            self.head = nn.Linear(800, 5000)

        def forward(self, ids):
            return self.head(self.lstm(self.tokens(ids))[0])

    model = Model().cuda()
    phase("model")
    train(model, torch.optim.Adam(model.parameters()), next_token_loss(32, 64, 5000), phase, clip=0.25)


@workload
def gru_bidirectional(phase: Phase) -> None:
    model = nn.GRU(128, 256, 2, bidirectional=True, batch_first=True).cuda()
    x = torch.randn(64, 120, 128, device="cuda")
    phase("model")
    train(model, torch.optim.Adagrad(model.parameters()), lambda m: m(x)[0].square().mean(), phase)


@workload
def gru_cells(phase: Phase) -> None:
    model = nn.GRUCell(256, 512).cuda()
    x = torch.randn(20, 64, 256, device="cuda")
    phase("model")

    def loss_of(m):
        h = torch.zeros(64, 512, device="cuda")
        for step in x:
            h = m(step, h)
        return h.square().mean()

    train(model, torch.optim.SGD(model.parameters(), lr=0.1), loss_of, phase)


class VisionTransformer(nn.Module):
    def __init__(self, width=384, heads=6, layers=6, classes=1000):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, 197, width))
        self.blocks = nn.Sequential(*(Block(width, heads, 0.1, causal=False) for _ in range(layers)))
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.size(0), -1, -1), x), 1) + self.positions
        return self.head(self.blocks(x)[:, 0])


@workload
def vision_transformer(phase: Phase) -> None:
    model = VisionTransformer().cuda()
    phase("model")
    train(model, torch.optim.AdamW(model.parameters()), classification_loss(32, 224), phase)


@workload
def vision_transformer_autocast(phase: Phase) -> None:
    model = VisionTransformer().cuda()
    phase("model")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(model, optimizer, classification_loss(32, 224), phase, autocast=torch.bfloat16)


@workload
def experts(phase: Phase) -> None:
    class Experts(nn.Module):
        def __init__(self, width=512, inner=1024, count=8):
            super().__init__()
            self.router = nn.Linear(width, count)
            self.up = nn.Parameter(torch.randn(count, width, inner) * 0.02)
            self.down = nn.Parameter(torch.randn(count, inner, width) * 0.02)

        def forward(self, x):
            weights, chosen = self.router(x).softmax(-1).topk(2, -1)
            gate = torch.zeros(x.size(0), 8, device=x.device).scatter(1, chosen, weights)
            h = F.silu(torch.einsum("nd,edh->enh", x, self.up))
            return torch.einsum("enh,ehd,ne->nd", h, self.down, gate)

    model = nn.Sequential(Experts(), nn.LayerNorm(512), Experts()).cuda()
    x = torch.randn(2048, 512, device="cuda")
    phase("model")
    train(model, torch.optim.AdamW(model.parameters()), lambda m: m(x).square().mean(), phase)


@workload
def recommender(phase: Phase) -> None:
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tables = nn.ModuleList(nn.Embedding(100_000, 32) for _ in range(6))
            self.bag = nn.EmbeddingBag(50_000, 64, mode="sum")
            self.mlp = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 1))

        def forward(self, ids, bags):
            columns = [table(ids[:, i]) for i, table in enumerate(self.tables)]
            return self.mlp(torch.cat([*columns, self.bag(bags)], 1)).squeeze(1)

    model = Model().cuda()
    ids = torch.randint(0, 100_000, (16384, 6), device="cuda")
    bags = torch.randint(0, 50_000, (16384, 10), device="cuda")
    labels = torch.rand(16384, device="cuda")
    phase("model")

    def loss_of(m):
        return F.binary_cross_entropy_with_logits(m(ids, bags), labels)

    train(model, torch.optim.Adagrad(model.parameters(), lr=0.01), loss_of, phase)


@workload
def audio_convolutions(phase: Phase) -> None:
    layers: list[nn.Module] = []
    channels = 1
    for out, kernel, stride in ((64, 10, 5), (128, 3, 2), (256, 3, 2), (256, 3, 2), (256, 2, 2)):
        layers += [nn.Conv1d(channels, out, kernel, stride), nn.GroupNorm(8, out), nn.GELU()]
        channels = out
    model = nn.Sequential(*layers).cuda()
    x = torch.randn(8, 1, 64000, device="cuda")
    phase("model")
    train(model, torch.optim.Adam(model.parameters()), lambda m: m(x).square().mean(), phase)


@workload
def video_convolutions(phase: Phase) -> None:
    model = nn.Sequential(
        nn.Conv3d(3, 32, 3, 1, 1), nn.BatchNorm3d(32), nn.ReLU(), nn.MaxPool3d(2),
        nn.Conv3d(32, 64, 3, 1, 1), nn.BatchNorm3d(64), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(),
        nn.Linear(64, 10),
    ).cuda()  # fmt: skip
    x = torch.randn(4, 3, 16, 64, 64, device="cuda")
    phase("model")
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), lambda m: m(x).square().mean(), phase)


@workload
def adversarial(phase: Phase) -> None:
    generator = nn.Sequential(
        nn.ConvTranspose2d(100, 256, 4, 1, 0), nn.BatchNorm2d(256), nn.ReLU(),
        nn.ConvTranspose2d(256, 128, 4, 2, 1), nn.BatchNorm2d(128), nn.ReLU(),
        nn.ConvTranspose2d(128, 64, 4, 2, 1), nn.BatchNorm2d(64), nn.ReLU(),
        nn.ConvTranspose2d(64, 3, 4, 2, 1), nn.Tanh(),
    ).cuda()  # fmt: skip
    critic = nn.Sequential(
        nn.Conv2d(3, 64, 4, 2, 1), nn.LeakyReLU(0.2),
        nn.Conv2d(64, 128, 4, 2, 1), nn.BatchNorm2d(128), nn.LeakyReLU(0.2),
        nn.Conv2d(128, 1, 8),
    ).cuda()  # fmt: skip
    real = torch.randn(64, 3, 32, 32, device="cuda")
    phase("model")
    optimizers = [torch.optim.Adam(m.parameters(), betas=(0.5, 0.999)) for m in (critic, generator)]
    for step in range(2):
        made = generator(torch.randn(64, 100, 1, 1, device="cuda"))
        loss = F.softplus(-critic(real)).mean() + F.softplus(critic(made.detach())).mean()
        loss.backward()
        optimizers[0].step()
        optimizers[0].zero_grad()
        phase(f"critic {step}")
        F.softplus(-critic(made)).mean().backward()
        optimizers[1].step()
        optimizers[1].zero_grad()
        phase(f"generator {step}")


@workload
def wide_perceptron(phase: Phase) -> None:
    model = nn.Sequential(
        nn.Linear(1024, 4096), nn.ReLU(), nn.Dropout(0.2), nn.Linear(4096, 4096), nn.Tanh(), nn.Linear(4096, 100)
    )
    model.cuda()
    x, y = torch.randn(4096, 1024, device="cuda"), torch.randint(0, 100, (4096,), device="cuda")
    phase("model")
    optimizer = torch.optim.Adam(model.parameters(), capturable=True, amsgrad=True)
    train(model, optimizer, lambda m: F.cross_entropy(m(x), y), phase)


@workload
def double_precision_regression(phase: Phase) -> None:
    model = nn.Sequential(nn.Linear(300, 1000), nn.Softplus(), nn.Linear(1000, 1)).to("cuda", torch.float64)
    x = torch.randn(5000, 300, device="cuda", dtype=torch.float64, requires_grad=True)
    phase("model")

    def loss_of(m):
        (gradient,) = torch.autograd.grad(m(x).sum(), x, create_graph=True)
        return gradient.square().mean()

    train(model, torch.optim.NAdam(model.parameters()), loss_of, phase)


@workload
def selections(phase: Phase) -> None:
    x = torch.randn(200, 20000, device="cuda", requires_grad=True)
    phase("inputs")
    for step in range(2):
        values, indices = x.sort(1)
        kept = values.cumsum(1).gather(1, indices)
        phase(f"sorted {step}")
        top = x.topk(100, 1).values.logsumexp(1)
        rows = torch.randint(0, 200, (5000,), device="cuda")
        picked = x[rows, :64]
        phase(f"picked {step}")
        (kept.mean() + top.mean() + picked.mean()).backward()
        del values, indices, kept, top, picked
        phase(f"backward {step}")
        x.grad = None


@workload
def finetuning_frozen(phase: Phase) -> None:
    model = Decoder(width=768, heads=12, layers=6).cuda()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for block in model.blocks[-2:]:
        block.requires_grad_(True)
    model.head.requires_grad_(True)
    phase("model")
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    train(model, optimizer, next_token_loss(8, 512), phase, autocast=torch.bfloat16)
