"""Fakes print like PyTorch's tensors without data, with fake=True."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from undrawn import fake_mode

FORMS = {
    "plain": (lambda: torch.ones(10), "tensor(..., size=(10,), fake=True)"),
    "unknown": (lambda: torch.randn(2, 3), "tensor(..., size=(2, 3), fake=True)"),
    "empty": (lambda: torch.empty(0, 4), "tensor(..., size=(0, 4), fake=True)"),
    "cuda": (lambda: torch.ones(10, device="cuda"), "tensor(..., device='cuda:0', size=(10,), fake=True)"),
    "cuda_index": (lambda: torch.ones(1, device="cuda:3"), "tensor(..., device='cuda:3', size=(1,), fake=True)"),
    "xpu": (lambda: torch.ones(1, device="xpu:1"), "tensor(..., device='xpu:1', size=(1,), fake=True)"),
    "half": (lambda: torch.ones(2, dtype=torch.half), "tensor(..., size=(2,), dtype=torch.float16, fake=True)"),
    "int64": (lambda: torch.arange(2), "tensor(..., size=(2,), dtype=torch.int64, fake=True)"),
    "int32": (lambda: torch.zeros(2, dtype=torch.int32), "tensor(..., size=(2,), dtype=torch.int32, fake=True)"),
    "bool": (lambda: torch.zeros(2, dtype=torch.bool), "tensor(..., size=(2,), dtype=torch.bool, fake=True)"),
    "complex": (lambda: torch.zeros(2, dtype=torch.cfloat), "tensor(..., size=(2,), dtype=torch.complex64, fake=True)"),
    "cuda_half": (
        lambda: torch.ones(2, dtype=torch.half, device="cuda"),
        "tensor(..., device='cuda:0', size=(2,), dtype=torch.float16, fake=True)",
    ),
    "requires_grad": (
        lambda: torch.ones(2, requires_grad=True),
        "tensor(..., size=(2,), fake=True, requires_grad=True)",
    ),
    "grad_fn": (
        lambda: torch.ones(2, requires_grad=True) * 2,
        "tensor(..., size=(2,), fake=True, grad_fn=<MulBackward0>)",
    ),
    "parameter": (
        lambda: nn.Parameter(torch.ones(2)),
        "Parameter containing:\ntensor(..., size=(2,), fake=True, requires_grad=True)",
    ),
    "frozen_parameter": (
        lambda: nn.Parameter(torch.ones(2, device="cuda"), requires_grad=False),
        "Parameter containing:\ntensor(..., device='cuda:0', size=(2,), fake=True)",
    ),
    "view": (lambda: torch.ones(2, 3).t(), "tensor(..., size=(3, 2), fake=True)"),
    "conj": (
        lambda: torch.zeros(2, dtype=torch.cfloat).conj(),
        "tensor(..., size=(2,), dtype=torch.complex64, fake=True)",
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_fake_prints_its_metadata(name: str) -> None:
    make, form = FORMS[name]
    with fake_mode():
        fake = make()
        assert (repr(fake), str(fake), f"{fake}") == (form, form, form)
    assert repr(fake) == form, "printed otherwise outside the mode"


def test_the_default_device_and_dtype_are_left_out() -> None:
    with fake_mode():
        fake, double = torch.ones(2, device="cuda"), torch.ones(2, dtype=torch.float64)
    torch.set_default_dtype(torch.float64)
    try:
        assert repr(double) == "tensor(..., size=(2,), fake=True)"
        assert "dtype=torch.float32" in repr(fake)
    finally:
        torch.set_default_dtype(torch.float32)


def test_the_forms_agree_with_those_of_meta_tensors() -> None:
    def forms(device: str) -> list[str]:
        x = torch.ones(2, 3, device=device, requires_grad=True)
        whole = nn.Parameter(x.detach().long(), requires_grad=False)
        return [repr(t) for t in (x, x.half(), x.detach(), x.sum(), whole)]

    with fake_mode():
        fakes = forms("cuda")
    for fake, meta in zip(fakes, forms("meta"), strict=True):
        assert fake.replace(", fake=True", "").replace("cuda:0", "meta") == meta


def test_modules_and_containers_of_fakes_print() -> None:
    with fake_mode():
        model = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
        assert repr(model) == repr(nn.Sequential(nn.Linear(2, 3), nn.ReLU()))
        assert "fake=True" in repr(model.state_dict()) and "size=(3, 2)" in repr(list(model.parameters()))
        assert repr([torch.ones(1)]) == "[tensor(..., size=(1,), fake=True)]"


def test_a_number_prints_its_metadata_and_formats_as_its_value_where_that_is_known() -> None:
    with fake_mode():
        assert repr(torch.tensor(3.0)) == repr(torch.rand(())) == "tensor(..., size=(), fake=True)"
        assert f"{torch.rand(())}" == "tensor(..., size=(), fake=True)", "as a meta tensor does"
        assert f"{torch.tensor(3)}" == "3" and f"{torch.tensor(0.5):.2f}" == "0.50"
        with pytest.raises(RuntimeError, match="aten::_local_scalar_dense"):
            f"{torch.rand(()):.2f}"


def test_real_tensors_print_as_ever_inside_the_mode() -> None:
    real, meta = torch.arange(3), torch.ones(2, device="meta")
    expected = repr(real), repr(meta)
    with fake_mode():
        assert (repr(real), repr(meta)) == expected
