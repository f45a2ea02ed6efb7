"""Rules for the sources, checked by the scripts in tools/."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def check(script: str, *arguments: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_global_settings_are_read_in_one_place() -> None:
    result = check("check_global_state.py")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.parametrize(
    "line",
    [
        "if (at::globalContext().userEnabledMkldnn()) {",
        "  const int threads = at::get_num_threads();",
        "return c10::GradMode::is_enabled();",
        "#include <ATen/Context.h>",
        "if (mask->requires_grad()) {",
        "return query.requires_grad();",
    ],
)
def test_a_read_elsewhere_is_found(tmp_path: Path, line: str) -> None:
    source = tmp_path / "rule.cpp"
    source.write_text(f"// A rule.\n{line}\n")
    result = check("check_global_state.py", source)
    assert result.returncode == 1
    assert f"{source}:2: " in result.stdout


def test_a_comment_reads_nothing(tmp_path: Path) -> None:
    source = tmp_path / "rule.cpp"
    source.write_text("int x = 0;  // not at::get_num_threads()\n")
    assert check("check_global_state.py", source).returncode == 0


def test_folders_include_in_one_direction_and_name_no_operator_below_rules() -> None:
    result = check("check_includes.py")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("folder", "line"),
    [
        ("core", "#include <torchfake/dispatch/call.h>"),
        ("cache", "#include <torchfake/values/known_values.h>"),
        ("dispatch", "#include <torchfake/rules/rules.h>"),
        ("rules", "#include <torchfake/devices/absent_devices.h>"),
        ("dispatch", '  if (call.traits.name == "aten::add") {'),
        ("values", 'constexpr std::string_view kName = "aten::mm";'),
        ("elsewhere", "int x = 0;"),
    ],
)
def test_an_include_or_a_name_in_the_wrong_folder_is_found(tmp_path: Path, folder: str, line: str) -> None:
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "file.cpp").write_text(f"{line}\n")
    result = check("check_includes.py", tmp_path)
    assert result.returncode == 1
    assert f"{tmp_path}/{folder}/file.cpp:1: " in result.stdout


def test_includes_of_lower_folders_and_names_in_rules_are_allowed(tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "file.cpp").write_text('#include <torchfake/core/call.h>\nauto name = "aten::add";\n')
    assert check("check_includes.py", tmp_path).returncode == 0


def names_of_pytorch_that_are_set(source: str) -> Iterator[str]:
    """Every `torch.x = y`, `del torch.x` and `setattr(torch.x, ...)`, by whatever name `torch.x` was imported."""
    tree = ast.parse(source)
    imported = {"torch"}
    for node in ast.walk(tree):
        names = node.names if isinstance(node, ast.Import | ast.ImportFrom) else []
        package = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
        imported |= {name.asname or name.name for name in names if f"{package}{name.name}".partition(".")[0] == "torch"}
    for node in ast.walk(tree):
        target: ast.AST | None = None
        if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
            target = node.value
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("setattr", "delattr", "vars"):
            target = node.args[0] if node.args else None
        while isinstance(target, ast.Attribute | ast.Subscript):
            target = target.value
        if isinstance(target, ast.Name) and target.id in imported:
            yield ast.unparse(node)


@pytest.mark.parametrize(
    "line",
    [
        "torch.ones = f",
        "torch.nn.Module.to = f",
        "setattr(Tensor, name, f)",
        "del torch.ones",
        "torch.x['a'] = f",
        "vars(shapes)['x'] = f",
    ],
)
def test_a_name_of_pytorch_that_is_set_is_found(line: str) -> None:
    head = "import torch\nfrom torch import Tensor\nimport torch.fx.experimental.symbolic_shapes as shapes\n"
    assert list(names_of_pytorch_that_are_set(head + line))
    assert not list(names_of_pytorch_that_are_set(head + "x = torch.ones(2)\nx.grad = y\nx[0] = 1\n"))


def test_names_of_pytorch_are_replaced_by_the_table_alone() -> None:
    for module in (ROOT / "python" / "torchfake").glob("*.py"):
        assert not list(names_of_pytorch_that_are_set(module.read_text())), module.name
