"""The provenance of a figure (command, date, commit, machine), for JSON files and generated pages."""

from __future__ import annotations

import datetime
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent

#: The sources that figures depend on: a page is stale once these have changed.
MEASURED = ("csrc", "python")

_MARK = re.compile(r"^<!-- commit: (\S+) -->$", re.MULTILINE)


def git(*arguments: str) -> str | None:
    """The output of a git command in the project's folder; None if it fails or git is missing."""
    try:
        ran = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return ran.stdout.strip()


def commit() -> str:
    """The hash of the measured commit, followed by `-changed` if the sources differ from it."""
    found = git("rev-parse", "HEAD")
    if found is None:
        return "unknown"
    return f"{found}-changed" if git("status", "--porcelain", "--", *MEASURED) else found


def cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*: (.*)$", info.read_text(), re.MULTILINE) if info.exists() else []
    return names[0] if names else platform.processor() or platform.machine()


def machine() -> dict[str, Any]:
    import torch

    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "os": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def provenance() -> dict[str, Any]:
    """The provenance of the running program."""
    return {
        "command": " ".join(["python", *(sys.argv[:1] and [_from_root(sys.argv[0])]), *sys.argv[1:]]),
        "date": f"{datetime.date.today()}",
        "commit": commit(),
        "machine": machine(),
    }


def _from_root(program: str) -> str:
    path = Path(program).resolve()
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name


def mark(commit: str) -> str:
    """A line from which `page_commit` reads a page's commit; it is not visible to readers."""
    return f"<!-- commit: {commit} -->"


def sentence(source: dict[str, Any]) -> str:
    """The provenance as a sentence for readers."""
    where = source["machine"]
    torch_version = str(where["torch"]).partition("+")[0]
    return (
        f"Measured on {source['date']} at commit `{source['commit'][:12]}` with PyTorch {torch_version} and Python "
        f"{where['python']} on {where['cpu']}, {where['cores']} cores: `{source['command']}`."
    )


def page_commit(text: str) -> str | None:
    """The commit that a page was made from, according to its first mark."""
    found = _MARK.search(text)
    return found.group(1) if found else None


def why_stale(text: str) -> str | None:
    """The reason why a page's figures do not match the current sources, or None."""
    measured = page_commit(text)
    if measured is None:
        return "does not name its commit"
    if git("cat-file", "-e", f"{measured}^{{commit}}") is None:
        return f"is from {measured}, which is not a commit of this repository"
    changed = git("diff", "--name-only", measured, "--", *MEASURED)
    if changed is None or changed:
        count = len((changed or "").splitlines())
        return f"is from {measured[:12]}; {count} files in {' and '.join(MEASURED)} changed since"
    return None
