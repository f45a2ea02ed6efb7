"""Selects C++ sources for closer checks in CI: those that the last commit changed, then others by a seed.

python tools/drawn_sources.py --seed SEED --count N FOLDER...

Prints at most N sources of these folders, one per line. With a commit's hash as the seed, unchanged files get their
turn too, and a run can be reproduced.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent


def drawn(sources: list[str], changed: set[str], seed: str, count: int) -> list[str]:
    """The first `count` sources in an order determined by the seed, changed ones first."""

    def place(source: str) -> tuple[bool, bytes]:
        return source not in changed, hashlib.sha256(f"{seed} {source}".encode()).digest()

    return sorted(sources, key=place)[:count]


def changed_sources(folders: list[str]) -> set[str]:
    """The files changed by the last commit and the working tree; empty without a repository or with a single commit."""
    command = ["git", "diff", "--name-only", "--relative", "HEAD~1", "--", *folders]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return set(ran.stdout.split()) if ran.returncode == 0 else set()


def all_sources(folders: list[str]) -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for folder in folders for path in (ROOT / folder).rglob("*.cpp"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("folders", nargs="+", metavar="FOLDER")
    options = parser.parse_args()
    found, changed = all_sources(options.folders), changed_sources(options.folders)
    print(*drawn(found, changed, options.seed, options.count), sep="\n")


if __name__ == "__main__":
    main()
