"""torch.func transforms work on fakes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from metadata import assert_like_real, assert_same_metadata
from torch import Tensor, func, nn
from torch.autograd import forward_ad
from torch.nn import functional as F

from torchfake import FakeTensorMode, fake_mode, is_fake


def loss(x: Tensor) -> Tensor:
    return (x.sin() * x).sum()


def functional_call() -> Any:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    weights = dict(model.named_parameters())
    x, y = torch.randn(5, 3), torch.randn(5, 1)

    def sample_loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(func.functional_call(model, weights, (x[None],)), y[None])

    return func.vmap(func.grad(sample_loss), in_dims=(None, 0, 0))(weights, x, y)


def forward_mode() -> Any:
    x, tangent = torch.randn(3), torch.randn(3)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, tangent)
        out = forward_ad.unpack_dual(dual.exp() * 2)
    return out.primal.detach(), out.tangent.detach()


def ensemble() -> Any:
    models = [nn.Linear(3, 2) for _ in range(4)]
    weights, buffers = func.stack_module_state(models)
    base = models[0]
    run = lambda w, b, x: func.functional_call(base, (w, b), (x,))  # noqa: E731
    return func.vmap(run, in_dims=(0, 0, None))(weights, buffers, torch.randn(5, 3))


TRANSFORMS: dict[str, Callable[[], Any]] = {
    "grad": lambda: func.grad(loss)(torch.randn(3)),
    "grad_and_value": lambda: func.grad_and_value(loss)(torch.randn(3)),
    "grad_of_grad": lambda: func.grad(lambda x: func.grad(loss)(x).sum())(torch.randn(3)),
    "vmap": lambda: func.vmap(torch.dot)(torch.randn(5, 3), torch.randn(5, 3)),
    "vmap_in_out_dims": lambda: func.vmap(torch.mul, (1, None), 1)(torch.randn(3, 5), torch.randn(3)),
    "vmap_of_vmap": lambda: func.vmap(func.vmap(torch.dot))(torch.randn(2, 5, 3), torch.randn(2, 5, 3)),
    "vmap_chunks": lambda: func.vmap(torch.sin, chunk_size=2)(torch.randn(5, 3)),
    "vmap_random": lambda: func.vmap(lambda x: x + torch.randn(3), randomness="different")(torch.randn(5, 3)),
    "vmap_matmul": lambda: func.vmap(lambda x: x @ x.t())(torch.randn(5, 3, 4)),
    "vmap_index": lambda: func.vmap(lambda x, i: x[i])(torch.randn(5, 3), torch.zeros(5, 2, dtype=torch.int64)),
    "per_sample_grad": lambda: func.vmap(func.grad(loss))(torch.randn(5, 3)),
    "jvp": lambda: func.jvp(torch.sin, (torch.randn(3),), (torch.randn(3),)),
    "vjp": lambda: (lambda out, pull: (out, pull(torch.ones(3))))(*func.vjp(torch.sin, torch.randn(3))),
    "jacrev": lambda: func.jacrev(torch.sin)(torch.randn(3)),
    "jacfwd": lambda: func.jacfwd(torch.sin)(torch.randn(3)),
    "hessian": lambda: func.hessian(loss)(torch.randn(3)),
    "linearize": lambda: func.linearize(torch.sin, torch.randn(3))[0],
    "functionalize": lambda: func.functionalize(lambda x: x.clone().add_(1).view(-1))(torch.randn(3, 2)),
    "functional_call": functional_call,
    "forward_mode": forward_mode,
    "ensemble": ensemble,
    "autograd_jacobian": lambda: torch.autograd.functional.jacobian(torch.sin, torch.randn(3)),
    "autograd_hvp": lambda: torch.autograd.functional.hvp(loss, torch.randn(3), torch.randn(3)),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_transform_gives_what_it_gives_on_real_tensors(name: str) -> None:
    assert_like_real(lambda: torch.utils._pytree.tree_map(torch.detach, TRANSFORMS[name]()))


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_transform_runs_on_a_claimed_device(name: str) -> None:
    with fake_mode(), torch.device("cuda:1"):
        results = torch.utils._pytree.tree_leaves(TRANSFORMS[name]())
    assert results
    for result in results:
        assert is_fake(result) and result.device == torch.device("cuda:1")


def test_wrapped_fakes_are_fake_and_print() -> None:
    seen: list[Any] = []

    def look(x: Tensor) -> Tensor:
        seen.append((is_fake(x), repr(x), x.device))
        return x.sum()

    with fake_mode():
        func.vmap(look)(torch.randn(5, 3, device="cuda"))
        func.grad(look)(torch.randn(3, device="cuda"))
    assert [fake for fake, _, _ in seen] == [True, True]
    assert {device for _, _, device in seen} == {torch.device("cuda:0")}
    assert "BatchedTensor" in seen[0][1] and "GradTrackingTensor" in seen[1][1] and "fake=True" in seen[0][1]


def test_transforms_work_on_fakes_outside_the_mode() -> None:
    with fake_mode():
        x = torch.randn(5, 3, device="cuda:1")
    per_sample = func.vmap(func.grad(loss))(x)
    assert is_fake(per_sample) and per_sample.device == torch.device("cuda:1") and per_sample.shape == (5, 3)


FORWARD: dict[str, Callable[[Tensor], Any]] = {
    "jvp": lambda x: func.jvp(lambda x: x * 2, (x,), (x,)),
    "jvp_of_two": lambda x: func.jvp(lambda x, y: x * y + 1, (x, x), (x, x)),
    "jacfwd": lambda x: func.jacfwd(lambda x: (x * 2).sum())(x),
    "jvp_of_vmap": lambda x: func.vmap(lambda row: func.jvp(lambda r: r * 2, (row,), (row,))[1])(x),
    "hessian": lambda x: func.hessian(lambda x: (x**3).sum())(x),
}


@pytest.mark.parametrize("mode", [FakeTensorMode, fake_mode])
@pytest.mark.parametrize("name", FORWARD)
def test_forward_mode_works_on_fakes_outside_the_mode(mode: Any, name: str) -> None:
    with mode():
        x = torch.randn(2, 3)
    assert_same_metadata(FORWARD[name](x), FORWARD[name](torch.randn(2, 3)))
