"""All benchmarks: python benchmarks/run.py [PART...] [--rounds N] [--json FILE]; --help names the parts."""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path

FIGURES = Path(__file__).parent.parent / "build" / "benchmarks.json"
PARTS = ("everyday", "ops", "models", "growth", "fx", "cpp", "real")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=(*PARTS, "all"), default="all", help="what to measure")
    parser.add_argument("--rounds", type=int, default=7, help="interleaved rounds whose median counts")
    parser.add_argument("--json", type=Path, default=FIGURES, help="where to write all figures")
    arguments = parser.parse_args()

    # Only now, so that --help answers at once.
    from torchfake_bench.report import Report, console, print_goals, print_head

    report = Report(rounds=arguments.rounds)
    print_head(report)
    for part in PARTS if "all" in arguments.parts else arguments.parts:
        importlib.import_module(f"torchfake_bench.{part}").run(report)
    if report.goals:
        print_goals(report)
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(report.to_json(), indent=1))
    console.print(f"All figures: {arguments.json.name}")


if __name__ == "__main__":
    main()
