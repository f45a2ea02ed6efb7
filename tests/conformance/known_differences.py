"""Where fakes are known to differ from real tensors, and why. A listed difference that is gone fails the run."""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass

from compare import Case
from engines import make_engine
from suite_operators import DTYPES, Scope
from suites import SUITES
from variants import CALLS, LAYOUTS


@dataclass(frozen=True)
class Difference:
    """One root cause in one suite.

    Attributes:
        reason: Why it is so, and why it stays.
        suite: The suite where it shows.
        subjects: Operators, modules or optimizers; every one has to differ.
        variant: Which variants, as a file name pattern.
        detail: What the failure says, as a regular expression.
    """

    reason: str
    suite: str
    subjects: tuple[str, ...]
    variant: str = "*"
    detail: str = ""

    def explains(self, case: Case) -> bool:
        return (
            case.failed
            and case.suite == self.suite
            and case.subject in self.subjects
            and fnmatch.fnmatchcase(case.variant, self.variant)
            and re.search(self.detail, f"{case.result.outcome}: {case.result.detail}", re.DOTALL) is not None
        )

    def scope(self) -> Scope:
        """What has to run to see it: everything of its suite, narrowed by the words that its variant names."""
        words = self.variant.split()
        return Scope(
            dtypes=tuple(d for d in DTYPES if d in words) or DTYPES,
            layouts=tuple(x for x in LAYOUTS if x in words) or tuple(LAYOUTS),
            calls=tuple(c for c in CALLS if self.variant.endswith(c)) or CALLS,
        )


#: Reasons that hold in several suites.
_SPARSE = "sparse tensors cannot be faked, and are refused by name"
_PHASE = "whether a complex loss depends on the phase of singular vectors is seen in its values alone"
_EMPTY_GRADIENT = (
    "the record is of PyTorch 2.11, where the gradient of an empty matrix is undefined; 2.13 gives an empty one"
)

KNOWN: tuple[Difference, ...] = (
    Difference(
        _SPARSE,
        suite="operators",
        subjects=("sparse.mm.reduce", "sparse.sampled_addmm", "to_sparse"),
        detail="UnsupportedFakeTensorException",
    ),
    Difference(
        _SPARSE, suite="cuda", subjects=("sparse.mm.reduce", "to_sparse"), detail="UnsupportedFakeTensorException"
    ),
    Difference(_SPARSE, suite="optimizers", subjects=("SparseAdam",), detail="UnsupportedFakeTensorException"),
    Difference(
        "values are not followed through products in less than single precision (is_risky_product)",
        suite="optimizers",
        subjects=("LBFGS",),
        variant="bfloat16*",
        detail="data-dependent with known values",
    ),
    Difference(
        _PHASE,
        suite="operators",
        subjects=("svd_lowrank", "pca_lowrank"),
        variant="complex64*",
        detail="fake accepts: .*svd_backward",
    ),
    Difference(
        "lengths have to add up: their values decide, and no filling with one value makes them",
        suite="operators",
        subjects=("_segment_reduce.lengths",),
        variant="* expanded function",
        detail="fake accepts: .*segment_reduce",
    ),
    Difference(
        "the layout of the gradient is that of a machine whose oneDNN has the dtype; the suite runs it without",
        suite="operators",
        subjects=("nn.functional.conv3d",),
        variant="*float16 channels-last function",
        detail="different: gradient 0: stride",
    ),
    Difference(
        "the real kernel fails on an assertion of its own",
        suite="operators",
        subjects=("index_reduce.prod",),
        variant="*float16 expanded *",
        detail="fake accepts: .*INTERNAL ASSERT FAILED",
    ),
    Difference(
        "expanded repeats: the real kernel adds up other numbers than it was told to expect",
        suite="operators",
        subjects=("repeat_interleave",),
        variant="* expanded function",
        detail="fake accepts: .*allocated size does not match",
    ),
    Difference(
        "the jiterator compiles for a GPU and asks for one before it calls any operator",
        suite="cuda",
        subjects=("jiterator_2inputs_2outputs", "jiterator_binary_return_by_ref"),
        detail="Jiterator is only supported on CUDA and ROCm GPUs",
    ),
    Difference(
        _EMPTY_GRADIENT,
        suite="cuda",
        subjects=("linalg.det",),
        detail=r"gradients real \[None\] fake \[\[\[(0|\d+, 0)",
    ),
    Difference(
        _EMPTY_GRADIENT,
        suite="cuda calls",
        subjects=("linalg.det",),
        detail=r"different: part 2: real \[None\] fake \[{'size': \[(0|\d+, 0)",
    ),
    Difference(
        "the record is of PyTorch 2.11, which has no derivative for it; 2.13 has",
        suite="cuda calls",
        subjects=("aminmax", "narrow_copy", "nextafter"),
        detail="fake accepts: .*derivative for",
    ),
    Difference(
        "the record is of PyTorch 2.11, which has no such kernel for a GPU; 2.13 composes it",
        suite="cuda calls",
        subjects=("narrow_copy",),
        detail="fake accepts: .*Could not run 'aten::narrow_copy.out'",
    ),
    Difference(
        "the record is of PyTorch 2.11, where autocast leaves it as it is; 2.13 casts it to float32",
        suite="cuda calls",
        subjects=("nn.functional.rms_norm",),
        variant="* autocast",
        detail="dtype real .* fake torch.float32",
    ),
    Difference(
        "the record is of PyTorch 2.11, which conjugates the vectors in place; 2.13 returns a view",
        suite="cuda calls",
        subjects=("svd_lowrank", "pca_lowrank"),
        variant="complex64 * inference",
        detail="conj real False fake True",
    ),
    Difference(_SPARSE, suite="cuda calls", subjects=("to_sparse",), detail="UnsupportedFakeTensorException"),
    Difference(
        _PHASE,
        suite="cuda calls",
        subjects=("svd_lowrank", "pca_lowrank"),
        variant="complex64*",
        detail="fake accepts: .*svd_backward",
    ),
    Difference(
        "lengths have to add up: their values decide, and the CPU's kernel, which is asked, does not look",
        suite="cuda calls",
        subjects=("_segment_reduce.lengths",),
        variant="* expanded function",
        detail="fake accepts: .*segment_reduce",
    ),
    Difference(
        "a matrix of equal rows is singular, or not positive-definite, to the GPU's solver; the CPU's, which is asked "
        "where values are known, divides by what rounding leaves",
        suite="cuda calls",
        subjects=(
            "cholesky",
            "linalg.cholesky",
            "linalg.inv",
            "linalg.lu_factor",
            "linalg.solve",
            "linalg.tensorinv",
            "linalg.tensorsolve",
        ),
        variant="* expanded function",
        detail="fake accepts: .*(_LinAlgError|is zero)",
    ),
    Difference(
        "the real kernel calls operators that autocast casts: where values take it there, it refuses the mixture",
        suite="cuda calls",
        subjects=("cumprod", "matrix_exp"),
        variant="* autocast",
        detail="fake accepts: .*(masked_scatter_|Index put requires)|dtype real torch.float32 fake torch.b?float16",
    ),
    Difference(
        "where one factor alone is zero, and values decide whether, the gradient is computed in another way",
        suite="cuda calls",
        subjects=("prod",),
        variant="bfloat16 transposed *",
        detail="different: gradient 0: stride",
    ),
    Difference(
        "the kernel asks how the address of its data is aligned; a fake has none",
        suite="cuda calls",
        subjects=("torch.ops.aten._efficient_attention_forward",),
        variant="* offset function",
        detail="fake accepts: .*not correctly aligned",
    ),
    Difference(
        "of nothing, the GPU refuses to start the kernel",
        suite="cuda calls",
        subjects=("_upsample_bilinear2d_aa", "_batch_norm_with_update"),
        variant="* zero-sized function",
        detail="real AcceleratorError: CUDA error: invalid argument",
    ),
    Difference(
        "of one feature, and repeated, the real operator does not ask for a contiguous input",
        suite="cuda calls",
        subjects=("_batch_norm_with_update",),
        variant="float32 expanded function",
        detail="fake raises: .*is_contiguous",
    ),
    Difference(
        "the record has no gradients here; asked again, the GPU gave those that the fakes give",
        suite="cuda",
        subjects=("torch.ops.aten._flash_attention_forward",),
        variant="bfloat16 plain",
        detail=r"gradients real \[None, None, None\] fake \[\[",
    ),
)


def explanation(case: Case) -> Difference | None:
    """The listed difference that this failure is, or None."""
    return next((difference for difference in KNOWN if difference.explains(case)), None)


def still_differs(known: Difference, subject: str, cache: str = "on") -> bool:
    """Runs the subject, whole, until the difference shows."""
    cases = SUITES[known.suite].cases(make_engine("torchfake", cache), subject, known.scope())
    return any(known.explains(case) for case in cases)
