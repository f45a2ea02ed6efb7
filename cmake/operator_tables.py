"""Shared by the table generators: PyTorch's operator definitions, and writing tables as C++ files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torchgen
from torchgen.gen import ParsedYaml, parse_native_yaml


def parse_operators() -> ParsedYaml:
    """The operators of the PyTorch being built against, from its torchgen."""
    packaged = Path(torchgen.__file__).parent / "packaged" / "ATen" / "native"
    return parse_native_yaml(str(packaged / "native_functions.yaml"), str(packaged / "tags.yaml"))


#: The operators that differ between PyTorch releases, by release. Written by tools/record_operators.py.
RELEASES = Path(__file__).parent / "records" / "operators_of_releases.json"


def release_of(version: str) -> str:
    """ "2.15" for "2.15.0+cu130": the part of the version that determines libraries and operators."""
    return ".".join(version.split(".")[:2])


def operators_of_releases() -> dict[str, dict[str, str]]:
    """The schemas of operators that differ between releases, by name and release."""
    record: dict[str, Any] = json.loads(RELEASES.read_text())
    operators: dict[str, dict[str, str]] = record["operators"]
    return operators


def write_if_changed(path: Path, text: str) -> None:
    """Leaves an unchanged file alone, so that it is not recompiled."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


@dataclass(frozen=True)
class Table:
    """A table of `type`, split over files so that they compile in parallel.

    Attributes:
        file: Prefix of the file names.
        head: Comment and includes of every file.
        type: The C++ type of an entry.
        name: An entry's name in lower case: `for_each_<name>` visits all entries.
    """

    file: str
    head: str
    type: str
    name: str

    def write(self, output: Path, parts: list[tuple[str, str]]) -> None:
        """Writes a file for each of `parts`, with its includes and entries, and one that visits them."""
        for shard, (includes, entries) in enumerate(parts):
            body = f"std::vector<{self.type}> {self.name}s_{shard}() {{\n  return {{\n{entries}  }};\n}}\n"
            self._write_file(output / f"{self.file}_{shard}.cpp", includes, body)
        shards = range(len(parts))
        body = "".join(f"std::vector<{self.type}> {self.name}s_{shard}();\n" for shard in shards)
        body += f"\nvoid for_each_{self.name}(void (*visit)(const {self.type}&)) {{\n"
        for shard in shards:
            body += f"  for (const {self.type}& entry : {self.name}s_{shard}()) {{\n    visit(entry);\n  }}\n"
        self._write_file(output / f"{self.file}.cpp", "", body + "}\n")

    def _write_file(self, path: Path, includes: str, body: str) -> None:
        text = f"{self.head}{includes}\nnamespace torchfake {{\n\n{body}\n}}  // namespace torchfake\n"
        write_if_changed(path, text)
