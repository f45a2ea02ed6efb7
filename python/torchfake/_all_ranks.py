"""`torchfake run --rank all`: one process per distinct role of the ranks, and a table of the memory each one holds.

Ranks that differ only in the data-parallel coordinate of the program's DeviceMesh run the same operators on tensors of
the same sizes, so one of them represents all. Without such a mesh it is unknown which ranks are alike: all run, up to a
limit.
"""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchfake._memory_page import page_of_ranks

#: The maximum number of ranks to run if no mesh says which are alike.
MOST_RANKS = 16

#: Names of mesh dimensions along which ranks run the same program on different data.
_DATA_PARALLEL = re.compile(r"(dp|ddp|fsdp|hsdp|data|replicate|batch)(_.*)?|.*_(dp|replicate|shard)|shard")

_GIB = 1 << 30


@dataclass(frozen=True)
class Mesh:
    """A DeviceMesh over all ranks: the names of its dimensions, their sizes, and its ranks in order."""

    names: tuple[str, ...]
    shape: tuple[int, ...]
    ranks: tuple[int, ...]

    def roles(self) -> dict[tuple[tuple[str, int], ...], list[int]]:
        """The ranks grouped by their coordinates in the dimensions that are not data-parallel."""
        roles: dict[tuple[tuple[str, int], ...], list[int]] = {}
        for rank, place in zip(self.ranks, itertools.product(*map(range, self.shape)), strict=True):
            role = tuple(
                (name, index)
                for name, index in zip(self.names, place, strict=True)
                if not _DATA_PARALLEL.fullmatch(name)
            )
            roles.setdefault(role, []).append(rank)
        return {role: sorted(ranks) for role, ranks in roles.items()}


@dataclass(frozen=True)
class Role:
    """A group of ranks that are alike, and the report of the one that ran."""

    name: str
    ranks: list[int]
    report: dict[str, Any]

    @property
    def peak(self) -> int:
        return max((card["peak_allocated"] for card in self.report["cards"]), default=0)

    def to_json(self) -> dict[str, Any]:
        return {"role": self.name, "ranks": self.ranks, "peak_allocated": self.peak, "report": self.report}


def find_mesh(report: dict[str, Any], world_size: int) -> Mesh | None:
    """The mesh over all ranks with the most named dimensions."""
    meshes = [
        Mesh(tuple(mesh["names"]), tuple(mesh["shape"]), tuple(mesh["ranks"]))
        for mesh in report.get("meshes", [])
        if sorted(mesh["ranks"]) == list(range(world_size))
    ]
    return max(meshes, key=lambda mesh: len(mesh.names), default=None)


class RankFailedError(Exception):
    """The process of a rank ended without a report."""


def _run_rank(command: Callable[[int, Path], Sequence[str]], rank: int, *, shown: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.json"
        ended = subprocess.run(
            command(rank, file), stdout=None if shown else subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        if shown or ended.returncode != 0:
            sys.stderr.write(ended.stderr)
        if not file.exists():
            raise RankFailedError(f"rank {rank} ended with {ended.returncode} and no report")
        report: dict[str, Any] = json.loads(file.read_text())
        return report


def run_all_ranks(
    command: Callable[[int, Path], Sequence[str]], world_size: int, *, tell: Callable[[str], None]
) -> tuple[list[Role], list[int]]:
    """Runs one rank of each role. Returns the roles, and the ranks left out because there are too many.

    Args:
        command: The command line that runs a rank and writes its report to a file.
        world_size: The number of ranks.
        tell: Called with the rank that is about to run.

    Raises:
        RankFailedError: A process ended without a report.
    """
    tell(f"rank 0 of {world_size}")
    first = _run_rank(command, 0, shown=True)
    mesh = find_mesh(first, world_size)
    left_out: list[int] = []
    if mesh is not None:
        groups = [(", ".join(f"{n}={i}" for n, i in role) or "all", ranks) for role, ranks in mesh.roles().items()]
    else:
        groups = [("", [rank]) for rank in range(min(world_size, MOST_RANKS))]
        left_out = list(range(MOST_RANKS, world_size))
    roles = []
    for number, (name, ranks) in enumerate(groups):
        if 0 in ranks:
            roles.append(Role(name, ranks, first))
            continue
        tell(f"rank {ranks[0]} of {world_size}, role {number + 1} of {len(groups)}")
        roles.append(Role(name, ranks, _run_rank(command, ranks[0], shown=False)))
    return roles, left_out


def page_of_roles(program: str, roles: Sequence[Role], left_out: Sequence[int]) -> str:
    """The page of `--html`: a table of the roles, and the memory of each."""
    tracked = [(_listed(role.ranks), role.name, role.report) for role in roles if "memory" in role.report]
    return page_of_ranks(program, tracked, _listed(left_out))


def file_of_rank(file: Path | None, rank: int) -> str | None:
    """The name under which a rank writes a file that each of them writes: `trace-rank3.json`."""
    return None if file is None else str(file.with_stem(f"{file.stem}-rank{rank}"))


def _listed(ranks: Sequence[int]) -> str:
    """Formats ranks like `0-3, 8`, with consecutive ones as a range."""
    parts = []
    for _, group in itertools.groupby(enumerate(ranks), key=lambda pair: pair[1] - pair[0]):
        numbers = [rank for _, rank in group]
        parts.append(str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}")
    return ", ".join(parts)


def format_roles(roles: Sequence[Role], left_out: Sequence[int]) -> str:
    """A table of what each role holds."""
    rows = [("ranks", "role", "exit", "peak GiB", "collectives", "GiB sent or received", "stand-ins")]
    for role in roles:
        collectives = role.report.get("collectives", [])
        rows.append(
            (
                _listed(role.ranks),
                role.name or "-",
                str(role.report["exit_code"]),
                f"{role.peak / _GIB:.2f}",
                str(sum(row["count"] for row in collectives)),
                f"{sum(row['nbytes'] for row in collectives) / _GIB:.3f}",
                str(sum(entry["count"] for entry in role.report["stand_ins"])),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    if left_out:
        lines.append(
            f"{len(left_out)} ranks did not run ({_listed(left_out)}): no DeviceMesh with names says which are alike"
        )
    return "\n".join(lines)
