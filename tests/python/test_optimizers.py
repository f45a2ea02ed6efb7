"""Optimizers, gradient scaling, clipping and autocast on fakes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from metadata import assert_like_real
from torch import Tensor, nn, optim
from undrawn import fake_mode

from torchfake import DataDependentOutputException, DynamicOutputShapeException, is_fake

OPTIMIZERS: dict[str, tuple[type[optim.Optimizer], dict[str, Any]]] = {
    "sgd": (optim.SGD, {}),
    "sgd_momentum": (optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    "adam": (optim.Adam, {}),
    "adam_amsgrad": (optim.Adam, {"amsgrad": True, "weight_decay": 0.1}),
    "adamw": (optim.AdamW, {"maximize": True}),
    "adamw_tensor_lr": (optim.AdamW, {"lr": "tensor"}),
    "adamax": (optim.Adamax, {}),
    "adagrad": (optim.Adagrad, {}),
    "adadelta": (optim.Adadelta, {}),
    "asgd": (optim.ASGD, {}),
    "nadam": (optim.NAdam, {"decoupled_weight_decay": True}),
    "radam": (optim.RAdam, {}),
    "rmsprop": (optim.RMSprop, {"centered": True, "momentum": 0.9}),
    "rprop": (optim.Rprop, {}),
    "muon": (getattr(optim, "Muon", None), {}),
}
FUSED = ("sgd", "sgd_momentum", "adam", "adam_amsgrad", "adamw", "adamw_tensor_lr", "adagrad")


def make(name: str, parameters: list[Tensor], **extra: Any) -> optim.Optimizer:
    kind, options = OPTIMIZERS[name]
    if options.get("lr") == "tensor":
        options = {**options, "lr": torch.tensor(0.01)}
    return kind(parameters, **options, **extra)


def train(name: str, device: str = "cpu", **extra: Any) -> Any:
    model = nn.Sequential(nn.Linear(4, 8, bias=False), nn.Linear(8, 2, bias=False)).to(device)
    optimizer = make(name, list(model.parameters()), **extra)
    schedule = optim.lr_scheduler.StepLR(optimizer, 1) if "tensor_lr" not in name else None
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(3, 4, device=device)).square().sum().backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()
    state = [sorted(optimizer.state[p].items()) for p in model.parameters()]
    return list(model.parameters()), [p.grad for p in model.parameters()], state


def kinds(name: str) -> list[dict[str, bool]]:
    kinds: list[dict[str, bool]] = [{}]
    if name != "muon":
        kinds += [{"foreach": False}]
    if name not in ("muon", "adamw_tensor_lr"):  # refused by PyTorch itself
        kinds += [{"foreach": True}]
    if name in FUSED:
        kinds += [{"fused": True}]
    return kinds


CASES = [(name, extra) for name in OPTIMIZERS for extra in kinds(name)]


@pytest.mark.parametrize(("name", "extra"), CASES, ids=str)
def test_an_optimizer_leaves_the_state_it_leaves_on_real_tensors(name: str, extra: dict[str, bool]) -> None:
    assert_like_real(lambda: train(name, **extra))


@pytest.mark.parametrize("device", ["cuda:0", "cuda:1", "xpu:0"])
@pytest.mark.parametrize(("name", "extra"), CASES, ids=str)
def test_an_optimizer_steps_on_a_claimed_device(name: str, extra: dict[str, bool], device: str) -> None:
    with fake_mode():
        parameters, grads, state = train(name, device, **extra)
    for tensor in (*parameters, *grads):
        assert is_fake(tensor) and tensor.device == torch.device(device)
    for entries, parameter in zip(state, parameters, strict=True):
        for key, value in entries:
            assert key in ("step", "mu_product") or not isinstance(value, Tensor) or value.device == parameter.device


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_capturable_optimizers_keep_their_step_on_the_device(device: str) -> None:
    with fake_mode():
        parameter = nn.Parameter(torch.zeros(3, device=device))
        parameter.grad = torch.randn(3, device=device)
        optimizer = optim.AdamW([parameter], capturable=device != "cpu")
        optimizer.step()
        assert optimizer.state[parameter]["step"].device == torch.device(device)
        assert optimizer.state[parameter]["step"].item() == 1


@pytest.mark.parametrize("foreach", [False, True])
def test_an_optimizer_that_only_multiplies_with_what_it_reads_runs(foreach: bool) -> None:
    def run() -> list[Tensor]:
        parameter = nn.Parameter(torch.randn(3, 4))
        optimizer = optim.Adafactor([parameter], foreach=foreach)
        for _ in range(2):
            parameter.grad = torch.randn(3, 4)
            optimizer.step()
        return list(optimizer.state[parameter].values())

    assert_like_real(run)
    with fake_mode(), pytest.raises(DataDependentOutputException):
        torch.randn(1).item()


def test_an_optimizer_that_decides_by_values_says_so() -> None:
    with fake_mode():
        parameter = nn.Parameter(torch.randn(3))
        optimizer = optim.LBFGS([parameter])

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = parameter.square().sum()
            loss.backward()
            return loss

        with pytest.raises(DataDependentOutputException, match=r"aten::_local_scalar_dense"):
            optimizer.step(closure)


def test_sparse_gradients_of_unknown_rows_are_refused_by_a_typed_error() -> None:
    with fake_mode():
        embedding = nn.Embedding(10, 4, sparse=True)
        embedding(torch.randint(0, 10, (2,))).sum().backward()
        with pytest.raises(DynamicOutputShapeException, match="aten::_coalesce"):
            optim.SparseAdam(embedding.parameters()).step()


def test_an_optimizer_state_dict_comes_back() -> None:
    with fake_mode():
        model = nn.Linear(2, 2).cuda()
        optimizer = optim.Adam(model.parameters())
        model(torch.randn(1, 2, device="cuda")).sum().backward()
        optimizer.step()
        other = optim.Adam(model.parameters())
        other.load_state_dict(optimizer.state_dict())
        assert all(is_fake(s["exp_avg"]) and s["exp_avg"].is_cuda for s in other.state.values())


@pytest.mark.parametrize("device", ["cpu", "cuda:0", "cuda:1"])
@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize("fused", [False, True])
def test_a_grad_scaler_steps(device: str, name: str, fused: bool) -> None:
    with fake_mode():
        model = nn.Linear(4, 2).to(device)
        optimizer = make(name, list(model.parameters()), **({"fused": True} if fused else {}))
        scaler = torch.amp.GradScaler(torch.device(device).type)
        with torch.autocast(torch.device(device).type, torch.float16 if device != "cpu" else torch.bfloat16):
            loss = model(torch.randn(3, 4, device=device)).float().square().mean()
        scaled = scaler.scale(loss)
        assert scaled.device == torch.device(device) and scaled.shape == ()
        scaled.backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        assert all(p.grad.device == torch.device(device) for p in model.parameters())


@pytest.mark.parametrize("foreach", [None, True, False])
@pytest.mark.parametrize("norm", [1.0, 2.0, float("inf")])
def test_clipping_gives_the_norm_real_tensors_give(norm: float, foreach: bool | None) -> None:
    def program() -> Any:
        parameters = [nn.Parameter(torch.ones(3, 2)), nn.Parameter(torch.ones(4, dtype=torch.float64))]
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        total = nn.utils.clip_grad_norm_(parameters, 0.5, norm, foreach=foreach)
        nn.utils.clip_grad_value_(parameters, 0.1, foreach=foreach)
        return total, [p.grad for p in parameters], total.item()

    assert_like_real(program)


def test_clipping_passes_its_check_for_invalid_gradients_unless_strict() -> None:
    for strict in (False, True):
        with fake_mode(strict=strict):
            parameter = nn.Parameter(torch.randn(3))
            parameter.grad = torch.randn(3)
            with pytest.raises(DataDependentOutputException) if strict else nullcontext():
                nn.utils.clip_grad_norm_([parameter], 1.0, error_if_nonfinite=True)


AUTOCAST_OPS: dict[str, Callable[[Tensor], Tensor]] = {
    "matmul": lambda x: x @ x,
    "linear": lambda x: nn.functional.linear(x, x),
    "conv": lambda x: nn.functional.conv1d(x[None], x[:, :, None]),
    "softmax": lambda x: x.softmax(0),
    "sum": lambda x: x.sum(),
    "add_mixed": lambda x: x + x.bfloat16(),
    "layer_norm": lambda x: nn.functional.layer_norm(x, (4,)),
    "bmm": lambda x: torch.bmm(x[None], x[None]),
    "cat": lambda x: torch.cat([x, x.bfloat16()]),
    "norm": lambda x: x.norm(),
    "attention": lambda x: nn.functional.scaled_dot_product_attention(*[x[None, None]] * 3),
    "einsum": lambda x: torch.einsum("ij,jk->ik", x, x),
}


@pytest.mark.parametrize("name", AUTOCAST_OPS)
def test_autocast_on_the_cpu_picks_the_dtypes_it_picks_for_real_tensors(name: str) -> None:
    def program() -> Any:
        x = torch.randn(4, 4, requires_grad=True)
        with torch.autocast("cpu", torch.bfloat16):
            y = AUTOCAST_OPS[name](x)
        y.sum().backward()
        return y, x.grad

    assert_like_real(program)


EXPECTED = {
    "sum": torch.float32, "softmax": torch.float32, "add_mixed": torch.float32, "layer_norm": torch.float32,
    "cat": torch.float32, "norm": torch.float32,
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", AUTOCAST_OPS)
def test_autocast_on_cuda_picks_the_dtypes_of_its_lists(name: str, dtype: torch.dtype) -> None:
    with fake_mode():
        x = torch.randn(4, 4, device="cuda:1", requires_grad=True)
        with torch.autocast("cuda", dtype):
            y = AUTOCAST_OPS[name](x)
            with torch.autocast("cuda", enabled=False):
                assert (x @ x).dtype == torch.float32
        y.sum().backward()
        assert y.dtype == EXPECTED.get(name, dtype) and x.grad.dtype == torch.float32
        assert x.grad.shape == (4, 4) and x.grad.device == y.device == torch.device("cuda:1")
