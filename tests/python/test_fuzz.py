"""Random programs, run step by step on real CPU tensors and on fakes: the results of each step must agree.

A failure prints the seed and the lines that matter; `run(seed)` runs that program again.
"""

from __future__ import annotations

import operator
import re
import warnings
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from metadata import metadata, storage_groups, tensors_in
from random_programs import Pool, Writer
from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchfake import DataAccessError, DataDependentOutputException, DynamicOutputShapeException, fake_mode, is_fake

STEPS = 160
SEEDS = range(40)
WINDOW = 10  # tensors that are kept; older ones are dropped, and their storages with them

UNKNOWN = (DataAccessError, DataDependentOutputException, DynamicOutputShapeException)
# Lines that create a tensor must run inside the mode; all others work outside as well.
CREATES = re.compile(r"torch\.(zeros|ones|full|randn|rand|arange|linspace|eye|tensor|randint)\(")


class Different(AssertionError):
    pass


def attempt(line: str, pool: Pool) -> tuple[Any, Exception | None]:
    try:
        return eval(line, {"torch": torch, "p": pool, "operator": operator, "slice": slice}), None
    except Exception as error:
        return None, error


def values_of(fake: Tensor) -> Any:
    """The known values of a fake, or None."""
    try:
        return fake.tolist()
    except UNKNOWN:
        return None


def look(tensor: Tensor) -> dict[str, Any]:
    """Its metadata. Views whose history was invalidated by a write raise an error, both real ones and fakes."""
    try:
        return metadata(tensor)
    except RuntimeError as error:
        return {"error": str(error)}


def compare_tensor(fake: Tensor, real: Tensor, name: str) -> None:
    if not is_fake(fake):
        raise Different(f"{name} is not fake")
    found, wanted = look(fake), look(real)
    if found != wanted:
        different = {key: (found[key], wanted[key]) for key in wanted if found.get(key) != wanted[key]}
        raise Different(f"{name} differs, (fake, real): {different}")
    if fake.device.type != "cpu":
        raise Different(f"{name} claims {fake.device}")
    has_values = "error" not in wanted and real.numel() < 200 and real.untyped_storage().nbytes() > 0
    if has_values and (values := values_of(fake)) is not None:
        expected = real.tolist()
        if repr(values) != repr(expected):
            raise Different(f"{name} claims to be {values} and is {expected}")


def compare(fake: Pool, real: Pool) -> None:
    for index, (got, expected) in enumerate(zip(fake, real, strict=True)):
        if expected is None:
            continue
        compare_tensor(got, expected, f"p[{index}]")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # .grad of a tensor that is no leaf
            got_grad, expected_grad = got.grad, expected.grad
        if (got_grad is None) != (expected_grad is None):
            raise Different(f"p[{index}].grad is {got_grad} where the real one is {expected_grad}")
        if expected_grad is not None:
            compare_tensor(got_grad, expected_grad, f"p[{index}].grad")
    if storage_groups(tensors_in(fake)) != storage_groups(tensors_in(real)):
        raise Different("other tensors share a storage")


def step(line: str, inside: bool, fake: Pool, real: Pool) -> None:
    """Runs one line on both pools, and appends the results. Raises Different."""
    state = torch.random.get_rng_state()
    real_result, real_error = attempt(line, real)
    torch.random.set_rng_state(state)
    if real_error is not None and ("not implemented for '" in str(real_error) or "on CPU" in str(real_error)):
        return  # a dtype that the CPU's kernel lacks: no matter of metadata, and other devices have it
    with fake_mode() if inside else nullcontext():
        fake_result, fake_error = attempt(line, fake)
    if real_error is not None and fake_error is None:
        raise Different(f"real tensors refuse it and fakes do not: {type(real_error).__name__}: {real_error}")
    if real_error is None and fake_error is not None:
        raise Different(f"fakes refuse it and real tensors do not: {type(fake_error).__name__}: {fake_error}")
    if real_error is None:
        made, expected = tensors_in(fake_result), tensors_in(real_result)
        if len(made) != len(expected) or len(tree_leaves(fake_result)) != len(tree_leaves(real_result)):
            raise Different(f"gives {fake_result} where real tensors give {real_result}")
        for got, wanted in zip(made, expected, strict=True):
            # A line may return existing tensors of the program; it must do so for both pools or for neither.
            at = next((i for i, tensor in enumerate(real) if tensor is wanted), None)
            if at is None:
                fake.append(got)
                real.append(wanted)
            elif fake[at] is not got:
                raise Different(f"gives a new tensor where real tensors give p[{at}] itself")
    compare(fake, real)


def forget(fake: Pool, real: Pool, writer: Writer) -> None:
    kept = [index for index, tensor in enumerate(real) if tensor is not None]
    for index in writer.rng.sample(kept, max(0, len(kept) - WINDOW)):
        fake[index] = real[index] = None


def run(seed: int, steps: int = STEPS) -> None:
    torch.manual_seed(seed)
    fake: Pool = []
    real: Pool = []
    writer = Writer(seed, real)
    lines: list[str] = []
    for number in range(steps):
        line = writer.line()
        inside = CREATES.search(line) is not None or writer.rng.random() < 0.5
        lines.append(f"  {line}{'' if inside else '    # outside the mode'}")
        before = len(real)
        try:
            step(line, inside, fake, real)
        except Different as different:
            program = "\n".join(lines[-25:])
            pytest.fail(f"seed {seed}, step {number}: {different}\nthe program's last lines:\n{program}", pytrace=False)
        if len(real) > before:
            lines[-1] += f"    -> p[{before}]" + (f" to p[{len(real) - 1}]" if len(real) > before + 1 else "")
        forget(fake, real, writer)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_program_leaves_on_fakes_what_it_leaves_on_real_tensors(seed: int) -> None:
    run(seed)
