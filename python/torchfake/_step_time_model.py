"""The fitted times of step_time: how long a kernel takes on a recorded card, and a call on the host beside it.

`tools/fit_step_time.py` writes the numbers, from what `tools/record_step_time.py` recorded on the card.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchfake._card_speeds import Speed
    from torchfake.step_time import Row

__all__ = ["KERNEL_PARTS", "Recording", "host_parts", "kernel_group", "kernel_parts", "load_recording"]

#: The schema version of a recording.
SCHEMA = 2

_RECORDINGS = Path(__file__).parent / "recordings"

#: The time of a kernel follows from these parts, each times a coefficient: its launches (in us), its bytes and its
#: operations (in seconds at the published speeds), and in products of matrices and forward convolutions the operations
#: behind each element of the result (in us for 1000), which shows in those with few results.
KERNEL_PARTS = ("launches", "memory", "products", "depth")

#: The names of rows for what Python does around operators: calling a module, and an optimizer's step.
MODULE, STEP = "nn.Module", "Optimizer.step"

#: Operators whose shapes say little about their time beyond bytes are told apart by family and direction only.
_PRODUCTS = ("matmul", "convolution", "attention", "recurrent")


def kernel_group(row: Row) -> str:
    """The kernels that share coefficients: "matmul/BFloat16/unaligned", "convolution/TF32/backward", "other"."""
    name = row.family
    if row.family in _PRODUCTS:
        name += f"/{'TF32' if row.may_use_tf32 else row.dtype}{'' if row.is_aligned else '/unaligned'}"
    return f"{name}/backward" if "backward" in row.op else name


def kernel_parts(row: Row, speed: Speed) -> tuple[float, float, float, float]:
    """The `KERNEL_PARTS` of a call, in seconds for a coefficient of 1."""
    has_depth = row.family in ("matmul", "convolution") and "backward" not in row.op
    return (
        row.launches * 1e-6,
        row.nbytes / speed.memory,
        row.least_flops / speed.products(row.dtype, row.may_use_tf32),
        row.least_flops / max(row.outputs, 1) * 1e-9 if has_depth else 0.0,
    )


def combined(coefficients: Sequence[float], parts: Sequence[float]) -> float:
    """The seconds of a kernel: products and memory traffic overlap, the other parts add up."""
    launches, memory, products, depth = (c * part for c, part in zip(coefficients, parts, strict=True))
    return launches + max(memory, products) + depth


def host_parts(row: Row) -> dict[str, float]:
    """What a call takes on the host, as numbers of things that take time there.

    A "view" launches no kernel, and a "number" is computed by the host, such as an optimizer's count of steps. "node"
    is autograd's record of a call. Lists are the calls of foreach and fused optimizers; a recurrent network launches
    its kernels one after the other. "operator" parts are the call's own, beyond those of its kind.
    """
    if row.op == MODULE:
        return {"module": 1.0}
    if row.op == STEP:
        return {"step": 1.0, "parameter": float(row.tensors)}
    phase = row.phase if row.phase in ("backward", "step") else "forward"
    side = "backward" if phase == "backward" else "forward"
    if row.family == "optimizer":
        return {"list": 1.0, "listed": float(row.tensors)}
    kind = "view" if not row.launches else "number" if row.device.startswith("cpu") else "kernel"
    parts = {f"{kind}/{phase}": 1.0}
    if kind == "kernel" and phase != "step":
        parts[f"operator/{row.op}/{side}"] = 1.0
    if row.family == "recurrent":
        parts["launch"] = float(row.launches)
    if row.records_gradient:
        parts["node"] = 1.0
    return parts


@dataclass(frozen=True)
class Recording:
    """Times fitted to a recording of a card.

    Attributes:
        card: Its name.
        source: What was recorded, on which machine and with which versions.
        kernels: By group, the coefficients of `KERNEL_PARTS`.
        operators: Factors of operators that differ from their group.
        host: Seconds on the host by part.
        programs: The recorded programs: "set", "name", "measured" and "estimated" seconds of a step, and those in which
            the card was busy, "busy" and "estimated_busy".
    """

    card: str
    source: str
    kernels: dict[str, tuple[float, ...]]
    operators: dict[str, float]
    host: dict[str, float]
    programs: list[dict[str, Any]]

    @property
    def error(self) -> float | None:
        """The median relative error over the programs that were not used for fitting; None if there are none."""
        held = [program for program in self.programs if program["set"] != "workloads"]
        errors = sorted(abs(program["estimated"] / program["measured"] - 1) for program in held)
        return errors[len(errors) // 2] if errors else None

    def kernel_seconds(self, row: Row, speed: Speed) -> float | None:
        """The seconds of a call on a card of this speed; None for calls of a kind that was not recorded."""
        group = kernel_group(row)
        general = group.removesuffix("/backward")
        found = (self.kernels.get(name) for name in (group, general, general.removesuffix("/unaligned")))
        coefficients = next((each for each in found if each), None)
        if coefficients is None:
            return None
        seconds = combined(coefficients, kernel_parts(row, speed))
        return seconds * self.operators.get(row.op, 1.0)

    def host_seconds(self, row: Row) -> float:
        """The seconds of a call on the host of the recorded machine."""
        return sum(count * self.host.get(part, 0.0) for part, count in host_parts(row).items())


def load_recording(path: Path) -> Recording:
    """Reads a file written by `tools/fit_step_time.py`.

    Raises:
        ValueError: The file has another format.
    """
    try:
        data = json.loads(path.read_bytes())
        if data["schema"] != SCHEMA:
            raise ValueError(f"expected schema {SCHEMA}, got {data['schema']}")
        kernels = {group: tuple(float(c) for c in numbers) for group, numbers in data["kernels"].items()}
        operators = {name: float(factor) for name, factor in data["operators"].items()}
        host = {part: float(seconds) for part, seconds in data["host"].items()}
        if any(len(numbers) != len(KERNEL_PARTS) or min(numbers) < 0 for numbers in kernels.values()):
            raise ValueError(f"a group of kernels has {len(KERNEL_PARTS)} coefficients, none below 0")
        recording = Recording(str(data["card"]), str(data["source"]), kernels, operators, host, data["programs"])
        assert recording.error is None or recording.error >= 0
    except (OSError, KeyError, TypeError, AttributeError, ValueError, ZeroDivisionError) as problem:
        raise ValueError(f"{path}: not a recording of step times: {problem}") from None
    return recording


@functools.cache
def recordings() -> dict[str, Recording]:
    """The recordings in the package, by the name of the card."""
    found = (load_recording(path) for path in sorted(_RECORDINGS.glob("step_time_*.json")))
    return {recording.card: recording for recording in found}
