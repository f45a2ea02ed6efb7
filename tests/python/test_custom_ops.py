"""User-defined operators: with a fake implementation, a decomposition, only a CPU kernel, or nothing."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from metadata import assert_same_metadata
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.optests.generate_tests import OpCheckError
from torch.utils._python_dispatch import TorchDispatchMode

from torchfake import (
    DataAccessError,
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    MetadataMismatchError,
    UnsupportedMutationAliasingException,
    UnsupportedOperatorException,
    cache_info,
    fake_mode,
    is_fake,
    to_fake,
)
from torchfake.fx import FakeTensorProp

ops = torch.ops.torchfake_test


@pytest.fixture(scope="module", autouse=True)
def _operators() -> Iterator[None]:
    with torch.library._scoped_library("torchfake_test", "FRAGMENT") as library:
        _define(library)
        yield


def _define(library: torch.library.Library) -> None:
    @torch.library.custom_op("torchfake_test::repeat", mutates_args=(), device_types="cpu")
    def repeat(x: Tensor, times: int) -> Tensor:
        return torch.from_numpy(np.repeat(x.detach().numpy(), times, 0))

    @repeat.register_fake
    def _(x: Tensor, times: int) -> Tensor:
        return x.new_empty(x.shape[0] * times, *x.shape[1:])

    def keep(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.times = inputs[1]

    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad.unflatten(0, (-1, ctx.times)).sum(1), None

    repeat.register_autograd(backward, setup_context=keep)

    @torch.library.custom_op("torchfake_test::fill", mutates_args=("x",))
    def fill(x: Tensor, value: float) -> None:
        x.detach().numpy()[:] = value

    @torch.library.custom_op("torchfake_test::plain", mutates_args=())
    def plain(x: Tensor) -> Tensor:
        return torch.from_numpy(x.detach().numpy().copy())

    library.define("composite(Tensor x) -> Tensor")
    library.impl("composite", lambda x: x.sin() + x.t(), "CompositeImplicitAutograd")
    library.define("explicit(Tensor x) -> Tensor")
    library.impl("explicit", lambda x: x.t().contiguous().sin(), "CompositeExplicitAutograd")
    library.define("of_meta(Tensor x) -> Tensor")
    library.impl("of_meta", lambda x: x.new_empty(3, dtype=torch.int32), "Meta")
    library.define("of_cpu(Tensor x, int[] order) -> (Tensor, Tensor)")
    library.impl("of_cpu", lambda x, order: (x.permute(order).clone(), x.sum(0)), "CPU")
    library.define("nothing(Tensor x) -> Tensor")
    library.define("many(Tensor x, Tensor[] ys, Tensor? z=None, *, float scale=1.0) -> (Tensor, Tensor[])")
    library.impl("many", lambda x, ys, z=None, *, scale=1.0: (x * scale, [y.t().clone() for y in ys]), "CPU")
    torch.library.register_fake(
        "torchfake_test::many",
        lambda x, ys, z=None, *, scale=1.0: (torch.empty_like(x), [y.t().clone() for y in ys]),
        lib=library,
    )
    library.define("abstract(Tensor x) -> Tensor")
    library.impl("abstract", lambda x: x.clone(), "CPU")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # the old name of register_fake
        torch.library.impl_abstract("torchfake_test::abstract", torch.empty_like, lib=library)
    library.define("where_positive(Tensor x) -> Tensor")
    library.impl("where_positive", lambda x: (x > 0).nonzero(), "CPU")

    def dynamic(x: Tensor) -> Tensor:
        return x.new_empty(torch.library.get_ctx().new_dynamic_size(), x.dim(), dtype=torch.int64)

    torch.library.register_fake("torchfake_test::where_positive", dynamic, lib=library)
    library.define("from_gpu(Tensor x) -> Tensor")
    library.impl("from_gpu", lambda x: x.cpu(), "CUDA")

    def from_gpu(x: Tensor) -> Tensor:
        torch._check(x.is_cuda, lambda: "from_gpu takes a tensor of a GPU")
        assert is_fake(torch.ones(3)) and torch.tensor(2).item() == 2
        return torch.empty(x.shape, device="cpu")

    torch.library.register_fake("torchfake_test::from_gpu", from_gpu, lib=library)
    library.define("value_of(Tensor x) -> float")
    library.impl("value_of", lambda x: float(x.sum()), "CPU")
    library.define("view_of(Tensor(a) x) -> Tensor(a)")
    library.impl("view_of", lambda x: x[1:], "CPU")
    library.define("hidden_view(Tensor x) -> Tensor")
    library.impl("hidden_view", lambda x: x[1:], "CPU")
    library.define("hidden_write(Tensor x) -> Tensor")
    library.impl("hidden_write", lambda x: x.add_(1).clone(), "CPU")
    library.define("copy_of(Tensor x) -> Tensor")
    library.impl("copy_of", lambda x: x.clone(), "CPU")
    library.define("pair(Tensor x) -> (Tensor, Tensor)")
    library.impl("pair", lambda x: (lambda y: (y, y[1:]))(torch.empty_like(x)), "Meta")
    library.define("wrong(Tensor x) -> Tensor")
    library.impl("wrong", lambda x: x.clone(), "CPU")
    torch.library.register_fake("torchfake_test::wrong", lambda x: x.new_empty(7), lib=library)


def square() -> Tensor:
    return torch.randn(3, 3)


CALLS: dict[str, Any] = {
    "repeat": lambda x: ops.repeat(x.t(), 2),
    "composite": lambda x: ops.composite(x),
    "explicit": lambda x: ops.explicit(x),
    "of_cpu": lambda x: ops.of_cpu(x[:2], [1, 0]),
    "many": lambda x: ops.many(x, [x, x[:1]], scale=2.0),
    "abstract": lambda x: ops.abstract(x.t()),
}
MODES: dict[str, Any] = {"fake_mode": fake_mode, "FakeTensorMode": FakeTensorMode}


# A FakeTensorMode never runs a user-defined kernel on zeros.
@pytest.mark.parametrize(
    ("name", "mode"), [(n, m) for n in CALLS for m in MODES if (n, m) != ("of_cpu", "FakeTensorMode")]
)
def test_a_result_looks_like_that_of_real_tensors(name: str, mode: str) -> None:
    real = CALLS[name](square())
    with MODES[mode]():
        fake = CALLS[name](square())
        again = CALLS[name](square())
    for result in (fake, again, CALLS[name](to_fake(square()))):
        assert_same_metadata(result, real, device="cpu", ignored=("version",))


@pytest.mark.parametrize("name", CALLS)
def test_a_claimed_device_is_kept(name: str) -> None:
    with fake_mode():
        result = CALLS[name](torch.randn(3, 3, device="cuda:1"))
    for tensor in torch.utils._pytree.tree_leaves(result):
        assert is_fake(tensor) and tensor.device == torch.device("cuda:1")


def test_a_fake_implementation_alone_is_enough() -> None:
    with fake_mode():
        result = ops.of_meta(torch.randn(5, device="cuda"))
    assert (result.shape, result.dtype, result.device.type) == ((3,), torch.int32, "cuda")


def test_a_custom_backward_gives_gradients() -> None:
    def train(x: Tensor) -> Any:
        x.requires_grad_()
        y = ops.repeat(x, 2)
        y.square().sum().backward()
        return y, x.grad

    real = train(square())
    with fake_mode():
        assert_same_metadata(train(square()), real)


def test_an_operator_that_writes_counts_up_the_version_and_ends_known_values() -> None:
    with fake_mode():
        x = torch.zeros(3)
        ops.fill(x, 2.0)
        assert x._version == 1
        with pytest.raises(DataAccessError):  # it might have drawn random numbers
            x.tolist()


def test_an_operator_of_a_user_is_not_cached() -> None:
    with fake_mode():
        x = torch.randn(3, 3)
        before = cache_info().bypasses.get("not a builtin operator", 0)
        ops.abstract(x)
    assert cache_info().bypasses["not a builtin operator"] > before


# ---- Unsupported operators ----


def test_an_operator_without_any_implementation_is_refused() -> None:
    with fake_mode(), pytest.raises(UnsupportedOperatorException, match="torchfake_test::nothing") as caught:
        ops.nothing(square())
    assert caught.value.func is ops.nothing.default
    assert "register_fake" in str(caught.value)


def test_a_cpu_kernel_is_tried_only_where_the_mode_allows() -> None:
    with FakeTensorMode(allow_fallback_kernels=False):
        with pytest.raises(UnsupportedOperatorException, match="allow_fallback_kernels=False"):
            ops.of_cpu(square(), [1, 0])
        assert ops.abstract(square()).shape == (3, 3)


def test_a_cpu_kernel_is_not_tried_on_large_tensors() -> None:
    with fake_mode(), pytest.raises(UnsupportedOperatorException, match="torchfake_test::of_cpu"):
        ops.of_cpu(torch.empty(1_000_000, 1_000_000), [1, 0])


def test_a_custom_op_without_a_fake_implementation_says_how_to_add_one() -> None:
    with fake_mode(), pytest.raises(RuntimeError, match="register_fake"):
        ops.plain(square())


def test_a_data_dependent_size_is_reported_as_such() -> None:
    for make in (lambda: to_fake(square()), lambda: FakeTensorMode().from_tensor(square())):
        with pytest.raises(DynamicOutputShapeException, match="torchfake_test::where_positive") as caught:
            ops.where_positive(make())
        assert caught.value.func is ops.where_positive.default


def test_plain_meta_tensors_get_pytorchs_error() -> None:
    with pytest.raises(RuntimeError, match="with meta Tensors"):
        ops.where_positive(torch.empty(3, device="meta"))


def test_a_wrong_fake_implementation_is_found_where_real_tensors_travel_along() -> None:
    mode = FakeTensorMode(propagate_real_tensors=True)
    x = mode.from_tensor(square())
    with mode:
        assert ops.repeat(x, 2).shape == (6, 3)
        with pytest.raises(MetadataMismatchError, match="torchfake_test::wrong"):
            ops.wrong(x)


# ---- In graphs, and under opcheck ----


@pytest.mark.parametrize("name", [name for name in CALLS if name != "of_cpu"])
def test_a_graph_with_the_operator_is_propagated(name: str) -> None:
    graph = make_fx(CALLS[name])(square())
    assert_same_metadata(FakeTensorProp(graph).propagate(square()), CALLS[name](square()), ignored=("version",))


OPCHECKED: dict[str, tuple[Any, ...]] = {
    "repeat": (torch.randn(3, 3), 2),
    "fill": (torch.randn(3), 1.0),
    "composite": (torch.randn(3, 3),),
    "explicit": (torch.randn(3, 3),),
    "abstract": (torch.randn(3, 3),),
    "where_positive": (torch.randn(3),),
}


@pytest.mark.parametrize("name", OPCHECKED)
def test_opcheck_passes(name: str) -> None:
    assert set(torch.library.opcheck(getattr(ops, name).default, OPCHECKED[name]).values()) == {"SUCCESS"}


@pytest.mark.parametrize(("name", "message"), [("wrong", "mismatched tensor metadata"), ("plain", "no fake impl")])
def test_opcheck_finds_what_is_wrong(name: str, message: str) -> None:
    with pytest.raises(OpCheckError, match=message):
        torch.library.opcheck(getattr(ops, name).default, (torch.randn(3),))


@pytest.mark.parametrize("mode", list(MODES))
def test_a_fake_implementation_sees_the_claimed_device_and_chooses_its_own(mode: str) -> None:
    with MODES[mode]():
        assert ops.from_gpu(torch.rand(3, device="cuda:1")).device.type == "cpu"
        with pytest.raises(RuntimeError, match="takes a tensor of a GPU"):
            ops.from_gpu(torch.rand(3))


@pytest.mark.parametrize("mode", list(MODES))
def test_a_fake_implementation_below_a_python_mode_is_in_the_mode_too(mode: str) -> None:
    class PassOn(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            return func(*args, **(kwargs or {}))

    with MODES[mode](), PassOn():
        assert is_fake(ops.from_gpu(torch.rand(3, device="cuda:1")))


def test_results_that_zeros_cannot_determine_are_refused() -> None:
    with fake_mode(), pytest.raises(UnsupportedOperatorException, match="value_of"):
        ops.value_of(torch.rand(3))


def test_a_view_that_the_schema_declares_is_a_view() -> None:
    with fake_mode():
        for _ in range(2):  # the second time from the cache, where it may be
            base = torch.rand(3, 4).t()
            view = ops.view_of(base)
            assert_same_metadata(view, ops.view_of(torch.rand(3, 4).t()))
            assert view.shape == (3, 3) and view.stride() == (1, 4) and view.storage_offset() == 1
            assert view.untyped_storage()._cdata == base.untyped_storage()._cdata


@pytest.mark.parametrize(
    ("name", "what"), [("hidden_view", "returns a view of an argument"), ("hidden_write", r"writes to argument 'x'")]
)
def test_what_the_schema_does_not_declare_is_refused(name: str, what: str) -> None:
    with fake_mode():
        x = torch.ones(3)
        for _ in range(2):
            with pytest.raises(UnsupportedMutationAliasingException, match=f"{name}: .*{what}.*register_fake"):
                getattr(ops, name)(x)
        assert x.tolist() == [1.0] * 3


def test_an_expanded_input_is_as_large_as_its_copy() -> None:
    with fake_mode(), pytest.raises(UnsupportedOperatorException, match="too large"):
        ops.copy_of(torch.rand(1).expand(500_000_000))


def test_outputs_that_share_a_storage_go_on_sharing_it() -> None:
    with fake_mode():
        first, second = ops.pair(torch.rand(4))
        assert second.storage_offset() == 1
        assert second.untyped_storage()._cdata == first.untyped_storage()._cdata


def test_what_a_fake_implementation_makes_has_no_values_of_its_own() -> None:
    @torch.library.custom_op("torchfake_test::twice", mutates_args=())
    def twice(x: Tensor) -> Tensor:
        return x * 2

    twice.register_fake(lambda x: torch.zeros_like(x))
    with fake_mode(), pytest.raises(DataDependentOutputException):
        twice(torch.ones(1)).item()
    with FakeTensorMode(propagate_real_tensors=True):
        assert twice(torch.ones(1)).item() == 2


# ---- Defined again ----


def defined_in(library: str, schema: str, kernel: Any) -> Any:
    """A library with one operator; destroyed, it can be defined anew."""
    defined = torch.library.Library(library, "FRAGMENT")
    defined.define(schema)
    defined.impl(schema.partition("(")[0], kernel, "CompositeExplicitAutograd")
    return defined


def test_a_real_tensor_that_a_meta_kernel_cannot_print_leaves_the_thread_as_it_was() -> None:
    def keys() -> list[str]:
        return [str(torch._C._dispatch_tls_local_include_set()), str(torch._C._dispatch_tls_local_exclude_set())]

    real, errors = torch.ones(2), []

    def prints(x: Tensor) -> Tensor:
        inside = keys()
        for _ in range(2):
            with pytest.raises(NotImplementedError, match="masked_select") as info:
                repr(real)
            errors.append(info.value)
        assert keys() == inside
        del info
        errors.clear()
        assert keys() == inside
        repr(real)
        raise AssertionError("was printed")

    kernels = {"prints": prints, "returns": lambda x: (real,)}  # the error about the second shows the result
    before = keys()
    with torch.library._scoped_library("torchfake_printing", "FRAGMENT") as library:
        for name, kernel in kernels.items():
            library.define(f"{name}(Tensor x) -> Tensor")
            library.impl(name, kernel, "Meta")
            with fake_mode():
                inside = keys()
                with pytest.raises(RuntimeError, match="masked_select"):
                    getattr(torch.ops.torchfake_printing, name)(torch.ones(3))
                assert keys() == inside and is_fake(torch.ones(1))
            assert keys() == before


def test_an_operator_defined_again_with_another_schema_is_the_new_one() -> None:
    with fake_mode():
        x = torch.ones(2, 3)

        @torch.library.custom_op("torchfake_test::cell", mutates_args=())
        def first(x: Tensor, y: Tensor, scale: float, times: int) -> Tensor:
            raise AssertionError("runs on fakes alone")

        first.register_fake(lambda x, y, scale, times: x.new_empty(times))
        assert torch.ops.torchfake_test.cell(x, x, 1.0, 4).shape == (4,)

        @torch.library.custom_op("torchfake_test::cell", mutates_args=())
        def second(times: int) -> Tensor:
            raise AssertionError("runs on fakes alone")

        second.register_fake(lambda times: torch.empty(times, 2))
        assert torch.ops.torchfake_test.cell(5).shape == (5, 2)

        @torch.library.custom_op("torchfake_test::cell", mutates_args=("y",))
        def third(times: int, xs: list[Tensor], y: Tensor) -> None:
            raise AssertionError("runs on fakes alone")

        assert torch.ops.torchfake_test.cell(5, [x, x], x) is None
        with pytest.raises(DataDependentOutputException):
            x.sum().item()  # the new one writes to it


@pytest.mark.parametrize("library", ["torchfake_test", "aten", "prims"])
def test_no_outcome_of_an_old_definition_is_served_for_the_new_one(library: str) -> None:
    again = getattr(torch.ops, library)
    schemas = [
        ("torchfake_again(Tensor x, int n) -> Tensor", lambda x, n: x.new_empty(n), (3,)),
        ("torchfake_again(Tensor x, int n) -> Tensor", lambda x, n: x.new_empty(n, 2), (3, 2)),
        ("torchfake_again(Tensor x, int n, int m=7) -> Tensor", lambda x, n, m=7: x.new_empty(m), (7,)),
        ("torchfake_again(Tensor x, Tensor? y) -> Tensor", lambda x, y: x.new_empty(1), (1,)),
    ]
    # A kernel for a backend that is not used keeps the registration, and so its address, between two definitions.
    with fake_mode(), torch.library._scoped_library(library, "IMPL") as kept:
        kept.impl("torchfake_again", lambda *args: args[0], "XLA")
        x = torch.rand(2, 2)
        for schema, kernel, size in schemas:
            defined = defined_in(library, schema, kernel)
            try:
                second = None if "y)" in schema else 3
                results = [again.torchfake_again(x, second) for _ in range(3)]
                assert [tuple(result.shape) for result in results] == [size] * 3
            finally:
                defined._destroy()
