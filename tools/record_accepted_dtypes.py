"""Records which recorded refusals of dtypes the installed PyTorch contradicts, in cmake/records/accepted_dtypes.json.

cmake/records/refused_dtypes.*.json comes from one release of PyTorch; later ones have more kernels. Every OpInfo lists
the dtypes that its operator supports on a device. Its samples of these dtypes are called on fakes that claim the
device; what torchfake refuses because of a record is written to the file, under the release. A refusal ends a sample,
so rebuild and repeat until nothing is found:

    bash run build --torch 2.15.0 && .venv-torch-2.15.0/bin/python tools/record_accepted_dtypes.py
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from torchfake import fake_mode, to_fake

sys.path.insert(0, str(Path(__file__).parents[1] / "cmake"))

from generate_refused_dtypes import ACCEPTED, INSTALLED, SCALAR_TYPES

SAMPLES = 4  # per OpInfo and dtype
NAMES = {cpp: name for name, cpp in SCALAR_TYPES.items()}

#: An operator, and the dtype of each argument.
Refusal = tuple[str, dict[str, str]]


class LastCall(TorchDispatchMode):
    """Stores the last operator called, with its arguments."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.func, self.args, self.kwargs = func, args, kwargs
        return func(*args, **kwargs)

    def refusal(self, message: str) -> Refusal:
        """The call that was refused. A missing kernel may be for the dtype to which all are promoted."""
        missing = re.search(r"not implemented for '(\w+)'", message)
        named = {a.name: v for a, v in zip(self.func._schema.arguments, self.args, strict=False)} | self.kwargs
        dtypes = {}
        for name, value in named.items():
            for tensor in value if isinstance(value, (list, tuple)) else [value]:
                if isinstance(tensor, torch.Tensor):
                    dtypes[name] = NAMES[missing[1]] if missing else str(tensor.dtype).removeprefix("torch.")
        return self.func._schema.name + ("." + self.func._schema.overload_name).rstrip("."), dtypes


def refusals(op: OpInfo, device: str) -> Iterator[Refusal]:
    """The refusals among the samples that the OpInfo lists as supported."""
    for dtype in sorted(op.supported_dtypes(device), key=str):
        grad = dtype in op.supported_backward_dtypes(device)
        try:
            samples = list(itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=grad), SAMPLES))
        except (RuntimeError, TypeError, ValueError):
            continue  # created with operators that the CPU does not have for this dtype
        for sample in samples:
            last = LastCall()
            try:
                with fake_mode(), last:
                    first, args, kwargs = pytree.tree_map_only(
                        torch.Tensor, lambda t: claiming(t, device), (sample.input, sample.args, sample.kwargs)
                    )
                    result = op.op(first, *args, **kwargs)
                    roots = [t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor) and t.requires_grad]
                    if roots:
                        torch.autograd.backward(roots, [torch.ones_like(t) for t in roots])
            except Exception as error:
                if "as recorded with PyTorch" in str(error):
                    yield last.refusal(str(error))


def claiming(tensor: torch.Tensor, device: str) -> torch.Tensor:
    if tensor.layout != torch.strided:
        return tensor
    return to_fake(tensor.detach(), device=device).requires_grad_(tensor.requires_grad)


def text_of(record: dict[str, Any]) -> str:
    """JSON with one line per operator."""
    releases = []
    for release, devices in sorted(record.items()):
        parts = []
        for device, ops in sorted(devices.items()):
            rows = ",\n".join(f"   {json.dumps(op)}: {json.dumps(calls)}" for op, calls in sorted(ops.items()))
            parts.append(f"  {json.dumps(device)}: {{\n{rows}\n  }}")
        releases.append(f" {json.dumps(release)}: {{\n" + ",\n".join(parts) + "\n }")
    return "{\n" + ",\n".join(releases) + "\n}\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--op", default="", help="only OpInfos whose name contains this")
    wanted = parser.parse_args().op
    warnings.simplefilter("ignore")
    record: dict[str, Any] = json.loads(ACCEPTED.read_text())
    found = 0
    for device, op in itertools.product(("cpu", "cuda"), op_db):
        if wanted not in op.full_name or op.full_name.startswith("jiterator"):
            continue
        for name, dtypes in refusals(op, device):
            calls = record.setdefault(INSTALLED, {}).setdefault(device, {}).setdefault(name, [])
            if dtypes not in calls:
                calls.append(dtypes)
                found += 1
                print(f"{device} {name}: {dtypes} ({op.full_name})")
    ACCEPTED.write_text(text_of(record))
    print(f"{found} refusals that PyTorch {INSTALLED} contradicts")
    return 0


if __name__ == "__main__":
    sys.exit(main())
