"""Operators on fakes with symbolic sizes, beside PyTorch's FakeTensorMode with its own ShapeEnv.

    python benchmarks/symbolic.py

Each engine runs in a process of its own. Prints the median time of a call in microseconds for each.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

CALLS = 40


def operations() -> dict[str, Callable[[Any, Any, Any], Any]]:
    """What is measured, on two activations of (batch, seq, 64) and a weight."""
    import torch.nn.functional as F

    return {
        "add": lambda x, y, w: x + y,
        "mul by a number": lambda x, y, w: x * 2,
        "gelu": lambda x, y, w: F.gelu(x),
        "view": lambda x, y, w: x.view(-1, 64),
        "transpose": lambda x, y, w: x.transpose(0, 1),
        "slice": lambda x, y, w: x[:, 1:],
        "linear": lambda x, y, w: F.linear(x, w),
        "matmul": lambda x, y, w: x @ y.transpose(1, 2),
        "softmax": lambda x, y, w: x.softmax(-1),
        "sum": lambda x, y, w: x.sum(-1),
        "layer_norm": lambda x, y, w: F.layer_norm(x, (64,)),
        "cat": lambda x, y, w: __import__("torch").cat([x, y], 1),
    }


def inputs(engine: str) -> list[Any]:
    """Fakes with two symbolic sizes, and one with numbers."""
    import torch

    tensors = [torch.randn(4, 77, 64), torch.randn(4, 77, 64)]
    weight = torch.randn(32, 64)
    if engine == "torchfake":
        from torchfake import FakeTensorMode, ShapeEnv

        mode = FakeTensorMode(shape_env=ShapeEnv())
        return [*(mode.from_tensor(x, dynamic={0: "batch", 1: "seq"}) for x in tensors), mode.from_tensor(weight)]
    if engine == "numbers":
        from torchfake import FakeTensorMode

        mode = FakeTensorMode()
        return [mode.from_tensor(x) for x in (*tensors, weight)]
    from torch._subclasses.fake_tensor import FakeTensorMode as PyTorchs
    from torch.fx.experimental import symbolic_shapes

    theirs = PyTorchs(shape_env=symbolic_shapes.ShapeEnv())
    dynamic, static = symbolic_shapes.DimDynamic.DYNAMIC, symbolic_shapes.DimDynamic.STATIC
    context = symbolic_shapes.StatelessSymbolicContext(dynamic_sizes=[dynamic, dynamic, static])
    fakes = [theirs.from_tensor(x, symbolic_context=context) for x in tensors]
    return [*fakes, theirs.from_tensor(weight, static_shapes=True)]


def measure(engine: str) -> dict[str, float]:
    """The median of each operation, in microseconds, after a first call."""
    x, y, weight = inputs(engine)
    medians = {}
    for name, operation in operations().items():
        operation(x, y, weight)
        times = []
        for _ in range(CALLS):
            start = time.perf_counter()
            operation(x, y, weight)
            times.append(time.perf_counter() - start)
        medians[name] = statistics.median(times) * 1e6
    return medians


def main() -> None:
    """Runs each engine in a process, and prints a table."""
    if len(sys.argv) > 1:
        print(json.dumps(measure(sys.argv[1])))
        return
    results = {}
    for engine in ("torchfake", "numbers", "pytorch"):
        run = subprocess.run([sys.executable, __file__, engine], capture_output=True, text=True, check=True)
        results[engine] = json.loads(run.stdout.splitlines()[-1])
    print(f"{'operation':18}{'torchfake':>12}{'numbers':>12}{'PyTorch':>12}{'ratio':>8}")
    ratios = []
    for name in operations():
        ours, numbers, theirs = (results[engine][name] for engine in ("torchfake", "numbers", "pytorch"))
        ratios.append(theirs / ours)
        print(f"{name:18}{ours:12.1f}{numbers:12.1f}{theirs:12.1f}{theirs / ours:8.1f}")
    print(f"geometric mean of the ratios: {statistics.geometric_mean(ratios):.1f}")


if __name__ == "__main__":
    main()
