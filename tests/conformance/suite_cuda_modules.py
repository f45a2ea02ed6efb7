"""Suite 3, third part: modules of torch.nn on fakes that claim `cuda`, compared with the recorded results of a real
GPU.

`tools/record_cuda_models.py` writes the record, `cuda_modules.jsonl.gz`. Its rows are outputs, gradients, state and
inputs after a forward and a backward.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

from compare import Case
from cuda_record import Call, Record
from engines import Engine
from suite_modules import DTYPES, arguments_of, inputs_of, run_of
from suite_operators import Scope
from torch.testing._internal.common_modules import ModuleInfo, module_db

NAME = "cuda modules"
RECORD = Record(Path(__file__).parent / "cuda_modules.jsonl.gz")


def calls(info: ModuleInfo, limit: int = 0) -> Iterator[Call]:
    for dtype, training in itertools.product(DTYPES, (True, False)):
        for given in inputs_of(info, dtype, training, limit):
            variant = f"{dtype} {'train' if training else 'eval'}"
            on_gpu, on_cpu = (run_of(info, dtype, training, device) for device in ("cuda", "cpu"))
            yield Call(variant, on_gpu, arguments_of(given), on_cpu=on_cpu)


def subjects() -> list[str]:
    return [info.name for info in module_db if info.name in RECORD.answers]


def cases(engine: Engine, subject: str, scope: Scope) -> Iterator[Case]:
    info = next(info for info in module_db if info.name == subject)
    wanted = (call for call in calls(info, scope.limit) if call.variant.split()[0] in scope.dtypes)
    yield from RECORD.cases(engine, NAME, subject, wanted, scope)
