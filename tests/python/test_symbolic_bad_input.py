"""Bad input to symbolic sizes is an error of a suitable type that names what is wrong."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
import torch

from torchfake import DynamicShapesError, FakeTensor, FakeTensorMode, ShapeEnv
from torchfake.fx import FakeTensorProp


@pytest.fixture
def mode():
    return FakeTensorMode(shape_env=ShapeEnv())


DIMENSIONS = {
    "out of range": ([2], IndexError, "2 dimensions, and 2 is none of them"),
    "out of range from the end": ({-3: "batch"}, IndexError, "2 dimensions, and -3 is none of them"),
    "a text as dimension": (["batch"], TypeError, "'batch'"),
    "a number as name": ({0: 3}, TypeError, "0: 3"),
    "one number": (1, TypeError, "int 1"),
    "one text": ("batch", TypeError, "str 'batch'"),
    "one dimension twice": ({0: "batch", -2: "rows"}, ValueError, "0 and -2 are the same dimension"),
    "one name for two sizes": ({0: "n", 1: "n"}, ValueError, "'n' is 3 elsewhere and 4 here"),
    "no identifier": ({0: "a b"}, ValueError, "'a b'"),
}


@pytest.mark.parametrize(("dynamic", "error", "message"), DIMENSIONS.values(), ids=DIMENSIONS)
def test_dimensions_and_names(mode, dynamic, error, message):
    x = torch.ones(3, 4)
    with pytest.raises(error, match=re.escape(message)):
        mode.from_tensor(x, dynamic=dynamic)
    assert mode.from_tensor(x).shape == (3, 4)  # as if it had not been tried


def test_one_name_for_sizes_of_two_tensors(mode):
    kept = mode.from_tensor(torch.ones(5), dynamic={0: "n"})
    with pytest.raises(ValueError, match="'n' is 5 elsewhere and 6 here"):
        mode.from_tensor(torch.ones(6), dynamic={0: "n"})
    assert str(kept.shape[0]) == "n"


def test_a_context_of_another_type(mode):
    with pytest.raises(TypeError, match=r"expected a StatelessSymbolicContext.*got int"):
        mode.from_tensor(torch.ones(3), symbolic_context=3)
    with pytest.raises(TypeError, match="got SimpleNamespace"):
        mode.from_tensor(torch.ones(3), symbolic_context=SimpleNamespace())


def test_a_graph_with_a_missing_argument(mode):
    graph = torch.fx.symbolic_trace(lambda first, second: first + second)
    with pytest.raises(RuntimeError, match="second"):
        FakeTensorProp(graph, mode).propagate(torch.ones(3))


def test_propagation_of_what_is_no_graph_or_in_no_mode(mode):
    graph = torch.fx.symbolic_trace(lambda x: x)
    with pytest.raises(TypeError, match="expected a GraphModule, got int"):
        FakeTensorProp(3, mode)
    with pytest.raises(TypeError, match="expected a mode of torchfake, got str"):
        FakeTensorProp(graph, "mode")


def test_values_of_symbols(mode):
    env = mode.shape_env
    n = env.create_symint(4, "n")
    for values, error, message in (
        ({}, ValueError, "'n'"),
        ({"n": 4, "m": 2}, ValueError, "'m'"),
        ({"n": 4.0}, TypeError, "'n'"),
        ({"n": "4"}, TypeError, "got str"),
        ({0: 4}, TypeError, "key of type int"),
    ):
        with pytest.raises(error, match=message):
            env.evaluate(n * 2, values)
        if values:
            with pytest.raises(error, match=message):
                env.guards_hold(values)


def test_symbols_of_two_environments(mode):
    mine = mode.from_tensor(torch.ones(4, 3), dynamic={0: "mine"})
    other = FakeTensorMode(shape_env=ShapeEnv())
    theirs = other.from_tensor(torch.ones(4, 3), dynamic={0: "theirs"})
    for call in (
        lambda: mine.shape[0] + theirs.shape[0],
        lambda: mine.shape[0] == theirs.shape[0],
        lambda: mine.view(theirs.shape[0], 3),
        lambda: mode.from_tensor(theirs),
        lambda: FakeTensor(mode, torch.empty(theirs.shape[0], 3, device="meta"), "cpu"),
        lambda: mode.fake_tensor_converter.from_meta_and_device(
            mode, torch.empty(theirs.shape[0], 3, device="meta"), "cpu"
        ),
    ):
        with pytest.raises(DynamicShapesError, match=r"theirs|two ShapeEnvs"):
            call()


@pytest.mark.parametrize("make", ["constructor", "converter"])
def test_a_fake_of_a_meta_tensor_with_symbolic_sizes(mode, make):
    env = mode.shape_env
    batch, count = env.create_symint(4, "batch"), env.create_unbacked_symint()
    meta = torch.empty(batch, count, 3, device="meta", dtype=torch.float16)
    if make == "constructor":
        fake = FakeTensor(mode, meta, "cuda")
    else:
        fake = mode.fake_tensor_converter.from_meta_and_device(mode, meta, "cuda")
        assert mode.fake_tensor_converter.from_real_tensor(mode, meta) is fake
    assert fake.shape == (batch, count, 3) and str(fake.stride()) == str(meta.stride())
    assert (fake.device.type, fake.dtype) == ("cuda", torch.float16)
    assert str((fake * 2).shape) == str(fake.shape)
