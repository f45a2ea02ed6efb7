"""Importing torchfake, or having used a mode, changes no result for real tensors and adds no cost."""

from __future__ import annotations

import gc
import importlib.util
import json
import pickle
import subprocess
import sys
import threading
import time
import timeit
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import harmless_questions
import pytest
import torch
import torch.nn.functional as F

import torchfake
from torchfake import _C, FakeTensorMode, ModeActiveError, fake_mode, is_fake
from torchfake._C import When
from torchfake._patches import CONDITIONS, Patch, Patches, Put, _place_of
from torchfake._replacements import TABLE, patches

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def active_again() -> Iterator[None]:
    """Reactivates torchfake after a test has removed it, for the fakes of other tests."""
    yield
    _C.activate()


# ---- Answers ---------------------------------------------------------------------------------------------------------


@cache
def answers_in(situation: str) -> dict[str, str]:
    command = [sys.executable, str(HERE / "harmless_questions.py"), situation]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answers: dict[str, str] = json.loads(done.stdout)
    return answers


def without_backends(answer: str) -> str:
    """Removes the list of available kernels from the dispatcher's errors; it contains torchfake's while active."""
    return answer.partition("is only available for these backends")[0]


def differences(situation: str, expected: dict[str, str]) -> dict[str, tuple[str, str]]:
    active = situation in ("after_a_mode", "beside_a_mode")
    found = {}
    for name, answer in answers_in(situation).items():
        before = expected[name]
        if active:
            answer, before = without_backends(answer), without_backends(before)
        if answer != before and not (active and name.startswith(harmless_questions.OF_INACTIVE)):
            found[name] = (before, answer)
    return found


def test_there_are_hundreds_of_checks() -> None:
    assert len(answers_in("without")) > 200


@pytest.mark.parametrize("situation", ["imported", "after_a_mode", "uninstalled"])
def test_importing_changes_no_result(situation: str) -> None:
    assert differences(situation, answers_in("without")) == {}


# Whether a device has a guard, and whether Python initialises a third-party backend, is global to the process.
BY_GUARD = {
    *(f"event_on_{kind}" for kind in harmless_questions.DEVICE_TYPES),
    *(f"{how}_{kind}" for how in ("move_to", "tensor_on") for kind in ("mps", "ipu", "ve", "maia", "xla", "vulkan")),
    *(f"{how}_privateuseone" for how in ("empty_on", "move_to", "tensor_on")),
}
if torch.backends.cuda.is_built():  # without a GPU, the guard that a fake needs answers for the one that fails
    BY_GUARD |= {"accelerator_stream", "device_scope", "stream_on_cuda", "set_device"}


def test_beside_a_mode_of_another_thread_no_answer_changes_but_about_guards_of_absent_devices() -> None:
    assert differences("beside_a_mode", answers_in("without")).keys() <= BY_GUARD


def test_importing_replaces_no_name_and_registers_no_kernel() -> None:
    code = """
import sys, torch, torch.export, torch.distributions, torch.utils.data.distributed
from torch.nn.attention import flex_attention
modules = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == "torch"]
classes = [torch.Tensor, torch.UntypedStorage, torch.storage.TypedStorage, torch.nn.Module, torch.cuda.Stream]
before = [(owner, dict(vars(owner))) for owner in [*modules, *classes]]
path = list(sys.meta_path)
import torchfake
for owner, names in before:
    changed = [name for name, value in names.items() if vars(owner)[name] is not value]
    assert changed in ([], ["_marked_safe_globals_set"]), (owner, changed)  # fakes may stand in files
assert sys.meta_path == path and not torchfake._C.is_active()
torchfake.fake_mode()  # one that is not entered
assert not torchfake._C.is_active()
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_first_fake_of_all_is_enough() -> None:
    code = """
import torch, torchfake
x = torchfake.to_fake(torch.ones(2), "cuda")
assert torchfake._C.is_active() and repr(x + x) == "tensor(..., device='cuda:0', size=(2,), fake=True)"
"""
    subprocess.run([sys.executable, "-c", code], check=True)


# ---- While fakes exist -----------------------------------------------------------------------------------------------


def without_fakes() -> bool:
    gc.collect()
    return not _C.fakes_exist()


def test_a_fake_that_only_its_converter_remembers_keeps_no_mode_alive() -> None:
    code = """
import gc, torch, torchfake
leaf = torch.ones(2)
torchfake.FakeTensorMode().from_tensor(leaf)
gc.collect()
assert not torchfake._C.fakes_exist()
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is there")
def test_device_guards_are_there_as_long_as_fakes_are() -> None:
    code = """
import torch, torchfake
def guards():
    found = []
    for kind in ("xpu", "maia"):
        try: found.append(str(torch.Event(kind).device))
        except RuntimeError: pass
    return found
assert guards() == []
with torchfake.fake_mode():
    assert len(guards()) == 2
assert guards() == []
x = torchfake.to_fake(torch.ones(2), "cuda")
assert len(guards()) == 2
y = x.to("xpu")
del x
assert len(guards()) == 2
del y
assert guards() == []
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.skipif(torch.backends.cuda.is_built(), reason="the errors are those of a PyTorch without CUDA")
def test_with_a_fake_alive_real_tensors_get_the_errors_they_got() -> None:
    x = torchfake.to_fake(torch.ones(2), "cuda")
    with pytest.raises(RuntimeError, match="PyTorch is not linked with support for cuda devices"):
        torch.Stream("cuda")
    with pytest.raises(AssertionError, match="not compiled with CUDA"):
        torch.ones(2, device="cuda")
    assert is_fake(x.to("xpu")), "and fakes go on"


# ---- Uninstalling ----------------------------------------------------------------------------------------------------


def raw(patch: Patch) -> Any:
    place = _place_of(patch.target)
    return None if place is None else place.raw()


def test_uninstall_puts_every_name_back() -> None:
    torchfake.uninstall()
    loaded = [patch for patch in TABLE if patch.module in sys.modules]
    before = [raw(patch) for patch in loaded]
    with fake_mode():
        assert all(raw(patch) is not name for patch, name in zip(loaded, before, strict=True) if not patch.optional)
    torchfake.uninstall()
    assert all(raw(patch) is name for patch, name in zip(loaded, before, strict=True))
    assert not hasattr(torch.Tensor, "fake_mode")


def test_uninstall_is_refused_while_a_thread_is_in_a_mode() -> None:
    inside, leave = threading.Event(), threading.Event()

    def stay() -> None:
        with fake_mode():
            inside.set()
            leave.wait()

    with ThreadPoolExecutor(1) as pool:
        staying = pool.submit(stay)
        inside.wait()
        try:
            with pytest.raises(ModeActiveError, match="uninstall: 1 modes are active"):
                torchfake.uninstall()
        finally:
            leave.set()
        staying.result()
    torchfake.uninstall()


def test_after_uninstall_fakes_are_not_usable_and_a_mode_brings_everything_back() -> None:
    with fake_mode():
        x = torch.ones(2, device="cuda")
    torchfake.uninstall()
    with pytest.raises(NotImplementedError, match="Fake"):
        x + 1
    with fake_mode():
        assert is_fake(torch.ones(2))
    assert (x + 1).device.type == "cuda"


def test_after_uninstall_a_leaf_on_a_claimed_device_is_refused_and_the_process_goes_on() -> None:
    with fake_mode():
        x = torch.ones(2, device="cuda", requires_grad=True)
    torchfake.uninstall()
    with pytest.raises(NotImplementedError, match="Fake"):
        x.sum()
    with fake_mode():
        x.sum().backward()
    assert x.grad is not None and x.grad.device.type == "cuda"


def test_a_mode_made_before_uninstall_makes_fakes_after_it() -> None:
    mode = FakeTensorMode()
    mode.from_tensor(torch.ones(2))
    torchfake.uninstall()
    assert repr(mode.from_tensor(torch.zeros(3)) + 1) == "FakeTensor(..., size=(3,))"


def test_threads_may_activate_at_once() -> None:
    def use(_: int) -> str:
        barrier.wait()
        with fake_mode():
            return str((torch.ones(2, device="cuda") + 1).device)

    for _ in range(5):
        torchfake.uninstall()
        barrier = threading.Barrier(4)
        with ThreadPoolExecutor(4) as pool:
            assert set(pool.map(use, range(4))) == {"cuda:0"}


def test_uninstalling_beside_threads_that_enter_modes_is_refused_or_done() -> None:
    stop = threading.Event()

    def use() -> int:
        rounds = 0
        while not stop.is_set():
            with fake_mode():
                x = torch.ones(2, device="cuda")
                assert (x + 1).tolist() == [2, 2]
                del x
            rounds += 1
        return rounds

    with ThreadPoolExecutor(2) as pool:
        using = [pool.submit(use) for _ in range(2)]
        for _ in range(20):
            try:
                torchfake.uninstall()
            except ModeActiveError:
                continue
        stop.set()
        assert all(future.result() > 0 for future in using)


# ---- The table -------------------------------------------------------------------------------------------------------


def test_no_name_stands_in_the_table_twice() -> None:
    targets = [patch.target for patch in TABLE]
    assert len(targets) == len(set(targets)) > 100


def test_each_row_says_why_and_when() -> None:
    for patch in TABLE:
        assert patch.why.endswith((".", "…")) and len(patch.condition) > 5, patch.target
    assert set(CONDITIONS) == set(When.__members__.values())


def test_the_page_of_replacements_is_up_to_date() -> None:
    root = HERE.parents[1]
    script = root / "docs" / "generate_replacements.py"
    assert subprocess.run([sys.executable, str(script), "--check"], check=False).returncode == 0, "run " + str(script)


def test_nothing_decides_by_the_frames_of_its_callers() -> None:
    front = Path(torchfake.__file__).parent
    for file in front.glob("*.py"):
        text = file.read_text()
        assert "_getframe" not in text and "currentframe" not in text and "inspect.stack" not in text, file.name


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    (tmp_path / "harmless_library.py").write_text(
        "class Base:\n"
        "    def method(self, x): return ('method', x)\n"
        "class Kind(Base):\n"
        "    def __new__(cls, *args): return super().__new__(cls)\n"
        "    @property\n"
        "    def size(self): return 3\n"
        "    @classmethod\n"
        "    def make(cls): return cls.__name__\n"
        "def function(x, *, y=0):\n"
        "    'Adds.'\n"
        "    return x + y\n"
        "table = {int: function}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "harmless_library", raising=False)
    return "harmless_library"


def replaced(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return ("replaced", original(*args, **kwargs))


def test_functions_methods_properties_and_items_are_replaced_under_their_condition(module: str) -> None:
    library = __import__(module)
    before = {owner: dict(vars(owner)) for owner in (library, library.Base, library.Kind)}
    rows = [
        Patch(f"{module}:{name}", replaced, When.IN_MODE, "For the test.")
        for name in ("function", "Kind.method", "Kind.size", "Kind.make", "table[builtins.int]")
    ]
    table = Patches([*rows, Put(f"{module}:Kind.extra", lambda _: 7, When.ALWAYS, "For the test.")])
    table.install()

    def ask() -> list[Any]:
        kind = library.Kind()
        return [library.function(1, y=2), kind.method(1), kind.size, library.Kind.make(), library.table[int](4)]

    expected = [3, ("method", 1), 3, "Kind", 4]
    assert ask() == expected and library.Kind.extra == 7
    with fake_mode():
        assert ask() == [("replaced", answer) for answer in expected]
    assert library.Base().method(1) == ("method", 1)
    table.remove()
    assert all(dict(vars(owner)) == names for owner, names in before.items())


def test_a_stand_in_passes_for_its_original(module: str) -> None:
    library = __import__(module)
    original = library.function
    table = Patches([Patch(f"{module}:function", replaced, When.IN_MODE, "For the test.")])
    table.install()
    stand_in = library.function
    assert stand_in is not original and stand_in == original and original == stand_in
    assert {original: 1}[stand_in] == 1 and (stand_in != original) is False and stand_in != library.Kind
    assert (stand_in.__name__, stand_in.__doc__, stand_in.__module__) == ("function", "Adds.", module)
    assert repr(stand_in) == repr(original) and pickle.loads(pickle.dumps(stand_in)) is stand_in
    stand_in.note = 3
    assert original.note == 3
    with pytest.raises(AttributeError, match="nothing"):
        stand_in.nothing  # noqa: B018
    table.remove()
    assert library.function is original


def test_a_stand_in_of_a_c_method_refuses_what_the_original_refuses() -> None:
    original = torch._C.TensorBase.tolist
    assert torch.Tensor.tolist is not original and torch.Tensor.tolist == original
    for args, kwargs in (((), {}), ((), {"self": SMALL}), ((SMALL, 1), {}), ((3,), {}), ((SMALL,), {"x": 1})):
        errors = []
        for function in (original, torch.Tensor.tolist):
            with pytest.raises(TypeError) as info:
                function(*args, **kwargs)
            errors.append(str(info.value))
        assert errors[0] == errors[1]


def test_the_interpreter_may_keep_the_place_of_a_stand_in() -> None:
    # Python specialises the lookup of methods whose type cannot change; otherwise each call searches the classes.
    for stand_in in (vars(torch.Tensor)["tolist"], torch.asarray, vars(torch.UntypedStorage)["device"]):
        with pytest.raises(TypeError, match="immutable type"):
            type(stand_in).anything = 1


def test_a_module_that_is_imported_later_is_patched_then(module: str) -> None:
    table = Patches([Patch(f"{module}:function", replaced, When.ALWAYS, "For the test.")])
    table.install()
    try:
        assert importlib.util.find_spec(module) is not None  # to look for it is not to import it
        assert __import__(module).function(1) == ("replaced", 1)
    finally:
        table.remove()
    assert sys.modules[module].function(1) == 1  # type: ignore[attr-defined]


def test_copies_in_other_modules_are_replaced_as_well(module: str) -> None:
    library = __import__(module)
    global copied_function
    copied_function = library.function
    table = Patches([Patch(f"{module}:function", replaced, When.ALWAYS, "For the test.")])
    table.install()
    assert copied_function(1) == ("replaced", 1)
    table.remove()
    assert copied_function is library.function and copied_function(1) == 1


copied_function: Callable[..., Any] = print


def test_what_somebody_else_put_over_a_stand_in_stays(module: str) -> None:
    library = __import__(module)
    table = Patches([Patch(f"{module}:function", replaced, When.IN_MODE, "For the test.")])
    table.install()
    below = library.function
    library.function = lambda x: ("theirs", below(x))
    table.remove()
    assert library.function(1) == ("theirs", 1)


def test_a_name_that_this_pytorch_lacks_is_told_and_nothing_is_left_half_done(module: str) -> None:
    library = __import__(module)
    original = library.function
    rows = [
        Patch(f"{module}:function", replaced, When.ALWAYS, "For the test."),
        Patch(f"{module}:missing", replaced, When.ALWAYS, "For the test."),
    ]
    with pytest.raises(AttributeError, match=r"this PyTorch has no harmless_library\.missing"):
        Patches(rows).install()
    assert library.function is original
    optional = Patches([rows[0], Patch(f"{module}:missing", replaced, When.ALWAYS, "For the test.", optional=True)])
    optional.install()
    optional.remove()


def test_a_stand_in_only_replaces_functions() -> None:
    with pytest.raises(TypeError, match="expected a function or an attribute"):
        _C.stand_in(3, replaced, When.ALWAYS)


def test_the_front_is_installed_once() -> None:
    with pytest.raises(ValueError, match="already set"):
        _C._set_front(patches.install, patches.remove)


# ---- Cost ------------------------------------------------------------------------------------------------------------

SMALL = torch.ones(4)
MATRIX = torch.ones(4, 4)
HEADS = torch.ones(1, 1, 4, 4)

REAL_WORK: dict[str, Callable[[], Any]] = {
    "add": lambda: SMALL + SMALL,
    "item": lambda: SMALL[0].item(),
    "numpy": lambda: SMALL.numpy(),
    "tolist": lambda: SMALL.tolist(),
    "is_pinned": lambda: SMALL.is_pinned(),
    "linear": lambda: F.linear(SMALL, MATRIX),
    "einsum": lambda: torch.einsum("i,ij->j", SMALL, MATRIX),
    "attention": lambda: F.scaled_dot_product_attention(HEADS, HEADS, HEADS),
    "batch_norm": lambda: F.batch_norm(MATRIX, SMALL, SMALL),
    "cross_entropy": lambda: F.cross_entropy(SMALL, MATRIX[0]),
    "asarray": lambda: torch.asarray(SMALL),
    "storage_device": lambda: SMALL.untyped_storage().device,
    "set_data": lambda: setattr(SMALL, "data", SMALL.data),
}

#: The goal is 1.05, or ten nanoseconds for a C method that takes a tenth of a microsecond. The rest is a margin for
#: busy machines.
BOUND = 1.15
SECONDS_MORE = 30e-9


def cost_of(work: Callable[[], Any]) -> tuple[float, float]:
    """The minimum time of a call, without and with torchfake active, measured alternately."""
    count = 300
    timer = timeit.Timer(work, timer=time.thread_time)  # not affected by other processes
    without, active = [], []
    for _ in range(6):
        torchfake.uninstall()
        without += timer.repeat(10, count)
        _C.activate()
        active += timer.repeat(10, count)
    return min(without) / count, min(active) / count


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Uses one thread: waiting for PyTorch's threads on a busy machine would be measured as well."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("work", REAL_WORK)
def test_real_operators_cost_what_they_cost(work: str) -> None:
    for _ in range(3):
        without, active = cost_of(REAL_WORK[work])
        if active < without * BOUND or active < without + SECONDS_MORE:
            return
    pytest.fail(f"{work}: {active * 1e9:.0f} ns, and {without * 1e9:.0f} ns without torchfake")
