"""The documentation builds as a site without broken links."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def build(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-f", str(config), "-d", str(site)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)


def test_the_site_builds(tmp_path: Path) -> None:
    result = build(ROOT / "mkdocs.yml", tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    for page in ("index.html", "api/python/index.html", "api/cpp/index.html", "limits/index.html"):
        assert (tmp_path / page).exists(), page


def test_the_pages_of_the_api_have_what_they_are_about(tmp_path: Path) -> None:
    assert build(ROOT / "mkdocs.yml", tmp_path).returncode == 0
    python = (tmp_path / "api/python/index.html").read_text()
    assert 'id="torchfake.fake_mode"' in python and 'id="torchfake.FakeTensorMode"' in python
    assert "meta_like" in (tmp_path / "api/cpp/index.html").read_text()


def test_a_link_that_leads_nowhere_is_found() -> None:
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        import site_pages
    finally:
        sys.path.pop(0)
    assert site_pages.rewritten("[x](limits.md)", "docs/README.md", "index.md") == "[x](limits.md)"
    assert site_pages.rewritten("[x](../README.md#y)", "docs/guides/cpp.md", "guides/cpp.md") is not None
    try:
        site_pages.rewritten("[x](missing.md)", "docs/README.md", "index.md")
    except FileNotFoundError as error:
        assert "missing.md" in str(error)
    else:
        raise AssertionError("a link to a missing page was taken")
