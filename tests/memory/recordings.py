"""The sets of programs with the recordings of a real card that they are compared with."""

from __future__ import annotations

import gzip
import importlib.metadata
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fresh import FRESH, load
from held_out import HELD_OUT, LIMITED
from last import LAST
from later import LATER, LATER_LIMITED
from published import PUBLISHED
from workloads import WORKLOADS

Program = Callable[[Callable[[str], None]], None]


def recording(name: str) -> dict[str, Any]:
    path = Path(__file__).parent / "recorded" / f"{name}.json.gz"
    found: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return found


def has_published() -> bool:
    """Whether the installed transformers, whose models need other memory in another release, is the recorded one."""
    try:
        return importlib.metadata.version("transformers") == str(recording("published")["transformers"])
    except importlib.metadata.PackageNotFoundError:
        return False


load()

#: By title: the programs, and the name of their recording, which may lack some of them.
SETS: dict[str, tuple[dict[str, Program], str]] = {
    "fitted": (WORKLOADS, "workloads"),
    "held out": (HELD_OUT, "held_out"),
    "later": (LATER, "later"),
    "fresh": (FRESH, "fresh"),
    "last": (LAST, "last"),
    "published": (PUBLISHED, "published"),
}
LIMITS = {"held out": (LIMITED, "held_out"), "later": (LATER_LIMITED, "later")}

RELEASE = int(recording("workloads")["torch"].split(".")[1])
H200 = int(recording("held_out")["total_memory"])
