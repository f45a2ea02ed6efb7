"""MkDocs hook: pages of the site whose source is elsewhere in the repository.

The README, the engine's own page and others are read on the code host as well as on the site. They stay where they are,
and this hook adds them under the names that mkdocs.yml uses, with their links rewritten. A link to a file that has no
page becomes a link to nothing on the site, so it is shown as the file's path.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent

#: Files outside docs/, and the page each of them becomes.
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "csrc/torchfake/README.md": "how-it-works.md",
    "benchmarks/README.md": "performance.md",
    "csrc/torchfake/torchfake.h": "api/cpp.md",
}
#: Files in docs/ that another page replaces.
REPLACED = {"docs/README.md": "index.md"}

LINK = re.compile(r"\[(?P<text>[^\]\[]+)\]\((?P<target>[^)\s]+)\)")


def page_of(file: str) -> str | None:
    """The page that shows a file of the repository, or None."""
    if file in PAGES:
        return PAGES[file]
    if file in REPLACED:
        return REPLACED[file]
    if file == "docs/decisions":
        return "decisions/README.md"
    return file.removeprefix("docs/") if file.startswith("docs/") and file.endswith(".md") else None


def rewritten(text: str, source: str, page: str) -> str:
    """The Markdown of `source`, a file of the repository, with links that work from `page`."""

    def link(match: re.Match[str]) -> str:
        target, _, anchor = match["target"].partition("#")
        if not target or "://" in target:
            return match[0]
        file = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if not (ROOT / file).exists():
            raise FileNotFoundError(f"{source}: the link to {match['target']} leads nowhere")
        to = page_of(file)
        if to is None:
            return f"{match['text']} (`{file}`)"
        path = posixpath.relpath(to, posixpath.dirname(page) or ".")
        return f"[{match['text']}]({path}{'#' + anchor if anchor else ''})"

    return LINK.sub(link, text)


def header_page(header: str) -> str:
    """The C++ API as Markdown: each declaration of the header with the comment that precedes it."""
    intro, *blocks = re.split(r"\n\n+", header.strip())
    lines = ["# C++ API", "", "`#include <torchfake/torchfake.h>`", ""]
    lines += [*_markdown_of_comment(intro.split("\n")[1:]), ""]
    for block in blocks:
        comment = [line for line in block.split("\n") if line.startswith("//")]
        code = [line for line in block.split("\n") if line and not line.startswith(("//", "#", "namespace", "}"))]
        if comment and code:
            lines += ["```cpp", *code, "```", "", *_markdown_of_comment(comment), ""]
    return "\n".join(lines) + "\n"


def _markdown_of_comment(comment: list[str]) -> list[str]:
    """The text of `//` comments; what is indented in them is code."""
    lines: list[str] = []
    code = False
    for line in comment:
        if not line.startswith("//"):
            continue
        text = line.removeprefix("//")
        is_code = text.startswith("   ")
        if is_code != code:
            lines.append("```cpp" if is_code else "```")
            code = is_code
        lines.append(text.removeprefix("   ") if is_code else text.strip())
    if code:
        lines.append("```")
    return lines


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for source, page in PAGES.items():
        text = (ROOT / source).read_text()
        content = header_page(text) if source.endswith(".h") else rewritten(text, source, page)
        files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(markdown: str, page: object, config: MkDocsConfig, files: Files) -> str:
    file = page.file  # type: ignore[attr-defined]
    return markdown if file.src_uri in PAGES.values() else rewritten(markdown, f"docs/{file.src_uri}", file.src_uri)
