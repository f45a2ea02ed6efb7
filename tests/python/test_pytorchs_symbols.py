"""Modes with a ShapeEnv of PyTorch's: operators keep its symbols, with hints and without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode as PyTorchsMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    GuardOnDataDependentSymNode,
    ShapeEnv,
    StatelessSymbolicContext,
    statically_known_true,
)

from torchfake import FakeTensorMode, UnbackedSymbolError
from torchfake import ShapeEnv as OurShapeEnv
from torchfake.fx import FakeTensorProp


def gradient_of_convolution(n: Any) -> Tensor:
    weight = torch.empty(5, 3, 3, 3, requires_grad=True)
    return torch.autograd.grad(F.conv2d(torch.empty(n, 3, 8, 8), weight).relu().sum(), weight)[0]


def attention(x: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(x, x, x)


def gradient_of_attention(n: Any) -> Tensor:
    x = torch.empty(n, 2, 8, 16, requires_grad=True)
    return torch.autograd.grad(attention(x).sum(), x)[0]


OPERATORS: dict[str, Callable[[Any], Tensor]] = {
    "convolution": lambda n: F.conv2d(torch.empty(n, 3, 8, 8), torch.empty(5, 3, 3, 3)),
    "convolution of a length": lambda n: F.conv2d(torch.empty(2, 3, n, 8), torch.empty(5, 3, 3, 3)),
    "pooling": lambda n: F.max_pool2d(torch.empty(n, 3, 8, 8), 2),
    "group norm": lambda n: F.group_norm(torch.empty(n, 4, 8, 8), 2),
    "losses": lambda n: F.nll_loss(torch.empty(n, 3), torch.empty(n, dtype=torch.long), reduction="none"),
    "arange": lambda n: torch.arange(n),
    "repeat": lambda n: torch.empty(n, 3).repeat(2, 1),
    "norm": lambda n: torch.empty(n, 6).norm(dim=1),
    "pieces of another dimension": lambda n: torch.empty(n, 6).chunk(2, 1)[1],
    "windows": lambda n: torch.empty(n, 6).unfold(1, 2, 2),
    "a diagonal matrix": lambda n: torch.diag(torch.empty(n)),
    "a decomposition": lambda n: torch.linalg.svd(torch.empty(n, 3, 3))[0],
    "bags of embeddings": lambda n: F.embedding_bag(torch.zeros(n, 4, dtype=torch.long), torch.empty(10, 8)),
    "pixels": lambda n: F.pixel_shuffle(torch.empty(n, 4, 3, 3), 2),
    "lists of tensors": lambda n: torch._foreach_mul([torch.empty(n, 3)], 2.0)[0],
    "safe softmax": lambda n: torch.ops.aten._safe_softmax(torch.empty(n, 3), -1),
    "fused attention": lambda n: attention(torch.empty(n, 2, 8, 16, device="cuda")),
    "a gradient of a weight": gradient_of_convolution,
    "a gradient of a batch": gradient_of_attention,
}


def with_a_size(mode: Any, env: Any, has_hint: bool, operator: Callable[[Any], Tensor]) -> str:
    """The sizes of the result, with `n` for the symbol."""
    if has_hint:
        context: Any = StatelessSymbolicContext([DimDynamic.DYNAMIC])
        size = mode.from_tensor(torch.randn(4), symbolic_context=context).size(0)
    else:
        size = env.create_unbacked_symint()
    with mode:
        result = operator(size)
    return str(tuple(result.shape)).replace(str(size), "n")


@pytest.mark.parametrize("has_hint", [True, False], ids=["hint", "unbacked"])
@pytest.mark.parametrize("name", OPERATORS)
def test_results_have_the_symbols_that_pytorchs_fakes_have(name: str, has_hint: bool) -> None:
    env, expected = ShapeEnv(), ShapeEnv()
    found = with_a_size(FakeTensorMode(shape_env=env), env, has_hint, OPERATORS[name])
    assert found == with_a_size(PyTorchsMode(shape_env=expected), expected, has_hint, OPERATORS[name])
    assert not any(str(guard.expr).startswith("Eq") for guard in env.guards)


def test_results_that_are_numbers_are_symbols_too() -> None:
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    length = env.create_unbacked_symint()
    with mode:
        q = torch.empty(2, 2, length, 16, device="cuda", dtype=torch.float16)
        longest = torch.ops.aten._scaled_dot_product_flash_attention(q, q, q)[4]
    assert str(longest) == str(length)


def test_a_view_shares_the_storage_of_what_has_symbols() -> None:
    env = ShapeEnv()
    with FakeTensorMode(shape_env=env):
        x = torch.empty(env.create_unbacked_symint(), 6)
        windows = x.unfold(1, 2, 2)
        complex_view = torch.view_as_complex(x.view(-1, 3, 2))
    for view in (windows, complex_view):
        assert view._is_view() and view.untyped_storage()._cdata == x.untyped_storage()._cdata
    assert complex_view.dtype == torch.complex64


def test_lists_are_written_without_a_guard() -> None:
    env = ShapeEnv()
    with FakeTensorMode(shape_env=env):
        x = torch.empty(env.create_unbacked_symint(), 3)
        version = x._version
        torch._foreach_add_([x], 1.0)
    assert x._version > version and str(x.shape[0]) == "u0"


def test_a_number_of_views_is_no_example() -> None:
    env = ShapeEnv()
    with FakeTensorMode(shape_env=env), pytest.raises(GuardOnDataDependentSymNode):
        torch.split(torch.empty(env.create_unbacked_symint(), 6), 2)
    ours = OurShapeEnv()
    with FakeTensorMode(shape_env=ours), pytest.raises(UnbackedSymbolError):
        torch.split(torch.empty(ours.create_unbacked_symint(), 6), 2)


def test_a_kernel_that_asks_for_too_much_says_what_it_asked_for() -> None:
    env = ShapeEnv()
    with FakeTensorMode(shape_env=env), pytest.raises(GuardOnDataDependentSymNode, match="Could not guard on"):
        F.batch_norm(torch.empty(env.create_unbacked_symint(), 3, 8, 8), None, None, training=True)


def test_a_call_that_real_tensors_refuse_is_refused() -> None:
    env = ShapeEnv()
    with FakeTensorMode(shape_env=env), pytest.raises(RuntimeError, match="channels"):
        F.conv2d(torch.empty(env.create_unbacked_symint(), 4, 8, 8), torch.empty(5, 3, 3, 3))


@pytest.mark.parametrize("kind", [FakeTensorMode, PyTorchsMode])
def test_a_graph_says_where_its_symbols_are_bound(kind: Any) -> None:
    with kind(shape_env=ShapeEnv()):
        graph = make_fx(lambda x: (x + 1).nonzero() * 2)(torch.randn(5))
    bindings = {str(node): node.meta.get("unbacked_bindings") for node in graph.graph.nodes}
    (path,) = bindings.pop("nonzero").values()
    assert "".join(map(str, path)) == ".size()[0]" and set(bindings.values()) == {None}


def test_symbols_that_a_pass_makes_again_equal_those_before() -> None:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    with mode:
        value = torch.randn(5)
        graph = make_fx(lambda x: (x + 1).nonzero())(value)
    (node,) = graph.graph.find_nodes(op="call_function", target=torch.ops.aten.nonzero.default)
    before = node.meta["val"].shape[0]
    FakeTensorProp(graph, mode).propagate(value)
    assert len(node.meta["unbacked_bindings"]) == 1
    assert statically_known_true(node.meta["val"].shape[0] == before)


def test_real_values_go_before_symbols() -> None:
    mode = FakeTensorMode(shape_env=ShapeEnv(), propagate_real_tensors=True)
    real = torch.arange(16.0).view(1, 1, 4, 4)
    with mode:
        result: Any = F.max_pool2d(mode.from_tensor(real), 2)
    assert result.real_tensor.tolist() == F.max_pool2d(real, 2).tolist()


def test_a_view_is_possible_where_optimization_hints_say_so() -> None:
    def halves(hint: int) -> tuple[Any, Tensor]:
        env = ShapeEnv()
        with FakeTensorMode(shape_env=env):
            length = env.create_unbacked_symint()
            env.var_to_hint_override[length.node.expr] = hint
            even = torch.empty(4, length, 6).as_strided((4, 2 * (length // 2), 6), (6 * length, 6, 1))
            return env, even.view(-1, 6)

    env, rows = halves(16)
    assert str(rows.shape[0]) == "8*((u0//2))" and rows.stride() == (6, 1)
    assert "Eq(u0, 2*((u0//2)))" in str(env.deferred_runtime_asserts)
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        halves(17)


@pytest.mark.parametrize(("dtype", "value"), [(torch.int64, 7), (torch.float64, 2.5)])
def test_the_value_of_a_scalar_with_a_source_is_a_symbol(dtype: torch.dtype, value: float) -> None:
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    scalar = mode.from_tensor(torch.tensor(value, dtype=dtype), source=ConstantSource("scalar"))
    theirs = PyTorchsMode(shape_env=ShapeEnv()).from_tensor(
        torch.tensor(value, dtype=dtype), source=ConstantSource("scalar")
    )
    with mode:
        item: Any = scalar.item()
    assert item.node.hint == value and str(item) == str(theirs.item_memo)
    for unknown in (torch.tensor(7, dtype=torch.int32), torch.tensor(float("inf"), dtype=torch.float64)):
        assert mode.from_tensor(unknown, source=ConstantSource(f"no symbol {unknown}")).item_memo is None
    assert (
        FakeTensorMode(shape_env=env, export=True)
        .from_tensor(torch.tensor(3), source=ConstantSource("exported"))
        .item_memo
        is None
    )


def test_the_converter_takes_an_environment_that_the_mode_does_not_have() -> None:
    env = ShapeEnv()
    mode = FakeTensorMode()
    fake = mode.fake_tensor_converter.from_real_tensor(mode, torch.ones(3, 4), shape_env=env)
    with mode:
        product = fake @ fake.t()
    assert [size.node.shape_env is env for size in (*fake.shape, *product.shape)] == [True] * 4


# ---- The number of elements that a sparse tensor stores --------------------------------------------------------------


@pytest.mark.parametrize("layout", [None, torch.sparse_csr, torch.sparse_csc])
def test_diagonals_at_unknown_offsets_store_a_symbolic_number_of_elements(layout: torch.layout | None) -> None:
    env: Any = ShapeEnv()
    with FakeTensorMode(shape_env=env), torch.sparse.check_sparse_tensor_invariants():
        matrix = torch.sparse.spdiags(torch.randn(2, 8), torch.randint(0, 2, (2,)), (8, 6), layout=layout)
        product = matrix @ torch.empty(6, 3)
        with pytest.raises(RuntimeError, match="does not match the number of offsets"):
            torch.sparse.spdiags(torch.randn(3, 8), torch.randint(0, 2, (2,)), (8, 6), layout=layout)
    count: Any = (matrix._values() if layout is None else matrix.values()).shape[0]
    assert tuple(matrix.shape) == (8, 6) and env.var_to_range[count.node.expr].upper == 16
    assert tuple(product.shape) == (8, 3) and tuple(matrix.to_dense().shape) == (8, 6)
    assert f"nnz={count}" in repr(matrix)


@pytest.mark.parametrize(
    ("convert", "upper"),
    [
        (lambda x: x.to_sparse(), 24),
        (lambda x: x.to_sparse(1), 4),
        (lambda x: x.to_sparse_csr(), 24),
        (lambda x: x.to_sparse_csc(), 24),
        (lambda x: x.to_sparse_bsr((2, 3)), 4),
        (lambda x: x.to_sparse_bsc((2, 3)), 4),
        (lambda x: torch.sparse.sum(x.to_sparse(), 0), 6),
        (lambda x: x.to_sparse().abs().coalesce(), 24),
    ],
)
def test_unknown_values_give_a_symbolic_number_of_stored_elements(
    convert: Callable[[Tensor], Tensor], upper: int
) -> None:
    env = ShapeEnv()
    with FakeTensorMode(shape_env=env):
        sparse = convert(torch.randn(4, 6))
    real = convert(torch.ones(4, 6))
    assert sparse.layout == real.layout and sparse.shape == real.shape
    values = sparse._values() if sparse.layout is torch.sparse_coo else sparse.values()
    expected = real._values() if real.layout is torch.sparse_coo else real.values()
    assert values.shape[1:] == expected.shape[1:]
    assert env.var_to_range[values.shape[0].node.expr].upper == upper  # type: ignore[attr-defined]
    if sparse.layout is torch.sparse_coo:
        assert sparse.is_coalesced() == real.is_coalesced()


def test_operators_keep_the_symbol_or_have_another() -> None:
    with FakeTensorMode(shape_env=ShapeEnv()):
        sparse = torch.randn(4, 6).to_sparse()
        results = {
            "scaled": sparse * 2,
            "moved": sparse.cuda(),
            "copied": sparse.clone(),
            "negative": -sparse,
            "root": sparse.sqrt(),
        }
        count = str(sparse._values().shape[0])
        assert {name: str(each._values().shape[0]) for name, each in results.items()} == dict.fromkeys(results, count)
        assert torch.zeros_like(sparse)._nnz() == 0
        assert (sparse + sparse).shape == sparse.t().t().shape == (4, 6)
        with pytest.raises(GuardOnDataDependentSymNode):
            sparse._nnz()


def test_a_sparse_tensor_is_made_of_members_with_symbols() -> None:
    with FakeTensorMode(shape_env=ShapeEnv()):
        x = torch.randn(4, 6)
        places = x.nonzero().t()
        sparse = torch.sparse_coo_tensor(places, torch.empty(places.shape[1]), (4, 6))
        assert str(sparse._values().shape[0]) == str(places.shape[1])
        with pytest.raises(RuntimeError, match=r"must be sparse_dim \(2\) \+ dense_dim \(0\), but got 3"):
            torch.sparse_coo_tensor(places, torch.empty(places.shape[1]), (4, 6, 2))
