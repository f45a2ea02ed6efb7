"""Real values computed along with fakes on claimed GPUs: GPU-only kernels are computed by CPU equivalents."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from torchfake import FakeCopyMode, FakeTensorMode, fake_mode

HEADS = (2, 4, 8, 16)


def attention(**options: object) -> Tensor:
    query, key = (torch.randn(HEADS, requires_grad=True) for _ in range(2))
    return grown((query, key), lambda: F.scaled_dot_product_attention(query, key, key.sin(), **options))


def grown(leaves: tuple[Tensor, ...], compute: Callable[[], Tensor]) -> Tensor:
    """The output and the gradients, in a row."""
    output = compute()
    output.sin().sum().backward()
    return torch.cat([output.detach().flatten(), *(leaf.grad.flatten() for leaf in leaves)])


def through(module: nn.Module, *sizes: int) -> Tensor:
    x = torch.randn(*sizes, requires_grad=True)
    return grown((x, *module.parameters()), lambda: module(x))


def recurrent(network: type[nn.RNNBase], *, packed: bool = False, **options: object) -> Tensor:
    module, x = network(5, 6, **options).eval(), torch.randn(4, 3, 5)
    given = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([4, 4, 2], device="cpu")) if packed else x
    with torch.no_grad():
        output, state = module(given)
    states = state if isinstance(state, tuple) else (state,)
    return torch.cat([each.flatten() for each in (output.data, *states)])


def sampled() -> Tensor:
    image, grid = torch.randn(2, 3, 5, 5, requires_grad=True), torch.rand(2, 4, 4, 2, requires_grad=True)
    return grown((image, grid), lambda: F.grid_sample(image, grid, align_corners=True))


def cell(network: type[nn.RNNCellBase]) -> Tensor:
    module, x = network(5, 6), torch.randn(3, 5)
    with torch.no_grad():
        state = module(x)
    return torch.cat(state) if isinstance(state, tuple) else state


# Each runs on a claimed GPU, with cuDNN's and similar kernels where those would be chosen, and for real on the CPU.
CALLS: dict[str, Callable[[], Tensor]] = {
    "attention": attention,
    "attention, masked": lambda: attention(attn_mask=torch.randn(2, 4, 8, 8)),
    "attention, causal": lambda: attention(is_causal=True),
    "batch norm": lambda: through(nn.BatchNorm2d(3), 2, 3, 4, 4),
    "RMS norm": lambda: through(nn.RMSNorm((3, 4)), 2, 3, 4),
    "log sigmoid": lambda: through(nn.LogSigmoid(), 2, 3),
    "grid sample": sampled,
    "LSTM": lambda: recurrent(nn.LSTM, num_layers=2, bidirectional=True),
    "LSTM, packed": lambda: recurrent(nn.LSTM, packed=True),
    "LSTM without biases": lambda: recurrent(nn.LSTM, bias=False, batch_first=True),
    "LSTM, projected": lambda: recurrent(nn.LSTM, proj_size=2),
    "GRU": lambda: recurrent(nn.GRU),
    "GRU, packed": lambda: recurrent(nn.GRU, packed=True),
    "RNN": lambda: recurrent(nn.RNN),
    "RNN with relu": lambda: recurrent(nn.RNN, nonlinearity="relu"),
    "LSTM cell": lambda: cell(nn.LSTMCell),
    "GRU cell": lambda: cell(nn.GRUCell),
}


@pytest.mark.parametrize("name", CALLS)
def test_values_are_those_of_the_cpu(name: str) -> None:
    torch.manual_seed(0)
    expected = CALLS[name]()
    torch.manual_seed(0)
    with FakeTensorMode(propagate_real_tensors=True), torch.device("cuda"):
        fake = CALLS[name]()
    assert fake.device.type == "cuda"
    torch.testing.assert_close(fake.real_tensor, expected)


@pytest.mark.parametrize("backend", [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION])
@pytest.mark.parametrize("heads", [4, 2])
def test_attention_in_half_precision_has_values(backend: SDPBackend, heads: int) -> None:
    torch.manual_seed(0)
    with FakeTensorMode(propagate_real_tensors=True):
        query, key = torch.randn(HEADS).half(), torch.randn(2, heads, 8, 16).half()
        leaves = [each.to("cuda").requires_grad_() for each in (query, key)]
        with sdpa_kernel(backend):
            output = F.scaled_dot_product_attention(
                leaves[0], leaves[1], leaves[1], is_causal=True, enable_gqa=heads != 4
            )
        output.sin().sum().backward()
    real = [each.real_tensor.float().requires_grad_() for each in (query, key)]
    expected = F.scaled_dot_product_attention(real[0], real[1], real[1], is_causal=True, enable_gqa=heads != 4)
    expected.sin().sum().backward()
    for got, wanted in zip(
        (output, leaves[0].grad, leaves[1].grad), (expected, real[0].grad, real[1].grad), strict=True
    ):
        torch.testing.assert_close(got.real_tensor.float(), wanted, atol=2e-2, rtol=2e-2)


def test_what_was_dropped_out_is_not_known_to_the_backward() -> None:
    with FakeTensorMode(propagate_real_tensors=True):
        query = torch.randn(HEADS, device="cuda", requires_grad=True)
        with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
            output = F.scaled_dot_product_attention(query, query, query, dropout_p=0.5)
        output.sum().backward()
        assert output.real_tensor is not None and query.grad.real_tensor is None


@pytest.mark.parametrize("make", [lambda: nn.BatchNorm2d(3), lambda: nn.LayerNorm(4)], ids=["batch", "layer"])
@pytest.mark.parametrize("of_module", [torch.float32, torch.bfloat16])
def test_gradients_of_norms_in_half_precision_have_values(
    make: Callable[[], nn.Module], of_module: torch.dtype
) -> None:
    torch.manual_seed(0)
    module, x = make(), torch.randn(2, 3, 4, 4)
    mode = FakeTensorMode(propagate_real_tensors=True)
    with mode, FakeCopyMode(mode):
        fake_module = copy.deepcopy(module)
    with mode, torch.autocast("cuda", torch.bfloat16, enabled=of_module == torch.float32):
        fake = mode.from_tensor(x).to("cuda", torch.bfloat16).requires_grad_()
        fake_module.to("cuda", of_module)(fake).float().sin().sum().backward()
    x.requires_grad_()
    module(x).sin().sum().backward()
    for got, wanted in (
        (fake.grad, x.grad),
        *((a.grad, b.grad) for a, b in zip(fake_module.parameters(), module.parameters(), strict=True)),
    ):
        torch.testing.assert_close(got.real_tensor.float(), wanted, atol=5e-2, rtol=5e-2)


def test_running_statistics_are_those_of_the_cpu() -> None:
    torch.manual_seed(0)
    norm, x, mode = nn.BatchNorm2d(3), torch.randn(2, 3, 4, 4), FakeTensorMode(propagate_real_tensors=True)
    with mode, FakeCopyMode(mode):
        fake = copy.deepcopy(norm)
    with mode:
        fake.to("cuda")(mode.from_tensor(x).to("cuda"))
    norm(x)
    for name, expected in norm.named_buffers():
        torch.testing.assert_close(fake.get_buffer(name).real_tensor, expected)


def test_where_the_cpus_kernel_returns_something_else_the_fake_is_right() -> None:
    with FakeTensorMode(propagate_real_tensors=True):
        x = torch.randn(2, 3, dtype=torch.bfloat16, device="cuda")
        output, mean, _ = torch.native_layer_norm(x, [3], None, None, 1e-5)
    assert mean.dtype == torch.float32, "the CPU's is bfloat16"
    assert output.real_tensor is not None and mean.real_tensor.dtype == torch.float32


@pytest.mark.parametrize("loss", [F.mse_loss, F.smooth_l1_loss, F.soft_margin_loss])
def test_a_number_in_a_larger_storage_is_known(loss: Callable[..., Tensor]) -> None:
    expected = float(loss(torch.ones(5), torch.zeros(5)))
    with fake_mode():
        for _ in range(2):  # the second is a hit of the cache
            assert float(loss(torch.ones(5), torch.zeros(5))) == expected


def test_too_little_memory_is_said_to_be_that() -> None:
    with FakeTensorMode(propagate_real_tensors=True), pytest.raises(RuntimeError, match="can't allocate memory"):
        torch.zeros(2**58, device="cuda", dtype=torch.uint8)
