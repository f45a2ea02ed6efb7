"""The public names: documented on one page, typed, and available under their old names if they were renamed."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any, TypeGuard, get_overloads, get_type_hints

import pytest
import torch
from torch import Tensor

import torchfake
from torchfake import FakeTensor, FakeTensorMode, fake_mode, from_pytorch_fake, is_fake, to_fake, to_pytorch_fake

PAGE = Path(__file__).resolve().parents[2] / "docs" / "api" / "python.md"

# What programs import from torch._subclasses.fake_tensor.
PYTORCHS_NAMES = [
    "CONSTANT_NUMEL_LIMIT",
    "DataDependentOutputException",
    "DispatchCacheInfo",
    "DynamicOutputShapeException",
    "FakeTensor",
    "FakeTensorConfig",
    "FakeTensorConverter",
    "FakeTensorMode",
    "FakeTensorTLS",
    "IncrementRecursionCount",
    "MetadataMismatchError",
    "SingletonConstant",
    "SymNumberMemoDescriptor",
    "TensorMetadata",
    "UnsupportedFakeTensorException",
    "UnsupportedMutationAliasingException",
    "UnsupportedOperatorException",
    "disable_fake_tensor_cache",
    "extract_tensor_metadata",
    "fake_tensor_tls",
    "get_plain_tensors",
    "get_schema_info",
    "in_kernel_invocation_manager",
    "init_gpu_context",
    "is_fake",
    "maybe_get_fake_mode",
    "ordered_set",
    "should_allow_numbers_as_tensors",
    "torch_decomp_decompositions",
    "tree_flatten_only",
    "unset_fake_temporarily",
]


def names_on_the_page() -> list[str]:
    return re.findall(r"^::: (\S+)$", PAGE.read_text(), flags=re.MULTILINE)


def find(name: str) -> Any:
    """The module or attribute that a dotted name refers to."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        module, _, attribute = name.rpartition(".")
        return getattr(importlib.import_module(module), attribute)


def test_every_public_name_is_on_the_page() -> None:
    page = names_on_the_page()
    missing = {name for name in torchfake.__all__ if f"torchfake.{name}" not in page} - set(torchfake.errors.__all__)
    assert not missing
    assert {"torchfake.errors", "torchfake.fx.FakeTensorProp", "torchfake.inspect_model"} <= set(page)
    assert "torchfake.trace_model" in page


@pytest.mark.parametrize("name", names_on_the_page())
def test_what_is_on_the_page_can_be_imported_and_is_explained(name: str) -> None:
    found = find(name)
    if callable(found):
        assert found.__doc__


@pytest.mark.parametrize("module", ["errors", "fx", "inspect_model", "trace_model", "fake", "cache", "helpers"])
def test_a_module_has_what_it_announces(module: str) -> None:
    public = importlib.import_module(f"torchfake.{module}")
    for name in public.__all__:
        assert getattr(public, name).__doc__


@pytest.mark.parametrize("name", PYTORCHS_NAMES)
def test_a_name_of_pytorchs_can_be_imported_from_torchfake(name: str) -> None:
    assert hasattr(torch._subclasses.fake_tensor, name)
    assert name in torchfake.__all__
    assert hasattr(torchfake, name)


def test_conversion_keeps_its_old_names_with_a_warning() -> None:
    with fake_mode():
        fake = torch.ones(2, 3)
    with pytest.warns(DeprecationWarning, match="to_pytorch_fake"):
        theirs = torchfake.to_torch(fake)
    assert type(theirs) is type(to_pytorch_fake(fake))
    with pytest.warns(DeprecationWarning, match="from_pytorch_fake"):
        back = torchfake.from_torch(theirs)
    assert isinstance(back, FakeTensor)
    assert back.shape == from_pytorch_fake(theirs).shape == (2, 3)


def test_the_limit_of_known_values_keeps_its_old_name_with_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match="known_values_limit") as warned:
        mode = fake_mode(known_values=3)
    assert warned[0].filename == __file__
    assert mode.known_values_limit == 3
    with pytest.warns(DeprecationWarning, match="known_values_limit"):
        assert mode.known_values == 3
    with pytest.raises(ValueError, match="known_values_limit must be 0 or more, got -1"):
        fake_mode(known_values_limit=-1)


def test_the_attributes_of_a_fake_are_those_its_type_has() -> None:
    with FakeTensorMode():
        fake = torch.ones(2)
    typed = get_type_hints(FakeTensor).keys() - get_type_hints(Tensor).keys()
    assert typed == {patch.target.rpartition(".")[2] for patch in torchfake._replaced_tensors.ATTRIBUTES}
    for name in typed:
        assert hasattr(fake, name)
        assert not hasattr(torch.ones(2), name)


def test_functions_have_the_type_of_what_they_return() -> None:
    assert get_type_hints(is_fake)["return"] == TypeGuard[Tensor]
    makers = [
        get_overloads(to_fake)[0],
        from_pytorch_fake,
        FakeTensor.__new__,
        FakeTensor.from_tensor,
        FakeTensorMode.from_tensor,
    ]
    for make in makers:
        namespace = {"FakeTensorMode": FakeTensorMode}
        assert get_type_hints(make, localns=namespace)["return"] is FakeTensor, make
