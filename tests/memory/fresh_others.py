"""Sound, recurrence, graphs, recommendation, physics and control, recorded before any rule had seen them."""

from __future__ import annotations

import copy
import itertools
import math

import torch
from fresh import fresh
from torch import nn
from torch.nn import functional as F
from workloads import Phase


@fresh
def masked_audio(phase: Phase) -> None:
    layers: list[nn.Module] = []
    inside = 1
    for out, kernel, stride in ((256, 10, 5), (256, 3, 2), (256, 3, 2), (256, 3, 2), (256, 2, 2)):
        layers += [nn.Conv1d(inside, out, kernel, stride, bias=False), nn.GroupNorm(1, out), nn.GELU()]
        inside = out
    features = nn.Sequential(*layers).cuda()
    place = nn.Conv1d(256, 256, 31, padding=15, groups=16).cuda()
    block = nn.TransformerEncoderLayer(256, 4, 1024, 0.1, "gelu", batch_first=True)
    encoder = nn.TransformerEncoder(block, 4).cuda()
    head = nn.Linear(256, 320).cuda()
    parameters = [p for m in (features, place, encoder, head) for p in m.parameters()]
    adam = torch.optim.AdamW(parameters, lr=5e-4)
    phase("built")
    for step in range(2):
        wave = torch.randn(6, 1, 48_000, device="cuda")
        with torch.autocast("cuda", torch.float16):
            x = features(wave)
            x = (x + F.gelu(place(x))).transpose(1, 2)
            loss = F.cross_entropy(
                head(encoder(x)).flatten(0, 1), torch.randint(0, 320, (6 * x.size(1),), device="cuda")
            )
        phase(f"forward {step}")
        loss.backward()
        phase(f"backward {step}")
        nn.utils.clip_grad_norm_(parameters, 1.0)
        adam.step()
        adam.zero_grad()
        phase(f"step {step}")


@fresh
def spoken_from_text(phase: Phase) -> None:
    """A bidirectional LSTM over packed text, and a loop of LSTM cells with attention."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.letters = nn.Embedding(80, 256)
            self.encoder = nn.LSTM(256, 192, batch_first=True, bidirectional=True)
            self.attention, self.decoder = nn.LSTMCell(80 + 384, 512), nn.LSTMCell(512 + 384, 512)
            self.query, self.memory, self.score = nn.Linear(512, 128), nn.Linear(384, 128), nn.Linear(128, 1)
            self.frame = nn.Linear(512 + 384, 80)

        def forward(self, text, lengths, frames):
            packed = nn.utils.rnn.pack_padded_sequence(self.letters(text), lengths, batch_first=True)
            memory, _ = nn.utils.rnn.pad_packed_sequence(self.encoder(packed)[0], batch_first=True)
            keys = self.memory(memory)
            context = memory.new_zeros(memory.size(0), 384)
            a = b = None
            made = []
            for frame in frames.unbind(1):
                a = self.attention(torch.cat((frame, context), 1), a)
                weights = self.score(torch.tanh(self.query(a[0])[:, None] + keys)).softmax(1)
                context = (weights * memory).sum(1)
                b = self.decoder(torch.cat((F.dropout(a[0], 0.1), context), 1), b)
                made.append(self.frame(torch.cat((b[0], context), 1)))
            return torch.stack(made, 1)

    net = Net().cuda()
    adam = torch.optim.Adam(net.parameters())
    phase("built")
    for step in range(2):
        lengths = torch.arange(90, 90 - 2 * 24, -2)
        text, frames = torch.randint(0, 80, (24, 90), device="cuda"), torch.randn(24, 60, 80, device="cuda")
        loss = F.mse_loss(net(text, lengths, frames), frames)
        phase(f"forward {step}")
        loss.backward()
        phase(f"backward {step}")
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        adam.step()
        adam.zero_grad()
        phase(f"step {step}")


@fresh
def heard_speech(phase: Phase) -> None:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.images = nn.Sequential(
                nn.Conv2d(1, 32, (41, 11), (2, 2), (20, 5), bias=False), nn.BatchNorm2d(32), nn.Hardtanh(0, 20),
                nn.Conv2d(32, 32, (21, 11), (2, 1), (10, 5), bias=False), nn.BatchNorm2d(32), nn.Hardtanh(0, 20),
            )  # fmt: skip
            self.network = nn.GRU(32 * 41, 400, 3, bidirectional=True)
            self.head = nn.Linear(800, 29)

        def forward(self, x):
            x = self.images(x).flatten(1, 2).permute(2, 0, 1)
            return self.head(self.network(x)[0]).float().log_softmax(-1)

    net = Net().cuda()
    sgd = torch.optim.SGD(net.parameters(), lr=3e-4, momentum=0.9, nesterov=True)
    phase("built")
    for step in range(2):
        x, y = torch.randn(10, 1, 161, 300, device="cuda"), torch.randint(1, 29, (10, 40), device="cuda")
        p = net(x)
        loss = F.ctc_loss(p, y, torch.full((10,), 150), torch.full((10,), 40), zero_infinity=True)
        phase(f"forward {step}")
        loss.backward()
        phase(f"backward {step}")
        sgd.step()
        sgd.zero_grad()
        phase(f"step {step}")
        del p


@fresh
def truncated_backpropagation(phase: Phase) -> None:
    words = nn.Embedding(12_000, 320).cuda()
    layers = nn.ModuleList((nn.LSTM(320, 900), nn.LSTM(900, 900), nn.LSTM(900, 320))).cuda()
    bias = nn.Parameter(torch.zeros(12_000, device="cuda"))
    parameters = [bias, *words.parameters(), *layers.parameters()]
    sgd = torch.optim.ASGD(parameters, lr=10.0)
    states: list = [None, None, None]
    phase("built")
    for step in range(4):
        ids = torch.randint(0, 12_000, (70 - 5 * step, 20), device="cuda")
        x, new = words(ids), []
        for layer, state in zip(layers, states, strict=True):
            x, after = layer(F.dropout(x, 0.3), state)
            new.append(tuple(t.detach() for t in after))
        states = new
        loss = F.cross_entropy(F.linear(x, words.weight, bias).flatten(0, 1), ids.flatten()) + 2e-3 * x.pow(2).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 0.25)
        sgd.step()
        sgd.zero_grad()
        phase(f"step {step}")


@fresh
def gru_classifier_bf16(phase: Phase) -> None:
    words = nn.Embedding(30_000, 200, padding_idx=0).to("cuda", torch.bfloat16)
    network = nn.GRU(200, 300, 2, batch_first=True, bidirectional=True, dropout=0.3).to("cuda", torch.bfloat16)
    head = nn.Linear(600, 5).to("cuda", torch.bfloat16)
    adam = torch.optim.Adamax([*words.parameters(), *network.parameters(), *head.parameters()])
    phase("built")
    for step in range(2):
        ids, y = torch.randint(1, 30_000, (48, 180), device="cuda"), torch.randint(0, 5, (48,), device="cuda")
        lengths = 180 - torch.arange(48) * 3 % 160
        packed = nn.utils.rnn.pack_padded_sequence(words(ids), lengths, batch_first=True, enforce_sorted=False)
        states = network(packed)[1]
        F.cross_entropy(head(torch.cat((states[-1], states[-2]), 1)).float(), y).backward()
        phase(f"backward {step}")
        adam.step()
        adam.zero_grad()
        phase(f"step {step}")


@fresh
def dilated_waves(phase: Phase) -> None:
    class Net(nn.Module):
        def __init__(self, width=64):
            super().__init__()
            self.enter = nn.Conv1d(1, width, 1)
            dilations = [2**i for i in range(8)] * 2
            self.gates = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=d) for d in dilations)
            self.outs = nn.ModuleList(nn.Conv1d(width, 2 * width, 1) for _ in dilations)
            self.leave = nn.Sequential(nn.ReLU(), nn.Conv1d(width, 256, 1), nn.ReLU(), nn.Conv1d(256, 256, 1))

        def forward(self, x):
            x, total = self.enter(x), 0.0
            for gate, out in zip(self.gates, self.outs, strict=True):
                a, b = gate(F.pad(x, (gate.dilation[0], 0))).chunk(2, 1)
                more, skip = out(torch.tanh(a) * torch.sigmoid(b)).chunk(2, 1)
                x, total = x + more, total + skip
            return self.leave(total)

    net = Net().cuda()
    adam = torch.optim.Adam(net.parameters())
    phase("built")
    for step in range(2):
        wave, codes = torch.randn(4, 1, 8000, device="cuda"), torch.randint(0, 256, (4, 8000), device="cuda")
        F.cross_entropy(net(wave), codes).backward()
        phase(f"backward {step}")
        adam.step()
        adam.zero_grad()
        phase(f"step {step}")


@fresh
def clicks(phase: Phase) -> None:
    """Bags with sparse gradients, and products of pairs of features."""
    bags = nn.ModuleList(
        nn.EmbeddingBag(n, 64, mode=m, sparse=True) for n, m in ((200_000, "sum"), (80_000, "mean"), (5000, "sum"))
    ).cuda()
    bottom = nn.Sequential(nn.Linear(13, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU()).cuda()
    top = nn.Sequential(nn.Linear(64 + 6, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1)).cuda()
    sparse = torch.optim.SGD(bags.parameters(), lr=0.1)
    dense = torch.optim.Adagrad([*bottom.parameters(), *top.parameters()], lr=0.01)
    rows, columns = torch.tril_indices(4, 4, -1, device="cuda")
    phase("built")
    for step in range(2):
        numbers, clicked = torch.randn(8192, 13, device="cuda"), torch.rand(8192, device="cuda").round()
        x = bottom(numbers)
        parts = [x]
        for bag, n in zip(bags, (200_000, 80_000, 5000), strict=True):
            offsets = torch.arange(0, 8192 * 12, 12, device="cuda")
            parts.append(bag(torch.randint(0, n, (8192 * 12,), device="cuda"), offsets))
        z = torch.stack(parts, 1)
        pairs = torch.bmm(z, z.transpose(1, 2))[:, rows, columns]
        loss = F.binary_cross_entropy_with_logits(top(torch.cat((x, pairs), 1)).squeeze(1), clicked)
        phase(f"forward {step}")
        loss.backward()
        phase(f"backward {step}")
        sparse.step()
        dense.step()
        sparse.zero_grad()
        dense.zero_grad()
        phase(f"step {step}")


@fresh
def two_towers(phase: Phase) -> None:
    """Images against texts: a large matrix of logits, with a learned temperature."""
    users = nn.Sequential(nn.EmbeddingBag(60_000, 256), nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)).cuda()
    items = nn.Sequential(nn.Linear(768, 1024), nn.GELU(), nn.LayerNorm(1024), nn.Linear(1024, 256)).cuda()
    scale = nn.Parameter(torch.tensor(math.log(1 / 0.07), device="cuda"))
    adam = torch.optim.AdamW([scale, *users.parameters(), *items.parameters()])
    phase("built")
    for step in range(2):
        a = F.normalize(users(torch.randint(0, 60_000, (6000, 20), device="cuda")), dim=-1)
        b = F.normalize(items(torch.randn(6000, 768, device="cuda")), dim=-1)
        logits = scale.exp() * a @ b.t()
        same = torch.arange(6000, device="cuda")
        loss = (F.cross_entropy(logits, same) + F.cross_entropy(logits.t(), same)) / 2
        phase(f"forward {step}")
        loss.backward()
        phase(f"backward {step}")
        adam.step()
        adam.zero_grad()
        scale.data.clamp_(0, 4.6)
        phase(f"step {step}")
        del a, b, logits


@fresh
def attention_over_edges(phase: Phase) -> None:
    class Layer(nn.Module):
        def __init__(self, inside: int, out: int, heads: int):
            super().__init__()
            self.weight, self.source, self.target = (
                nn.Linear(inside, heads * out, bias=False), nn.Parameter(torch.randn(heads, out)),
                nn.Parameter(torch.randn(heads, out)),
            )  # fmt: skip
            self.heads = heads

        def forward(self, x, a, b):
            n = x.size(0)
            h = self.weight(x).view(n, self.heads, -1)
            score = F.leaky_relu((h * self.source).sum(-1)[a] + (h * self.target).sum(-1)[b], 0.2)
            high = score.new_full((n, self.heads), -1e9).scatter_reduce(0, b[:, None].expand_as(score), score, "amax")
            weight = (score - high[b]).exp()
            total = torch.zeros_like(high).index_add(0, b, weight)
            weight = weight / (total[b] + 1e-9)
            out = torch.zeros_like(h).index_add(0, b, h[a] * weight[..., None])
            return F.elu(out.flatten(1))

    layers = nn.ModuleList((Layer(300, 32, 6), Layer(192, 32, 6), Layer(192, 47, 1))).cuda()
    x, y = torch.randn(15_000, 300, device="cuda"), torch.randint(0, 47, (15_000,), device="cuda")
    a, b = (torch.randint(0, 15_000, (120_000,), device="cuda") for _ in range(2))
    adam = torch.optim.Adam(layers.parameters(), weight_decay=5e-4)
    phase("built")
    for step in range(2):
        h = x
        for layer in layers:
            h = layer(F.dropout(h, 0.4), a, b)
        F.cross_entropy(h, y).backward()
        phase(f"backward {step}")
        adam.step()
        adam.zero_grad()
        phase(f"step {step}")
        del h


@fresh
def wave_equation(phase: Phase) -> None:
    class Sine(nn.Module):
        def __init__(self, inside: int, out: int):
            super().__init__()
            self.linear = nn.Linear(inside, out)

        def forward(self, x):
            return torch.sin(30 * self.linear(x))

    net = nn.Sequential(Sine(3, 192), Sine(192, 192), Sine(192, 192), nn.Linear(192, 1)).cuda()
    adam = torch.optim.Adam(net.parameters())
    phase("built")
    for step in range(2):
        x = torch.rand(12_000, 3, device="cuda", requires_grad=True)
        u = net(x)
        (slope,) = torch.autograd.grad(u, x, torch.ones_like(u), create_graph=True)
        curves = []
        for i in range(3):
            part = slope[:, i : i + 1]
            (second,) = torch.autograd.grad(part, x, torch.ones_like(part), create_graph=True)
            curves.append(second[:, i])
        loss = (curves[2] - curves[0] - curves[1]).square().mean()
        phase(f"forward {step}")
        loss.backward()
        phase(f"backward {step}")
        adam.step()
        adam.zero_grad()
        phase(f"step {step}")
        del u, slope, curves, part, second


@fresh
def rollouts_and_updates(phase: Phase) -> None:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(),
                nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(),
            )  # fmt: skip
            self.policy, self.value = nn.Linear(512, 12), nn.Linear(512, 1)

        def forward(self, frames):
            h = self.body(frames.float() / 255)
            return self.policy(h).log_softmax(-1), self.value(h).squeeze(-1)

    net = Net().cuda()
    adam = torch.optim.Adam(net.parameters(), eps=1e-5)
    frames = torch.zeros(32, 16, 4, 84, 84, dtype=torch.uint8, device="cuda")
    values, likelihoods, rewards = (torch.zeros(32, 16, device="cuda") for _ in range(3))
    actions = torch.zeros(32, 16, dtype=torch.long, device="cuda")
    phase("built")
    for round_ in range(2):
        for t in range(32):
            frames[t] = torch.randint(0, 255, (16, 4, 84, 84), dtype=torch.uint8, device="cuda")
            with torch.no_grad():
                p, values[t] = net(frames[t])
            actions[t] = torch.multinomial(p.exp(), 1).squeeze(1)
            likelihoods[t] = p.gather(1, actions[t][:, None]).squeeze(1)
        phase(f"rollout {round_}")
        gains = rewards.flip(0).cumsum(0).flip(0) - values
        for rows in torch.randperm(512, device="cuda").chunk(4):
            p, v = net(frames.flatten(0, 1)[rows])
            ratio = (p.gather(1, actions.flatten()[rows, None]).squeeze(1) - likelihoods.flatten()[rows]).exp()
            gain = gains.flatten()[rows]
            kept = torch.min(ratio * gain, ratio.clamp(0.9, 1.1) * gain)
            loss = (
                -kept.mean() + 0.5 * (v - values.flatten()[rows]).square().mean() + 0.01 * (p.exp() * p).sum(-1).mean()
            )
            adam.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            adam.step()
        phase(f"update {round_}")


@fresh
def soft_actor_critic(phase: Phase) -> None:
    def mlp(*sizes: int) -> nn.Sequential:
        layers = [m for a, b in itertools.pairwise(sizes) for m in (nn.Linear(a, b), nn.ReLU())]
        return nn.Sequential(*layers[:-1]).cuda()

    actor, critics = mlp(60, 1024, 1024, 24), nn.ModuleList(mlp(72, 1024, 1024, 1) for _ in range(2))
    targets = copy.deepcopy(critics).requires_grad_(False)
    replay = [torch.randn(100_000, n, device="cuda") for n in (60, 12, 60, 1)]
    adams = [torch.optim.Adam(m.parameters(), lr=3e-4) for m in (actor, critics)]
    phase("built")

    def act(states):
        mean, spread = actor(states).chunk(2, 1)
        noise = torch.distributions.Normal(mean, spread.clamp(-5, 2).exp())
        raw = noise.rsample()
        return raw.tanh(), (noise.log_prob(raw) - torch.log(1 - raw.tanh().square() + 1e-6)).sum(1, keepdim=True)

    for step in range(3):
        rows = torch.randint(0, 100_000, (4096,), device="cuda")
        s, a, after, reward = (part[rows] for part in replay)
        with torch.no_grad():
            b, entropy = act(after)
            best = torch.min(*(c(torch.cat((after, b), 1)) for c in targets)) - 0.2 * entropy
            goal = reward + 0.99 * best
        loss = sum(F.mse_loss(c(torch.cat((s, a), 1)), goal) for c in critics)
        adams[1].zero_grad()
        loss.backward()
        adams[1].step()
        b, entropy = act(s)
        adams[0].zero_grad()
        (0.2 * entropy - torch.min(*(c(torch.cat((s, b), 1)) for c in critics))).mean().backward()
        adams[0].step()
        with torch.no_grad():
            for p, q in zip(targets.parameters(), critics.parameters(), strict=True):
                p.lerp_(q, 0.005)
        phase(f"step {step}")


@fresh
def radiance_field(phase: Phase) -> None:
    net = nn.Sequential(
        nn.Linear(63, 256),
        nn.ReLU(),
        *(m for _ in range(5) for m in (nn.Linear(256, 256), nn.ReLU())),
        nn.Linear(256, 4),
    ).cuda()
    adam = torch.optim.Adam(net.parameters(), lr=5e-4)
    phase("built")
    for step in range(2):
        rays = torch.randn(2048, 2, 3, device="cuda")
        depth = torch.linspace(2, 6, 64, device="cuda") + torch.rand(2048, 64, device="cuda") * 0.05
        x = rays[:, None, 0] + rays[:, None, 1] * depth[..., None]
        waves = x[..., None] * 2.0 ** torch.arange(10, device="cuda")
        code = torch.cat((x, waves.sin().flatten(-2), waves.cos().flatten(-2)), -1)
        raw = torch.cat([net(part) for part in code.flatten(0, 1).split(32_768)]).view(2048, 64, 4)
        solid = 1 - torch.exp(-F.relu(raw[..., 3]) * 0.06)
        left = torch.cumprod(torch.cat((torch.ones_like(solid[:, :1]), 1 - solid + 1e-10), 1), 1)[:, :-1]
        colour = ((solid * left)[..., None] * raw[..., :3].sigmoid()).sum(1)
        phase(f"forward {step}")
        F.mse_loss(colour, torch.rand_like(colour)).backward()
        phase(f"backward {step}")
        adam.step()
        adam.zero_grad()
        phase(f"step {step}")
        del raw, solid, left, colour, code, waves


@fresh
def points_and_neighbours(phase: Phase) -> None:
    layers = nn.ModuleList(
        nn.Sequential(nn.Conv2d(2 * a, b, 1, bias=False), nn.BatchNorm2d(b), nn.LeakyReLU(0.2))
        for a, b in ((3, 64), (64, 64), (64, 128))
    ).cuda()
    head = nn.Sequential(nn.Conv1d(256, 512, 1), nn.BatchNorm1d(512), nn.LeakyReLU(0.2)).cuda()
    last = nn.Linear(1024, 40).cuda()
    sgd = torch.optim.SGD([*layers.parameters(), *head.parameters(), *last.parameters()], lr=0.1, momentum=0.9)
    phase("built")
    for step in range(2):
        x, kept = torch.randn(8, 3, 1024, device="cuda"), []
        for layer in layers:
            near = (-torch.cdist(x.mT, x.mT)).topk(20, dim=-1).indices
            rows = torch.arange(8, device="cuda")[:, None, None]
            found = x.mT[rows, near]
            pairs = torch.cat((found - x.mT[:, :, None], x.mT[:, :, None].expand_as(found)), -1)
            x = layer(pairs.permute(0, 3, 1, 2)).amax(-1)
            kept.append(x)
        h = head(torch.cat(kept, 1))
        y = torch.randint(0, 40, (8,), device="cuda")
        F.cross_entropy(last(torch.cat((h.amax(-1), h.mean(-1)), 1)), y).backward()
        phase(f"backward {step}")
        sgd.step()
        sgd.zero_grad()
        phase(f"step {step}")
        del h, x, kept, pairs, found, near


@fresh
def forecasts_in_double(phase: Phase) -> None:
    blocks = nn.ModuleList(
        nn.Sequential(nn.Linear(480, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 480 + 96))
        for _ in range(6)
    ).to("cuda", torch.float64)
    adam = torch.optim.NAdam(blocks.parameters())
    phase("built")
    for step in range(2):
        left, total = torch.randn(2048, 480, device="cuda", dtype=torch.float64), 0.0
        for block in blocks:
            back, ahead = block(left).split((480, 96), 1)
            left, total = left - back, total + ahead
        F.huber_loss(total, torch.zeros_like(total)).backward()
        phase(f"backward {step}")
        adam.step()
        adam.zero_grad()
        phase(f"step {step}")
        del left, total, back, ahead
