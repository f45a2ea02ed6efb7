"""The page of a memory report: no text from the program is interpreted, and it fits on screens of any width."""

from __future__ import annotations

import html.parser
import io
import json
import re
import shutil
import subprocess
import types
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn

import torchfake
from torchfake import memory
from torchfake._memory_compare import NotAReportError, compare, comparison_table, load_report
from torchfake._memory_page import page_of, page_of_ranks, savings

HOSTILE = "<img src=x onerror='alert(1)'><script>alert(2)</script>\"&</style><b>[/bold]"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
# Appended to a page: reports in the title how the browser has interpreted it.
PROBE = """<script>document.title = [document.documentElement.scrollWidth, innerWidth, document.images.length,
document.scripts.length, document.title, getComputedStyle(document.querySelector("main")).backgroundColor].join("|")
</script>"""


@pytest.fixture(scope="module")
def report() -> memory.Report:
    """The report of a program whose classes, modules, phases and files have hostile names."""
    program = """
def run(model, tracked):
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        model(torch.randn(64, 256, device="cuda")).sum().backward()
        optimizer.step()
    tracked.phase(name)
    return torch.empty(1 << 24, device="cuda")
"""
    module = types.ModuleType("program")
    module.__dict__.update(torch=torch, name=HOSTILE)
    exec(compile(program, f"/tmp/{HOSTILE}.py", "exec"), module.__dict__)
    kind = type(HOSTILE, (nn.Sequential,), {})
    with torchfake.fake_mode(gpus="2xL4"), memory.track(lines=True) as tracked:
        model = kind(nn.Linear(256, 512))
        model.add_module(HOSTILE, nn.Linear(512, 8))
        model.cuda()
        kept = module.run(model, tracked)
        other = torch.empty(5, device="cuda:1")
    del kept, other
    return tracked.report()


class Tags(html.parser.HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, list[str]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, [name for name, _ in attrs]))


RUN = {
    "program": HOSTILE,
    "out_of_memory": True,
    "exit_code": 3,
    "error": f"{HOSTILE}\nsecond line",
    "seconds": 1.0,
    "cards": [
        {"index": 0, "name": HOSTILE, "peak_allocated": 5, "peak_reserved": 6, "needed": 7, "total_memory": 8},
    ],
}


def test_names_from_the_program_are_text(report: memory.Report) -> None:
    assert HOSTILE in {piece["module"].partition(".")[2] for piece in report.data["devices"][0]["largest"]} | {
        point["phase"] for point in report.data["devices"][0]["timeline"]
    }
    for page in (report.html(), report._repr_html_(), page_of(report.data, RUN)):
        tags = Tags(page).found
        assert not {tag for tag, _ in tags} & {"script", "img", "b", "link", "iframe"}
        assert [tag for tag, _ in tags].count("style") == 1
        assert not [name for _, names in tags for name in names if name.startswith("on") or name in ("src", "href")]


def test_a_comparison_prints_names_that_look_like_markup(report: memory.Report, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(report.json())
    (tmp_path / "b.json").write_text(report.json())
    before, after = (load_report(tmp_path / name) for name in ("a.json", "b.json"))
    after["cuda:0"]["modules"] = {}
    console = Console(width=200, file=io.StringIO())
    console.print(comparison_table(compare(before, after)))
    assert "[/bold]" in console.file.getvalue()


def test_reports_of_all_ranks_are_compared_rank_by_rank(report: memory.Report, tmp_path: Path) -> None:
    roles = [{"ranks": ranks, "report": {"memory": report.data}} for ranks in ([0, 2], [1])]
    (tmp_path / "a.json").write_text(json.dumps({"ranks": 3, "left_out": [], "roles": roles}))
    before = load_report(tmp_path / "a.json")
    assert list(before) == ["rank 0, cuda:0", "rank 0, cuda:1", "rank 1, cuda:0", "rank 1, cuda:1"]
    rows = compare(before, before)
    assert all(row["before"] == row["after"] > 0 for row in rows)
    roles[1]["report"] = {}
    (tmp_path / "a.json").write_text(json.dumps({"ranks": 3, "left_out": [], "roles": roles}))
    with pytest.raises(NotAReportError, match="--track"):
        load_report(tmp_path / "a.json")


@pytest.mark.parametrize(
    "text", ['{"devices": [5]}', '{"devices": [{}]}', "[]", '{"memory": {"devices": [{"device": 1}]}}']
)
def test_a_file_that_is_no_report_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(NotAReportError, match=r"a\.json"):
        load_report(tmp_path / "a.json")


def test_savings_are_bounds_on_what_the_peak_holds() -> None:
    owners = dict.fromkeys(memory.Moment("cuda:0", 0, 0, []).owners, 0) | {"activations": 400, "temporaries": 800}
    bounds = {measure: most for measure, most, _ in savings(owners)}
    assert bounds["accumulation over 4 parts"] == 900
    assert bounds["bfloat16 instead of float32"] == 600
    assert bounds["checkpointing"] == 400
    assert bounds["8-bit optimizer"] == bounds["fully_shard over 8 cards"] == 0


def test_a_page_of_ranks_has_a_row_and_a_section_for_each(report: memory.Report) -> None:
    run = RUN | {"memory": report.data}
    page = page_of_ranks(HOSTILE, [("0, 2", HOSTILE, run), ("1", "", run)], "3-8")
    tags = [tag for tag, _ in Tags(page).found]
    assert not set(tags) & {"script", "img", "link"}
    assert tags.count("details") == 2
    assert "<td>0, 2<td>" in page
    assert "Did not run: 3-8" in page


def test_a_page_of_ranks_without_roles_has_no_column_for_them(report: memory.Report) -> None:
    run = RUN | {"memory": report.data}
    assert "<th>Role" in page_of_ranks("p.py", [("0", "", run), ("1-3", "last stage", run)], "")
    page = page_of_ranks("p.py", [("0", "", run), ("1-3", "", run)], "")
    assert "<th>Role" not in page
    assert "<summary>Rank 0<" in page
    assert "<summary>Ranks 1-3<" in page


def in_chromium(folder: Path, page: str, width: int, dark: bool) -> list[str]:
    """What `PROBE` finds: scroll width, inner width, images, scripts, title, background."""
    (folder / "page.html").write_text(page + PROBE)
    done = subprocess.run(
        [
            *(str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            *(f"--user-data-dir={folder}", f"--window-size={width},800", "--dump-dom"),
            f"--blink-settings=preferredColorScheme={0 if dark else 1}",
            (folder / "page.html").as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    title = re.search(r"<title>(.*?)</title>", done.stdout, re.DOTALL)
    assert title is not None, done.stderr
    return title[1].split("|")


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 500])
def test_the_page_fits_in_chromium(report: memory.Report, tmp_path: Path, width: int, dark: bool) -> None:
    run = RUN | {"program": "train.py", "memory": report.data}
    ranks = page_of_ranks("train.py", [("0", "", run), ("1", "", run)], "")
    for page, name in ((page_of(report.data), "Memory"), (ranks, "Memory of train.py by rank")):
        scroll, inner, images, scripts, title, background = in_chromium(tmp_path, page, width, dark)
        assert int(scroll) <= int(inner) <= width
        assert (images, scripts, title) == ("0", "1", name)  # the probe is the only script
        assert background == ("rgb(22, 24, 29)" if dark else "rgb(255, 255, 255)")
