"""The layers of a model, with their parameters, buffers and memory.

>>> import torch
>>> from torchfake import fake_mode
>>> from torchfake.inspect_model import survey
>>> with fake_mode():
...     model = torch.nn.Sequential(torch.nn.Linear(1000, 1000), torch.nn.LayerNorm(1000))
>>> for layer in survey(model).walk():
...     print(layer.name or "(model)", layer.type, layer.parameters, layer.nbytes)
(model) Sequential 1003000 4012000
0 Linear 1001000 4004000
1 LayerNorm 2000 8000
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, islice
from typing import Any

from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

__all__ = ["Layer", "LayerTensor", "fold", "format_bytes", "layer_table", "print_layers", "survey"]


@dataclass(frozen=True)
class LayerTensor:
    """A parameter or buffer of a layer.

    Attributes:
        size: None for an uninitialised parameter of a lazy module.
        shared_with: The full name under which the same tensor was counted before; None if it was not.
    """

    name: str
    size: tuple[int, ...] | None
    dtype: str
    device: str
    is_parameter: bool
    trainable: bool
    numel: int
    nbytes: int
    shared_with: str | None


@dataclass(frozen=True)
class Layer:
    """A module and its submodules. Counts include the submodules, with every tensor counted once.

    Attributes:
        name: The dotted name from the root; empty for the model itself.
        repeats: The number of equal layers that this one represents; see `fold`.
    """

    name: str
    type: str
    tensors: tuple[LayerTensor, ...]
    children: tuple[Layer, ...]
    repeats: int = 1

    def walk(self, depth: int | None = None) -> Iterator[Layer]:
        """This layer and its descendants, at most `depth` levels down."""
        yield self
        if depth is None or depth > 0:
            for child in self.children:
                yield from child.walk(None if depth is None else depth - 1)

    @cached_property
    def parameters(self) -> int:
        """The number of elements of all parameters."""
        return sum(tensor.numel for tensor in self._counted() if tensor.is_parameter)

    @cached_property
    def trainable(self) -> int:
        """The number of elements of the parameters that require gradients."""
        return sum(tensor.numel for tensor in self._counted() if tensor.trainable)

    @cached_property
    def buffers(self) -> int:
        """The number of elements of all buffers."""
        return sum(tensor.numel for tensor in self._counted() if not tensor.is_parameter)

    @cached_property
    def nbytes(self) -> int:
        """The memory of parameters and buffers in bytes."""
        return sum(tensor.nbytes for tensor in self._counted())

    def _repr_html_(self) -> str:
        return table_html(layer_table(fold(self)))

    def _counted(self) -> Iterator[LayerTensor]:
        for layer in self.walk():
            yield from (tensor for tensor in layer.tensors if tensor.shared_with is None)

    def to_json(self) -> dict[str, Any]:
        """The layer without its children, in a form that `json.dumps` accepts."""
        return {
            "name": self.name,
            "type": self.type,
            "tensors": [dataclasses.asdict(tensor) for tensor in self.tensors],
            "parameters": self.parameters,
            "trainable": self.trainable,
            "buffers": self.buffers,
            "nbytes": self.nbytes,
        }


def survey(model: nn.Module) -> Layer:
    """The layers of `model`, real or fake."""
    return _survey(model, "", {}, ())


def _survey(module: nn.Module, name: str, seen: dict[int, str], above: tuple[nn.Module, ...]) -> Layer:
    tensors = [
        _describe(tensor, local, _join(name, local), seen)
        for members in (
            module.named_parameters(recurse=False, remove_duplicate=False),
            module.named_buffers(recurse=False, remove_duplicate=False),
        )
        for local, tensor in members
    ]
    below = (*above, module)
    children = [
        _survey(child, _join(name, local), seen, below)
        for local, child in module._modules.items()
        if child is not None and not any(child is ancestor for ancestor in below)
    ]
    return Layer(name, type(module).__name__, tuple(tensors), tuple(children))


def _describe(tensor: Tensor, local: str, full: str, seen: dict[int, str]) -> LayerTensor:
    first = seen.setdefault(id(tensor), full)
    lazy = is_lazy(tensor)
    return LayerTensor(
        name=local,
        size=None if lazy else tuple(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        device=str(tensor.device),
        is_parameter=isinstance(tensor, nn.Parameter),
        trainable=isinstance(tensor, nn.Parameter) and tensor.requires_grad,
        numel=0 if lazy else tensor.numel(),
        nbytes=0 if lazy else tensor.numel() * tensor.element_size(),
        shared_with=None if first == full else first,
    )


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def fold(layer: Layer) -> Layer:
    """Replaces consecutive equal layers by one (`layers.0-23`, repeated 24 times) with their counts added up.

    >>> import torch
    >>> from torchfake.inspect_model import fold, survey
    >>> model = torch.nn.Sequential(*(torch.nn.Linear(2, 2, bias=False) for _ in range(5)))
    >>> [(layer.name, layer.repeats, layer.parameters) for layer in fold(survey(model)).children]
    [('0-4', 5, 20)]
    """
    children: list[Layer] = []
    for _, group in groupby(layer.children, key=lambda child: _shape(child, child.name)):
        equal = list(group)
        first = fold(equal[0])
        if len(equal) > 1 and all(_last(child.name).isdigit() for child in equal):
            children.append(_repeat(first, first.name, f"{first.name}-{_last(equal[-1].name)}", len(equal)))
        else:
            children.extend([first, *map(fold, equal[1:])])
    return dataclasses.replace(layer, children=tuple(children))


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _shape(layer: Layer, prefix: str) -> object:
    """A key that is the same for layers that differ only in their names."""
    below = tuple(_shape(child, prefix) for child in layer.children)
    return layer.name.removeprefix(prefix), layer.type, layer.tensors, below


def _repeat(layer: Layer, old: str, new: str, times: int) -> Layer:
    """`layer` and its descendants repeated `times`, with the prefix `old` of their names replaced by `new`."""
    tensors = (
        dataclasses.replace(tensor, numel=tensor.numel * times, nbytes=tensor.nbytes * times)
        for tensor in layer.tensors
    )
    return dataclasses.replace(
        layer,
        name=new + layer.name.removeprefix(old),
        tensors=tuple(tensors),
        children=tuple(_repeat(child, old, new, times) for child in layer.children),
        repeats=layer.repeats * times,
    )


# ---- Printing --------------------------------------------------------------------------------------------------------


def format_bytes(count: int) -> str:
    """A number of bytes with a suitable unit.

    >>> format_bytes(512), format_bytes(10_800_000_000)
    ('512 B', '10.1 GiB')
    """
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def layer_table(root: Layer, *, title: str = "", depth: int | None = None, limit: int | None = None) -> Table:
    """A table with one row per layer, the first `limit` of them. Parameters and memory include the submodules."""
    table = Table(title=title or None, title_justify="left", header_style="bold", row_styles=["", "dim"])
    table.add_column("layer", overflow="fold")
    table.add_column("type", overflow="fold")
    table.add_column("its own tensors", overflow="fold")
    table.add_column("dtype")
    table.add_column("device")
    table.add_column("parameters", justify="right", no_wrap=True)
    table.add_column("memory", justify="right", no_wrap=True)
    for layer in islice(root.walk(depth), limit):
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


def _summary(root: Layer) -> Text:
    """The totals in one line."""
    frozen = root.parameters - root.trainable
    parts = [f"{root.parameters:,} parameters" + (f" ({frozen:,} frozen)" if frozen else "")]
    if root.buffers:
        parts.append(f"{root.buffers:,} elements in buffers")
    parts.append(f"{format_bytes(root.nbytes)} of memory")
    return Text("Total: " + ", ".join(parts), style="bold")


def print_layers(
    root: Layer, *, title: str = "", depth: int | None = None, folded: bool = True, limit: int | None = None
) -> None:
    """Prints table and totals to standard output; lines are not wrapped in a pipe or file."""
    shown = fold(root) if folded else root
    print_table(layer_table(shown, title=title, depth=depth, limit=limit))
    rows = sum(1 for _ in shown.walk(depth))
    if limit is not None and limit < rows:
        Console().print(f"... and {rows - limit:,} layers more", soft_wrap=True)
    Console().print(_summary(root), soft_wrap=True)


def print_table(table: Table) -> None:
    """Prints a table; lines are not wrapped in a pipe or file."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=_width(console, table))
    console.print(table)


def table_html(table: Table) -> str:
    """A table for a notebook, with its text escaped."""
    console = Console(record=True, file=io.StringIO(), width=_width(Console(), table))
    console.print(table)
    code = "<pre style='line-height: 1.2; overflow: auto'>{code}</pre>"
    return console.export_html(inline_styles=True, code_format=code)


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
