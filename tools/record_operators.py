"""Records the operators that PyTorch's releases do not share, in cmake/records/operators_of_releases.json.

Run once in the environment of each supported release: its operators replace those recorded for it before, and operators
that are the same in every recorded release are omitted.

    python tools/record_operators.py /tmp/all_operators.json
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch

REPOSITORY = Path(__file__).parents[1]
sys.path.insert(0, str(REPOSITORY / "cmake"))

from operator_tables import RELEASES, parse_operators, release_of  # noqa: E402


def main() -> None:
    """Adds the installed release to the schemas of all, and writes the differences."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("all_operators", type=Path, help="a file that keeps every operator of the releases seen so far")
    path = parser.parse_args().all_operators
    seen: dict[str, dict[str, str]] = json.loads(path.read_text()) if path.exists() else {}
    seen[release_of(torch.__version__)] = {str(f.func.name): str(f.func) for f in parse_operators().native_functions}
    path.write_text(json.dumps(seen))

    releases = sorted(seen, key=lambda release: [int(part) for part in release.split(".")])
    names = sorted(set().union(*seen.values()))
    differing = {
        name: {release: seen[release][name] for release in releases if name in seen[release]}
        for name in names
        if len({seen[release].get(name) for release in releases}) > 1
    }
    rows = ",\n".join(f" {json.dumps(name)}: {json.dumps(schemas)}" for name, schemas in differing.items())
    RELEASES.write_text(f'{{"releases": {json.dumps(releases)}, "operators": {{\n{rows}\n}}}}\n')
    print(f"{len(differing)} operators differ between {', '.join(releases)}")


if __name__ == "__main__":
    main()
