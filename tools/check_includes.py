"""Finds includes against the direction of the engine's folders, and operator names below rules/.

    python tools/check_includes.py [CSRC]

A file may include its own folder and those below it: core; then cache, values, symbolic and memory, which do not
include each other; then dispatch, and work, which of these only includes memory; then rules, convert and devices, which
do not include each other either. Knowledge about operators by name belongs in rules/, so the folders below it must not
contain such names. Prints `file:line: what` for each violation, and ends with status 1 if there is one.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

SOURCES = Path(__file__).resolve().parent.parent / "csrc/torchfake"

# Folder: the other folders that it may include.
MAY_INCLUDE = {
    "core": set[str](),
    "cache": {"core"},
    "values": {"core"},
    "symbolic": {"core"},
    "memory": {"core"},
    "work": {"core", "memory"},
    "dispatch": {"core", "cache", "values", "symbolic", "memory"},
    "rules": {"core", "cache", "values", "symbolic", "memory", "work", "dispatch"},
    "convert": {"core", "cache", "values", "symbolic", "memory", "dispatch"},
    "devices": {"core", "cache", "values", "symbolic", "memory", "dispatch"},
}
NAMELESS = {"core", "cache", "values", "symbolic", "memory", "work", "dispatch"}

INCLUDE = re.compile(r'#include [<"]torchfake/(\w+)/')
OPERATOR = re.compile(r'"(aten|prims|c10d|_c10d_functional)(::|\.)')


def violations(path: Path, folder: str) -> list[tuple[int, str]]:
    """The lines of a file that break the rules, with the reason."""
    found = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        include = INCLUDE.match(line)
        if include and include[1] != folder and include[1] not in MAY_INCLUDE[folder]:
            found.append((number, f"{folder}/ must not include {include[1]}/"))
        name = OPERATOR.search(line.partition("//")[0])
        if name and folder in NAMELESS:
            found.append((number, f"the name of an operator in {folder}/: it belongs in rules/operator_table.cpp"))
    return found


def main(arguments: list[str]) -> int:
    root = Path(arguments[0]).resolve() if arguments else SOURCES
    count = 0
    for path in sorted([*root.rglob("*.h"), *root.rglob("*.cpp")]):
        folder = path.relative_to(root).parts[0]
        if folder not in MAY_INCLUDE:
            if path.parent != root:
                print(f"{path}:1: a folder that this check does not know: {folder}/")
                count += 1
            continue
        for number, what in violations(path, folder):
            print(f"{path}:{number}: {what}")
            count += 1
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
