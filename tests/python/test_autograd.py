"""Autograd on fakes has the same effects as on real tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from metadata import assert_like_real
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from torchfake import fake_mode, is_fake

DEVICES = ["cpu", "cuda:0", "cuda:1", "xpu:0", "mps:0"]


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, factor)
        ctx.mark_non_differentiable(index := x.argmax(-1))
        return x * factor, index

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        x, factor = ctx.saved_tensors
        return grad * factor, (grad * x).sum()


class Double_(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2


def block() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Dropout(0.1), nn.LayerNorm(8), nn.Linear(8, 4))


def leaf(*shape: int) -> Tensor:
    return torch.randn(shape, requires_grad=True)


def grads_of(module: nn.Module) -> list[Tensor | None]:
    return [parameter.grad for parameter in module.parameters()]


def backward_twice() -> Any:
    model, x = block(), leaf(3, 4)
    for _ in range(2):
        model(x).square().mean().backward()
    return x.grad, grads_of(model)


def double_backward() -> Any:
    x, w = leaf(3, 4), leaf(4, 4)
    (g,) = torch.autograd.grad((x @ w).tanh().sum(), x, create_graph=True)
    g.square().sum().backward()
    return g, x.grad, w.grad


def grad_with_options() -> Any:
    x, y, unused = leaf(3), leaf(3), leaf(2)
    out = (x * y).sum()
    some = torch.autograd.grad(out, [x, unused], allow_unused=True, retain_graph=True)
    zeros = torch.autograd.grad(out, [y, unused], materialize_grads=True, retain_graph=True)
    batched = torch.autograd.grad(x * y, x, torch.eye(3), is_grads_batched=True)
    return some, zeros, batched


def custom_function() -> Any:
    x, factor = leaf(3, 4), leaf()
    out, index = Scale.apply(x, factor)
    out.sum().backward()
    dirty = Double_.apply(leaf(3) * 1)
    dirty.sum().backward()
    return out, index, x.grad, factor.grad, dirty


def hooks() -> Any:
    seen: list[Tensor] = []
    model, x = block(), leaf(3, 4)
    x.register_hook(lambda g: seen.append(g))
    x.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad))
    model.register_full_backward_hook(lambda m, i, o: seen.extend([*i, *o]))
    model[0].register_forward_hook(lambda m, i, o: o * 2)
    model[0].register_forward_pre_hook(lambda m, i: (i[0] + 1,))
    y = model(x)
    y.register_hook(lambda g: g * 2)
    y.grad_fn.register_hook(lambda i, o: seen.extend(t for t in i if t is not None))
    y.retain_grad()
    y.sum().backward()
    return [t.detach() for t in seen], y.grad, len(seen)


def saved_tensor_hooks() -> Any:
    packed: list[Tensor] = []

    def pack(t: Tensor) -> int:
        packed.append(t.detach())
        return len(packed) - 1

    x = leaf(3, 4)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda i: packed[i]):
        y = x.exp() * x.sin()
    y.sum().backward()
    with torch.autograd.graph.save_on_cpu():
        z = (x * x).sum()
    z.backward()
    return packed, x.grad


def mutated_saved_tensors() -> Any:
    x = leaf(2)
    with torch.autograd.graph.allow_mutation_on_saved_tensors():
        kept = x * 1
        out = kept.square()
        kept.zero_()
        out.sum().backward()
    return x.grad


def reentrant_checkpoint() -> Any:
    model, x = block(), leaf(3, 4)
    checkpoint(model, x, use_reentrant=True).sum().backward()
    return x.grad, grads_of(model)


def checkpoints() -> Any:
    model, x = block(), leaf(3, 4)
    y = checkpoint(model, x, use_reentrant=False)
    y = checkpoint_sequential(model, 2, y, use_reentrant=False)
    with torch.autocast("cpu", torch.bfloat16):
        y = checkpoint(model, y, use_reentrant=False, context_fn=torch.utils.checkpoint.noop_context_fn)
    y.sum().backward()
    return y, x.grad, grads_of(model)


def selective_checkpoint() -> Any:
    from torch.utils.checkpoint import create_selective_checkpoint_contexts

    model, x = block(), leaf(3, 4)
    contexts = lambda: create_selective_checkpoint_contexts([torch.ops.aten.mm.default])  # noqa: E731
    checkpoint(model, x, use_reentrant=False, context_fn=contexts).sum().backward()
    return x.grad, grads_of(model)


def no_grad_and_friends() -> Any:
    x = leaf(3)
    with torch.no_grad():
        a = x * 2
        with torch.enable_grad():
            b = x * 2
    with torch.inference_mode():
        c, d = x * 2, torch.ones(2).add_(1)
        e = F.linear(x, torch.ones(2, 3))
        f = x[1:].view(2, 1)
    with torch.set_grad_enabled(False):
        g = x.view(3, 1)
    x.requires_grad_(False)
    return a, b, c, d, e, f, g, x, x * 2


def anomaly() -> Any:
    with torch.autograd.detect_anomaly(check_nan=False):
        x = leaf(3)
        (x * 2).sum().backward()
    return x.grad


def inplace_on_graph() -> Any:
    x = leaf(3, 4)
    y = x * 1
    y[0] = 0
    y[:, 1].mul_(2)
    y.view(-1)[2:4].copy_(torch.ones(2))
    y.relu_().sum().backward()
    return y, x.grad


def layers() -> Any:
    image, tokens = leaf(2, 3, 8, 8), torch.randint(10, (2, 5))
    modules = nn.ModuleList(
        [
            nn.Conv2d(3, 6, 3, stride=2, padding=1, groups=3),
            nn.BatchNorm2d(6),
            nn.MaxPool2d(2),
            nn.Embedding(10, 8),
            nn.LSTM(8, 8, 2, batch_first=True, bidirectional=True),
            nn.TransformerEncoderLayer(16, 4, 32, batch_first=True),
            nn.GRU(16, 10),
        ]
    )
    x = modules[2](modules[1](modules[0](image)))
    y, _ = modules[4](modules[3](tokens))
    z, _ = modules[6](modules[5](y))
    loss = x.mean() + F.cross_entropy(z.flatten(0, 1), tokens.flatten())
    loss.backward()
    return loss, x, y, z, image.grad, grads_of(modules)


PROGRAMS: list[Callable[[], Any]] = [
    backward_twice,
    double_backward,
    grad_with_options,
    custom_function,
    hooks,
    saved_tensor_hooks,
    mutated_saved_tensors,
    reentrant_checkpoint,
    checkpoints,
    selective_checkpoint,
    no_grad_and_friends,
    anomaly,
    inplace_on_graph,
    layers,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_autograd_has_the_same_effects_as_on_real_tensors(program: Callable[[], Any]) -> None:
    assert_like_real(program)


@pytest.mark.parametrize("device", DEVICES[1:])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_autograd_runs_on_any_claimed_device(program: Callable[[], Any], device: str) -> None:
    with fake_mode(), torch.device(device):
        for result in torch.utils._pytree.tree_leaves(program()):
            if isinstance(result, Tensor):
                assert is_fake(result)
                assert result.device == torch.device(device)


@pytest.mark.parametrize("device", DEVICES)
def test_backward_works_after_the_mode_was_left(device: str) -> None:
    with fake_mode():
        model = block().to(device)
        x = torch.randn(3, 4, device=device, requires_grad=True)
    model(x).sum().backward()
    assert is_fake(x.grad) and x.grad.device == torch.device(device)
    (second,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    second.sum().backward()
    assert all(is_fake(parameter.grad) for parameter in model.parameters())


def test_the_graph_errors_of_autograd_are_raised() -> None:
    with fake_mode():
        x = leaf(3)
        y = (x * x).sum()
        y.backward()
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            y.backward()
        with pytest.raises(RuntimeError, match="grad can be implicitly created only for scalar outputs"):
            (x * 2).backward()
        with pytest.raises(RuntimeError, match="does not require grad"):
            torch.ones(2).sum().backward()
        with pytest.raises(RuntimeError, match="Mismatch in shape"):
            (x * 2).backward(torch.ones(4))
        with torch.inference_mode():
            inference = torch.ones(2)
        with pytest.raises(RuntimeError, match=r"[Ii]nference tensors"):
            (inference * x[:2]).sum().backward()
        with pytest.raises(RuntimeError, match="assign a"):
            x.grad = torch.ones(4)


def test_gradients_may_be_set_and_accumulate() -> None:
    def program() -> Any:
        x = leaf(3)
        x.grad = torch.ones(3)
        held = x.grad
        (x * 2).sum().backward()
        same = held is x.grad
        x.grad = None
        (x * 2).sum().backward(inputs=[x])
        return held, same, x.grad, x

    assert_like_real(program)


@pytest.mark.parametrize("inside", [True, False])
def test_anomaly_checks_that_need_no_values_work(inside: bool) -> None:
    with fake_mode():
        layer, x = nn.Linear(2, 3).cuda(), torch.rand(4, 2, device="cuda")
    with fake_mode() if inside else contextlib.nullcontext(), torch.autograd.detect_anomaly():
        layer(x).sum().backward()
        assert layer.weight.grad.shape == (3, 2)
        y = layer(x).exp()
        y.add_(1)
        with (
            pytest.warns(UserWarning, match="Error detected in ExpBackward0"),
            pytest.raises(RuntimeError, match="inplace"),
        ):
            y.sum().backward()
        assert torch.is_anomaly_check_nan_enabled()
    assert not torch.is_anomaly_enabled()
