"""What the generators of tables share: PyTorch's operator definitions, and C++ files that list one entry each."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torchgen
from torchgen.gen import ParsedYaml, parse_native_yaml


def parse_operators() -> ParsedYaml:
    """The operators of the PyTorch being built against, as its torchgen has them."""
    packaged = Path(torchgen.__file__).parent / "packaged" / "ATen" / "native"
    return parse_native_yaml(str(packaged / "native_functions.yaml"), str(packaged / "tags.yaml"))


#: The operators that PyTorch's releases do not share, by release. Written by tools/record_operators.py.
RELEASES = Path(__file__).parent / "records" / "operators_of_releases.json"


def release_of(version: str) -> str:
    """ "2.15" of "2.15.0+cu130": what libraries and operators of a PyTorch depend on."""
    return ".".join(version.split(".")[:2])


def operators_of_releases() -> dict[str, dict[str, str]]:
    """The schemas of operators that are not the same in every release, by name and release."""
    record: dict[str, Any] = json.loads(RELEASES.read_text())
    operators: dict[str, dict[str, str]] = record["operators"]
    return operators


def write_if_changed(path: Path, text: str) -> None:
    """What is as it was is not compiled again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


@dataclass(frozen=True)
class Table:
    """A table of `type`, spread over files so that they compile side by side.

    Attributes:
        file: What the files' names begin with.
        head: Comment and includes of every file.
        type: The C++ type of an entry.
        name: An entry in lower case: `for_each_<name>` visits them all.
    """

    file: str
    head: str
    type: str
    name: str

    def write(self, output: Path, parts: list[tuple[str, str]]) -> None:
        """Writes a file for each of `parts`, its own includes and its entries, and one that visits them."""
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
