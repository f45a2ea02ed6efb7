"""Operators on fakes with symbolic sizes, beside PyTorch's FakeTensorMode with its own ShapeEnv and beside numbers.

    python benchmarks/symbolic.py [--calls 40] [--json FILE]

Each engine runs in a process of its own. Every call has symbols that no call had before, in an environment of its own:
making them is not measured. Prints the median time of a call in microseconds: of a hit of the cache, of a miss, with
numbers (a hit), and PyTorch's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any


def operations() -> dict[str, Callable[..., Any]]:
    """Sixty everyday operators, on two activations of (batch, seq, 64), images of (batch, 8, high, wide), indices of
    (batch, seq), and a weight of (32, 64).
    """
    import torch
    import torch.nn.functional as F

    def heads(x: Any) -> Any:
        return x.view(x.shape[0], x.shape[1], 8, 8).transpose(1, 2)

    return {
        "add": lambda x, y, i, p, w: x + y,
        "sub": lambda x, y, i, p, w: x - y,
        "mul": lambda x, y, i, p, w: x * y,
        "div": lambda x, y, i, p, w: x / y,
        "add a number": lambda x, y, i, p, w: x + 1,
        "mul by a number": lambda x, y, i, p, w: x * 2.0,
        "rsub": lambda x, y, i, p, w: 1 - x,
        "pow": lambda x, y, i, p, w: x.pow(2),
        "neg": lambda x, y, i, p, w: -x,
        "exp": lambda x, y, i, p, w: x.exp(),
        "rsqrt": lambda x, y, i, p, w: x.rsqrt(),
        "tanh": lambda x, y, i, p, w: x.tanh(),
        "sigmoid": lambda x, y, i, p, w: x.sigmoid(),
        "relu": lambda x, y, i, p, w: x.relu(),
        "gelu": lambda x, y, i, p, w: F.gelu(x),
        "silu": lambda x, y, i, p, w: F.silu(x),
        "clamp": lambda x, y, i, p, w: x.clamp(0, 1),
        "where": lambda x, y, i, p, w: torch.where(x > 0, x, y),
        "eq": lambda x, y, i, p, w: x == y,
        "masked_fill": lambda x, y, i, p, w: x.masked_fill(x > 0, 0.0),
        "addcmul": lambda x, y, i, p, w: torch.addcmul(x, x, y),
        "lerp": lambda x, y, i, p, w: torch.lerp(x, y, 0.5),
        "add_": lambda x, y, i, p, w: x.add_(y),
        "copy_": lambda x, y, i, p, w: x.copy_(y),
        "to half": lambda x, y, i, p, w: x.half(),
        "clone": lambda x, y, i, p, w: x.clone(),
        "view": lambda x, y, i, p, w: x.view(-1, 64),
        "reshape": lambda x, y, i, p, w: x.transpose(0, 1).reshape(-1, 64),
        "transpose": lambda x, y, i, p, w: x.transpose(0, 1),
        "permute": lambda x, y, i, p, w: x.permute(2, 0, 1),
        "unsqueeze": lambda x, y, i, p, w: x.unsqueeze(1),
        "expand": lambda x, y, i, p, w: i.unsqueeze(-1).expand(-1, -1, 5),
        "slice": lambda x, y, i, p, w: x[:, 1:],
        "select": lambda x, y, i, p, w: x[:, 0],
        "split": lambda x, y, i, p, w: x.split(16, -1),
        "chunk": lambda x, y, i, p, w: x.chunk(4, -1),
        "contiguous": lambda x, y, i, p, w: x.transpose(0, 1).contiguous(),
        "cat": lambda x, y, i, p, w: torch.cat([x, y], 1),
        "stack": lambda x, y, i, p, w: torch.stack([x, y]),
        "pad": lambda x, y, i, p, w: F.pad(x, (0, 1)),
        "linear": lambda x, y, i, p, w: F.linear(x, w),
        "mm": lambda x, y, i, p, w: x.view(-1, 64) @ w.t(),
        "bmm": lambda x, y, i, p, w: torch.bmm(x, y.transpose(1, 2)),
        "sum": lambda x, y, i, p, w: x.sum(-1),
        "mean": lambda x, y, i, p, w: x.mean(-1, keepdim=True),
        "max": lambda x, y, i, p, w: x.max(-1),
        "argmax": lambda x, y, i, p, w: x.argmax(-1),
        "var": lambda x, y, i, p, w: x.var(-1),
        "cumsum": lambda x, y, i, p, w: x.cumsum(1),
        "softmax": lambda x, y, i, p, w: x.softmax(-1),
        "log_softmax": lambda x, y, i, p, w: x.log_softmax(-1),
        "layer_norm": lambda x, y, i, p, w: F.layer_norm(x, (64,)),
        "attention": lambda x, y, i, p, w: F.scaled_dot_product_attention(heads(x), heads(y), heads(y)),
        "embedding": lambda x, y, i, p, w: F.embedding(i, w),
        "gather": lambda x, y, i, p, w: x.gather(2, i.unsqueeze(-1)),
        "index_select": lambda x, y, i, p, w: x.index_select(2, i[0]),
        "topk": lambda x, y, i, p, w: x.topk(5),
        "conv2d": lambda x, y, i, p, w: F.conv2d(p, w.view(32, 16, 2, 2)[:, :8]),
        "max_pool2d": lambda x, y, i, p, w: F.max_pool2d(p, 2),
        "cross_entropy": lambda x, y, i, p, w: F.cross_entropy(x.view(-1, 64), i.view(-1)),
    }


def real_inputs() -> list[Any]:
    """The same for every engine."""
    import torch

    return [
        torch.randn(4, 77, 64),
        torch.randn(4, 77, 64),
        torch.zeros(4, 77, dtype=torch.int64),
        torch.randn(4, 8, 28, 30),
        torch.randn(32, 64),
    ]


def inputs(engine: str) -> tuple[Any, list[Any]]:
    """A mode, and fakes with symbols of their own: which dimensions is the same everywhere."""
    dynamic: list[dict[int, str]] = [{0: "b", 1: "s"}, {0: "b", 1: "s"}, {0: "b", 1: "s"}, {0: "b", 2: "h", 3: "w"}, {}]
    if engine == "pytorch":
        from torch._subclasses.fake_tensor import FakeTensorMode as PyTorchs
        from torch.fx.experimental import symbolic_shapes

        theirs = PyTorchs(shape_env=symbolic_shapes.ShapeEnv())
        kinds = (symbolic_shapes.DimDynamic.STATIC, symbolic_shapes.DimDynamic.DYNAMIC)
        fakes = []
        for tensor, names in zip(real_inputs(), dynamic, strict=True):
            sizes = [kinds[dim in names] for dim in range(tensor.dim())]
            context = symbolic_shapes.StatelessSymbolicContext(dynamic_sizes=sizes)
            fakes.append(theirs.from_tensor(tensor, symbolic_context=context))
        return theirs, fakes
    from torchfake import FakeTensorMode, ShapeEnv

    if engine == "numbers":
        mode = FakeTensorMode()
        return mode, [mode.from_tensor(tensor) for tensor in real_inputs()]
    mode = FakeTensorMode(shape_env=ShapeEnv())
    pairs = zip(real_inputs(), dynamic, strict=True)
    return mode, [
        mode.from_tensor(tensor, dynamic=names) if names else mode.from_tensor(tensor) for tensor, names in pairs
    ]


def measure(engine: str, calls: int) -> dict[str, float]:
    """The median of each operation in microseconds, after a first call; for misses the cache is emptied before each."""
    medians = {}
    for name, operation in operations().items():
        operation(*inputs(engine)[1])
        times = []
        for _ in range(calls):
            mode, fakes = inputs(engine)
            if engine == "misses":
                import torchfake

                torchfake.clear_cache()
            start = time.perf_counter()
            operation(*fakes)
            times.append(time.perf_counter() - start)
            del mode
        medians[name] = statistics.median(times) * 1e6
    return medians


def main() -> None:
    """Runs each engine in a process, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=40)
    parser.add_argument("--engine", help="one alone, as JSON")
    parser.add_argument("--json", help="write the figures to this file")
    options = parser.parse_args()
    if options.engine:
        print(json.dumps(measure(options.engine, options.calls)))
        return
    results = {}
    for engine in ("hits", "misses", "numbers", "pytorch"):
        command = [sys.executable, __file__, "--engine", engine, "--calls", str(options.calls)]
        run = subprocess.run(command, capture_output=True, text=True, check=True)
        results[engine] = json.loads(run.stdout.splitlines()[-1])
    print(f"{'operation':18}{'hit':>9}{'miss':>9}{'numbers':>9}{'PyTorch':>10}{'ratio':>8}{'to numbers':>12}")
    ratios, slowdowns = [], []
    for name in operations():
        hit, miss, numbers, theirs = (results[engine][name] for engine in ("hits", "misses", "numbers", "pytorch"))
        ratios.append(theirs / hit)
        slowdowns.append(hit / numbers)
        print(f"{name:18}{hit:9.1f}{miss:9.1f}{numbers:9.1f}{theirs:10.1f}{ratios[-1]:8.1f}{slowdowns[-1]:12.2f}")
    print(f"PyTorch / hit: geometric mean {statistics.geometric_mean(ratios):.1f}, least {min(ratios):.1f}")
    print(f"hit / numbers: geometric mean {statistics.geometric_mean(slowdowns):.2f}, most {max(slowdowns):.2f}")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
