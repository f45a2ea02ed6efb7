"""Checks of a program on numbers that it computes from stand-ins: they pass under `torchfake run`, and are reported."""

from __future__ import annotations

import ast
import json
import sys
import textwrap
from pathlib import Path

import pytest

from torchfake._assumed_checks import AssumedChecks
from torchfake._stand_in_flow import StandInFlow
from torchfake.modes import fake_mode
from torchfake.run_program import Program, run_program

#: Gives `losses`, three stand-ins.
LOSSES = """
import math, sys, numpy as np, torch
model = torch.nn.Linear(400, 4).cuda()
losses = []
for _ in range(3):
    losses.append(model(torch.randn(2, 400).cuda()).sum().item())
"""


def _run(folder: Path, text: str, *, is_module: bool = False, **options: object) -> tuple[int, list[str]]:
    """Runs a program. Returns its exit code, and where the report says that a check passes."""
    path = folder / "program.py"
    path.write_text(textwrap.dedent(text))
    report = folder / "report.json"
    program = Program("program" if is_module else str(path), is_module)
    code = run_program(program, fake_mode(gpus="H200", **options), quiet=True, json_file=report)
    found = [row for row in json.loads(report.read_text())["stand_ins"] if row["what"] == "check"]
    return code, [f"{Path(row['file']).name}:{row['line']}" for row in found]


@pytest.mark.parametrize(
    "check",
    [
        "assert losses[-1] < losses[0], 'does not learn'",
        "assert np.mean(losses[1:]) < np.mean(losses[:1])",
        "assert math.exp(sum(losses) / 3) < 1.5",
        "if losses[-1] >= losses[0]: raise ValueError('does not learn')",
        "if losses[-1] >= losses[0]: print('failed'); sys.exit(1)",
        "np.testing.assert_allclose(model(torch.randn(2, 400).cuda()).detach().cpu().numpy(), np.zeros((2, 4)))",
    ],
)
def test_a_check_on_numbers_from_stand_ins_passes_and_is_reported(tmp_path, check):
    assert _run(tmp_path, LOSSES + check, unknown="stand-in") == (0, ["program.py:7"])


def test_numbers_are_followed_through_functions_objects_and_conditions(tmp_path):
    text = """
    class Meter:
        def __init__(self):
            self.total = 0.0
        def update(self, value, count=1):
            self.total += value * count
        @property
        def average(self):
            return self.total / 100
    def evaluate(model):
        right = 0
        for guess in model(torch.randn(200, 400).cuda()).argmax(1).tolist():
            if guess == 0:
                right += 1
        return {"accuracy": right / 200}
    meter = Meter()
    meter.update(losses[0], 3)
    assert meter.average > 0.5
    assert evaluate(model)["accuracy"] > 0.5
    """
    assert _run(tmp_path, LOSSES + textwrap.dedent(text), unknown="stand-in") == (0, ["program.py:24", "program.py:25"])


@pytest.mark.parametrize(
    "check",
    [
        "count = len(losses)\nassert count == 4",
        "lengths = []\nfor n in range(3):\n    lengths.append(n)\nassert sum(lengths) == 4",
        "assert torch.zeros(3).shape[0] == 4",
        "if len(losses) == 3: raise ValueError",
        "np.testing.assert_equal(np.array([1]), np.array([2]))",
    ],
)
def test_a_check_that_no_stand_in_reaches_fails(tmp_path, capsys, check):
    text = LOSSES + check
    assert _run(tmp_path, text, unknown="stand-in") == (1, [])
    assert "torchfake" not in capsys.readouterr().err


def test_a_failing_check_is_shown_as_python_shows_it(tmp_path, capsys):
    _run(tmp_path, "size = 3\nassert (size\n        == 4), 'four'\n", unknown="stand-in")
    shown = capsys.readouterr().err
    with pytest.raises(AssertionError):
        exec(compile((tmp_path / "program.py").read_text(), str(tmp_path / "program.py"), "exec"))
    assert shown.splitlines()[1:3] == [f'  File "{tmp_path}/program.py", line 2, in <module>', "    assert (size"]
    assert shown.splitlines()[-1] == "AssertionError: four"


@pytest.mark.parametrize("is_module", [False, True])
def test_modules_beside_the_program_are_followed_and_leave_no_compiled_files(tmp_path, monkeypatch, is_module):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"checks_{is_module}"
    (tmp_path / f"{name}.py").write_text("def check(values):\n    assert values[-1] < values[0]\n    assert 1 == 2\n")
    text = LOSSES + f"from {name} import check\ncheck(losses)\n"
    assert _run(tmp_path, text, is_module=is_module, unknown="stand-in") == (1, [f"{name}.py:2"])
    assert not list(tmp_path.glob("__pycache__/checks*"))
    del sys.modules[name]


def test_a_program_without_stand_ins_is_compiled_as_it_is(tmp_path):
    assert _run(tmp_path, "assert 1 == 2\n") == (1, [])
    source = b"x = 1\nprint(x)\n"
    assert AssumedChecks().compile(source, "p.py") == compile(source, "p.py", "exec", dont_inherit=True)


def test_conditions_on_tensors_in_checks_still_hold(tmp_path):
    text = """
    x = torch.randn(300).cuda()
    assert (x > 3).all()
    if x.sum() < 0:
        raise ValueError
    if not (x > 5).any():
        sys.exit(2)
    """
    assert _run(tmp_path, LOSSES + textwrap.dedent(text), unknown="stand-in") == (0, [])


def test_lengths_depend_on_what_is_selected_and_on_conditions(tmp_path):
    text = """
    x = torch.randn(300).cuda()
    chosen = x[x > 0]
    assert len(chosen) == 10
    kept = []
    for value in x.tolist():
        if value > 2:
            kept.append(value)
    assert len(kept) == 10
    assert len(x) == 10
    """
    assert _run(tmp_path, LOSSES + textwrap.dedent(text), unknown="stand-in") == (1, ["program.py:10", "program.py:15"])


def test_what_a_module_computes_does_not_depend_on_what_else_it_was_given():
    tree = ast.parse("import numpy as np\na = np.mean(read())\nassert a < 1\nassert np.pi < 1\n")
    flow = StandInFlow({"p.py": tree})
    checks = [node.test for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    assert [flow.depends_on(check, {"p.py": {2}}, {}) for check in checks] == [True, False]
