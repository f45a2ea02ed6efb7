"""Ways of training unlike those of the other files, recorded before any rule had seen them."""

from __future__ import annotations

import torch
from fresh import fresh
from fresh_text import Mistral
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint, checkpoint_sequential
from workloads import Phase


@fresh
def linear_biases_nesterov(phase: Phase) -> None:
    """ALiBi in float32: a mask that is as large as the scores."""
    width, heads = 512, 8
    layers = nn.ModuleList(
        nn.ModuleList((nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width))) for _ in range(4)
    ).cuda()
    slopes = 2.0 ** -torch.arange(1, heads + 1, device="cuda", dtype=torch.float32)
    x = torch.randn(5, 420, width, device="cuda")
    sgd = torch.optim.SGD(layers.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4)
    phase("built")
    for step in range(2):
        at = torch.arange(420, device="cuda")
        bias = (slopes[:, None, None] * (at - at[:, None]).float()).masked_fill(at > at[:, None], -1e30)
        y = x
        for norm, qkv, out in layers:
            q, k, v = qkv(norm(y)).view(5, 420, 3, heads, 64).permute(2, 0, 3, 1, 4)
            y = y + out(F.scaled_dot_product_attention(q, k, v, bias[None]).transpose(1, 2).flatten(2))
        y.pow(2).mean().backward()
        phase(f"backward {step}")
        sgd.step()
        sgd.zero_grad(set_to_none=False)
        phase(f"step {step}")
        del y, q, k, v, bias


@fresh
def optimizer_in_backward(phase: Phase) -> None:
    """Each parameter is updated by a hook as soon as its gradient is there."""
    net = nn.Sequential(*(
        nn.Sequential(nn.LayerNorm(896), nn.Linear(896, 2700), nn.Mish(), nn.Dropout(0.2), nn.Linear(2700, 896))
        for _ in range(8)
    )).cuda()  # fmt: skip
    adams = {p: torch.optim.Adam([p], foreach=False) for p in net.parameters()}

    def update(p: torch.Tensor) -> None:
        adams[p].step()
        adams[p].zero_grad()

    for p in net.parameters():
        p.register_post_accumulate_grad_hook(update)
    phase("built")
    for step in range(3):
        x = torch.randn(3000, 896, device="cuda", requires_grad=True)
        checkpoint_sequential(net, 4, x, use_reentrant=False).abs().mean().backward()
        phase(f"step {step}")


@fresh
def preference_with_reference(phase: Phase) -> None:
    policy = Mistral(12_000, 512, 8, 2, 1408, 4).cuda().bfloat16()
    reference = Mistral(12_000, 512, 8, 2, 1408, 4).cuda().bfloat16().requires_grad_(False)
    rms = torch.optim.RMSprop(policy.parameters(), lr=1e-6, centered=True)
    phase("built")

    def likelihood(net, ids):
        logits = net(ids)[:, :-1].float().log_softmax(-1)
        return logits.gather(2, ids[:, 1:, None]).squeeze(2).sum(-1)

    for step in range(2):
        chosen, rejected = (torch.randint(0, 12_000, (3, 500), device="cuda") for _ in range(2))
        with torch.no_grad():
            baseline = likelihood(reference, chosen) - likelihood(reference, rejected)
        ours = likelihood(policy, chosen) - likelihood(policy, rejected)
        phase(f"forward {step}")
        (-F.logsigmoid(0.1 * (ours - baseline))).mean().backward()
        phase(f"backward {step}")
        rms.step()
        rms.zero_grad()
        phase(f"step {step}")
        del ours, baseline


@fresh
def head_in_chunks(phase: Phase) -> None:
    net = Mistral(40_000, 640, 10, 5, 1800, 3).cuda()
    adam = torch.optim.AdamW(net.parameters(), foreach=True, amsgrad=True)
    phase("built")

    def part(x, ids):
        return F.cross_entropy(net.lm_head(net.norm(x)), ids, reduction="sum")

    for step in range(2):
        ids = torch.randint(0, 40_000, (2, 1024), device="cuda")
        x = net.embed(ids)
        for layer in net.layers:
            x = checkpoint(layer, x, use_reentrant=True)
        losses = [
            checkpoint(part, a, b, use_reentrant=False)
            for a, b in zip(x.flatten(0, 1).split(512), ids.flatten().split(512), strict=True)
        ]
        phase(f"forward {step}")
        torch.stack(losses).sum().div(2048).backward()
        phase(f"backward {step}")
        adam.step()
        adam.zero_grad()
        phase(f"step {step}")
        del losses, x
