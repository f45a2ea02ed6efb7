"""Records the results of models on a real GPU: the modules of torch.nn, and small models of many families.

Run it where PyTorch has a GPU and `transformers` is installed; torchfake need not be:

    python tools/record_cuda_models.py OUTPUT_FOLDER

It writes `cuda_modules.jsonl.gz`, for `tests/conformance`, and `cuda_families.json.gz`, for `tests/models`.
"""

from __future__ import annotations

import gzip
import itertools
import json
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent.parent / "tests"


def modules() -> Iterator[list[Any]]:
    import suite_cuda_modules
    from cuda_record import recorded
    from torch.testing._internal.common_modules import module_db

    for info in module_db:
        print(info.name, flush=True)
        for call in suite_cuda_modules.calls(info):
            yield [info.name, call.variant, call.inputs, *recorded(call)]


def families() -> dict[str, Any]:
    """By precision and model; the name of the exception if it raised."""
    import observing
    from families import FAMILIES

    found: dict[str, Any] = {precision: {} for precision in observing.PRECISIONS}
    for precision, family in itertools.product(found, FAMILIES):
        # RWKV compiles its own kernel where possible, for one dtype.
        if "cuda" in family.devices and (family.model, precision) != ("RwkvModel", "autocast"):
            print(precision, family.model, flush=True)
            try:
                answer = observing.plain(observing.describe(observing.run(family, "cuda", precision)))
            except Exception as raised:
                answer = type(raised).__name__
            found[precision][family.model] = answer
    return found


def main() -> None:
    warnings.simplefilter("ignore")
    sys.path += [str(TESTS / "conformance"), str(TESTS / "models")]
    folder = Path(sys.argv[1])
    with gzip.open(folder / "cuda_modules.jsonl.gz", "wt") as lines:
        for line in modules():
            lines.write(json.dumps(line) + "\n")
    with gzip.open(folder / "cuda_families.json.gz", "wt") as file:
        json.dump(families(), file)


if __name__ == "__main__":
    main()
