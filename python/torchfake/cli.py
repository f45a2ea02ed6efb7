"""The command line: `torchfake run SCRIPT`, `torchfake inspect MODEL` and `torchfake trace MODEL`."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
import typer.core
from rich.console import Console

import torchfake
from torchfake._all_ranks import RankFailedError, file_of_rank, format_roles, page_of_roles, run_all_ranks
from torchfake._children import Children
from torchfake._dynamic_inputs import make_dynamic, parse_dynamic
from torchfake._fit_cli import fit
from torchfake._models import (
    ModelBuildError,
    ModelSpecError,
    build_model,
    line_of_user,
    make_inputs,
    parse_input,
)
from torchfake._peers import Peers
from torchfake._report_cli import report
from torchfake._run_outputs import Outputs
from torchfake.inspect_model import Layer, print_layers, survey
from torchfake.modes import fake_mode
from torchfake.run_program import Launch, Program, ProgramNotFoundError, run_program
from torchfake.trace_model import Step, print_steps, print_totals, totals_of
from torchfake.trace_model import trace as trace_model

__all__ = ["app", "main"]

#: Exit codes other than 0.
BUILD_FAILED = 1
BAD_INPUT = 2

app = typer.Typer(
    name="torchfake",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


app.command()(fit)
app.command()(report)


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
    """Inspect PyTorch models without their memory, on GPUs that this machine does not have."""


Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="module:callable, file.py:callable, file.py (its build_model() or model), a class of transformers, or the "
        "folder of a checkpoint.",
    ),
]
Config = Annotated[Path | None, typer.Option(help="config.json for a class of transformers, instead of its defaults.")]
DeviceName = Annotated[str | None, typer.Option(help="Move the model to this device; this machine need not have it.")]
DtypeName = Annotated[str | None, typer.Option(help="Convert floating-point tensors to this dtype.")]

SelectsAll = Annotated[
    bool, typer.Option("--selects-all", help="Assume that a mask of unknown values selects every element, the maximum.")
]
Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        metavar="[NAME=]SIZES[:DTYPE]",
        help="An argument of the forward pass: 1x3x224x224, 2x16:int64, mask=2x16:bool. May be repeated.",
    ),
]
Train = Annotated[bool, typer.Option("--train", help="Run in training mode.")]
Backward = Annotated[bool, typer.Option("--backward", help="Also run the backward pass from the results.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Maximum number of rows to print; totals include all rows.")]


@app.command()
def inspect(
    model: Model,
    config: Config = None,
    depth: Annotated[int | None, typer.Option(min=0, help="Number of levels to print; all by default.")] = None,
    device: DeviceName = None,
    dtype: DtypeName = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with every layer separately.")] = False,
    every: Annotated[bool, typer.Option("--all", help="Print equal layers separately.")] = False,
    limit: Limit = None,
    inputs: Inputs = None,
    train: Train = False,
    backward: Backward = False,
    selects_all: SelectsAll = False,
) -> None:
    """Build MODEL without allocating memory, and print its layers with their sizes and the memory they would take.

    With --input, --train, --backward or --selects-all, runs the model as well, and prints how many operators that
    takes, their FLOPs and bytes.

    Exits with 1 if the model's own code fails, with 2 if there is no such model or an option is invalid.
    """
    with _reporting_errors("inspect"), Console(stderr=True).status(f"Building {model}"):
        built = build_model(model, config=config, device=_device(device), dtype=_dtype(dtype))
        root = survey(built)
        steps: list[Step] | None = None
        if inputs or train or backward or selects_all:
            specs = [parse_input(text) for text in inputs or []]
            built.train(train)
            with fake_mode(selects_all=selects_all):
                args, kwargs = make_inputs(built, specs, device=_device(device), batch=1, length=None)
                steps = _run(model, lambda: list(trace_model(built, *args, backward=backward, **kwargs).steps()))
    if as_json:
        report = _report(root, model, depth)
        typer.echo(json.dumps(report if steps is None else {**report, "run": totals_of(steps)}, indent=2))
    else:
        print_layers(root, title=model, depth=depth, folded=not every, limit=limit)
        if steps is not None:
            print_totals(steps)


@app.command()
def trace(
    model: Model,
    config: Config = None,
    inputs: Inputs = None,
    dynamic: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME.DIM=SYMBOL",
            help="Make a size of an input symbolic: input_ids.0=batch. Results then have expressions. May be repeated.",
        ),
    ] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Batch size, if no --input is given; by default 1, or 2 with --dynamic.")
    ] = None,
    length: Annotated[
        int | None,
        typer.Option(min=1, help="Number of tokens, if no --input is given; by default 128, or the model's maximum."),
    ] = None,
    device: DeviceName = None,
    dtype: DtypeName = None,
    train: Train = False,
    backward: Backward = False,
    selects_all: SelectsAll = False,
    depth: Annotated[int | None, typer.Option(min=0, help="Print one row per layer, down to this many levels.")] = None,
    limit: Limit = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run MODEL without allocating memory, and print every operator it calls with the tensors it returns.

    Exits with 1 if the model's own code fails, with 2 if there is no such model or an option is invalid.
    """
    with _reporting_errors("trace"), Console(stderr=True).status(f"Running {model}"):
        specs = [parse_input(text) for text in inputs or []]
        target = _device(device)
        wanted = None if specs else length
        built = build_model(model, config=config, device=target, dtype=_dtype(dtype), length=wanted).train(train)
        symbols = [parse_dynamic(text) for text in dynamic or []]
        env = torchfake.ShapeEnv() if symbols else None
        rows = batch or (2 if symbols else 1)
        with fake_mode(shape_env=env, selects_all=selects_all):
            args, kwargs = make_inputs(built, specs, device=target, batch=rows, length=length)
            if env is not None:
                make_dynamic(env, built, args, kwargs, symbols)
            steps = _run(model, lambda: list(trace_model(built, *args, backward=backward, **kwargs).steps()))
    if as_json:
        report = {"model": model, "totals": totals_of(steps), "nodes": [s.to_json() for s in steps[:limit]]}
        if env is not None:
            report["guards"] = [str(guard) for guard in (*env.guards, *env.runtime_assertions)]
        typer.echo(json.dumps(report, indent=2))
    else:
        print_steps(steps, title=model, depth=depth, limit=limit)
        if env is not None:
            typer.echo("Guards:\n" + "".join(f"  {line}\n" for line in env.format_guards().splitlines()), nl=False)


class _RunCommand(typer.core.TyperCommand):
    """`torchfake run`: arguments after the script, or after `-m MODULE`, belong to the program, as in Python."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with_value = {name for option in self.params if not getattr(option, "is_flag", False) for name in option.opts}
        at = 0
        while at < len(args) and args[at].startswith("-") and args[at] != "--":
            if args[at] == "-m":
                args = [*args[: at + 2], "--", *args[at + 2 :]]
                break
            at += 2 if args[at] in with_value else 1
        return super().parse_args(ctx, args)


@app.command(cls=_RunCommand, context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True})
def run(
    context: typer.Context,
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="SCRIPT [ARGS]...", help="The program and its arguments.")
    ] = None,
    module: Annotated[
        str | None, typer.Option("-m", metavar="MODULE", help="Run a module instead of a script.")
    ] = None,
    gpu: Annotated[str | None, typer.Option(help="The available card: H200, A100-80GB, RTX-4090, ...")] = None,
    gpus: Annotated[str | None, typer.Option(help="Several of them: 8xH100-80GB.")] = None,
    gpu_memory: Annotated[str | None, typer.Option(help="The memory of each card: 24GiB.")] = None,
    unlimited: Annotated[
        bool, typer.Option("--unlimited", help="Do not limit the memory of the cards, and report how much is needed.")
    ] = False,
    nnodes: Annotated[int, typer.Option(min=1, help="Number of machines, as for torchrun.")] = 1,
    nproc_per_node: Annotated[
        int | None, typer.Option(min=1, help="Number of processes per machine; sets torchrun's environment variables.")
    ] = None,
    rank: Annotated[
        str | None, typer.Option(metavar="RANK", help="The rank to run, or `all` for one rank of each role.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Raise an error for unknown values.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Do not print a report at the end.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the report as JSON.")] = None,
    track: Annotated[bool, typer.Option("--track", help="Report what owns the memory at the peak.")] = False,
    time_steps: Annotated[bool, typer.Option("--time", help="Report an estimate of the time on the card.")] = False,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write an HTML page on memory use.")] = None,
    snapshot: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a file for the memory viewer.")] = None,
    trace_file: Annotated[Path | None, typer.Option("--trace", metavar="FILE", help="Write a Chrome trace.")] = None,
    peers_folder: Annotated[Path | None, typer.Option("--peers", hidden=True)] = None,
) -> None:
    """Run a Python program on virtual cards, without memory or computation.

    The program runs in this process, in a fake mode. At the end a report on standard error shows how long it took, the
    peak memory of the cards, and the stand-ins used for unknown values. The exit code is the program's, or 3 if it was
    ended by an OutOfMemoryError.
    """
    given = list(arguments or [])
    if module is None and not given:
        raise typer.BadParameter("expected a script, or -m MODULE", param_hint="SCRIPT")
    if gpu is not None and gpus is not None:
        raise typer.BadParameter("pass --gpu or --gpus, not both", param_hint="--gpus")
    program = Program(module, True, given) if module is not None else Program(given[0], False, given[1:])
    launch = None
    try:
        if rank == "all":
            files = Outputs(html, snapshot, trace_file)
            world_size = nnodes * (nproc_per_node or 1)
            raise typer.Exit(_run_all(context, world_size, program.name, files, quiet=quiet, json_file=json_file))
        if rank is not None and not rank.isdigit():
            raise ValueError(f"--rank {rank}: expected a number, or all")
        if nproc_per_node is not None or nnodes > 1:
            launch = Launch(nnodes, nproc_per_node or 1, int(rank or 0))
        mode = fake_mode(
            gpus=gpus or gpu or (f"{launch.nproc_per_node}xH200" if launch else "H200"),
            gpu_memory=gpu_memory,
            unlimited=unlimited,
            unknown="error" if strict else "stand-in",
            strict=strict,
        )
        own = ("rank", "json_file", "module", "nproc_per_node", "html", "snapshot", "trace_file", "peers_folder")
        left_out = {**dict.fromkeys(own), "nnodes": 1, "quiet": False}
        code = run_program(
            program,
            mode,
            launch=launch,
            quiet=quiet,
            json_file=json_file,
            outputs=Outputs(html, snapshot, trace_file),
            track=track,
            time_steps=time_steps,
            children=Children(_options_of(context, left_out), None if rank is None else int(rank)),
            peers=Peers(functools.partial(_command_of_peer, context), peers_folder),
        )
    except (ValueError, ProgramNotFoundError, RankFailedError) as error:
        typer.echo(f"torchfake run: {error}", err=True)
        raise typer.Exit(BAD_INPUT) from None
    raise typer.Exit(code)


def _command_of_peer(context: typer.Context, rank: int, folder: Path) -> list[str]:
    """The command line of another rank of the program, which leaves the objects that it sends in a folder."""
    changed: dict[str, Any] = dict.fromkeys(("json_file", "html", "snapshot", "trace_file"))
    changed |= {"rank": str(rank), "peers_folder": str(folder), "quiet": True, "track": False, "time_steps": False}
    arguments = context.params["arguments"] or []
    return [sys.executable, "-m", "torchfake", "run", *_options_of(context, changed), "--", *arguments]


def _run_all(
    context: typer.Context, world_size: int, program: str, files: Outputs, *, quiet: bool, json_file: Path | None
) -> int:
    """Runs one rank of each role, each as a process with this command. Returns the first nonzero exit code."""

    def command(rank: int, file: Path) -> list[str]:
        changed: dict[str, Any] = {"rank": str(rank), "json_file": str(file), "quiet": True}
        if files.html is not None:
            changed |= {"html": None, "track": True}
        changed |= {"snapshot": file_of_rank(files.snapshot, rank), "trace_file": file_of_rank(files.trace, rank)}
        arguments = context.params["arguments"] or []
        return [sys.executable, "-m", "torchfake", "run", *_options_of(context, changed), "--", *arguments]

    def tell(what: str) -> None:
        if not quiet:
            typer.echo(f"torchfake: {what}", err=True)

    roles, left_out = run_all_ranks(command, world_size, tell=tell)
    if json_file is not None:
        report = {"ranks": world_size, "left_out": left_out, "roles": [role.to_json() for role in roles]}
        json_file.write_text(json.dumps(report, indent=2) + "\n")
    if files.html is not None:
        files.html.write_text(page_of_roles(program, roles, left_out), encoding="utf-8")
    if not quiet:
        typer.echo(format_roles(roles, left_out), err=True)
    return next((code for role in roles if (code := int(role.report["exit_code"])) != 0), 0)


def _options_of(context: typer.Context, changed: dict[str, Any]) -> list[str]:
    """The options of this command as given, with some changed."""
    options = []
    for parameter in context.command.params:
        if parameter.param_type_name != "option" or parameter.name is None:
            continue
        value = changed.get(parameter.name, context.params.get(parameter.name))
        if value is True:
            options.append(parameter.opts[-1])
        elif value is not None and value is not False:
            options += [parameter.opts[-1], str(value)]
    return options


def _run(model: str, forward: Callable[[], list[Step]]) -> list[Step]:
    try:
        return forward()
    except Exception as error:
        raise ModelBuildError(
            f"{model}: running the model failed: {type(error).__name__}: {error} ({line_of_user(error)})"
        ) from error


@contextmanager
def _reporting_errors(command: str) -> Iterator[None]:
    """Turns errors of the model or of the options into a message on standard error and an exit code."""
    try:
        yield
    except (ModelBuildError, ModelSpecError) as error:
        typer.echo(f"torchfake {command}: {error}", err=True)
        raise typer.Exit(BUILD_FAILED if isinstance(error, ModelBuildError) else BAD_INPUT) from None


def _report(root: Layer, model: str, depth: int | None) -> dict[str, object]:
    totals = root.to_json()
    return {
        "model": model,
        "totals": {name: totals[name] for name in ("parameters", "trainable", "buffers", "nbytes")},
        "layers": [layer.to_json() for layer in root.walk(depth)],
    }


def _device(name: str | None) -> torch.device | None:
    if name is None:
        return None
    try:
        return torch.device(name)
    except RuntimeError:
        raise ModelSpecError(f"--device {name}: no such device; try cpu, cuda or cuda:1") from None


def _dtype(name: str | None) -> torch.dtype | None:
    if name is None:
        return None
    dtype = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ModelSpecError(f"--dtype {name}: no such floating-point dtype; try bfloat16 or float16")
    return dtype


def main() -> None:
    """The entry point of the `torchfake` command."""
    app()
