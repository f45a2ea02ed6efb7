"""Runs suites in worker processes, so that a crash only loses one subject.

The parent writes a job to the worker's standard input; the worker answers with a line per case, and one before each
subject. A worker that dies is replaced, and its current subject is reported as crashed.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from compare import CRASH, Case, Result
from engines import make_engine
from suite_operators import Scope
from suites import SUITES

#: oneDNN is limited to AVX2: virtual machines that report a higher ISA do not always support it.
MACHINE = {"ONEDNN_MAX_CPU_ISA": "AVX2", "KINETO_LOG_LEVEL": "99"}


@dataclass(frozen=True)
class Job:
    """Subjects of one suite, for one engine."""

    suite: str
    engine: str
    cache: str
    scope: Scope
    subjects: tuple[str, ...]


@dataclass(frozen=True)
class Started:
    """A worker starts this subject."""

    subject: str


def run_job(job: Job) -> Iterator[Started | Case]:
    left = list(job.subjects)
    while left:
        worker = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=_environment()
        )
        assert worker.stdin is not None and worker.stdout is not None
        try:
            json.dump(dataclasses.asdict(dataclasses.replace(job, subjects=tuple(left))), worker.stdin)
            worker.stdin.close()
            current = None
            for line in worker.stdout:
                message = json.loads(line)
                if "started" in message:
                    current = message["started"]
                    left.remove(current)
                    yield Started(current)
                else:
                    yield Case(**{**message, "result": Result(**message["result"])})
            status = worker.wait()
        finally:
            worker.kill()
            worker.wait()
        if status != 0 and current is None:
            raise RuntimeError(f"the worker for suite {job.suite} ended with {status} before its first subject")
        if status != 0:
            yield Case(job.suite, current or "", "", 0, Result(CRASH, f"the process ended with {status}"))


def _environment() -> dict[str, str]:
    """One thread per worker: the tensors are small, and several workers may share the machine."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **MACHINE}


def _work() -> None:
    # Operators may print, so results use a separate stream.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    warnings.simplefilter("ignore")
    job: dict[str, Any] = json.load(sys.stdin)
    scope = Scope(**{key: tuple(v) if isinstance(v, list) else v for key, v in job["scope"].items()})
    engine = make_engine(job["engine"], job["cache"])
    for subject in job["subjects"]:
        print(json.dumps({"started": subject}), file=answers, flush=True)
        for case in SUITES[job["suite"]].cases(engine, subject, scope):
            print(json.dumps(dataclasses.asdict(case)), file=answers, flush=True)


if __name__ == "__main__":
    _work()
