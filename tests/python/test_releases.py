"""One source for several PyTorch releases: which one a build is for, the differences, and where refusals come from."""

from __future__ import annotations

import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import torchfake
from torchfake import _C, fake_mode

REPOSITORY = Path(__file__).parents[2]
PACKAGE = Path(torchfake.__file__).parent
RECORDS = REPOSITORY / "cmake" / "records"
RELEASE = ".".join(torch.__version__.split(".")[:2])

installed = pytest.mark.skipif(
    not Path(torchfake.cmake_prefix_path).is_dir(), reason="torchfake is not installed, only on the path"
)


@pytest.fixture
def build_scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Makes the scripts of the build importable."""
    monkeypatch.syspath_prepend(str(REPOSITORY / "cmake"))
    import generate_refused_dtypes

    yield generate_refused_dtypes


# ---- A build is for one release ----


def test_the_engine_knows_the_release_it_was_built_for() -> None:
    assert _C.torch_release == RELEASE


@installed
def test_the_installed_version_and_dependency_name_the_release() -> None:
    assert importlib.metadata.version("torchfake") == f"{torchfake.__version__}+torch{RELEASE}"
    assert f"torch=={RELEASE}.*" in (importlib.metadata.requires("torchfake") or [])


@pytest.mark.parametrize(
    ("state", "torch_version", "version", "dependency"),
    [
        ("wheel", "2.15.0+cu132", "0.1.0+torch2.15", "torch==2.15.*"),
        ("metadata_wheel", "2.13.0+cpu", "0.1.0+torch2.13", "torch==2.13.*"),
        ("sdist", "2.15.0", "0.1.0", "torch>=2.13,<2.16"),
        ("wheel", None, "0.1.0", "torch>=2.13,<2.16"),
    ],
)
def test_metadata_is_that_of_the_pytorch_being_built_against(
    monkeypatch: pytest.MonkeyPatch, state: str, torch_version: str | None, version: str, dependency: str
) -> None:
    monkeypatch.syspath_prepend(str(REPOSITORY / "cmake"))
    import torch_release

    def version_of(_: str) -> str:
        if torch_version is None:
            raise importlib.metadata.PackageNotFoundError("torch")
        return torch_version

    monkeypatch.setattr(importlib.metadata, "version", version_of)
    provider = torch_release.TorchRelease()
    provider.build_state(state)
    metadata = provider.dynamic_metadata({"version": "0.1.0", "torch": ">=2.13,<2.16"}, {})
    assert metadata == {"version": version, "dependencies": [dependency]}


@pytest.mark.parametrize("told_by", ["_built_for.py", "_C.py"])
def test_another_release_of_pytorch_is_refused_before_the_engine_is_used(tmp_path: Path, told_by: str) -> None:
    shutil.copytree(PACKAGE, tmp_path / "torchfake", ignore=lambda _, names: [n for n in names if n.startswith("_C.")])
    (tmp_path / "torchfake" / "_built_for.py").unlink(missing_ok=True)
    # If the build has recorded its release, the engine is not even loaded.
    (tmp_path / "torchfake" / "_C.py").write_text("torch_release = '2.1'" if told_by == "_C.py" else "1 / 0")
    if told_by == "_built_for.py":
        (tmp_path / "torchfake" / "_built_for.py").write_text("TORCH_RELEASE = '2.1'")
    program = (
        "try:\n    import torchfake\nexcept ImportError as error:\n"
        "    print(type(error).__name__, error.built_for, error.installed, error, sep='\\n')"
    )
    ran = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    kind, built_for, found, message = ran.stdout.splitlines()
    assert (kind, built_for, found) == ("TorchReleaseError", "2.1", torch.__version__)
    assert "built for PyTorch 2.1," in message and "pip install torch==2.1.*" in message


@installed
def test_a_cpp_program_is_told_of_another_release(tmp_path: Path) -> None:
    from test_install import cmake

    headers = tmp_path / "torch" / "include" / "torch" / "headeronly"
    headers.mkdir(parents=True)
    (headers / "version.h").write_text("#define TORCH_VERSION_MAJOR 2\n\n#define TORCH_VERSION_MINOR 1\n")
    (tmp_path / "torch" / "lib").mkdir()
    (tmp_path / "torch" / "lib" / "libtorch_cpu.so").touch()
    result = cmake(
        "-S",
        REPOSITORY / "examples" / "cpp",
        "-B",
        tmp_path / "build",
        "-G",
        "Ninja",
        f"-DCMAKE_PREFIX_PATH={torchfake.cmake_prefix_path}",
        f"-DTORCHFAKE_TORCH_DIR={tmp_path / 'torch'}",
    )
    assert result.returncode != 0
    assert f"built for PyTorch {RELEASE}" in " ".join(result.stderr.split())


# ---- What differs between releases ----


def test_only_one_header_asks_for_the_version_of_pytorch() -> None:
    asking = {
        str(path.relative_to(REPOSITORY / "csrc" / "torchfake"))
        for path in (REPOSITORY / "csrc").rglob("*.*")
        if re.search(r"#\s*(if|elif).*TORCH_(VERSION|TORCH_AT_LEAST)", path.read_text().replace("TORCHFAKE_", "TORCH_"))
    }
    assert asking == {"core/compat.h"}


def test_the_table_of_operators_is_true_of_the_installed_release(build_scripts: ModuleType) -> None:
    from operator_tables import operators_of_releases, parse_operators

    schemas = {str(f.func.name): str(f.func) for f in parse_operators().native_functions}
    recorded = operators_of_releases()
    assert len(recorded) > 10
    for name, by_release in recorded.items():
        assert by_release.get(RELEASE) == schemas.get(name), name


def test_hardtanh_of_unsigned_integers_takes_negative_limits_where_real_tensors_do() -> None:
    def call() -> torch.Tensor:
        return torch.ops.aten.hardtanh(torch.ones(3, dtype=torch.uint8), -1, 1)

    try:
        real = call()
    except RuntimeError:
        with fake_mode(), pytest.raises(RuntimeError, match="unsigned type"):
            call()
        return
    with fake_mode():
        fake = call()
    assert (fake.dtype, fake.shape) == (real.dtype, real.shape)


def test_the_supported_releases_are_those_of_the_table() -> None:
    releases = json.loads((RECORDS / "operators_of_releases.json").read_text())["releases"]
    found = (REPOSITORY / "cmake" / "FindInstalledTorch.cmake").read_text()
    limits = dict(re.findall(r"set\(TORCHFAKE_TORCH_(MIN|MAX) (\S+) ", found))
    major, minor = releases[-1].split(".")
    assert limits == {"MIN": releases[0], "MAX": f"{major}.{int(minor) + 1}"}
    assert f'torch = ">={limits["MIN"]},<{limits["MAX"]}"' in (REPOSITORY / "pyproject.toml").read_text()


# ---- Recorded refusals ----


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_refusal_names_the_release_it_was_recorded_with(device: str) -> None:
    recorded = json.loads((RECORDS / f"refused_dtypes.{device}.json").read_text())["torch"]
    own = RECORDS / f"refused_dtypes.{device}.{RELEASE}.json"
    alone = json.loads(own.read_text())["torch"] if own.exists() else recorded
    with fake_mode():
        with pytest.raises(NotImplementedError, match=re.escape(f"on {device}, as recorded with PyTorch {alone})")):
            torch.softmax(torch.ones(4, dtype=torch.int64, device=device), 0)
        a, b = torch.ones(1, 2, 3, device=device), torch.ones(1, 3, 2, device=device, dtype=torch.float64)
        with pytest.raises(RuntimeError, match=re.escape(f"same dtype, as recorded with PyTorch {recorded};")):
            torch.bmm(a, b)


def test_what_a_release_accepts_is_taken_out_of_its_record(build_scripts: Any) -> None:
    row = {"all": {"addmm": ["int8", "bool"]}, "b": {"float32": "*", "float64": ["int8"]}, "rest": {"int8": ["bool"]}}
    paired = ["float32", "float64", "int8"]
    for call in (
        {"a": "int8", "b": "int8", "c": "int8"},
        {"a": "float32", "b": "int8", "c": "float32"},
        {"a": "float64", "b": "int8", "c": "float64"},
        {"a": "int8", "b": "bool", "c": "bool"},
    ):
        build_scripts.accept(row, call, paired)
    assert row == {"all": {"addmm": ["bool"]}, "b": {"float32": ["float64"]}, "rest": {}}


def test_what_is_accepted_is_said_of_the_row_that_the_call_is_about(
    build_scripts: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    accepted = {RELEASE: {"cuda": {"aten::op": [{"self": "int8", "index": "int64"}]}}}
    (tmp_path / "accepted.json").write_text(json.dumps(accepted))
    monkeypatch.setattr(build_scripts, "ACCEPTED", tmp_path / "accepted.json")
    rows = {"self": {"all": {"k": ["int8", "bool"]}}, "self,bias": {"all": {"k": ["int8", "bool"]}}}
    record = {"device": "cuda", "paired": ["int8"], "refused": {"aten::op": rows}}
    build_scripts.without_accepted(record)
    assert rows == {"self": {"all": {"k": ["bool"]}}, "self,bias": {"all": {"k": ["int8", "bool"]}}}


def test_a_release_with_a_record_of_its_own_takes_single_dtypes_from_it(build_scripts: Any) -> None:
    refused = {
        "aten::a": {"self": {"all": {"k": ["int8"]}, "b": {"int8": "*"}}},
        "aten::b": {"self": {"all": {"k": ["bool"]}}},
    }
    newer = {"aten::a": {"self": {"all": {"k2": ["bool"]}}}, "aten::c": {"x": {"all": {"k": ["int8"]}}}}
    build_scripts.take_alone(refused, newer)
    assert refused == {
        "aten::a": {"self": {"all": {"k2": ["bool"]}, "b": {"int8": "*"}}},
        "aten::b": {"self": {}},
        "aten::c": {"x": {"all": {"k": ["int8"]}}},
    }


def test_a_record_follows_arguments_that_a_release_renamed(build_scripts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {"aten::_cdist_backward": {"grad,x1": {"all": {"k": ["bool"]}, "grad": {"bool": "*"}}}}
    monkeypatch.setattr(build_scripts, "INSTALLED", "2.14")
    expected = {"grad_output,x1": {"all": {"k": ["bool"]}, "grad_output": {"bool": "*"}}}
    assert build_scripts.renamed(rows, "2.13") == {"aten::_cdist_backward": expected}
    assert build_scripts.renamed(rows, "2.11") == {"aten::_cdist_backward": expected}
    monkeypatch.setattr(build_scripts, "INSTALLED", "2.13")
    assert build_scripts.renamed(rows, "2.13") == rows
