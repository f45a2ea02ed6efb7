"""Vision and generation of images unlike those of the other files, recorded before any rule had seen them."""

from __future__ import annotations

import copy
import math

import torch
from fresh import fresh
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from workloads import Phase


class Bottleneck(nn.Module):
    def __init__(self, inside: int, width: int, stride: int = 1, dilation: int = 1):
        super().__init__()
        out = 4 * width
        self.conv1, self.bn1 = nn.Conv2d(inside, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, dilation, dilation, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or inside != out:
            self.downsample = nn.Sequential(nn.Conv2d(inside, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        y += x if self.downsample is None else self.downsample(x)
        return self.relu(y)


def stages(base: int, counts: tuple[int, ...], dilations: tuple[int, ...] = (1, 1, 1, 1)) -> nn.ModuleList:
    stem = nn.Sequential(
        nn.Conv2d(3, base, 7, 2, 3, bias=False), nn.BatchNorm2d(base), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
    )
    made, inside = [stem], base
    for i, (count, dilation) in enumerate(zip(counts, dilations, strict=True)):
        width, blocks = base << i, []
        for j in range(count):
            stride = 2 if i > 0 and j == 0 and dilation == 1 else 1
            blocks.append(Bottleneck(inside, width, stride, dilation))
            inside = 4 * width
        made.append(nn.Sequential(*blocks))
    return nn.ModuleList(made)


@fresh
def resnet50_channels_last(phase: Phase) -> None:
    net = nn.Sequential(*stages(64, (3, 4, 6, 3)), nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten(), nn.Linear(2048, 1000))
    net = net.cuda().to(memory_format=torch.channels_last)
    sgd = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    phase("built")
    for step in range(2):
        x = torch.randn(24, 3, 224, 224, device="cuda").contiguous(memory_format=torch.channels_last)
        y = torch.randint(0, 1000, (24,), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = F.cross_entropy(net(x), y, label_smoothing=0.1)
        phase(f"forward {step}")
        loss.backward()
        phase(f"backward {step}")
        sgd.step()
        sgd.zero_grad()
        phase(f"step {step}")


@fresh
def resnet50_float32(phase: Phase) -> None:
    net = nn.Sequential(*stages(64, (3, 4, 6, 3)), nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten(), nn.Linear(2048, 100))
    net = net.cuda()
    adam = torch.optim.Adam(net.parameters(), lr=1e-3)
    phase("built")
    for step in range(2):
        x, y = torch.randn(16, 3, 224, 224, device="cuda"), torch.randint(0, 100, (16,), device="cuda")
        F.cross_entropy(net(x), y).backward()
        phase(f"backward {step}")
        adam.step()
        adam.zero_grad()
        phase(f"step {step}")


class Inverted(nn.Module):
    """MBConv: expand, depthwise, squeeze and excite, project."""

    def __init__(self, inside: int, out: int, kernel: int, stride: int, expand: int):
        super().__init__()
        wide = inside * expand
        self.expand = nn.Sequential(nn.Conv2d(inside, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.SiLU(inplace=True))
        self.depthwise = nn.Sequential(
            nn.Conv2d(wide, wide, kernel, stride, kernel // 2, groups=wide, bias=False), nn.BatchNorm2d(wide),
            nn.SiLU(inplace=True),
        )  # fmt: skip
        self.squeeze = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(wide, max(inside // 4, 4), 1), nn.SiLU(inplace=True),
            nn.Conv2d(max(inside // 4, 4), wide, 1), nn.Sigmoid(),
        )  # fmt: skip
        self.project = nn.Sequential(nn.Conv2d(wide, out, 1, bias=False), nn.BatchNorm2d(out))
        self.same = stride == 1 and inside == out

    def forward(self, x):
        y = self.depthwise(self.expand(x))
        y = self.project(self.squeeze(y) * y)
        return x + y if self.same else y


def efficient_net(classes: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.SiLU(inplace=True)]
    inside = 32
    for out, kernel, stride, expand, count in (
        (16, 3, 1, 1, 1), (24, 3, 2, 6, 2), (40, 5, 2, 6, 2), (80, 3, 2, 6, 3), (112, 5, 1, 6, 3), (192, 5, 2, 6, 2),
    ):  # fmt: skip
        for i in range(count):
            layers.append(Inverted(inside, out, kernel, stride if i == 0 else 1, expand))
            inside = out
    layers += [nn.Conv2d(192, 1280, 1, bias=False), nn.BatchNorm2d(1280), nn.SiLU(inplace=True)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(1280, classes))


@fresh
def efficient_net_average(phase: Phase) -> None:
    """With a moving average of the weights."""
    net = efficient_net(1000).cuda()
    average = copy.deepcopy(net).requires_grad_(False)
    rms = torch.optim.RMSprop(net.parameters(), lr=0.01, momentum=0.9, eps=1e-3)
    phase("built")
    for step in range(2):
        x, y = torch.randn(16, 3, 224, 224, device="cuda"), torch.randint(0, 1000, (16,), device="cuda")
        F.cross_entropy(net(x), y).backward()
        phase(f"backward {step}")
        rms.step()
        rms.zero_grad()
        with torch.no_grad():
            for a, b in zip(average.state_dict().values(), net.state_dict().values(), strict=True):
                if a.is_floating_point():
                    a.mul_(0.999).add_(b, alpha=0.001)
        phase(f"step {step}")


@fresh
def efficient_net_half_inference(phase: Phase) -> None:
    net = efficient_net(500).cuda().half().to(memory_format=torch.channels_last).eval()
    phase("built")
    with torch.inference_mode():
        for side in (224, 288, 160):
            x = torch.randn(32, 3, side, side, device="cuda", dtype=torch.half)
            net(x.to(memory_format=torch.channels_last)).softmax(-1).topk(5)
            phase(f"side {side}")


class TimedBlock(nn.Module):
    def __init__(self, inside: int, out: int, time: int):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, inside), nn.Conv2d(inside, out, 3, padding=1)
        self.time = nn.Linear(time, 2 * out)
        self.norm2, self.conv2 = nn.GroupNorm(32, out), nn.Conv2d(out, out, 3, padding=1)
        self.skip = nn.Conv2d(inside, out, 1) if inside != out else nn.Identity()

    def forward(self, x, t):
        y = self.conv1(F.silu(self.norm1(x)))
        scale, shift = self.time(F.silu(t))[:, :, None, None].chunk(2, 1)
        y = self.norm2(y) * (1 + scale) + shift
        return self.skip(x) + self.conv2(F.dropout(F.silu(y), 0.1, self.training))


class Spatial(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.GroupNorm(32, width)
        self.qkv, self.out = nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, 3, c // 32, 32, h * w).transpose(3, 4).unbind(1)
        y = F.scaled_dot_product_attention(q, k, v).transpose(2, 3).reshape(b, c, h, w)
        return x + self.out(y)


class Denoiser(nn.Module):
    def __init__(self, base=96, factors=(1, 2, 3, 4), attended=(2, 3)):
        super().__init__()
        time = 4 * base
        self.base = base
        self.time = nn.Sequential(nn.Linear(base, time), nn.SiLU(), nn.Linear(time, time))
        self.enter = nn.Conv2d(3, base, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        widths, inside = [base], base
        for i, factor in enumerate(factors):
            for _ in range(2):
                attention = Spatial(base * factor) if i in attended else nn.Identity()
                self.down.append(nn.ModuleList((TimedBlock(inside, base * factor, time), attention)))
                inside = base * factor
                widths.append(inside)
            if i < len(factors) - 1:
                self.down.append(nn.Conv2d(inside, inside, 3, 2, 1))
                widths.append(inside)
        self.middle = nn.ModuleList(
            (TimedBlock(inside, inside, time), Spatial(inside), TimedBlock(inside, inside, time))
        )
        for i, factor in reversed(list(enumerate(factors))):
            for _ in range(3):
                attention = Spatial(base * factor) if i in attended else nn.Identity()
                self.up.append(nn.ModuleList((TimedBlock(inside + widths.pop(), base * factor, time), attention)))
                inside = base * factor
            if i:
                self.up.append(nn.Conv2d(inside, inside, 3, padding=1))
        self.leave = nn.Sequential(nn.GroupNorm(32, inside), nn.SiLU(), nn.Conv2d(inside, 3, 3, padding=1))

    def forward(self, x, t):
        half = self.base // 2
        angle = t.float()[:, None] * torch.exp(-math.log(10_000) * torch.arange(half, device=t.device) / half)
        t = self.time(torch.cat((angle.sin(), angle.cos()), 1))
        x = self.enter(x)
        kept = [x]
        for level in self.down:
            x = level(x) if isinstance(level, nn.Conv2d) else level[1](level[0](x, t))
            kept.append(x)
        x = self.middle[2](self.middle[1](self.middle[0](x, t)), t)
        for level in self.up:
            if isinstance(level, nn.Conv2d):
                x = level(F.interpolate(x, scale_factor=2.0, mode="nearest"))
            else:
                x = level[1](level[0](torch.cat((x, kept.pop()), 1), t))
        return self.leave(x)


@fresh
def denoiser_scaled(phase: Phase) -> None:
    net = Denoiser().cuda()
    adam = torch.optim.AdamW(net.parameters(), lr=2e-4)
    scaler = torch.amp.GradScaler("cuda")
    phase("built")
    for step in range(2):
        x, t = torch.randn(12, 3, 64, 64, device="cuda"), torch.randint(0, 1000, (12,), device="cuda")
        noise = torch.randn_like(x)
        with torch.autocast("cuda", torch.float16):
            loss = F.mse_loss(net(x * 0.7 + noise * 0.7, t), noise)
        phase(f"forward {step}")
        scaler.scale(loss).backward()
        phase(f"backward {step}")
        scaler.unscale_(adam)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(adam)
        scaler.update()
        adam.zero_grad()
        phase(f"step {step}")


@fresh
def denoiser_float32_sampling(phase: Phase) -> None:
    net = Denoiser(64, (1, 2, 4), (1,)).cuda().eval()
    phase("built")
    with torch.no_grad():
        x = torch.randn(10, 3, 48, 48, device="cuda")
        for t in range(4):
            times = torch.full((20,), t, device="cuda")
            a, b = net(torch.cat((x, x)), times).chunk(2)
            x = x - 0.1 * (b + 3.0 * (a - b))
        x.clamp(-1, 1).add(1).mul(127.5).to(torch.uint8).cpu()
    phase("sampled")


class Modulated(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(width, elementwise_affine=False, eps=1e-6) for _ in range(2))
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x, c):
        a, b, g, d, e, h = self.modulation(c).unsqueeze(1).chunk(6, dim=2)
        y = self.norm1(x) * (1 + b) + a
        x = x + g * self.attention(y, y, y, need_weights=False)[0]
        return x + h * self.mlp(self.norm2(x) * (1 + e) + d)


@fresh
def diffusion_transformer(phase: Phase) -> None:
    class Net(nn.Module):
        def __init__(self, width=512, heads=8):
            super().__init__()
            self.patch, self.label = nn.Conv2d(4, width, 2, 2), nn.Embedding(1001, width)
            self.place = nn.Parameter(torch.randn(1, 256, width) * 0.02)
            self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
            self.blocks = nn.ModuleList(Modulated(width, heads) for _ in range(6))
            self.norm, self.leave = nn.LayerNorm(width, elementwise_affine=False), nn.Linear(width, 2 * 2 * 8)

        def forward(self, x, t, y):
            x = self.patch(x).flatten(2).transpose(1, 2) + self.place
            c = self.time(t) + self.label(y)
            for block in self.blocks:
                x = block(x, c)
            x = self.leave(self.norm(x)).view(-1, 16, 16, 2, 2, 8)
            return torch.einsum("nhwpqc->nchpwq", x).reshape(-1, 8, 32, 32)

    net = Net().cuda()
    average = [p.detach().clone() for p in net.parameters()]
    adam = torch.optim.AdamW(net.parameters(), fused=True)
    phase("built")
    for step in range(2):
        x, t = torch.randn(10, 4, 32, 32, device="cuda"), torch.randn(10, 256, device="cuda")
        y = torch.randint(0, 1000, (10,), device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            noise, _ = net(x, t, y).chunk(2, 1)
            loss = (noise - torch.randn_like(x)).square().flatten(1).mean(1).mean()
        loss.backward()
        phase(f"backward {step}")
        adam.step()
        torch._foreach_lerp_(average, list(net.parameters()), 0.001)
        adam.zero_grad()
        phase(f"step {step}")


@fresh
def shifted_windows(phase: Phase) -> None:
    class Block(nn.Module):
        def __init__(self, width: int, heads: int, shift: int):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.table = nn.Parameter(torch.zeros(13 * 13, heads))
            at = torch.stack(torch.meshgrid(torch.arange(7), torch.arange(7), indexing="ij")).flatten(1)
            apart = (at[:, :, None] - at[:, None]) + 6
            self.register_buffer("index", apart[0] * 13 + apart[1])
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            self.heads, self.shift = heads, shift

        def forward(self, x):
            b, h, w, c = x.shape
            y = self.norm1(x)
            if self.shift:
                y = torch.roll(y, (-self.shift, -self.shift), (1, 2))
            y = y.view(b, h // 7, 7, w // 7, 7, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 49, c)
            q, k, v = self.qkv(y).reshape(-1, 49, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
            scores = (q * (c // self.heads) ** -0.5) @ k.transpose(-2, -1)
            scores = scores + self.table[self.index.view(-1)].view(49, 49, -1).permute(2, 0, 1).contiguous()
            y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(-1, 49, c)
            y = self.out(y).view(b, h // 7, w // 7, 7, 7, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
            if self.shift:
                y = torch.roll(y, (self.shift, self.shift), (1, 2))
            x = x + y
            return x + self.mlp(self.norm2(x))

    class Merging(nn.Module):
        def __init__(self, width: int):
            super().__init__()
            self.norm, self.reduce = nn.LayerNorm(4 * width), nn.Linear(4 * width, 2 * width, bias=False)

        def forward(self, x):
            parts = [x[:, i::2, j::2] for j in (0, 1) for i in (0, 1)]
            return self.reduce(self.norm(torch.cat(parts, -1)))

    patches = nn.Conv2d(3, 96, 4, 4).cuda()
    body = nn.Sequential(
        Block(96, 3, 0), Block(96, 3, 3), Merging(96), Block(192, 6, 0), Block(192, 6, 3), Merging(192),
        Block(384, 12, 0), Block(384, 12, 3),
    ).cuda()  # fmt: skip
    head = nn.Linear(384, 200).cuda()
    adam = torch.optim.AdamW([*patches.parameters(), *body.parameters(), *head.parameters()], lr=1e-3)
    phase("built")
    for step in range(2):
        x, y = torch.randn(8, 3, 224, 224, device="cuda"), torch.randint(0, 200, (8,), device="cuda")
        loss = F.cross_entropy(head(body(patches(x).permute(0, 2, 3, 1)).mean((1, 2))), y)
        phase(f"forward {step}")
        loss.backward()
        phase(f"backward {step}")
        adam.step()
        adam.zero_grad()
        phase(f"step {step}")


@fresh
def vision_patch14_checkpointed(phase: Phase) -> None:
    class Block(nn.Module):
        def __init__(self, width=480, heads=8):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.w12, self.w3 = nn.Linear(width, 2560), nn.Linear(1280, width)
            self.ls1, self.ls2 = nn.Parameter(torch.ones(width)), nn.Parameter(torch.ones(width))
            self.heads = heads

        def forward(self, x):
            q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, 60)).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
            x = x + self.ls1 * self.out(y)
            a, b = self.w12(self.norm2(x)).chunk(2, -1)
            return x + self.ls2 * self.w3(F.silu(a) * b)

    patches, token = nn.Conv2d(3, 480, 14, 14).cuda(), nn.Parameter(torch.zeros(1, 5, 480, device="cuda"))
    blocks, head = nn.ModuleList(Block() for _ in range(8)).cuda(), nn.Linear(480, 300).cuda()
    adam = torch.optim.Adam([token, *patches.parameters(), *blocks.parameters(), *head.parameters()], foreach=False)
    phase("built")
    for step in range(2):
        x, y = torch.randn(20, 3, 224, 224, device="cuda"), torch.rand(20, 300, device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            h = torch.cat((token.expand(20, -1, -1), patches(x).flatten(2).transpose(1, 2)), 1)
            for block in blocks:
                h = checkpoint(block, h, use_reentrant=False)
            loss = F.binary_cross_entropy_with_logits(head(h[:, 0]).float(), y)
        loss.backward()
        phase(f"backward {step}")
        adam.step()
        adam.zero_grad()
        phase(f"step {step}")
