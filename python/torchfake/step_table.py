"""Prints the steps of a model's forward pass as a table for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from torchfake.layer_table import format_bytes, print_table
from torchfake.trace_model import Step

__all__ = ["count_bytes", "print_steps", "step_table"]


def step_table(steps: Iterable[Step], *, title: str = "") -> Table:
    """One row per step. A tensor over the storage of an earlier one takes no memory: the row says whose it is."""
    table = Table(title=title or None, title_justify="left", header_style="bold", row_styles=["", "dim"])
    for column in ("node", "op", "layer", "sizes", "strides", "dtype", "device"):
        table.add_column(column, overflow="fold")
    table.add_column("bytes", justify="right", no_wrap=True)
    for step in steps:
        table.add_row(
            Text(step.name),
            Text(step.target if step.kind in ("call", "output") else f"{step.kind} {step.target}"),
            Text(step.module),
            "\n".join("×".join(map(str, output.size)) or "scalar" for output in step.outputs),
            "\n".join(", ".join(map(str, output.stride)) or "-" for output in step.outputs),
            "\n".join(output.dtype for output in step.outputs),
            "\n".join(output.device for output in step.outputs),
            "\n".join(
                f"= {output.alias_of}" if output.alias_of else format_bytes(output.nbytes) for output in step.outputs
            ),
        )
    return table


def count_bytes(steps: Sequence[Step]) -> dict[str, int]:
    """The memory of all storages, by what they are: parameters and buffers, inputs, and what is computed."""
    counted = {"state": 0, "inputs": 0, "computed": 0}
    for step in steps:
        group = {"parameter": "state", "buffer": "state", "constant": "state", "input": "inputs"}.get(step.kind)
        counted[group or "computed"] += step.nbytes
    return counted


def print_steps(steps: Sequence[Step], *, title: str = "") -> None:
    """Prints table and totals to standard output; a pipe or file gets lines as long as they need to be."""
    print_table(step_table(steps, title=title))
    counted = {name: format_bytes(count) for name, count in count_bytes(steps).items()}
    Console().print(
        f"Total: {len(steps):,} nodes, {counted['state']} of parameters and buffers, {counted['inputs']} of inputs, "
        f"{counted['computed']} computed",
        style="bold",
        soft_wrap=True,
    )
