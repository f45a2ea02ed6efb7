"""Single convolutions and their gradients over a large grid, for recording the workspaces that cuDNN takes.

The order is random but fixed: whatever part of it is recorded is a fair sample of the whole.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from distinct import distinct

MOST_ELEMENTS = 1 << 26
MOST_PRODUCTS = 1 << 36

#: dtype, layout and whether TF32 is allowed, the commonest first.
SETTINGS = (
    ("float32", "contiguous", True),
    ("float32", "channels_last", True),
    ("float16", "contiguous", True),
    ("float16", "channels_last", True),
    ("bfloat16", "contiguous", True),
    ("bfloat16", "channels_last", True),
    ("float32", "contiguous", False),
    ("float32", "channels_last", False),
)


class Convolution(NamedTuple):
    dims: int
    batch: int
    channels: int
    out: int
    size: int
    kernel: int
    stride: int
    padding: int
    dilation: int
    groups: int
    transposed: bool
    dtype: str
    layout: str
    tf32: bool

    def out_size(self) -> int:
        reach = self.dilation * (self.kernel - 1) + 1
        if self.transposed:
            return (self.size - 1) * self.stride - 2 * self.padding + reach
        return (self.size + 2 * self.padding - reach) // self.stride + 1

    def is_usable(self) -> bool:
        out = self.out_size()
        if out < 1 or self.channels % self.groups or self.out % self.groups:
            return False
        cells = max(self.size, out) ** self.dims * self.batch
        window = self.kernel**self.dims
        weight = self.channels * self.out * window // self.groups
        return (
            cells * max(self.channels, self.out) <= MOST_ELEMENTS
            and weight <= MOST_ELEMENTS
            and self.batch * min(self.size, out) ** self.dims * weight <= MOST_PRODUCTS
        )


def empty(shape: list[int], dtype: torch.dtype, layout: str) -> torch.Tensor:
    """Values do not matter. A sequence is channels-last as the transposed view of one with its channels last."""
    if layout == "contiguous":
        return torch.empty(shape, dtype=dtype, device="cuda")
    if len(shape) == 3:
        return torch.empty(shape[0], shape[2], shape[1], dtype=dtype, device="cuda").transpose(1, 2)
    layouts = {4: torch.channels_last, 5: torch.channels_last_3d}
    return torch.empty(shape, dtype=dtype, device="cuda", memory_format=layouts[len(shape)])


def run(case: Convolution, benchmark: bool = False, deterministic: bool = False) -> None:
    """Forward, gradient of the input, gradient of the weight, each twice; then all gradients at once."""
    torch.backends.cudnn.allow_tf32 = case.tf32
    torch.backends.cudnn.benchmark = benchmark
    torch.backends.cudnn.deterministic = deterministic
    dtype = getattr(torch, case.dtype)
    n = case.dims
    first, second = (case.channels, case.out) if case.transposed else (case.out, case.channels)
    x = empty([case.batch, case.channels, *n * [case.size]], dtype, case.layout)
    # Of a sequence's convolution the weight stays contiguous.
    weight_layout = "contiguous" if n == 1 or case.layout == "input_only" else case.layout
    w = empty([first, second // case.groups, *n * [case.kernel]], dtype, weight_layout)
    how = [
        n * [case.stride], n * [case.padding], n * [case.dilation], case.transposed, n * [0], case.groups,
    ]  # fmt: skip
    with torch.no_grad():
        for _ in range(2):
            y = torch.ops.aten.convolution.default(x, w, None, *how)
        gradient = torch.empty_like(y)
        del y
        for mask in 2 * [[True, False, False]] + 2 * [[False, True, False]] + [[True, True, True]]:
            torch.ops.aten.convolution_backward.default(gradient, x, w, [case.out], *how, mask)


def networks() -> Iterator[tuple[int, int, int, int, int, int, int]]:
    """size, channels, out, kernel, stride, padding, groups of the layers of common networks."""
    for width, image in ((64, 224), (32, 224), (64, 128), (64, 32)):
        yield (image, 3, width, 7, 2, 3, 1)
        for level in range(4):
            size, c = max(image // 4 >> level, 1), width << level
            yield (size, c, c, 3, 1, 1, 1)
            yield (size, c, 4 * c, 1, 1, 0, 1)
            yield (size, 4 * c, c, 1, 1, 0, 1)
            yield (size, c, c, 3, 1, 1, c)
            yield (size, c, c, 7, 1, 3, c)
            yield (size, 2 * c, c, 3, 1, 1, 1)
            yield (size, c, c, 3, 1, 1, 32)
            if level:
                yield (2 * size, c // 2, c, 3, 2, 1, 1)
                yield (2 * size, c // 2, c, 1, 2, 0, 1)
                yield (2 * size, c // 2, c, 4, 2, 1, 1)
                yield (2 * size, c // 2, c, 2, 2, 0, 1)
    for image, width in ((224, 384), (224, 768), (224, 1024), (32, 192)):
        patch = 16 if image == 224 else 4
        yield (image, 3, width, patch, patch, 0, 1)
    for out in (16, 32, 64, 128, 320):
        for size in (32, 64, 224):
            yield (size, 3, out, 3, 1, 1, 1)
            yield (size, 4, out, 3, 1, 1, 1)
            yield (size, 1, out, 3, 1, 1, 1)
            yield (size, out, 3, 3, 1, 1, 1)
            yield (size, out, 4, 3, 1, 1, 1)


def of_networks() -> Iterator[Convolution]:
    for (size, channels, out, kernel, stride, padding, groups), batch, setting in itertools.product(
        sorted(set(networks())), (1, 8, 32), SETTINGS
    ):
        yield Convolution(2, batch, channels, out, size, kernel, stride, padding, 1, groups, False, *setting)


def systematic() -> Iterator[Convolution]:
    pairs = (
        (3, 16), (3, 64), (16, 16), (64, 64), (64, 128), (128, 64), (128, 128), (256, 256), (512, 512), (100, 36),
    )  # fmt: skip
    for (channels, out), batch, size, kernel, stride, setting in itertools.product(
        pairs, (1, 8, 32), (7, 14, 28, 56, 112, 224), (1, 3, 4, 5, 7), (1, 2), SETTINGS[:6]
    ):
        padding = (kernel - 1) // 2
        yield Convolution(2, batch, channels, out, size, kernel, stride, padding, 1, 1, False, *setting)


def drawn(random_of: random.Random) -> Iterator[Convolution]:
    pick = random_of.choice
    channels = (1, 2, 3, 4, 8, 16, 24, 32, 48, 64, 80, 96, 100, 128, 160, 192, 256, 320, 384, 512, 768, 1024)
    sizes = {
        1: (1, 10, 50, 77, 100, 256, 400, 999, 1500, 3000, 8000, 16000, 64000),
        2: (1, 4, 7, 8, 10, 14, 16, 24, 28, 32, 33, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256),
        3: (2, 4, 7, 8, 14, 16, 24, 32, 48, 64),
    }
    while True:
        dims = pick((1, 1, 2, 2, 2, 2, 3))
        transposed = random_of.random() < 0.2
        kernel = pick((1, 2, 3, 3, 3, 4, 4, 5, 7, 10) if dims < 3 else (1, 2, 3, 3, 4))
        stride = pick((1, 1, 1, 2, 2, kernel, 5 if dims == 1 else 1))
        c, out = pick(channels), pick(channels)
        form = random_of.random()
        groups = 1
        if form < 0.1:
            groups, out = c, c
        elif form < 0.25:
            groups = pick((2, 4, 8, 16, 32))
        padding = pick((kernel // 2, kernel // 2, (kernel - 1) // 2, 0, 1))
        dilation = pick((1, 1, 1, 1, 1, 2)) if kernel > 1 else 1
        dtype, layout, tf32 = pick(SETTINGS)
        if dims == 2 and layout == "channels_last" and random_of.random() < 0.15:
            layout = "input_only"
        if random_of.random() < 0.03:
            dtype = "float64"
        batch, size = pick((1, 2, 4, 8, 12, 16, 32, 64)), pick(sizes[dims])
        yield Convolution(
            dims, batch, c, out, size, kernel, stride, padding, dilation, groups, transposed, dtype, layout, tf32
        )


def layers(seed: int = 171) -> Iterator[Convolution]:
    """Layers as programs have them: padding that keeps the size, few strides, batches and images of many sizes."""
    random_of = random.Random(seed)
    pick = random_of.choice
    widths = {
        1: (1, 16, 40, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 512, 768),
        2: (3, 16, 24, 32, 40, 48, 56, 64, 72, 80, 96, 112, 120, 128, 144, 160, 192, 240, 256, 288, 320, 384, 480, 512,
            576, 640, 672, 768, 1024, 1152, 1536, 2048),
        3: (1, 2, 3, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256),
    }  # fmt: skip
    sizes = {
        1: (50, 100, 150, 200, 400, 750, 999, 1500, 3000, 4000, 8000, 16_000, 48_000),
        2: (4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 22, 24, 28, 32, 36, 40, 44, 48, 56, 64, 72, 80, 88, 96, 105, 112, 120,
            128, 144, 160, 176, 192, 224, 256, 320, 384),
        3: (4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96),
    }  # fmt: skip
    while True:
        dims = pick((1, 2, 2, 2, 2, 2, 2, 3))
        form = random_of.random()
        channels, out, groups, transposed = pick(widths[dims]), pick(widths[dims]), 1, False
        stride, dilation = pick((1, 1, 1, 2)), 1
        kernel = pick((1, 1, 3, 3, 3, 3, 5, 7, 9)) if dims < 3 else pick((1, 3, 3, 3, 5))
        padding = kernel // 2
        if form < 0.15:
            out = groups = channels
        elif form < 0.22:
            groups = pick((2, 4, 8, 16, 32))
        elif form < 0.32 and kernel > 1:
            dilation, stride = pick((2, 3, 4, 6, 8, 12, 18)), 1
            padding = dilation * (kernel // 2)
        elif form < 0.40:
            transposed, kernel, stride, padding = True, *pick(((4, 2, 1), (2, 2, 0), (4, 2, 1), (4, 4, 0), (3, 2, 1)))
        elif form < 0.46:
            kernel = stride = pick((2, 4, 8, 14, 16))
            padding = 0
        elif form < 0.52:
            kernel, stride, padding = pick(((4, 2, 1), (5, 2, 2), (7, 2, 3), (3, 2, 1)))
        elif form < 0.56:
            channels = pick((1, 3, 4))
        elif form < 0.60:
            out = pick((1, 3, 4, 10, 21, 36, 50))
        batch = pick((1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128, 192, 256))
        yield Convolution(
            dims, batch, channels, out, pick(sizes[dims]), kernel, stride, padding, dilation, groups, transposed,
            *pick((*SETTINGS[:6], *SETTINGS[:2], SETTINGS[6])),
        )  # fmt: skip


def layer_calls() -> Iterator[tuple[object, Callable[[], object]]]:
    for case in distinct(100_000, Convolution.is_usable, layers()):
        yield list(case), lambda case=case: run(case)


def benchmarked_calls() -> Iterator[tuple[object, Callable[[], object]]]:
    """With cuDNN's benchmark: the first call of each pass tries all kernels, the second runs the fastest."""
    for case in distinct(100_000, Convolution.is_usable, layers(seed=172)):
        yield list(case), lambda case=case: run(case, benchmark=True)


def deterministic_calls() -> Iterator[tuple[object, Callable[[], object]]]:
    for case in distinct(100_000, Convolution.is_usable, layers(seed=171)):
        yield list(case), lambda case=case: run(case, deterministic=True)


def cases(count: int = 30_000) -> Iterator[Convolution]:
    """Layers of networks, systematic and drawn ones by turns."""
    random_of = random.Random(17)
    first, second = list(of_networks()), list(systematic())
    random_of.shuffle(first)
    random_of.shuffle(second)
    by_turns = itertools.chain.from_iterable(zip(first, second, drawn(random_of), strict=False))
    return distinct(count, Convolution.is_usable, by_turns, second[len(first) :], drawn(random_of))


def calls() -> Iterator[tuple[object, Callable[[], object]]]:
    for case in cases():
        yield list(case), lambda case=case: run(case)
