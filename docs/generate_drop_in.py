"""Runs PyTorch's own tests of fake tensors on torchfake, and lists the failures with reasons in fake-tensor-mode.md.

    python docs/generate_drop_in.py PYTORCH/test

The tests are read from a checkout of the PyTorch that is installed, and copied to a temporary folder in which the
imports are renamed: `from torch._subclasses.fake_tensor import X` becomes `from torchfake import X`. Private names
(`_X`) are still imported from PyTorch. Nothing of PyTorch's is kept.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torchfake

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from provenance import provenance, sentence

PAGE = Path(__file__).with_name("fake-tensor-mode.md")
BEGIN, END = "<!-- drop-in: begin -->\n", "<!-- drop-in: end -->\n"

#: The files, and the tests in them to run (pytest's -k).
FILES = {
    "test_fake_tensor.py": "",
    "test_custom_ops.py": "fake or opcheck or abstract or meta",
    "test_proxy_tensor.py": "FakeProxyTensor and not symbolic or fake_tensor_mode or allclose",
    "test_serialization.py": "skip_data or fake",
    "test_sparse.py": "test_fake_ or zeros_like_fake",
    "test_meta.py": "test_stride_for_index_Tensor or linalg_eig_strides or preserves_input_strides",
    "inductor/test_mem_estimation.py": "",
    "distributed/_tools/test_mem_tracker.py": "",
    "distributed/_tools/test_mod_tracker.py": "",
    "distributed/_tools/test_runtime_estimator.py": "",
}

#: Lines of a test that touch what is private to PyTorch's implementation: names with an underscore, and names that
#: torch/_subclasses/fake_tensor.py does not define.
WHITE_BOX = re.compile(
    r"_cache_key|_CacheKeyState|get_fast_op_impls|(?<!\w)_fake_device|fake_tensor_cache_bypass"
    r"|_check_for_subclass_arg|fake_utils\.try_convert"
)
#: Messages of tests that need a card.
CARD = re.compile(
    r"not compiled with CUDA|No CUDA GPUs|no NVIDIA driver|libcuda|CUDA driver|_cuda_\w+ is not available"
)
#: The tests of test_fake_tensor.py that are skipped without CUDA, run with fakes that claim it.
CLAIMED_CUDA = "test_fake_tensor.py, claimed CUDA"

#: Tests that expect an error, or less than torchfake provides.
BETTER = {
    "test_str_storage": "the storage of a fake names the device that the fake claims, not meta",
    "test_aliased_const_write": "a constant that is overwritten by a constant through an alias is still known",
    "test_data_dependent_operator_propagate_real_tensors": "real values are known, so the operator answers",
    "test_fake_tensor_in_intlist_repro_propagate_real_tensors": "real values are known, so the operator answers",
    "test_unique_default_dynamic_output_shape_propagate_real_tensors": "real values are known, so the operator answers",
    "test_unbacked_shape_realloc_propagate_real_tensors": "real values are known, so sizes are numbers",
    "test_jagged_fake_to_fake_preserved_propagate_real_tensors": "expected to fail with real values, and passes",
    "test_same_shape_env_preserved_propagate_real_tensors": "expected to fail with real values, and passes",
    "test_skip_data_serialization_materialize_fake_False": "a fake can be pickled, where PyTorch's cannot",
    "test_cache_bypass": "views made in place are cached, where PyTorch's cache leaves them out",
    "test_cache_dispatch_key_set": "zero tensors are cached, where PyTorch's cache leaves them out",
}

#: Tests of behaviour in which torchfake differs on purpose.
ON_PURPOSE = {
    "test_serialization": "a fake's type is `torch.Tensor`, and it claims the device of the tensor",
    "test_fake_tensor_prop_on_nn_module": "fakes of another mode are converted, where PyTorch refuses them",
    "test_allclose": "`make_fx` makes its own fakes here, which are PyTorch's and raise PyTorch's own class of error",
    "test_fake_tensor_mode": "it imports `detect_fake_mode` into a function before a mode is first entered, when "
    "nothing of PyTorch is replaced yet",
    "test_cache_aten_index": "one call is counted, where PyTorch also counts those that its kernel makes",
    "test_cache_default_device": "a constant's copy to a claimed device is counted as a call",
    "test_unbacked_output": "`torch.export` traces with PyTorch's own mode, which counts in its own cache",
    "test_invoke_subgraph": "calls of a subgraph's operators are cached, where PyTorch caches the subgraph",
    "test_invoke_subgraph_cacheable_inplace": "calls of a subgraph's operators are cached, where PyTorch caches it",
}


def rename(text: str) -> str:
    """The test with its fakes imported from torchfake."""

    def imports(found: re.Match[str]) -> str:
        indent, module, listed = found.groups()
        names = [name.strip() for name in re.sub(r"#.*", "", listed).strip("()\n ").split(",")]
        ours = [name for name in names if not name.startswith("_")]
        if module.endswith("fake_utils"):
            ours = [name for name in ours if hasattr(torchfake, name)]
        private = ", ".join(name for name in names if name and name not in ours)
        public = ", ".join(name for name in ours if name)
        lines = [f"{indent}from {module} import {private}"] if private else []
        lines += [f"{indent}from torchfake import {public}"] if public else []
        return "\n".join(lines)

    modules = r"torch\._subclasses(?:\.fake_tensor|\.fake_utils)?"
    text = re.sub(rf"^([ \t]*)from ({modules}) import (\([^)]*\)|[^\n(]*)$", imports, text, flags=re.MULTILINE)
    text = text.replace("from torch.fx.passes.fake_tensor_prop import", "from torchfake.fx import")
    text = re.sub(r"torch\._subclasses\.fake_tensor\.(?=[A-Za-z])", "torchfake.", text)
    text = re.sub(r"torch\._subclasses\.(?=(?:FakeTensor|FakeTensorMode|CrossRefFakeMode)\b)", "torchfake.", text)
    return re.sub(r"^(import torch\b.*)$", r"\1\nimport torchfake", text, count=1, flags=re.MULTILINE)


@dataclass(frozen=True)
class Failure:
    """A test that did not pass."""

    file: str
    name: str
    error: str
    traceback: str
    source: str

    @property
    def base_name(self) -> str:
        return self.name.removesuffix("_propagate_real_tensors")

    def why(self) -> tuple[str, str]:
        """The category of the failure, and the reason."""
        for kind, reasons in (("better than asked", BETTER), ("on purpose", ON_PURPOSE)):
            for name in (self.name, self.base_name):
                if name in reasons:
                    return kind, reasons[name]
        if CARD.search(self.traceback):
            return "needs a card", (self.error.splitlines() or [""])[0][:120].replace("|", "\\|")
        body = self.source.splitlines()[1:]
        line = next((line.strip() for line in body if WHITE_BOX.search(line)), None)
        if line is not None:
            return "white box", f"`{line}`"
        return "open", (self.error.splitlines() or [""])[0][:120].replace("|", "\\|")


def sources(text: str) -> Iterator[tuple[str, str]]:
    """The name and the source of every function in a file."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            yield node.name, ast.get_source_segment(text, node) or ""


def find_source(name: str, by_name: dict[str, str]) -> str:
    """The source of a test, whose reported name may have parameters appended."""
    matching = [known for known in by_name if name == known or name.startswith(f"{known}_")]
    return by_name[max(matching, key=len)] if matching else ""


def run(
    folder: Path, file: str, select: str, tests: Path, *, claim_cuda: bool = False
) -> tuple[Counter[str], list[Failure], set[str]]:
    """Runs one file; returns the number of tests by outcome, the failures, and the names of skipped tests."""
    text = rename((tests / file).read_text())
    if claim_cuda:
        text = re.sub(r"^from .* import RUN_CUDA$", "RUN_CUDA = True", text, flags=re.MULTILINE)
    path = folder / Path(file).name
    path.write_text(text)
    # The torchfake that this script imports, whatever else is installed: the tests run in another folder.
    package = Path(torchfake.__file__).resolve()
    (folder / "conftest.py").write_text(f"import torchfake\n\nassert torchfake.__file__ == {str(package)!r}\n")
    for data in (tests / file).parent.glob("*.json"):  # read by tests from their own folder
        shutil.copy(data, folder)
    report = folder / "report.xml"
    environment = {**os.environ, "PYTHONPATH": str(package.parents[1])}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", str(path)]
    command += ["-k", select] if select else []
    subprocess.run(command, cwd=folder, check=False, stdout=subprocess.DEVNULL, env=environment)
    by_name = dict(sources(text))
    counts: Counter[str] = Counter()
    failures = []
    skipped = set()
    for case in ET.parse(report).iter("testcase"):
        problem = next((child for child in case if child.tag in ("failure", "error")), None)
        if problem is not None:
            name = case.get("name", "")
            error = problem.get("message", "")
            failures.append(Failure(file, name, error, problem.text or "", find_source(name, by_name)))
        if case.find("skipped") is not None:
            skipped.add(f"{case.get('classname')}.{case.get('name')}")
        counts["failed" if problem is not None else "skipped" if case.find("skipped") is not None else "passed"] += 1
    return counts, failures, skipped


def run_on_claimed_cuda(folder: Path, file: str, tests: Path, skipped: set[str]) -> tuple[Counter[str], list[Failure]]:
    """Runs the tests of a file that are only skipped without CUDA."""
    _, failures, still_skipped = run(folder, file, "", tests, claim_cuda=True)
    names = {name.rpartition(".")[2] for name in skipped - still_skipped}
    failed = [failure for failure in failures if failure.name in names]
    enabled = Counter({"failed": len(failed), "passed": len(skipped - still_skipped) - len(failed)})
    return enabled, failed


def render(results: dict[str, tuple[Counter[str], list[Failure]]]) -> str:
    lines = [
        sentence({**provenance(), "command": "python docs/generate_drop_in.py PYTORCH/test"}),
        "",
        "| file | passed | failed | skipped |",
        "|---|---|---|---|",
    ]
    for file, (counts, _) in results.items():
        lines.append(f"| `{file}` | {counts['passed']} | {counts['failed']} | {counts['skipped']} |")
    kinds: Counter[str] = Counter(failure.why()[0] for _, failures in results.values() for failure in failures)
    lines += [
        "",
        "Failures by reason: " + ", ".join(f"{kind} {count}" for kind, count in kinds.most_common()) + ".",
        "",
    ]
    lines += ["| test | reason | |", "|---|---|---|"]
    rows = {}
    for file, (_, failures) in results.items():
        for failure in failures:
            kind, why = failure.why()
            rows.setdefault((kind, file, failure.base_name, why), []).append(failure)
    for (kind, file, name, why), failures in sorted(rows.items()):
        times = f" ({len(failures)} variants)" if len(failures) > 1 else ""
        lines.append(f"| `{Path(file).stem}::{name}`{times} | {kind} | {why} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", type=Path, help="the folder `test` of a checkout of PyTorch")
    parser.add_argument("files", nargs="*", default=list(FILES), help="which of the files to run (default: all)")
    options = parser.parse_args()
    results = {}
    for file in options.files:
        with tempfile.TemporaryDirectory() as folder:
            counts, failures, skipped = run(Path(folder), file, FILES.get(file, ""), options.tests)
            results[file] = counts, failures
            if file == "test_fake_tensor.py":
                results[CLAIMED_CUDA] = run_on_claimed_cuda(Path(folder), file, options.tests, skipped)
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    PAGE.write_text(before + BEGIN + "\n" + render(results) + "\n" + END + rest.split(END)[1])


if __name__ == "__main__":
    main()
