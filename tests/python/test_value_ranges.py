"""Bounds of small tensors with unknown values: how they are derived, when they end, and what they never imply."""

import pytest
import torch

from torchfake import FakeTensorMode, errors, fake_mode


@pytest.fixture(autouse=True)
def mode():
    with fake_mode(drawn_values_limit=0, unknown="error") as entered:
        yield entered


def unknown(*size, dtype=torch.float32, device="cuda"):
    """Values that nobody knows: the sums of many."""
    return torch.empty(*size, 100, device=device).sum(-1).to(dtype)


def is_unknown(truth):
    with pytest.raises(errors.DataDependentOutputException):
        bool(truth)
    return True


def whole(*size):
    return torch.empty(*size, 100, dtype=torch.int64, device="cuda").sum(-1)


KNOWN = {
    "rand is below 1": lambda: (torch.rand(8, device="cuda") < 1).all(),
    "rand is not negative": lambda: (torch.rand(8) >= 0).all(),
    "rand is below 2": lambda: torch.rand(()) < 2,
    "a sigmoid is not above 1": lambda: ~(torch.sigmoid(unknown(4)) > 1).any(),
    "the largest of a softmax is not above 1.5": lambda: torch.softmax(unknown(2, 4), -1).max() > 1.5,
    "randint": lambda: (torch.randint(3, 9, (5,)) < 9).all() & (torch.randint(3, 9, (5,)) >= 3).all(),
    "randperm": lambda: (torch.randperm(10) < 10).all(),
    "argmax of a large tensor": lambda: torch.empty(4, 1000, device="cuda").argmax(-1).max() < 1000,
    "argmax of all": lambda: torch.empty(30, 30, device="cuda").argmax() <= 899,
    "indices of max": lambda: (torch.empty(4, 1000).max(-1).indices < 1000).all(),
    "indices of topk": lambda: (torch.empty(4, 1000).topk(3).indices >= 0).all(),
    "indices of sort": lambda: (torch.empty(4, 8).sort().indices < 8).all(),
    "multinomial": lambda: (torch.multinomial(torch.softmax(unknown(9), -1), 2) < 9).all(),
    "the sum of a large mask": lambda: (torch.empty(1000, device="cuda") > 0).sum() <= 1000,
    "the sum of a mask, by rows": lambda: ((torch.empty(4, 300) > 0).sum(-1) >= 0).all(),
    "clamp": lambda: (unknown(5, dtype=torch.int64).clamp(0, 9) < 10).all(),
    "clamp of one side": lambda: (whole(5).clamp(min=2) > 1).all(),
    "a view": lambda: torch.rand(8)[2:4].max() < 1,
    "a sum of ranges": lambda: torch.rand(8).add(torch.rand(8)).max() < 2.5,
    "a product": lambda: (torch.rand(8) * 3 + 1).min() > 0.5,
    "a quotient": lambda: (torch.rand(8) / 4).max() < 0.3,
    "a mean": lambda: torch.rand(8).mean() < 1.1,
    "another dtype": lambda: (torch.rand(8).to(torch.float16) <= 1).all(),
    "a floor": lambda: (torch.rand(8) * 5).floor().max() < 6,
    "as an index": lambda: (torch.rand(8) * 5).long().max() <= 5,
    "cat": lambda: torch.cat([torch.rand(3), torch.rand(3)]).max() < 1,
    "where": lambda: torch.where(unknown(4, device="cpu") > 0, torch.rand(4), torch.rand(4)).max() < 1,
    "gather": lambda: torch.rand(8).gather(0, torch.randint(0, 8, (3,))).max() < 1,
    "the rest of a division": lambda: (whole(4) % 7 < 7).all(),
    "an integer equals itself": lambda: (lambda x: (x == x).all())(torch.randint(0, 9, (5,))),
    "no integer is a NaN": lambda: ~whole(4).isnan().any(),
    "an absolute value": lambda: ~(unknown(3).abs() < 0).any(),
    "never equal": lambda: ~(torch.rand(4) == 3).any(),
    "always unequal, a NaN too": lambda: (torch.sigmoid(unknown(4)) != 3).all(),
}


@pytest.mark.parametrize("name", KNOWN)
def test_what_follows_from_bounds_is_known(name):
    result = KNOWN[name]()
    assert bool(result) == (name != "the largest of a softmax is not above 1.5")


UNKNOWN = {
    "half": lambda: torch.rand(8).max() < 0.5,
    "a NaN may be in a softmax": lambda: (torch.softmax(unknown(4), -1) <= 1).all(),
    "a NaN may be in a sigmoid": lambda: (torch.sigmoid(unknown(4)) <= 1).all(),
    "a NaN passes clamp": lambda: (unknown(4).clamp(0, 1) <= 1).all(),
    "the border": lambda: (torch.randint(0, 9, (5,)) < 8).all(),
    "no bounds": lambda: (unknown(4) > 0).all(),
    "rand in half precision on a GPU may be rounded to 1": lambda: (
        torch.rand(4, dtype=torch.float16, device="cuda") < 1
    ).all(),
    "rounding": lambda: (torch.rand(4) + 1 < 2).all(),
    "division by what may be zero": lambda: (1 / torch.rand(4) >= 1).all(),
    "integers that may wrap": lambda: (torch.randint(0, 2**62, (4,)) * 4 >= 0).all(),
    "a float equals itself, but for a NaN": lambda: (lambda x: (x == x).all())(torch.sigmoid(unknown(4))),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_does_not_follow_stays_unknown(name):
    assert is_unknown(UNKNOWN[name]())


def test_a_write_ends_the_bounds():
    x = torch.rand(4)
    view = x[:2]
    view.copy_(unknown(2, device="cpu"))
    assert is_unknown((x < 1).all())
    y = torch.rand(4)
    y.mul_(3)
    assert is_unknown((y < 1).all())


def test_another_type_of_the_same_bytes_has_other_bounds():
    assert is_unknown((torch.rand(4).view(torch.int32) < 2).all())


def test_large_tensors_carry_none():
    assert is_unknown((torch.rand(65) < 2).all())


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_integers_carry_bounds_at_any_size(device):
    for _ in range(3):  # on a hit of the cache too
        labels = torch.randint(3, 9, (5000,), device=device)
        chosen = torch.cat([labels[torch.randperm(5000, device=device)][:700], labels.flip(0)]).int().cuda()
        assert bool(chosen.max() < 9) and bool(chosen.min() >= 3)
        assert bool((labels * 6 + torch.randn(5000, 6, device=device).argmax(-1)).max() < 54)
        assert bool(torch.randn(500, 8, device=device).topk(2).indices.max() < 8)
    labels[0] = torch.randn(100, device=device).argmax()
    assert is_unknown(labels.max() < 9)
    graphs = torch.arange(4, device=device).repeat_interleave(50)
    assert bool(graphs[torch.randn(200, device=device).argsort()].max() < 4)


def test_bounds_hold_on_a_hit_of_the_cache_too():
    for _ in range(3):
        assert bool((torch.rand(8, device="cuda") < 1).all())
        assert bool(torch.empty(4, 1000, device="cuda").argmax(-1).max() < 1000)


def test_known_values_and_bounds_go_together():
    known = torch.tensor([1.0, 2.0])
    assert bool((torch.rand(2) < known).all())
    assert bool((torch.rand(2) + known >= 1).all())


def test_what_bounds_say_is_true_of_real_tensors(mode):
    """Each known answer, asked of real tensors as well: a bound that is wrong is wrong here."""
    from torchfake import _C

    torch.manual_seed(0)
    for name, program in KNOWN.items():
        scope = _C.EnteredNoFakeMode()
        try:
            for _ in range(5):
                with torch.device("cpu"):
                    result = _on_cpu(program)
                assert bool(result) == (name != "the largest of a softmax is not above 1.5"), name
        finally:
            scope.leave()


def _on_cpu(program):
    empty, rand = torch.empty, torch.rand

    def real(*size, **kwargs):
        kwargs.pop("device", None)
        dtype = kwargs.get("dtype", torch.float32)
        return torch.randn(*size).to(dtype) if not dtype.is_floating_point else torch.randn(*size, dtype=dtype)

    torch.empty = real
    torch.rand = lambda *size, device=None, **kwargs: rand(*(size or ((),)), **kwargs)
    try:
        return program()
    finally:
        torch.empty, torch.rand = empty, rand


def test_fake_tensor_mode_has_none():
    with FakeTensorMode():
        assert is_unknown(torch.rand(()) < 2)


def test_a_stand_in_lies_within_the_bounds():
    with fake_mode(unknown="stand-in", drawn_values_limit=0) as entered:
        assert torch.randint(5, 9, (), device="cuda").item() == 5
        assert torch.randint(0, 9, (), device="cuda").item() == 1
        assert torch.empty(1000, device="cuda").argmax().item() == 1
        assert torch.empty(1, device="cuda").argmax().item() == 0
        assert torch.randint(5, 9, (300,), device="cuda").cpu().numpy().tolist() == [5] * 300
        assert torch.randint(5, 9, (3,), device="cuda").tolist() == [5] * 3
        assert torch.rand((), device="cuda").item() < 1
        assert (torch.rand((), device="cuda") + 3).item() == pytest.approx(3, abs=1e-5)
    assert [entry.answer for entry in entered.stand_ins.entries][:2] == ["5", "1"]
