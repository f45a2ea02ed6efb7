"""Records the results of operators on a real GPU, in the dtypes, layouts and call forms of the conformance suite.

Run it where PyTorch has a GPU; torchfake need not be installed:

    python tools/record_cuda_calls.py OUTPUT_FOLDER

It writes `cuda_calls.jsonl.gz`, for `tests/conformance`. Some calls end the process, or leave the GPU in a state that
only a new process recovers from: they run in workers, which are replaced when they end and continue after that call.
"""

from __future__ import annotations

import gzip
import itertools
import json
import os
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent / "tests"
WORKERS = max(1, (os.cpu_count() or 1) - 2)

#: Written before a call; remains the record of one that ends the process.
DEAD = (None, None)


def work(part: int, done: int, path: Path) -> None:
    """Makes the calls of every WORKERS-th subject after the first `done`, and appends a line for each."""
    import torch
    from cuda_record import recorded
    from suite_cuda_calls import calls
    from suite_operators import Scope, operators

    warnings.simplefilter("ignore")
    made = 0
    with path.open("a") as lines:
        for subject in sorted(operators())[part::WORKERS]:
            if subject.startswith("jiterator"):
                continue  # compiles for a GPU before calling any operator
            for call in calls(subject, Scope()):
                made += 1
                if made <= done:
                    continue
                line = [subject, call.variant, call.inputs]
                lines.write(json.dumps([*line, *DEAD]) + "\n")
                lines.flush()
                answer = recorded(call)
                torch.cuda.synchronize()
                lines.write(json.dumps([*line, *answer]) + "\n")


def is_dead(line: str) -> bool:
    return tuple(json.loads(line)[-2:]) == DEAD


def answers(path: Path) -> list[str]:
    """The final record of each call."""
    lines = [*path.read_text().splitlines(keepends=True), None]
    return [line for line, after in itertools.pairwise(lines) if not is_dead(line) or after is None or is_dead(after)]


def run_part(part: int, folder: Path) -> Path:
    path = folder / f"part{part}.jsonl"
    path.touch()
    done = -1
    while (before := done) < (done := sum(map(is_dead, path.read_text().splitlines()))):
        command = [sys.executable, __file__, str(folder), str(part), str(done)]
        if subprocess.run(command).returncode == 0:
            return path
        print(f"worker {part} ended after {done} calls and is replaced", flush=True)
    raise RuntimeError(f"worker {part} ended twice after {before} calls")


def main() -> None:
    sys.path.append(str(TESTS / "conformance"))
    folder = Path(sys.argv[1])
    if len(sys.argv) > 2:
        work(int(sys.argv[2]), int(sys.argv[3]), folder / f"part{sys.argv[2]}.jsonl")
        return
    with ThreadPoolExecutor(WORKERS) as pool:
        paths = list(pool.map(lambda part: run_part(part, folder), range(WORKERS)))
    with gzip.open(folder / "cuda_calls.jsonl.gz", "wt") as lines:
        for path in paths:
            lines.writelines(answers(path))
            path.unlink()


if __name__ == "__main__":
    main()
