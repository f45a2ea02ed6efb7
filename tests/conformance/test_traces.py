"""A TorchDispatchMode sees the same operators on fakes, in the same order, as on real tensors."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torchgen
import yaml
from compare import copy_tree, gradients, is_dense, tensors_in
from suite_operators import operators, samples, subjects
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from variants import Arguments

from torchfake import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    fake_mode,
    to_fake,
)

SAMPLES = 2
NATIVE_FUNCTIONS = Path(torchgen.__file__).parent / "packaged/ATen/native/native_functions.yaml"


class Seen(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.operators: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operators.append(str(func))
        return func(*args, **(kwargs or {}))


def trace(op: OpInfo, arguments: Arguments) -> tuple[list[str], Exception | None]:
    """Runs forward and backward. Returns the operators seen, and the error that ended the run."""
    args, kwargs = arguments
    with Seen() as seen:
        try:
            gradients(tensors_in(op.op(*args, **kwargs)), tensors_in(arguments))
        except Exception as error:
            return seen.operators, error.with_traceback(None)
    return seen.operators, None


def cases(subject: str) -> Iterator[tuple[OpInfo, Arguments]]:
    for op in operators()[subject]:
        if torch.float32 in op.dtypes:
            for arguments in samples(op, torch.float32, SAMPLES):
                if all(map(is_dense, tensors_in(arguments))):
                    yield op, arguments


@pytest.mark.parametrize("subject", subjects())
def test_fakes_run_the_operators_that_real_tensors_run(subject: str) -> None:
    for op, arguments in cases(subject):
        torch.manual_seed(0)
        real, _ = trace(op, copy_tree(arguments))
        fakes: Any = pytree.tree_map_only(torch.Tensor, to_fake, copy_tree(arguments))
        with fake_mode():
            fake, error = trace(op, fakes)
        if isinstance(
            error, (DataDependentOutputException, DynamicOutputShapeException, UnsupportedFakeTensorException)
        ):
            real = real[: len(fake)]
        assert fake == real


def claimed(*sizes: int) -> torch.Tensor:
    with fake_mode():
        return torch.empty(*sizes, device="cuda", requires_grad=True)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda: torch.nn.functional.silu(claimed(2, 8)), ["silu", "silu_backward"]),
        (lambda: torch.nn.functional.mish(claimed(2, 8)), ["mish", "mish_backward"]),
        (lambda: torch.rms_norm(claimed(2, 8), (8,)), ["_fused_rms_norm", "_fused_rms_norm_backward"]),
        (
            lambda: torch.nn.functional.grid_sample(claimed(1, 3, 8, 8), claimed(1, 4, 4, 2), align_corners=True),
            ["cudnn_grid_sampler", "cudnn_grid_sampler_backward"],
        ),
        (
            lambda: torch.nn.functional.grid_sample(claimed(1, 3, 8, 8), claimed(1, 4, 4, 2), align_corners=False),
            ["grid_sampler_2d", "grid_sampler_2d_backward"],
        ),
    ],
)
def test_a_claimed_gpu_runs_the_kernels_that_a_gpu_has(function: Any, expected: list[str]) -> None:
    with fake_mode(), Seen() as seen:
        function().sum().backward()
    found = [name.removeprefix("aten.").removesuffix(".default") for name in seen.operators]
    assert [name for name in found if name in expected] == expected


def test_no_operator_with_a_kernel_for_cuda_is_composed_above_the_engine() -> None:
    """PyTorch without CUDA would compose it if a composite exists."""
    for function in yaml.safe_load(NATIVE_FUNCTIONS.read_text()):
        keys = set(itertools.chain(*(key.split(", ") for key in function.get("dispatch") or {})))
        name, _, overload = function["func"].partition("(")[0].partition(".")
        out = f"{name}.grad_input" if function.get("structured_delegate") == f"{name}.grad_input" else ""
        if "CompositeImplicitAutograd" in keys and ("CUDA" in keys or out):
            qualified = f"aten::{name}.{overload}" if overload else f"aten::{name}"
            assert torch._C._dispatch_has_kernel_for_dispatch_key(qualified, "CUDA"), qualified
