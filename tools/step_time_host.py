"""Calls of small operators, modules and optimizers, whose time on the host is recorded by record_step_time.py."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from step_time_cases import OPTIMIZERS
from torch import nn
from torch.nn import functional as F


class HostCall(NamedTuple):
    """A call, and how many units of work (operators, parameters) it has."""

    run: Callable[[], Any]
    units: int = 1


#: Tensors that the cases share.
_INDICES: dict[str, torch.Tensor] = {}


def make_indices() -> None:
    """Must be called before the calls of the cases."""
    _INDICES["rows"] = torch.arange(16, device="cuda")
    _INDICES["square"] = torch.zeros(16, 16, device="cuda", dtype=torch.int64)
    _INDICES["mask"] = torch.zeros(16, 16, device="cuda", dtype=torch.bool)
    _INDICES["float"] = torch.ones(16, device="cuda")


def _small(grad: bool = False) -> torch.Tensor:
    return torch.ones(16, 16, device="cuda", requires_grad=grad)


_OPERATORS: dict[str, Callable[[torch.Tensor], Any]] = {
    "add": lambda x: x + x,
    "mul_scalar": lambda x: x * 2.0,
    "relu": torch.relu,
    "gelu": F.gelu,
    "exp": torch.exp,
    "matmul": lambda x: x @ x,
    "linear": lambda x: F.linear(x, x, x[0]),
    "linear_no_bias": lambda x: F.linear(x, x),
    "bmm": lambda x: torch.bmm(x[None], x[None]),
    "view": lambda x: x.view(-1),
    "transpose": lambda x: x.transpose(0, 1),
    "select": lambda x: x[0],
    "slice": lambda x: x[:, :4],
    "unsqueeze": lambda x: x[None],
    "permute": lambda x: x.permute(1, 0),
    "expand": lambda x: x[:1].expand(16, 16),
    "reshape_copy": lambda x: x.t().reshape(-1),
    "contiguous_copy": lambda x: x.t().contiguous(),
    "sum": torch.sum,
    "mean": torch.mean,
    "row_sum": lambda x: x.sum(1),
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "layer_norm": lambda x: F.layer_norm(x, (16,), x[0], x[0]),
    "batch_norm": lambda x: F.batch_norm(x, None, None, x[0], x[0], True),
    "dropout": lambda x: F.dropout(x, 0.1),
    "cat": lambda x: torch.cat((x, x)),
    "stack": lambda x: torch.stack((x, x)),
    "chunk": lambda x: x.chunk(2),
    "embedding": lambda x: F.embedding(_INDICES["rows"], x),
    "index": lambda x: x[_INDICES["rows"]],
    "gather": lambda x: x.gather(0, _INDICES["square"]),
    "scatter": lambda x: x.scatter(0, _INDICES["square"], x.detach()),
    "cross_entropy": lambda x: F.cross_entropy(x, _INDICES["rows"]),
    "mse": lambda x: F.mse_loss(x, x.detach()),
    "cast": lambda x: x.to(torch.bfloat16),
    "pow": lambda x: x.pow(2),
    "where": lambda x: torch.where(_INDICES["mask"], x, 0.0),
    "masked_fill": lambda x: x.masked_fill(_INDICES["mask"], 0.0),
    "sort": lambda x: x.sort(1),
    "topk": lambda x: x.topk(4),
    "cumsum": lambda x: x.cumsum(1),
    "conv2d": lambda x: F.conv2d(x.view(1, 4, 8, 8), x.view(-1)[:144].view(4, 4, 3, 3)),
    "max_pool": lambda x: F.max_pool2d(x[None], 2),
    "interpolate": lambda x: F.interpolate(x[None, None], scale_factor=2.0),
    "attention": lambda x: F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None]),
    "attention_bf16": lambda x: F.scaled_dot_product_attention(*3 * (x.to(torch.bfloat16)[None, None],)),
    "einsum": lambda x: torch.einsum("ij,jk->ik", x, x),
    "group_norm": lambda x: F.group_norm(x[None], 4),
}

_PLAIN: dict[str, Callable[[], Any]] = {
    "empty": lambda: torch.empty(16, device="cuda"),
    "zeros": lambda: torch.zeros(16, device="cuda"),
    "randn": lambda: torch.randn(16, device="cuda"),
    "arange": lambda: torch.arange(16, device="cuda"),
    "randint": lambda: torch.randint(0, 4, (16,), device="cuda"),
    "item": lambda: _INDICES["rows"][0].item(),
    "scalar_tensor": lambda: torch.tensor(1.0, device="cuda"),
    "synchronize": torch.cuda.synchronize,
    "no_grad": lambda: _enter(torch.no_grad),
    "autocast": lambda: _enter(lambda: torch.autocast("cuda", torch.bfloat16)),
    "python_loop": lambda: sum(i * i for i in range(1000)),
    "add_in_place": lambda: _INDICES["float"].add_(1),
    "add_out": lambda: torch.add(_INDICES["float"], 1, out=_INDICES["float"]),
}

_MODULES: dict[str, Callable[[], nn.Module]] = {
    "identity": nn.Identity,
    "linear": lambda: nn.Linear(16, 16),
    "relu": nn.ReLU,
    "layer_norm": lambda: nn.LayerNorm(16),
    "dropout": nn.Dropout,
    "batch_norm": lambda: nn.BatchNorm1d(16),
    "sequential": lambda: nn.Sequential(*(nn.Identity() for _ in range(10))),
    "embedding": lambda: nn.Embedding(16, 16),
    "attention": lambda: nn.MultiheadAttention(16, 2),
    "encoder_layer": lambda: nn.TransformerEncoderLayer(16, 2, 32),
    "lstm": lambda: nn.LSTM(16, 16),
    "gru": lambda: nn.GRU(16, 16, 2),
    "lstm_cell": lambda: nn.LSTMCell(16, 16),
    "gru_cell": lambda: nn.GRUCell(16, 16),
}


def _enter(make: Callable[[], Any]) -> None:
    with make():
        pass


def _forward(operator: Callable[[torch.Tensor], Any], records: bool) -> HostCall:
    x = _small(records)
    return HostCall(lambda: operator(x))


def _backward(operator: Callable[[torch.Tensor], Any], count: int) -> HostCall:
    x = _small(True)
    results = [operator(x) for _ in range(count)]
    firsts = [result[0] if isinstance(result, (tuple, list)) else result for result in results]
    gradients = [torch.ones_like(result) for result in firsts]
    return HostCall(lambda: torch.autograd.grad(firsts, x, gradients, retain_graph=True), count)


def _module(name: str, autocast: bool) -> HostCall:
    module = _MODULES[name]().cuda()
    x = _INDICES["rows"] if name == "embedding" else _small()
    if name in ("lstm", "gru", "attention", "encoder_layer"):
        x = x[None]
    arguments = 3 * (x,) if name == "attention" else (x,)

    def run() -> Any:
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            return module(*arguments)

    return HostCall(run)


def _parameters(count: int) -> list[torch.Tensor]:
    parameters = [_small(True) for _ in range(count)]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    return parameters


def _optimizer(name: str, count: int) -> HostCall:
    return HostCall(OPTIMIZERS[name](_parameters(count)).step, count)


def _clipping(count: int) -> HostCall:
    parameters = _parameters(count)
    return HostCall(lambda: nn.utils.clip_grad_norm_(parameters, 1.0), count)


def _accumulating(count: int) -> HostCall:
    loss = sum((p.sum() for p in _parameters(count)), start=torch.zeros((), device="cuda"))
    return HostCall(lambda: loss.backward(retain_graph=True), count)


def host_cases() -> dict[str, Callable[[], HostCall]]:
    """By name, "kind:operator": a function that makes the call."""
    part = functools.partial
    found: dict[str, Callable[[], HostCall]] = {f"plain:{name}": part(HostCall, call) for name, call in _PLAIN.items()}
    for name, operator in _OPERATORS.items():
        found[f"forward:{name}"] = part(_forward, operator, False)
        found[f"recording:{name}"] = part(_forward, operator, True)
        found[f"backward:{name}"] = part(_backward, operator, 1)
        found[f"backward_many:{name}"] = part(_backward, operator, 20)
    for name in _MODULES:
        found[f"module:{name}"] = part(_module, name, False)
        found[f"module_autocast:{name}"] = part(_module, name, True)
    for count in (1, 10, 100):
        for name in OPTIMIZERS:
            found[f"optimizer:{name}:{count}"] = part(_optimizer, name, count)
        found[f"clip:{count}"] = part(_clipping, count)
        found[f"accumulate:{count}"] = part(_accumulating, count)
    return found
