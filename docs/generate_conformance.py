"""Writes the figures in docs/conformance.md from the JSON files of two runs of tests/conformance/run.py.

python docs/generate_conformance.py build/conformance-peer.json [build/conformance.json]

The first file is a run of both engines (`--peer`), the second a run of everything. Both must be from one commit.
Without the second, which takes hours, the page keeps the figures of everything, with the commit at which they were
measured.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from provenance import mark, sentence

PAGE = Path(__file__).with_name("conformance.md")
BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"
PEER, WHOLE = "## Both engines", "## Whole"

#: The suites, by their names in the counts, with descriptions.
SUITES = {
    "operators": "operators: every sample, dtype, layout and call",
    "errors": "bad input",
    "cuda": "a recorded H200",
    "cuda calls": "the same: every dtype, layout and call, three samples of each operator, and bad input",
    "cuda modules": "modules on a recorded H200",
    "modules": "modules",
    "optimizers": "optimizers",
}
#: Columns of the second table: the heading, and the outcomes that are added up.
COLUMNS = {
    "same": ("same",),
    "both refuse": ("both refuse", "refused where values are known"),
    "depends on values": ("data-dependent",),
    "not compared": ("real accepts", "not matched"),
    "listed": ("of these failures, listed",),
}
FAILURES = (
    "different",
    "fake raises",
    "fake accepts",
    "fake raises another type",
    "data-dependent with known values",
    "declared data-dependent, and other values change nothing",
    "crash",
    "no samples",
)


def number(value: int) -> str:
    return f"{value:,}"


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def beside_the_peer(counts: dict[str, dict[str, int]]) -> list[str]:
    """A table with a column for each suite and engine, and a row for each outcome."""
    columns = [key for suite in SUITES for key in (f"{suite} torchfake", f"{suite} FakeTensorMode") if key in counts]
    outcomes = list(dict.fromkeys(outcome for key in columns for outcome in counts[key]))
    lines = [row("outcome", *columns), "|" + "---|" * (len(columns) + 1)]
    for outcome in outcomes:
        name = f"**{outcome}**" if outcome in FAILURES else outcome
        lines.append(row(name, *(number(counts[key].get(outcome, 0)) for key in columns)))
    return lines


def whole(counts: dict[str, dict[str, int]]) -> list[str]:
    lines = [row("suite", *COLUMNS, "other differences"), "|" + "---|" * (len(COLUMNS) + 2)]
    for suite, title in SUITES.items():
        found = counts.get(f"{suite} torchfake")
        if found is None:
            continue
        cells = [number(sum(found.get(outcome, 0) for outcome in outcomes)) for outcomes in COLUMNS.values()]
        others = sum(found.get(outcome, 0) for outcome in FAILURES) - found.get("of these failures, listed", 0)
        lines.append(row(title, *cells, number(others)))
    return lines


def of_peer(run: dict[str, Any]) -> list[str]:
    return [PEER, "", sentence(run["provenance"]), "", *beside_the_peer(run["counts"]), ""]


def of_everything(run: dict[str, Any]) -> list[str]:
    return [
        WHOLE,
        "",
        mark(run["provenance"]["commit"]),
        "",
        sentence(run["provenance"]),
        "",
        *whole(run["counts"]),
        "",
    ]


def figures(peer: dict[str, Any], everything: dict[str, Any] | None, page: str = "") -> str:
    """What stands between the page's marks. Without new figures of everything, the page's are kept."""
    if everything is None:
        _, found, old = page.partition(END)[0].partition(WHOLE)
        return "\n".join([BEGIN, *of_peer(peer), found + old + END])
    commits = {run["provenance"]["commit"] for run in (peer, everything)}
    if len(commits) != 1:
        raise SystemExit(f"error: the runs are of different commits: {', '.join(sorted(commits))}")
    return "\n".join([BEGIN, *of_peer(peer), *of_everything(everything), END])


def with_figures(page: str, new: str) -> str:
    """The page with the text between the two marks replaced."""
    before, found, rest = page.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise SystemExit(f"error: no {BEGIN} and {END} in the page")
    return before + new + after


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", type=Path)
    parser.add_argument("everything", type=Path, nargs="?")
    options = parser.parse_args()
    everything = None if options.everything is None else json.loads(options.everything.read_text())
    page = PAGE.read_text()
    PAGE.write_text(with_figures(page, figures(json.loads(options.peer.read_text()), everything, page)))


if __name__ == "__main__":
    main()
