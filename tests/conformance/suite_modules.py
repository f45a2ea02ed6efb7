"""Suite 4, first half: every module of torch.nn, built, run and differentiated, in training and evaluation."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from compare import NO_SAMPLES, Case, Result, compare, tensors_in
from engines import Engine
from suite_operators import Scope, seed_samples
from torch.testing._internal.common_modules import ModuleInfo, ModuleInput, module_db

NAME = "modules"
DTYPES = ("float32", "bfloat16")


def subjects() -> list[str]:
    return [info.name for info in module_db]


def cases(engine: Engine, subject: str, scope: Scope) -> Iterator[Case]:
    info = next(info for info in module_db if info.name == subject)
    for dtype, training in itertools.product(DTYPES, (True, False)):
        if dtype not in scope.dtypes:
            continue
        variant = f"{dtype} {'train' if training else 'eval'}"
        try:
            for i, given in enumerate(inputs_of(info, dtype, training, scope.limit)):
                if not scope.includes(NAME, subject, variant, i):
                    continue
                result = compare(engine, run_of(info, dtype, training), arguments_of(given), with_gradients=False)
                yield Case(NAME, subject, variant, i, result)
        except Exception as error:
            yield Case(NAME, subject, variant, 0, Result(NO_SAMPLES, f"{type(error).__name__}: {error}"))
    yield from _bad_inputs(engine, info, scope)


def _bad_inputs(engine: Engine, info: ModuleInfo, scope: Scope) -> Iterator[Case]:
    if info.module_error_inputs_func is None or "float32" not in scope.dtypes:
        return
    for training in (True, False):
        found = info.module_error_inputs_func(
            info, device="cpu", dtype=torch.float32, requires_grad=False, training=training
        )
        for i, error_input in enumerate(found):
            variant = f"bad input {'train' if training else 'eval'}"
            if not scope.includes(NAME, info.name, variant, i):
                continue
            run = run_of(info, "float32", training)
            result = compare(engine, run, arguments_of(error_input.module_error_input), with_gradients=False)
            yield Case(NAME, info.name, variant, i, result)


def inputs_of(info: ModuleInfo, dtype: str, training: bool, limit: int) -> Iterator[ModuleInput]:
    """Inputs with the same values in every run."""
    seed_samples()
    found = info.module_inputs_func(
        info, device="cpu", dtype=getattr(torch, dtype), requires_grad=True, training=training
    )
    return iter(list(itertools.islice(found, limit or None)))


def arguments_of(given: ModuleInput) -> Any:
    """The arguments of constructor and call. Modules among the former come with their parameters, separately."""
    build, forward = given.constructor_input, given.forward_input
    states = [dict(value.named_parameters()) for value in build.args if isinstance(value, torch.nn.Module)]
    return (build.args, build.kwargs, states, forward.args if forward else (), forward.kwargs if forward else {}), {}


def run_of(info: ModuleInfo, dtype: str, training: bool, device: str = "cpu") -> Callable[..., Any]:
    """Builds the module on `device` and runs it forward and backward: outputs, gradients and its final state."""

    def run(build_args: Any, build_kwargs: Any, states: Any, args: Any, kwargs: Any) -> Any:
        given = [value for value in build_args if isinstance(value, torch.nn.Module)]
        for part, state in zip(given, states, strict=True):
            _set_parameters(part, state)
        module = info.module_cls(*build_args, **build_kwargs).to(device, getattr(torch, dtype)).train(training)
        outputs = module(*args, **kwargs)
        roots = [t for t in tensors_in(outputs) if t.requires_grad]
        if roots:
            torch.autograd.backward(roots, [torch.ones_like(t) for t in roots])
        inputs = [t for t in tensors_in((args, kwargs)) if t.is_leaf]
        return {
            "outputs": outputs,
            "gradients": {name: p.grad for name, p in module.named_parameters()},
            "gradients of inputs": [t.grad for t in inputs],
            "state": dict(module.state_dict(keep_vars=True)),
        }

    return run


def _set_parameters(module: torch.nn.Module, parameters: dict[str, torch.Tensor]) -> None:
    for name, value in parameters.items():
        path, _, last = name.rpartition(".")
        module.get_submodule(path)._parameters[last] = torch.nn.Parameter(value.detach(), value.requires_grad)
