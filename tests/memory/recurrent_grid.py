"""Recurrent networks over a grid, for recording what cuDNN keeps and takes for a time, in a fixed order."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from distinct import distinct
from torch.nn.utils import rnn

MOST_ELEMENTS = 1 << 26


class Recurrent(NamedTuple):
    kind: str
    batch: int
    length: int
    width: int
    hidden: int
    layers: int
    bidirectional: bool
    batch_first: bool
    dropout: float
    projection: int
    packed: bool
    bias: bool
    input_gradient: bool
    dtype: str

    def is_usable(self) -> bool:
        cells = self.batch * self.length * max(self.width, 2 * self.hidden) * self.layers
        weights = 8 * self.hidden * (self.hidden + self.width) * self.layers
        return cells <= MOST_ELEMENTS and weights <= MOST_ELEMENTS and self.projection < self.hidden


def run(case: Recurrent) -> None:
    """A step of training twice, with the gradient of the output alone; then inference twice."""
    kind, options = case.kind, {}
    if kind == "LSTM":
        options["proj_size"] = case.projection
    elif kind != "GRU":
        kind, options = "RNN", {"nonlinearity": case.kind}
    dtype = getattr(torch, case.dtype)
    model = getattr(torch.nn, kind)(
        case.width, case.hidden, case.layers, bias=case.bias, batch_first=case.batch_first, dropout=case.dropout,
        bidirectional=case.bidirectional, device="cuda", dtype=dtype, **options,
    )  # fmt: skip
    shape = (case.batch, case.length) if case.batch_first else (case.length, case.batch)
    x = torch.zeros(*shape, case.width, device="cuda", dtype=dtype, requires_grad=case.input_gradient)
    lengths = torch.tensor([max(1, case.length * (i + 1) // case.batch) for i in range(case.batch)])

    def forward() -> torch.Tensor:
        if not case.packed:
            return model(x)[0]
        return model(rnn.pack_padded_sequence(x, lengths, case.batch_first, enforce_sorted=False))[0].data

    for _ in range(2):
        y = forward()
        y.backward(torch.empty_like(y))
        del y
    model.eval()
    with torch.no_grad():
        for _ in range(2):
            forward()


def one_at_a_time() -> Iterator[Recurrent]:
    """A base case, and others that differ in one respect each."""
    for kind, dtype in (("LSTM", "float32"), ("GRU", "float32"), ("tanh", "float32"), ("LSTM", "bfloat16")):
        base = Recurrent(kind, 16, 64, 128, 256, 1, False, True, 0.0, 0, False, True, True, dtype)
        yield base
        for name, values in (
            ("batch", (1, 2, 4, 8, 24, 32, 33, 48, 64, 96, 128, 256)),
            ("length", (1, 2, 4, 8, 16, 24, 32, 50, 96, 100, 128, 256, 512)),
            ("width", (1, 8, 16, 32, 64, 100, 200, 256, 512, 1024)),
            ("hidden", (8, 16, 32, 64, 100, 128, 192, 200, 320, 400, 512, 650, 800, 1024, 2048)),
            ("layers", (2, 3, 4, 6)),
            ("bidirectional", (True,)),
            ("batch_first", (False,)),
            ("packed", (True,)),
            ("bias", (False,)),
            ("input_gradient", (False,)),
            ("projection", (64,) if kind == "LSTM" else ()),
            ("dtype", ("float32", "float16", "bfloat16", "float64")),
        ):
            for value in values:
                case = base._replace(**{name: value})
                yield case
                yield case._replace(layers=2, dropout=0.2) if name != "layers" else case._replace(bidirectional=True)


def drawn(random_of: random.Random) -> Iterator[Recurrent]:
    pick = random_of.choice
    widths = (16, 32, 40, 64, 80, 100, 128, 200, 256, 300, 320, 400, 512, 640, 800, 1024)
    while True:
        kind = pick(("LSTM", "LSTM", "LSTM", "GRU", "GRU", "tanh", "relu"))
        hidden = pick(widths)
        layers = pick((1, 1, 2, 2, 3, 4))
        yield Recurrent(
            kind, pick((1, 2, 4, 8, 16, 20, 32, 64, 128)), pick((1, 5, 10, 20, 35, 50, 64, 100, 120, 200, 300)),
            pick(widths), hidden, layers, random_of.random() < 0.35, random_of.random() < 0.6,
            pick((0.0, 0.2)) if layers > 1 else 0.0,
            hidden // 2 if kind == "LSTM" and random_of.random() < 0.1 else 0,
            random_of.random() < 0.15, random_of.random() < 0.9, random_of.random() < 0.6,
            pick(("float32", "float32", "bfloat16", "float16")),
        )  # fmt: skip


def cases(count: int = 8_000) -> Iterator[Recurrent]:
    random_of = random.Random(17)
    first = list(one_at_a_time())
    random_of.shuffle(first)
    return distinct(count, Recurrent.is_usable, first, drawn(random_of))


def calls() -> Iterator[tuple[object, Callable[[], object]]]:
    for case in cases():
        yield list(case), lambda case=case: run(case)
