"""Known differences between fakes and real tensors, with reasons.

A listed difference explains exactly the cases that known_cases.json names, and a run that shows fewer or more fails. If
rounding determines which cases differ, only their number is listed. After a change of the list:

    python tests/conformance/known_differences.py SUITE SUBJECT     # names the cases of these again; read the diff
"""

from __future__ import annotations

import fnmatch
import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

from compare import Case
from engines import make_engine
from suite_operators import DTYPES, Scope
from suites import SUITES
from variants import CALLS, LAYOUTS

_CASES = Path(__file__).with_name("known_cases.json")
#: The numbers of the samples that differ, by suite, subject and variant.
_NAMED: dict[str, dict[str, dict[str, list[int]]]] = json.loads(_CASES.read_text())


@dataclass(frozen=True)
class Difference:
    """One root cause in one suite.

    Attributes:
        reason: The reason for the difference, and why it remains.
        suite: The suite in which it appears.
        subjects: Operators, modules or optimizers, each with the number of its affected cases in a whole run.
        variant: The affected variants, as a file name pattern.
        detail: The failure's message, as a regular expression.
        rounds: Whether rounding determines which cases differ, so that another processor may show fewer.
    """

    reason: str
    suite: str
    subjects: dict[str, int] = field(hash=False)
    variant: str = "*"
    detail: str = ""
    rounds: bool = False

    def explains(self, case: Case) -> bool:
        named = _NAMED.get(case.suite, {}).get(case.subject, {}).get(case.variant, ())
        return self.describes(case) and (self.rounds or case.sample in named)

    def describes(self, case: Case) -> bool:
        """Whether the failure is of this kind, named or not."""
        return (
            case.failed
            and case.suite == self.suite
            and case.subject in self.subjects
            and fnmatch.fnmatchcase(case.variant, self.variant)
            and re.search(self.detail, f"{case.result.outcome}: {case.result.detail}", re.DOTALL) is not None
        )

    def scope(self) -> Scope:
        """What must run to reproduce it: its whole suite, narrowed by the words of its variant."""
        words = self.variant.split()
        return Scope(
            dtypes=tuple(d for d in DTYPES if d in words) or DTYPES,
            layouts=tuple(x for x in LAYOUTS if x in words) or tuple(LAYOUTS),
            calls=tuple(c for c in CALLS if self.variant.endswith(c)) or CALLS,
        )


#: Reasons shared by several suites.
_PHASE = "whether a complex loss depends on the phase of singular vectors only shows in its values"
_EMPTY_GRADIENT = (
    "the record is of PyTorch 2.11, where the gradient of an empty matrix is undefined; 2.13 gives an empty one"
)

KNOWN: tuple[Difference, ...] = (
    Difference(
        "no rule covers the mask of a product whose rows are empty or have another layout",
        suite="operators",
        subjects={"sparse.sampled_addmm": 22},
        detail="data-dependent with known values: .*sparse_mask",
    ),
    Difference(
        "the positions are read before the sizes, and have no effect if there are no elements",
        suite="operators",
        subjects={"tensor_split": 6},
        variant="* zero-sized *",
        detail="declared data-dependent, and other values change nothing",
    ),
    Difference(
        _PHASE,
        suite="operators",
        subjects={"svd_lowrank": 112, "pca_lowrank": 109},
        variant="complex64*",
        detail="fake accepts: .*svd_backward",
        rounds=True,
    ),
    Difference(
        "lengths must add up, so their values decide, and no constant value satisfies this",
        suite="operators",
        subjects={"_segment_reduce.lengths": 90},
        variant="* expanded function",
        detail="fake accepts: .*segment_reduce",
    ),
    Difference(
        "the real kernel fails on an assertion of its own",
        suite="operators",
        subjects={"index_reduce.prod": 8},
        variant="*float16 expanded *",
        detail="fake accepts: .*INTERNAL ASSERT FAILED",
    ),
    Difference(
        "expanded repeats: the real kernel's sum differs from the given output size",
        suite="operators",
        subjects={"repeat_interleave": 6},
        variant="* expanded function",
        detail="fake accepts: .*allocated size does not match",
    ),
    Difference(
        "the jiterator compiles for a GPU and requires one before it calls any operator",
        suite="cuda",
        subjects={"jiterator_2inputs_2outputs": 28, "jiterator_binary_return_by_ref": 28},
        detail="Jiterator is only supported on CUDA and ROCm GPUs",
    ),
    Difference(
        _EMPTY_GRADIENT,
        suite="cuda",
        subjects={"linalg.det": 10},
        detail=r"gradients real \[None\] fake \[\[\[(0|\d+, 0)",
    ),
    Difference(
        _EMPTY_GRADIENT,
        suite="cuda calls",
        subjects={"linalg.det": 7},
        detail=r"different: part 2: real \[None\] fake \[{'size': \[(0|\d+, 0)",
    ),
    Difference(
        "the record is of PyTorch 2.11, which has no derivative for it; 2.13 has",
        suite="cuda calls",
        subjects={"aminmax": 60, "narrow_copy": 87, "nextafter": 48},
        detail="fake accepts: .*derivative for",
    ),
    Difference(
        "the record is of PyTorch 2.11, which has no such kernel for a GPU; 2.13 composes it",
        suite="cuda calls",
        subjects={"narrow_copy": 108},
        detail="fake accepts: .*Could not run 'aten::narrow_copy.out'",
    ),
    Difference(
        "the record is of PyTorch 2.11, where autocast leaves it as it is; 2.13 casts it to float32",
        suite="cuda calls",
        subjects={"nn.functional.rms_norm": 10},
        variant="* autocast",
        detail="dtype real .* fake torch.float32",
    ),
    Difference(
        "the record is of PyTorch 2.11, which conjugates the vectors in place; 2.13 returns a view",
        suite="cuda calls",
        subjects={"svd_lowrank": 6, "pca_lowrank": 6},
        variant="complex64 * inference",
        detail="conj real False fake True",
    ),
    Difference(
        _PHASE,
        suite="cuda calls",
        subjects={"svd_lowrank": 21, "pca_lowrank": 21},
        variant="complex64*",
        detail="fake accepts: .*svd_backward",
        rounds=True,
    ),
    Difference(
        "lengths must add up, so their values decide, and the CPU's kernel, which is used, does not check them",
        suite="cuda calls",
        subjects={"_segment_reduce.lengths": 9},
        variant="* expanded function",
        detail="fake accepts: .*segment_reduce",
    ),
    Difference(
        "the GPU's solver treats a matrix of equal rows as singular or not positive-definite; the CPU's, which is used "
        "for known values, divides by the rounding error",
        suite="cuda calls",
        subjects={
            "cholesky": 4,
            "linalg.cholesky": 4,
            "linalg.inv": 1,
            "linalg.lu_factor": 3,
            "linalg.solve": 3,
            "linalg.tensorinv": 2,
            "linalg.tensorsolve": 3,
        },
        variant="* expanded function",
        detail="fake accepts: .*(_LinAlgError|is zero)",
        rounds=True,
    ),
    Difference(
        "the record is of PyTorch 2.11, whose derivative scatters what autocast made float32; 2.13 uses where",
        suite="cuda calls",
        subjects={"cumprod": 6},
        variant="bfloat16 * autocast",
        detail="fake accepts: .*masked_scatter_",
    ),
    Difference(
        "the norm of a single matrix decides whether its kernel mixes dtypes that autocast casts and does not cast",
        suite="cuda calls",
        subjects={"matrix_exp": 4},
        variant="* autocast",
        detail="fake accepts: .*Index put requires",
    ),
    Difference(
        "the kernel checks the alignment of its data, which a fake does not have",
        suite="cuda calls",
        subjects={"torch.ops.aten._efficient_attention_forward": 3},
        variant="* offset function",
        detail="fake accepts: .*not correctly aligned",
    ),
    Difference(
        "the GPU refuses to launch the kernel for empty inputs",
        suite="cuda calls",
        subjects={"_upsample_bilinear2d_aa": 9, "_batch_norm_with_update": 3},
        variant="* zero-sized function",
        detail="real AcceleratorError: CUDA error: invalid argument",
    ),
    Difference(
        "for a repeated input with one feature, the real operator does not require it to be contiguous",
        suite="cuda calls",
        subjects={"_batch_norm_with_update": 1},
        variant="float32 expanded function",
        detail="fake raises: .*is_contiguous",
    ),
    Difference(
        "the record has no gradients here; in a second run, the GPU's were those of the fakes",
        suite="cuda",
        subjects={"torch.ops.aten._flash_attention_forward": 8},
        variant="bfloat16 plain",
        detail=r"gradients real \[None, None, None\] fake \[\[",
    ),
)


def explanation(case: Case) -> Difference | None:
    """The listed difference that matches this failure, or None."""
    return next((difference for difference in KNOWN if difference.explains(case)), None)


def wrong_count(known: Difference, subject: str, found: int, is_whole: bool) -> str:
    """How the number of explained cases deviates from the list; empty if it does not. A partial run may show fewer."""
    listed = known.subjects[subject]
    least = (1 if known.rounds else listed) if is_whole else 0
    if least <= found <= listed:
        return ""
    what = f"{found} cases differ" if found else "nothing differs any more"
    return f"{known.suite}: {subject}: {what}, {listed} are listed ({known.reason})"


def name_cases(suite: str, subject: str) -> None:
    """Writes the cases that the differences of this suite and subject describe."""
    found: dict[str, list[int]] = {}
    for known in (known for known in KNOWN if known.suite == suite and subject in known.subjects and not known.rounds):
        for case in SUITES[suite].cases(make_engine("torchfake", "on"), subject, known.scope()):
            if known.describes(case):
                found.setdefault(case.variant, []).append(case.sample)
    _NAMED.setdefault(suite, {})[subject] = found
    suites = {name: dict(sorted(_NAMED[name].items())) for name in sorted(_NAMED)}
    # A line for each variant.
    text = re.sub(r"\[[^]]*]", lambda numbers: json.dumps(json.loads(numbers[0])), json.dumps(suites, indent=1))
    _CASES.write_text(text + "\n")


def count_cases(known: Difference, subject: str, cache: str = "on") -> int:
    """Runs everything that the difference covers, and counts the cases that it explains."""
    cases = SUITES[known.suite].cases(make_engine("torchfake", cache), subject, known.scope())
    return sum(known.explains(case) for case in cases)


if __name__ == "__main__":
    name_cases(*sys.argv[1:])
