"""Data-dependent sizes and values with a `ShapeEnv`: they are symbols without hints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.symbolic_shapes import (
    PendingUnbackedSymbolNotFound,
    compute_unbacked_bindings,
    guard_or_false,
    guard_or_true,
    guard_size_oblivious,
    statically_known_true,
)

from torchfake import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    ShapeEnv,
    UnbackedSymbolError,
    fake_mode,
)


def geometry(x: torch.Tensor) -> tuple[Any, ...]:
    return tuple(x.shape), tuple(x.stride()), x.storage_offset(), x.dtype


def at(env: ShapeEnv, x: torch.Tensor, values: dict[str, int]) -> tuple[Any, ...]:
    def number(size: Any) -> Any:
        return size if isinstance(size, int) else env.evaluate(size, values)

    return tuple(map(number, x.shape)), tuple(map(number, x.stride())), number(x.storage_offset()), x.dtype


X = torch.tensor([[1.0, -2.0, 3.0, 0.0], [0.0, 5.0, -1.0, 2.0], [4.0, 4.0, 0.0, -3.0]])
IDS = torch.tensor([[3, 1, 1], [2, 3, 3]])
LIST = torch.tensor([2, 0, 3, 1])

#: The functions to compare, of the tensors above. Their data-dependent sizes are determined from the real result.
CALLS: dict[str, Callable[..., Any]] = {
    "nonzero": lambda x, ids, n: x.nonzero(),
    "argwhere": lambda x, ids, n: torch.argwhere(x > 0),
    "where": lambda x, ids, n: torch.where(x > 0),
    "masked_select": lambda x, ids, n: x.masked_select(x > 0),
    "mask": lambda x, ids, n: x[x > 0],
    "mask of rows": lambda x, ids, n: x[x[:, 0] > 0],
    "mask of columns": lambda x, ids, n: x[:, x[0] > 0],
    "unique": lambda x, ids, n: torch.unique(ids, return_inverse=True, return_counts=True),
    "unique without more": lambda x, ids, n: torch.unique(ids),
    "unique along": lambda x, ids, n: torch.unique(ids, dim=1, return_inverse=True, return_counts=True),
    "unique along the first": lambda x, ids, n: torch.unique(ids, dim=0, return_inverse=True),
    "unique_consecutive": lambda x, ids, n: torch.unique_consecutive(ids, return_inverse=True, return_counts=True),
    "unique_consecutive along": lambda x, ids, n: torch.unique_consecutive(ids, dim=0, return_counts=True),
    "repeat_interleave": lambda x, ids, n: torch.repeat_interleave(n),
    "repeat_interleave of rows": lambda x, ids, n: x.t().repeat_interleave(n, dim=0),
    "repeat_interleave of a known size": lambda x, ids, n: torch.repeat_interleave(n, output_size=6),
    "bincount": lambda x, ids, n: torch.bincount(n),
    "bincount with weights": lambda x, ids, n: torch.bincount(n, x[0]),
    "bincount at least": lambda x, ids, n: torch.bincount(n, minlength=9),
    "zeros of a value": lambda x, ids, n: torch.zeros(n[0].item(), 2),
    "view": lambda x, ids, n: x[x > 0].view(-1, 1),
    "cat": lambda x, ids, n: torch.cat([x[x > 0], x[0]]),
    "slice": lambda x, ids, n: x[x > 0][1:],
    "slice by a value": lambda x, ids, n: x[:, : n[0].item()],
    "sum over": lambda x, ids, n: x[x[:, 0] > 0].sum(1),
    "linear": lambda x, ids, n: F.linear(x[x[:, 0] > 0], x),
    "product": lambda x, ids, n: x[x[:, 0] > 0].t() @ x[x[:, 0] > 0],
    "twice the same mask": lambda x, ids, n: x[x[:, 0] > 0] + x[x[:, 0] > 0],
    "softmax": lambda x, ids, n: x[x[:, 0] > 0].softmax(-1),
    "embedding": lambda x, ids, n: F.embedding(torch.unique(ids), x.t()),
}


def as_list(result: Any) -> list[torch.Tensor]:
    return list(result) if isinstance(result, tuple | list) else [result]


def unbacked_values(fakes: list[torch.Tensor], reals: list[torch.Tensor]) -> dict[str, int]:
    """The symbols that are sizes by themselves, with the sizes of the real results."""
    return {
        str(size): real_size
        for fake, real in zip(fakes, reals, strict=True)
        for size, real_size in zip(fake.shape, real.shape, strict=True)
        if not isinstance(size, int) and size.node.expr.is_symbol
    }


@pytest.mark.parametrize("dynamic", [False, True], ids=["numbers", "symbols"])
@pytest.mark.parametrize("name", CALLS)
def test_results_have_the_sizes_that_real_tensors_give(name: str, dynamic: bool) -> None:
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    fakes = [
        mode.from_tensor(X, dynamic={0: "rows"} if dynamic else ()),
        mode.from_tensor(IDS, dynamic={1: "columns"} if dynamic else ()),
        mode.from_tensor(LIST),
    ]
    with mode:
        results = as_list(CALLS[name](*fakes))
    reals = as_list(CALLS[name](X, IDS, LIST))
    values = {"rows": 3, "columns": 3} if dynamic else {}
    values |= unbacked_values(results, reals)
    for made in ("u0", "u1"):  # combined in an expression
        if made in env.symbols and made not in values:
            values[made] = 6 if "> 0]" in name or name in ("cat", "slice", "view") else 2
    if name == "cat":
        values["u0"] = int((X > 0).sum())
    if name == "slice":
        values["u0"] = int((X > 0).sum())
    assert [at(env, fake, values) for fake in results] == [geometry(real) for real in reals]
    assert env.guards_hold(values)


def test_what_was_found_is_remembered_until_a_write() -> None:
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    x = mode.from_tensor(torch.ones(4, 3))
    first = x.nonzero().shape[0]
    assert str(x.nonzero().shape[0]) == str(first) == str(x.nonzero_memo) == "u0"  # type: ignore[attr-defined]
    x.add_(1)
    assert x.nonzero_memo is None and str(x.nonzero().shape[0]) == "u1"  # type: ignore[attr-defined]
    mode.epoch += 1
    assert x.nonzero_memo is None and str(x.nonzero().shape[0]) == "u2"  # type: ignore[attr-defined]
    number = mode.from_tensor(torch.tensor(3))
    assert str(number.item()) == str(number.item()) == "u3"
    assert str(torch.unique(x).shape[0]) == str(x.unique_memo) == "u4"  # type: ignore[attr-defined]


def test_values_are_symbols_of_their_type() -> None:
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    value = mode.from_tensor(torch.tensor(3.5)).item()
    assert isinstance(value, torch.SymFloat) and str(value * 2) == "zuf0*2.0"
    truth = mode.from_tensor(torch.tensor(True)).item()
    assert isinstance(truth, torch.SymBool) and str(truth) == "u0 == 1"
    listed = mode.from_tensor(torch.tensor([[1, 2], [3, 4]])).tolist()
    assert [[str(each) for each in row] for row in listed] == [["u1", "u2"], ["u3", "u4"]]
    with pytest.raises(UnbackedSymbolError, match="zuf0"):
        bool(value > 2)
    with pytest.raises(UnbackedSymbolError, match="depends on data"):
        int(mode.from_tensor(torch.tensor(7)))


def test_values_of_a_part_of_a_symbolic_tensor_are_symbols() -> None:
    env = ShapeEnv()
    x = FakeTensorMode(shape_env=env).from_tensor(torch.arange(6), dynamic={0: "n"})
    assert [str(each) for each in x[:2].tolist()] == ["u0", "u1"]


def test_one_hot_of_unknown_classes_has_a_symbol_for_their_number() -> None:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    classes = mode.from_tensor(torch.tensor([0, 2, 1]))
    assert str(torch.nn.functional.one_hot(classes).shape) == "torch.Size([3, u0])"


def test_known_values_stay_numbers() -> None:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    with mode:
        assert torch.tensor(3).item() == 3
    with fake_mode(shape_env=ShapeEnv()):
        assert torch.tensor([0, 2, 0]).nonzero().shape == (1, 1)
        assert torch.ones(3)[torch.tensor([True, False, True])].shape == (2,)


def test_an_environment_may_forbid_them() -> None:
    env = ShapeEnv()
    env.allow_scalar_outputs = False
    env.allow_dynamic_output_shape_ops = False
    mode = FakeTensorMode(shape_env=env)
    with pytest.raises(DataDependentOutputException, match="_local_scalar_dense"):
        mode.from_tensor(torch.tensor(3)).item()
    with pytest.raises(DynamicOutputShapeException, match="nonzero"):
        mode.from_tensor(torch.ones(3)).nonzero()
    with pytest.raises(DynamicOutputShapeException, match="index"):
        mode.from_tensor(torch.ones(3))[mode.from_tensor(torch.ones(3)) > 0]


def test_checks_refine_what_is_known() -> None:
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    x = mode.from_tensor(torch.ones(10, 3))
    n = mode.from_tensor(torch.tensor(4)).item()
    with pytest.raises(UnbackedSymbolError, match="u0"):
        bool(n > 2)
    assert guard_or_true(n > 2) and not guard_or_false(n > 2) and not statically_known_true(n > 2)
    torch._check(n >= 3)
    torch._check(n <= 10)
    assert bool(n > 2) and statically_known_true(n > 2)
    assert [str(size) for size in x[:n].shape] == ["u0", "3"]
    found = x[x[:, 0] > 0]
    assert not guard_size_oblivious(found.shape[0] == 1)
    assert [repr(each) for each in env.runtime_assertions][:2] == ["u0 >= 3", "u0 <= 10"]
    torch._check(found.shape[0] == n)
    assert str((found + x[:n]).shape[0]) in ("u0", "u1")


def test_sizes_that_have_to_agree_are_asserted_for_run_time() -> None:
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    x = mode.from_tensor(torch.ones(4, 3))
    total = x[x > 0] + x[x > 1]
    assert str(total.shape[0]) == "u0"
    assert "u0 == u1  # at run time, aten::add" in env.format_guards()
    assert env.guards_hold({"u0": 4, "u1": 4}) and not env.guards_hold({"u0": 4, "u1": 5})


def test_a_wrong_call_says_what_is_wrong_with_it() -> None:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    x = mode.from_tensor(torch.ones(4, 3))
    with pytest.raises(RuntimeError, match=r"cannot be multiplied|size mismatch"):
        x[x[:, 0] > 0] @ x
    with pytest.raises(IndexError, match="mask"):
        x[mode.from_tensor(torch.ones(5)) > 0]
    with pytest.raises(IndexError, match="too many indices"):
        x[mode.from_tensor(torch.ones(4, 3, 2)) > 0]


def test_pending_symbols_are_bound_or_ignored() -> None:
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    x = mode.from_tensor(torch.ones(4, 3))
    found = x.nonzero()
    assert [str(each) for each in env.pending_fresh_unbacked_symbols] == ["u0"]
    bindings = compute_unbacked_bindings(env, found)
    assert {str(symbol): str(path[0]) for symbol, path in bindings.items()} == {"u0": ".size()"}
    assert env.pending_fresh_unbacked_symbols == [] and compute_unbacked_bindings(env, found) is None
    with env.ignore_fresh_unbacked_symbols():
        mode.from_tensor(torch.tensor(3)).item()
    assert env.pending_fresh_unbacked_symbols == []
    mode.from_tensor(torch.tensor(5)).item()
    with pytest.raises(PendingUnbackedSymbolNotFound, match="u2"):
        compute_unbacked_bindings(env, x)
    truth = mode.from_tensor(torch.tensor(True)).item()
    assert [str(symbol) for symbol in compute_unbacked_bindings(env, (truth,))] == ["u3"]


def test_a_custom_operator_makes_sizes_of_its_own() -> None:
    @torch.library.custom_op("test_data_dependent::positive", mutates_args=())
    def positive(x: torch.Tensor, scale: int) -> torch.Tensor:
        return x[x > 0] * scale

    @positive.register_fake
    def _(x: torch.Tensor, scale: int) -> torch.Tensor:
        return x.new_empty(torch.library.get_ctx().new_dynamic_size(max=12))

    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    x = mode.from_tensor(torch.ones(4, 3), dynamic={0: "rows"})
    result = positive(x, 2)
    assert str(result.shape[0]) == "u0" and env.bounds(result.shape[0]) == (0, 12)
    assert env.guards_hold({"rows": 7}), "the fake implementation sees the symbols"
    with pytest.raises(DynamicOutputShapeException, match="positive"):
        positive(FakeTensorMode().from_tensor(torch.ones(3)), 2)


def test_modes_with_and_without_an_environment_do_not_share_results() -> None:
    x = torch.ones(4, 3)
    without = FakeTensorMode()
    with pytest.raises(DynamicOutputShapeException):
        without.from_tensor(x)[without.from_tensor(x) > 0]
    mode = FakeTensorMode(shape_env=ShapeEnv())
    assert str(mode.from_tensor(x)[mode.from_tensor(x) > 0].shape[0]) == "u0"
    with pytest.raises(DynamicOutputShapeException):
        without.from_tensor(x)[without.from_tensor(x) > 0]


REARRANGED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "padding by nothing": lambda rows: F.pad(rows, (0, 0)),
    "padding that cuts": lambda rows: F.pad(rows, (0, -1)),
    "padding": lambda rows: F.pad(rows, (1, 2)),
    "slice_scatter": lambda rows: rows.slice_scatter(rows[:, 1:], 1, 1),
    "select_scatter": lambda rows: rows.select_scatter(rows[:, 0], 1, 1),
    "one_hot": lambda rows: F.one_hot(rows[:, 0].long(), 8),
    "a piece": lambda rows: rows.split([1, rows.shape[0] - 1])[1],
    "dropout": lambda rows: F.dropout(rows),
    "a norm": lambda rows: F.normalize(rows, dim=0),
    "a loss": lambda rows: F.cross_entropy(rows, torch.zeros_like(rows[:, 0]).long(), reduction="none"),
    "a convolution": lambda rows: F.conv1d(rows.T[None], torch.ones(3, 2, 1)),
    "a layer": lambda rows: torch.nn.TransformerEncoderLayer(2, 1, 4)(rows),
    "repeat": lambda rows: rows.repeat(2, 1),
    "mv": lambda rows: rows.mv(torch.ones(2)),
    "arange": lambda rows: torch.arange(rows.shape[0]),
    "diagonal": lambda rows: rows.diagonal(-1),
    "unfold": lambda rows: rows.unfold(1, 2, 1),
    "split": lambda rows: rows.split(1, 1)[1],
    "searchsorted": lambda rows: torch.searchsorted(torch.arange(5.0), rows),
    "exponential_": lambda rows: rows.clone().exponential_(),
    "foreach": lambda rows: torch._foreach_add([rows, rows], 1)[1],
}


@pytest.mark.parametrize("name", REARRANGED)
def test_a_size_that_only_data_knows_is_kept_by(name: str) -> None:
    env = ShapeEnv()
    with FakeTensorMode(shape_env=env):
        result = REARRANGED[name](torch.randn(8, 8).nonzero().float())
    real = REARRANGED[name](torch.eye(5, 8).nonzero().float())
    assert at(env, result, {"u0": 5}) == geometry(real)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_checks_for_invalid_values_take_symbolic_sizes_without_a_guard(dtype: torch.dtype) -> None:
    env = ShapeEnv()
    with fake_mode(shape_env=env):
        x = torch.randn(env.create_symint(4, "a"), env.create_symint(6, "b")).to(dtype)
        assert str(tuple(torch.isfinite(x).shape)) == "(a, b)"
        assert not [guard for guard in env.guards if "==" in str(guard)]
        rows = torch.randn(500).nonzero().to(dtype)
        assert str(torch.isfinite(rows).shape[0]) == "u0"


def test_examples_satisfy_what_is_asserted_about_symbols_together() -> None:
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    x = mode.from_tensor(torch.ones(3, 5), dynamic={1: "width"}).requires_grad_()
    start = mode.from_tensor(torch.tensor(2))
    with mode:
        part = x.narrow(1, start, 2)
        (gradient,) = torch.autograd.grad(part.sum(), x)
    assert part.shape == (3, 2) and str(gradient.shape) == "torch.Size([3, width])"
    assert "u0 + width >= 0 and u0 <= width" in [str(each) for each in env.runtime_assertions]


def test_symbols_go_before_stand_ins() -> None:
    env = ShapeEnv()
    with fake_mode(shape_env=env, unknown="stand-in"):
        assert str(torch.randn(500).nonzero().shape[0]) == "u0"
