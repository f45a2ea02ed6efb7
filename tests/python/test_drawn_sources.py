"""The selection of C++ sources that continuous integration checks closely."""

import importlib.util
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture(scope="module")
def drawn():
    spec = importlib.util.spec_from_file_location("drawn_sources", TOOLS / "drawn_sources.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.drawn


SOURCES = [f"csrc/{i}.cpp" for i in range(50)]


def test_changed_sources_come_first(drawn):
    chosen = drawn(SOURCES, {"csrc/7.cpp", "csrc/31.cpp", "removed.cpp"}, "a", 5)
    assert set(chosen[:2]) == {"csrc/7.cpp", "csrc/31.cpp"}
    assert len(chosen) == 5


def test_the_seed_decides_the_rest(drawn):
    assert drawn(SOURCES, set(), "a", 9) == drawn(SOURCES, set(), "a", 9)
    assert drawn(SOURCES, set(), "a", 9) != drawn(SOURCES, set(), "b", 9)
