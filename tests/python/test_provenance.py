"""Generated pages name their commit, and a page from other sources is detected."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import provenance


def test_a_page_tells_its_commit():
    text = f"# A page\n\n{provenance.mark('abc')}\n\nSome figures.\n"
    assert provenance.page_commit(text) == "abc"
    assert provenance.page_commit("# A page\n") is None


def test_where_a_figure_comes_from_names_command_day_commit_and_machine():
    source = provenance.provenance()
    said = provenance.sentence(source)
    assert source["commit"][:12] in said
    assert source["date"] in said
    assert source["machine"]["cpu"] in said
    assert "PyTorch 2." in said


@pytest.mark.skipif(provenance.git("rev-parse", "HEAD") is None, reason="the folder is no repository")
def test_a_page_of_other_sources_is_stale():
    first = provenance.git("rev-list", "--max-parents=0", "HEAD").split()[0]
    assert provenance.why_stale("# A page\n") == "does not name its commit"
    assert "not a commit" in provenance.why_stale(provenance.mark("0" * 40))
    head = provenance.git("rev-parse", "HEAD")
    assert "not a commit" in provenance.why_stale(provenance.mark(f"{head}-changed"))
    if first != head:
        assert "changed since" in provenance.why_stale(provenance.mark(first))
    if not provenance.git("status", "--porcelain", "--", *provenance.MEASURED):
        assert provenance.why_stale(provenance.mark(head)) is None
