"""Stand-ins: the values returned for unknown ones, and their reports. See Note [Stand-ins]."""

import math
import threading

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import torchfake
from torchfake import DataDependentOutputException, StandInLimitError, fake_mode


def _unknown(*sizes, device="cuda"):
    return torch.randn(*sizes, device=device) if math.prod(sizes) > 64 else torch.randn(100, device=device).sum()


def test_no_stand_in_is_used_unless_requested():
    with fake_mode() as mode:
        for read in (float, bool, torch.Tensor.item, lambda x: f"{x:.2f}"):
            with pytest.raises(DataDependentOutputException):
                read(_unknown())
        assert mode.stand_ins.entries == []


def test_numbers_are_one_and_branches_are_false():
    with fake_mode(unknown="stand-in"):
        x = _unknown()
        assert x.item() == 1.0
        assert float(x) == 1.0
        assert int(_unknown(100).argmax()) == 1
        assert not (x > 0)
        assert f"{x:.2f}" == "1.00"
        assert f"{x}" == "1.0"
        assert _unknown(2, 50).tolist() == [[1.0] * 50] * 2
        assert np.array_equal(_unknown(100).cpu().numpy(), np.ones(100, dtype=np.float32))
        assert not torch.equal(_unknown(100), _unknown(100))
        assert torch.tensor([x, 2.0]).tolist() == [1.0, 2.0]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_tensor_of_unknown_numbers_holds_stand_ins(device):
    with fake_mode(unknown="stand-in") as mode:
        x = _unknown(device=device)
        assert torch.tensor([x, 2.0]).tolist() == [1.0, 2.0]
        assert torch.tensor([[_unknown(100, device=device).argmax()], [5]]).tolist() == [[1], [5]]
        assert torch.tensor([x > 0, True]).tolist() == [False, True]
        assert len(mode.stand_ins.entries) == 3
    with fake_mode():
        with pytest.raises(DataDependentOutputException, match=r"torch\.stack"):
            torch.tensor([_unknown(device=device), 2.0])
        assert torch.tensor([torch.ones((), device=device), 2.0]).tolist() == [1.0, 2.0]


def test_checks_of_values_pass():
    with fake_mode(unknown="stand-in"):
        x = _unknown(1000, 100)
        assert torch.isfinite(x).all()
        assert not torch.isnan(x).any()
        assert not torch.isinf(x).any()
        assert not torch.isnan(x.sum())
        assert torch.isfinite(x.sum())
        assert torch.allclose(x, x + 1)


def test_known_values_are_never_replaced():
    with fake_mode(unknown="stand-in") as mode:
        assert torch.full((), 3.0).item() == 3.0
        assert torch.isnan(torch.tensor([math.nan, 1.0])).tolist() == [True, False]
        assert not torch.isfinite(torch.tensor(math.inf))
        assert (torch.ones(3) > 0).all()
        assert mode.stand_ins.entries == []


def test_a_selection_takes_everything():
    with fake_mode(unknown="stand-in") as mode:
        x = _unknown(100, 8)
        assert x[x[:, 0] > 0].shape == (100, 8)
        assert torch.nonzero(x).shape == (800, 2)
        assert torch.unique(x).shape == (800,)
        assert torch.masked_select(x, x > 0).shape == (800,)
        assert all(entry.is_about_sizes for entry in mode.stand_ins.entries)


def test_every_answer_is_counted_with_its_line():
    with fake_mode(unknown="stand-in") as mode:
        x = _unknown()
        for _ in range(3):
            x.item()
        float(x)
    first, second = mode.stand_ins.entries
    assert (first.file, first.what, first.answer, first.count) == (__file__, ".item()", "1.0", 3)
    assert second.line == first.line + 1
    assert not first.is_about_sizes


def test_a_loop_that_never_ends_ends_in_an_error_that_names_its_line():
    with fake_mode(unknown="stand-in"):
        x = _unknown()
        with pytest.raises(StandInLimitError, match=r"test_stand_ins\.py:\d+: bool\(\) of a condition was answered"):
            while not (x < 0):
                pass


def test_a_for_loop_may_read_one_value_in_each_of_many_steps():
    read = []

    def train():
        with fake_mode(unknown="stand-in"):
            x = _unknown()
            for _ in range(20_001):
                read.append(x.item())

    thread = threading.Thread(target=train)  # on its own: other loops of this process need not be over iterators
    thread.start()
    thread.join()
    assert len(read) == 20_001


def test_a_for_loop_inside_one_that_waits_for_a_value_ends_in_an_error():
    with fake_mode(unknown="stand-in"):
        x = _unknown()
        with pytest.raises(StandInLimitError, match="10,000 times in a row"):
            while True:
                for _ in range(7):
                    x.item()


def test_integers_are_finite_in_every_mode():
    with fake_mode():
        x = torch.randint(0, 9, (100,), device="cuda")
        assert not torch.isnan(x).any()
        assert torch.isfinite(x).all()


def test_a_loss_scaler_keeps_its_scale_and_steps():
    with fake_mode():
        model = torch.nn.Linear(100, 100).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda", init_scale=1024.0, growth_interval=2)
        for _ in range(2):
            with torch.autocast("cuda", dtype=torch.float16):
                loss = model(torch.randn(8, 100, device="cuda")).sum()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        assert scaler.get_scale() == 2048.0
        assert scaler.state_dict()["_growth_tracker"] == 0


def test_a_strict_mode_refuses_the_assumptions():
    with fake_mode(strict=True):
        model = torch.nn.Linear(100, 100).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda")
        scaler.scale(model(torch.randn(8, 100, device="cuda")).sum()).backward()
        with pytest.raises(DataDependentOutputException):
            scaler.step(optimizer)


def test_addresses_are_stable_aligned_and_of_storages():
    with fake_mode():
        x = torch.empty(1000, device="cuda")
        y = torch.empty(1000, device="cuda")
        address = x.data_ptr()
        assert address % 512 == 0
        assert address != y.data_ptr()
        assert x[10:].data_ptr() == address + 40
        assert x.untyped_storage().data_ptr() == address
        assert x.view(10, 100).data_ptr() == x.detach().data_ptr() == address
        assert torch.empty(0, device="cuda").data_ptr() == 0
        x.fill_(1)
        assert x.data_ptr() == address


def test_unknown_lengths_are_the_whole_length():
    with fake_mode(unknown="stand-in") as mode:
        lengths = torch.full((4,), 5) * (torch.randn(100).sum() > 0)
        packed = torch.nn.utils.rnn.pack_padded_sequence(
            torch.randn(4, 7, 3), lengths, batch_first=True, enforce_sorted=False
        )
        assert packed.data.shape == (28, 3)
        scores = torch.randn(50, 4, 20, device="cuda").log_softmax(-1)
        loss = torch.nn.functional.ctc_loss(scores, torch.ones(4, 9, dtype=torch.long), lengths, lengths)
        assert loss.shape == ()
        assert {entry.what for entry in mode.stand_ins.entries} >= {"_pack_padded_sequence", "ctc_loss"}


def test_an_operator_with_a_size_of_its_own_gets_one():
    torch.library.define("torchfake_tests::keep", "(Tensor x) -> Tensor")

    @torch.library.register_fake("torchfake_tests::keep")
    def _(x):
        return x.new_empty(torch.library.get_ctx().new_dynamic_size(), dtype=torch.long)

    with fake_mode(unknown="stand-in") as mode:
        assert torch.ops.torchfake_tests.keep(torch.randn(9, device="cuda")).shape == (1,)
        assert mode.stand_ins.entries[0].is_about_sizes


def test_what_one_operand_decides_is_known():
    with fake_mode():
        unknown = torch.randn(100).sum() > 0
        many = torch.randint(0, 9, (100,), device="cuda")[:8]
        assert unknown | torch.tensor(True)
        assert not (torch.tensor(False) & unknown)
        assert not torch.logical_and(unknown, torch.tensor(False))
        assert (many & torch.zeros(8, dtype=torch.long, device="cuda")).tolist() == [0] * 8
        assert (many * torch.zeros(8, dtype=torch.long, device="cuda")).tolist() == [0] * 8
        done = torch.zeros(4, dtype=torch.bool) | (torch.randn(100)[:4] > 0)
        done |= torch.ones(4, dtype=torch.bool)
        assert done.all()
        with pytest.raises(DataDependentOutputException):
            bool(unknown & torch.tensor(True))
        with pytest.raises(DataDependentOutputException):
            bool((torch.randn(100).sum() * torch.zeros(())).item() == 0)  # of a number that may be infinite


@pytest.mark.parametrize("ask", [torch.isnan, torch.isinf, torch.isfinite])
@pytest.mark.parametrize("make", [lambda x: x.t(), lambda x: x[:, ::2], lambda x: x.permute(1, 0)[::2]])
def test_a_known_answer_lies_as_that_of_the_operator(ask, make):
    real = ask(make(torch.ones(6, 8, dtype=torch.int64)))
    with fake_mode(known_values_limit=0):
        fake = ask(make(torch.ones(6, 8, dtype=torch.int64)))
    assert (fake.shape, fake.stride(), fake.dtype) == (real.shape, real.stride(), real.dtype)


def test_a_sparse_gradient_of_unknown_indices_is_coalesced():
    with fake_mode(unknown="stand-in", drawn_values_limit=0):
        table = torch.nn.Embedding(50, 4, sparse=True)
        optimizer = torch.optim.SparseAdam(table.parameters())
        table(torch.randint(0, 50, (8,))).sum().backward()
        assert table.weight.grad.coalesce().indices().shape == (1, 8)
        optimizer.step()


def test_a_fake_is_of_its_legacy_type():
    with fake_mode():
        x = torch.ones(3, dtype=torch.uint8)
        assert isinstance(x, torch.ByteTensor)
        assert not isinstance(x, torch.FloatTensor)
        assert not isinstance(x.cuda(), torch.ByteTensor)
        assert isinstance(x.cuda(), torch.cuda.ByteTensor)
    torchfake.uninstall()
    assert isinstance(torch.ones(3), torch.FloatTensor)
    assert not isinstance(3, torch.FloatTensor)


# ---- What a program does with a number -------------------------------------------------------------------------------


def _run_unchanged(source, **names):
    """Runs statements as Python compiles them: pytest rewrites those of a test."""
    exec(compile(source, "program.py", "exec"), names)


def _is_valid(x):
    if not (x >= 0).all():
        raise ValueError(f"not valid: {x.shape}")
    if (x > 5).any() or not (x < 3).all():
        message = "out of range"
        raise ValueError(message)
    if (x == 1).all() or not ((x != 2).all() and (x != 3).all()):
        raise ValueError("neither 1 nor 2")
    if not torch.all(x == x).item():
        raise ValueError
    return x


def test_a_condition_that_only_guards_a_raise_holds():
    with fake_mode(unknown="stand-in") as mode:
        _is_valid(_unknown(100))
        _run_unchanged("assert (x >= 0).all() and bool((x < 1).all()), 'in [0, 1)'", x=_unknown(100))
        answers = {entry.answer for entry in mode.stand_ins.entries}
        assert answers == {"True, the check passes", "False"}


def test_a_condition_that_is_read_again_is_the_same():
    with fake_mode(unknown="stand-in"):
        holds = (_unknown(100) > 0).all()
        if holds:
            raise AssertionError("a branch is False")
        with pytest.raises(ValueError):
            if not holds:
                raise ValueError
        holds.logical_not_()
        if not holds:
            raise AssertionError("written to since")


def test_a_condition_that_does_more_is_false():
    with fake_mode(unknown="stand-in"):
        x = _unknown(100)
        passed = []
        if (x > 0).all():
            passed.append("then")
        if (x > 0).all():
            raise AssertionError("a condition that raises if it holds")
        if not (x > 0).all() and not passed:
            passed.append("else")
        while (x > 0).any():
            raise AssertionError("a loop")
        try:
            value = "true" if (x > 0).all() else "false"
        finally:
            passed.append("end")
        assert (passed, value) == (["else", "end"], "false")


def test_consecutive_slices_select_everything_once():
    with fake_mode(unknown="stand-in"):
        tokens = torch.ones(32, 8, device="cuda")
        counts = torch.zeros(4, dtype=torch.int64, device="cuda").scatter_(0, _unknown(100)[:32].argsort() % 4, 1)
        parts, begin = [], 0
        for count in counts:
            if count == 0:
                continue
            end = begin + count
            parts.append(tokens[begin:end])
            begin = end
        assert len(parts) == 4
        assert torch.cat(parts).shape == (32, 8)


def test_a_maximum_is_as_large_as_its_bounds_allow():
    with fake_mode(unknown="stand-in"):
        graphs = torch.tensor([0] * 5 + [1] * 3 + [2] * 4, device="cuda")[_unknown(100)[:12].argsort()]
        assert int(graphs.max()) + 1 == 3
        assert graphs.amax(0).item() == 2
        assert graphs.max(dim=0)[0].item() == 1  # not of a call
        assert int(_unknown(100).long().max()) == 1  # of no known bounds
        lengths = (_unknown(4, 100)[:, :9] > 0).long().sum(1)  # at most 9
        assert torch.arange(lengths.max().item(), device="cuda").shape == (9,)


def test_the_end_of_a_slice_selects_what_it_can():
    with fake_mode(unknown="stand-in") as mode:
        x = torch.ones(4, 9, device="cuda")
        count = (_unknown(4, 100) > 0).sum(1).max()  # at most 100
        position = _unknown(100)[:5].argmax()  # at most 4
        unbounded = _unknown(100).sum().long()
        assert x[:, :count].shape == (4, 9)
        assert x[:, :position].shape == (4, 4)
        assert x[:unbounded].shape == (4, 9)
        assert x[:, : 2 + position, None].shape == (4, 6, 1)
        assert x[:, position:].shape == (4, 8)
        assert x[0, :position].shape == (4,)
        assert list(range(9))[:position] == [0, 1, 2, 3]
        assert list(range(9))[position] == 1
        assert len(mode.stand_ins.entries) == 8


def test_a_split_by_stand_ins_covers_its_dimension():
    with fake_mode(unknown="stand-in") as mode:
        x = torch.ones(64, 3, device="cuda")
        counts = (_unknown(64, 5) > 0).sum(0).tolist()
        assert counts == [1] * 5
        assert [len(part) for part in x.split(counts)] == [13, 13, 13, 13, 12]
        assert [len(part) for part in torch.split(x, counts, dim=-2)] == [13, 13, 13, 13, 12]
        assert "split" in {entry.what for entry in mode.stand_ins.entries}
        assert any(entry.is_about_sizes for entry in mode.stand_ins.entries)
        with pytest.raises(RuntimeError, match="split_with_sizes expects"):
            x.split([1, 1, 1])


def test_classes_are_as_many_as_their_bounds_allow():
    with fake_mode(unknown="stand-in") as mode:
        labels = torch.randint(0, 10, (5000,))
        loader = DataLoader(TensorDataset(torch.randn(256, 4), labels[:256]), batch_size=128, shuffle=True)
        for batch in (labels, labels.cuda(), next(iter(loader))[1].cuda()):
            assert torch.unique(batch).shape == (10,)
            assert torch.nn.functional.one_hot(batch).shape == (*batch.shape, 10)
            assert torch.bincount(batch).shape == (10,)
            assert int(batch.max()) + 1 == 10
        guesses = torch.randn(300, 7, device="cuda").argmax(1)
        assert torch.bincount(torch.randint(0, 7, (300,), device="cuda") * 7 + guesses).shape == (49,)
        assert torch.unique(guesses, return_counts=True)[1].shape == (7,)
        assert torch.nn.functional.one_hot(_unknown(800).long()).shape == (800, 2)
    sizes = [entry for entry in mode.stand_ins.entries if entry.what in ("_unique2", "one_hot", "bincount")]
    assert len(sizes) == 6 and all(entry.is_about_sizes for entry in sizes)


def _longest(mask):
    return int(mask.sum(1).max())


def _square(n):
    return torch.ones(n, n)


def test_a_number_that_becomes_a_size_is_told_from_one_that_is_reported():
    with fake_mode(unknown="stand-in") as mode:
        mask = torch.randn(100, 40, device="cuda") > 0
        count = mask.sum().item()
        torch.zeros(count, 8)
        longest = _longest(mask)
        mask[:, :longest]
        _square(int(mask[0].sum()))
        for length in mask.sum(1).tolist():
            torch.zeros(length)
        for_sizes = len(mode.stand_ins.entries)
        correct = 0
        correct += mask.sum().item()
        assert f"{100 * correct / 40:.1f} {int(mask.sum())}"
        name = ["cat", "dog"][int(torch.randn(90).argmax()) % 2]
        assert name
    marked = [entry.is_about_sizes for entry in mode.stand_ins.entries]
    assert marked == [True] * for_sizes + [False] * (len(marked) - for_sizes) and for_sizes == 4 and len(marked) == 7


def test_comparisons_of_two_tensors_pass_where_they_only_guard_a_raise():
    with fake_mode(unknown="stand-in"):
        x = _unknown(800)
        torch.testing.assert_close(x, x * 2)
        assert torch.isclose(x, x * 2).all()
        if not torch.equal(x, x + 1):
            raise AssertionError  # an `assert` of pytest's stores the answer first
        if torch.equal(x, x + 1):
            pytest.fail("nothing speaks for it")
        assert not torch.isclose(torch.ones(3), torch.zeros(3)).any()
