"""Checks symbolic fakes at other sizes: every OpInfo sample, traced with symbols and run for real at other sizes.

    python tests/conformance/other_sizes.py --samples 2            # torchfake
    python tests/conformance/other_sizes.py --samples 2 --pytorch  # PyTorch's FakeTensorMode with its own ShapeEnv
    python tests/conformance/other_sizes.py --samples 2 --compare  # both, sample by sample
    python tests/conformance/other_sizes.py --only conv gather

Each size of 2 or more is a symbol, one per distinct size. The script searches for other sizes that the recorded guards
allow; the real operator runs there on the CPU, and sizes, strides and offsets are compared with the expressions. A
sample

    holds         agrees at other sizes, in the gradients of its inputs too
    specialised   no other sizes are allowed by the guards
    wrong         disagrees
    raised        raises where the real operator does not
    unreal        the real operator refuses every other size that was tried, for reasons of values as a rule
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import random
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

OTHER_VALUES = (3, 4, 5, 6, 7, 8, 9, 10, 12)
TRIES = 24


def is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def samples_of(opinfo: Any, count: int) -> Iterator[tuple[Callable[..., Any], Any]]:
    """The operator and its arguments for the first samples with sizes of 2 and more."""
    dtypes = [dtype for dtype in (torch.float32, torch.complex64, torch.int64, torch.bool) if dtype in opinfo.dtypes]
    if not dtypes:
        return
    requires_grad = opinfo.supports_autograd and dtypes[0] == torch.float32
    taken = 0
    for sample in opinfo.sample_inputs("cpu", dtypes[0], requires_grad=requires_grad):
        arguments = (sample.input, list(sample.args), dict(sample.kwargs))
        if not any(size >= 2 for leaf in tree_leaves(arguments) if is_tensor(leaf) for size in leaf.shape):
            continue
        if taken == count:
            return
        taken += 1
        yield (lambda arguments, op=opinfo.op: op(arguments[0], *arguments[1], **arguments[2])), arguments


def symbol_of(size: int) -> str:
    return f"d{size}"


def order_of(tensor: torch.Tensor) -> list[int]:
    """The dimensions from innermost to outermost."""
    return sorted(range(tensor.dim() - 1, -1, -1), key=lambda dim: tensor.stride(dim))


def at_sizes(tensor: torch.Tensor, values: dict[int, int]) -> torch.Tensor:
    """A tensor like this one with other sizes, with its values repeated, and laid out in the same way.

    A stride that spans a whole dimension spans it again; others, and the offset, stay.
    """
    sizes = [values.get(size, size) for size in tensor.shape]
    strides = list(tensor.stride())
    order = order_of(tensor)
    for place, dim in enumerate(order):
        for inner in reversed(order[:place]):
            if tensor.shape[inner] > 1 and tensor.stride(dim) == tensor.shape[inner] * tensor.stride(inner):
                strides[dim] = sizes[inner] * strides[inner]
                break
    steps = sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True) if size > 0)
    memory = torch.zeros(tensor.storage_offset() + steps + 1, dtype=tensor.dtype)
    other = memory.as_strided(sizes, strides, tensor.storage_offset())
    flat = tensor.detach().reshape(-1)
    if other.numel() > 0 and flat.numel() > 0:
        times = -(-other.numel() // flat.numel())
        other.copy_(flat.repeat(times)[: other.numel()].reshape(sizes))
    return other.requires_grad_(tensor.requires_grad)


def at_other_sizes(arguments: Any, values: dict[int, int]) -> Any:
    return tree_map(lambda leaf: at_sizes(leaf, values) if is_tensor(leaf) else leaf, arguments)


class OurSymbols:
    """Symbolic fakes of torchfake."""

    def __init__(self) -> None:
        from torchfake import FakeTensorMode, ShapeEnv

        self.env = ShapeEnv()
        self.mode = FakeTensorMode(shape_env=self.env)

    def dispatching(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def fake(self, tensor: torch.Tensor) -> torch.Tensor:
        names = {dim: symbol_of(size) for dim, size in enumerate(tensor.shape) if size >= 2}
        return self.mode.from_tensor(tensor, dynamic=names)

    def allows(self, values: dict[int, int]) -> bool:
        return self.env.guards_hold({symbol_of(size): value for size, value in values.items()})

    def at(self, number: Any, values: dict[int, int]) -> int:
        if isinstance(number, int):
            return number
        return self.env.evaluate(number, {symbol_of(size): value for size, value in values.items()})

    def explain(self) -> str:
        return "; ".join(str(guard) for guard in self.env.guards if ">= 2" not in str(guard))


class PyTorchsSymbols:
    """Symbolic fakes of PyTorch."""

    def __init__(self) -> None:
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        self.env = ShapeEnv()
        self.mode = FakeTensorMode(shape_env=self.env)
        self.symbols: dict[int, Any] = {}

    def dispatching(self) -> contextlib.AbstractContextManager[Any]:
        """As PyTorch's own tracers run with symbols."""
        from torch._dispatch.python import enable_python_dispatcher

        return enable_python_dispatcher()

    def fake(self, tensor: torch.Tensor) -> torch.Tensor:
        from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

        # Equal sizes share a symbol, as in OurSymbols.
        dims = [DimDynamic.DUCK if size >= 2 else DimDynamic.STATIC for size in tensor.shape]
        fake = self.mode.from_tensor(tensor, symbolic_context=StatelessSymbolicContext(dynamic_sizes=dims))
        for size, symbol in zip(tensor.shape, fake.shape, strict=True):
            if not isinstance(symbol, int):
                self.symbols[size] = symbol.node.expr
        return fake

    def replaced(self, expr: Any, values: dict[int, int]) -> Any:
        import sympy

        known = {symbol: sympy.Integer(values[size]) for size, symbol in self.symbols.items()}
        return self.env.simplify(expr).xreplace(known).xreplace(known)

    def allows(self, values: dict[int, int]) -> bool:
        import sympy

        for size, symbol in self.symbols.items():
            found = self.env.replacements.get(symbol, symbol)
            if self.replaced(found, values) != values[size]:
                return False
            bounds = self.env.var_to_range.get(symbol)
            if bounds is not None and not bounds.lower <= values[size] <= bounds.upper:
                return False
        return all(self.replaced(guard.expr, values) == sympy.true for guard in self.env.guards)

    def at(self, number: Any, values: dict[int, int]) -> int:
        return number if isinstance(number, int) else int(self.replaced(number.node.expr, values))

    def explain(self) -> str:
        return "; ".join(str(guard.expr) for guard in self.env.guards)


def gradients(outputs: Any, inputs: Any) -> list[Any]:
    """The gradients of the inputs that have one."""
    roots = [leaf for leaf in tree_leaves(outputs) if is_tensor(leaf) and leaf.requires_grad]
    leaves = [leaf for leaf in tree_leaves(inputs) if is_tensor(leaf) and leaf.requires_grad]
    if not roots or not leaves:
        return []
    return list(torch.autograd.grad(roots, leaves, [torch.ones_like(root) for root in roots], allow_unused=True))


def geometry(outputs: Any) -> list[Any]:
    """Sizes, strides and offset of every strided tensor among the outputs."""
    result: list[Any] = []
    for leaf in tree_leaves(outputs):
        if is_tensor(leaf) and leaf.layout == torch.strided:
            result.append((tuple(leaf.shape), tuple(leaf.stride()), leaf.storage_offset()))
    return result


def judge(op: Callable[..., Any], arguments: Any, engine: str, seed: int, backward: bool = True) -> tuple[str, str]:
    """The outcome of one sample, and the reason."""
    tensors = [leaf for leaf in tree_leaves(arguments) if is_tensor(leaf)]
    if any(tensor.layout != torch.strided for tensor in tensors):
        return "unreal", "layout"
    sizes = sorted({size for tensor in tensors for size in tensor.shape if size >= 2})
    if not sizes:
        return "unreal", "no sizes of 2 and more"
    copies = tree_map(
        lambda leaf: leaf.detach().clone().requires_grad_(leaf.requires_grad) if is_tensor(leaf) else leaf, arguments
    )
    real = op(copies)
    if backward:
        gradients(real, copies)
    symbols = PyTorchsSymbols() if engine == "pytorch" else OurSymbols()
    try:
        fakes = tree_map(lambda leaf: symbols.fake(leaf) if is_tensor(leaf) else leaf, arguments)
        with symbols.mode, symbols.dispatching():
            outputs = op(fakes)
            result = geometry(outputs) + (geometry(gradients(outputs, fakes)) if backward else [])
    except Exception as error:
        return "raised", f"{type(error).__name__}: {str(error).splitlines()[0][:150] if str(error) else ''}"
    draw = random.Random(seed)
    candidates = [{size: 2 * size for size in sizes}, {size: size + 1 for size in sizes}]
    for one in sizes:
        candidates += [{size: size + (size == one) * more for size in sizes} for more in (1, 2, one)]
    candidates += [{size: draw.choice(OTHER_VALUES) for size in sizes} for _ in range(200)]
    tried, refused = 0, ""
    for values in candidates:
        if all(size == value for size, value in values.items()) or not symbols.allows(values):
            continue
        if tried == TRIES:
            break
        tried += 1
        others = at_other_sizes(arguments, values)
        try:
            real = op(others)
            expected = geometry(real) + (geometry(gradients(real, others)) if backward else [])
        except Exception as error:
            refused = f"{values}: {str(error).splitlines()[0][:100] if str(error) else type(error).__name__}"
            continue
        said = [
            (
                tuple(symbols.at(x, values) for x in size),
                tuple(symbols.at(x, values) for x in stride),
                symbols.at(offset, values),
            )
            for size, stride, offset in result
        ]
        if said != expected:
            difference = next(
                (pair for pair in zip(said, expected, strict=False) if pair[0] != pair[1]), (len(said), len(expected))
            )
            return "wrong", f"at {values}: {difference[0]} and really {difference[1]}; guards {symbols.explain()}"
        return "holds", ""
    return ("unreal", refused) if tried else ("specialised", symbols.explain())


Findings = dict[str, dict[str, tuple[str, str]]]


def run(only: list[str], samples: int, engines: list[str], backward: bool) -> Findings:
    """By sample, what was found with each engine: the outcome, and the reason."""
    from torch.testing._internal.common_methods_invocations import op_db

    found: Findings = {}
    for opinfo in op_db:
        name = opinfo.name + (f".{opinfo.variant_test_name}" if opinfo.variant_test_name else "")
        if only and not any(part in name for part in only):
            continue
        torch.manual_seed(0)
        try:
            for index, (op, arguments) in enumerate(samples_of(opinfo, samples)):
                found[f"{name} [{index}]"] = {
                    engine: judge_safely(op, arguments, engine, index, backward) for engine in engines
                }
        except Exception as error:
            found[f"{name} samples"] = {engine: ("unreal", type(error).__name__) for engine in engines}
    return found


def judge_safely(
    op: Callable[..., Any], arguments: Any, engine: str, seed: int, backward: bool = True
) -> tuple[str, str]:
    """As judge(); errors of the real operator, or of the script, are reasons not to count a sample."""
    try:
        return judge(op, arguments, engine, seed, backward)
    except Exception as error:
        return "unreal", f"{type(error).__name__}: {error}"[:200]


def report(found: Findings, engines: list[str]) -> None:
    """Prints every sample that does not hold with the first engine, and how often each outcome occurs."""
    for verdict in ("specialised", "wrong", "raised", "unreal"):
        for name, verdicts in found.items():
            if verdicts[engines[0]][0] == verdict:
                others = "".join(f" ({engine}: {verdicts[engine][0]})" for engine in engines[1:])
                print(f"{verdict:12}{name}{others} {verdicts[engines[0]][1]}")
    for engine in engines:
        print(engine, dict(Counter(verdicts[engine][0] for verdicts in found.values())))
    if len(engines) == 2:
        pairs = Counter(tuple(verdicts[engine][0] for engine in engines) for verdicts in found.values())
        print(f"\n{engines[0]:16}{engines[1]:16}samples")
        for (ours, theirs), count in sorted(pairs.items()):
            print(f"{ours:16}{theirs:16}{count}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="parts of operators' names")
    parser.add_argument("--samples", type=int, default=2, help="of each operator")
    engines = parser.add_mutually_exclusive_group()
    engines.add_argument("--pytorch", action="store_true", help="PyTorch's symbolic fakes instead of torchfake's")
    engines.add_argument("--compare", action="store_true", help="both on the same samples")
    parser.add_argument("--forward", action="store_true", help="leave the gradients out")
    parser.add_argument("--json", help="write the findings to this file")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.ERROR)  # PyTorch's tracebacks of what is counted here
    chosen = ["torchfake", "pytorch"] if options.compare else ["pytorch"] if options.pytorch else ["torchfake"]
    found = run(options.only, options.samples, chosen, not options.forward)
    report(found, chosen)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    sys.exit(main())
