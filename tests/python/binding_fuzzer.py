"""Calls everything in `torchfake._C` with values of every kind, each function in a separate process.

Run as a program, it prints a line of JSON for each target: the number of calls, and what went wrong.

    python tests/python/binding_fuzzer.py [--calls 200] [--seed 0] [TARGET ...]
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import mmap
import os
import random
import re
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode as PyTorchsFakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor

import torchfake
from torchfake import _C, FakeTensorMode, fake_mode
from torchfake.errors import FakeTensorError

#: What a call may raise: errors that report the caller's mistake.
ALLOWED = (TypeError, ValueError, AttributeError, FakeTensorError, NotImplementedError)
#: The time in seconds after which a hanging process is killed.
PATIENCE = 120


class Storageless(torch.Tensor):
    """A wrapper subclass: a tensor without a storage of its own."""

    @staticmethod
    def __new__(cls) -> Storageless:
        return torch.Tensor._make_wrapper_subclass(cls, (2, 3))  # type: ignore[no-any-return, attr-defined]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError("a wrapper around nothing")


def tensors() -> dict[str, Any]:
    ones = torch.ones(2, 3)
    leaf = torch.ones(2, 3, requires_grad=True)
    made = {
        "real": ones,
        "number": torch.tensor(3),
        "empty": torch.empty(0),
        "view": ones.t()[1:],
        "overlapping": ones[:1].expand(4, 3),
        "leaf": leaf,
        "no leaf": leaf * 2,
        "conjugate": torch.ones(2, dtype=torch.complex64).conj(),
        "meta": torch.empty(2, 3, device="meta"),
        "sparse": ones.to_sparse(),
        "compressed": ones.to_sparse_csr(),
        "mkldnn": ones.to_mkldnn() if torch.backends.mkldnn.is_available() else ones,
        "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        "parameter": torch.nn.Parameter(ones.clone()),
        "lazy": torch.nn.UninitializedParameter(),
        "subclass": TwoTensor(torch.ones(3), torch.ones(3)),
        "storage-less": Storageless(),
        "functional": torch._to_functional_tensor(ones.clone()),
        "batched": torch._C._functorch._add_batch_dim(ones.clone(), 0, 1),
        "inference": inference_tensor(),
    }
    with PyTorchsFakeTensorMode():
        made["PyTorch's fake"] = torch.ones(2, 3)
    with fake_mode():
        made |= {
            "fake": torch.rand(2, 3),
            "fake cuda": torch.rand(3, device="cuda"),
            "fake meta": torch.rand(3, device="meta"),
            "fake known": torch.arange(4),
            "fake known number": torch.tensor(7),
            "fake empty": torch.empty(0, 3),
            "fake large": torch.empty(1 << 20, 1 << 20),
            "fake leaf": torch.rand(2, requires_grad=True),
            "fake parameter": torch.nn.Parameter(torch.rand(2)),
            "fake view": torch.rand(4, 4).t()[1:],
            "fake subclass": TwoTensor(torch.rand(3), torch.rand(3)),
        }
    with FakeTensorMode():
        made["fake of another kind"] = torch.ones(2)
    made["fake functional"] = torch._to_functional_tensor(made["fake"])
    return made


def inference_tensor() -> torch.Tensor:
    with torch.inference_mode():
        return torch.ones(2)


def states() -> dict[str, Any]:
    left = _C.EnteredFakeMode(_C.ModeState(known_values=3))
    left.leave()
    return {
        "state": _C.ModeState(known_values=16),
        "exclusive state": _C.ModeState(known_values=1, exclusive=True),
        "state of nothing": _C.ModeState.__new__(_C.ModeState),
        "mode that was left": left,
        "mode of nothing": _C.EnteredFakeMode.__new__(_C.EnteredFakeMode),
        "fake_mode": fake_mode(),
    }


def storages(tensors: dict[str, Any]) -> dict[str, Any]:
    with fake_mode():
        typed = torch.rand(3).storage()
    return {
        "real storage": torch.ones(3).untyped_storage(),
        "empty storage": torch.UntypedStorage(0),
        "meta storage": torch.UntypedStorage(4, device="meta"),
        "typed storage": torch.ones(3).storage(),
        "fake storage": tensors["fake"].untyped_storage(),
        "fake known storage": tensors["fake known"].untyped_storage(),
        "fake typed storage": typed,
    }


OTHERS: dict[str, dict[str, Any]] = {
    "int": {str(n): n for n in (0, 1, 2, 3, 7, -1, 1 << 31, 1 << 62, 1 << 63, 1 << 64, -(1 << 63), 1 << 200)},
    "float": {"1.5": 1.5, "nan": float("nan"), "inf": float("inf"), "complex": 1j},
    "bool": {"True": True, "False": False},
    "str": {
        repr(text): text
        for text in (
            "",
            "cuda",
            "cuda:1",
            "cpu",
            "meta",
            "vulkan",
            "privateuseone",
            "no such",
            "item",
            "nonzero",
            "\0",
            "ü",
        )
    },
    "device": {name: torch.device(name) for name in ("cpu", "cuda", "cuda:3", "meta", "xpu:1", "vulkan", "hpu")},
    "Callable": {
        "print": print,
        "lambda": lambda *args: None,
        "raises": lambda *args: 1 / 0,
        "class": ValueError,
        "int class": int,
    },
    "list": {"()": (), "[]": [], "[None]": [None], "{}": {}, "{1: 2}": {1: 2}, "bytes": b"bytes", "set": {1}},
    "any": {
        "None": None,
        "object": object(),
        "dtype": torch.float32,
        "layout": torch.strided,
        "Tensor": torch.Tensor,
        "module": _C,
        "generator": torch.Generator(),
        "enum": _C.RealTensors.REFUSED,
        "iterator": iter(()),
        "exception": ValueError("x"),
    },
}


class Values:
    """Values of every kind, by kind; and, for a parameter, one of a suitable kind or any other."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        made = tensors()
        self._kinds = {"Tensor": made, "ModeState": states(), "Storage": storages(made), **OTHERS}
        lists = {"[" + name + "]": [tensor] for name, tensor in made.items()}
        mixed = {"[fake, real]": [made["fake"], made["real"]], "[fake, fake]": [made["fake"]] * 2}
        self._kinds["list"] = {**self._kinds["list"], **lists, **mixed}
        self._all = [(name, value) for kind in self._kinds.values() for name, value in kind.items()]

    def every(self) -> list[tuple[str, Any]]:
        return self._all

    def choose(self, hint: str) -> tuple[str, Any]:
        kinds = [kind for kind in self._kinds if kind.lower() in hint.lower()]
        if kinds and self._random.random() < 0.75:
            return self._random.choice(list(self._kinds[self._random.choice(kinds)].items()))
        return self._random.choice(self._all)


# ---- Targets ----


def signature_hints(function: Any) -> list[str]:
    """The parameters of a pybind11 function according to its signature, without `self`."""
    lines = [line for line in (function.__doc__ or "").splitlines() if re.match(r"(\d+\. )?\w+\(.*\) -> ", line)]
    inside = max((re.sub(r"^(\d+\. )?\w+\((.*)\) -> .*$", r"\2", line) for line in lines), key=len, default="")
    hints = [part.strip() for part in re.split(r",\s*(?=\w+:|\*)", inside) if part.strip() and part.strip() != "*"]
    return [hint for hint in hints if not hint.startswith("self")]


def make_instance(cls: type) -> Any:
    makers: dict[type, Callable[[], Any]] = {
        _C.ModeState: lambda: _C.ModeState(known_values=8),
        _C.EnteredFakeMode: lambda: _C.EnteredFakeMode(_C.ModeState(known_values=8)),
        _C.EnteredValidInput: lambda: _C.EnteredValidInput(1),
        _C.RealTensors: lambda: _C.RealTensors.CONVERTED,
    }
    return makers.get(cls, cls)()


Target = tuple[Callable[..., Any], list[str], tuple[str, ...]]


def targets() -> dict[str, Target]:
    """Each function, constructor, method and property: the callable, hints for its parameters, names of keywords."""
    found: dict[str, Target] = {}
    for name, member in vars(_C).items():
        if isinstance(member, type):
            found[name] = (member, signature_hints(member.__init__), ())
            found |= {f"{name}.{key}": value for key, value in members_of(member)}
        elif callable(member):
            found[name] = (member, signature_hints(member), ())
    found["ModeState(**)"] = (_C.ModeState, ["int", "bool"], ("known_values", "exclusive"))
    return found


def members_of(cls: type) -> Iterator[tuple[str, Target]]:
    for name, member in vars(cls).items():
        if name.startswith("__"):
            continue
        if isinstance(member, property):
            yield f"{name}=", (lambda value, name=name: setattr(make_instance(cls), name, value), ["any"], ())
            yield f"{name}()", (lambda self, name=name: getattr(cls, name).__get__(self), ["ModeState"], ())
        elif callable(member):
            yield name, (lambda *args, name=name: getattr(make_instance(cls), name)(*args), signature_hints(member), ())
            yield f"{name}(self)", (member, ["ModeState", *signature_hints(member)], ())


# ---- Calls ----


def argument_lists(target: Target, values: Values, calls: int) -> Iterator[list[tuple[str, Any]]]:
    """No arguments, each value by itself, and as many as the target takes, most of them of the right kind."""
    _, hints, _ = target
    yield []
    for value in values.every():
        yield [value]
    if len(hints) > 1:
        for _ in range(calls):
            yield [values.choose(hint) for hint in hints]
        yield [values.choose("any") for _ in range(len(hints) + 1)]


#: The situations in which a call is made.
PLACES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "outside": contextlib.nullcontext,
    "in fake_mode": fake_mode,
    "in FakeTensorMode": lambda: FakeTensorMode(allow_non_fake_inputs=True),
}


def try_once(target: Target, given: list[Any]) -> str | None:
    """Describes what is wrong with the outcome of a call; None if nothing is."""
    function, _, keywords = target
    try:
        if keywords:
            function(**dict(zip(keywords, given, strict=False)))
        else:
            function(*given)
    except ALLOWED:
        pass
    except RuntimeError as error:
        return str(error).splitlines()[0] if "INTERNAL ASSERT" in str(error) else None
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def try_out(target: Target, values: Values, calls: int, now: Callable[[str], None]) -> dict[str, Any]:
    count, wrong = 0, []
    for place, context in PLACES.items():
        for arguments in argument_lists(target, values, calls):
            described = f"({', '.join(name for name, _ in arguments)}) {place}"
            now(described)
            count += 1
            with context():
                problem = try_once(target, [value for _, value in arguments])
            if problem:
                wrong.append(f"{described}: {problem}")
    now("a check that all is well")
    gc.collect()
    with fake_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert (torch.ones(2) + torch.ones(2)).shape == (2,)
    return {"calls": count, "wrong": wrong}


def in_a_process(name: str, target: Target, values: Values, calls: int) -> dict[str, Any]:
    """Runs in a forked process, so that a crash only affects one target, and reports the arguments."""
    note = mmap.mmap(-1, 4096)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        signal.alarm(PATIENCE)

        def now(what: str) -> None:
            note.seek(0)
            note.write(what.encode()[:4000].ljust(4001, b"\0"))

        try:
            result = try_out(target, values, calls, now)
        except BaseException:
            result = {"calls": 0, "wrong": [traceback.format_exc(limit=-3)]}
        with os.fdopen(write, "w") as out:
            json.dump(result, out)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        text = answer.read()
    _, status = os.waitpid(child, 0)
    note.seek(0)
    if os.WIFSIGNALED(status):
        ended = signal.Signals(os.WTERMSIG(status)).name
        return {"target": name, "calls": 0, "wrong": [f"{note.read(4000).rstrip(bytes(1)).decode()}: {ended}"]}
    return {"target": name, **json.loads(text)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Calls everything in torchfake._C with values of every kind.")
    parser.add_argument("--calls", type=int, default=200, help="calls with several arguments, for each target")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("targets", nargs="*", help="all of them by default")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    values, found = Values(options.seed), targets()
    gc.collect()
    gc.freeze()  # so that a child's collector leaves objects of the parent alone, and their pages shared
    for name in options.targets or found:
        print(json.dumps(in_a_process(name, found[name], values, options.calls)), flush=True)


if __name__ == "__main__":
    assert torchfake.__file__
    main()
    sys.stdout.flush()
    os._exit(0)  # some of the values cause errors at interpreter exit
