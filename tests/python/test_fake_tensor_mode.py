"""FakeTensorMode: its options, refusals, and constants."""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._functorch import config as functorch_config
from torch._subclasses.fake_tensor import FakeTensor as PyTorchsFakeTensor
from torch._subclasses.fake_tensor import FakeTensorMode as PyTorchsMode
from torch._subclasses.fake_tensor import is_fake as is_pytorchs_fake
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import _disable_current_modes

import torchfake
from torchfake import (
    DataDependentOutputException,
    DeviceMismatchError,
    DynamicOutputShapeException,
    DynamicShapesError,
    FakeCopyMode,
    FakeTensor,
    FakeTensorError,
    FakeTensorMode,
    MetadataMismatchError,
    MixedModesError,
    RealTensorError,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
    fake_mode,
    fake_tensor_tls,
    is_fake,
)


def test_tensors_created_inside_are_fakes_of_the_mode() -> None:
    with FakeTensorMode() as mode:
        x = torch.ones(2, device="cuda")
    assert is_fake(x) and isinstance(x, FakeTensor)
    assert x.fake_mode is mode and x.fake_device == torch.device("cuda:0")
    assert (x + x).fake_mode is mode, "fakes keep working outside"


def test_the_attributes_of_fakes_are_none_of_real_tensors() -> None:
    for name in ("fake_mode", "fake_device", "constant", "real_tensor", "item_memo"):
        assert not hasattr(torch.ones(2), name)


def test_an_attribute_of_the_same_name_is_left_to_whoever_sets_it() -> None:
    x = torch.ones(2)
    x.constant = 3  # type: ignore[attr-defined]
    assert x.constant == 3  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["item_memo", "nonzero_memo", "unique_memo", "unique_consecutive_memo"])
def test_what_is_remembered_of_a_fake_can_be_set_until_a_write(name: str) -> None:
    with FakeTensorMode():
        fake = torch.ones(1)
        setattr(fake, name, None)  # as it is
        setattr(fake, name, 7)
        assert getattr(fake, name) == 7
        with pytest.raises(TypeError, match=f"{name}: expected a number, got list"):
            setattr(fake, name, [7])
        with pytest.raises(AttributeError, match=f"{name} of a fake cannot be deleted"):
            setattr(fake, name, None)
        fake.add_(1)
    assert getattr(fake, name) is None
    real = torch.ones(1)
    setattr(real, name, 7)
    assert getattr(real, name) == 7
    delattr(real, name)
    assert not hasattr(real, name)


def test_the_mode_of_a_fake_is_found_also_when_nobody_holds_it() -> None:
    with FakeTensorMode():
        x = torch.ones(2)
    assert isinstance(x.fake_mode, FakeTensorMode)
    assert x.fake_mode.is_our_fake(x)


def test_a_mode_may_be_entered_again_and_left_again() -> None:
    mode = FakeTensorMode()
    with mode:
        with mode:
            assert is_fake(torch.ones(1))
        assert is_fake(torch.ones(1))
    assert not is_fake(torch.ones(1))


@pytest.mark.parametrize("make", [FakeTensorMode, fake_mode, lambda: fake_mode(gpus="2xH200")])
def test_a_mode_that_was_not_entered_cannot_be_left(make: Callable[[], Any]) -> None:
    mode = make()
    with pytest.raises(FakeTensorError, match="this thread is not in the mode"):
        mode.__exit__(None, None, None)
    with mode:
        errors: list[BaseException] = []

        def leave() -> None:
            try:
                mode.__exit__(None, None, None)
            except FakeTensorError as error:
                errors.append(error)

        other = threading.Thread(target=leave)
        other.start()
        other.join()
        assert len(errors) == 1
        assert is_fake(torch.ones(1))


def test_generators_that_take_turns_leave_their_modes_in_any_order() -> None:
    def on_a_gpu() -> Iterator[Tensor]:
        with fake_mode():
            while True:
                yield torch.tensor([1.0, 2.0], device="cuda")

    before = torch._C._only_lift_cpu_tensors()
    first, second = on_a_gpu(), on_a_gpu()
    next(first), next(second)
    first.close()
    assert next(second).is_cuda
    second.close()
    assert not is_fake(torch.ones(1))
    assert torch._C._only_lift_cpu_tensors() == before


def test_the_innermost_mode_makes_the_tensors() -> None:
    with FakeTensorMode() as outer:
        with FakeTensorMode() as inner:
            assert torch.ones(1).fake_mode is inner
        assert torch.ones(1).fake_mode is outer


def test_threads_enter_the_same_mode_on_their_own() -> None:
    mode = FakeTensorMode()
    inside, leave, seen = threading.Event(), threading.Event(), []

    def other() -> None:
        with mode:
            inside.set()
            leave.wait(10)
            seen.append(is_fake(torch.ones(1)))

    thread = threading.Thread(target=other)
    thread.start()
    inside.wait(10)
    with mode:
        pass
    assert not is_fake(torch.ones(1))
    leave.set()
    thread.join()
    assert seen == [True]


def test_fakes_of_two_modes_do_not_mix() -> None:
    with FakeTensorMode():
        x = torch.ones(2)
    with FakeTensorMode():
        y = torch.ones(2)
        with pytest.raises(MixedModesError, match=r"aten::add.Tensor: argument 'other' belongs to another mode"):
            y + x
    with pytest.raises(MixedModesError, match="argument 'other'"):
        y + x
    with fake_mode():
        z = torch.ones(2)
    with pytest.raises(MixedModesError):
        z + x


def test_fakes_of_fake_mode_mix_as_before() -> None:
    with FakeTensorMode():
        with fake_mode():
            x = torch.ones(2)
        with fake_mode():
            assert is_fake(x + torch.ones(2))


def test_a_fake_of_another_mode_is_converted_like_a_real_tensor() -> None:
    with fake_mode():
        x = torch.ones(2, 3, device="cuda").t()
    mode = FakeTensorMode()
    y = mode.from_tensor(x)
    assert y.fake_mode is mode and y.stride() == x.stride() and y.device == x.device


REAL = torch.ones(2, 2)

WITH_REAL: dict[str, Callable[[], Any]] = {
    "real_alone": lambda: REAL + 1,
    "real_and_fake": lambda: torch.ones(2, 2) + REAL,
    "in_place": lambda: torch.ones(2, 2).add_(REAL),
    "list": lambda: torch.cat([torch.ones(2, 2), REAL]),
    "view": lambda: REAL.t(),
    "zeros_like": lambda: torch.zeros_like(REAL),
    "to_cuda": lambda: REAL.to("cuda"),
    "zero_dimensional": lambda: torch.ones(2) * REAL.new_ones(()),
}


@pytest.mark.parametrize("name", WITH_REAL)
def test_real_tensors_are_refused(name: str) -> None:
    with (
        FakeTensorMode(),
        pytest.raises(RealTensorError, match=r"is a real tensor.*from_tensor.*allow_non_fake_inputs"),
    ):
        WITH_REAL[name]()
    assert torch.equal(REAL, torch.ones(2, 2))


@pytest.mark.parametrize("name", WITH_REAL)
def test_real_tensors_are_converted_where_the_mode_allows_it(name: str) -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        got = WITH_REAL[name]()
    want = WITH_REAL[name] if name != "to_cuda" else (lambda: REAL)
    assert is_fake(got)
    assert (got.size(), got.stride(), got.dtype) == (want().size(), want().stride(), want().dtype)
    assert torch.equal(REAL, torch.ones(2, 2))


def test_a_real_tensor_whose_sizes_would_change_is_never_converted() -> None:
    with FakeTensorMode(allow_non_fake_inputs=True), pytest.raises(RealTensorError):
        REAL.t_()
    assert REAL.stride() == (2, 1)


def test_the_thread_can_override_what_modes_do_with_real_tensors() -> None:
    assert fake_tensor_tls.allow_non_fake_inputs_override is None
    try:
        fake_tensor_tls.allow_non_fake_inputs_override = True
        with FakeTensorMode():
            assert is_fake(REAL + 1)
        fake_tensor_tls.allow_non_fake_inputs_override = False
        with FakeTensorMode(allow_non_fake_inputs=True), pytest.raises(RealTensorError):
            REAL + 1
    finally:
        fake_tensor_tls.allow_non_fake_inputs_override = None


def test_numbers_make_constants() -> None:
    with FakeTensorMode():
        total = torch.add(1, 2)  # type: ignore[call-overload]
    assert is_fake(total) and total.item() == 3


def test_a_real_tensor_can_be_printed_inside() -> None:
    with FakeTensorMode():
        assert repr(REAL) == "tensor([[1., 1.],\n        [1., 1.]])"


def test_constants_of_one_element_are_kept() -> None:
    with FakeTensorMode():
        x = torch.tensor(3)
        assert x.constant is not None and not is_fake(x.constant)
        assert x.item() == 3 and (x * 2).item() == 6 and bool(x == 3)
        assert torch.tensor([4.0]).item() == 4.0
        assert torch.tensor([1, 2]).constant is None
        for unknown in (torch.tensor([1, 2])[0], torch.ones(()), torch.zeros(1), torch.arange(1), torch.full((), 2)):
            assert unknown.constant is None
            with pytest.raises(DataDependentOutputException):
                unknown.item()


def test_a_constant_is_forgotten_when_something_unknown_is_written_to_an_alias() -> None:
    with FakeTensorMode():
        x = torch.tensor(3.0)
        alias = x.view(1)
        x.add_(1)
        assert x.item() == 4 and alias.item() == 4
        alias.add_(torch.rand(1))
        assert x.constant is None and alias.constant is None


def test_a_constant_handed_out_cannot_change_the_fake() -> None:
    with FakeTensorMode():
        x = torch.tensor(3.0)
    x.constant.add_(1)
    assert x.item() == 3


def test_a_shape_env_is_refused_clearly() -> None:
    with pytest.raises(TypeError, match=r"shape_env: expected a torchfake.ShapeEnv.*got object"):
        FakeTensorMode(shape_env=object())


def test_a_tracer_that_makes_sizes_symbolic_is_refused_in_the_mode() -> None:
    with FakeTensorMode():
        x = torch.ones(2, 3)
        with pytest.raises(DynamicShapesError, match=r"tracing_mode='symbolic'.*not supported yet"):
            make_fx(torch.sin, tracing_mode="symbolic")(x)
        assert make_fx(torch.sin, tracing_mode="fake")(x)(x).shape == (2, 3)
    with pytest.raises(NotImplementedError):
        FakeTensorMode().from_tensor(REAL, symbolic_context=object())


def test_a_tracer_makes_symbolic_fakes_of_its_own_in_a_fake_mode() -> None:
    with fake_mode():
        graph = make_fx(torch.sin, tracing_mode="symbolic")(torch.ones(2, 3))
        assert graph(torch.ones(4, 5)).shape == (4, 5)


def test_the_plain_options_are_kept_for_those_who_read_them() -> None:
    mode = FakeTensorMode(static_shapes=True, export=True)
    assert (mode.static_shapes, mode.export, mode.shape_env) == (True, True, None)
    assert FakeTensorMode().static_shapes
    mode.reset_nt_tensor_id_counter()
    assert mode.nt_tensor_id_counter == mode.nt_tensor_id_initial_count
    assert FakeTensorMode.is_infra_mode()


def test_meta_can_be_claimed_unless_the_mode_says_no() -> None:
    meta = torch.empty(2, device="meta")
    with FakeTensorMode() as mode:
        x = torch.ones(2, device="meta")
    assert is_fake(x) and x.device.type == "meta" and mode.from_tensor(meta).device.type == "meta"
    with FakeTensorMode(allow_meta=False) as mode, pytest.raises(UnsupportedFakeTensorException, match="meta"):
        torch.ones(2, device="meta")
    with pytest.raises(UnsupportedFakeTensorException, match="meta"):
        mode.from_tensor(meta)


def test_the_cache_is_used_unless_the_mode_says_no() -> None:
    torchfake.clear_cache()
    with FakeTensorMode(cache_enabled=False) as mode:
        x = torch.rand(3)
        x.exp(), x.exp()
        assert mode.cache_info().hits == 0 and mode.cache_info().bypasses["cache disabled"] >= 2
        mode.cache_enabled = True
        x.exp(), x.exp()
        assert mode.cache_info().hits == 1
        with torchfake.disable_fake_tensor_cache(mode):
            x.exp()
        assert mode.cache_info().hits == 1 and mode.cache_enabled
        FakeTensorMode.cache_clear()
        assert mode.cache_info().hits == 0


@pytest.fixture
def library() -> Any:
    with torch.library._scoped_library("torchfake_test_mode", "FRAGMENT") as library:
        yield library


def test_a_kernel_is_run_on_zeros_only_where_the_mode_allows_it(library: Any) -> None:
    library.define("first_row(Tensor x) -> Tensor")
    library.impl("first_row", lambda x: x[0].clone(), "CPU")
    op = torch.ops.torchfake_test_mode.first_row
    with fake_mode():
        assert op(torch.ones(2, 3)).shape == (3,)
    # PyTorch's fakes only run PyTorch's own operators on zeros.
    with FakeTensorMode():
        x = torch.ones(2, 3)
        with pytest.raises(UnsupportedOperatorException, match=r"first_row.*PyTorch's own operators"):
            op(x)
        assert torch.linalg.ldl_factor(torch.ones(3, 3)).LD.shape == (3, 3)
    with FakeTensorMode(allow_fallback_kernels=False):
        x = torch.ones(2, 3)
        with pytest.raises(UnsupportedOperatorException, match="allow_fallback_kernels=False"):
            op(x)


def test_the_preferred_device_type_wins_over_an_error() -> None:
    with FakeTensorMode():
        x, y = torch.ones(2), torch.ones(2, device="cuda")
        with pytest.raises(DeviceMismatchError):
            x + y
    with functorch_config.patch(fake_tensor_prefer_device_type="cuda"), FakeTensorMode():
        x, y = torch.ones(2), torch.ones(2, device="cuda")
        assert (x + y).device == (y + x).device == torch.device("cuda:0")


# ---- Propagated real values ------------------------------------------------------------------------------------------


def test_real_values_are_propagated_and_readable() -> None:
    torch.manual_seed(0)
    with FakeTensorMode(propagate_real_tensors=True) as mode:
        x = torch.randn(100)
        mask = x > 0
        assert x[mask].shape == (int(mask.sum()),) and 0 < int(mask.sum()) < 100
        assert mask.nonzero().shape[0] == int(mask.sum())
        y = mode.from_tensor(REAL).mul_(3)
        assert y.real_tensor is not None and y.real_tensor.tolist() == [[3, 3], [3, 3]]
        big = torch.rand(200, 200, device="cuda") @ torch.eye(200, device="cuda")
        assert float(big.max()) < 1
    assert torch.equal(REAL, torch.ones(2, 2)), "real tensors are copied"


def test_a_copy_has_the_real_values_too() -> None:
    mode, real = FakeTensorMode(propagate_real_tensors=True), torch.rand(3, 4)
    fake = mode.from_tensor(real)
    copied, view = copy.deepcopy((fake, fake[1:].t()))
    assert torch.equal(copied.real_tensor, real) and torch.equal(view.real_tensor, real[1:].t())
    copied.zero_()
    assert torch.equal(fake.real_tensor, real) and not view.real_tensor.any()
    parameter = copy.deepcopy(mode.from_tensor(torch.nn.Parameter(real)))
    assert isinstance(parameter, torch.nn.Parameter) and torch.equal(parameter.real_tensor, real)


def test_without_propagation_there_is_no_real_tensor() -> None:
    with FakeTensorMode() as mode:
        assert torch.tensor(3).real_tensor is None
        x = mode.from_tensor(REAL)
        with pytest.raises(DynamicOutputShapeException, match=r"aten::nonzero"):
            x.nonzero()


def test_a_fake_kernel_that_disagrees_with_the_real_one_is_found(library: Any) -> None:
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: torch.cat([x, x]), "CPU")
    library.impl("twice", lambda x: torch.empty_like(x), "Meta")
    with (
        FakeTensorMode(propagate_real_tensors=True),
        pytest.raises(MetadataMismatchError, match=r"twice.*\[2\].*\[4\]"),
    ):
        torch.ops.torchfake_test_mode.twice(torch.ones(2))


# ---- Memos -----------------------------------------------------------------------------------------------------------


def memos(x: Tensor) -> tuple[Any, ...]:
    return x.nonzero_memo, x.item_memo, x.unique_memo, x.unique_consecutive_memo


def test_what_was_found_is_remembered_until_a_write() -> None:
    with FakeTensorMode(propagate_real_tensors=True):
        x = torch.tensor([1, 1, 0, 1])
        assert memos(x) == (None,) * 4
        x.nonzero(), x.unique(), x.unique_consecutive()
        assert memos(x) == (3, None, 2, 3)
        x.add_(0)
        assert memos(x) == (None,) * 4


def test_a_new_epoch_ends_what_is_remembered() -> None:
    with FakeTensorMode() as mode:
        x = torch.tensor(2.5)
        x.item()
        assert x.item_memo == 2.5
        mode.epoch += 1
        assert x.item_memo is None


def test_a_copy_of_a_mode_has_its_options_and_none_of_its_fakes() -> None:
    class Mine(FakeTensorMode):
        pass

    mode = Mine(allow_non_fake_inputs=True, export=True)
    mode.mine = [1]  # type: ignore[attr-defined]
    copied: Any = copy.deepcopy(mode)
    assert type(copied) is Mine and copied.allow_non_fake_inputs and copied.export and copied.mine == [1]
    fake = mode.from_tensor(REAL)
    assert mode.is_our_fake(fake) and not copied.is_our_fake(fake) and copied.from_tensor(REAL) is not fake
    assert copy.deepcopy(fake_mode(known_values_limit=3)).known_values_limit == 3


# ---- The rest of the API ---------------------------------------------------------------------------------------------


def test_suspending_the_mode_yields_it() -> None:
    with FakeTensorMode() as mode:
        with torchfake.unset_fake_temporarily() as suspended:
            assert suspended is mode and not is_fake(torch.ones(1))
        assert is_fake(torch.ones(1))
    with torchfake.unset_fake_temporarily() as suspended:
        assert suspended is None


@pytest.mark.parametrize("suspend", [unset_fake_temporarily, _disable_current_modes])
def test_what_suspends_pytorchs_mode_suspends_ours(suspend: Callable[[], Any]) -> None:
    real = torch.ones(2)
    with FakeTensorMode() as mode:
        with suspend() as suspended:
            assert not is_fake(real + 1) and not is_fake(torch.ones(2))
            assert suspended in ([], mode)
        with pytest.raises(ZeroDivisionError), suspend():
            1 / 0  # noqa: B018
        assert is_fake(torch.ones(2))
    with suspend() as suspended:
        assert suspended in ([], None)


def test_what_suspends_pytorchs_mode_leaves_a_fake_mode() -> None:
    with fake_mode(), unset_fake_temporarily(), _disable_current_modes():
        assert is_fake(torch.ones(2))


def test_a_copy_of_a_real_module_is_fake() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    mode = FakeTensorMode()
    with FakeCopyMode(mode):
        copied = copy.deepcopy(module)
    assert [type(p) for p in copied.parameters()] == [torch.nn.Parameter] * 4
    assert all(t.fake_mode is mode for t in copied.state_dict(keep_vars=True).values())
    assert not any(is_fake(t) for t in module.state_dict().values())


@pytest.mark.parametrize("kind", [Tensor, torch.nn.Parameter])
def test_a_copy_of_a_fake_is_another_one(kind: type[Tensor]) -> None:
    mode = FakeTensorMode()
    fake = mode.from_tensor(torch.ones(2) if kind is Tensor else kind(torch.ones(2)))
    with FakeCopyMode(mode):
        first, second = copy.deepcopy([fake, fake])
    assert first is second and first is not fake and type(first) is kind
    assert first.fake_mode is mode and first.untyped_storage()._cdata != fake.untyped_storage()._cdata


def test_a_copy_of_a_fake_that_is_no_leaf_is_none_either() -> None:
    mode = FakeTensorMode()
    result = mode.from_tensor(torch.ones(2, requires_grad=True)) * 2
    with FakeCopyMode(mode):
        copied = copy.deepcopy(result)
    assert copied is not result and copied.requires_grad and not copied.is_leaf


def test_the_mode_of_whatever_holds_a_fake_is_found() -> None:
    mode = FakeTensorMode()
    x = mode.from_tensor(REAL)
    assert torchfake.maybe_get_fake_mode(x) is mode
    assert torchfake.maybe_get_fake_mode(torch._to_functional_tensor(x)) is mode
    assert torchfake.maybe_get_fake_mode(REAL) is None and torchfake.maybe_get_fake_mode("x") is None
    assert torchfake.detect_fake_mode({"a": [REAL, x]}) is mode
    assert torchfake.detect_fake_mode(REAL) is None
    with pytest.raises(MixedModesError):
        torchfake.detect_fake_mode([x, FakeTensorMode().from_tensor(REAL)])
    with mode:
        assert torchfake.detect_fake_mode() is mode


def test_extracted_metadata_equals_pytorchs() -> None:
    from torch._subclasses.fake_tensor import extract_tensor_metadata

    for real in (torch.ones(2, 3).t(), torch.ones(4)[1:], torch.ones(2, dtype=torch.cfloat).conj()):
        ours, theirs = torchfake.extract_tensor_metadata(real), extract_tensor_metadata(real)
        for name in ours.__dataclass_fields__:
            got, want = getattr(ours, name), getattr(theirs, name)
            assert got == (tuple(want) if isinstance(want, torch.Size) else want), name
        assert hash(ours) == hash(torchfake.extract_tensor_metadata(FakeTensorMode().from_tensor(real)))


def test_every_operator_is_shown_where_logging_asks_for_it(caplog: pytest.LogCaptureFixture) -> None:
    with FakeTensorMode():
        torch.ones(1)
    assert not caplog.messages
    with caplog.at_level("DEBUG", logger="torchfake.trace"), FakeTensorMode():
        x = torch.ones(2, 3, device="cuda")
        torch.cat([x, x]).mul(2)
    assert caplog.messages[-2:] == [
        "aten::cat([Float[2, 3]@cuda:0, Float[2, 3]@cuda:0], 0) -> Float[4, 3]@cuda:0",
        "aten::mul.Tensor(Float[4, 3]@cuda:0, Long[]@cpu) -> Float[4, 3]@cuda:0",
    ]


def test_operators_of_a_handler_are_not_shown() -> None:
    lines: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())
            torch.ones(2).add(1)

    log, handler = logging.getLogger("torchfake.trace"), Handler()
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    try:
        with FakeTensorMode():
            torch.ones(3).mul(2)
    finally:
        log.removeHandler(handler)
        log.setLevel(logging.NOTSET)
    assert lines[-1].startswith("aten::mul.Tensor") and not any("aten::add" in line for line in lines)


def test_names_that_programs_import_from_pytorch_mean_the_same() -> None:
    assert torchfake.CONSTANT_NUMEL_LIMIT == 1
    assert torchfake.FakeTensorDeviceMismatchError is DeviceMismatchError
    assert isinstance(FakeTensorMode.cache_info(), torchfake.DispatchCacheInfo)
    assert isinstance(fake_tensor_tls, torchfake.FakeTensorTLS)


def test_what_the_cache_has_done_can_be_logged(caplog: pytest.LogCaptureFixture) -> None:
    FakeTensorMode.cache_clear()
    with FakeTensorMode(), torchfake.disable_fake_tensor_cache():
        torch.ones(2).exp()
    with caplog.at_level("INFO", logger="torchfake.cache"):
        torchfake.dump_cache_stats()
    assert caplog.messages[0].startswith("cache: 0 hits, 0 misses")
    assert any("bypasses: cache disabled" in message for message in caplog.messages)


def test_a_mode_has_the_attributes_of_pytorchs() -> None:
    mode = FakeTensorMode()
    assert not mode.enter_stack and not mode.in_kernel_invocation and not mode.allow_scalar_outputs
    with mode, mode:
        assert len(mode.enter_stack) == 2
    with torchfake.cross_check_cache():
        assert mode.cache_crosscheck_enabled
    assert not mode.cache_crosscheck_enabled
    mode.cache_crosscheck_enabled = True
    try:
        assert FakeTensorMode().cache_crosscheck_enabled, "there is one cache"
    finally:
        mode.cache_crosscheck_enabled = False


# ---- Beside PyTorch's own --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make_mode", [FakeTensorMode, fake_mode])
def test_pytorchs_mode_inside_one_of_ours_suspends_it(make_mode: Callable[[], Any]) -> None:
    theirs = PyTorchsMode()
    with make_mode():
        with theirs, PyTorchsMode(), theirs:
            x = torch.ones(1)
            assert isinstance(x + 1, PyTorchsFakeTensor) and not is_fake(x)
        assert is_fake(torch.ones(1))
        with pytest.raises(ZeroDivisionError), theirs:
            1 / 0  # noqa: B018
        assert is_fake(torch.ones(1))
    assert not is_fake(torch.ones(1))


def test_a_mode_of_ours_inside_pytorchs_is_refused() -> None:
    with PyTorchsMode(), pytest.raises(MixedModesError, match="leave it"), FakeTensorMode():
        pass
    with PyTorchsMode(), pytest.raises(MixedModesError), fake_mode():
        pass
    assert not is_fake(torch.ones(1))
    with FakeTensorMode(), torchfake.no_fake_mode(), PyTorchsMode():
        assert type(torch.ones(1)).__name__ == "FakeTensor"


@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
def test_tensors_go_to_pytorchs_mode_and_back_with_their_aliases(device: str) -> None:
    with FakeTensorMode() as mode:
        base = torch.ones(4, 3, device=device, dtype=torch.half)
        views = [base, base[1:].t(), base.view(12)]
    theirs = [torchfake.to_pytorch_fake(view) for view in views]
    assert all(type(t).__name__ == "FakeTensor" and t.fake_mode is theirs[0].fake_mode for t in theirs)
    back = [torchfake.from_pytorch_fake(t, mode) for t in theirs]
    for group in (theirs, back):
        assert len({t.untyped_storage()._cdata for t in group}) == 1
        for got, want in zip(group, views, strict=True):
            assert (got.size(), got.stride(), got.storage_offset(), got.dtype, got.device) == (
                want.size(),
                want.stride(),
                want.storage_offset(),
                want.dtype,
                want.device,
            )
    assert back[0].fake_mode is mode


def test_conversion_keeps_requires_grad() -> None:
    with fake_mode():
        x = torch.nn.Parameter(torch.ones(2))
    assert torchfake.to_pytorch_fake(x).requires_grad
    assert torchfake.from_pytorch_fake(torchfake.to_pytorch_fake(x)).requires_grad
    with pytest.raises(ValueError, match="expected a fake"):
        torchfake.to_pytorch_fake(REAL)
    with pytest.raises(TypeError, match="FakeTensor of PyTorch's"):
        torchfake.from_pytorch_fake(x)


def test_conversion_keeps_what_is_special_about_a_tensor() -> None:
    with fake_mode():
        parameter = torch.nn.Parameter(torch.ones(2, 3, device="cuda"))
        parameter.grad = torch.ones(2, 3, device="cuda")
        parts = [parameter, parameter[1:], parameter * 2, parameter.detach()]
    theirs = [torchfake.to_pytorch_fake(part) for part in parts]
    back = [torchfake.from_pytorch_fake(part) for part in theirs]
    for group in (theirs, back):
        assert [(t.requires_grad, t.is_leaf) for t in group] == [(t.requires_grad, t.is_leaf) for t in parts]
        assert [isinstance(t, torch.nn.Parameter) for t in group] == [True, False, False, False]
        assert group[0].grad is not None and group[0].grad.shape == (2, 3)
        assert group[0].grad.device == torch.device("cuda:0")
    assert type(theirs[0].grad).__name__ == "FakeTensor" and is_fake(back[0].grad)


def test_conversion_keeps_constants() -> None:
    with FakeTensorMode() as mode:
        theirs: Any = torchfake.to_pytorch_fake(torch.tensor(2.5))
    assert theirs.constant == 2.5 and theirs.item() == 2.5
    for back in (torchfake.from_pytorch_fake(theirs), torchfake.from_pytorch_fake(theirs, mode)):
        assert back.item() == 2.5
    theirs.add_(torchfake.to_pytorch_fake(mode.from_tensor(REAL)).sum())
    assert theirs.constant is None


def test_wrappers_are_converted_to_pytorchs_inside() -> None:
    with fake_mode():
        x = torch.ones(2)
    for wrapper in (torch._to_functional_tensor(x), TwoTensor(x, x)):
        theirs = torchfake.to_pytorch_fake(wrapper)
        assert type(theirs) is type(wrapper) and is_pytorchs_fake(theirs)


def test_a_fake_tensor_of_pytorchs_says_how_it_is_converted() -> None:
    with PyTorchsMode():
        x = torch.ones(2)
    with pytest.raises(UnsupportedFakeTensorException, match=r"torchfake\.from_pytorch_fake"):
        FakeTensorMode().from_tensor(x)
    for mode in (FakeTensorMode(), fake_mode()):
        with mode, pytest.raises(MixedModesError, match=r"aten.add.Tensor: .*torchfake.from_pytorch_fake"):
            x + torch.ones(2)
    with FakeTensorMode():
        assert isinstance(x + 1, PyTorchsFakeTensor)  # tracers of PyTorch's make their own, in a mode of ours too


def test_no_dispatch_keeps_the_mode_out() -> None:
    real = torch.ones(2)
    with FakeTensorMode():
        fake = torch.ones(2)
        for _ in range(2):  # the second time from the cache
            with no_dispatch():
                assert not is_fake(torch.ones(2)) and not is_fake(real + 1) and is_fake(fake + 1)
            assert is_fake(torch.ones(2))
    with fake_mode(), no_dispatch():
        assert is_fake(torch.ones(2))


def test_a_wrapper_around_a_fake_is_fake_and_no_fake_tensor() -> None:
    wrapper = FakeTensorMode().from_tensor(TwoTensor(torch.ones(2), torch.ones(2)))
    assert is_fake(wrapper) and not isinstance(wrapper, FakeTensor) and isinstance(wrapper.a, FakeTensor)


def test_a_real_module_that_is_moved_where_fakes_are_gets_fake_parameters() -> None:
    for mode, move in (
        (FakeTensorMode(allow_non_fake_inputs=True), lambda module: module.half()),
        (FakeTensorMode(allow_non_fake_inputs=True), lambda module: module.to("cuda")),
        (fake_mode(), lambda module: module.to("cuda")),
    ):
        module = torch.nn.Linear(2, 3)
        weight = module.weight
        with mode:
            moved = move(module)
        assert moved is module and is_fake(module.weight) and isinstance(module.weight, torch.nn.Parameter)
        assert not is_fake(weight) and weight.dtype == torch.float32 and weight.device.type == "cpu"


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("kind", [FakeTensorMode, fake_mode])
@pytest.mark.parametrize(
    "function",
    [F.relu, F.dropout, F.hardswish, lambda x: torch.where(x > 0, x, 0.0), lambda x: x + torch.arange(3)],
    ids=["relu", "dropout", "hardswish", "where", "arange"],
)
def test_pytorchs_tracers_work_inside_and_leave_nothing_behind(
    function: Callable[[Tensor], Tensor], kind: Callable[[], Any]
) -> None:
    from functorch.compile import aot_function, nop

    with kind():
        x = torch.ones(2, 3, requires_grad=True)
        assert is_fake(aot_function(function, nop)(x)) and aot_function(function, nop)(x).shape == (2, 3)
        graph = make_fx(lambda x: function(x), tracing_mode="fake")(x).graph
        assert graph.find_nodes(op="placeholder")[0].meta["val"].shape == (2, 3)
    real = aot_function(function, nop)(torch.ones(2, 3, requires_grad=True))
    assert real.shape == (2, 3) and not is_fake(real)


def test_bytes_of_a_storage_become_a_fake() -> None:
    storage = torch.UntypedStorage.from_buffer(b"abcd", dtype=torch.uint8)
    with fake_mode():
        assert torch.ByteTensor(storage).tolist() == [97, 98, 99, 100]
    with FakeTensorMode():
        x = torch.ByteTensor(storage)
        assert is_fake(x) and x.shape == (4,)
    assert storage.tolist() == [97, 98, 99, 100]
