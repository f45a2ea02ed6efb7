"""Language models unlike those of the other files, recorded before any rule had seen them."""

from __future__ import annotations

import math

import torch
from fresh import fresh
from torch import nn
from torch.nn import functional as F
from workloads import Phase


def rotate(x: torch.Tensor, start: int = 0) -> torch.Tensor:
    """Rotary positions of [batch, heads, length, size]."""
    half = x.size(-1) // 2
    speed = 1.0 / 500_000 ** (torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = torch.outer(torch.arange(start, start + x.size(2), device=x.device, dtype=torch.float32), speed)
    a, b = x.float().chunk(2, -1)
    return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1).type_as(x)


class GroupedAttention(nn.Module):
    def __init__(self, width: int, heads: int, groups: int, window: int | None = None):
        super().__init__()
        self.size, self.heads, self.groups, self.window = width // heads, heads, groups, window
        self.wq = nn.Linear(width, width, bias=False)
        self.wkv = nn.Linear(width, 2 * groups * self.size, bias=False)
        self.wo = nn.Linear(width, width, bias=False)

    def forward(self, x, cache=None, start=0):
        b, n, _ = x.shape
        q = rotate(self.wq(x).view(b, n, self.heads, self.size).transpose(1, 2), start)
        k, v = self.wkv(x).view(b, n, 2, self.groups, self.size).permute(2, 0, 3, 1, 4)
        k = rotate(k, start)
        if cache is not None:
            k, v = cache.update(k, v, start)
        if self.window is None:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=n > 1 and start == 0, enable_gqa=True)
        else:
            at = torch.arange(n, device=x.device)
            near = (at[:, None] >= at) & (at[:, None] - at < self.window)
            k, v = (t.repeat_interleave(self.heads // self.groups, dim=1) for t in (k, v))
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=near)
        return self.wo(y.transpose(1, 2).flatten(2))


class GatedLayer(nn.Module):
    def __init__(self, width: int, heads: int, groups: int, inner: int, window: int | None = None):
        super().__init__()
        self.attention = GroupedAttention(width, heads, groups, window)
        self.before, self.between = nn.RMSNorm(width), nn.RMSNorm(width)
        self.w1, self.w3 = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.w2 = nn.Linear(inner, width, bias=False)

    def forward(self, x, cache=None, start=0):
        x = x + self.attention(self.before(x), cache, start)
        y = self.between(x)
        return x + self.w2(F.silu(self.w1(y)) * self.w3(y))


class Mistral(nn.Module):
    def __init__(self, vocab, width, heads, groups, inner, layers, window=None, tied=False):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.layers = nn.ModuleList(GatedLayer(width, heads, groups, inner, window) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.lm_head = nn.Linear(width, vocab, bias=False)
        if tied:
            self.lm_head.weight = self.embed.weight

    def forward(self, ids, caches=None, start=0):
        x = self.embed(ids)
        for i, layer in enumerate(self.layers):
            x = layer(x, caches[i] if caches else None, start)
        return self.lm_head(self.norm(x))


def shifted_loss(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits[:, :-1].reshape(-1, logits.size(-1)).float(), ids[:, 1:].reshape(-1))


@fresh
def sliding_window_tied(phase: Phase) -> None:
    net = Mistral(24_000, 704, 11, 11, 1900, 4, window=128, tied=True).cuda()
    phase("built")
    adam = torch.optim.AdamW(net.parameters(), lr=3e-4, betas=(0.9, 0.95))
    for step in range(2):
        ids = torch.randint(0, 24_000, (3, 640), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = shifted_loss(net(ids), ids)
        phase(f"forward {step}")
        loss.backward()
        phase(f"backward {step}")
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        adam.step()
        adam.zero_grad()
        phase(f"step {step}")


@fresh
def grouped_queries_bf16(phase: Phase) -> None:
    net = Mistral(32_000, 1024, 16, 4, 2816, 6).to(device="cuda", dtype=torch.bfloat16)
    phase("built")
    adam = torch.optim.AdamW(net.parameters(), lr=3e-4, fused=True)
    for step in range(2):
        for _ in range(2):
            ids = torch.randint(0, 32_000, (2, 1536), device="cuda")
            (shifted_loss(net(ids), ids) / 2).backward()
        phase(f"backward {step}")
        norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        adam.step()
        adam.zero_grad(set_to_none=False)
        phase(f"step {step}")
        del norm


class StaticCache:
    def __init__(self, *sizes: int, dtype: torch.dtype):
        self.k, self.v = (torch.zeros(sizes, device="cuda", dtype=dtype) for _ in range(2))

    def update(self, k, v, start):
        at = torch.arange(start, start + k.size(2), device="cuda")
        self.k.index_copy_(2, at, k)
        self.v.index_copy_(2, at, v)
        return self.k[:, :, : start + k.size(2)], self.v[:, :, : start + k.size(2)]


class GrowingCache:
    k = v = None

    def update(self, k, v, start):
        self.k = k if self.k is None else torch.cat((self.k, k), dim=2)
        self.v = v if self.v is None else torch.cat((self.v, v), dim=2)
        return self.k, self.v


@fresh
def static_cache_decoding(phase: Phase) -> None:
    net = Mistral(50_000, 1152, 18, 6, 3072, 8).cuda().half().eval()
    caches = [StaticCache(4, 6, 1200, 64, dtype=torch.float16) for _ in range(8)]
    phase("built")
    with torch.inference_mode():
        ids = torch.randint(0, 50_000, (4, 900), device="cuda")
        logits = net(ids, caches)[:, -1]
        phase("prompt")
        done = [ids]
        for i in range(30):
            ordered, order = logits.float().sort(dim=-1, descending=True)
            ordered[ordered.softmax(-1).cumsum(-1) > 0.9] = -1e9
            token = order.gather(-1, torch.multinomial(ordered.softmax(-1), 1))
            done.append(token)
            logits = net(token, caches, 900 + i)[:, -1]
        torch.cat(done, 1).cpu()
        phase("tokens")


@fresh
def growing_cache_float32(phase: Phase) -> None:
    net = Mistral(18_000, 640, 10, 2, 1700, 5).cuda().eval()
    phase("built")
    for prompt, count in ((70, 60), (333, 20)):
        with torch.no_grad():
            caches = [GrowingCache() for _ in range(5)]
            ids = torch.randint(0, 18_000, (7, prompt), device="cuda")
            logits = net(ids, caches)
            for i in range(count):
                token = logits[:, -1:].argmax(-1)
                logits = net(token, caches, prompt + i)
        phase(f"prompt of {prompt}")
        del caches, logits
        torch.cuda.empty_cache()
        phase(f"emptied after {prompt}")


class Dispatched(nn.Module):
    """Experts of fixed capacity, with dispatch by one-hot products."""

    def __init__(self, width: int, inner: int, experts: int):
        super().__init__()
        self.gate = nn.Linear(width, experts, bias=False)
        self.w1 = nn.Parameter(torch.randn(experts, width, inner) / math.sqrt(width))
        self.w2 = nn.Parameter(torch.randn(experts, inner, width) / math.sqrt(inner))
        self.experts = experts

    def forward(self, x):
        b, n, c = x.shape
        flat = x.reshape(-1, c)
        capacity = 2 * flat.size(0) // self.experts
        scores = self.gate(flat.float()).softmax(-1)
        best = scores.argmax(-1)
        chosen = F.one_hot(best, self.experts)
        place = chosen.cumsum(0) * chosen - 1
        kept = chosen * (place < capacity)
        slot = F.one_hot(place.clamp(0, capacity - 1), capacity) * kept[..., None]
        dispatch = slot.to(flat.dtype)
        combine = dispatch * scores.to(flat.dtype)[..., None]
        h = torch.einsum("tec,tm->ecm", dispatch, flat)
        h = F.relu(torch.bmm(h, self.w1.to(h.dtype))).square()
        h = torch.bmm(h, self.w2.to(h.dtype))
        balance = (scores.mean(0) * chosen.float().mean(0)).sum() * self.experts
        return torch.einsum("tec,ecm->tm", combine, h).view(b, n, c), balance


@fresh
def experts_of_fixed_capacity(phase: Phase) -> None:
    norms = nn.ModuleList(nn.LayerNorm(512) for _ in range(3))
    net = nn.ModuleList((nn.Embedding(10_000, 512), norms, *(Dispatched(512, 1024, 8) for _ in range(3)))).cuda()
    phase("built")
    adam = torch.optim.Adam(net.parameters())
    for step in range(2):
        ids = torch.randint(0, 10_000, (4, 300), device="cuda")
        x, total = net[0](ids), 0.0
        for norm, layer in zip(net[1], list(net)[2:], strict=True):
            y, balance = layer(norm(x))
            x, total = x + y, total + 0.01 * balance
        (shifted_loss(F.linear(x, net[0].weight), ids) + total).backward()
        phase(f"backward {step}")
        adam.step()
        adam.zero_grad()
        phase(f"step {step}")


class LatentAttention(nn.Module):
    """Keys and values from a low-rank latent, with a rotary part of their own."""

    def __init__(self, width=768, heads=8, latent=192, size=64, rope=32):
        super().__init__()
        self.heads, self.size, self.rope = heads, size, rope
        self.q = nn.Linear(width, heads * (size + rope), bias=False)
        self.down = nn.Linear(width, latent + rope, bias=False)
        self.norm = nn.RMSNorm(latent)
        self.up = nn.Linear(latent, heads * 2 * size, bias=False)
        self.out = nn.Linear(heads * size, width, bias=False)

    def forward(self, x):
        b, n, _ = x.shape
        plain, turned = self.q(x).view(b, n, self.heads, -1).transpose(1, 2).split((self.size, self.rope), -1)
        latent, shared = self.down(x).split((self.down.out_features - self.rope, self.rope), -1)
        k, v = self.up(self.norm(latent)).view(b, n, self.heads, -1).transpose(1, 2).chunk(2, -1)
        shared = rotate(shared[:, None]).expand(-1, self.heads, -1, -1)
        q = torch.cat((plain, rotate(turned)), -1)
        k = torch.cat((k, shared), -1)
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, n, -1))


@fresh
def latent_attention_scaled(phase: Phase) -> None:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(16_000, 768)
            self.layers = nn.ModuleList(
                nn.ModuleList((
                    nn.LayerNorm(768), LatentAttention(), nn.LayerNorm(768),
                    nn.Sequential(nn.Linear(768, 2048), nn.GELU(approximate="tanh"), nn.Linear(2048, 768)),
                )) for _ in range(5)
            )  # fmt: skip
            self.head = nn.Linear(768, 16_000)

        def forward(self, ids):
            x = self.embed(ids)
            for a, attention, b, mlp in self.layers:
                x = x + attention(a(x))
                x = x + mlp(b(x))
            return self.head(x)

    net = Net().cuda()
    scaler = torch.amp.GradScaler()
    sgd = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    phase("built")
    for step in range(3):
        ids = torch.randint(0, 16_000, (5, 384), device="cuda")
        with torch.autocast("cuda", dtype=torch.float16):
            loss = shifted_loss(net(ids), ids)
        scaler.scale(loss).backward()
        phase(f"backward {step}")
        scaler.unscale_(sgd)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(sgd)
        scaler.update()
        sgd.zero_grad()
        phase(f"step {step}")


class TextToTextAttention(nn.Module):
    def __init__(self, width=448, heads=7):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.heads = heads

    def forward(self, x, memory, bias=None):
        q, k, v = (
            t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (self.q(x), self.k(memory), self.v(memory))
        )
        scores = torch.matmul(q, k.transpose(3, 2))
        if bias is not None:
            scores += bias
        weights = F.softmax(scores.float(), dim=-1).type_as(scores)
        weights = F.dropout(weights, p=0.1, training=self.training)
        return self.o(torch.matmul(weights, v).transpose(1, 2).contiguous().flatten(2))


@fresh
def text_to_text_adafactor(phase: Phase) -> None:
    class Net(nn.Module):
        def __init__(self, layers=3, width=448):
            super().__init__()
            self.shared = nn.Embedding(14_000, width)
            self.tables = nn.ModuleList((nn.Embedding(32, 7), nn.Embedding(32, 7)))
            self.encoder, self.decoder = (nn.ModuleList() for _ in range(2))
            for _ in range(layers):
                for stack, kinds in ((self.encoder, 1), (self.decoder, 2)):
                    mlp = nn.Sequential(nn.Linear(width, 1200, bias=False), nn.ReLU(), nn.Dropout(0.1),
                                        nn.Linear(1200, width, bias=False))  # fmt: skip
                    parts = [TextToTextAttention(width) for _ in range(kinds)]
                    stack.append(nn.ModuleList((*(nn.RMSNorm(width) for _ in range(kinds + 1)), *parts, mlp)))

        def bias(self, table, n):
            at = torch.arange(n, device="cuda")
            distance = (at[None, :] - at[:, None]).clamp(-15, 16) + 15
            return table(distance).permute(2, 0, 1).unsqueeze(0)

        def forward(self, a, b):
            x = F.dropout(self.shared(a), 0.1)
            bias = self.bias(self.tables[0], a.size(1))
            for n1, n2, attention, mlp in self.encoder:
                y = n1(x)
                x = x + F.dropout(attention(y, y, bias), 0.1)
                x = x + F.dropout(mlp(n2(x)), 0.1)
            memory, x = x, F.dropout(self.shared(b), 0.1)
            future = torch.full((b.size(1), b.size(1)), float("-inf"), device="cuda").triu(1)
            bias = self.bias(self.tables[1], b.size(1)) + future
            for n1, n2, n3, attention, cross, mlp in self.decoder:
                y = n1(x)
                x = x + F.dropout(attention(y, y, bias), 0.1)
                x = x + F.dropout(cross(n2(x), memory), 0.1)
                x = x + F.dropout(mlp(n3(x)), 0.1)
            return F.linear(x * 448**-0.5, self.shared.weight)

    net = Net().cuda()
    phase("built")
    optimizer = torch.optim.Adafactor(net.parameters(), lr=1e-3)
    for step in range(2):
        a, b = torch.randint(0, 14_000, (6, 230), device="cuda"), torch.randint(0, 14_000, (6, 120), device="cuda")
        loss = F.cross_entropy(net(a, b).view(-1, 14_000), b.view(-1), label_smoothing=0.1)
        phase(f"forward {step}")
        loss.backward()
        phase(f"backward {step}")
        optimizer.step()
        optimizer.zero_grad()
        phase(f"step {step}")


@fresh
def bert_two_groups(phase: Phase) -> None:
    class Layer(nn.Module):
        def __init__(self, width=576, heads=9):
            super().__init__()
            self.query, self.key, self.value, self.dense = (nn.Linear(width, width) for _ in range(4))
            self.up, self.down = nn.Linear(width, 2304), nn.Linear(2304, width)
            self.norm1, self.norm2, self.dropout = nn.LayerNorm(width), nn.LayerNorm(width), nn.Dropout(0.1)
            self.heads = heads

        def forward(self, x, mask):
            split = [f(x).unflatten(-1, (self.heads, 64)).transpose(1, 2) for f in (self.query, self.key, self.value)]
            y = F.scaled_dot_product_attention(*split, attn_mask=mask, dropout_p=0.1)
            x = self.norm1(x + self.dropout(self.dense(y.transpose(1, 2).flatten(2))))
            return self.norm2(x + self.dropout(self.down(F.gelu(self.up(x)))))

    class Bert(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.kinds, self.places = (
                nn.Embedding(20_000, 576),
                nn.Embedding(2, 576),
                nn.Embedding(512, 576),
            )
            self.norm, self.layers = nn.LayerNorm(576), nn.ModuleList(Layer() for _ in range(6))
            self.pooler, self.next = nn.Linear(576, 576), nn.Linear(576, 2)
            self.transform, self.bias = nn.Linear(576, 576), nn.Parameter(torch.zeros(20_000))

        def forward(self, ids, kinds, valid):
            x = self.words(ids) + self.kinds(kinds) + self.places(torch.arange(ids.size(1), device=ids.device))
            x = F.dropout(self.norm(x), 0.1)
            mask = (1.0 - valid[:, None, None, :].to(x.dtype)) * torch.finfo(torch.bfloat16).min
            mask = mask.expand(-1, 1, ids.size(1), -1).to(torch.bfloat16)
            for layer in self.layers:
                x = layer(x, mask)
            words = F.linear(F.gelu(self.transform(x)), self.words.weight, self.bias)
            return words, self.next(self.pooler(x[:, 0]).tanh())

    net = Bert().cuda()
    decayed = [p for p in net.parameters() if p.dim() > 1]
    plain = [p for p in net.parameters() if p.dim() <= 1]
    adam = torch.optim.AdamW([{"params": decayed}, {"params": plain, "weight_decay": 0.0}], lr=1e-4)
    phase("built")
    for step in range(2):
        for part in range(2):
            ids, kinds = torch.randint(0, 20_000, (8, 256), device="cuda"), torch.zeros(8, 256, dtype=torch.long).cuda()
            valid = torch.ones(8, 256, device="cuda")
            with torch.autocast("cuda", torch.bfloat16):
                words, follows = net(ids, kinds, valid)
                loss = F.cross_entropy(words.view(-1, 20_000), ids.view(-1)) + F.cross_entropy(follows, kinds[:, 0])
            (loss / 2).backward()
            phase(f"part {step}.{part}")
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        adam.step()
        adam.zero_grad()
        phase(f"step {step}")
