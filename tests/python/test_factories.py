"""Everything that creates a tensor creates a fake in the mode, on the same device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
import torch
import undrawn
from metadata import assert_like_real, assert_same_metadata
from torch import Tensor
from torch.utils._device import _device_constructors

from torchfake import DataDependentOutputException, UnsupportedFakeTensorException, fake_mode, is_fake

# How each of PyTorch's factories is called; keyword arguments (device, dtype...) are added.
FACTORIES: dict[str, Callable[..., Tensor]] = {
    "arange": lambda **k: torch.arange(1, 9, 2, **k),
    "as_tensor": lambda **k: torch.as_tensor([[1, 2], [3, 4]], **k),
    "asarray": lambda **k: torch.asarray([1.0, 2.0], **k),
    "bartlett_window": lambda **k: torch.bartlett_window(5, **k),
    "blackman_window": lambda **k: torch.blackman_window(5, **k),
    "empty": lambda **k: torch.empty(2, 3, **k),
    "empty_permuted": lambda **k: torch.empty_permuted((2, 3, 4), (2, 0, 1), **k),
    "empty_strided": lambda **k: torch.empty_strided((2, 3), (1, 4), **k),
    "eye": lambda **k: torch.eye(3, 2, **k),
    "fft_fftfreq": lambda **k: torch.fft.fftfreq(5, **k),
    "fft_rfftfreq": lambda **k: torch.fft.rfftfreq(5, **k),
    "full": lambda **k: torch.full((2, 3), 7, **k),
    "hamming_window": lambda **k: torch.hamming_window(5, **k),
    "hann_window": lambda **k: torch.hann_window(5, **k),
    "kaiser_window": lambda **k: torch.kaiser_window(5, **k),
    "linspace": lambda **k: torch.linspace(0, 1, 5, **k),
    "logspace": lambda **k: torch.logspace(0, 1, 5, **k),
    "ones": lambda **k: torch.ones(2, 3, **k),
    "rand": lambda **k: torch.rand(2, 3, **k),
    "randint": lambda **k: torch.randint(0, 5, (2, 3), **k),
    "randn": lambda **k: torch.randn(2, 3, **k),
    "randperm": lambda **k: torch.randperm(5, **k),
    "range": lambda **k: torch.range(0, 4, **k),
    "scalar_tensor": lambda **k: torch.scalar_tensor(2.5, **k),
    "tensor": lambda **k: torch.tensor([[1.0, 2.0]], **k),
    "tril_indices": lambda **k: torch.tril_indices(3, 3, **k),
    "triu_indices": lambda **k: torch.triu_indices(3, 3, **k),
    "zeros": lambda **k: torch.zeros(2, 3, **k),
}
#: What they make is shown by test_quantized_fakes.py.
QUANTIZED = {"empty_quantized"}
UNSUPPORTED: dict[str, Callable[..., Tensor]] = {
    "nested_tensor": lambda **k: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], **k),
    "to_mkldnn": lambda **k: torch.ones(2, **k).to_mkldnn(),
}
#: What they make is shown by test_sparse_fakes.py.
SPARSE: dict[str, Callable[..., Tensor]] = {
    "sparse_coo_tensor": lambda **k: torch.sparse_coo_tensor([[0, 1]], [1.0, 2.0], (3,), **k),
    "sparse_csr_tensor": lambda **k: torch.sparse_csr_tensor([0, 1, 2], [0, 1], [1.0, 2.0], (2, 2), **k),
    "sparse_csc_tensor": lambda **k: torch.sparse_csc_tensor([0, 1, 2], [0, 1], [1.0, 2.0], (2, 2), **k),
    "sparse_bsr_tensor": lambda **k: torch.sparse_bsr_tensor([0, 1], [0], [[[1.0]]], (1, 1), **k),
    "sparse_bsc_tensor": lambda **k: torch.sparse_bsc_tensor([0, 1], [0], [[[1.0]]], (1, 1), **k),
    "sparse_compressed_tensor": lambda **k: torch.sparse_compressed_tensor(
        [0, 1, 2], [0, 1], [1.0, 2.0], (2, 2), layout=torch.sparse_csr, **k
    ),
    "zeros_sparse": lambda **k: torch.zeros(2, layout=torch.sparse_coo, **k),
    "empty_sparse": lambda **k: torch.empty(2, 2, layout=torch.sparse_csr, **k),
    "to_sparse": lambda **k: torch.ones(2, **k).to_sparse(),
    "to_sparse_csr": lambda **k: torch.ones(2, 2, **k).to_sparse_csr(),
}
FOLLOWS_DEFAULT = [name for name in FACTORIES if name != "range"]  # PyTorch's own range does not

DTYPES = sorted(
    {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    - {torch.quint8, torch.qint8, torch.qint32, torch.quint4x2, torch.quint2x4},
    key=str,
)
DEVICES = ["cpu", "cuda", "cuda:0", "cuda:7", "cuda:63", "xpu", "xpu:2", "mps", "hpu", "hpu:1", "mtia:1", "xla:1"]
DEVICES += ["ipu:0", "ve:0", "maia:0", "vulkan", "lazy", "privateuseone:1"]


def indexed(device: str) -> torch.device:
    named = torch.device(device)
    return named if named.index is not None or named.type == "cpu" else torch.device(named.type, 0)


def test_every_factory_of_pytorch_is_covered() -> None:
    covered = FACTORIES.keys() | SPARSE.keys() | QUANTIZED | UNSUPPORTED.keys()
    assert {function.__name__ for function in _device_constructors()} <= covered


@pytest.mark.parametrize("name", FACTORIES)
def test_a_factory_makes_what_it_makes_for_real(name: str) -> None:
    assert_like_real(FACTORIES[name])
    assert_like_real(lambda: FACTORIES[name](device="cpu"))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", FACTORIES)
def test_an_explicit_device_is_claimed(name: str, device: str) -> None:
    with fake_mode():
        fake = FACTORIES[name](device=device)
    assert_same_metadata(fake, FACTORIES[name](), device=indexed(device))
    assert (fake + fake).device == indexed(device), "and works outside the mode"


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:7", "xpu:2"])
@pytest.mark.parametrize("name", SPARSE)
def test_a_sparse_factory_claims_an_explicit_device(name: str, device: str) -> None:
    with fake_mode():
        fake = SPARSE[name](device=device)
    real = SPARSE[name]()
    assert (fake.layout, fake.shape, fake.dtype, fake._nnz()) == (real.layout, real.shape, real.dtype, real._nnz())
    assert fake.device == indexed(device) and (fake * 2).device == indexed(device), "and works outside the mode"


@pytest.fixture
def default_cuda() -> Iterator[None]:
    torch.set_default_device("cuda:1")
    yield
    torch.set_default_device(None)


@pytest.mark.parametrize("name", FOLLOWS_DEFAULT)
def test_a_default_device_is_claimed_and_an_explicit_one_beats_it(name: str, default_cuda: None) -> None:
    with fake_mode():
        assert FACTORIES[name]().device == torch.device("cuda:1")
        assert FACTORIES[name](device="cpu").device == torch.device("cpu")
        with torch.device("xpu:2"):
            assert FACTORIES[name]().device == torch.device("xpu:2")
            assert FACTORIES[name](device="cuda").device == torch.device("cuda:0")
        assert FACTORIES[name]().device == torch.device("cuda:1")


@pytest.mark.parametrize("name", FOLLOWS_DEFAULT)
def test_a_device_context_is_claimed_in_either_order_of_nesting(name: str) -> None:
    with fake_mode(), torch.device("cuda:3"):
        inner = FACTORIES[name]()
    with torch.device("cuda:3"), fake_mode():
        outer = FACTORIES[name]()
    assert is_fake(inner) and is_fake(outer)
    assert inner.device == outer.device == torch.device("cuda:3")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_can_be_made(dtype: torch.dtype) -> None:
    def program(device: str) -> list[Tensor]:
        x = torch.empty(2, 3, dtype=dtype, device=device)
        return [x, torch.empty_like(x), x.new_empty(4), torch.empty_strided((2, 3), (1, 2), dtype=dtype, device=device)]

    real = program("cpu")
    for device in ("cpu", "cuda:1"):
        with fake_mode():
            fakes = program(device)
        assert_same_metadata(fakes, real, device=device)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["zeros", "ones", "full", "tensor", "arange", "eye", "scalar_tensor", "rand"])
def test_a_factory_with_a_dtype_makes_or_refuses_what_it_does_for_real(name: str, dtype: torch.dtype) -> None:
    try:
        real = FACTORIES[name](dtype=dtype)
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        return  # the CPU has no kernel for it; other devices may
    with fake_mode():
        assert_same_metadata(FACTORIES[name](dtype=dtype), real, device="cpu")


@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
def test_factories_that_look_at_a_tensor_follow_it(device: str) -> None:
    def program(device: str) -> list[Tensor]:
        x = torch.zeros(3, 2, device=device).t()
        return [
            torch.zeros_like(x), torch.ones_like(x), torch.full_like(x, 2), torch.empty_like(x), torch.rand_like(x),
            torch.randn_like(x), torch.randint_like(x, 5), torch.zeros_like(x, dtype=torch.int8),
            torch.empty_like(x, memory_format=torch.contiguous_format), torch.ones_like(x, requires_grad=True),
            x.new_zeros(2), x.new_ones(2), x.new_full((2,), 3.0), x.new_empty(2, 3), x.new_tensor([1, 2]),
            x.new_empty_strided((2, 2), (1, 2)), x.new_zeros((2,), dtype=torch.half), x.new(2, 3), x.new([1.0, 2.0]),
        ]  # fmt: skip

    with fake_mode():
        fakes = program(device)
        assert torch.zeros_like(fakes[0], device="cuda:2").device == torch.device("cuda:2")
        assert fakes[0].new_zeros(2, device="cpu").device == torch.device("cpu")
    assert_same_metadata(fakes, program("cpu"), device=device)


def test_data_from_python_and_numpy_becomes_fake_and_known() -> None:
    def program() -> list[Tensor]:
        array = numpy.arange(6, dtype=numpy.int16).reshape(2, 3)
        return [
            torch.tensor(array), torch.as_tensor(array), torch.asarray(array), torch.from_numpy(array.copy()),
            torch.frombuffer(bytearray(b"12345678"), dtype=torch.int32), torch.as_tensor(2.5), torch.tensor(True),
            torch.tensor([[]]), torch.tensor(numpy.float64(1.5)), torch.tensor([torch.tensor(1.0), 2.0]),
            torch.tensor(1 + 2j), torch.asarray([1, 2], dtype=torch.half), torch.tensor([1.0], requires_grad=True),
            torch.as_tensor(array.T), torch.stack([torch.tensor(1), torch.tensor(2)]),
        ]  # fmt: skip

    for fake, real in zip(assert_like_real(program), program(), strict=True):
        assert fake.tolist() == real.tolist()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_tensor_of_unknown_numbers_cannot_be_built_from_them(device: str) -> None:
    # torch.tensor reads the numbers among its elements with the engine switched off.
    with undrawn.fake_mode(), pytest.raises(DataDependentOutputException, match=r"torch\.stack"):
        torch.tensor([torch.rand((), device=device), 0.0])
    with fake_mode():
        assert torch.tensor([torch.ones(()), torch.ones((), device="cuda"), 0.0]).tolist() == [1.0, 1.0, 0.0]


def test_the_legacy_constructors_work() -> None:
    def program() -> list[Tensor]:
        return [
            torch.Tensor(2, 3), torch.Tensor([1.0, 2.0]), torch.FloatTensor(2), torch.LongTensor([1, 2]),
            torch.BoolTensor(3), torch.DoubleTensor(torch.Size([2, 2])), torch.HalfTensor(2), torch.Tensor(),
            torch.tensor([1.0]).type(torch.DoubleTensor), torch.Tensor(torch.ones(2)),
        ]  # fmt: skip

    assert_like_real(program)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", UNSUPPORTED)
def test_layouts_that_cannot_be_faked_are_refused_by_a_typed_error(name: str, device: str) -> None:
    with fake_mode(), pytest.raises(UnsupportedFakeTensorException, match=r"only strided|cannot be fake"):
        UNSUPPORTED[name](device=device)


def test_memory_options_and_generators_are_taken() -> None:
    def program(generator: torch.Generator | None) -> Any:
        return [
            torch.rand(2, generator=generator), torch.randn(2, 3, generator=generator),
            torch.randint(5, (2,), generator=generator), torch.randperm(4, generator=generator),
            torch.empty(2, 3, 4, 5, memory_format=torch.channels_last), torch.empty(2).normal_(generator=generator),
            torch.bernoulli(torch.ones(3) / 2, generator=generator), torch.zeros(2, out=torch.empty(0)),
        ]  # fmt: skip

    state = torch.Generator().manual_seed(3)
    before = state.get_state()
    assert_like_real(lambda: program(torch.Generator().manual_seed(3)))
    with fake_mode():
        program(state)
        assert is_fake(torch.empty(2, pin_memory=True)) and is_fake(torch.randn(2, pin_memory=True))
        assert torch.arange(3, out=torch.empty(0, device="cuda", dtype=torch.int64)).device.type == "cuda"
    assert not torch.equal(state.get_state(), before), "small draws come from the generator that is passed"


def test_fake_draws_leave_the_default_generator_alone() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    with fake_mode():
        torch.rand(100)
        torch.nn.Linear(10, 10)
        torch.nn.functional.dropout(torch.ones(5))
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize(
    "mistake",
    [
        lambda: torch.zeros(2, device="nodevice"),
        lambda: torch.zeros(2, device="cuda:-3"),
        lambda: torch.zeros(2, device="cuda:500"),
        lambda: torch.zeros(-1),
        lambda: torch.zeros(2, dtype="float"),
        lambda: torch.empty_strided((2, 3), (1,)),
        lambda: torch.arange(0, 5, -1),
        lambda: torch.full((2,), "a"),
        lambda: torch.tensor([[1], [1, 2]]),
        lambda: torch.tensor(["a"]),
        lambda: torch.linspace(0, 1, -2),
        lambda: torch.randint(5, 2, (3,)),
    ],
)
def test_impossible_devices_and_sizes_are_refused(mistake: Callable[[], Tensor]) -> None:
    with fake_mode(), pytest.raises((RuntimeError, TypeError, ValueError)):
        mistake()
