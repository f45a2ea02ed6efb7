"""Suite 4, second half: every optimizer of torch.optim, in each of its implementations, three steps."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from compare import NO_SAMPLES, Case, Result, compare
from engines import Engine
from suite_operators import Scope, seed_samples
from torch.testing._internal.common_optimizers import OptimizerErrorEnum, OptimizerInfo, optim_db

NAME = "optimizers"
DTYPES = ("float32", "bfloat16")
STEPS = 3


def subjects() -> list[str]:
    return [info.optim_cls.__name__ for info in optim_db]


def cases(engine: Engine, subject: str, scope: Scope) -> Iterator[Case]:
    info = next(info for info in optim_db if info.optim_cls.__name__ == subject)
    for dtype, implementation in itertools.product(DTYPES, implementations(info)):
        if dtype not in scope.dtypes:
            continue
        variant = f"{dtype} {implementation}"
        try:
            found = info.optim_inputs_func(device="cpu", dtype=getattr(torch, dtype))
            for i, given in enumerate(itertools.islice(found, scope.limit or None)):
                if not scope.includes(NAME, subject, variant, i):
                    continue
                flags = {"for-loop": {"foreach": False}, "plain": {}}.get(implementation, {implementation: True})
                arguments = (_parameters(dtype, subject), {**given.kwargs, **flags})
                result = compare(engine, _run(info), arguments, with_gradients=False)
                yield Case(NAME, subject, variant, i, result)
        except Exception as error:
            yield Case(NAME, subject, variant, 0, Result(NO_SAMPLES, f"{type(error).__name__}: {error}"))
    yield from _bad_inputs(engine, info, scope)


def implementations(info: OptimizerInfo) -> list[str]:
    supported = [flag for flag in info.supported_impls if flag != "fused" or "cpu" in info.supports_fused_on]
    return ["for-loop", *supported] if "foreach" in supported else ["plain", *supported]


def _parameters(dtype: str, subject: str) -> tuple[list[torch.nn.Parameter], list[torch.Tensor]]:
    """Parameters and gradients; some optimizers take matrices only."""
    shapes = [(4, 3), (2, 5)] if subject == "Muon" else [(4, 3), (5,), (2, 3, 3), ()]
    kind = getattr(torch, dtype)
    seed_samples()
    parameters = [torch.nn.Parameter(torch.rand(shape, dtype=kind)) for shape in shapes]
    return parameters, [torch.rand(shape, dtype=kind) for shape in shapes]


def _bad_inputs(engine: Engine, info: OptimizerInfo, scope: Scope) -> Iterator[Case]:
    if info.optim_error_inputs_func is None or "float32" not in scope.dtypes:
        return
    for i, error_input in enumerate(info.optim_error_inputs_func(device="cpu", dtype=torch.float32)):
        if not scope.includes(NAME, info.optim_cls.__name__, "bad input", i):
            continue
        given = error_input.optimizer_error_input
        steps = error_input.error_on == OptimizerErrorEnum.STEP_ERROR

        def run(parameters: Any, steps: bool = steps, **options: Any) -> Any:
            optimizer = info.optim_cls(parameters, **options)
            return optimizer.step() if steps else None

        result = compare(engine, run, ((given.params,), given.kwargs), with_gradients=False)
        yield Case(NAME, info.optim_cls.__name__, "bad input", i, result)


def _run(info: OptimizerInfo) -> Callable[..., Any]:
    """Steps the optimizer. Returns parameters, gradients and the final state."""

    def run(parameters: list[torch.nn.Parameter], grads: list[torch.Tensor], **options: Any) -> Any:
        if options.get("differentiable"):
            parameters = [p.clone() for p in parameters]
        optimizer = info.optim_cls(parameters, **options)

        def closure() -> torch.Tensor:
            for p, g in zip(parameters, grads, strict=True):
                p.grad = g.clone().to_sparse() if info.only_supports_sparse_grads else g.clone()
            return torch.stack([p.detach().float().sum() for p in parameters]).sum()

        for _ in range(STEPS):
            if info.step_requires_closure:
                optimizer.step(closure)
            else:
                closure()
                optimizer.step()
        return {"parameters": list(parameters), "state": optimizer.state_dict()}

    return run
