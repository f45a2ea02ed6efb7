"""Many threads at once: overlapping modes, caches, conversions and scopes, in every order."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor

from torchfake import (
    _C,
    FakeTensorMode,
    cache_info,
    clear_cache,
    cross_check_cache,
    disable_fake_tensor_cache,
    fake_mode,
    is_fake,
    set_cache_limits,
)

THREADS = 6


def at_once(work: Callable[[int], Any], threads: int = THREADS) -> list[Any]:
    """What `work` returns on each of some threads that begin together; raises what one of them raises."""
    start = threading.Barrier(threads)
    results: list[Any] = [None] * threads
    errors: list[BaseException] = []

    def run(index: int) -> None:
        start.wait()
        try:
            results[index] = work(index)
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=run, args=(index,)) for index in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if errors:
        raise errors[0]
    return results


# ---- Scopes of the cache ----


def cache_answers() -> bool:
    with fake_mode():
        x = torch.rand(3)
        before = cache_info().hits
        for _ in range(3):
            x.exp()
    return cache_info().hits > before


def hits_are_checked() -> bool:
    return _C.cache_cross_check()


OVERLAPPING: dict[str, tuple[Callable[[], AbstractContextManager[Any]], Callable[[], bool]]] = {
    "disable": (disable_fake_tensor_cache, lambda: not cache_answers()),
    "cross-check": (cross_check_cache, hits_are_checked),
}


@pytest.mark.parametrize("name", OVERLAPPING)
def test_scopes_that_overlap_end_with_the_last_of_them(name: str) -> None:
    scope, is_on = OVERLAPPING[name]
    first_left, second_entered = threading.Event(), threading.Event()

    def second() -> None:
        with scope():
            second_entered.set()
            first_left.wait()
            assert is_on(), "the other thread's scope has ended it"

    thread = threading.Thread(target=second)
    with scope():
        thread.start()
        second_entered.wait()
    first_left.set()
    thread.join()
    assert not is_on(), "left on for good"


def test_scopes_of_one_mode_end_with_the_last_of_them() -> None:
    mode = FakeTensorMode()
    outer, inner = disable_fake_tensor_cache(mode), disable_fake_tensor_cache(mode)
    outer.__enter__()
    inner.__enter__()
    assert not mode.cache_enabled
    outer.__exit__(None, None, None)
    assert not mode.cache_enabled
    inner.__exit__(None, None, None)
    assert mode.cache_enabled


def test_a_switch_that_is_turned_inside_a_scope_stays_turned() -> None:
    mode = FakeTensorMode()
    with disable_fake_tensor_cache(mode):
        mode.cache_enabled = False
    assert not mode.cache_enabled
    with disable_fake_tensor_cache(mode):
        mode.cache_enabled = True
        assert not mode.cache_enabled
    assert mode.cache_enabled


def test_many_scopes_at_once_leave_the_switches_as_they_were() -> None:
    mode = FakeTensorMode()

    def work(index: int) -> None:
        for _ in range(200):
            with disable_fake_tensor_cache(mode if index % 2 else None), cross_check_cache():
                pass

    at_once(work)
    assert cache_answers() and not hits_are_checked() and mode.cache_enabled


# ---- Modes ----


def test_a_trace_is_of_the_scope_that_asked_for_it(caplog: pytest.LogCaptureFixture) -> None:
    mode = fake_mode()
    entered, traced = threading.Event(), threading.Event()

    def other() -> None:
        with mode:  # entered while nothing is traced
            entered.set()
            traced.wait()
            torch.rand(41, 43)

    thread = threading.Thread(target=other)
    thread.start()
    entered.wait()
    with caplog.at_level(logging.DEBUG, logger="torchfake.trace"):
        with mode:
            x = torch.rand(3)
            traced.set()
            thread.join()
            with mode:
                x.exp()
        x.sin()
    text = caplog.text
    assert "aten::rand" in text and "aten::exp" in text
    assert "[41, 43]" not in text and "aten::sin" not in text


def test_a_mode_entered_by_many_threads_answers_all_of_them() -> None:
    shared = fake_mode()

    def work(index: int) -> set[tuple[int, ...]]:
        sizes = set()
        for round in range(100):
            with shared if round % 2 else fake_mode():
                x = torch.rand(index + 1, 4)
                sizes.add(tuple((x @ x.t()).shape))
            assert not is_fake(torch.ones(1))
        return sizes

    assert at_once(work) == [{(index + 1, index + 1)} for index in range(THREADS)]


def test_options_change_while_others_dispatch() -> None:
    mode = FakeTensorMode()
    stop = threading.Event()

    def work(index: int) -> None:
        if index == 0:
            for round in range(300):
                mode.cache_enabled = round % 2 == 0
                mode.allow_meta = round % 3 == 0
                mode._state.prefer_device_type = "cuda" if round % 2 else None
                with mode:
                    pass
            stop.set()
            return
        with mode:
            x = torch.rand(3, 3)
            while not stop.is_set():
                assert (x @ x + x.exp()).shape == (3, 3)

    at_once(work)


def test_threads_train_caches_and_modes_of_many_kinds_at_once() -> None:
    before = cache_info()
    modes = [fake_mode(), FakeTensorMode(), fake_mode(known_values_limit=0)]

    def work(index: int) -> list[int]:
        for round in range(8):
            with modes[index % len(modes)]:
                device = ("cpu", "cuda")[round % 2]
                model = nn.Sequential(nn.Linear(8, 16, device=device), nn.GELU(), nn.Linear(16, 4, device=device))
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                loss = model(torch.rand(round + 1, 8, device=device)).square().mean()
                loss.backward()
                optimizer.step()
                grad = model[0].weight.grad
            if index == 0:
                clear_cache()
            if index == 1:
                set_cache_limits(max_size=20 + round)
        assert grad is not None and is_fake(grad)
        return list(grad.shape)

    try:
        assert at_once(work) == [[16, 8]] * THREADS
    finally:
        set_cache_limits(max_size=before.max_size)


# ---- What is shared ----


def test_threads_that_ask_one_fake_for_its_value_agree() -> None:
    with FakeTensorMode():
        shared = torch.tensor(7)

    def work(index: int) -> int:
        answers = {shared.item() for _ in range(300)} | {shared.item_memo for _ in range(10)}
        (answer,) = answers
        return int(answer)

    assert at_once(work) == [7] * THREADS


def leaf_with_gradient() -> Tensor:
    leaf = torch.ones(4, 4, requires_grad=True)
    leaf.grad = torch.ones(4, 4)
    return leaf


CONVERTED: dict[str, Callable[[], Tensor]] = {
    "plain": lambda: torch.ones(4, 4),
    "view": lambda: torch.ones(4, 4)[1:],
    "with a gradient": leaf_with_gradient,
    "wrapper": lambda: TwoTensor(torch.ones(3), torch.ones(3)),
}


@pytest.mark.parametrize("name", CONVERTED)
def test_threads_that_convert_one_tensor_get_one_fake(name: str) -> None:
    for _ in range(30):
        mode, real = FakeTensorMode(), CONVERTED[name]()
        fakes = at_once(lambda _, mode=mode, real=real: mode.from_tensor(real))
        assert len({id(fake) for fake in fakes}) == 1
        assert (fakes[0].grad is None) == (real.grad is None)


def test_threads_that_convert_views_of_one_storage_share_one() -> None:
    for _ in range(30):
        mode, real = FakeTensorMode(), torch.ones(THREADS, 4)
        fakes = at_once(lambda index, mode=mode, real=real: mode.from_tensor(real[index]))
        assert len({fake.untyped_storage()._cdata for fake in fakes}) == 1


@pytest.fixture
def custom() -> Iterator[Any]:
    with torch.library._scoped_library("torchfake_threads", "FRAGMENT") as library:
        library.define("double(Tensor x) -> Tensor")
        torch.library.register_fake("torchfake_threads::double", lambda x: torch.cat([x, x]), lib=library)
        yield torch.ops.torchfake_threads.double


def test_custom_operators_are_found_from_many_threads(custom: Any) -> None:
    def work(index: int) -> set[tuple[int, ...]]:
        with fake_mode():
            x = torch.rand(index + 1)
            return {tuple(custom(x).shape) for _ in range(50)}

    assert at_once(work) == [{(2 * index + 2,)} for index in range(THREADS)]
