"""Fakes mixed with real tensors, mixed devices, exceptions and threads: typed errors, and no state left behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy
import pytest
import torch
from metadata import metadata
from torch import Tensor, nn

import torchfake
from torchfake import DeviceMismatchError, RealTensorError, fake_mode, is_fake, no_fake_mode, to_fake
from torchfake.errors import FakeTensorError

# In the mode these convert a real tensor as incoming data (test_mixed_data.py); real tensors that are written to are
# refused.
DATA = {
    *("add", "radd", "mm", "where", "cat", "stack", "index_into_real", "setitem", "in_place", "copy_", "linear"),
    *("foreach", "conv"),
}

# Each is called with a fake and a real tensor of the same size; the error names the real argument.
MIXED: dict[str, tuple[Callable[[Tensor, Tensor], Any], str]] = {
    "add": (lambda f, r: f + r, "argument 'other'"),
    "radd": (lambda f, r: r + f, "argument 'self'"),
    "mm": (lambda f, r: f @ r, "argument 'mat2'"),
    "where": (lambda f, r: torch.where(f > 0, f, r), "argument 'other'"),
    "cat": (lambda f, r: torch.cat([f, f, r]), "element 2 of argument 'tensors'"),
    "stack": (lambda f, r: torch.stack([r, f]), "element 0 of argument 'tensors'"),
    "index_into_real": (lambda f, r: r[f.long()], "argument 'self'"),
    "setitem": (lambda f, r: f.__setitem__(slice(None), r), "argument 'src'"),
    "in_place": (lambda f, r: f.add_(r), "argument 'other'"),
    "in_place_on_real": (lambda f, r: r.add_(f), "argument 'self'"),
    "copy_": (lambda f, r: f.copy_(r), "argument 'src'"),
    "copy_into_real": (lambda f, r: r.copy_(f), "argument 'self'"),
    "out": (lambda f, r: torch.add(f, 1, out=r), "argument 'out'"),
    "linear": (lambda f, r: nn.functional.linear(f, r), "argument"),
    "foreach": (lambda f, r: torch._foreach_add_([f, f], [f, r]), "element 1 of argument 'other'"),
    "conv": (lambda f, r: nn.functional.conv1d(f[None], r[:, :, None]), "argument 'weight'"),
    "set_": (lambda f, r: r.set_(f), "argument 'self'"),
    "set_data": (lambda f, r: setattr(r, "data", f), "set_data"),
    "set_data_of_fake": (lambda f, r: setattr(f, "data", r), "set_data"),
    "resize_as_": (lambda f, r: r.resize_as_(f), "argument 'self'"),
}


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", MIXED)
def test_a_real_tensor_among_fakes_is_named_and_nothing_is_changed(name: str, device: str, inside: bool) -> None:
    call, named = MIXED[name]
    # A tensor that requires gradients belongs to a module that should have been converted.
    real = torch.arange(4.0).view(2, 2).requires_grad_(inside and name in DATA)
    with fake_mode():
        fake = torch.randn(2, 2, device=device)
        before = metadata(fake), metadata(real), fake.untyped_storage()._cdata, fake.device
        if inside:
            with pytest.raises(RealTensorError, match=named):
                call(fake, real)
    if not inside:
        with pytest.raises(RealTensorError, match=named):
            call(fake, real)
    assert (metadata(fake), metadata(real), fake.untyped_storage()._cdata, fake.device) == before
    assert real.tolist() == [[0, 1], [2, 3]] and not is_fake(real) and is_fake(fake)


def test_the_error_says_how_to_go_on() -> None:
    with fake_mode(), pytest.raises(RealTensorError, match="to_fake"):
        torch.ones(2) + no_fake_mode()(lambda: torch.ones(2, requires_grad=True))()
    real = torch.ones(2)
    with fake_mode():
        assert (torch.ones(2) + to_fake(real)).shape == (2,)


def test_swapping_a_fake_with_a_real_tensor_does_all_or_nothing() -> None:
    real = torch.arange(2.0)
    with fake_mode():
        fake = torch.randn(3, device="cuda")
    try:
        torch.utils.swap_tensors(fake, real)
    except RuntimeError:
        assert is_fake(fake) and not is_fake(real)
        fake, real = real, fake
    assert is_fake(real) and real.shape == (3,) and real.is_cuda
    assert not is_fake(fake) and fake.tolist() == [0, 1] and (fake + 1).tolist() == [1, 2]


def test_numbers_and_scalar_tensors_may_be_real() -> None:
    half = torch.tensor(0.5)
    with fake_mode():
        x = torch.randn(3, device="cuda")
        for y in (x * half, half * x, x + 2, x.clamp(min=half), torch.where(x > 0, x, half)):
            assert is_fake(y) and y.device == torch.device("cuda:0") and y.dtype == torch.float32
    assert not is_fake(half) and is_fake(x * half)


def test_real_tensors_among_themselves_stay_real_inside_the_mode() -> None:
    real, layer = torch.arange(3.0), nn.Linear(3, 2)
    with fake_mode():
        y = layer(real * 2)
        assert not is_fake(y) and y.shape == (2,) and real.sum().item() == 3
        y.sum().backward()
        assert not is_fake(layer.weight.grad)
        real.add_(1)
        assert real[1:].clone().tolist() == [2, 3]
    assert real.tolist() == [1, 2, 3]


def test_a_fake_in_a_function_that_needs_memory_is_refused() -> None:
    with fake_mode():
        fake = torch.randn(100)
    for use in (lambda: torch.from_numpy(fake.numpy()), lambda: numpy.from_dlpack(fake), lambda: bytes(fake.numpy())):
        with pytest.raises(FakeTensorError):
            use()


TWO_DEVICES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "add": lambda a, b: a + b,
    "in_place": lambda a, b: a.mul_(b),
    "mm": lambda a, b: a @ b,
    "cat": lambda a, b: torch.cat([a, b]),
    "linear": lambda a, b: nn.functional.linear(a, b),
    "out": lambda a, b: torch.add(a, a, out=b),
    "where": lambda a, b: torch.where(a > 0, a, b),
    "lerp": lambda a, b: a.lerp_(b, 0.5),
    "embedding": lambda a, b: nn.functional.embedding(a.long().clamp(0, 1), b),
    "gather": lambda a, b: a.gather(0, b.long()),
    "foreach": lambda a, b: torch._foreach_mul_([a], [b]),
}


@pytest.mark.parametrize("other", ["cpu", "cuda:1", "xpu"])
@pytest.mark.parametrize("name", TWO_DEVICES)
def test_two_devices_in_one_operator_are_both_named_and_nothing_is_changed(name: str, other: str) -> None:
    with fake_mode():
        a, b = torch.randn(2, 2, device="cuda:0"), torch.randn(2, 2, device=other)
    before = metadata(a), metadata(b)
    with pytest.raises(DeviceMismatchError, match=r"argument '\w+'.*claims") as caught:
        TWO_DEVICES[name](a, b)
    assert "cuda:0" in str(caught.value) and other in str(caught.value) and ".to(" in str(caught.value)
    assert (metadata(a), metadata(b)) == before


def state() -> tuple[Any, ...]:
    x = torch.ones(1)
    return (
        is_fake(x),
        torch._C._dispatch_tls_local_include_set(),
        torch._C._dispatch_tls_local_exclude_set(),
        torch.autograd.is_multithreading_enabled(),
        torch._C._only_lift_cpu_tensors(),
        torch.is_grad_enabled(),
        torch.cuda.is_available(),
    )


FAILURES: list[Callable[[], Any]] = [
    lambda: 1 / 0,
    lambda: torch.ones(2) + torch.ones(3),
    lambda: torch.randn(2).tolist(),
    lambda: torch.randn(2).nonzero(),
    lambda: torch.ones(2, device="cuda") + torch.ones(2),
    lambda: torch.ones(2, requires_grad=True).register_hook(lambda g: 1 / 0) and None,
    lambda: (torch.ones(2, requires_grad=True) * torch.ones(2)).backward(),
    lambda: torch.func.vmap(lambda x: x.item())(torch.randn(2)),
    lambda: nn.Linear(2, 3, device="cuda")(torch.ones(4, device="cuda")),
    lambda: torch.rand(2).to_sparse(),
    lambda: torch.add(torch.randn(2), torch.randn(2), out=torch.ones(2, requires_grad=True)),
]


@pytest.mark.parametrize("fail", FAILURES)
def test_an_exception_inside_the_mode_leaves_no_state_behind(fail: Callable[[], Any]) -> None:
    before = repr(state())
    try:
        with fake_mode(), torch.device("cuda:0"):
            fail()
            raise KeyError
    except Exception as error:  # any exception
        assert not isinstance(error, AssertionError)
    assert repr(state()) == before
    with fake_mode(fake_cuda=False):
        assert torch.ones(2).add(1).tolist() == [2, 2]
    assert repr(state()) == before


def test_modes_nest_and_are_left_in_any_way() -> None:
    before = repr(state())
    with fake_mode() as outer:
        with fake_mode(known_values_limit=0):
            assert is_fake(torch.ones(1))
            with no_fake_mode():
                assert not is_fake(torch.ones(1))
                with fake_mode():
                    assert is_fake(torch.ones(1))
                assert not is_fake(torch.ones(1))
            assert is_fake(torch.ones(1))
        with outer:
            assert torch.ones(1).item() == 1
        assert is_fake(torch.ones(1))
    assert repr(state()) == before

    @fake_mode()
    def decorated(depth: int) -> Tensor:
        return decorated(depth - 1) if depth else torch.ones(2)

    assert is_fake(decorated(3)) and repr(state()) == before


def test_fakes_of_two_modes_work_together() -> None:
    with fake_mode():
        a = torch.ones(2)
    with fake_mode(known_values_limit=0):
        assert is_fake(a + torch.ones(2))
    with fake_mode():
        b = a + 1
    assert b.tolist() == [2, 2]


def test_each_thread_has_its_own_mode() -> None:
    def work(number: int) -> list[bool]:
        seen = [is_fake(torch.ones(1))]
        with fake_mode() if number % 2 else no_fake_mode():
            for _ in range(20):
                layer = nn.Linear(4, 4)
                layer(torch.ones(2, 4)).sum().backward()
                seen.append(is_fake(layer.weight.grad))
        return [*seen, is_fake(torch.ones(1))]

    with fake_mode(), ThreadPoolExecutor(4) as pool:
        for number, seen in enumerate(pool.map(work, range(8))):
            assert seen[0] is False and seen[-1] is False and set(seen[1:-1]) == {number % 2 == 1}


def test_a_fake_crosses_threads() -> None:
    with fake_mode():
        x = torch.randn(3, device="cuda:2", requires_grad=True)
    results: list[Any] = []
    thread = threading.Thread(target=lambda: ((x * 2).sum().backward(), results.append(x.grad)))
    thread.start()
    thread.join()
    assert is_fake(results[0]) and results[0].device == torch.device("cuda:2")


@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
def test_what_backward_calls_is_in_the_mode_of_the_caller(device: str) -> None:
    seen: list[bool] = []

    class Makes(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            seen.append(is_fake(torch.ones(1)))
            return grad * 2

    with fake_mode():
        x = torch.randn(3, device=device, requires_grad=True)
        Makes.apply(x).sum().backward()
    assert seen == [True] and not is_fake(torch.ones(1))


def test_a_mode_in_a_coroutine_ends_with_it() -> None:
    async def build() -> bool:
        with fake_mode():
            return is_fake(torch.ones(2))

    assert asyncio.run(build()) and not is_fake(torch.ones(2))


def test_modes_may_be_left_in_another_order_than_they_were_entered() -> None:
    def generate() -> Iterator[Tensor]:
        with fake_mode():
            yield torch.ones(1)

    first, second = generate(), generate()
    assert is_fake(next(first)) and is_fake(next(second))
    first.close()
    assert is_fake(torch.ones(1))  # the second is still in its mode
    second.close()
    assert not is_fake(torch.ones(1))
    with fake_mode():
        assert is_fake(torch.ones(1))
    assert not is_fake(torch.ones(1))


def test_a_profiler_that_outlives_the_mode_does_no_harm() -> None:
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    with fake_mode():
        profiler.start()
        assert is_fake(torch.ones(3))
    assert not is_fake(torch.ones(3))
    profiler.stop()
    assert not is_fake(torch.ones(3))
    with fake_mode():
        assert is_fake(torch.ones(3))


def test_a_write_takes_its_indices_and_values_from_other_devices() -> None:
    with fake_mode():
        x = torch.rand(3)
        x[torch.tensor([1], device="cuda")] = 0.0
        assert torch.slice_scatter(x, torch.rand(2, device="cuda"), 0, 0, 2).device.type == "cpu"
        with pytest.raises(DeviceMismatchError):
            x[torch.tensor([1], device="cuda")]


@pytest.mark.parametrize(
    "call",
    [
        lambda a, b: torch._foreach_add(a, b),
        lambda a, b: torch._foreach_mul(a, 2.0),
        lambda a, b: torch._foreach_mul(a, [1.0, 2.0, 3.0]),
        lambda a, b: torch._foreach_norm(a),
        lambda a, b: torch._foreach_lerp_(a, b, 0.5),
        lambda a, b: torch._foreach_zero_(a),
    ],
)
def test_lists_on_several_devices_are_handled_element_by_element(call: Callable[..., Any]) -> None:
    devices = ["cuda:0", "cuda:1", "cpu"]
    with fake_mode():
        a, b = ([torch.empty(i + 2, device=device) for i, device in enumerate(devices)] for _ in range(2))
        versions = [x._version for x in a]
        result = call(a, b)
    assert [str(x.device) for x in result] == devices
    written = result[0] is a[0]
    assert [x._version - before for x, before in zip(a, versions, strict=True)] == [int(written)] * 3


def test_elements_on_two_devices_do_not_go_together() -> None:
    with fake_mode():
        on_two = [torch.empty(2, device="cuda:0"), torch.empty(2, device="cuda:1")]
        with pytest.raises(DeviceMismatchError, match=r"aten::add\.Tensor: .*argument 'self' claims cuda:0"):
            torch._foreach_add(on_two, on_two[::-1])


def test_an_element_of_no_dimensions_stays_on_its_device() -> None:
    with fake_mode():
        tripled = torch._foreach_mul([torch.empty(2, device="cuda:0"), torch.empty(())], 3.0)
    assert [x.device.type for x in tripled] == ["cuda", "cpu"]


def test_a_scalar_beside_a_list_goes_along_with_its_device() -> None:
    with fake_mode():
        on_gpu, factor = [torch.empty(2, device="cuda:0"), torch.empty(3, device="cuda:0")], torch.rand(())
        torch._foreach_mul(on_gpu, factor)
        before = torchfake.cache_info().hits
        assert {str(x.device) for x in torch._foreach_mul(on_gpu, factor)} == {"cuda:0"}
        assert torchfake.cache_info().hits == before + 1  # one operator, not one for each element
