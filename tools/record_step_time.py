"""Records the fraction of the roofline that a card's kernels reach, for torchfake.step_time. Run it on the card.

    python tools/record_step_time.py [--output FILE] [--quick] [--device cuda]

Times operators of each family, dtype and size, and whole training steps, with events of the card. Writes the curves,
and for each workload the measured time and the one estimated from the curves; reports state the error between them.
Workloads do not contribute to the curves. On a machine without a card, `--device cpu` runs the same code on the CPU to
check the command; the result describes no card.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import torchfake
from torchfake import step_time
from torchfake._cards import CARDS, DEFAULT

Make = Callable[[int, str, torch.dtype], Callable[[], Any]]
DTYPES = {"Float": torch.float32, "BFloat16": torch.bfloat16, "Half": torch.float16}


def _matmul(n: int, device: str, dtype: torch.dtype) -> Callable[[], Any]:
    a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
    return lambda: a @ b


def _convolution(n: int, device: str, dtype: torch.dtype) -> Callable[[], Any]:
    x = torch.randn(16, n, 32, 32, device=device, dtype=dtype)
    w = torch.randn(n, n, 3, 3, device=device, dtype=dtype)
    return lambda: F.conv2d(x, w, padding=1)


def _attention(n: int, device: str, dtype: torch.dtype) -> Callable[[], Any]:
    q = torch.randn(2, 16, n, 64, device=device, dtype=dtype)
    return lambda: F.scaled_dot_product_attention(q, q, q)


def _recurrent(n: int, device: str, dtype: torch.dtype) -> Callable[[], Any]:
    network = nn.LSTM(n, n, num_layers=2, device=device, dtype=dtype)
    x = torch.randn(64, 16, n, device=device, dtype=dtype)
    return lambda: network(x)


def _elementwise(n: int, device: str, dtype: torch.dtype) -> Callable[[], Any]:
    a, b = (torch.randn(n * n, device=device, dtype=dtype) for _ in range(2))
    return lambda: a + b


def _reduction(n: int, device: str, dtype: torch.dtype) -> Callable[[], Any]:
    a = torch.randn(n, n, device=device, dtype=dtype)
    return lambda: a.sum(-1)


def _normalization(n: int, device: str, dtype: torch.dtype) -> Callable[[], Any]:
    a = torch.randn(n, n, device=device, dtype=dtype)
    w = torch.randn(n, device=device, dtype=dtype)
    return lambda: F.layer_norm(a, (n,), w, w)


def _indexing(n: int, device: str, dtype: torch.dtype) -> Callable[[], Any]:
    table = torch.randn(32768, n, device=device, dtype=dtype)
    rows = torch.randint(32768, (n,), device=device)
    return lambda: F.embedding(rows, table)


def _optimizer(n: int, device: str, dtype: torch.dtype) -> Callable[[], Any]:
    a, b = ([torch.randn(n, n // 8, device=device, dtype=dtype) for _ in range(8)] for _ in range(2))
    return lambda: torch._foreach_add_(a, b, alpha=0.1)


def _transfer(n: int, device: str, dtype: torch.dtype) -> Callable[[], Any]:
    x = torch.randn(n, n, dtype=dtype)
    return lambda: x.to(device, copy=True)


FAMILIES: dict[str, tuple[Make, list[int], list[str]]] = {
    "matmul": (_matmul, [64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384], ["Float", "BFloat16", "Half"]),
    "convolution": (_convolution, [16, 32, 64, 128, 256, 512, 1024], ["Float", "BFloat16", "Half"]),
    "attention": (_attention, [64, 128, 256, 512, 1024, 2048, 4096, 8192], ["Float", "BFloat16", "Half"]),
    "recurrent": (_recurrent, [64, 128, 256, 512, 1024, 2048], ["Float", "Half"]),
    "elementwise": (_elementwise, [64, 256, 512, 1024, 2048, 4096, 8192, 16384], ["Float"]),
    "reduction": (_reduction, [64, 256, 512, 1024, 2048, 4096, 8192, 16384], ["Float"]),
    "normalization": (_normalization, [64, 256, 512, 1024, 2048, 4096, 8192, 16384], ["Float"]),
    "indexing": (_indexing, [64, 256, 512, 1024, 2048, 4096, 8192], ["Float"]),
    "optimizer": (_optimizer, [64, 256, 512, 1024, 2048, 4096, 8192], ["Float"]),
    "transfer": (_transfer, [64, 256, 512, 1024, 2048, 4096, 8192], ["Float"]),
}


class _Decoder(nn.Module):
    def __init__(self, width: int, depth: int, vocabulary: int = 8192) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, width // 64, 4 * width, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.layers(self.embedding(tokens)))
        return result


def _decoder(width: int, depth: int, batch: int, length: int) -> Callable[[str], tuple[nn.Module, torch.Tensor]]:
    return lambda device: (
        _Decoder(width, depth).to(device),
        torch.zeros(batch, length, dtype=torch.long, device=device),
    )


def _perceptron(width: int, batch: int) -> Callable[[str], tuple[nn.Module, torch.Tensor]]:
    layers = [module for _ in range(6) for module in (nn.Linear(width, width), nn.GELU())]
    return lambda device: (nn.Sequential(*layers).to(device), torch.randn(batch, width, device=device))


def _convolutional(channels: int, batch: int, size: int) -> Callable[[str], tuple[nn.Module, torch.Tensor]]:
    def build(device: str) -> tuple[nn.Module, torch.Tensor]:
        blocks: list[nn.Module] = [nn.Conv2d(3, channels, 7, 2, 3)]
        for _ in range(8):
            blocks += [nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU()]
        model = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))
        return model.to(device), torch.randn(batch, 3, size, size, device=device)

    return build


def workloads(quick: bool) -> dict[str, tuple[Callable[[str], tuple[nn.Module, torch.Tensor]], torch.dtype | None]]:
    """By name: a function that builds a model and its input, and the dtype of autocast."""
    if quick:
        return {"perceptron": (_perceptron(64, 32), None), "convolutional": (_convolutional(8, 2, 32), torch.bfloat16)}
    sizes = {
        "decoder-small": _decoder(512, 8, 8, 512),
        "decoder-large": _decoder(2048, 12, 8, 1024),
        "decoder-long": _decoder(1024, 4, 1, 8192),
        "perceptron": _perceptron(4096, 8192),
        "perceptron-tiny": _perceptron(256, 64),
        "convolutional": _convolutional(128, 64, 224),
        "convolutional-wide": _convolutional(512, 16, 128),
    }
    return {
        f"{name}-{'float32' if dtype is None else 'bfloat16'}": (make, dtype)
        for name, make in sizes.items()
        for dtype in (None, torch.bfloat16)
    }


def _synchronize(device: str) -> None:
    if device != "cpu":
        torch.accelerator.synchronize()


def seconds_of(call: Callable[[], Any], device: str, repeats: int) -> float:
    """The median time of a call, counting only the card's work."""
    for _ in range(3):
        call()
    _synchronize(device)
    times = []
    for _ in range(repeats):
        if device == "cpu":
            begin = time.perf_counter()
            call()
            times.append(time.perf_counter() - begin)
        else:
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            call()
            last.record()
            last.synchronize()
            times.append(first.elapsed_time(last) / 1e3)
    return statistics.median(times)


def bound_of(build: Callable[[str], Callable[[], Any]], card: str) -> float:
    """The roofline's time for the call that `build("cuda")` returns, counted on fakes, without launches."""
    with torchfake.fake_mode(gpus=card, unlimited=True):
        call = build("cuda")
        with step_time.measure() as work:
            call()
    costs = work.estimate(card).costs
    return sum(step_time.bound_seconds(cost.row, card) * cost.row.calls for cost in costs)


def record_curves(device: str, card: str, quick: bool) -> dict[str, list[tuple[float, float]]]:
    """Pairs of seconds at the roofline and the fraction reached, by family and dtype."""
    curves: dict[str, list[tuple[float, float]]] = {}
    for family, (make, all_sizes, dtypes) in FAMILIES.items():
        for dtype in dtypes:
            points = []
            for size in all_sizes[:2] if quick else all_sizes:
                try:
                    measured = seconds_of(make(size, device, DTYPES[dtype]), device, 5 if quick else 30)
                except (torch.OutOfMemoryError, RuntimeError, NotImplementedError) as error:
                    print(f"{family} {dtype} {size}: {error}", file=sys.stderr)
                    continue
                bound = bound_of(functools.partial(make, size, dtype=DTYPES[dtype]), card)
                points.append((bound, bound / measured))
                print(f"{family} {dtype} {size}: {measured * 1e6:.1f} us, {bound / measured:.1%} of the roofline")
            if points:
                curves[f"{family}/{dtype}"] = sorted(points)
        first = [f"{family}/{dtype}" for dtype in dtypes if f"{family}/{dtype}" in curves]
        if first:
            curves[family] = curves[first[0]]
    return curves


def _step(build: Callable[[str], tuple[nn.Module, torch.Tensor]], dtype: torch.dtype | None, device: str) -> Any:
    model, x = build(device)
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        with torch.autocast(device, dtype or torch.bfloat16, enabled=dtype is not None):
            loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def record_workloads(device: str, card: str, curves: step_time.Curves, quick: bool) -> list[dict[str, Any]]:
    """Whole steps: measured times, and those estimated from the curves."""
    rows = []
    for name, (build, dtype) in workloads(quick).items():
        measured = seconds_of(_step(build, dtype, device), device, 3 if quick else 20)
        with torchfake.fake_mode(gpus=card, unlimited=True):
            step = _step(build, dtype, "cuda")
            step()
            with step_time.measure() as work:
                step()
        estimated = work.estimate(card, curves=curves).seconds
        rows.append({"name": name, "measured": measured, "estimated": estimated})
        print(f"{name}: {measured * 1e3:.2f} ms, estimated {estimated * 1e3:.2f} ms ({estimated / measured - 1:+.0%})")
    return rows


def _card_here(device: str) -> str:
    name = DEFAULT.name if device == "cpu" else torch.cuda.get_device_name()
    for key, card in CARDS.items():
        if card.name == name:
            return key
    raise SystemExit(f"{name} is not in the table of cards (python/torchfake/_cards.py); add it first")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="by default python/torchfake/recordings/step_time_CARD.json")
    parser.add_argument("--quick", action="store_true", help="two sizes of each family and two workloads")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("there is no card here; --device cpu --output FILE checks the command without one")
    if options.device == "cpu" and options.output is None:
        raise SystemExit("--device cpu records nothing about a card: choose a file with --output")
    if options.device == "cpu":
        torch.set_num_threads(1)
    card = _card_here(options.device)
    found = record_curves(options.device, card, options.quick)
    name = CARDS[card].name
    source = f"PyTorch {torch.__version__}, " + (
        "the CPU of this machine, not a card" if options.device == "cpu" else f"CUDA {torch.version.cuda}"
    )
    curves = step_time.Curves(name, {key: list(points) for key, points in found.items()}, None, source)
    rows = record_workloads(options.device, card, curves, options.quick)
    data = {"schema": 1, "card": name, "source": source, "curves": found, "workloads": rows}
    default = Path(__file__).parent.parent / f"python/torchfake/recordings/step_time_{card}.json"
    output = options.output or default
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(data, indent=1) + "\n")
    step_time.load_curves(output)  # as the report will read it


if __name__ == "__main__":
    main()
