"""Checks whether the pages with figures match the current sources, as required for a release.

python tools/check_figures.py
"""

from __future__ import annotations

import sys

from provenance import ROOT, why_stale

#: Each page, and the command that writes it.
PAGES = {
    "docs/conformance.md": "bash run figures conformance",
    "docs/architectures.md": "bash run figures architectures",
    "docs/coverage.md": "python docs/generate_coverage.py",
    "benchmarks/README.md": "bash run figures benchmarks",
}


def main() -> None:
    stale = {page: why_stale((ROOT / page).read_text()) for page in PAGES}
    for page, why in stale.items():
        print(f"{page}: {'fresh' if why is None else f'{why}. Write it with: {PAGES[page]}'}")
    sys.exit(any(why is not None for why in stale.values()))


if __name__ == "__main__":
    main()
