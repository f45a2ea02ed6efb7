"""Prints the layers of a model as a table for a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from torchfake.inspect_model import Layer, LayerTensor, fold

__all__ = ["format_bytes", "layer_table", "print_layers", "print_table", "summary"]


def format_bytes(count: int) -> str:
    """A number of bytes with the unit that suits it.

    >>> format_bytes(512), format_bytes(10_800_000_000)
    ('512 B', '10.1 GiB')
    """
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def layer_table(root: Layer, *, title: str = "", depth: int | None = None) -> Table:
    """One row per layer. Parameters and memory are those of the layer and of everything below it."""
    table = Table(title=title or None, title_justify="left", header_style="bold", row_styles=["", "dim"])
    table.add_column("layer", overflow="fold")
    table.add_column("type", overflow="fold")
    table.add_column("its own tensors", overflow="fold")
    table.add_column("dtype")
    table.add_column("device")
    table.add_column("parameters", justify="right", no_wrap=True)
    table.add_column("memory", justify="right", no_wrap=True)
    for layer in root.walk(depth):
        table.add_row(
            _indented(layer, root),
            layer.type if layer.repeats == 1 else f"{layer.repeats} × {layer.type}",
            ", ".join(map(_size, layer.tensors)),
            _distinct(tensor.dtype for tensor in layer.tensors),
            _distinct(tensor.device for tensor in layer.tensors),
            f"{layer.parameters:,}" if layer.parameters else "",
            format_bytes(layer.nbytes) if layer.nbytes else "",
        )
    return table


def summary(root: Layer) -> Text:
    """The totals in one line."""
    frozen = root.parameters - root.trainable
    parts = [f"{root.parameters:,} parameters" + (f" ({frozen:,} frozen)" if frozen else "")]
    if root.buffers:
        parts.append(f"{root.buffers:,} elements in buffers")
    parts.append(f"{format_bytes(root.nbytes)} of memory")
    return Text("Total: " + ", ".join(parts), style="bold")


def print_layers(root: Layer, *, title: str = "", depth: int | None = None, folded: bool = True) -> None:
    """Prints table and totals to standard output; a pipe or file gets lines as long as they need to be."""
    print_table(layer_table(fold(root) if folded else root, title=title, depth=depth))
    Console().print(summary(root), soft_wrap=True)


def print_table(table: Table) -> None:
    """Prints a table; a pipe or file gets lines as long as they need to be."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=_width(console, table))
    console.print(table)


def _width(console: Console, content: RenderableType) -> int:
    return Measurement.get(console, console.options.update(max_width=1000), content).maximum


def _indented(layer: Layer, root: Layer) -> Text:
    if layer is root:
        return Text(layer.name or root.type)
    level = layer.name.count(".") + 1
    return Text("  " * level + layer.name.rpartition(".")[2])


def _size(tensor: LayerTensor) -> str:
    size = "not yet known" if tensor.size is None else "×".join(map(str, tensor.size)) or "scalar"
    shared = f" = {tensor.shared_with}" if tensor.shared_with else ""
    return f"{tensor.name} {size}{shared}"


def _distinct(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(names))
