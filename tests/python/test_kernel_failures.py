"""PyTorch's Python kernels that fail internally: the caller gets an error of the operator."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from torchfake import UnsupportedOperatorException, fake_mode

aten = torch.ops.aten


def pad_two_jagged_dimensions() -> Tensor:
    offsets = torch.tensor([0, 1])
    padded: Tensor = aten._jagged_to_padded_dense_forward(torch.ones(3, 2), [offsets, offsets], [2, 2], 0.0)
    return padded


def test_an_assertion_of_a_kernel_is_a_refusal_as_of_the_real_operator() -> None:
    with pytest.raises(RuntimeError):
        pad_two_jagged_dimensions()
    with fake_mode():
        for _ in range(2):  # the second from the cache
            with pytest.raises(
                RuntimeError, match=r"aten::_jagged_to_padded_dense_forward: .*Only one jagged dim is supported"
            ):
                pad_two_jagged_dimensions()
        assert torch.ones(2).add(1).shape == (2,)  # no Python error is pending any more


@pytest.fixture
def failing_operator(request: pytest.FixtureRequest) -> Iterator[torch._ops.OpOverload]:
    """An operator of prims, whose kernel is replaced by one that fails in the given way."""
    library = torch.library.Library("prims", "FRAGMENT")
    name = "fails_for_a_test"
    library.define(f"{name}(Tensor x) -> Tensor")

    def kernel(x: Tensor) -> Tensor:
        raise request.param

    library.impl(name, kernel, "Meta")
    yield getattr(torch.ops.prims, name).default
    library._destroy()


@pytest.mark.parametrize("failing_operator", [AssertionError()], indirect=True)
def test_an_assertion_without_a_message_is_reported_with_its_line(failing_operator: torch._ops.OpOverload) -> None:
    with fake_mode(), pytest.raises(RuntimeError, match=r"prims::fails_for_a_test: .*`raise request.param` in kernel"):
        failing_operator(torch.ones(2))


MISTAKES = [AttributeError("no such thing"), KeyError("a key"), ZeroDivisionError("by zero"), NameError("a name")]


@pytest.mark.parametrize("failing_operator", MISTAKES, indirect=True, ids=lambda x: type(x).__name__)
def test_a_bug_in_a_kernel_is_reported_as_an_unsupported_operator(failing_operator: torch._ops.OpOverload) -> None:
    with fake_mode(), pytest.raises(UnsupportedOperatorException, match=r"prims::fails_for_a_test: .*Error: "):
        failing_operator(torch.ones(2))


FOR_CALLERS = [ValueError("a value"), TypeError("a type"), IndexError("an index"), UserWarning("a warning")]


@pytest.mark.parametrize("failing_operator", FOR_CALLERS, indirect=True, ids=lambda x: type(x).__name__)
def test_errors_for_callers_pass_as_they_are(failing_operator: torch._ops.OpOverload) -> None:
    with fake_mode(), warnings.catch_warnings(), pytest.raises((ValueError, TypeError, IndexError, UserWarning)):
        failing_operator(torch.ones(2))


def test_a_fake_implementation_fails_as_its_author_wrote_it() -> None:
    @torch.library.custom_op("torchfake_tests::asserts", mutates_args=())
    def asserts(x: Tensor) -> Tensor:
        return x.clone()

    @asserts.register_fake
    def _(x: Tensor) -> Tensor:
        raise AssertionError("of the author")

    with fake_mode(), pytest.raises(AssertionError, match=r"^of the author$"):
        asserts(torch.ones(2))
