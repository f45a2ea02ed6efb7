"""Generates random programs: lists of Python expressions over `p`, the tensors so far."""

from __future__ import annotations

import random
from collections.abc import Callable

from torch import Tensor

DTYPES = ["float32", "float32", "float64", "bfloat16", "int64", "int32", "uint8", "bool", "complex64"]

Pool = list[Tensor | None]


def broadcast(a: Tensor, b: Tensor) -> bool:
    return all(m in (1, n) or n == 1 for m, n in zip(a.shape[::-1], b.shape[::-1], strict=False))


class Writer:
    """Writes the next line of a program, based on the tensors so far."""

    def __init__(self, seed: int, pool: Pool) -> None:
        self.rng = random.Random(seed)
        self.pool = pool

    def pick(self) -> tuple[int, Tensor]:
        index = self.rng.choice([i for i, tensor in enumerate(self.pool) if tensor is not None])
        return index, self.pool[index]

    def like(self, tensor: Tensor) -> int:
        """Another tensor: usually one that broadcasts with this one, sometimes any."""
        fitting = [i for i, other in enumerate(self.pool) if other is not None and broadcast(other, tensor)]
        return self.rng.choice(fitting) if fitting and self.rng.random() < 0.9 else self.pick()[0]

    def dim(self, tensor: Tensor) -> int:
        rank = max(tensor.dim(), 1)
        return self.rng.randrange(-rank, rank) if self.rng.random() < 0.97 else rank

    def shape(self) -> tuple[int, ...]:
        return tuple(self.rng.choice([0, 1, 1, 2, 2, 3, 4, 5]) for _ in range(self.rng.choice([0, 1, 1, 2, 2, 3, 4])))

    def dtype(self) -> str:
        return f"torch.{self.rng.choice(DTYPES)}"

    def regrouped(self, tensor: Tensor) -> tuple[int, ...]:
        """A shape with the same number of elements, or nearly so."""
        sizes = list(tensor.shape) or [1]
        self.rng.shuffle(sizes)
        while len(sizes) > 1 and self.rng.random() < 0.5:
            sizes.append(sizes.pop() * sizes.pop())
        if self.rng.random() < 0.3:
            sizes[self.rng.randrange(len(sizes))] = self.rng.choice([-1, -1, 1, 7])
        return tuple(sizes)

    def key(self, tensor: Tensor) -> str:
        parts = []
        for size in tensor.shape[: self.rng.randint(0, tensor.dim())]:
            kind = self.rng.randrange(7)
            if kind == 0:
                parts.append(str(self.rng.randrange(-size, size + (self.rng.random() < 0.05)) if size else 0))
            elif kind == 1:
                parts.append("None")
                parts.append(":")
            elif kind == 2 and size:
                parts.append(f"torch.tensor({[self.rng.randrange(size) for _ in range(self.rng.randint(1, 3))]})")
            elif kind == 3:
                parts.append(f"torch.tensor({[self.rng.random() < 0.5 for _ in range(size)]}, dtype=torch.bool)")
            else:
                start, stop = self.rng.randint(-size - 1, size + 1), self.rng.randint(-size - 1, size + 1)
                parts.append(f"{start}:{stop}:{self.rng.randint(1, 2)}" if self.rng.random() < 0.5 else f"{start}:")
        if self.rng.random() < 0.2:
            parts.append("...")
        return ", ".join(parts) or "..."

    def create(self) -> str:
        shape, dtype = self.shape(), self.dtype()
        return self.rng.choice(
            [
                f"torch.zeros({shape}, dtype={dtype})",
                f"torch.ones({shape}, dtype={dtype})",
                f"torch.full({shape}, 2, dtype={dtype})",
                f"torch.randn({shape})",
                f"torch.randn({shape}, requires_grad=True)",
                f"torch.rand({shape}).to({dtype})",
                f"torch.arange({self.rng.randint(0, 9)}, dtype={dtype})",
                f"torch.linspace(0, 1, {self.rng.randint(0, 9)})",
                f"torch.eye({self.rng.randint(0, 4)}, dtype={dtype})",
                f"torch.tensor({[self.rng.randint(0, 9) for _ in range(self.rng.randint(0, 4))]}, dtype={dtype})",
                f"torch.randint(0, 9, {shape})",
                "torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)",
            ]
        )

    def make_like(self) -> str:
        i, _ = self.pick()
        return self.rng.choice(
            [
                f"torch.zeros_like(p[{i}])",
                f"torch.ones_like(p[{i}], dtype={self.dtype()})",
                f"torch.rand_like(p[{i}])",
                f"p[{i}].new_zeros({self.shape()})",
                f"p[{i}].new_full({self.shape()}, 1)",
                f"p[{i}].clone()",
                f"p[{i}].contiguous()",
                f"p[{i}].to({self.dtype()})",
                f"p[{i}].clone(memory_format=torch.contiguous_format)",
            ]
        )

    def view(self) -> str:
        i, x = self.pick()
        d, e, size = self.dim(x), self.dim(x), max([1, *x.shape])
        permuted = self.rng.sample(range(x.dim()), x.dim())
        expanded = (2, *(4 if n == 1 and self.rng.random() < 0.5 else n for n in x.shape))
        call = self.rng.choice(
            [
                f"view({self.regrouped(x)})",
                f"reshape({self.regrouped(x)})",
                f"transpose({d}, {e})",
                f"permute({permuted})",
                f"expand({expanded})",
                f"unsqueeze({d})",
                f"squeeze({d})",
                "squeeze()",
                f"select({d}, {self.rng.randrange(size)})",
                f"narrow({d}, 0, {self.rng.randint(0, size)})",
                f"split({self.rng.randint(1, 3)}, {d})",
                f"chunk({self.rng.randint(1, 3)}, {d})",
                f"unbind({d})[:2]",
                f"diagonal({self.rng.randint(-1, 1)}, {d}, {e})",
                f"unfold({d}, {self.rng.randint(0, 3)}, {self.rng.randint(1, 2)})",
                f"flatten({d})",
                "detach()",
                "data",
                "T" if x.dim() == 2 else "mT",
                f"movedim({d}, {e})",
                "conj()",
                "real",
                f"as_strided(({self.rng.randint(0, 2)}, {self.rng.randint(1, 3)}), (2, 1), {self.rng.randint(0, 3)})",
                f"view({self.dtype()})",
                "__getitem__(())",
            ]
        )
        return f"p[{i}].{call}"

    def index(self) -> str:
        i, x = self.pick()
        return f"p[{i}][{self.key(x)}]"

    def arithmetic(self) -> str:
        i, x = self.pick()
        j, scalar = self.like(x), self.rng.choice(["2", "0.5", "True", "1j"])
        other = f"p[{j}]" if self.rng.random() < 0.8 else scalar
        return self.rng.choice(
            [
                f"p[{i}] + {other}",
                f"p[{i}] * {other}",
                f"{other} - p[{i}]",
                f"p[{i}] / {other}",
                f"p[{i}] > {other}",
                f"p[{i}] == {other}",
                f"torch.where(p[{i}].to(torch.bool), p[{j}], p[{i}])",
                f"torch.maximum(p[{i}], p[{j}])",
                f"p[{i}].exp()",
                f"p[{i}].abs()",
                f"-p[{i}]",
                f"p[{i}].clamp(0, 1)",
                f"torch.nn.functional.gelu(p[{i}])",
                f"p[{i}] & {other}",
                f"p[{i}].logical_not()",
                f"torch.atan2(p[{i}], p[{j}])",
                f"p[{i}] @ p[{j}]",
                f"p[{i}] @ p[{i}].mT",
                f"torch.cat([p[{i}], p[{j}], p[{i}]], {self.dim(x)})",
                f"torch.stack([p[{i}], p[{i}]], {self.dim(x)})",
                f"torch.addcmul(p[{i}], p[{j}], p[{j}])",
                f"torch.lerp(p[{i}], p[{j}], 0.5)",
            ]
        )

    def reduce(self) -> str:
        i, x = self.pick()
        d, keep = self.dim(x), self.rng.random() < 0.5
        return self.rng.choice(
            [
                f"p[{i}].sum()",
                f"p[{i}].sum({d}, keepdim={keep})",
                f"p[{i}].sum({d}, dtype=torch.float64)",
                f"p[{i}].mean({d}, {keep})",
                f"p[{i}].amax({d}, {keep})",
                f"p[{i}].max({d})",
                f"p[{i}].argmin({d}, {keep})",
                f"p[{i}].any({d})",
                f"p[{i}].all()",
                f"p[{i}].cumsum({d})",
                f"p[{i}].softmax({d})",
                f"p[{i}].var({d})",
                f"p[{i}].norm()",
                f"p[{i}].sort({d})",
                f"p[{i}].topk(1, {d})",
                f"torch.nn.functional.layer_norm(p[{i}], p[{i}].shape[-1:])",
                f"p[{i}].logsumexp({d})",
                f"p[{i}].flip({d})",
                f"p[{i}].roll(1, {d})",
            ]
        )

    def write(self) -> str:
        i, x = self.pick()
        j = self.like(x)
        return self.rng.choice(
            [
                f"p[{i}].add_(p[{j}])",
                f"p[{i}].mul_(2)",
                f"p[{i}].zero_()",
                f"p[{i}].fill_(1)",
                f"p[{i}].copy_(p[{j}])",
                f"p[{i}].uniform_()",
                f"p[{i}].clamp_(0, 1)",
                f"p[{i}].__setitem__(..., p[{j}])",
                f"operator.setitem(p[{i}], slice(0, 1), 1)",
                f"p[{i}].masked_fill_(p[{i}] > 0, 0)",
                f"torch.add(p[{i}], p[{j}], out=p[{self.pick()[0]}])",
                f"torch.sum(p[{i}], 0, out=p[{self.pick()[0]}])",
                f"p[{i}].transpose_({self.dim(x)}, {self.dim(x)})",
                f"p[{i}].unsqueeze_(0)",
                f"p[{i}].squeeze_()",
                f"p[{i}].resize_({self.shape()})",
                f"p[{i}].set_(p[{j}])",
                f"setattr(p[{i}], 'data', p[{j}])",
                f"p[{i}].detach_()",
                f"p[{i}].data.sub_(1)",
                f"torch._foreach_add_([p[{i}]], [p[{j}]])",
                f"p[{i}].fill_diagonal_(1)",
            ]
        )

    def differentiate(self) -> str:
        i, _ = self.pick()
        return self.rng.choice(
            [
                f"p[{i}].requires_grad_()",
                f"p[{i}].requires_grad_(False)",
                f"p[{i}].sum().backward()",
                f"p[{i}].sum().backward(retain_graph=True)",
                f"torch.autograd.grad(p[{i}].abs().sum(), p[{self.pick()[0]}], allow_unused=True)",
                f"torch.autograd.grad(p[{i}].abs().sum(), p[{self.pick()[0]}], create_graph=True)",
                f"p[{i}].retain_grad()",
                f"p[{i}].grad",
            ]
        )

    def line(self) -> str:
        kinds: list[tuple[int, Callable[[], str]]] = [
            (3, self.create), (2, self.make_like), (6, self.view), (4, self.index), (5, self.arithmetic),
            (4, self.reduce), (5, self.write), (3, self.differentiate),
        ]  # fmt: skip
        (kind,) = self.rng.choices([kind for _, kind in kinds], [weight for weight, _ in kinds])
        return kind() if any(tensor is not None for tensor in self.pool) else self.create()
