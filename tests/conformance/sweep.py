"""Every OpInfo of PyTorch, real CPU against fake. `python tests/conformance/sweep.py --help` for the whole run."""

from __future__ import annotations

import argparse
import collections
import json
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo

from compare import DECLARED, Result, compare  # type: ignore[import-not-found]

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.complex64, torch.bool)


def transposed(value: Any) -> Any:
    """The same values, laid out the other way round."""
    if isinstance(value, torch.Tensor) and value.layout == torch.strided and value.dim() >= 2:
        other = value.detach().transpose(0, -1).contiguous().transpose(0, -1)
        return other.requires_grad_(value.requires_grad)
    return value


LAYOUTS = {"plain": lambda value: value, "transposed": transposed}


def samples(op: OpInfo, dtype: torch.dtype, limit: int) -> Iterator[Any]:
    grad = op.supports_autograd and dtype in (torch.float32, torch.bfloat16, torch.complex64)
    for i, sample in enumerate(op.sample_inputs("cpu", dtype, requires_grad=grad)):
        if i == limit:
            return
        yield sample


def check(op: OpInfo, sample: Any, layout: str, with_gradients: bool) -> Result:
    sample = sample.transform(LAYOUTS[layout])
    arguments = ((sample.input, *sample.args), sample.kwargs)
    result = compare(op.op, arguments, with_gradients=with_gradients)
    if result.outcome == DECLARED:
        # Where values decide, fakes that know theirs have to answer.
        result_known = compare(op.op, arguments, known=True, with_gradients=False)
        if result_known.outcome not in (DECLARED, "same"):
            return result_known
    return result


def sweep(names: str, dtypes: list[torch.dtype], layouts: list[str], limit: int) -> Iterator[tuple[str, Result]]:
    for op in op_db:
        if names not in op.name:
            continue
        for dtype in dtypes:
            if dtype not in op.dtypes:
                continue
            try:
                for i, sample in enumerate(samples(op, dtype, limit)):
                    for layout in layouts:
                        yield (
                            f"{op.formatted_name} {dtype} {layout} {i}",
                            check(op, sample, layout, op.supports_autograd and dtype.is_floating_point),
                        )
            except Exception as error:
                yield f"{op.formatted_name} {dtype}", Result("no samples", f"{type(error).__name__}: {error}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--op", default="", help="only operators whose name contains this")
    parser.add_argument("--limit", type=int, default=8, help="samples per operator and dtype")
    parser.add_argument("--dtypes", default="float32", help="comma-separated, or 'all'")
    parser.add_argument("--layouts", default="plain", help="comma-separated, or 'all'")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    dtypes = list(DTYPES) if arguments.dtypes == "all" else [getattr(torch, d) for d in arguments.dtypes.split(",")]
    layouts = list(LAYOUTS) if arguments.layouts == "all" else arguments.layouts.split(",")
    counts: collections.Counter[str] = collections.Counter()
    shown: dict[tuple[str, str], int] = collections.defaultdict(int)
    rows = []
    for name, result in sweep(arguments.op, dtypes, layouts, arguments.limit):
        counts[result.outcome] += 1
        if result.outcome not in ("same", "both raise", DECLARED):
            key = (name.split()[0], result.outcome)
            shown[key] += 1
            rows.append([name, result.outcome, result.detail])
            if shown[key] <= 2 and not arguments.json:
                print(f"{name}: {result.outcome}: {result.detail}", flush=True)
    if arguments.json:
        json.dump({"counts": counts, "rows": rows}, sys.stdout)
    else:
        print(dict(counts))


if __name__ == "__main__":
    main()
