"""Modules, parameters and tensor subclasses hold fakes like real tensors."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from metadata import assert_like_real, assert_same_metadata
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils._pytree import tree_map

import torchfake
from torchfake import FakeTensor, fake_mode, is_fake


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 2)
        self.tied = nn.Linear(4, 2)
        self.tied.weight = self.head.weight
        self.register_buffer("steps", torch.arange(3), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.conv(x)).mean((2, 3)))


MOVES = {
    "nothing": lambda m: m,
    "half": lambda m: m.half(),
    "bfloat16": lambda m: m.bfloat16(),
    "double_float": lambda m: m.double().float(),
    "to_dtype": lambda m: m.to(torch.float64),
    "to_channels_last": lambda m: m.to(memory_format=torch.channels_last),
    "requires_grad_": lambda m: m.requires_grad_(False),
    "to_empty": lambda m: m.to_empty(device="cpu"),
    "type": lambda m: m.type(torch.float16),
    "share": lambda m: m.to("cpu"),
    "zero_grad": lambda m: (m(torch.zeros(1, 3, 5, 5)).sum().backward(), m.zero_grad(False), m.half())[2],
}


def everything_in(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers(), *(p.grad for p in module.parameters() if p.grad is not None)]


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("name", MOVES)
def test_a_moved_module_holds_what_a_real_one_would(name: str, swap: bool) -> None:
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(swap)
    try:
        assert_like_real(lambda: everything_in(MOVES[name](Net())))
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)


@pytest.mark.parametrize("device", ["cuda:0", "cuda:2", "xpu:1", "mps:0", "hpu:0", "cpu"])
@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("inside", [True, False])
def test_a_module_moves_to_any_device_and_stays_itself(device: str, swap: bool, inside: bool) -> None:
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(swap)
    try:
        with fake_mode():
            net = Net()
            weights = list(net.parameters())
            if inside:
                net.to(device)
        if not inside:
            net.to(device)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)
    assert [id(p) for p in net.parameters()] == [id(p) for p in weights]
    assert net.tied.weight is net.head.weight
    for tensor in everything_in(net):
        assert is_fake(tensor) and tensor.device == torch.device(device)
    assert_same_metadata([b.clone() for b in net.buffers()], [b.clone() for b in Net().buffers()], device=device)


def test_cuda_to_empty_and_cpu_name_the_device() -> None:
    with fake_mode():
        net = Net()
        assert {p.device for p in net.cuda().parameters()} == {torch.device("cuda:0")}
        assert {p.device for p in net.cuda(2).parameters()} == {torch.device("cuda:2")}
        assert {p.device for p in net.to_empty(device="cuda:1").parameters()} == {torch.device("cuda:1")}
        assert net(torch.zeros(2, 3, 8, 8, device="cuda:1")).device == torch.device("cuda:1")
        assert {p.device for p in net.cpu().parameters()} == {torch.device("cpu")}
        assert {p.device for p in net.xpu().parameters()} == {torch.device("xpu:0")}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_meta_tensor_has_nothing_to_move(device: str) -> None:
    with torch.device("meta"):
        net = Net()
    with fake_mode():
        with pytest.raises(NotImplementedError, match=r"no data! Please use torch\.nn\.Module\.to_empty"):
            net.to(device)
        with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor; no data!"):
            torch.ones(5, device="meta").to(device)
        assert {p.device.type for p in net.to_empty(device=device).parameters()} == {device}
        assert torch.empty_like(torch.ones(5, device="meta"), device=device).device.type == device


def test_gradients_move_with_their_parameters() -> None:
    with fake_mode():
        net = Net()
        net(torch.zeros(2, 3, 8, 8)).sum().backward()
        net.cuda().half()
        for parameter in net.head.parameters():
            if parameter.grad is not None:
                assert (parameter.grad.device.type, parameter.grad.dtype) == ("cuda", torch.float16)
        assert net.head.weight.grad is not None


def test_meta_modules_become_fake_or_empty() -> None:
    with fake_mode():
        meta = nn.Linear(2, 3, device="meta")
        assert not is_fake(meta.weight) and meta.weight.is_meta
        filled = meta.to_empty(device="cuda")
        assert is_fake(filled.weight) and filled.weight.device == torch.device("cuda:0")


def test_state_dicts_load_from_fakes_into_fakes() -> None:
    with fake_mode():
        source, target = Net().cuda(), Net()
        target.load_state_dict(source.state_dict())
        assert {p.device.type for p in target.parameters()} == {"cpu"}
        target.load_state_dict(source.state_dict(), assign=True)
        assert {p.device.type for p in target.parameters()} == {"cuda"}
        assert target.conv.weight.untyped_storage()._cdata == source.conv.weight.untyped_storage()._cdata
        assert isinstance(target.conv.weight, nn.Parameter)
        with pytest.raises(RuntimeError, match="size mismatch"):
            nn.Linear(3, 4).load_state_dict(nn.Linear(4, 3).state_dict())


def test_a_real_module_does_not_take_fake_values() -> None:
    real = nn.Linear(2, 2)
    values = real.weight.tolist()
    with fake_mode():
        fake = nn.Linear(2, 2)
    with pytest.raises(RuntimeError):
        real.load_state_dict(fake.state_dict())
    assert real.weight.tolist() == values and not is_fake(real.weight)


def test_parameters_are_parameters() -> None:
    def program() -> list[Tensor]:
        weight = nn.Parameter(torch.zeros(2, 3))
        frozen = nn.Parameter(torch.zeros(2, dtype=torch.int64), requires_grad=False)
        buffer = nn.Buffer(torch.zeros(2))
        lazy = nn.LazyLinear(4)
        lazy(torch.zeros(2, 3))
        return [weight, frozen, buffer, lazy.weight, weight.data, weight.detach(), nn.Parameter(weight)]

    fakes = assert_like_real(program)
    assert isinstance(fakes[0], nn.Parameter) and isinstance(fakes[0], FakeTensor)
    assert isinstance(fakes[2], nn.Buffer)


def test_parametrized_and_initialised_modules_work() -> None:
    def program() -> list[Tensor]:
        layer = parametrizations.weight_norm(nn.Linear(4, 4))
        spectral = parametrizations.spectral_norm(nn.Linear(4, 4))
        plain = torch.empty(4, 4)
        for init in (
            nn.init.orthogonal_,
            nn.init.trunc_normal_,
            nn.init.xavier_uniform_,
            nn.init.kaiming_normal_,
            nn.init.eye_,
            nn.init.zeros_,
        ):
            init(plain)
        nn.init.sparse_(plain, 0.5)
        return [layer(plain), spectral(plain), plain.detach()]

    assert_like_real(lambda: [t.detach().clone() for t in program()])


class Named(Tensor):
    """A subclass with an attribute and the default __torch_function__."""


class Logged(Tensor):
    calls: list[str] = []  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.calls.append(getattr(func, "__name__", str(func)))
        return super().__torch_function__(func, types, args, kwargs or {})


class Closed(Tensor):
    """Holds another tensor and sees every operator, but does not declare what it holds."""

    inner: Tensor
    ops: list[str] = []  # noqa: RUF012

    @staticmethod
    def __new__(cls, inner: Tensor) -> Closed:
        self: Closed = torch.Tensor._make_wrapper_subclass(
            cls, inner.size(), strides=inner.stride(), dtype=inner.dtype, device=inner.device
        )
        self.inner = inner
        return self

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.ops.append(str(func))
        args, kwargs = tree_map(lambda x: x.inner if isinstance(x, cls) else x, (args, kwargs or {}))
        return tree_map(lambda x: cls(x) if isinstance(x, Tensor) else x, func(*args, **kwargs))


class Wrapper(Closed):
    """Says what it holds."""

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], context: None, size: Any, stride: Any) -> Closed:
        return Wrapper(inner["inner"])


class TimesOnes(torch.autograd.Function):
    """Makes a tensor in its backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.device = x.device
        return x * 1

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * torch.ones(2, 3, device=ctx.device)


class Behind(Tensor):
    """A subclass of a tensor with a storage, with __torch_dispatch__."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C._DisableTorchDispatch():
            out = func(*args, **(kwargs or {}))
            return tree_map(lambda x: x.as_subclass(cls) if isinstance(x, Tensor) else x, out)


@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
@pytest.mark.parametrize("kind", [Named, Logged])
def test_subclasses_of_fakes_are_kept_by_operators(kind: type, device: str) -> None:
    def program(device: str) -> list[Tensor]:
        x = torch.zeros(2, 3, device=device).as_subclass(kind)
        y = (x * 2).sum(0)
        return [x, y, x[0], x.t(), y.float().relu(), x.new_zeros(2), torch.cat([x, x])]

    Logged.calls.clear()
    with fake_mode():
        fakes = program(device)
    assert {type(fake) for fake in fakes} == {kind}
    assert_same_metadata(fakes, program("cpu"), device=device)
    assert kind is Named or "sum" in Logged.calls


@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
def test_a_wrapper_subclass_of_a_fake_sees_each_operator(device: str) -> None:
    Wrapper.ops.clear()
    with fake_mode():
        x = Wrapper(torch.randn(2, 3, device=device))
        x.requires_grad_()
        y = torch.nn.functional.linear(x, torch.randn(4, 3, device=device)).sum()
        y.backward()
    assert type(y) is Wrapper and is_fake(y) and torchfake.is_fake(y.inner) and y.device == torch.device(device)
    assert type(x.grad) is Wrapper and x.grad.shape == (2, 3)
    assert "aten.sum.default" in Wrapper.ops and any("mm" in op for op in Wrapper.ops)


@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
@pytest.mark.parametrize("kind", [Wrapper, Closed])
@pytest.mark.parametrize("inside", [True, False])
def test_backward_through_a_wrapper_runs_in_the_mode_of_what_it_holds(inside: bool, kind: Any, device: str) -> None:
    with fake_mode() as mode:
        x = kind(torch.randn(2, 3, device=device)).requires_grad_()
        y = TimesOnes.apply(x).sum()  # type: ignore[no-untyped-call]
    with mode if inside else contextlib.nullcontext():
        y.backward()
    assert type(x.grad) is kind and is_fake(x.grad.inner)


def test_backward_through_a_wrapper_of_real_tensors_stays_real() -> None:
    x = Closed(torch.randn(2, 3)).requires_grad_()
    y = TimesOnes.apply(x).sum()  # type: ignore[no-untyped-call]
    with fake_mode():
        y.backward()
    assert isinstance(x.grad, Closed) and not is_fake(x.grad.inner)


def test_a_subclass_with_dispatch_over_a_fake_storage_works() -> None:
    with fake_mode():
        x = torch.randn(2, 3, device="cuda").as_subclass(Behind)
        y = (x + x).t()
    assert type(y) is Behind and is_fake(y) and y.shape == (3, 2) and y.device == torch.device("cuda:0")
    assert y.untyped_storage().nbytes() == 24


def test_a_wrapper_of_a_fake_prints() -> None:
    with fake_mode():
        wrapper = Wrapper(torch.randn(2, device="cuda"))
        assert repr(wrapper) == "Wrapper(..., device='cuda:0', size=(2,), fake=True)"
    assert repr(wrapper) == "Wrapper(..., device='cuda:0', size=(2,), fake=True)"
