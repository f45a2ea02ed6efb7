"""One side of the everyday mix, in a process of its own: `python -m torchfake_bench.everyday_worker SIDE`.

Reads commands from standard input, a JSON list a line, and answers each with a line. Only the sides called torchfake
import torchfake: once loaded, it would stand behind PyTorch's own mode too.
"""

from __future__ import annotations

import contextlib
import json
import random
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from torchfake_bench.everyday_ops import DIRECT, OPS, Inputs
from torchfake_bench.timing import loop_seconds, no_garbage_collection, repeats_for, seconds

TORCHFAKE, WITHOUT_VALUES, PEER, REAL = "torchfake", "torchfake without values", "FakeTensorMode", "real"
SIDES = (TORCHFAKE, WITHOUT_VALUES, PEER, REAL)


class Worker:
    def __init__(self, side: str) -> None:
        self.side = side
        torch.set_num_threads(1)
        self.mode = self._mode()
        with self.mode:
            self.inputs = Inputs()
        self.repeats: dict[str, int] = {}

    def _mode(self) -> Any:
        if self.side == PEER:
            return FakeTensorMode()
        if self.side == REAL:
            return contextlib.nullcontext()
        import torchfake

        return torchfake.fake_mode(known_values_limit=0) if self.side == WITHOUT_VALUES else torchfake.fake_mode()

    def _counts(self) -> tuple[int, int]:
        """Operators that the cache answered, and others."""
        if self.side == PEER:
            info = FakeTensorMode.cache_info()
            return info.hits, info.misses + sum(info.bypasses.values())
        import torchfake

        ours = torchfake.cache_info()
        return ours.hits, ours.misses + sum(ours.bypasses.values())

    def _call(self, op: str) -> Callable[[], Any]:
        function = OPS[op]
        return lambda: function(self.inputs)

    def prepare(self, op: str) -> dict[str, Any]:
        """Runs it until it is warm; tells whether the cache answers all of it, and how many operators it is."""
        call = self._call(op)
        with self.mode:
            call()
            call()
            self.repeats[op] = repeats_for(call)
            if self.side == REAL:
                return {}
            before = self._counts()
            call()
            after = self._counts()
        hits, others = after[0] - before[0], after[1] - before[1]
        return {"hits": hits, "from cache": hits > 0 and others == 0}

    def warm(self, op: str) -> float:
        """Microseconds a call."""
        with self.mode:
            return loop_seconds(self._call(op), self.repeats[op]) / self.repeats[op] * 1e6

    def direct(self, op: str) -> float:
        """Microseconds a call, without the Python function around the operator."""
        function = DIRECT[op]
        with self.mode:
            call = lambda: function(self.inputs)  # noqa: E731
            call()
            repeats = repeats_for(call)
            return loop_seconds(call, repeats) / repeats * 1e6

    def cold(self, op: str) -> float:
        """Microseconds of the first call after the cache was emptied."""
        with self.mode:
            if self.side == PEER:
                FakeTensorMode.cache_clear()
            elif self.side != REAL:
                import torchfake

                torchfake.clear_cache()
            return seconds(self._call(op)) * 1e6

    def threads(self, op: str, count: int) -> float:
        """Microseconds of CPU time a call, with that many threads calling at once, each with a mode of its own."""
        function, repeats = OPS[op], 10 * self.repeats[op]
        times: list[float] = []
        failed: list[BaseException] = []
        # The clock is read by the last thread to arrive, before any of them goes on.
        barrier = threading.Barrier(count, action=lambda: times.append(time.process_time()))

        def work() -> None:
            try:
                with self._mode():
                    inputs = Inputs()
                    function(inputs)
                    barrier.wait()
                    for _ in range(repeats):
                        function(inputs)
                    barrier.wait()
            except BaseException as error:
                failed.append(error)
                barrier.abort()

        workers = [threading.Thread(target=work) for _ in range(count)]
        with no_garbage_collection():
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
        if failed:
            raise failed[0]
        return (times[1] - times[0]) / (count * repeats) * 1e6

    def full_cache(self, shapes: int, rounds: int) -> float:
        """Microseconds a hit over that many shapes, in a mixed order, of a cache that holds nothing else."""
        import torchfake

        torchfake.clear_cache()
        with self.mode:
            tensors = [torch.empty(i % 256 + 1, i // 256 + 1) for i in range(shapes)]
            for tensor in tensors:
                torch.neg(tensor)
        random.Random(0).shuffle(tensors)
        before = self._counts()
        with self.mode, no_garbage_collection():
            start = time.process_time()
            for _ in range(rounds):
                for tensor in tensors:
                    torch.neg(tensor)
            taken = time.process_time() - start
        after = self._counts()
        if after[1] != before[1]:
            raise RuntimeError(f"{after[1] - before[1]} of {rounds * shapes} calls were no hits")
        return taken / (rounds * shapes) * 1e6


def main() -> None:
    worker = Worker(sys.argv[1])
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        try:
            answer: Any = getattr(worker, name)(*arguments)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
        print(json.dumps(answer), flush=True)
    if worker.side in (PEER, REAL) and "torchfake" in sys.modules:
        raise SystemExit(f"error: torchfake was imported beside {worker.side}")


if __name__ == "__main__":
    main()
