"""Step 5: judges a call on fakes by comparison with the real operator and with its second call."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .calls import Call
from .observing import Observation
from .servers import Answer

#: Findings that nothing excuses.
CRASH = "crash"
HANG = "hang"
INTERNAL_ERROR = "internal error"
SECOND_DIFFERS = "second call differs"
#: Findings that a known deviation may explain.
WRONG_METADATA = "wrong metadata"
ACCEPTS = "accepts what is refused"
REFUSES = "refuses what is accepted"
NOT_FAKE = "returns a real tensor"
LEAKS = "says what nobody wrote"

INEXCUSABLE = (CRASH, HANG, INTERNAL_ERROR, SECOND_DIFFERS)
FINDINGS = (*INEXCUSABLE, NOT_FAKE, LEAKS, WRONG_METADATA, ACCEPTS, REFUSES)

#: Exceptions in which a call may end. Any others are internal errors of Python meta kernels.
_USER_ERRORS = {
    "RuntimeError",
    "NotImplementedError",
    "IndexError",
    "ValueError",
    "TypeError",
    "MemoryError",
    "OverflowError",
}
#: torchfake's errors for a dependence on values and for unsupported calls.
_DECLARES = {"DataDependentOutputException", "DynamicOutputShapeException"}
_GIVES_UP = {
    "DataAccessError",
    "UnsupportedOperatorException",
    "UnsupportedFakeTensorException",
    "RealTensorError",
}
#: Phrases in errors that expose how fakes are implemented.
_INSIDE_WORDS = ("not allocated yet", "'Meta' backend", "device meta", "meta tensor", "doesn't correspond to a device")


@dataclass(frozen=True)
class Finding:
    kind: str
    call: Call
    variant: str
    detail: str

    @property
    def reproduce(self) -> str:
        return f"bash run fuzz --line '{self.call}'"


def findings(call: Call, real: Answer, fakes: dict[str, Answer]) -> Iterator[Finding]:
    """The problems in the results of one call, by variant.

    A real call that ended its process excuses everything except what the cache and the error show: decompositions run
    above the engine, and known values are computed by the real kernels.
    """
    for variant, answer in fakes.items():
        if answer.died or answer.hung:
            if not (real.died or real.hung):
                detail = answer.died or "no answer within the time limit"
                yield Finding(CRASH if answer.died else HANG, call, variant, detail)
        else:
            reference = real.observations[0] if real.observations else None
            yield from _findings_of(call, variant, answer, reference, fakes)


def _findings_of(
    call: Call, variant: str, answer: Answer, real: Observation | None, fakes: dict[str, Answer]
) -> Iterator[Finding]:
    first, second = answer.observations
    for fake in (first, second):
        inside = _internal_error(fake, real)
        if inside:
            yield Finding(inside, call, variant, fake.raised)
            return
    if (first.rows, first.types, first.text) != (second.rows, second.types, second.text):
        yield Finding(SECOND_DIFFERS, call, variant, _told("first", first, "second", second))
        return
    if first.has_real and '"meta"' not in str(call):
        yield Finding(NOT_FAKE, call, variant, str(first))
    # Plain meta tensors need not refuse what real devices refuse.
    if real is None or not variant.startswith("cpu") or '"meta"' in str(call):
        return
    different = _difference(variant, first, real, fakes)
    if different:
        yield Finding(different, call, variant, _told("real", real, "fake", first))


def _told(name: str, one: Observation, other_name: str, other: Observation) -> str:
    """A description of both; for rows, of those that differ."""
    if one.rows is None or other.rows is None or len(one.rows) != len(other.rows):
        return f"{name} {one}; {other_name} {other}"
    pairs = [(a, b) for a, b in zip(one.rows, other.rows, strict=True) if a != b]
    return "; ".join(f"{name} {a} {other_name} {b}" for a, b in pairs)


def _internal_error(fake: Observation, real: Observation | None) -> str | None:
    """The internal part of an error that the real operator does not raise as well."""
    if not fake.types or (real is not None and real.types and real.text == fake.text):
        return None
    asserts = "INTERNAL ASSERT FAILED" in fake.text or not _USER_ERRORS & set(fake.types)
    if asserts and not (real is not None and real.types and real.types[0] == fake.types[0] != "RuntimeError"):
        return INTERNAL_ERROR
    return LEAKS if any(word in fake.text for word in _INSIDE_WORDS) and '"meta"' not in fake.text else None


def _difference(variant: str, fake: Observation, real: Observation, fakes: dict[str, Answer]) -> str | None:
    if fake.types:
        if real.types or _GIVES_UP & set(fake.types) or (variant.endswith("unknown") and _DECLARES & set(fake.types)):
            return None
        return REFUSES
    if real.types:
        # Invalid values can only be detected by fakes that know them.
        known = fakes.get("cpu known")
        told = known is not None and known.observations and known.observations[0].types
        return None if variant == "cpu unknown" and told else ACCEPTS
    if fake.rows == real.rows:
        return None
    return None if _only_values_differ(variant, fake, real) else WRONG_METADATA


def _only_values_differ(variant: str, fake: Observation, real: Observation) -> bool:
    """The numbers returned by an operator differ, and the values of the tensors were unknown."""
    if variant != "cpu unknown" or fake.rows is None or real.rows is None or len(fake.rows) != len(real.rows):
        return False
    return all(a == b or (len(a) == 2 and a[0] == b[0]) for a, b in zip(fake.rows, real.rows, strict=True))
