"""The contents of an installed torchfake (CMake package, headers, stubs), and the build's messages."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import torchfake
from torchfake import _C

REPOSITORY = Path(__file__).parents[2]
PACKAGE = Path(torchfake.__file__).parent
CMAKE = shutil.which("cmake", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")

installed = pytest.mark.skipif(
    not Path(torchfake.cmake_prefix_path).is_dir(), reason="torchfake is not installed, only on the path"
)


def cmake(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    assert CMAKE is not None, "cmake is missing; pip install cmake ninja"
    path = f"{Path(CMAKE).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        [CMAKE, *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": path, **environment},
    )


@installed
def test_a_cpp_program_builds_against_the_installed_package_and_runs_70_b_parameters() -> None:
    build = REPOSITORY / "build" / f"examples-cpp-torch{_C.torch_release}"
    configured = cmake(
        "-S",
        REPOSITORY / "examples" / "cpp",
        "-B",
        build,
        "-G",
        "Ninja",
        f"-DCMAKE_PREFIX_PATH={torchfake.cmake_prefix_path}",
    )
    assert configured.returncode == 0, configured.stderr
    built = cmake("--build", build)
    assert built.returncode == 0, built.stdout + built.stderr
    ran = subprocess.run([build / "decoder70b"], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    lines = dict(line.split(":", 1) for line in ran.stdout.splitlines())
    assert "70.55 B in 723 tensors" in lines["parameters"]
    assert lines["logits"].strip() == "[4, 4096, 128256] c10::BFloat16 on cuda:0"
    assert lines["loss"].strip() == "[] float on cuda:0"
    assert "723" in lines["gradients"]
    memory = re.match(r" *(\d+) MiB", lines["memory"])
    assert memory is not None
    assert int(memory[1]) < 600


def test_the_cpp_in_the_readme_is_taken_from_the_example_that_is_built() -> None:
    [snippet] = re.findall(r"```cpp\n(.*?)```", (REPOSITORY / "README.md").read_text(), flags=re.DOTALL)
    example = (REPOSITORY / "examples" / "cpp" / "decoder70b.cpp").read_text().splitlines()
    assert [line for line in snippet.splitlines() if line and line not in example] == []


@installed
def test_the_public_headers_are_installed_and_no_others() -> None:
    headers = {str(path.relative_to(PACKAGE / "include")) for path in (PACKAGE / "include").rglob("*.h")}
    assert headers == {
        "torchfake/torchfake.h",
        "torchfake/core/errors.h",
        "torchfake/core/fake_mode.h",
        "torchfake/core/activation.h",
        "torchfake/core/allocation.h",
        "torchfake/core/scoped.h",
        "torchfake/core/value_range.h",
        "torchfake/core/stand_ins.h",
        "torchfake/core/fake_storage.h",
    }


@installed
def test_the_installed_cmake_files_hold_no_path_of_the_machine_that_built_them() -> None:
    for path in Path(torchfake.cmake_prefix_path).rglob("*.cmake"):
        text = path.read_text()
        assert str(REPOSITORY) not in text
        assert str(Path(sys.prefix)) not in text


def test_the_table_of_behaviours_names_tests_that_exist() -> None:
    tests = REPOSITORY / "tests" / "python"
    ours, _, _ = (REPOSITORY / "docs" / "fake-tensor-mode.md").read_text().partition("<!-- drop-in: begin -->")
    named = re.findall(r"`(test_\w+\.py)(?:::(\w+))?`", ours)
    assert len(named) > 40
    for file, function in named:
        assert (f"def {function}(" if function else "def test_") in (tests / file).read_text(), (file, function)


def test_an_engine_that_does_not_load_is_told_with_the_way_out(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "torchfake", ignore=lambda _, names: [n for n in names if n.startswith("_C.")])
    (tmp_path / "torchfake" / "_C.py").write_text("raise ImportError('undefined symbol')")
    ran = subprocess.run([sys.executable, "-c", "import torchfake"], cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode != 0
    assert "undefined symbol" in ran.stderr
    assert f"does not load with PyTorch {torch.__version__}" in ran.stderr and "--no-build-isolation" in ran.stderr


def test_the_package_is_typed() -> None:
    assert (PACKAGE / "py.typed").is_file()


def test_the_stub_of_the_binding_lists_every_name_in_it() -> None:
    stub = ast.parse((PACKAGE / "_C.pyi").read_text())
    listed = {node.name for node in stub.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    listed |= {
        node.target.id for node in stub.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    assert listed == {name for name in dir(_C) if not name.startswith("__")}


# ---- The build's own messages ----


def fake_torch(folder: Path, source: str) -> str:
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text(source)
    return str(folder)


def test_building_without_pytorch_says_what_to_install(tmp_path: Path) -> None:
    path = fake_torch(tmp_path, "raise ModuleNotFoundError(\"No module named 'torch'\")\n")
    result = cmake(
        "-S",
        REPOSITORY,
        "-B",
        tmp_path / "build",
        "-G",
        "Ninja",
        f"-DPython_EXECUTABLE={sys.executable}",
        PYTHONPATH=path,
    )
    assert result.returncode != 0
    assert "built against an installed PyTorch" in result.stderr
    assert "pip install torch==2.13.0" in result.stderr


@pytest.mark.parametrize("version", ["2.12.1", "2.16.0", "3.0.0"])
def test_building_with_another_pytorch_says_which_is_supported(tmp_path: Path, version: str) -> None:
    path = fake_torch(tmp_path, f"__version__ = '{version}+cpu'\n")
    result = cmake(
        "-S",
        REPOSITORY,
        "-B",
        tmp_path / "build",
        "-G",
        "Ninja",
        f"-DPython_EXECUTABLE={sys.executable}",
        PYTHONPATH=path,
    )
    assert result.returncode != 0
    assert "torchfake supports PyTorch from 2.13 to before 2.16" in " ".join(result.stderr.split())
    assert version in result.stderr
