"""Fakes with symbolic sizes: the results are compared with the real operator at other sizes."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from torchfake import DynamicShapesError, FakeTensorMode, ShapeEnv, cache_info, clear_cache, fake_mode

OTHERS = ({"batch": 3, "seq": 5}, {"batch": 8, "seq": 13}, {"batch": 5, "seq": 2})


def real_inputs(values: dict[str, int]) -> list[torch.Tensor]:
    """Tensors whose first two sizes are `batch` and `seq`."""
    batch, seq = values["batch"], values["seq"]
    return [torch.randn(batch, seq, 12), torch.randn(batch, seq, 12), torch.randint(0, 9, (batch, seq))]


def symbolic_inputs(mode: FakeTensorMode, hints: dict[str, int]) -> list[Any]:
    return [mode.from_tensor(x, dynamic={0: "batch", 1: "seq"}) for x in real_inputs(hints)]


def geometry(x: torch.Tensor) -> tuple[Any, ...]:
    return tuple(x.shape), tuple(x.stride()), x.storage_offset(), x.dtype


def at(env: ShapeEnv, x: torch.Tensor, values: dict[str, int]) -> tuple[Any, ...]:
    """The geometry of a symbolic fake where the symbols have these values."""
    return (
        tuple(env.evaluate(size, values) for size in x.shape),
        tuple(env.evaluate(stride, values) for stride in x.stride()),
        env.evaluate(x.storage_offset(), values),
        x.dtype,
    )


WEIGHT = torch.randn(7, 12)
EMBEDDING = torch.randn(9, 6)

GENERAL: dict[str, Callable[..., Any]] = {
    "add": lambda x, y, i: x + y,
    "add a number": lambda x, y, i: x + 2,
    "broadcast": lambda x, y, i: x * y[:, :1] + y[0, 0],
    "compare": lambda x, y, i: x > y,
    "promote": lambda x, y, i: i * 2.5,
    "gelu": lambda x, y, i: F.gelu(x).relu_(),
    "where": lambda x, y, i: torch.where(x > 0, x, y),
    "in place": lambda x, y, i: x.clone().add_(y).mul_(2),
    "view": lambda x, y, i: x.view(x.shape[0], -1),
    "flatten": lambda x, y, i: x.flatten(0, 1),
    "heads": lambda x, y, i: x.view(x.shape[0], x.shape[1], 3, 4).transpose(1, 2),
    "reshape": lambda x, y, i: x.transpose(0, 1).reshape(-1, 12),
    "permute": lambda x, y, i: x.permute(2, 0, 1),
    "transposed sum": lambda x, y, i: x.transpose(0, 1) + y.transpose(0, 1),
    "unsqueeze": lambda x, y, i: x.unsqueeze(1).squeeze(1).unsqueeze(-1),
    "expand": lambda x, y, i: i.unsqueeze(1).expand(-1, 4, -1),
    "slice": lambda x, y, i: x[:, :-1, 2:],
    "slice from one": lambda x, y, i: x[:, 1:],
    "select": lambda x, y, i: x[:, -1] + y[:, 0],
    "linear": lambda x, y, i: F.linear(x, WEIGHT),
    "linear with bias": lambda x, y, i: F.linear(x, WEIGHT, WEIGHT[:, 0]),
    "matmul": lambda x, y, i: x @ y.transpose(1, 2),
    "bmm": lambda x, y, i: torch.bmm(x, y.transpose(1, 2)),
    "softmax": lambda x, y, i: (x @ y.transpose(1, 2)).softmax(-1),
    "log_softmax": lambda x, y, i: x.log_softmax(1),
    "layer_norm": lambda x, y, i: F.layer_norm(x, (12,)),
    "sum": lambda x, y, i: x.sum(),
    "sum over": lambda x, y, i: x.sum((0, 2)),
    "mean": lambda x, y, i: x.mean(1, keepdim=True),
    "max": lambda x, y, i: x.max(1),
    "argmax": lambda x, y, i: x.argmax(-1),
    "var": lambda x, y, i: x.var(0),
    "embedding": lambda x, y, i: F.embedding(i, EMBEDDING),
    "cat": lambda x, y, i: torch.cat([x, y], dim=1),
    "cat over the last": lambda x, y, i: torch.cat([x, y], dim=-1),
    "stack": lambda x, y, i: torch.stack([x, y]),
    "zeros_like": lambda x, y, i: torch.zeros_like(x),
    "new_zeros": lambda x, y, i: x.new_zeros(x.shape[0] * x.shape[1], 3),
    "to": lambda x, y, i: x.to(torch.float16),
    "contiguous": lambda x, y, i: x.transpose(0, 1).contiguous(),
    "cumsum": lambda x, y, i: x.cumsum(1),
    "tril": lambda x, y, i: (x @ y.transpose(1, 2)).tril(),
    "masked_fill": lambda x, y, i: x.masked_fill(i.unsqueeze(-1) > 3, 0.0),
    "attention": lambda x, y, i: F.scaled_dot_product_attention(
        x.view(x.shape[0], x.shape[1], 3, 4).transpose(1, 2),
        y.view(x.shape[0], x.shape[1], 3, 4).transpose(1, 2),
        y.view(x.shape[0], x.shape[1], 3, 4).transpose(1, 2),
    ),
    "dropout": lambda x, y, i: F.dropout(x, 0.5),
    "silu and product": lambda x, y, i: F.silu(x) * y.tanh(),
    "scalar of a size": lambda x, y, i: x * x.shape[1],
}


def run_symbolic(function: Callable[..., Any], hints: dict[str, int]) -> tuple[ShapeEnv, list[torch.Tensor]]:
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env, allow_non_fake_inputs=True)
    results = function(*symbolic_inputs(mode, hints))
    return env, list(results) if isinstance(results, tuple) else [results]


def check_at_other_sizes(function: Callable[..., Any], env: ShapeEnv, fakes: list[torch.Tensor]) -> int:
    """Compares where the guards hold; returns how often they do."""
    held = 0
    for values in OTHERS:
        if not env.guards_hold(values):
            continue
        held += 1
        real = function(*real_inputs(values))
        reals = list(real) if isinstance(real, tuple) else [real]
        assert [at(env, fake, values) for fake in fakes] == [geometry(each) for each in reals]
    return held


@pytest.mark.parametrize("name", GENERAL)
def test_operators_hold_at_other_sizes(name: str) -> None:
    env, fakes = run_symbolic(GENERAL[name], {"batch": 4, "seq": 7})
    assert check_at_other_sizes(GENERAL[name], env, fakes) == len(OTHERS), env.format_guards()


SPECIAL: dict[str, Callable[..., Any]] = {
    "diagonal": lambda x, y, i: x.diagonal(0, 0, 1).contiguous(),
    "conv1d": lambda x, y, i: F.conv1d(x.transpose(1, 2), torch.ones(5, 12, 2)),
    "unfold": lambda x, y, i: x.unfold(1, 2, 1).contiguous(),
    "one_hot": lambda x, y, i: torch.nn.functional.pad(x, (1, 2)),
    "roll": lambda x, y, i: x.roll(1, 0),
}


@pytest.mark.parametrize("name", SPECIAL)
def test_an_operator_without_a_rule_of_its_own_is_right_at_its_sizes(name: str) -> None:
    env, fakes = run_symbolic(SPECIAL[name], {"batch": 4, "seq": 7})
    check_at_other_sizes(SPECIAL[name], env, fakes)
    assert env.guards_hold({"batch": 4, "seq": 7})
    real = SPECIAL[name](*real_inputs({"batch": 4, "seq": 7}))
    assert at(env, fakes[0], {"batch": 4, "seq": 7}) == geometry(real)


def test_guards_name_the_operator_that_asked() -> None:
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    a = mode.from_tensor(torch.ones(4, 3), dynamic={0: "a"})
    b = mode.from_tensor(torch.ones(4, 3), dynamic={0: "b"})
    result = a + b
    assert str(result.shape[0]) == "a" and [repr(guard) for guard in env.guards][-1] == "a == b  # aten::add"
    assert not env.guards_hold({"a": 5, "b": 6}) and env.guards_hold({"a": 5, "b": 5})


def test_sizes_print_as_expressions() -> None:
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    x = mode.from_tensor(torch.ones(4, 7, 12), dynamic={0: "batch", 1: "seq"})
    assert [str(size) for size in x.view(-1).shape] == ["12*batch*seq"]
    assert [str(stride) for stride in x.stride()] == ["12*seq", "12", "1"]
    assert str(x.numel()) == "12*batch*seq" and x.is_contiguous()
    assert x.shape[2] == 12 and x.dim() == 3
    assert env.guards_hold({"batch": 2, "seq": 2})


def test_backward_keeps_symbols() -> None:
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    x = mode.from_tensor(torch.randn(4, 7, 12), dynamic={0: "batch", 1: "seq"}).requires_grad_()
    weight = mode.from_tensor(torch.randn(5, 12)).requires_grad_()
    F.linear(x, weight).relu().pow(2).sum().backward()
    assert x.grad is not None and [str(size) for size in x.grad.shape] == ["batch", "seq", "12"]
    assert weight.grad is not None and tuple(weight.grad.shape) == (5, 12)
    assert env.guards_hold({"batch": 9, "seq": 3})


def test_factories_take_symbolic_sizes() -> None:
    env = ShapeEnv()
    with fake_mode(shape_env=env) as mode:
        n = env.create_symint(5, "n")
        assert mode.shape_env is env
        for make in (torch.zeros, torch.empty, torch.randn):
            assert [str(size) for size in make(n, n + 1).shape] == ["n", "n + 1"]
        assert str(torch.full((n * 2,), 3.0).shape[0]) == "2*n"
    assert env.guards_hold({"n": 77})


def test_values_of_symbolic_fakes_are_not_known() -> None:
    env = ShapeEnv()
    with fake_mode():
        n = env.create_symint(5, "n")
        zeros = torch.zeros(n)
        zeros.fill_(1)
        with pytest.raises(Exception, match=r"item|value|data"):
            zeros[0].item()


def test_bad_input_is_refused_by_name() -> None:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    with pytest.raises(IndexError, match="2 dimensions, and 2 is none"):
        mode.from_tensor(torch.ones(4, 3), dynamic=[2])
    mode.from_tensor(torch.ones(4, 3), dynamic={0: "batch"})
    with pytest.raises(ValueError, match="'batch' is 4 elsewhere and 5 here"):
        mode.from_tensor(torch.ones(5, 3), dynamic={0: "batch"})
    with pytest.raises(DynamicShapesError, match="needs a mode with a shape_env"):
        FakeTensorMode().from_tensor(torch.ones(4), dynamic=[0])
    real = torch.ones(4)
    kept = mode.from_tensor(real)
    assert kept.shape == (4,)
    with pytest.raises(DynamicShapesError, match="converted before"):
        mode.from_tensor(real, dynamic=[0])


def test_in_place_operators_count_versions_and_return_the_tensor() -> None:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    x = mode.from_tensor(torch.ones(4, 3), dynamic=[0])
    before = x._version
    assert x.add_(1) is x and x._version == before + 1


def test_symbolic_fakes_are_resized_in_place() -> None:
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    x = mode.from_tensor(torch.ones(4, 3), dynamic={0: "batch"})
    n = env.create_symint(40, "n")
    assert x.resize_(n, 2) is x and [str(size) for size in x.shape] == ["n", "2"]
    assert str(x.untyped_storage().nbytes()) == "8*n"
    assert env.guards_hold({"batch": 5, "n": 40}) and not env.guards_hold({"batch": 50, "n": 40})
    x.resize_(5)
    assert tuple(x.shape) == (5,) and str(x.untyped_storage().nbytes()) == "8*n"


def test_a_tensor_is_set_to_a_symbolic_storage_and_back() -> None:
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    x = symbolic_inputs(mode, {"batch": 4, "seq": 7})[0]
    with mode:
        y = torch.empty(3)
        version = y._version
        assert str(y.set_(x[:, 0]).shape) == "torch.Size([batch, 12])" and y._version == version + 1
        assert y.untyped_storage()._cdata == x.untyped_storage()._cdata
        assert str(y.set_(x.untyped_storage(), 12, (x.shape[1],), (2,)).shape) == "torch.Size([seq])"
        assert (str(y.stride()), y.storage_offset()) == ("(2,)", 12)
        assert str(y.set_(x.untyped_storage()).shape) == "torch.Size([12*batch*seq])"
        assert y.set_(torch.ones(2, 5)).shape == (2, 5) and x.clone().set_().shape == (0,)
        with pytest.raises(RuntimeError, match="type"):
            torch.ones(3, dtype=torch.int64).set_(x)
    assert env.guards_hold({"batch": 5, "seq": 8})


def test_copies_keep_symbols() -> None:
    env = ShapeEnv()
    x = symbolic_inputs(FakeTensorMode(shape_env=env), {"batch": 4, "seq": 7})[0]
    file = io.BytesIO()
    torch.save({"x": x.transpose(0, 1)}, file)
    file.seek(0)
    copies = [copy.deepcopy(x.transpose(0, 1)), copy.copy(x.transpose(0, 1)), torch.load(file, weights_only=False)["x"]]
    assert [str(each.shape) for each in copies] == ["torch.Size([seq, batch, 12])"] * 3
    assert {str(each.stride()) for each in copies} == {"(12, 12*seq, 1)"}
    assert env.guards_hold({"batch": 5, "seq": 8})


def test_storages_have_the_bytes_of_the_expression() -> None:
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    x = mode.from_tensor(torch.ones(4, 7, 12), dynamic={0: "batch", 1: "seq"})
    assert str(x.untyped_storage().nbytes()) == "48*batch*seq"
    assert str((x + 1).double().untyped_storage().nbytes()) == "96*batch*seq"
    assert str(x[:, 1:].untyped_storage().nbytes()) == "48*batch*seq"
    assert env.guards_hold({"batch": 9, "seq": 3})


def test_equal_layers_hit_whatever_their_symbols_are_called() -> None:
    def layers(env: ShapeEnv, batch: str, seq: str) -> torch.Tensor:
        mode = FakeTensorMode(shape_env=env)
        x = mode.from_tensor(torch.ones(4, 7, 12), dynamic={0: batch, 1: seq})
        weight = mode.from_tensor(torch.ones(12, 12))
        return F.linear(x.transpose(0, 1), weight).softmax(-1).reshape(-1, 12) + 1

    clear_cache()
    layers(ShapeEnv(), "batch", "seq")
    before = cache_info()
    assert [str(size) for size in layers(ShapeEnv(), "n", "length").shape] == ["length*n", "12"]
    assert cache_info().misses == before.misses and cache_info().hits > before.hits


def test_a_hit_records_the_guards_that_a_miss_records() -> None:
    def guards(size: int) -> list[str]:
        env = ShapeEnv()
        mode = FakeTensorMode(shape_env=env)
        a = mode.from_tensor(torch.ones(size, 3), dynamic={0: "a"})
        b = mode.from_tensor(torch.ones(size, 3), dynamic={0: "b"})
        assert str((a + b).shape[0]) == "a"
        return [repr(guard) for guard in env.guards]

    clear_cache()
    first = guards(4)
    hits = cache_info().hits
    assert guards(4) == first and "a == b  # aten::add" in first and cache_info().hits > hits
    assert guards(5) == first


def test_facts_of_one_environment_stay_out_of_another() -> None:
    """The same call, with and without the knowledge that one size is the larger, or a multiple, or equal."""

    def sizes(*facts: str) -> list[str]:
        env = ShapeEnv()
        mode = FakeTensorMode(shape_env=env)
        a = mode.from_tensor(torch.ones(8, 16), dynamic={0: "a", 1: "b"})
        n, m = a.shape
        known = {"larger": lambda: n <= m, "multiple": lambda: n % 4 == 0, "twice": lambda: m == 2 * n}
        for fact in facts:
            assert bool(known[fact]())
        diagonal = a.diagonal().shape[0]
        return [str(diagonal), str(a.view(-1, 4).shape[0]), str(a[1:, ::2].shape[1])]

    expected = {facts: None for facts in ((), ("larger",), ("multiple",), ("twice",), ("larger", "multiple"))}
    alone = {}
    for facts in expected:
        clear_cache()
        alone[facts] = sizes(*facts)
    clear_cache()
    for _ in range(2):
        assert {facts: sizes(*facts) for facts in expected} == alone
    assert alone["twice",] != alone[()]


def test_numbers_are_not_changed_by_an_environment() -> None:
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    x = mode.from_tensor(torch.ones(4, 3))
    assert all(isinstance(size, int) for size in (x + x).shape) and env.guards == []


def test_a_detached_copy_has_the_same_symbols() -> None:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    x = mode.from_tensor(torch.ones(4, 3), dynamic={0: "batch"})
    assert str(x.detach().shape[0]) == "batch" and str(x.data.shape[0]) == "batch"
    assert "batch" in repr(x)


def test_an_empty_result_is_laid_out_by_all_its_sizes() -> None:
    env = ShapeEnv()
    x = FakeTensorMode(shape_env=env).from_tensor(torch.ones(0, 2), dynamic={1: "n"})
    halves = torch.nn.functional.glu(x, 1)
    assert [env.evaluate(number, {"n": 6}) for number in (*halves.shape, *halves.stride())] == [0, 3, 3, 1]
