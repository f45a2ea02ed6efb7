"""The pages with figures are generated from the JSON files of runs."""

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import figures as benchmark_figures
import generate_conformance
from provenance import ROOT, page_commit

SOURCE = {
    "command": "python run.py",
    "date": "2026-01-01",
    "commit": "abc",
    "machine": {"cpu": "a CPU", "cores": 2, "torch": "2.13.0+cpu", "python": "3.11"},
}
PEER = {
    "provenance": SOURCE,
    "counts": {"errors torchfake": {"both refuse": 1200}, "errors FakeTensorMode": {"fake accepts": 25}},
}
WHOLE = {
    "provenance": SOURCE,
    "counts": {"operators torchfake": {"same": 5000, "different": 7, "of these failures, listed": 4, "not matched": 2}},
}


def test_the_tables_of_conformance_are_those_of_two_runs():
    text = generate_conformance.figures(PEER, WHOLE)
    assert page_commit(text) == "abc"
    assert "| both refuse | 1,200 | 0 |" in text
    assert "| **fake accepts** | 0 | 25 |" in text
    assert "| operators: every sample, dtype, layout and call | 5,000 | 0 | 0 | 2 | 4 | 3 |" in text
    assert "a CPU, 2 cores: `python run.py`" in text


def test_runs_of_different_commits_make_no_page():
    other = {**WHOLE, "provenance": {**SOURCE, "commit": "def"}}
    with pytest.raises(SystemExit, match="different commits: abc, def"):
        generate_conformance.figures(PEER, other)


def test_the_tables_of_two_engines_are_measured_without_everything():
    old = generate_conformance.figures(PEER, WHOLE)
    later = {**PEER, "provenance": {**SOURCE, "commit": "def"}, "counts": {"errors torchfake": {"both refuse": 1300}}}
    text = generate_conformance.figures(later, None, f"before\n{old}\nafter")
    assert "| both refuse | 1,300 |" in text and "1,200" not in text and "at commit `def`" in text
    assert old[old.index("## Whole") :] == text[text.index("## Whole") :]


@pytest.mark.parametrize("page", ["docs/conformance.md", "benchmarks/README.md"])
def test_figures_replace_what_stands_between_the_marks_alone(page):
    text = (ROOT / page).read_text()
    new = f"{generate_conformance.BEGIN}\nnew\n{generate_conformance.END}"
    replaced = generate_conformance.with_figures(text, new)
    assert replaced.startswith(text.partition(generate_conformance.BEGIN)[0])
    assert replaced.endswith(text.partition(generate_conformance.END)[2])
    assert generate_conformance.with_figures(replaced, new) == replaced


def test_the_figures_of_benchmarks_are_the_goals_of_a_run():
    goal = {"name": "a hit", "wanted": "at least 80", "measured": "70", "reached": False}
    text = benchmark_figures.figures({"provenance": SOURCE, "rounds": 7, "goals": [goal], "results": {}})
    assert page_commit(text) == "abc"
    assert "| a hit | at least 80 | 70 | **no** |" in text


def test_the_page_of_coverage_is_up_to_date():
    script = ROOT / "docs" / "generate_coverage.py"
    assert subprocess.run([sys.executable, str(script), "--check"], check=False).returncode == 0, "run " + str(script)
