"""The properties that code written for `torch._subclasses.fake_tensor` relies on, with the import renamed."""

import gc
import inspect
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import pytest
import torch
from torch._subclasses import fake_tensor
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.testing._internal.two_tensor import TwoTensor

import torchfake
from torchfake import (
    CrossRefFakeMode,
    DataDependentOutputException,
    DeviceMismatchError,
    DynamicOutputShapeException,
    DynamicShapesError,
    FakeArgumentError,
    FakeTensor,
    FakeTensorConfig,
    FakeTensorDeviceMismatchError,
    FakeTensorMode,
    MetadataMismatchError,
    MixedModesError,
    RealTensorError,
    UnsupportedOperatorException,
    fake_check,
    fake_mode,
    helpers,
    is_fake,
    maybe_get_fake_mode,
)

META = torch.empty(2, 3, device="meta")

# ---- Helpers ---------------------------------------------------------------------------------------------------------


def test_recursion_is_counted_as_long_as_the_counter_lives() -> None:
    before = helpers.RECURSION_COUNT
    counter = torchfake.IncrementRecursionCount()
    assert before + 1 == helpers.RECURSION_COUNT
    del counter
    gc.collect()
    assert before == helpers.RECURSION_COUNT


def test_an_ordered_set_keeps_its_order() -> None:
    assert list(torchfake.ordered_set(3, 1, 2, 1)) == [3, 1, 2]
    assert 2 in torchfake.ordered_set(3, 1, 2)


def test_leaves_of_one_type_are_found() -> None:
    assert torchfake.tree_flatten_only(int, {"a": [1, "x"], "b": (2, 3.0)}) == [1, 2]


def test_schema_queries_match_pytorchs() -> None:
    aten = torch.ops.aten
    assert torchfake.get_schema_info(aten.add_.Tensor).is_mutable()
    assert not torchfake.get_schema_info(aten.add.Tensor).is_mutable()
    assert torchfake.should_allow_numbers_as_tensors(aten.add.Tensor)
    assert not torchfake.should_allow_numbers_as_tensors(aten.mm.default)
    assert torchfake.torch_decomp_decompositions(aten.threshold_backward.default)
    with pytest.raises(KeyError):
        torchfake.torch_decomp_decompositions(aten.mm.default)


def test_a_claimed_device_needs_no_context() -> None:
    with FakeTensorMode() as mode:
        torchfake.init_gpu_context(torch.device("cuda"))
        assert mode.avoid_device_init == (not torch.accelerator.is_available() or not torch.cuda.is_available())


def test_inside_of_a_kernel_fakes_are_meta_tensors() -> None:
    with FakeTensorMode() as mode:
        x = torch.ones(2, 3, device="cuda")
    assert not mode.in_kernel_invocation
    with torchfake.in_kernel_invocation_manager(mode):
        assert x.device.type == "meta" and mode.in_kernel_invocation
        y = torch.ops.aten.mm.default(x, torch.empty(3, 4, device="meta"))
    assert y.shape == (2, 4) and y.device.type == "meta" and not is_fake(y)
    assert x.device == torch.device("cuda:0") and not mode.in_kernel_invocation
    assert (x + x).device == torch.device("cuda:0")


def test_fakes_note_where_they_were_made(monkeypatch: pytest.MonkeyPatch) -> None:
    mode = FakeTensorMode()
    assert not hasattr(mode.from_tensor(torch.ones(2)), "_debug_trace")
    monkeypatch.setattr(FakeTensorConfig, "debug", True)
    for fake in (mode.from_tensor(torch.ones(2)), FakeTensor(mode, META, "cpu")):
        assert "test_fakes_note_where_they_were_made" in str(fake._debug_trace.format())  # type: ignore[attr-defined]


def test_a_memo_ends_with_a_write_and_with_an_epoch() -> None:
    class Holder:
        count = torchfake.SymNumberMemoDescriptor()
        ragged = torchfake.SymNumberMemoDescriptor(is_nested_int=True)

    with FakeTensorMode() as mode:
        x: Any = torch.ones(2)
    count, ragged = vars(Holder)["count"], vars(Holder)["ragged"]
    for memo in (count, ragged):
        assert memo.__get__(x) is None
        memo.__set__(x, 7)
        assert memo.__get__(x) == 7
    x.add_(1)
    assert (count.__get__(x), ragged.__get__(x)) == (None, 7)
    count.__set__(x, 8)
    mode.epoch += 1
    assert (count.__get__(x), ragged.__get__(x)) == (None, 7)
    ragged.__set__(x, None)
    assert ragged.__get__(x) is None


def test_nested_integers_are_made_once_and_kept_where_given() -> None:
    with FakeTensorMode():
        offsets: Any = torch.arange(3)
    assert offsets.nested_int_memo is None
    made = offsets.get_nested_int()
    assert isinstance(made, torch.SymInt) and made == offsets.get_nested_int() == offsets.nested_int_memo
    offsets.nested_int_memo = 5
    assert offsets.get_nested_int(coeff=2) == 10


def test_the_class_of_modes_can_be_inspected() -> None:
    members = dict(inspect.getmembers(FakeTensorMode))
    assert {"epoch", "allow_meta", "cache_hits", "from_tensor"} <= set(members)
    assert create_autospec(FakeTensorMode).from_tensor is not None


# ---- The constructor -------------------------------------------------------------------------------------------------


def test_the_device_has_three_names_that_must_agree() -> None:
    mode = FakeTensorMode()
    assert FakeTensor(mode, META, fake_device="cuda").fake_device == torch.device("cuda:0")
    assert FakeTensor(META, fake_mode=mode, _fake_device="cuda:1").device == torch.device("cuda:1")
    assert FakeTensor(mode, META, device="cuda", fake_device="cuda:0").device == torch.device("cuda:0")
    with pytest.raises(ValueError, match="conflicting device values: device=cpu, fake_device=cuda:0"):
        FakeTensor(mode, META, device="cpu", fake_device="cuda:0")


def test_missing_arguments_of_a_fake_are_named() -> None:
    mode = FakeTensorMode()
    with pytest.raises(TypeError, match="'device'"):
        FakeTensor(mode, META)
    with pytest.raises(TypeError, match="'fake_mode'"):
        FakeTensor(META, device="cpu")
    with pytest.raises(TypeError, match="'elem'"):
        FakeTensor(mode, device="cpu")
    with pytest.raises(TypeError, match="expected either"):
        FakeTensor(META, META, "cpu", fake_mode=mode)
    with pytest.raises(TypeError, match="conflicting fake_mode"):
        FakeTensor(mode, META, "cpu", fake_mode=FakeTensorMode())
    with pytest.raises(TypeError, match="expected a mode or a tensor"):
        FakeTensor(7, META, "cpu")  # type: ignore[arg-type]


def test_the_device_of_a_fake_can_be_set() -> None:
    with FakeTensorMode():
        fake: Any = torch.ones(2, 3)
        fake.fake_device = torch.device("cuda")
        assert fake.fake_device == fake.device == torch.device("cuda:0") and fake.shape == (2, 3)
        assert (fake + 1).device == torch.device("cuda:0")
        fake.fake_device = "cpu"
        assert fake.device.type == "cpu" and fake.untyped_storage().device.type == "cpu"


def test_a_constant_needs_no_mapping() -> None:
    mode = FakeTensorMode()
    converter = mode.fake_tensor_converter
    constant = converter.from_real_tensor(mode, torch.tensor(3), make_constant=True)
    converter.add_constant_storage_mapping(constant)
    for other in (mode.from_tensor(torch.ones(2)), torch.tensor(3)):
        with pytest.raises(FakeArgumentError, match="value is known"):
            converter.add_constant_storage_mapping(other)


# ---- The cache -------------------------------------------------------------------------------------------------------


def test_the_counters_of_the_cache_are_attributes_of_the_class() -> None:
    with FakeTensorMode() as mode:
        x = torch.ones(3)
        FakeTensorMode.cache_clear()
        _ = x + x, x + x
        with torchfake.disable_fake_tensor_cache(mode):
            _ = x + x
        assert (FakeTensorMode.cache_hits, FakeTensorMode.cache_misses, mode.cache_hits) == (1, 1, 1)
        assert FakeTensorMode.cache_bypasses == {"cache disabled": 1}
        assert len(FakeTensorMode.cache) == FakeTensorMode.cache_info().size == 1
        FakeTensorMode.cache.clear()
        assert len(FakeTensorMode.cache) == FakeTensorMode.cache_hits == 0


# ---- Errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", [DynamicOutputShapeException, DataDependentOutputException, UnsupportedOperatorException]
)
def test_an_exception_is_built_from_the_operator(kind: type[torchfake.FakeTensorError]) -> None:
    func = torch.ops.aten.nonzero.default
    error = kind(func)
    assert error.func is func and str(error) == "aten.nonzero.default"
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind and again.func is func


def test_what_pytorchs_classes_catch_is_caught() -> None:
    raised: dict[str, Callable[[], Any]] = {
        "DynamicOutputShapeException": lambda: torch.rand(3).nonzero(),
        "DataDependentOutputException": lambda: torch.rand(()).item(),
        "UnsupportedFakeTensorException": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        "FakeTensorDeviceMismatchError": lambda: torch.ones(2) + torch.ones(2, device="cuda"),
    }
    for name, call in raised.items():
        with FakeTensorMode(), pytest.raises(getattr(fake_tensor, name)) as error:
            call()
        assert isinstance(error.value, getattr(torchfake, name)) and hash(error.value) and error.value != Exception()
        assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)


def test_a_device_mismatch_names_both_devices() -> None:
    with FakeTensorMode(), pytest.raises(FakeTensorDeviceMismatchError) as raised:
        torch.ones(2) + torch.ones(2, device="cuda")
    made = FakeTensorDeviceMismatchError(torch.ops.aten.add.Tensor, torch.device("cpu"), torch.device("cuda:0"))
    for error in (raised.value, made):
        assert (error.common_device, error.device) == (torch.device("cpu"), torch.device("cuda:0"))
        assert error.func is torch.ops.aten.add.Tensor and "on the same device, but found" in str(error)


def test_exceptions_take_the_keywords_of_pytorchs() -> None:
    func = torch.ops.aten.nonzero.default
    assert DynamicOutputShapeException(func=func).func is func
    assert MetadataMismatchError(reason="why").reason == "why"
    for arguments in ({}, {"func": func, "reason": "why"}):
        with pytest.raises(TypeError, match="expected one of message, func and reason"):
            MetadataMismatchError(**arguments)  # type: ignore[arg-type]


NAMED_AS_IN_TORCH_OPS = {
    "aten._local_scalar_dense.default": lambda x: x[0].item(),
    "aten.nonzero.default": lambda x: x.nonzero(),
    "aten._unique2.default": lambda x: x.unique(),
    "aten.equal.default": lambda x: torch.equal(x, x + 1),
    "aten.repeat_interleave.Tensor": lambda x: torch.repeat_interleave(x.long()),
}


@pytest.mark.parametrize("name", NAMED_AS_IN_TORCH_OPS)
def test_errors_about_values_name_the_operator_as_torch_ops_does(name: str) -> None:
    with FakeTensorMode():
        x = torch.rand(3)
        with pytest.raises((DataDependentOutputException, DynamicOutputShapeException), match=name) as error:
            NAMED_AS_IN_TORCH_OPS[name](x)
    assert str(error.value.func) == name


def test_a_list_of_unknown_values_is_refused_as_item_is() -> None:
    with FakeTensorMode(), pytest.raises(DataDependentOutputException) as error:
        torch.rand(3).tolist()
    assert error.value.func is torch.ops.aten._local_scalar_dense.default  # type: ignore[attr-defined]


def test_what_pytorch_asserts_of_a_tensor_is_an_assertion_here_too() -> None:
    mode, meta, real = FakeTensorMode(), torch.empty(2, device="meta"), torch.ones(2)
    strict = FakeTensorMode(allow_meta=False)
    convert = mode.fake_tensor_converter
    refused: dict[str, Any] = {
        r"elem\.device\.type must be 'meta', got cpu": lambda: FakeTensor(mode, real, "cpu"),
        "tensor's device must be `meta`, got cpu": lambda: convert.from_meta_and_device(mode, real, "cpu"),
        "from_tensor: a meta tensor was given": lambda: strict.from_tensor(meta),
        "FakeTensor: the meta device was requested": lambda: FakeTensor(strict, meta, "meta"),
        "a Parameter cannot": lambda: convert.from_real_tensor(mode, torch.nn.Parameter(real), make_constant=True),
    }
    for phrase, make in refused.items():
        with pytest.raises(AssertionError, match=phrase) as error:
            make()
        assert isinstance(error.value, FakeArgumentError)


def test_errors_have_pytorchs_phrases_and_classes() -> None:
    real = torch.ones(2)
    with FakeTensorMode() as mode:
        fake = torch.ones(2)
        phrase = "Please convert all Tensors to FakeTensors first or instantiate FakeTensorMode with 'allow_non"
        with pytest.raises(AssertionError, match=phrase) as refused:
            _ = fake + real
        with pytest.raises(RuntimeError, match=r"Expected all tensors to be on the same device.*found two different"):
            _ = fake + torch.ones(2, device="cuda")
    assert isinstance(refused.value, RealTensorError)
    assert "allow_non_fake_inputs" in str(refused.value) and "from_tensor" in str(refused.value)
    with FakeTensorMode(), pytest.raises(AssertionError, match="Mixing fake modes NYI") as mixed:
        _ = fake + torch.ones(2)
    assert isinstance(mixed.value, MixedModesError) and "from_tensor" in str(mixed.value)
    assert mode.is_our_fake(fake)


def test_a_wrapper_around_fakes_and_real_tensors_is_refused() -> None:
    with FakeTensorMode() as mode:
        fake, other = torch.ones(2), torch.ones(2)
    with FakeTensorMode():
        foreign = torch.ones(2)
    assert is_fake(TwoTensor(fake, other)) and maybe_get_fake_mode(TwoTensor(fake, other)) is mode
    mixed = TwoTensor(fake, torch.ones(2))
    with pytest.raises(AssertionError, match="mixed fake and real tensors"):
        is_fake(mixed)
    with pytest.raises(AssertionError, match="do not belong to one mode"):
        maybe_get_fake_mode(mixed)
    with pytest.raises(AssertionError, match="do not belong to one mode"):
        maybe_get_fake_mode(TwoTensor(fake, foreign))
    assert "FakeTensor" in repr(mixed)  # printing is no reason to refuse it


# ---- Checks against real tensors -------------------------------------------------------------------------------------


def test_cross_reference_agrees_with_real_tensors() -> None:
    with CrossRefFakeMode():
        x = torch.randn(4, 3, requires_grad=True)
        y = torch.nn.functional.batch_norm(x, torch.zeros(3), torch.ones(3), training=True)
        y.t()[1:].reshape(-1).sum().backward()
        a, b = torch.split(torch.ones(4), 2)
        a.add_(b)
    assert x.grad is not None and not is_fake(x.grad)


@pytest.fixture
def library() -> Any:
    with torch.library._scoped_library("drop_in_test", "FRAGMENT") as library:
        yield library


@pytest.mark.parametrize(
    ("fake", "found"),
    [
        (lambda x: x.new_empty(5), "shape is"),
        (lambda x: x.new_empty(2, dtype=torch.long), "dtype is"),
        (lambda x: x, "outputs_alias_inputs|outputs_are_inputs"),
    ],
)
def test_a_fake_kernel_that_is_wrong_is_found(library: Any, fake: Any, found: str) -> None:
    library.define("wrong(Tensor x) -> Tensor")
    library.impl("wrong", lambda x: x.clone(), "CPU")
    torch.library.register_fake("drop_in_test::wrong", fake, lib=library)
    with pytest.raises(MetadataMismatchError, match=f"output of drop_in_test.wrong.default.*({found})") as error:
        fake_check(torch.ops.drop_in_test.wrong, (torch.ones(2),), {})
    assert error.value.func is torch.ops.drop_in_test.wrong.default


def test_a_fake_kernel_that_is_right_passes(library: Any) -> None:
    library.define("right(Tensor x) -> Tensor")
    library.impl("right", lambda x: x.clone(), "CPU")
    torch.library.register_fake("drop_in_test::right", torch.empty_like, lib=library)
    fake_check(torch.ops.drop_in_test.right, (torch.ones(2),), {})
    calls = []
    with CrossRefFakeMode(ignore_op_fn=lambda op: calls.append(op) or True):  # type: ignore[func-returns-value]
        torch.ops.drop_in_test.right(torch.ones(2))
    assert torch.ops.drop_in_test.right.default in calls


# ---- Behaviour -------------------------------------------------------------------------------------------------------

TAKE_META = {
    "add_": lambda d, e: torch.zeros(2, device=d).add_(torch.zeros(2, device=e)),
    "mul_": lambda d, e: torch.zeros(2, device=d).mul_(torch.zeros(2, device=e)),
    "mm": lambda d, e: torch.zeros(2, 2, device=d) @ torch.zeros(2, 2, device=e),
    "embedding": lambda d, e: torch.nn.functional.embedding(
        torch.zeros(2, 3, dtype=torch.long, device=e), torch.zeros(5, 4, device=d)
    ),
    "embedding_bag": lambda d, e: torch.nn.functional.embedding_bag(
        torch.zeros(4, dtype=torch.long, device=e),
        torch.zeros(5, 4, device=d),
        torch.zeros(2, dtype=torch.long, device=e),
    ),
    "index": lambda d, e: torch.zeros(4, device=d)[torch.zeros(2, dtype=torch.long, device=e)],
    "conv2d": lambda d, e: torch.conv2d(torch.zeros(1, 2, 4, 4, device=d), torch.zeros(3, 2, 2, 2, device=e)),
    "gather": lambda d, e: torch.gather(torch.zeros(2, device=d), 0, torch.zeros(2, dtype=torch.long, device=e)),
}


@pytest.mark.parametrize("op", TAKE_META)
@pytest.mark.parametrize("devices", [("cpu", "meta"), ("meta", "cpu")])
def test_meta_joins_other_devices_where_eager_lets_it(op: str, devices: tuple[str, str]) -> None:
    real = TAKE_META[op](*devices)
    with FakeTensorMode():
        fake = TAKE_META[op](*devices)
    assert (fake.device, fake.shape, fake.dtype) == (real.device, real.shape, real.dtype)


def test_meta_does_not_join_where_eager_refuses_it() -> None:
    for f in (lambda: torch.zeros(2) + torch.zeros(2, device="meta"), lambda: torch.maximum(torch.zeros(2), META[0])):
        with pytest.raises(RuntimeError):
            f()
        with FakeTensorMode(allow_non_fake_inputs=True), pytest.raises(DeviceMismatchError):
            f()
    with FakeTensorMode(), pytest.raises(DeviceMismatchError):  # two devices that are present
        torch.zeros(2).add_(torch.zeros(2, device="cuda"))


@pytest.mark.parametrize("dtype", [torch.float32, None])
def test_the_dtype_of_gradients_is_kept(dtype: torch.dtype | None) -> None:
    real = torch.ones(4, dtype=torch.bfloat16, requires_grad=True)
    real.grad_dtype = dtype
    real.grad = torch.ones(4, dtype=torch.float32)
    fake = FakeTensorMode().from_tensor(real)
    assert fake.grad_dtype == dtype and fake.grad is not None and fake.grad.dtype == torch.float32
    assert torchfake.to_fake(real).grad_dtype == dtype
    theirs = torchfake.to_pytorch_fake(fake)
    assert theirs.grad_dtype == dtype and theirs.grad is not None
    assert torchfake.from_pytorch_fake(theirs).grad_dtype == dtype


def test_wrappers_of_functionalization_require_gradients_as_before() -> None:
    mode = FakeTensorMode()
    leaf = mode.from_tensor(torch.ones(4, requires_grad=True))
    with FunctionalTensorMode():
        wrapped: Any = FunctionalTensor.to_functional(leaf)
        again = mode.from_tensor(wrapped)
    assert isinstance(again, FunctionalTensor) and is_fake(again)
    assert again.requires_grad and wrapped.requires_grad


def test_negative_strides_are_refused_as_for_real() -> None:
    with fake_mode(), pytest.raises(RuntimeError, match=r"Negative strides .* got strides: \[-80, 1\]"):
        torch.as_strided(torch.empty(0), (17, 18), (-80, 1), 1)


def test_sizes_of_pytorchs_environment_are_symbols_of_fakes_too() -> None:
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv

    size = ShapeEnv().create_unbacked_symint()
    with FakeTensorMode():
        x = torch.ones(4)
        assert torch.empty(size).shape[0] is not size and str(torch.empty(size).shape[0]) == "u0"
        assert str(x.as_strided((size,), (1,)).shape[0]) == "u0"
        assert torch.roll(x, size).shape == (4,)
        with pytest.raises(GuardOnDataDependentSymNode):
            torch.split(x, size)  # the number of outputs depends on it


def test_meta_has_no_real_values_to_carry() -> None:
    with FakeTensorMode(propagate_real_tensors=True):
        meta: Any = torch.zeros(2, dtype=torch.long, device="meta")
        cpu: Any = torch.zeros(2, dtype=torch.long)
        assert meta.real_tensor is None and (meta + 1).real_tensor is None
        assert cpu.real_tensor is not None
        rows: Any = torch.nn.functional.embedding(meta, torch.zeros(3, 4))
        assert rows.shape == (2, 4) and rows.device.type == "cpu" and rows.real_tensor is None


def test_fakes_that_a_converter_made_are_counted() -> None:
    mode = FakeTensorMode()
    real = torch.ones(2)
    fake = mode.from_tensor(real)
    memo = mode.fake_tensor_converter.tensor_memo
    assert len(memo) == 1 and next(iter(memo.values())) is fake
    view: Any = mode.from_tensor(real[1:])
    storages = mode.fake_tensor_converter.meta_converter.storage_memo
    assert [len(memo), len(mode.fake_tensor_converter.meta_converter.tensor_memo), len(storages)] == [1, 2, 1]
    del fake, memo, storages
    assert len(mode.fake_tensor_converter.meta_converter.storage_memo) == 1
    del view
    assert len(mode.fake_tensor_converter.tensor_memo) == 0
    assert len(mode.fake_tensor_converter.meta_converter.storage_memo) == 0


# ---- Options ---------------------------------------------------------------------------------------------------------


def test_what_makes_sizes_symbolic_is_refused() -> None:
    with pytest.raises(DynamicShapesError, match="static_shapes=False"):
        FakeTensorMode(static_shapes=False)
    mode = FakeTensorMode()
    for option in ("shape_env", "symbolic_context"):
        options: Any = {option: object()}
        with pytest.raises(DynamicShapesError, match=option):
            mode.fake_tensor_converter.from_real_tensor(mode, torch.ones(2), **options)


def test_a_constant_may_have_more_elements_than_the_mode_tracks() -> None:
    mode = FakeTensorMode()
    converted: Any = mode.fake_tensor_converter.from_real_tensor(mode, torch.arange(5), make_constant=True)
    made: Any = FakeTensor(mode, torch.empty(5, dtype=torch.long, device="meta"), "cpu", constant=torch.arange(5))
    for given in (converted, made):
        with mode:
            assert given.constant is not None and given.constant.tolist() == given.tolist() == [0, 1, 2, 3, 4]
            assert given[2].item() == 2  # values derived from it are tracked within the limit
            given[0] = 7
            assert given.constant.tolist() == [7, 1, 2, 3, 4]
            given.add_(torch.randint(2, (5,)))
        assert given.constant is None


def test_the_cache_is_off_where_real_values_are_computed() -> None:
    assert FakeTensorMode().cache_enabled
    assert not FakeTensorMode(propagate_real_tensors=True).cache_enabled
    assert FakeTensorMode(propagate_real_tensors=True, cache_enabled=True).cache_enabled


def test_dynamos_configuration_turns_the_cross_check_on() -> None:
    import torch._dynamo

    assert not FakeTensorMode().cache_crosscheck_enabled
    with torch._dynamo.config.patch(fake_tensor_cache_crosscheck_enabled=True):
        mode = FakeTensorMode()
    assert mode.cache_crosscheck_enabled and not FakeTensorMode().cache_crosscheck_enabled
    with mode:
        assert FakeTensorMode().cache_crosscheck_enabled, "hits are compared now"
        with mode:
            torch.ones(2).add(1)
    assert not FakeTensorMode().cache_crosscheck_enabled


def test_addresses_are_zero_with_a_warning_or_an_error_as_configured() -> None:
    with FakeTensorMode():
        allowed = torch.empty(2)
    with torch._functorch.config.patch(fake_tensor_allow_unsafe_data_ptr_access=False):
        strict = FakeTensorMode()
    with strict:
        refused = torch.empty(2)
    with pytest.warns(DeprecationWarning, match="data_ptr"):
        assert allowed.data_ptr() == 0
    with pytest.raises(torchfake.DataAccessError):
        refused.data_ptr()
    with fake_mode():
        assert torch.empty(2).data_ptr() != 0
    assert torch.ones(2).data_ptr() != 0


def test_torchdistx_fakes_devices_on_request_only() -> None:
    from torchfake.fake import fake_mode as torchdistx_fake_mode

    with torchdistx_fake_mode() as mode:
        assert is_fake(torch.ones(2)) and not mode.fake_cuda
        with pytest.raises(torchfake.DeviceNotFakedError):
            torch.ones(2, device="xpu")
    with torchdistx_fake_mode(fake_cuda=True):
        assert torch.ones(2, device="xpu").device.type == "xpu"
    assert fake_mode().fake_cuda
    assert isinstance(torchdistx_fake_mode(), fake_mode)


# ---- PyTorch's tools -------------------------------------------------------------------------------------------------


def test_the_active_mode_is_the_one_of_the_thread() -> None:
    assert torch._guards.active_fake_mode() is None
    with FakeTensorMode() as mode:
        assert torch._guards.active_fake_mode() is mode
        theirs = torch._subclasses.fake_tensor.FakeTensorMode()
        with theirs:
            assert torch._guards.active_fake_mode() is theirs
        assert torch._guards.active_fake_mode() is mode
    with fake_mode():  # no FakeTensorMode
        assert torch._guards.active_fake_mode() is None


def test_inductors_memory_estimator_counts_our_fakes() -> None:
    from torch._inductor.fx_passes.memory_estimator import build_memory_profile
    from torch.fx.experimental.proxy_tensor import make_fx

    def f(x: torch.Tensor) -> torch.Tensor:
        return (x @ x).relu()

    peaks = []
    for mode in (FakeTensorMode(), torch._subclasses.fake_tensor.FakeTensorMode()):
        with mode:
            graph = make_fx(f)(torch.empty(16, 16, device="cuda")).graph
        peaks.append(build_memory_profile(graph, lambda node: node.op != "placeholder"))
    assert peaks[0] == peaks[1] and max(peaks[0]) > 0


def test_the_runtime_estimator_recognises_the_mode() -> None:
    from torch.distributed._tools.runtime_estimator import RuntimeEstimator

    with pytest.raises(AssertionError, match="No FakeTensorMode found"), RuntimeEstimator():
        pass
    with FakeTensorMode() as mode, RuntimeEstimator()("operator-level-cost-model"):
        assert RuntimeEstimator.fake_mode is mode


# ---- Files -----------------------------------------------------------------------------------------------------------


def test_fakes_are_saved_as_real_tensors_without_data(tmp_path: Path) -> None:
    with FakeTensorMode():
        model = torch.nn.Linear(3, 2)
        tied = {"a": torch.empty(4, 2), "half": torch.empty(3, dtype=torch.uint16)}
        tied["row"] = tied["a"][1]
    path = tmp_path / "saved.pt"
    with torch.serialization.skip_data(materialize_fake_tensors=True):
        torch.save({**model.state_dict(), **tied}, path)
    loaded = torch.load(path, weights_only=True)
    assert not any(is_fake(tensor) for tensor in loaded.values())
    assert {name: (tuple(t.shape), t.dtype) for name, t in loaded.items()} == {
        "weight": ((2, 3), torch.float32),
        "bias": ((2,), torch.float32),
        "a": ((4, 2), torch.float32),
        "half": ((3,), torch.uint16),
        "row": ((2,), torch.float32),
    }
    loaded["a"].fill_(7)
    assert loaded["row"].tolist() == [7, 7], "views of one storage stay views of one"
    torch.save(tied["a"], path)  # without the context a fake is saved as a fake
    assert is_fake(torch.load(path, weights_only=True))


def test_pytorchs_mode_takes_the_real_values_of_a_fake_along() -> None:
    with torch._functorch.config.patch(fake_tensor_propagate_real_tensors=True):
        with FakeTensorMode():
            known = torch.full((3,), 2.0)
        theirs = torch._subclasses.FakeTensorMode().from_tensor(known)
        assert isinstance(theirs, torch._subclasses.FakeTensor)
        assert torch.equal(theirs.real_tensor, torch.full((3,), 2.0))
        # A fake with unknown values has no values to convert.
        with torchfake.fake_mode():
            unknown = torch.rand(3)
        theirs = torch._subclasses.FakeTensorMode().from_tensor(unknown)
        assert theirs.shape == (3,)


# ---- Constants -------------------------------------------------------------------------------------------------------


@pytest.fixture(params=[False, True], ids=["values unknown", "values propagate"])
def mode(request: pytest.FixtureRequest) -> FakeTensorMode:
    return FakeTensorMode(propagate_real_tensors=request.param)


def test_what_follows_from_constants_alone_is_a_constant(mode: FakeTensorMode) -> None:
    with mode:
        x = torch.tensor([4.0])
        y = x.add_(1)
        constants = [x.constant, y.constant, (x * 2).constant, torch.div(4, 4, rounding_mode="trunc").constant]
        assert torch.rand(1).constant is None and torch.ones(1).constant is None
    assert [constant.item() for constant in constants] == [5, 5, 10, 1]


def test_a_constant_ends_where_something_else_is_written_to_its_storage(mode: FakeTensorMode) -> None:
    with mode:
        x, drawn = torch.tensor([1.0]), torch.rand(1)
        view = x[:]
        assert (x + drawn).constant is None and x.constant is not None
        view.add_(drawn)
        assert x.constant is None and view.constant is None
        resized = torch.tensor([1])
        assert resized.constant is not None and resized.resize_([2]).constant is None


def test_a_tensor_that_is_converted_is_no_constant_while_values_propagate() -> None:
    mode = FakeTensorMode(propagate_real_tensors=True)
    fake = mode.from_tensor(torch.ones(1))
    assert fake.constant is None and fake.real_tensor.item() == 1


def test_a_large_alias_of_a_constant_is_none_while_values_propagate() -> None:
    with FakeTensorMode(propagate_real_tensors=True):
        x = torch.tensor([1])
        many = x.expand([4])
        assert many.constant is None and x.constant is not None
        many[0] = 1
        assert x.constant is None and x.item() == 1


def test_constants_over_one_storage_share_one(mode: FakeTensorMode) -> None:
    with mode:
        x = torch.tensor([4.0])
        storages = [fake.constant.untyped_storage()._cdata for fake in (x, x[:], x.view(1, 1))]
        assert len(set(storages)) == 1
        assert torch.tensor([4.0]).constant.untyped_storage()._cdata not in storages
        x.add_(1)
        constant = x.constant
    assert constant.item() == 5


# ---- Behaviour of PyTorch's fakes that differs from real tensors -----------------------------------------------------


def test_a_view_that_strides_do_not_allow_is_a_value_error() -> None:
    for x in (torch.ones(2, 3).t(), torch.arange(7).expand(12, 7)):
        with pytest.raises(ValueError, match=r"aten::view: Cannot view a tensor with shape .*; reshape copies"):
            FakeTensorMode().from_tensor(x).view(-1)
        with fake_mode(), pytest.raises(RuntimeError, match="view size is not compatible"):
            torchfake.to_fake(x).view(-1)
    with FakeTensorMode(), pytest.raises(RuntimeError, match="invalid for input of size"):
        torch.ones(2, 3).view(5)


def test_the_address_of_a_storage_is_zero_or_an_error_as_that_of_a_tensor_is() -> None:
    with FakeTensorMode():
        assert torch.ones(2).untyped_storage().data_ptr() == 0
    with (
        torch._functorch.config.patch(fake_tensor_allow_unsafe_data_ptr_access=False),
        FakeTensorMode(),
        pytest.raises(RuntimeError, match="holds no data"),
    ):
        torch.ones(2).untyped_storage().data_ptr()


def test_the_mode_counts_as_a_dispatch_mode() -> None:
    assert isinstance(FakeTensorMode(), torch.utils._python_dispatch.TorchDispatchMode)
    assert not isinstance(fake_mode(), torch.utils._python_dispatch.TorchDispatchMode)


def test_fakes_print_as_pytorchs_do() -> None:
    def texts(mode: Any) -> list[str]:
        with mode:
            x = torch.ones(2, 3, dtype=torch.int64)
            leaf = torch.ones(2, requires_grad=True)
            return [repr(x), str(leaf), repr(leaf * 2), f"{torch.ones(())!r}"]

    assert texts(FakeTensorMode()) == texts(torch._subclasses.FakeTensorMode())
    with fake_mode():
        assert repr(torch.ones(2)) == "tensor(..., size=(2,), fake=True)"


def test_a_fake_whose_device_was_set_is_converted_to_that_device() -> None:
    fake = FakeTensorMode(allow_non_fake_inputs=True).from_tensor(torch.ones(3).view(1, 3))
    fake.fake_device = torch.device("cuda")
    converted = FakeTensorMode(allow_non_fake_inputs=True).from_tensor(fake)
    assert converted.device == torch.device("cuda:0") and converted.shape == (1, 3)
