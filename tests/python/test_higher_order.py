"""Higher-order operators give the same metadata on fakes as on real tensors."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from metadata import assert_same_metadata
from torch import Tensor
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.invoke_subgraph import invoke_subgraph
from torch._higher_order_ops.map import map as map_over
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils._pytree import tree_leaves, tree_map_only
from undrawn import fake_mode

from torchfake import DataDependentOutputException, DynamicOutputShapeException, is_fake, to_fake
from torchfake.fx import FakeTensorProp

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


#: How often a result was written to depends on the branch; real results of `map` are views of a tensor of its own.
INNER = ("version", "is_view")


def rand(*sizes: int, **options: Any) -> Tensor:
    return torch.randn(*sizes, **options)


def tokens(device: str = "cpu", **options: Any) -> Tensor:
    return rand(2, 4, 16, 8, device=device, **options)


def decide(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda x: x.t() @ x, lambda x: (x @ x).sin(), (x,))


def decide_several(x: Tensor) -> Any:
    return torch.cond(x.mean() > 0, lambda x: (x * 2, [x.sum(0)]), lambda x: (x.sin(), [x.mean(0)]), (x,))


def loop_of_three(x: Tensor) -> Any:
    start = x.new_zeros((), dtype=torch.int64)
    return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x.sin() @ x), (start, x))


def loop_until(x: Tensor) -> Any:
    return while_loop(lambda x: x.abs().sum() > 100, lambda x: (x * 0.5,), (x,))


def scan_sums(x: Tensor) -> Any:
    return scan(lambda carry, row: (carry + row, carry * 2), x[0].clone(), x)


def scan_backwards(x: Tensor) -> Any:
    return scan(lambda carry, row: (carry + row, (carry @ row.t())), x[0].clone(), x, reverse=True)


def associate(x: Tensor) -> Any:
    return associative_scan(lambda a, b: a + b, x, dim=0, combine_mode="generic")


def mapped(x: Tensor) -> Any:
    return map_over(lambda row, y: row.t() @ y, x, x[0].clone())


def subgraph(x: Tensor) -> Any:
    graph = torch.fx.symbolic_trace(lambda x, y: (x @ y, x.t() + 1))
    return invoke_subgraph(graph, "subgraph", x, x)


def flex(q: Tensor) -> Tensor:
    return flex_attention(q, q, q)


def flex_scored(q: Tensor) -> Any:
    return flex_attention(
        q, q, q, score_mod=lambda score, b, h, i, j: score + (i - j), return_lse=True, scale=0.5, enable_gqa=True
    )


def flex_masked(q: Tensor) -> Tensor:
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 16, 16, device=str(q.device), BLOCK_SIZE=8)
    return flex_attention(q, q, q, block_mask=mask)


Program = Callable[[Tensor], Any]
SQUARE: dict[str, Program] = {
    "cond": decide,
    "cond_several": decide_several,
    "while_loop_known": loop_of_three,
    "while_loop_unknown": loop_until,
    "invoke_subgraph": subgraph,
}
CUBE: dict[str, Program] = {
    "scan": scan_sums,
    "scan_backwards": scan_backwards,
    "associative_scan": associate,
    "map": mapped,
}
FLEX: dict[str, Program] = {"flex": flex, "flex_scored": flex_scored, "flex_masked": flex_masked}
PROGRAMS: dict[str, tuple[Program, Callable[..., Tensor]]] = {
    **{name: (program, lambda **options: rand(3, 3, **options)) for name, program in SQUARE.items()},
    **{name: (program, lambda **options: rand(4, 3, 3, **options)) for name, program in CUBE.items()},
    **{name: (program, tokens) for name, program in FLEX.items()},
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_look_like_those_of_real_tensors(name: str) -> None:
    program, make = PROGRAMS[name]
    real = program(make())
    with fake_mode():
        fake = program(make())
    assert_same_metadata(fake, real, ignored=INNER)


@pytest.mark.parametrize("name", PROGRAMS)
def test_fakes_outside_the_mode_give_fakes(name: str) -> None:
    program, make = PROGRAMS[name]
    x = make()
    assert_same_metadata(program(to_fake(x)), program(x), ignored=INNER)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_claimed_device_is_kept(name: str) -> None:
    program, make = PROGRAMS[name]
    with fake_mode():
        result = program(make(device="cuda:1"))
    for tensor in tree_leaves(result):
        assert is_fake(tensor) and tensor.device == torch.device("cuda:1")


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_traced_graph_gives_the_same(name: str) -> None:
    program, make = PROGRAMS[name]
    x = make()
    real = program(x)
    with fake_mode():
        graph = make_fx(program)(to_fake(x))
    torch._dynamo.reset()
    assert graph.code == make_fx(program)(x).code
    assert_same_metadata(FakeTensorProp(graph).propagate(x), real, ignored=INNER)


#: Operators whose backward PyTorch supports on a CPU.
DIFFERENTIABLE = [
    name for name in PROGRAMS if name not in FLEX and name not in ("while_loop_unknown", "invoke_subgraph")
]


@pytest.mark.parametrize("inside", [True, False], ids=["in_the_mode", "outside"])
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_look_like_those_of_real_tensors(name: str, inside: bool) -> None:
    program, make = PROGRAMS[name]

    def train(x: Tensor) -> Any:
        result = program(x)
        sum(t.sum() for t in tree_leaves(result) if t.requires_grad).backward()
        return tree_map_only(Tensor, Tensor.detach, result), x.grad

    x = make()
    real = train(x.clone().requires_grad_())
    torch._dynamo.reset()
    if inside:
        with fake_mode():
            fake = train(to_fake(x).requires_grad_())
    else:
        fake = train(to_fake(x).requires_grad_())
    assert_same_metadata(fake, real, ignored=INNER)


# ---- Known and unknown predicates ----


def test_a_known_predicate_takes_its_branch_alone() -> None:
    with fake_mode():
        x = torch.ones(3)
        chosen = torch.ops.higher_order.cond(x.sum() > 2, lambda x: x + 1, lambda x: x.repeat(2), (x,))
        assert chosen.tolist() == [2, 2, 2]


def test_a_result_of_either_branch_has_no_known_value() -> None:
    with fake_mode():
        unknown = torch.randn(()) > 0
        one = torch.cond(unknown, lambda: torch.tensor(1), lambda: torch.tensor(2))
        assert one.shape == () and one.dtype == torch.int64
        with pytest.raises(DataDependentOutputException):
            one.item()


@pytest.mark.parametrize(
    ("true_fn", "message"),
    [
        (lambda x: x[:2].clone(), r"sizes \[2\].*sizes \[3\]"),
        (lambda x: x.long(), "torch.int64.*torch.float32"),
        (lambda x: (x * 2, x + 1), "different structures"),
    ],
)
def test_branches_that_differ_are_refused_where_the_predicate_is_not_known(true_fn: Program, message: str) -> None:
    with fake_mode(), pytest.raises(DynamicOutputShapeException, match=f"cond: .*{message}") as caught:
        x = torch.randn(3)
        torch.ops.higher_order.cond(x.sum() > 0, true_fn, lambda x: x * 2, (x,))
    assert caught.value.op == "cond"


def test_numbers_that_differ_are_refused_where_the_predicate_is_not_known() -> None:
    with fake_mode(), pytest.raises(DataDependentOutputException, match="the result is 1 or 2"):
        x = torch.randn(3)
        torch.ops.higher_order.cond(x.sum() > 0, lambda x: 1, lambda x: 2, (x,))


def test_a_loop_of_unknown_length_keeps_what_it_carries() -> None:
    with fake_mode():
        carried = torch.zeros((), dtype=torch.int64), torch.randn(3, 3)
        count, x = while_loop(lambda i, x: x.sum() > i, lambda i, x: (i + 1, x @ x), carried)
        assert count.dtype == torch.int64 and x.shape == (3, 3)
        with pytest.raises(DataDependentOutputException):
            count.item()


def test_a_loop_that_grows_what_it_carries_is_refused() -> None:
    with fake_mode(), pytest.raises(DynamicOutputShapeException, match="while_loop"):
        x = torch.randn(3)
        torch.ops.higher_order.while_loop(lambda x: x.sum() > 0, lambda x: (torch.cat([x, x]),), (x,), ())


def test_stacked_results_of_a_loop_need_its_length() -> None:
    stacked = torch.ops.higher_order.while_loop_stack_output
    with fake_mode():
        counted = stacked(lambda i: i < 4, lambda i: (i + 1,), (torch.tensor(0),), ())
        assert counted[0].tolist() == [1, 2, 3, 4]
        with pytest.raises(DynamicOutputShapeException, match="the number of iterations"):
            stacked(lambda x: x.sum() > 0, lambda x: (x * 2,), (torch.randn(3),), ())


# ---- What surrounds them ----


def test_gradients_reach_tensors_that_a_branch_closes_over() -> None:
    with fake_mode():
        weight = torch.randn(3, 3, device="cuda", requires_grad=True)
        x = torch.randn(3, 3, device="cuda")
        torch.cond(x.sum() > 0, lambda x: x @ weight, lambda x: x * weight, (x,)).sum().backward()
        assert is_fake(weight.grad) and weight.grad.device == torch.device("cuda:0")


@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
@pytest.mark.parametrize("name", FLEX)
def test_attention_on_a_claimed_gpu_has_the_strides_and_the_backward_of_an_h200(name: str, layout: str) -> None:
    with fake_mode():
        q = tokens("cuda") if layout == "contiguous" else rand(2, 16, 4, 8, device="cuda").transpose(1, 2)
        q = q.detach().requires_grad_()
        out, *lse = tree_leaves(FLEX[name](q))
        sum(t.sum() for t in (out, *lse)).backward()
    # As recorded: out and gradient have the strides of the query, the rest is contiguous.
    assert all((t.shape, t.stride(), t.device) == (q.shape, q.stride(), q.device) for t in (out, q.grad))
    assert all(t.is_contiguous() and t.shape == (2, 4, 16) for t in lse)


def test_attention_on_the_cpu_has_no_backward_as_for_real_tensors() -> None:
    for mode in (nullcontext(), fake_mode()):
        with mode, pytest.raises(NotImplementedError, match="does not support backward on CPU"):
            flex(tokens(requires_grad=True))


def test_an_operator_defined_later_takes_fakes_too() -> None:
    class Twice(torch._ops.HigherOrderOperator):
        def __init__(self) -> None:
            super().__init__("torchfake_test_twice")

        def __call__(self, fn: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
            return super().__call__(fn, x)

    twice = Twice()
    twice.py_impl(torch._C.DispatchKey.CompositeExplicitAutograd)(lambda fn, x: fn(fn(x)) + torch.ones(1))
    twice.py_impl(torch._C.DispatchKey.Autograd)(lambda fn, x: _below_autograd(twice, fn, x))
    assert_same_metadata(twice(torch.t, to_fake(torch.randn(2, 3))), twice(torch.t, torch.randn(2, 3)))


def _below_autograd(op: Any, *args: Any) -> Any:
    with torch._C._AutoDispatchBelowAutograd():
        return op(*args)


def test_real_tensors_are_served_as_before() -> None:
    assert not is_fake(decide(torch.randn(3, 3)))
