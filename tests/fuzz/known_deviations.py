"""Known differences in metadata or refusals from the real operators, with reasons. Nothing here excuses a crash."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .verdicts import ACCEPTS, INEXCUSABLE, NOT_FAKE, REFUSES, WRONG_METADATA, Finding


@dataclass(frozen=True)
class Deviation:
    """One cause.

    Attributes:
        reason: The reason for the difference, and why it remains.
        kind: The kind of finding.
        overloads: The overloads, as a regular expression for the whole name.
        detail: The finding's message, as a regular expression.
    """

    reason: str
    kind: str
    overloads: str = ".*"
    detail: str = ""

    def __post_init__(self) -> None:
        if self.kind in INEXCUSABLE:
            raise ValueError(f"nothing explains: {self.kind}")

    def explains(self, finding: Finding) -> bool:
        return (
            finding.kind == self.kind
            and re.fullmatch(self.overloads, finding.call.overload) is not None
            and re.search(self.detail, finding.detail, re.DOTALL) is not None
        )


KNOWN: tuple[Deviation, ...] = (
    Deviation(
        "a fake takes no memory: what this machine has not enough of for a real tensor, it can claim",
        ACCEPTS,
        detail="real RuntimeError: .*(can't allocate memory|not enough memory)",
    ),
    Deviation(
        "memory can be pinned on a machine without an accelerator: a fake stands for one that has it",
        ACCEPTS,
        detail="real RuntimeError: (pin_memory=True requires|Cannot access accelerator|CPU device type not an accel)",
    ),
    Deviation(
        "the real kernel reads beyond the end of parameters and statistics that are too short",
        REFUSES,
        overloads=r"(_?native_|_?cudnn_|_)?batch_norm.*",
        detail="fake RuntimeError: .*(should contain|needs save_|needs running_|of the input's size)",
    ),
    Deviation(
        "the real kernel takes a negative dimension for a place before its list of strides",
        REFUSES,
        overloads=r"_fft_.*",
        detail="fake IndexError: Dimension out of range",
    ),
    Deviation(
        "whether a probability or a bound is in range is for its value to say, and operators that draw look at none",
        ACCEPTS,
        overloads=r"bernoulli.*|randint_like\.Tensor.*",
        detail="real RuntimeError: (Expected p_in >= 0 && p_in <= 1|random_ expects 'from' to be less)",
    ),
    Deviation(
        "sizes of weights that oneDNN itself refuses; nn.LSTM, the one caller, checks them before",
        ACCEPTS,
        overloads=r"mkldnn_rnn_layer.*",
        detail="real RuntimeError: could not create a primitive",
    ),
    Deviation(
        "how much memory oneDNN asks for to keep between forward and backward",
        WRONG_METADATA,
        overloads=r"mkldnn_rnn_layer.*",
        detail=r"^real \[\[\d+\], \[1\], 'torch.uint8', [^;]* fake \[\[0\], \[\], 'torch.uint8', [^;]*$",
    ),
    Deviation(
        "a size in bytes that does not fit a number: a fake's storage is not measured until it is needed",
        ACCEPTS,
        detail="real RuntimeError: Storage size calculation overflowed",
    ),
    Deviation(
        "the real kernel writes numbers of its own dtype into an argument of another",
        REFUSES,
        overloads=r"_logcumsumexp\.out",
        detail="fake RuntimeError: Expected out tensor to have dtype",
    ),
    Deviation(
        "the real operator takes a state of any size, and reads beyond its end",
        REFUSES,
        overloads=r"_sobol_engine_.*",
        detail="expected a state of size",
    ),
    Deviation(
        "the real operator takes more batch dimensions than there are, and reads beyond the sizes",
        REFUSES,
        overloads=r"_new_zeros_with_same_feature_meta\..*",
        detail="batch dimensions of self",
    ),
    Deviation(
        "the real kernel goes through parameters and their buffers side by side, whatever their sizes",
        REFUSES,
        overloads=r"_fused_(sgd|adam|adamw|adagrad)_?\..*",
        detail="fake RuntimeError: a fused optimizer step takes dense",
    ),
    Deviation(
        "the real operator resizes the image that it is given, which its schema does not say",
        WRONG_METADATA,
        overloads=r"slow_conv_transpose2d\..*",
        detail=r"^real \[\[1, (\d+), (\d+), (\d+)\], [^']*'[^']*', 'cpu', None\] fake \[\[\1, \2, \3\]",
    ),
    Deviation(
        "the layout is that of a machine whose oneDNN has the dtype; the fuzzer runs it without",
        WRONG_METADATA,
        overloads=r"_?conv.*",
        detail=r"'torch\.b?float16'",
    ),
    Deviation(
        "oneDNN reads weights of any dtype as if they were its own",
        REFUSES,
        overloads=r"mkldnn_convolution.*",
        detail="should be the same",
    ),
    Deviation(
        "of an image that keeps its size nothing is computed, so that no kernel is asked whether it has the dtype",
        REFUSES,
        overloads=r"_?upsample_.*",
        detail="fake NotImplementedError: .* not implemented for ",
    ),
    Deviation(
        "refusals of dtypes are recorded with arguments that have one dtype, out= among them",
        REFUSES,
        overloads=r".*\.(.*out|grad_input)",
        detail=r"fake NotImplementedError: .* not implemented for .* on cpu, as recorded",
    ),
    Deviation(
        "the real operator returns a tensor of its own where out= has another dtype",
        WRONG_METADATA,
        overloads=r"_add_relu\.(Scalar_)?out",
        detail=r"^real \[.*, 'cpu', None\] fake ",
    ),
    Deviation(
        "operators for PyTorch's own tests and for functorch make a number or a wrapper beneath the engine",
        NOT_FAKE,
        overloads=r"_test_.*|_add_batch_dim.*",
    ),
)


def explanation(finding: Finding) -> str | None:
    return next((deviation.reason for deviation in KNOWN if deviation.explains(finding)), None)
