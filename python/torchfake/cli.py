"""The command line: `torchfake inspect MODEL`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

import torchfake
from torchfake._model_spec import ModelBuildError, ModelSpecError, build_model
from torchfake.inspect_model import Layer, survey
from torchfake.layer_table import print_layers

__all__ = ["app", "main"]

#: Exit codes, beside 0.
BUILD_FAILED = 1
BAD_INPUT = 2

app = typer.Typer(
    name="torchfake",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"torchfake {torchfake.__version__} (PyTorch {torch.__version__})")
        raise typer.Exit()


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Look at PyTorch models on tensors and GPUs that are not there."""


@app.command()
def inspect(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="module:callable, file.py:callable, file.py (its build_model() or model), or a class of transformers.",
        ),
    ],
    config: Annotated[
        Path | None, typer.Option(help="config.json for a class of transformers, instead of its defaults.")
    ] = None,
    depth: Annotated[int | None, typer.Option(min=0, help="How many levels to print; all by default.")] = None,
    device: Annotated[str | None, typer.Option(help="Move the model there first; any device, there or not.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Turn floating-point tensors into this dtype first.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, every layer by itself.")] = False,
    every: Annotated[bool, typer.Option("--all", help="Print equal layers one by one.")] = False,
) -> None:
    """Build MODEL without memory, and print its layers with their sizes and the memory they would take.

    Exits with 1 if the model's own code fails, with 2 if there is no such model or an option makes no sense.
    """
    try:
        target = _device(device) if device is not None else None
        wanted = _dtype(dtype) if dtype is not None else None
        with Console(stderr=True).status(f"Building {model}"):
            root = survey(build_model(model, config=config, device=target, dtype=wanted))
    except ModelBuildError as error:
        raise _failure(str(error), BUILD_FAILED) from None
    except ModelSpecError as error:
        raise _failure(str(error), BAD_INPUT) from None
    if as_json:
        typer.echo(json.dumps(_report(root, model, depth), indent=2))
    else:
        print_layers(root, title=model, depth=depth, folded=not every)


def _report(root: Layer, model: str, depth: int | None) -> dict[str, object]:
    totals = root.to_json()
    return {
        "model": model,
        "totals": {name: totals[name] for name in ("parameters", "trainable", "buffers", "nbytes")},
        "layers": [layer.to_json() for layer in root.walk(depth)],
    }


def _device(name: str) -> torch.device:
    try:
        return torch.device(name)
    except RuntimeError:
        raise ModelSpecError(f"--device {name}: no device is called that; try cpu, cuda or cuda:1") from None


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ModelSpecError(f"--dtype {name}: no floating-point dtype is called that; try bfloat16 or float16")
    return dtype


def _failure(message: str, code: int) -> typer.Exit:
    typer.echo(f"torchfake inspect: {message}", err=True)
    return typer.Exit(code)


def main() -> None:
    """What the `torchfake` command runs."""
    app()
