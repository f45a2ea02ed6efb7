"""Segmentation, detection, generation and volumes, recorded before any rule had seen them."""

from __future__ import annotations

import torch
from fresh import fresh
from fresh_images import stages
from torch import nn
from torch.nn import functional as F
from workloads import Phase


def conv_norm(inside: int, out: int, kernel: int, dilation: int = 1, stride: int = 1) -> nn.Sequential:
    padding = dilation * (kernel // 2)
    return nn.Sequential(
        nn.Conv2d(inside, out, kernel, stride, padding, dilation, bias=False),
        nn.BatchNorm2d(out),
        nn.ReLU(inplace=True),
    )


@fresh
def dilated_segmentation(phase: Phase) -> None:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stages = stages(32, (2, 2, 2, 2), (1, 1, 2, 4))
            self.pyramid = nn.ModuleList((conv_norm(1024, 128, 1), *(conv_norm(1024, 128, 3, d) for d in (6, 12, 18))))
            self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), conv_norm(1024, 128, 1))
            self.project = nn.Sequential(conv_norm(640, 128, 1), nn.Dropout(0.5), conv_norm(128, 128, 3))
            self.head, self.extra = nn.Conv2d(128, 21, 1), nn.Sequential(conv_norm(512, 64, 3), nn.Conv2d(64, 21, 1))

        def forward(self, x):
            size, middle = x.shape[-2:], None
            for i, stage in enumerate(self.stages):
                x = stage(x)
                middle = x if i == 3 else middle
            parts = [branch(x) for branch in self.pyramid]
            parts.append(F.interpolate(self.pool(x), size=x.shape[-2:], mode="bilinear", align_corners=False))
            outputs = self.head(self.project(torch.cat(parts, 1))), self.extra(middle)
            return [F.interpolate(y, size=size, mode="bilinear", align_corners=False) for y in outputs]

    net = Net().cuda()
    sgd = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    phase("built")
    for step in range(2):
        x, y = torch.randn(6, 3, 256, 256, device="cuda"), torch.randint(0, 21, (6, 256, 256), device="cuda")
        y[:, :4] = 255
        a, b = net(x)
        loss = F.cross_entropy(a, y, ignore_index=255) + 0.5 * F.cross_entropy(b, y, ignore_index=255)
        del a, b
        phase(f"forward {step}")
        loss.backward()
        phase(f"backward {step}")
        sgd.step()
        sgd.zero_grad()
        phase(f"step {step}")


@fresh
def detection_pyramid(phase: Phase) -> None:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stages = stages(48, (2, 2, 2, 2))
            self.lateral = nn.ModuleList(nn.Conv2d(c, 192, 1) for c in (384, 768, 1536))
            self.smooth = nn.ModuleList(nn.Conv2d(192, 192, 3, padding=1) for _ in range(3))
            self.coarse = nn.Conv2d(192, 192, 3, 2, 1)
            self.classes, self.boxes = (
                nn.Sequential(
                    nn.Conv2d(192, 192, 3, padding=1), nn.GroupNorm(16, 192), nn.ReLU(),
                    nn.Conv2d(192, 192, 3, padding=1), nn.GroupNorm(16, 192), nn.ReLU(),
                    nn.Conv2d(192, 9 * out, 3, padding=1),
                ) for out in (20, 4)
            )  # fmt: skip

        def forward(self, x):
            maps = []
            for i, stage in enumerate(self.stages):
                x = stage(x)
                if i >= 2:
                    maps.append(self.lateral[i - 2](x))
            for i in (1, 0):
                maps[i] = maps[i] + F.interpolate(maps[i + 1], scale_factor=2, mode="nearest")
            maps = [smooth(m) for smooth, m in zip(self.smooth, maps, strict=True)]
            maps.append(self.coarse(maps[-1]))
            flat = [
                torch.cat([head(m).permute(0, 2, 3, 1).reshape(m.size(0), -1, out) for m in maps], 1)
                for head, out in ((self.classes, 20), (self.boxes, 4))
            ]
            return flat[0], flat[1]

    net = Net().cuda()
    adam = torch.optim.AdamW(net.parameters(), lr=1e-4)
    phase("built")
    for step in range(2):
        scores, boxes = net(torch.randn(4, 3, 320, 320, device="cuda"))
        wanted = (torch.rand_like(scores) < 0.01).float()
        p = scores.sigmoid()
        cross = F.binary_cross_entropy_with_logits(scores, wanted, reduction="none")
        focal = cross * (p * (1 - wanted) + (1 - p) * wanted) ** 2
        positive = wanted.amax(-1, keepdim=True)
        loss = (
            focal.sum() / 100 + (F.smooth_l1_loss(boxes, torch.zeros_like(boxes), reduction="none") * positive).mean()
        )
        phase(f"forward {step}")
        loss.backward()
        phase(f"backward {step}")
        nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        adam.step()
        adam.zero_grad()
        phase(f"step {step}")
        del scores, boxes, wanted, p, cross, focal, positive


@fresh
def dense_connections(phase: Phase) -> None:
    class Layer(nn.Module):
        def __init__(self, inside: int, growth: int):
            super().__init__()
            self.layers = nn.Sequential(
                nn.BatchNorm2d(inside), nn.ReLU(), nn.Conv2d(inside, 4 * growth, 1, bias=False),
                nn.BatchNorm2d(4 * growth), nn.ReLU(), nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
            )  # fmt: skip

        def forward(self, x):
            return torch.cat((x, self.layers(x)), 1)

    made: list[nn.Module] = [nn.Conv2d(3, 48, 3, padding=1, bias=False)]
    width = 48
    for i in range(3):
        for _ in range(6):
            made.append(Layer(width, 24))
            width += 24
        if i < 2:
            made += [nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width // 2, 1, bias=False), nn.AvgPool2d(2)]
            width //= 2
    net = nn.Sequential(*made, nn.BatchNorm2d(width), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                        nn.Linear(width, 100)).cuda()  # fmt: skip
    sgd = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    phase("built")
    for step in range(2):
        x, y = torch.randn(96, 3, 32, 32, device="cuda"), torch.randint(0, 100, (96,), device="cuda")
        F.cross_entropy(net(x), y).backward()
        phase(f"backward {step}")
        sgd.step()
        sgd.zero_grad()
        phase(f"step {step}")


@fresh
def gradient_penalty(phase: Phase) -> None:
    maker = nn.Sequential(
        nn.Linear(128, 256 * 16), nn.Unflatten(1, (256, 4, 4)),
        nn.Upsample(scale_factor=2), nn.Conv2d(256, 128, 3, padding=1), nn.BatchNorm2d(128), nn.ReLU(True),
        nn.Upsample(scale_factor=2), nn.Conv2d(128, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(True),
        nn.Upsample(scale_factor=2), nn.Conv2d(64, 3, 3, padding=1), nn.Tanh(),
    ).cuda()  # fmt: skip
    critic = nn.Sequential(
        nn.Conv2d(3, 64, 5, 2, 2), nn.LeakyReLU(0.2), nn.Conv2d(64, 128, 5, 2, 2), nn.InstanceNorm2d(128, affine=True),
        nn.LeakyReLU(0.2), nn.Conv2d(128, 256, 5, 2, 2), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(256 * 16, 1),
    ).cuda()  # fmt: skip
    adams = [torch.optim.Adam(m.parameters(), 1e-4, betas=(0.0, 0.9)) for m in (maker, critic)]
    phase("built")
    for step in range(2):
        real, z = torch.rand(64, 3, 32, 32, device="cuda"), torch.randn(64, 128, device="cuda")
        with torch.no_grad():
            made = maker(z)
        mixed = torch.lerp(real, made, torch.rand(64, 1, 1, 1, device="cuda")).requires_grad_()
        (slope,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
        penalty = (slope.flatten(1).norm(dim=1) - 1).square().mean()
        (critic(made).mean() - critic(real).mean() + 10 * penalty).backward()
        phase(f"critic {step}")
        adams[1].step()
        adams[1].zero_grad()
        (-critic(maker(z)).mean()).backward()
        adams[0].step()
        adams[0].zero_grad()
        phase(f"maker {step}")


@fresh
def vector_quantization(phase: Phase) -> None:
    encoder = nn.Sequential(
        nn.Conv2d(3, 96, 4, 2, 1), nn.ReLU(), nn.Conv2d(96, 192, 4, 2, 1), nn.ReLU(), nn.Conv2d(192, 64, 3, padding=1)
    ).cuda()
    book = nn.Embedding(1024, 64).cuda()
    decoder = nn.Sequential(
        nn.Conv2d(64, 192, 3, padding=1), nn.ReLU(), nn.ConvTranspose2d(192, 96, 4, 2, 1), nn.ReLU(),
        nn.ConvTranspose2d(96, 3, 4, 2, 1),
    ).cuda()  # fmt: skip
    adam = torch.optim.Adam([*encoder.parameters(), *book.parameters(), *decoder.parameters()])
    phase("built")
    for step in range(2):
        x = torch.randn(20, 3, 128, 128, device="cuda")
        z = encoder(x).permute(0, 2, 3, 1).contiguous()
        chosen = torch.cdist(z.view(-1, 64), book.weight).argmin(1)
        q = book(chosen).view_as(z)
        loss = F.mse_loss(q, z.detach()) + 0.25 * F.mse_loss(q.detach(), z)
        q = z + (q - z).detach()
        loss = loss + F.l1_loss(decoder(q.permute(0, 3, 1, 2)), x)
        phase(f"forward {step}")
        loss.backward()
        phase(f"backward {step}")
        adam.step()
        adam.zero_grad()
        phase(f"step {step}")


@fresh
def separated_video(phase: Phase) -> None:
    """Convolutions in space and then in time."""
    layers: list[nn.Module] = []
    inside = 3
    for out, stride in ((32, 1), (64, 2), (128, 2)):
        layers += [
            nn.Conv3d(inside, out, (1, 3, 3), (1, stride, stride), (0, 1, 1), bias=False), nn.BatchNorm3d(out),
            nn.ReLU(inplace=True), nn.Conv3d(out, out, (3, 1, 1), (stride, 1, 1), (1, 0, 0), bias=False),
            nn.BatchNorm3d(out), nn.ReLU(inplace=True),
        ]  # fmt: skip
        inside = out
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(128, 50)).cuda()
    adagrad = torch.optim.Adagrad(net.parameters())
    phase("built")
    for step in range(2):
        x, y = torch.randn(4, 3, 16, 80, 80, device="cuda"), torch.randint(0, 50, (4,), device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(net(x), y)
        loss.backward()
        phase(f"backward {step}")
        adagrad.step()
        adagrad.zero_grad()
        phase(f"step {step}")


@fresh
def volumes_with_skips(phase: Phase) -> None:
    class Double(nn.Sequential):
        def __init__(self, inside: int, out: int):
            super().__init__(
                nn.Conv3d(inside, out, 3, padding=1), nn.GroupNorm(8, out), nn.ReLU(),
                nn.Conv3d(out, out, 3, padding=1), nn.GroupNorm(8, out), nn.ReLU(),
            )  # fmt: skip

    down = nn.ModuleList((Double(2, 16), Double(16, 32), Double(32, 64))).cuda()
    up = nn.ModuleList((Double(96, 32), Double(48, 16))).cuda()
    head = nn.Conv3d(16, 3, 1).cuda()
    parameters = [*down.parameters(), *up.parameters(), *head.parameters()]
    adam = torch.optim.Adam(parameters)
    phase("built")
    for step in range(2):
        x, y = torch.randn(2, 2, 48, 64, 64, device="cuda"), torch.randint(0, 3, (2, 48, 64, 64), device="cuda")
        a = down[0](x)
        b = down[1](F.max_pool3d(a, 2))
        c = down[2](F.max_pool3d(b, 2))
        c = up[0](torch.cat((F.interpolate(c, scale_factor=2, mode="trilinear"), b), 1))
        c = up[1](torch.cat((F.interpolate(c, scale_factor=2, mode="trilinear"), a), 1))
        p = head(c).softmax(1)
        truth = F.one_hot(y, 3).permute(0, 4, 1, 2, 3).float()
        dice = 1 - (2 * (p * truth).sum((2, 3, 4)) + 1) / ((p + truth).sum((2, 3, 4)) + 1)
        phase(f"forward {step}")
        dice.mean().backward()
        phase(f"backward {step}")
        adam.step()
        adam.zero_grad()
        phase(f"step {step}")
        del a, b, c, p, truth, dice


@fresh
def style_of_an_image(phase: Phase) -> None:
    layers: list[nn.Module] = []
    inside = 3
    for out in (64, 64, 0, 128, 128, 0, 256, 256):
        layers += [nn.Conv2d(inside, out, 3, padding=1), nn.ReLU()] if out else [nn.AvgPool2d(2)]
        inside = out or inside
    net = nn.Sequential(*layers).cuda().requires_grad_(False).eval()
    image = torch.rand(1, 3, 384, 384, device="cuda", requires_grad=True)
    style = torch.rand(1, 3, 384, 384, device="cuda")
    adam = torch.optim.Adam([image], lr=0.02)
    phase("built")

    def grams(x):
        found = []
        for layer in net:
            x = layer(x)
            if isinstance(layer, nn.ReLU):
                flat = x.flatten(2)
                found.append(flat @ flat.transpose(1, 2) / flat.size(2))
        return found

    wanted = grams(style)
    phase("style")
    for step in range(3):
        sum(F.mse_loss(a, b) for a, b in zip(grams(image), wanted, strict=True)).backward()
        adam.step()
        adam.zero_grad()
        phase(f"step {step}")


@fresh
def super_resolution(phase: Phase) -> None:
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Conv2d(64, 64, 3, padding=1), nn.Conv2d(64, 64, 3, padding=1)

        def forward(self, x):
            return x + 0.1 * self.b(F.relu(self.a(x)))

    net = nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), *(Block() for _ in range(8)), nn.Conv2d(64, 256, 3, padding=1),
        nn.PixelShuffle(2), nn.PReLU(), nn.Conv2d(64, 3, 9, padding=4),
    ).cuda()  # fmt: skip
    adam = torch.optim.Adam(net.parameters(), fused=True)
    phase("built")
    for step in range(2):
        small = torch.rand(16, 3, 72, 72, device="cuda")
        large = F.interpolate(small, scale_factor=2, mode="bicubic")
        F.l1_loss(net(small), large).backward()
        phase(f"backward {step}")
        adam.step()
        adam.zero_grad()
        phase(f"step {step}")


@fresh
def triplets(phase: Phase) -> None:
    net = nn.Sequential(
        conv_norm(1, 32, 5), nn.MaxPool2d(2), conv_norm(32, 64, 3), conv_norm(64, 64, 3), nn.MaxPool2d(2),
        conv_norm(64, 128, 3, stride=2), nn.AdaptiveMaxPool2d(2), nn.Flatten(), nn.Linear(512, 128),
    ).cuda()  # fmt: skip
    optimizer = torch.optim.Adadelta(net.parameters())
    phase("built")
    for step in range(2):
        triple = [F.normalize(net(torch.randn(40, 1, 105, 105, device="cuda"))) for _ in range(3)]
        loss = F.triplet_margin_loss(*triple, margin=0.3)
        phase(f"forward {step}")
        loss.backward()
        phase(f"backward {step}")
        optimizer.step()
        optimizer.zero_grad()
        phase(f"step {step}")
        del triple


@fresh
def mixer(phase: Phase) -> None:
    class Block(nn.Module):
        def __init__(self, width=384, tokens=196):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.tokens = nn.Sequential(nn.Linear(tokens, 192), nn.GELU(), nn.Linear(192, tokens))
            self.channels = nn.Sequential(nn.Linear(width, 1536), nn.GELU(), nn.Linear(1536, width))

        def forward(self, x):
            x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
            return x + self.channels(self.norm2(x))

    patches = nn.Conv2d(3, 384, 16, 16).cuda()
    body = nn.Sequential(*(Block() for _ in range(5)), nn.LayerNorm(384)).cuda()
    head = nn.Linear(384, 100).cuda()
    radam = torch.optim.RAdam([*patches.parameters(), *body.parameters(), *head.parameters()])
    phase("built")
    for step in range(2):
        x = torch.randn(24, 3, 224, 224, device="cuda")
        y = torch.randint(0, 100, (24,), device="cuda")
        F.cross_entropy(head(body(patches(x).flatten(2).mT).mean(1)), y).backward()
        phase(f"backward {step}")
        radam.step()
        radam.zero_grad()
        phase(f"step {step}")
