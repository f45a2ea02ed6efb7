"""Runs every base model of `transformers`, with its default config, on fakes, and counts the outcomes.

    export HF_HUB_OFFLINE=1   # so that nothing is looked for in the network
    python tests/models/all_architectures.py                  # torchfake on claimed CUDA
    python tests/models/all_architectures.py --engines torchfake-cuda,torchfake-cpu,FakeTensorMode,real

FakeTensorMode claims the CPU: without CUDA it supports no other device. With the default config most models do not fit
in memory for real, so `real` runs them with few layers and experts, to check that the inputs are valid, and compares
the outputs with those of the same model on fakes. Each run is a separate process, with a limit on time and memory. The
whole takes an hour or more: `--json FILE --resume` continues where an earlier sweep ended, and `--markdown FILE` writes
docs/architectures.md.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import gc
import json
import multiprocessing
import os
import resource
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch._decomp
import torch._refs
import transformers
from architectures import Architecture, architectures
from architectures_page import STATUSES, Outcome, page
from plain_inputs import plain_inputs
from provenance import provenance  # architectures_page has put its folder on the path
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import Tensor
from torch._subclasses import fake_tensor
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedModel

import torchfake

GIB = 2**30
LARGE = 2**20  # elements

DATA_DEPENDENT = (
    torchfake.DataAccessError,
    torchfake.DataDependentOutputException,
    torchfake.DynamicOutputShapeException,
    fake_tensor.DataDependentOutputException,
    fake_tensor.DynamicOutputShapeException,
)
UNSUPPORTED = (
    torchfake.UnsupportedOperatorException,
    torchfake.UnsupportedFakeTensorException,
    fake_tensor.UnsupportedFakeTensorException,
    fake_tensor.UnsupportedOperatorException,
)


class Differs(AssertionError):
    """An output on fakes differs from the real one."""


def run_on_claimed_cuda(architecture: Architecture) -> None:
    with torchfake.fake_mode():
        forward(architecture.build(), "cuda")


def run_selecting_all(architecture: Architecture) -> None:
    with torchfake.fake_mode(selects_all=True):
        forward(architecture.build(), "cuda")


def run_with_real_values(architecture: Architecture) -> None:
    """Runs on claimed CUDA; real values take memory, so the model is shrunk if possible."""
    mode = torchfake.FakeTensorMode(propagate_real_tensors=True)
    with mode, quick_weights():
        try:
            model = architecture.build(few_layers=True)
        except (IndexError, KeyError):  # some refer to removed layers
            model = architecture.build()
        forward(model, "cuda")


def run_on_claimed_cpu(architecture: Architecture) -> None:
    with torchfake.fake_mode():
        forward(architecture.build(), "cpu")


def run_on_peer(architecture: Architecture) -> None:
    with fake_tensor.FakeTensorMode():
        forward(architecture.build(), "cpu")


def run_for_real(architecture: Architecture) -> None:
    """Also compares with fakes that claim the CPU, if those run."""
    real, few_layers = None, True
    with quick_weights(), contextlib.suppress(Exception):
        real = forward(architecture.build(few_layers=True), "cpu")
    if real is None:  # some refer to removed layers
        few_layers = False
        with quick_weights():
            real = forward(architecture.build(), "cpu")
    forget_cached_tensors()
    try:
        with torchfake.fake_mode():
            fake = forward(architecture.build(few_layers=few_layers), "cpu")
    except DATA_DEPENDENT:
        return
    for position, (got, expected) in enumerate(zip(fake, real, strict=True)):
        if got != expected:
            raise Differs(f"output {position}: {got} where real tensors give {expected}")


def forget_cached_tensors() -> None:
    """Clears tensors that a model caches between runs, such as patch positions."""
    for each in gc.get_objects():
        if isinstance(each, functools._lru_cache_wrapper):
            each.cache_clear()


@contextlib.contextmanager
def quick_weights() -> Iterator[None]:
    """Makes all weights of large layers equal: drawing millions of random ones takes longer than running the model."""
    draw_normal, draw_uniform = Tensor.normal_, Tensor.uniform_

    def normal_(tensor: Tensor, mean: float = 0, std: float = 1, **options: Any) -> Tensor:
        if tensor.numel() < LARGE:
            return draw_normal(tensor, mean, std, **options)
        return tensor.fill_(mean + 0.5 * std)

    def uniform_(tensor: Tensor, low: float = 0, high: float = 1, **options: Any) -> Tensor:
        if tensor.numel() < LARGE:
            return draw_uniform(tensor, low, high, **options)
        return tensor.fill_(low + 0.6 * (high - low))

    with patch.object(Tensor, "normal_", normal_), patch.object(Tensor, "uniform_", uniform_):
        yield


ENGINES = {
    "torchfake-cuda": run_on_claimed_cuda,
    "torchfake-selects-all": run_selecting_all,
    "torchfake-real-values": run_with_real_values,
    "torchfake-cpu": run_on_claimed_cpu,
    "FakeTensorMode": run_on_peer,
    "real": run_for_real,
}


def forward(model: PreTrainedModel, device: str) -> list[Any]:
    """The metadata of the outputs."""
    if device != "cpu":  # FakeTensorMode fails on a `to` that changes nothing
        model.to(device)
    with torch.device(device):
        inputs = plain_inputs(model)
    with torch.no_grad():
        outputs = model(**inputs)
    return [(tuple(t.shape), t.stride(), t.dtype) for t in tree_leaves(outputs) if isinstance(t, Tensor)]


def attempt(architecture: Architecture, engine: str) -> Outcome:
    start = time.perf_counter()
    status, error, message, frame = "ok", "", "", ""
    try:
        ENGINES[engine](architecture)
    except BaseException as exception:  # every error belongs in the table
        status = classify(exception)
        error, message, frame = type(exception).__name__, str(exception), last_frame(exception)
    return Outcome(
        architecture.model_type,
        architecture.model_class,
        engine,
        status,
        time.perf_counter() - start,
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        error,
        message,
        frame,
    )


def classify(exception: BaseException) -> str:
    if isinstance(exception, DATA_DEPENDENT):
        return "data-dependent"
    if isinstance(exception, UNSUPPORTED):
        return "unsupported"
    missing = ("couldn't connect", "Couldn't load custom C++ ops")
    if isinstance(exception, ImportError) or any(text in str(exception) for text in missing):
        return "not installed"
    if isinstance(exception, MemoryError) or "can't allocate memory" in str(exception):
        return "too big"
    return "error"


def last_frame(exception: BaseException) -> str:
    frames = traceback.extract_tb(exception.__traceback__)
    home = str(Path(transformers.__file__).parent)
    ours = [frame for frame in frames if frame.filename.startswith(home)] or list(frames)
    return f"{Path(ours[-1].filename).name}:{ours[-1].lineno}  {ours[-1].line}" if ours else ""


def work(connection: Connection, architecture: Architecture, engine: str, options: argparse.Namespace) -> None:
    """Runs in a child process: one attempt, its outcome sent to the parent."""
    limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + int(options.memory * GIB)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    torch.set_num_threads(1)
    connection.send(attempt(architecture, engine))
    connection.close()
    os._exit(0)  # skips interpreter shutdown: the parent has all it needs


def sweep(tasks: list[tuple[Architecture, str]], options: argparse.Namespace) -> Iterator[Outcome]:
    """Runs the tasks, several at a time, and yields their outcomes as they finish."""
    processes = multiprocessing.get_context("fork")  # importing everything takes longer than most runs
    waiting = list(reversed(tasks))
    running: dict[Connection, tuple[Any, Architecture, str, float]] = {}
    while waiting or running:
        while waiting and len(running) < options.jobs:
            architecture, engine = waiting.pop()
            receiver, sender = processes.Pipe(duplex=False)
            child = processes.Process(target=work, args=(sender, architecture, engine, options))
            child.start()
            sender.close()
            running[receiver] = (child, architecture, engine, time.perf_counter())
        ended = wait(list(running), timeout=0.2)
        for receiver, (child, architecture, engine, start) in list(running.items()):
            seconds = time.perf_counter() - start
            names = (architecture.model_type, architecture.model_class, engine)
            if receiver in ended:
                try:
                    outcome = receiver.recv()
                    child.join()
                except EOFError:
                    child.join()
                    outcome = Outcome(*names, "crash", seconds, message=f"exit code {child.exitcode}")
            elif seconds > options.timeout:
                child.kill()
                child.join()
                outcome = Outcome(*names, "timeout", seconds)
            else:
                continue
            receiver.close()
            del running[receiver]
            yield outcome


def print_results(outcomes: list[Outcome], console: Console) -> None:
    engines = list(dict.fromkeys(outcome.engine for outcome in outcomes))
    failures = Table("architecture", "engine", "status", "error", "at", title="What did not run", title_justify="left")
    for each in outcomes:
        if each.status != "ok":
            text = f"{each.error}: {each.message}".strip(": ").splitlines()
            failures.add_row(each.model_type, each.engine, each.status, text[0][:300] if text else "", each.frame)
    if failures.row_count:
        console.print(failures)
    counts = Counter((outcome.engine, outcome.status) for outcome in outcomes)
    totals = Table("", *engines, title="Architectures", title_justify="left")
    for status in STATUSES:
        if any(counts[engine, status] for engine in engines):
            totals.add_row(status, *(str(counts[engine, status]) for engine in engines))
    for engine in engines:
        seconds = sorted(outcome.seconds for outcome in outcomes if outcome.engine == engine)
        console.print(f"{engine}: {sum(seconds):.0f} s in all, {seconds[len(seconds) // 2]:.2f} s in the middle")
    console.print(totals)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1, help="how many to run at a time")
    parser.add_argument("--only", default="", metavar="SUBSTR", help="model types that contain it, or a list: a,b,c")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write all outcomes")
    parser.add_argument("--resume", action="store_true", help="keep the outcomes that FILE has, and run the rest")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="where to write the page of results")
    parser.add_argument("--engines", default="torchfake-cuda", metavar="LIST", help=f"some of {','.join(ENGINES)}")
    parser.add_argument("--timeout", type=float, default=120, metavar="S", help="seconds for one run")
    parser.add_argument("--memory", type=float, default=10, metavar="GIB", help="address space for one run")
    return parser.parse_args()


def earlier_outcomes(file: Path, commit: str) -> list[Outcome]:
    """The outcomes of an earlier sweep of the same commit."""
    if not file.exists():
        return []
    earlier = json.loads(file.read_text())
    if earlier["provenance"]["commit"] != commit:
        raise SystemExit(f"error: {file} is of commit {earlier['provenance']['commit']}, not of {commit}; start anew")
    return [Outcome(**fields) for fields in earlier["outcomes"]]


def written(outcomes: list[Outcome], source: dict[str, Any]) -> str:
    rows = [dataclasses.asdict(each) for each in outcomes]
    return json.dumps({"provenance": source, "outcomes": rows}, indent=1)


def main() -> None:
    options = parse_arguments()
    source = provenance()
    outcomes = earlier_outcomes(options.json, source["commit"]) if options.resume else []
    done = {(outcome.model_class, outcome.model_type, outcome.engine) for outcome in outcomes}
    tasks = [
        (architecture, engine)
        for engine in options.engines.split(",")
        for architecture in architectures(options.only)
        if (architecture.model_class, architecture.model_type, engine) not in done
    ]
    console = Console(width=None if sys.stdout.isatty() else 250, markup=False, highlight=False)
    columns = TextColumn("{task.description:<40}"), MofNCompleteColumn(), TimeElapsedColumn()
    # No thread of the progress bar may be running when the process forks.
    with Progress(*columns, console=Console(stderr=True), auto_refresh=False) as progress:
        bar = progress.add_task("", total=len(tasks))
        for outcome in sweep(tasks, options):
            outcomes.append(outcome)
            progress.update(bar, advance=1, description=f"{outcome.model_type} {outcome.status}", refresh=True)
            if not sys.stderr.isatty() and len(outcomes) % 50 == 0:
                print(f"{len(outcomes)} of {len(tasks)}", file=sys.stderr, flush=True)
            if options.json:  # after each outcome, so that an interrupted sweep keeps its results
                options.json.write_text(written(outcomes, source))
    print_results(outcomes, console)
    if options.markdown:
        options.markdown.write_text(page(outcomes, source))


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
