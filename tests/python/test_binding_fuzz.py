"""Any value passed to any function of `torchfake._C` gives a result or an error, and never ends the process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from torchfake import _C

FUZZER = Path(__file__).with_name("binding_fuzzer.py")


@pytest.fixture(scope="module")
def report() -> dict[str, dict[str, object]]:
    run = subprocess.run([sys.executable, FUZZER], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    return {line["target"]: line for line in lines}


def test_every_function_is_called(report: dict[str, dict[str, object]]) -> None:
    missing = [name for name in vars(_C) if callable(getattr(_C, name)) and name not in report]
    assert not missing
    assert len(report) > 60


def test_no_value_crashes_or_causes_an_internal_error(report: dict[str, dict[str, object]]) -> None:
    wrong = {name: line["wrong"] for name, line in report.items() if line["wrong"]}
    assert not wrong, json.dumps(wrong, indent=2)[:8000]


def test_a_crash_would_be_found_and_named() -> None:
    code = f"""
import sys; sys.path.insert(0, {str(FUZZER.parent)!r})
import ctypes, json, binding_fuzzer as f
crash = lambda value: ctypes.string_at(0) if isinstance(value, str) and value == "vulkan" else None
print(json.dumps(f.in_a_process("crash", (crash, ["int"], ()), f.Values(0), 10)), flush=True)
import os; os._exit(0)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    line = json.loads(run.stdout.splitlines()[-1])
    assert line["wrong"] == ["('vulkan') outside: SIGSEGV"]
