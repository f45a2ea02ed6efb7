"""The comparison detects errors: each kind of difference, made on purpose, is reported as a failure."""

import compare
import pytest
import torch
from engines import make_engine
from suite_operators import Scope
from workers import Job, run_job

import torchfake

ENGINE = make_engine("torchfake")


def wrong_on_fakes(right, wrong):
    """A function that behaves differently if its argument is fake."""
    return lambda x: wrong(x) if torchfake.is_fake(x) else right(x)


def raises(error):
    def call(x):
        raise error

    return call


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda x: x[:1] + 1, id="size"),
        pytest.param(lambda x: (x.t().contiguous() + 1).t(), id="stride"),
        pytest.param(lambda x: (x + 1).double(), id="dtype"),
        pytest.param(lambda x: (x + 1).cuda(), id="device"),
        pytest.param(lambda x: (x + 1).detach(), id="requires_grad"),
        pytest.param(lambda x: torch.cat([x, x])[2:], id="offset"),
        pytest.param(lambda x: x, id="the input itself"),
        pytest.param(lambda x: x.view(2, 3), id="a view of the input"),
        pytest.param(lambda x: (x + 1, x + 1), id="number of outputs"),
    ],
)
def test_a_wrong_output_is_seen(wrong):
    x = torch.rand(2, 3, requires_grad=True)
    result = compare.compare(ENGINE, wrong_on_fakes(lambda x: x + 1, wrong), ((x,), {}))
    assert result.outcome == compare.DIFFERENT, result


def test_outputs_that_share_a_storage_only_as_fakes_are_seen():
    def apart(x):
        return x + 1, x + 1

    def together(x):
        y = x + 1
        return y, y.view(2, 3)

    result = compare.compare(ENGINE, wrong_on_fakes(apart, together), ((torch.rand(2, 3),), {}))
    assert "shares" in result.detail


def test_a_wrong_gradient_is_seen():
    class Transposing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x + 1

        @staticmethod
        def backward(ctx, grad):
            return grad.t().contiguous().t()

    x = torch.rand(2, 3, requires_grad=True)
    result = compare.compare(ENGINE, wrong_on_fakes(lambda x: x + 1, Transposing.apply), ((x,), {}))
    assert result.detail.startswith("gradient 0: stride")


def test_an_input_that_only_the_fake_resizes_is_seen():
    result = compare.compare(
        ENGINE, wrong_on_fakes(lambda x: (), lambda x: (x.resize_(7), ())[1]), ((torch.rand(2, 3),), {})
    )
    assert "size real (2, 3) fake (7,)" in result.detail


@pytest.mark.parametrize(
    ("right", "wrong", "outcome"),
    [
        (torch.exp, raises(ValueError("no")), compare.FAKE_RAISES),
        (raises(ValueError("no")), torch.exp, compare.FAKE_ACCEPTS),
        (raises(ValueError("no")), raises(IndexError("no")), compare.OTHER_ERROR),
        (raises(ValueError("no")), raises(ValueError("other words")), compare.BOTH_REFUSE),
        (raises(RuntimeError("no")), raises(torchfake.MetadataMismatchError("no")), compare.OTHER_ERROR),
        (torch.exp, torch.exp, compare.SAME),
        (torch.nonzero, torch.nonzero, compare.DATA_DEPENDENT),
        (torch.nonzero, raises(torchfake.DynamicOutputShapeException("no")), compare.NOT_ANSWERED),
    ],
)
def test_an_error_on_one_side_is_seen(right, wrong, outcome):
    result = compare.compare(ENGINE, wrong_on_fakes(right, wrong), ((torch.rand(2, 3),), {}))
    assert result.outcome == outcome, result


def test_a_real_output_in_place_of_a_fake_is_seen():
    def leak(x):
        with torchfake.no_fake_mode():
            return torch.zeros(2, 3)

    result = compare.compare(ENGINE, wrong_on_fakes(lambda x: torch.zeros(2, 3), leak), ((torch.rand(2, 3),), {}))
    assert result.detail == "an output is not fake"


def test_a_worker_that_cannot_start_is_an_error():
    job = Job("errors", "no such engine", "no such mode", Scope(1), ("abs",))
    with pytest.raises(RuntimeError, match="before its first subject"):
        list(run_job(job))


def declares_on_fakes(function):
    """The function, whose result fakes with unknown values take to depend on values."""
    return wrong_on_fakes(function, lambda x: (x.sum().item(), function(x))[1])


@pytest.mark.parametrize(
    ("function", "x"),
    [
        pytest.param(torch.exp, torch.rand(3), id="the same for any value"),
        pytest.param(torch.unique, torch.rand(1), id="of one element"),
    ],
)
def test_a_declaration_that_is_not_true_is_seen(function, x):
    result = compare.compare(ENGINE, declares_on_fakes(function), ((x,), {}))
    assert result.outcome == compare.NOT_SHOWN, result


@pytest.mark.parametrize(
    ("function", "x"),
    [
        pytest.param(torch.unique, torch.rand(4), id="other sizes with other values"),
        pytest.param(torch.Tensor.item, torch.rand(()), id="other numbers with other values"),
        pytest.param(lambda x: (x.max().item(), x.exp())[1], torch.rand(3), id="a value is read on the way"),
    ],
)
def test_a_declaration_that_is_true_is_accepted(function, x):
    assert compare.compare(ENGINE, function, ((x,), {})).outcome == compare.DATA_DEPENDENT


def test_a_device_with_another_index_is_seen():
    rows = [compare.describe(torch.empty(2, device="meta"), [], False) for _ in range(2)]
    rows[0][0]["device"], rows[1][0]["device"] = "cuda:0", "cuda:1"
    assert compare.difference(*rows) == "part 0: device real cuda:0 fake cuda:1"
    with torchfake.fake_mode():
        x = torch.empty(2, device="cuda:1")
    assert compare.metadata(x, [], [])["device"] == "cuda:1"
