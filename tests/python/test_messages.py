"""Errors about unknown values name the user's expression, its location, and a way out that exists."""

import pytest
import torch

from torchfake import FakeTensorMode, errors, fake_mode


def unknown():
    return torch.randn(1000).sum()


@pytest.mark.parametrize(
    ("read", "written"),
    [
        (lambda x: x.item(), ".item()"),
        (lambda x: float(x), "float()"),
        (lambda x: int(x), "int()"),
        (lambda x: bool(x > 0), "bool()"),
        (lambda x: 1 if x > 0 else 2, "bool() of a condition"),
        (lambda x: x and 1, "bool() of a condition"),
        (lambda x: not x, "not"),
        (lambda x: f"{x:.3f}", "formatting"),
        (lambda x: x in [1.0], "in"),
        (lambda x: range(x.long()), "range()"),
        (lambda x: x.tolist(), ".tolist()"),
        (lambda x: x.numpy(), ".numpy()"),
    ],
)
def test_an_error_names_what_was_written_and_where(read, written):
    with fake_mode(), pytest.raises(errors.FakeTensorError) as caught:
        read(unknown())
    assert f"Read by {written} at {__file__}:{read.__code__.co_firstlineno}" in str(caught.value)
    assert 'unknown="stand-in"' in str(caught.value)


def test_the_ways_out_are_those_that_are_not_taken_yet():
    with fake_mode(), pytest.raises(errors.DynamicOutputShapeException, match="selects_all=True"):
        torch.randn(1000).nonzero()
    with fake_mode(selects_all=True):
        assert torch.randn(1000).nonzero().shape == (1000, 1)
    with FakeTensorMode(), pytest.raises(errors.DataDependentOutputException) as caught:
        torch.randn(1000).sum().item()
    assert "In fake_mode(" not in str(caught.value)
    assert __file__ in str(caught.value)


def test_every_way_out_that_is_named_exists():
    with fake_mode(unknown="stand-in"):
        assert unknown().item() == 1.0
    torch.manual_seed(0)
    with fake_mode(propagate_real_tensors=True):
        assert isinstance(unknown().item(), float)
        assert torch.ones(1000).sum().item() == 1000


def test_outside_of_the_mode_a_factory_says_to_enter_it():
    with fake_mode():
        x = torch.ones(2, device="cuda")
    if torch.cuda.is_available():
        pytest.skip("asks for a device that is not there")
    if torch.version.cuda and torch.__version__ >= "2.15":
        pytest.skip("this release initialises CUDA in C++ alone, where nothing can add a note")
    with pytest.raises((AssertionError, RuntimeError), match=r"not compiled with CUDA|NVIDIA") as caught:
        torch.ones(2, device=x.device)
    assert "enter the mode: with fake_mode" in caught.value.__notes__[0], "a note: the message stays PyTorch's"


def test_strict_refuses_both_assumptions():
    def scaled():
        model = torch.nn.Linear(2, 2).cuda()
        scaler = torch.amp.GradScaler("cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler.scale(model(torch.randn(100, 2, device="cuda")).sum()).backward()
        scaler.step(optimizer)

    def validated():
        torch.distributions.Normal(torch.randn(1000), torch.rand(1000), validate_args=True)

    for program in (scaled, validated):
        with fake_mode():
            program()
        with fake_mode(strict=True), pytest.raises(errors.DataDependentOutputException):
            program()
