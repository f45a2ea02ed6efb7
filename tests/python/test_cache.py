"""The shape cache changes no result: it counts, is bounded, and agrees with the kernels."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from metadata import assert_same_metadata, metadata
from torch import Tensor
from undrawn import fake_mode

from torchfake import (
    DataDependentOutputException,
    DeviceMismatchError,
    DeviceNotFakedError,
    MetadataMismatchError,
    cache_info,
    clear_cache,
    cross_check_cache,
    disable_fake_tensor_cache,
    is_fake,
    set_cache_limits,
)


@pytest.fixture(autouse=True)
def _cache_of_its_own() -> Iterator[None]:
    before = cache_info()
    clear_cache()
    yield
    set_cache_limits(max_size=before.max_size, max_bytes=before.max_bytes)


def counts(call: Callable[[], Any]) -> tuple[int, int]:
    """The hits and misses of one call."""
    before = cache_info()
    call()
    after = cache_info()
    return after.hits - before.hits, after.misses - before.misses


REPEATED: dict[str, Callable[[Tensor], Any]] = {
    "add": lambda x: x + x,
    "scalar": lambda x: x + 1.5,
    "mm": lambda x: x @ x,
    "view": lambda x: x.t(),
    "slice": lambda x: x[1:3],
    "in_place": lambda x: x.mul_(2),
    "out": lambda x: torch.add(x, x, out=torch.empty(4, 4)),
    "factory": lambda x: torch.empty(7, 3),
    "random": lambda x: torch.rand(5),
    "random_in_place": lambda x: x.normal_(),
    "list_out": lambda x: x.split(2),
    "list_in": lambda x: torch.cat([x, x]),
    "several_out": lambda x: x.max(dim=0),
    "foreach": lambda x: torch._foreach_add([x, x], 1.0),
    "foreach_in_place": lambda x: torch._foreach_mul_([x], 2.0),
    "norm": lambda x: F.layer_norm(x, (4,)),
    "conv": lambda x: F.conv2d(x.view(1, 1, 4, 4), torch.empty(2, 1, 3, 3)),
    "moved": lambda x: x.to("cuda"),
}


@pytest.mark.parametrize("name", REPEATED)
def test_a_repeated_call_is_all_hits_and_gives_the_same(name: str) -> None:
    with fake_mode():
        x = torch.rand(4, 4)
        REPEATED[name](x)
        hits, misses = counts(lambda: REPEATED[name](x))
        assert misses == 0 and hits > 0
        again = REPEATED[name](torch.rand(4, 4))
        with disable_fake_tensor_cache():
            unhelped = REPEATED[name](torch.rand(4, 4))
    assert_same_metadata(again, unhelped)


def test_a_backward_and_an_optimizer_step_are_all_hits_the_second_time() -> None:
    with fake_mode():
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
        optimizer = torch.optim.AdamW(model.parameters())

        def step() -> None:
            optimizer.zero_grad()
            model(torch.rand(3, 4)).sum().backward()
            optimizer.step()

        step()
        step()  # the first one made the state
        hits, misses = counts(step)
    assert misses == 0 and hits > 20


# Two calls whose outcomes differ. Whichever comes first, the other must not get its result.
PAIRS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "dtype": (lambda: torch.rand(3) + 1, lambda: torch.rand(3, dtype=torch.float64) + 1),
    "device": (lambda: torch.rand(3).exp(), lambda: torch.rand(3, device="cuda").exp()),
    "device_index": (lambda: torch.rand(3, device="cuda:0").exp(), lambda: torch.rand(3, device="cuda:1").exp()),
    "sizes": (lambda: torch.rand(3).exp(), lambda: torch.rand(4).exp()),
    "strides": (lambda: torch.rand(3, 3).exp(), lambda: torch.rand(3, 3).t().exp()),
    "dimensions": (lambda: torch.rand(4).exp(), lambda: torch.rand(4, 1).exp()),
    "int_and_float": (lambda: torch.arange(3) + 1, lambda: torch.arange(3) + 1.0),
    "bool_and_int": (lambda: torch.zeros(3, dtype=torch.bool) * True, lambda: torch.zeros(3, dtype=torch.bool) * 1),
    "number_and_tensor": (
        lambda: torch.ones(3, dtype=torch.half) * 2.0,
        lambda: torch.ones(3, dtype=torch.half) * torch.ones(1),
    ),
    "scalar_argument": (lambda: torch.rand(3, 4).sum(0), lambda: torch.rand(3, 4).sum(1)),
    "absent_argument": (lambda: torch.rand(3, 4).sum(), lambda: torch.rand(3, 4).sum(0)),
    "keyword": (lambda: torch.rand(3, 4).sum(0), lambda: torch.rand(3, 4).sum(0, keepdim=True)),
    "list_argument": (lambda: torch.rand(3, 4).view(12), lambda: torch.rand(3, 4).view(2, 6)),
    "float_argument": (
        lambda: F.interpolate(torch.rand(1, 1, 8, 8), scale_factor=2.0),
        lambda: F.interpolate(torch.rand(1, 1, 8, 8), scale_factor=0.5),
    ),
    "string_argument": (
        lambda: torch.div(torch.arange(4), 2, rounding_mode="floor"),
        lambda: torch.div(torch.arange(4), 2),
    ),
    "dtype_argument": (lambda: torch.rand(3).sum(dtype=torch.half), lambda: torch.rand(3).sum()),
    "memory_format": (
        lambda: torch.rand(1, 2, 3, 4).clone(),
        lambda: torch.rand(1, 2, 3, 4).clone(memory_format=torch.channels_last),
    ),
    "storage_offset": (lambda: torch.rand(10)[2:8][1:], lambda: torch.rand(10)[3:9][1:]),
    "offset_kept_by_a_copy": (
        lambda: torch.rand(10)[2:8].slice_scatter(torch.rand(2), 0, 1, 3),
        lambda: torch.rand(10)[3:9].slice_scatter(torch.rand(2), 0, 1, 3),
    ),
    "storage_size": (lambda: torch.rand(10)[:4].resize_(8), lambda: torch.rand(4).resize_(8)),
    "list_length": (lambda: torch.cat([torch.rand(2)] * 2), lambda: torch.cat([torch.rand(2)] * 3)),
    "conj": (
        lambda: torch.rand(3, dtype=torch.cfloat).conj().imag,
        lambda: torch.rand(3, dtype=torch.cfloat).imag,
    ),
    "conj_of_conj": (
        lambda: torch.rand(3, dtype=torch.cfloat).conj(),
        lambda: torch.rand(3, dtype=torch.cfloat).conj().conj(),
    ),
    "step_of_arange": (lambda: torch.arange(0, 10, 2), lambda: torch.arange(0, 10, 3)),
    "float_arange": (lambda: torch.arange(0.0, 1.0, 0.1), lambda: torch.arange(0.0, 1.0, 0.3)),
    "operator": (lambda: torch.rand(3, 3).exp(), lambda: torch.rand(3, 3).trace()),
}


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("name", PAIRS)
def test_calls_that_differ_do_not_share_an_entry(name: str, swapped: bool) -> None:
    first, second = PAIRS[name][::-1] if swapped else PAIRS[name]
    with fake_mode():
        with disable_fake_tensor_cache():
            expected = metadata(second())
            assert metadata(first()) != expected or first().device != second().device, "the pair does not differ"
        first()
        got = second()
    assert metadata(got) == expected


def test_the_default_dtype_is_part_of_the_key() -> None:
    with fake_mode():
        assert torch.empty(3).dtype == torch.float32
        torch.set_default_dtype(torch.float64)
        try:
            assert torch.empty(3).dtype == torch.float64
            assert (torch.arange(3) / 2).dtype == torch.float64
        finally:
            torch.set_default_dtype(torch.float32)
        assert (torch.arange(3) / 2).dtype == torch.float32


def test_inference_mode_is_part_of_the_key() -> None:
    with fake_mode():
        x = torch.rand(3)
        assert not x.exp().is_inference() and not torch.empty(2).is_inference()
        with torch.inference_mode():
            assert x.exp().is_inference() and torch.empty(2).is_inference()
        assert not x.exp().is_inference() and not torch.empty(2).is_inference()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_autocast_is_part_of_the_key(device: str) -> None:
    def inverse() -> torch.dtype:  # calls matmul internally
        return torch.linalg.pinv(torch.randn(3, 3, device=device)).dtype

    other = {"cpu": "cuda", "cuda": "cpu"}[device]
    with fake_mode():
        for _ in range(2):
            assert inverse() == torch.float32
            with torch.autocast(other, torch.bfloat16):
                assert inverse() == torch.float32
            with torch.autocast(device, torch.bfloat16):
                assert inverse() == torch.bfloat16


def test_errors_of_the_real_kernel_for_empty_tensors_are_cached() -> None:
    def outcome() -> object:
        try:  # an error before PyTorch 2.15
            return metadata(torch.fft.ifft(torch.empty(0, 5)))
        except RuntimeError as error:
            return str(error)[:20]

    real = outcome()
    with fake_mode():
        for _ in range(4):
            assert outcome() == real
            with cross_check_cache():
                assert outcome() == real


def test_deterministic_algorithms_are_part_of_the_key() -> None:
    def program() -> int:
        return counts(lambda: torch.rand(4).exp())[1]

    with fake_mode():
        program()
        torch.use_deterministic_algorithms(True)
        try:
            assert program() > 0
        finally:
            torch.use_deterministic_algorithms(False)
        assert program() == 0


def test_known_values_follow_whether_denormal_numbers_are_flushed() -> None:
    if not torch.set_flush_denormal(False):
        pytest.skip("this processor does not flush denormal numbers")

    def values() -> list[float]:
        return [(torch.full((3,), 1e-40) + 0.0).sum().item(), (torch.ones(3) * 1e-40).sum().item()]

    try:
        for flushes in (False, True, False, True):
            torch.set_flush_denormal(flushes)
            real = values()
            with fake_mode():
                for _ in range(3):
                    assert values() == real
    finally:
        torch.set_flush_denormal(False)


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def volumes() -> Tensor:
    x = torch.rand(2, 4, 5, 6, 7).contiguous(memory_format=torch.channels_last_3d)
    return F.conv_transpose3d(x, torch.rand(4, 3, 3, 3, 3))


def pixels() -> Tensor:
    x = torch.rand(1, 8, 4, 4).contiguous(memory_format=torch.channels_last)
    return F.conv2d(x, torch.rand(16, 8, 1, 1))


@pytest.mark.parametrize("program", [volumes, pixels])
def test_backends_and_threads_are_part_of_the_key_of_what_reads_them(program: Callable[[], Tensor]) -> None:
    for enabled, count in [(True, 1), (False, 1), (True, 2), (False, 2), (True, 1), (False, 2)]:
        with torch.backends.mkldnn.flags(enabled=enabled), threads(count):
            real = program()
            with fake_mode():
                assert_same_metadata(program(), real)


def test_a_gpu_without_cudnn_convolves_in_rows() -> None:
    def strides() -> tuple[int, ...]:
        x = torch.rand(1, 3, 8, 8, device="cuda").contiguous(memory_format=torch.channels_last)
        return F.conv2d(x, torch.rand(4, 3, 3, 3, device="cuda")).stride()

    with fake_mode():
        for _ in range(2):
            assert strides() == (144, 1, 24, 4)
            with torch.backends.cudnn.flags(enabled=False):
                assert strides() == (144, 36, 6, 1)


READ_NO_SETTING: dict[str, Callable[[Tensor], Any]] = {
    "exp": lambda x: x.exp(),
    "a transposed view": lambda x: x.transpose(0, 1),
    "a slice": lambda x: x[:, :2],
    "ones": lambda x: torch.ones(40, 40),
    "ones of the same sizes": torch.ones_like,
    "another dtype": lambda x: x.to(torch.bfloat16),
    "rand": lambda x: torch.rand(40, 40),
}


@pytest.mark.parametrize("name", READ_NO_SETTING)
def test_a_setting_is_only_in_the_keys_of_operators_that_read_it(name: str) -> None:
    program = READ_NO_SETTING[name]
    with fake_mode():
        x = torch.rand(40, 40)
        program(x)
        hits, misses = counts(lambda: program(x))
        assert misses == 0
        with threads(1), torch.backends.mkldnn.flags(enabled=False), torch.backends.cudnn.flags(benchmark=True):
            assert counts(lambda: program(x)) == (hits, 0)


def test_a_first_call_that_reads_settings_is_remembered() -> None:
    with fake_mode():
        x, weight = torch.rand(1, 3, 11, 7), torch.rand(5, 3, 3, 3)
        F.conv2d(x, weight)
        assert counts(lambda: F.conv2d(x, weight)) == (1, 0)


def test_settings_read_by_a_nested_call_are_in_the_key_of_the_outer_call() -> None:
    def convolve() -> Tensor:  # its kernel calls the one that reads the setting
        x = torch.rand(2, 4, 5, 6, 7).contiguous(memory_format=torch.channels_last_3d)
        args = ([1] * 3, [0] * 3, [1] * 3, True, [0] * 3, 1)
        return torch.ops.aten.convolution.out(x, torch.rand(4, 3, 3, 3, 3), None, *args, out=torch.empty(0))

    for enabled in (True, False, True):
        with torch.backends.mkldnn.flags(enabled=enabled), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with fake_mode():
                with disable_fake_tensor_cache():
                    expected = metadata(convolve())
                assert metadata(convolve()) == expected


def test_the_order_of_a_norm_is_no_mere_factor() -> None:
    with fake_mode():
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"empty|identity|dim"):
                torch._foreach_norm([torch.empty(0)], math.inf)
            assert torch._foreach_norm([torch.empty(0)], 2.0)[0].shape == ()


def test_an_outcome_that_depends_on_a_value_read_by_a_nested_call_is_not_cached() -> None:
    with fake_mode():
        for count in (3, 5, 3):
            ends = torch.tensor(0.0), torch.tensor(1.0)
            assert torch.linspace(*ends, count).shape == (count,)
        repeats = [torch.repeat_interleave(torch.tensor(counts)).shape[0] for counts in ([1, 2], [3, 4], [1, 2])]
    assert repeats == [3, 7, 3]


def test_whether_absent_devices_may_be_claimed_is_part_of_the_key() -> None:
    with fake_mode():
        torch.empty(3, device="cuda")
    with fake_mode(fake_cuda=False), pytest.raises(DeviceNotFakedError):
        torch.empty(3, device="cuda")
    with fake_mode():
        assert torch.empty(3, device="cuda").device.type == "cuda"


def test_a_factor_is_no_part_of_the_key() -> None:
    with fake_mode():
        x, y = torch.rand(3), torch.rand(3)
        x.add_(y, alpha=0.1)
        assert counts(lambda: x.add_(y, alpha=0.2)) == (1, 0), "a new learning rate ran the kernel again"
        with pytest.raises(RuntimeError, match="alpha"):
            torch.arange(3).add_(torch.arange(3), alpha=0.5)
        torch.arange(3).add_(torch.arange(3), alpha=2)


def test_an_in_place_operator_sees_which_inputs_overlap() -> None:
    with fake_mode():
        base = torch.rand(10)
        base[0:4].copy_(torch.rand(4))
        base[0:4].add_(base[4:8])
        base[0:4].add_(base[0:4])
        for _ in range(2):
            with pytest.raises(RuntimeError, match="single memory location"):
                base[0:4].add_(base[1:5])
        base[0:4].add_(base[4:8])
        x = torch.rand(4)
        assert x.add_(x) is x


def test_an_error_of_the_kernel_is_cached_with_its_type_and_message() -> None:
    def failing() -> list[tuple[type, str]]:
        x = torch.rand(2, 3)
        calls: list[Callable[[], Any]] = [
            lambda: x @ x,
            lambda: x.sum(7),
            lambda: x + torch.rand(5),
            lambda: x + torch.rand(2, 3, device="cuda"),
            lambda: x.view(4),
            lambda: torch.cat([]),
        ]
        errors = []
        for call in calls:
            with pytest.raises(Exception) as caught:
                call()
            errors.append((caught.type, str(caught.value)))
        return errors

    with fake_mode():
        first = failing()
        before = cache_info()
        assert failing() == first
        assert cache_info().misses == before.misses, "an error ran its kernel again"
        with disable_fake_tensor_cache():
            assert failing() == first
    assert first[1][0] is IndexError and first[3][0] is DeviceMismatchError


def test_a_cached_error_changes_nothing() -> None:
    with fake_mode():
        x = torch.rand(2, 3)
        for _ in range(2):
            with pytest.raises(RuntimeError):
                x.add_(torch.rand(5))
        assert x._version == 0 and x.shape == (2, 3)


def test_a_hit_leaves_the_version_counter_and_grad_fn_of_a_real_run() -> None:
    def program() -> list[Any]:
        x = torch.rand(3, requires_grad=True)
        y = x * 2
        y.add_(1)
        y[1:].mul_(3)
        z = y.view(3, 1)
        return [x, y, z]

    with fake_mode():
        program()
        again = program()
    assert_same_metadata(again, program())


def test_views_made_by_a_hit_share_the_storage_of_this_call() -> None:
    with fake_mode():
        first, second = torch.rand(4, 4), torch.rand(4, 4)
        assert first.t().untyped_storage()._cdata == first.untyped_storage()._cdata
        assert second.t().untyped_storage()._cdata == second.untyped_storage()._cdata


def test_values_are_those_of_this_call_also_on_a_hit() -> None:
    with fake_mode():
        assert [(torch.full((2,), value) + 1).tolist() for value in (1, 5, 7)] == [[2, 2], [6, 6], [8, 8]]
        x = torch.ones(2)
        x.add_(1)
        x.add_(1)
        assert x.tolist() == [3.0, 3.0]


def test_disabling_runs_every_kernel_and_says_so() -> None:
    with fake_mode():
        x = torch.rand(3)
        clear_cache()
        with disable_fake_tensor_cache():
            x.exp()
            x.exp()
            with disable_fake_tensor_cache():
                x.exp()
            x.exp()
        info = cache_info()
        assert (info.hits, info.misses, info.size) == (0, 0, 0)
        assert info.bypasses == {"cache disabled": 4}
        x.exp()
        assert counts(x.exp) == (1, 0), "the cache stayed off"


def test_an_exception_inside_leaves_the_switches_as_they_were() -> None:
    for switch in (disable_fake_tensor_cache, cross_check_cache):
        with pytest.raises(KeyError), switch():
            raise KeyError
    with fake_mode():
        x = torch.rand(3)
        x.exp()
        assert counts(x.exp) == (1, 0)


def test_the_switches_are_decorators_too() -> None:
    @disable_fake_tensor_cache()
    def twice(x: Tensor) -> None:
        x.exp()
        x.exp()

    with fake_mode():
        x = torch.rand(3)
        clear_cache()
        twice(x)
        twice(x)
    assert cache_info().bypasses == {"cache disabled": 4}


def test_a_bypass_has_its_reason() -> None:
    with fake_mode():
        x = torch.rand(3)
        clear_cache()
        with pytest.raises(DataDependentOutputException):
            x.sum().item()
    assert "data-dependent operator" in cache_info().bypasses


def test_clearing_empties_the_cache_and_its_counts() -> None:
    with fake_mode():
        x = torch.rand(3)
        x.exp()
        x.exp()
        filled = cache_info()
        assert filled.hits > 0 and filled.misses > 0 and filled.size > 0 and filled.bytes > 0
        clear_cache()
        empty = cache_info()
        assert (empty.hits, empty.misses, empty.bypasses, empty.size, empty.bytes) == (0, 0, {}, 0, 0)
        assert counts(x.exp) == (0, 1), "a thread's own table was not emptied"


def test_the_info_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        cache_info().hits = 3  # type: ignore[misc]


@pytest.mark.parametrize("limit", [0, 1, 5, 64, 500])
def test_the_cache_never_holds_more_entries_than_allowed(limit: int) -> None:
    set_cache_limits(max_size=limit)
    with fake_mode():
        for size in range(1000):
            assert torch.empty(size).shape == (size,)
            assert cache_info().size <= limit
    assert cache_info().size > 0 or limit == 0


@pytest.mark.parametrize("limit", [0, 1_000, 100_000])
def test_the_cache_never_takes_more_memory_than_allowed(limit: int) -> None:
    set_cache_limits(max_bytes=limit)
    with fake_mode():
        for size in range(1000):
            torch.empty(size)
            assert cache_info().bytes <= limit
    assert cache_info().bytes > 0 or limit < 10_000


def test_recently_used_entries_outlive_others() -> None:
    set_cache_limits(max_size=256)
    with fake_mode():
        hot = torch.rand(3)
        hot.exp()
        for size in range(5_000):
            torch.empty(size)
            hot.exp()

        def elsewhere() -> None:  # a thread without a table of its own yet
            with fake_mode():
                misses.append(counts(hot.exp)[1])

        misses: list[int] = []
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    assert misses == [0]


def test_limits_are_set_one_by_one() -> None:
    set_cache_limits(max_size=10, max_bytes=20_000)
    set_cache_limits(max_size=11)
    assert (cache_info().max_size, cache_info().max_bytes) == (11, 20_000)
    set_cache_limits(max_bytes=30_000)
    assert (cache_info().max_size, cache_info().max_bytes) == (11, 30_000)


@pytest.mark.parametrize("name", ["max_size", "max_bytes"])
def test_a_negative_limit_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=rf"set_cache_limits: {name} must be 0 or more, got -1"):
        set_cache_limits(**{name: -1})


def test_threads_share_entries_and_their_hits_add_up() -> None:
    rounds, threads = 200, 4
    with fake_mode():
        x = torch.rand(5, 5)
        x.exp()
        clear_cache()
        x.exp()
        start = threading.Barrier(threads)
        results: list[Tensor] = []

        def work() -> None:
            start.wait()
            with fake_mode():
                for _ in range(rounds):
                    last = x.exp()
            results.append(last)

        workers = [threading.Thread(target=work) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    assert len(results) == threads and all(is_fake(result) and result.shape == (5, 5) for result in results)
    info = cache_info()
    assert (info.hits, info.misses, info.size) == (rounds * threads, 1, 1)


def test_threads_that_fill_evict_and_clear_concurrently_get_correct_results() -> None:
    set_cache_limits(max_size=100)
    wrong: list[object] = []

    def work(seed: int) -> None:
        try:
            with fake_mode():
                for step in range(600):
                    size = (step * (seed + 3)) % 211
                    y = torch.empty(size, 2).exp().t()
                    if y.shape != (2, size) or y.stride() != (1, 2):
                        wrong.append((size, y.shape, y.stride()))
                    if step % 97 == seed:
                        clear_cache()
        except Exception as error:
            wrong.append(error)

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []


def _mixed_program(device: str) -> list[Any]:
    x = torch.rand(2, 3, 8, 8, device=device, requires_grad=True)
    conv = torch.nn.Conv2d(3, 4, 3, padding=1, device=device)
    norm = torch.nn.BatchNorm2d(4, device=device)
    linear = torch.nn.Linear(8, 6, device=device)
    y = F.dropout(norm(conv(x)).relu(), 0.1)
    y = F.max_pool2d(y, 2) + F.avg_pool2d(y, 2)
    z = linear(y.flatten(2).permute(0, 2, 1).reshape(2, -1, 8))
    weights = (z @ z.transpose(1, 2)).softmax(-1)
    loss = F.cross_entropy(weights.sum(1), torch.zeros(2, dtype=torch.int64, device=device))
    loss.backward()
    with torch.no_grad():
        x.mul_(2).clamp_(0, 1)
        x[:, 1:].zero_()
        top = x.flatten().topk(3)
        picked = x.flatten()[torch.tensor([1, 2], device=device)]
        grown = torch.empty(0, device=device).resize_(3, 4)
        written = torch.add(x[0, 0], 1, out=torch.empty(8, 8, device=device))
        parts = x.chunk(2, dim=1)
        stacked = torch.stack([torch.arange(3, device=device), torch.arange(3, device=device)])
        chosen = torch.where(x > 0.5, x, 0.0)
        cut = torch.rand(3, 4, device=device).conj()[1:, ::2]
    optimizer = torch.optim.SGD([*conv.parameters(), *linear.parameters()], lr=0.1, momentum=0.9)
    optimizer.step()
    return [z, loss, x.grad, *top, picked, grown, written, *parts, stacked, chosen, cut, *conv.parameters()]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_kernels_agree_with_the_cache_on_a_mix_of_operators(device: str) -> None:
    with fake_mode():
        _mixed_program(device)
        with cross_check_cache():
            before = cache_info().hits
            checked = _mixed_program(device)
            assert cache_info().hits - before > 50
        with disable_fake_tensor_cache():
            unhelped = _mixed_program(device)
    assert_same_metadata(checked, unhelped, device=unhelped[0].device)


def test_the_cross_check_finds_an_entry_that_is_wrong() -> None:
    # The entry is invalidated by registering another kernel for an operator that is already cached, one with a Python
    # kernel on the Meta key.
    library = torch.library.Library("aten", "IMPL")
    with fake_mode():
        rows, ends = torch.rand(32, 4), torch.tensor([0, 8, 32])

        def padded() -> Tensor:
            return torch.ops.aten._jagged_to_padded_dense_forward(rows, [ends], [24])

        assert padded().shape == (2, 24, 4)
        try:
            library.impl(
                "_jagged_to_padded_dense_forward",
                lambda *_: torch.empty(5, device="meta"),
                "Meta",
                allow_override=True,
            )
            assert padded().shape == (2, 24, 4), "not a hit"
            with (
                cross_check_cache(),
                pytest.raises(MetadataMismatchError, match="aten::_jagged_to_padded_dense_forward"),
            ):
                padded()
        finally:
            library._destroy()
        with cross_check_cache():
            padded()


def test_versions_are_those_of_the_way_an_operator_was_called() -> None:
    def versions() -> list[int]:
        options = {"dtype": torch.int64, "device": torch.device("cpu"), "pin_memory": False}
        calls = [torch.ops.aten.arange.default, torch.arange, torch.ops.aten.arange.default]
        return [call(4, **options)._version for call in calls]

    with fake_mode():
        assert versions() == [1, 0, 1]
    assert versions() == [1, 0, 1], "what real tensors give"


def test_a_hit_of_an_in_place_operator_on_lists_leaves_tensors_where_they_are() -> None:
    with fake_mode():
        whole = torch.rand(8)
        torch._foreach_add_([whole[:4]], 1)
        part, other = whole[4:], torch.rand(4)
        torch._foreach_add_([part], 1)
        torch._foreach_add_([other], 1)
        assert (part.storage_offset(), other.untyped_storage().nbytes()) == (4, 16)


@pytest.mark.parametrize("limit", [100_000, 1_000_000])
def test_derived_values_stay_within_the_limit_of_the_cache(limit: int) -> None:
    set_cache_limits(max_bytes=limit)
    with fake_mode():
        for value in range(40):
            for size in (500, 1000):
                x = torch.full((size,), value)
                assert (x + 1)[0] == value + 1
                assert cache_info().bytes <= limit
