"""GPUs this machine does not have: claimed inside the mode, absent outside as before."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F

from torchfake import DataAccessError, DeviceMismatchError, DeviceNotFakedError, fake_mode, is_fake

CUDA0, CUDA1 = torch.device("cuda:0"), torch.device("cuda:1")

needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


def test_cuda_means_the_current_device() -> None:
    with fake_mode():
        assert torch.empty(2, device="cuda").device == CUDA0
        assert torch.empty(2).cuda().device == CUDA0
        assert torch.empty(2).to("cuda").device == CUDA0
        assert torch.empty(2).cuda(2).device == torch.device("cuda:2")
        assert torch.empty(2).cuda("cuda:3").device == torch.device("cuda:3")
        assert torch.empty(2).cuda(non_blocking=True, memory_format=torch.preserve_format).device == CUDA0
        assert torch.empty(2).to(1).device == CUDA1
        assert torch.empty(2, device=1).device == CUDA1
        assert torch.empty(2).to(torch.empty(1, device="cuda:1")).device == CUDA1
        assert (torch.empty(2, device="cuda") + torch.empty(2, device="cuda:0")).device == CUDA0
        assert torch.empty(2, device="cuda").cpu().device.type == "cpu"


def test_the_current_device_can_be_chosen() -> None:
    with fake_mode():
        with torch.cuda.device(1):
            assert torch.empty(2, device="cuda").device == CUDA1
            assert torch.empty(2).cuda().device == CUDA1
            assert torch.empty(2, device="cuda:0").device == CUDA0
        assert torch.empty(2, device="cuda").device == CUDA0
        with torch.cuda.device_of(torch.empty(2, device="cuda:1")):
            assert torch.empty(2, device="cuda").device == CUDA1


def test_a_claimed_tensor_has_the_properties_of_a_cuda_tensor() -> None:
    with fake_mode():
        x = torch.empty(2, 3, device="cuda:1", requires_grad=True)
        assert x.is_cuda and not x.is_cpu and not x.is_meta and not x.is_xpu
        assert x.get_device() == 1 and x.type() == "torch.cuda.FloatTensor" and x.dtype == torch.float32
        assert x.half().type() == "torch.cuda.HalfTensor"
        assert torch.empty(1).get_device() == -1
        assert x.is_shared() and not x.is_pinned()


MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(8, 4), (2, 8)),
    "conv1d": (lambda: nn.Conv1d(8, 4, 3), (2, 8, 8)),
    "conv2d": (lambda: nn.Conv2d(8, 4, 3, stride=2, padding=1), (2, 8, 8, 8)),
    "conv3d": (lambda: nn.Conv3d(8, 4, 3), (2, 8, 4, 4, 4)),
    "conv_transpose": (lambda: nn.ConvTranspose2d(8, 4, 3), (2, 8, 8, 8)),
    "depthwise": (lambda: nn.Conv2d(8, 8, 3, groups=8, dilation=2), (2, 8, 8, 8)),
    "lstm": (lambda: nn.LSTM(8, 6, 2, bidirectional=True, batch_first=True), (2, 5, 8)),
    "lstm_projection": (lambda: nn.LSTM(8, 6, proj_size=3), (5, 2, 8)),
    "gru": (lambda: nn.GRU(8, 6, 2, dropout=0.5), (5, 2, 8)),
    "rnn": (lambda: nn.RNN(8, 6), (5, 2, 8)),
    "dropout": (lambda: nn.Dropout(0.5), (2, 8)),
    "batch_norm": (lambda: nn.BatchNorm2d(8), (2, 8, 4, 4)),
    "layer_norm": (lambda: nn.LayerNorm(8), (2, 8)),
    "group_norm": (lambda: nn.GroupNorm(2, 8), (2, 8, 4)),
    "rms_norm": (lambda: nn.RMSNorm(8), (2, 8)),
    "attention": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (2, 5, 8)),
    "max_pool": (lambda: nn.MaxPool2d(2), (2, 8, 8, 8)),
    "adaptive_pool": (lambda: nn.AdaptiveAvgPool2d(2), (2, 8, 8, 8)),
    "upsample": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), (2, 8, 4, 4)),
    "pixel_shuffle": (lambda: nn.PixelShuffle(2), (2, 8, 4, 4)),
}


def shape_of(output: Any) -> list[tuple[int, ...]]:
    return [tuple(t.shape) for t in torch.utils._pytree.tree_leaves(output)]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", MODULES)
def test_a_layer_runs_forward_and_backward_on_cuda(name: str, training: bool) -> None:
    make, shape = MODULES[name]
    expected = shape_of(make().train(training)(torch.randn(shape)))
    # cuDNN differentiates recurrent networks only while they train.
    with fake_mode(), torch.backends.cudnn.flags(enabled=training):
        module = make().cuda(1).train(training)
        x = torch.randn(shape, device=CUDA1, requires_grad=True)
        output = module(x)
        outputs = torch.utils._pytree.tree_leaves(output)
        sum(t.sum() for t in outputs).backward()
    assert shape_of(output) == expected
    for tensor in (*outputs, x.grad, *(p.grad for p in module.parameters())):
        assert is_fake(tensor) and tensor.device == CUDA1
    assert x.grad.shape == x.shape


@pytest.mark.parametrize("backend", [None, "MATH", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("masked", [False, True])
def test_attention_runs_on_cuda_whichever_backend_is_asked_for(backend: Any, dtype: torch.dtype, masked: bool) -> None:
    from contextlib import nullcontext

    from torch.nn.attention import SDPBackend, sdpa_kernel

    kernel = sdpa_kernel([getattr(SDPBackend, backend), SDPBackend.MATH]) if backend else nullcontext()
    with fake_mode(), kernel:
        q, k, v = (torch.randn(2, 4, 8, 64, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3))
        mask = torch.ones(8, 8, dtype=torch.bool, device="cuda").tril() if masked else None
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=not masked)
        out.sum().backward()
    assert out.shape == (2, 4, 8, 64) and out.device == CUDA0 and out.dtype == dtype
    assert q.grad.shape == q.shape and q.grad.device == CUDA0


def test_backward_crosses_devices() -> None:
    with fake_mode():
        first, second = nn.Linear(4, 4).cuda(0), nn.Linear(4, 4).cuda(1)
        x = torch.randn(2, 4, requires_grad=True)
        y = second(first(x.to("cuda:0")).to("cuda:1")).cpu()
    for _ in range(2):
        y.sum().backward(retain_graph=True)
    assert x.grad.device.type == "cpu"
    assert first.weight.grad.device == CUDA0 and second.weight.grad.device == CUDA1


def test_devices_do_not_mix_except_where_real_ones_do() -> None:
    with fake_mode():
        here, there, host = torch.ones(2, device="cuda:0"), torch.ones(2, device="cuda:1"), torch.ones(2)
        for mistake in (lambda: here + there, lambda: here + host, lambda: torch.cat([here, host])):
            with pytest.raises(DeviceMismatchError, match="cuda:0"):
                mistake()
        assert (here + torch.tensor(1.0)).device == CUDA0, "a CPU number joins"
        assert here.copy_(there).device == CUDA0 and host.copy_(here).device.type == "cpu"
        assert here[torch.tensor([0, 1])].device == CUDA0, "indices may be on the CPU"
        assert here[host > 0].device == CUDA0
        here[torch.tensor([0])] = 1.0
        with pytest.raises(RuntimeError):
            host[torch.tensor([0], device="cuda")]


def test_autocast_and_the_cuda_idioms_of_training_scripts_run() -> None:
    with fake_mode():
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.LayerNorm(4)).cuda()
        with torch.autocast("cuda", torch.bfloat16):
            x = torch.randn(2, 4, device="cuda")
            assert (x @ x.t()).dtype == torch.bfloat16 and torch.is_autocast_enabled("cuda")
            out = model(x)
        assert out.dtype == torch.float32
        out.sum().backward()
        with torch.amp.autocast("cuda", dtype=torch.float16):
            assert F.linear(x, model[0].weight).dtype == torch.float16
            assert F.softmax(x.half(), -1).dtype == torch.float32
        assert torch.ones(2).to("cuda", non_blocking=True, dtype=torch.half).dtype == torch.half


def test_host_memory_can_be_pinned_for_a_claimed_device() -> None:
    with fake_mode():
        for pinned in (torch.empty(2, 3, pin_memory=True).t(), torch.empty(2, 3).t().pin_memory()):
            assert is_fake(pinned) and pinned.device == torch.device("cpu") and pinned.stride() == (1, 3)
            assert pinned.to("cuda", non_blocking=True).device == CUDA0
        assert torch.arange(3).pin_memory().tolist() == [0, 1, 2]


def test_without_fake_cuda_absent_devices_are_refused() -> None:
    with fake_mode(fake_cuda=False):
        assert is_fake(torch.ones(2, device="cpu"))
        for ask in (
            lambda: torch.ones(2, device="cuda"),
            lambda: torch.ones(2).cuda(),
            lambda: torch.ones(2).to("xpu"),
            lambda: nn.Linear(2, 2, device="cuda"),
            lambda: torch.tensor([1], device="cuda"),
        ):
            with pytest.raises(DeviceNotFakedError, match="fake_cuda"):
                ask()
        with fake_mode():
            assert torch.ones(2, device="cuda").device == CUDA0
        with pytest.raises(DeviceNotFakedError):
            torch.ones(2, device="cuda")


OUTSIDE = """
import re
import torch
{importing}
def tell(name, ask):
    torch.manual_seed(0)
    try:
        print(name, re.sub("0x[0-9a-f]+", "0x", repr(ask())))
    except BaseException as error:
        print(name, type(error).__name__, str(error).splitlines()[0])
{using}
real = torch.ones(2)
tell("is_available", torch.cuda.is_available)
tell("device_count", torch.cuda.device_count)
tell("is_initialized", torch.cuda.is_initialized)
tell("accelerator", torch.accelerator.is_available)
tell("current_accelerator", torch.accelerator.current_accelerator)
tell("cuda", lambda: real.cuda())
tell("cuda index", lambda: real.cuda(1))
tell("to", lambda: real.to("cuda"))
tell("factory", lambda: torch.ones(2, device="cuda"))
tell("empty", lambda: torch.empty(2, device="cuda:1"))
tell("randn", lambda: torch.randn(2, device="cuda"))
tell("tensor", lambda: torch.tensor([1.0], device="cuda"))
tell("as_tensor", lambda: torch.as_tensor([1.0], device="cuda"))
tell("module", lambda: torch.nn.Linear(2, 2).cuda())
tell("module device", lambda: torch.nn.Linear(2, 2, device="cuda"))
tell("new", lambda: real.new_zeros(2, device="cuda"))
tell("like", lambda: torch.zeros_like(real, device="cuda"))
tell("legacy", lambda: torch.cuda.FloatTensor(2))
tell("generator", lambda: torch.Generator("cuda"))
tell("current_device", torch.cuda.current_device)
tell("synchronize", torch.cuda.synchronize)
tell("stream", lambda: torch.cuda.Stream())
tell("event", lambda: torch.cuda.Event())
tell("device", lambda: torch.cuda.device(0).__enter__())
tell("manual_seed", lambda: torch.cuda.manual_seed(0))
tell("memory", torch.cuda.memory_allocated)
tell("name", lambda: torch.cuda.get_device_name(0))
tell("pin", lambda: real.pin_memory())
tell("pinned", lambda: real.is_pinned())
tell("autocast", lambda: torch.autocast("cuda").__enter__() and None)
tell("default", lambda: (torch.set_default_device("cuda"), torch.ones(2)))
torch.set_default_device("cpu")
tell("xpu", lambda: real.to("xpu"))
tell("xpu factory", lambda: torch.ones(2, device="xpu"))
tell("mps", lambda: real.to("mps"))
tell("hpu", lambda: torch.ones(2, device="hpu"))
tell("privateuse", lambda: real.to("privateuseone"))
tell("backward", lambda: torch.autograd.grad((real.requires_grad_() * 2).sum(), real))
tell("multithreading", torch.autograd.is_multithreading_enabled)
tell("print", lambda: real)
"""


@pytest.mark.parametrize("using", ["", "with torchfake.fake_mode():\n    torch.ones(2, device='cuda:3') + 1"])
def test_outside_the_mode_pytorch_is_as_it_was_before_torchfake_was_imported(using: str) -> None:
    def run(importing: str, using: str) -> list[str]:
        program = textwrap.dedent(OUTSIDE).format(importing=importing, using=using)
        done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        if not torch.cuda.is_available():
            return lines
        # Claiming a device of a type that is present initialises that type.
        return [line for line in lines if not line.startswith("is_initialized")]

    assert run("import torchfake", using) == run("", "")


@needs_no_gpu
def test_inside_the_mode_real_tensors_of_an_absent_device_cannot_appear() -> None:
    with fake_mode():
        moved: Tensor = torch.ones(2).cuda()
        assert is_fake(moved)
    with pytest.raises((AssertionError, RuntimeError)):
        torch.ones(2).cuda()


DRAWS: dict[str, Callable[[torch.Generator, str], Any]] = {
    "randn": lambda generator, device: torch.randn(3, device=device, generator=generator),
    "randperm": lambda generator, device: torch.randperm(3, device=device, generator=generator),
    "normal_": lambda generator, device: torch.empty(3, device=device).normal_(generator=generator),
    "bernoulli": lambda generator, device: torch.bernoulli(torch.rand(3, device=device), generator=generator),
    "init": lambda generator, device: nn.init.xavier_uniform_(torch.empty(3, 3, device=device), generator=generator),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_generator_has_to_be_one_of_the_device(name: str) -> None:
    draw = DRAWS[name]
    with fake_mode():
        for device in ("cpu", "cuda"):
            assert draw(torch.Generator(device), device).device.type == device
        for mine, other in (("cpu", "cuda"), ("cuda", "cpu")) * 2:  # the second time from the cache
            with pytest.raises(DeviceMismatchError, match=f"Expected a '{other}' device type for generator but found"):
                draw(torch.Generator(mine), other)


@pytest.mark.parametrize("device", ["cuda", "cuda:3", "xpu", "mps", "hpu", "mtia"])
def test_a_claimed_generator_has_a_seed_and_a_state(device: str) -> None:
    with fake_mode():
        generator = torch.Generator(device)
        assert generator.device == torch.empty(1, device=device).device
        assert generator.manual_seed(7).initial_seed() == 7
        other = torch.Generator(device)
        other.set_state(generator.get_state())
        assert other.initial_seed() == 7
        assert other.clone_state().initial_seed() == 7
        with pytest.raises(RuntimeError, match="wrong size"):
            other.set_state(torch.Generator().get_state())
        with pytest.raises(RuntimeError, match="not known"):
            other.set_state(torch.empty(16, dtype=torch.uint8))
        assert other.initial_seed() == 7


def test_each_claimed_device_has_a_generator_of_its_own() -> None:
    with fake_mode():
        torch.cuda.manual_seed(5)
        assert torch.cuda.initial_seed() == 5
        state = torch.cuda.get_rng_state()
        torch.cuda.set_rng_state(state, "cuda:1")
        assert torch.cuda.get_rng_state(1).tolist() == state.tolist()
        with torch.random.fork_rng(devices=[0, 1], device_type="cuda"):
            torch.cuda.manual_seed(6)
        assert torch.cuda.initial_seed() == 5


@needs_no_gpu
def test_outside_the_mode_there_is_no_generator_of_an_absent_device() -> None:
    with pytest.raises(RuntimeError, match="CUDA"):
        torch.Generator("cuda")
    with pytest.raises((AssertionError, RuntimeError), match=r"CUDA|NVIDIA driver"):
        torch.cuda.get_rng_state()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_real_tensor_on_a_gpu_that_is_not_there_is_refused_while_fakes_claim_it() -> None:
    missing = f"cuda:{torch.cuda.device_count()}"
    with fake_mode():
        fake = torch.ones(2, device=missing, requires_grad=True)
    with pytest.raises(RuntimeError):
        torch.ones(2, device=missing)
    (fake * 2).sum().backward()
    assert fake.grad is not None and str(fake.grad.device) == missing


NETWORKS = {"RNN": nn.RNN, "LSTM": nn.LSTM, "GRU": nn.GRU}


@pytest.mark.parametrize("name", NETWORKS)
def test_recurrent_weights_lie_in_one_buffer_where_cudnn_runs_them(name: str) -> None:
    with fake_mode():
        network = NETWORKS[name](4, 8, 2, bidirectional=True).to("cuda")
        weights = list(network.parameters())
        assert len({weight.untyped_storage()._cdata for weight in weights}) == 1
        assert weights[0].untyped_storage().nbytes() == 4 * sum(weight.numel() for weight in weights)
        matrices = sum(weight.numel() for weight in weights if weight.dim() == 2)
        assert weights[2].storage_offset() == matrices, "biases come after the matrices of all layers"
        half = network.to(torch.bfloat16)
        assert len({weight.untyped_storage()._cdata for weight in half.parameters()}) == len(weights)


@pytest.mark.parametrize("name", NETWORKS)
def test_recurrent_networks_run_whole_and_need_training_to_be_differentiated(name: str) -> None:
    with fake_mode():
        network = NETWORKS[name](4, 8, batch_first=True).cuda()
        x = torch.rand(2, 3, 4, device="cuda", requires_grad=True)
        output, _ = network(x)
        assert type(output.grad_fn).__name__ == "CudnnRnnBackward0" and output.stride() == (8, 16, 1)
        assert torch.autograd.grad(output.sum(), x)[0].stride() == (4, 8, 1)
        with pytest.raises(RuntimeError, match="cudnn RNN backward can only be called in training mode"):
            network.eval()(x)[0].sum().backward()
        with torch.backends.cudnn.flags(enabled=False):
            network(x)[0].sum().backward()


def test_recurrent_networks_refuse_what_cudnn_refuses() -> None:
    with fake_mode():
        network, x = nn.LSTM(4, 8).cuda(), torch.rand(3, 2, 4, device="cuda")
        states = torch.rand(1, 8, 2, device="cuda").mT
        with pytest.raises(RuntimeError, match="rnn: hx is not contiguous"):
            network(x, (states, states))
        with pytest.raises(RuntimeError, match="not the same dtype"):
            torch._VF.lstm(x, (states.double(),) * 2, network._flat_weights, True, 1, 0.0, True, False, False)
        with pytest.raises(RuntimeError, match=r"input.size\(-1\) must be equal to input_size. Expected 4, got 5"):
            torch._VF.lstm(
                torch.rand(3, 2, 5, device="cuda"),
                (torch.zeros(1, 2, 8, device="cuda"),) * 2,
                network._flat_weights,
                *(True, 1, 0.0, True, False, False),
            )


def attend(
    query: tuple[int, ...] = (2, 4, 16, 64),
    keys: int = 16,
    value: int | None = None,
    heads: int | None = None,
    dtype: torch.dtype = torch.bfloat16,
    **options: Any,
) -> Tensor:
    *batch, query_heads, _, size = query
    heads = query_heads if heads is None else heads
    q = torch.zeros(query, dtype=dtype, device="cuda", requires_grad=True)
    k = torch.zeros(*batch, heads, keys, size, dtype=dtype, device="cuda", requires_grad=True)
    v = torch.zeros(*batch, heads, keys, size if value is None else value, dtype=dtype, device="cuda")
    return F.scaled_dot_product_attention(q, k, v, **options)


# The kernel that an H200 chose, and the layout of the result.
CUDNN, FLASH, EFFICIENT = (f"ScaledDotProduct{name}AttentionBackward0" for name in ("Cudnn", "Flash", "Efficient"))
CHOICES: dict[str, tuple[Callable[[], Tensor], str, tuple[int, ...]]] = {
    "half": (lambda: attend(dtype=torch.half), CUDNN, (4096, 1024, 64, 1)),
    "causal": (lambda: attend(is_causal=True), CUDNN, (4096, 1024, 64, 1)),
    "mask": (lambda: attend(attn_mask=torch.ones(16, 16, device="cuda").bool()), CUDNN, (4096, 1024, 64, 1)),
    "bias": (lambda: attend(attn_mask=torch.ones(2, 4, 16, 16, device="cuda")), CUDNN, (4096, 1024, 64, 1)),
    "dropout": (lambda: attend(dropout_p=0.1), CUDNN, (4096, 1024, 64, 1)),
    "grouped": (lambda: attend((2, 8, 16, 64), heads=2, enable_gqa=True), CUDNN, (8192, 1024, 64, 1)),
    "largest head": (lambda: attend((2, 4, 16, 256)), CUDNN, (16384, 4096, 256, 1)),
    "larger head": (lambda: attend((2, 4, 16, 264)), EFFICIENT, (16896, 264, 1056, 1)),
    "odd head": (lambda: attend((2, 4, 16, 10)), "SliceBackward0", (1024, 256, 16, 1)),
    "other value": (lambda: attend(value=128), CUDNN, (8192, 2048, 128, 1)),
    "one query": (lambda: attend((2, 4, 1, 64)), CUDNN, (256, 64, 64, 1)),
    "one query with dropout": (lambda: attend((2, 4, 1, 64), dropout_p=0.1), FLASH, (256, 64, 64, 1)),
    "one key": (lambda: attend(keys=1), FLASH, (4096, 1024, 64, 1)),
    "one causal key": (lambda: attend(keys=1, is_causal=True), EFFICIENT, (4096, 64, 256, 1)),
    "single precision": (lambda: attend(dtype=torch.float32), EFFICIENT, (4096, 64, 256, 1)),
    "bias to differentiate": (
        lambda: attend(attn_mask=torch.zeros(2, 4, 16, 16, dtype=torch.bfloat16, device="cuda", requires_grad=True)),
        EFFICIENT,
        (4096, 64, 256, 1),
    ),
    "three dimensions": (lambda: attend((4, 16, 64)), "ToCopyBackward0", (1024, 64, 1)),
    "no queries": (lambda: attend((2, 4, 0, 64)), "ToCopyBackward0", (256, 64, 64, 1)),
}


@pytest.mark.parametrize("name", CHOICES)
def test_attention_is_computed_by_the_kernel_that_a_gpu_chooses(name: str) -> None:
    call, kernel, strides = CHOICES[name]
    with fake_mode():
        output = call()
        assert (type(output.grad_fn).__name__, output.stride()) == (kernel, strides)


def test_what_a_gpu_lays_out_by_rows_is_laid_out_by_rows() -> None:
    with fake_mode():
        x = torch.rand(3, 4, device="cuda", requires_grad=True)
        (gradient,) = torch.autograd.grad(F.dropout(x.t(), 0.5).sum(), x)
        assert gradient.stride() == (1, 3)


def test_least_squares_on_a_gpu_finds_no_rank() -> None:
    with fake_mode():
        for a in (torch.eye(4, device="cuda"), torch.rand(4, 4, device="cuda")):
            assert torch.linalg.lstsq(a, torch.ones(4, 2, device="cuda")).rank.shape == (0,)


def test_batches_are_normalised_by_cudnn_where_it_takes_them() -> None:
    def normalise(dtype: torch.dtype, parameters: torch.dtype, training: bool = True) -> tuple[str, tuple[int, ...]]:
        layer = nn.BatchNorm2d(4, device="cuda").to(parameters).train(training)
        x = torch.rand(2, 5, 6, 4, dtype=dtype, device="cuda").permute(3, 0, 1, 2).transpose(0, 1)[:, :, :, 1:]
        output = layer(x)
        return type(output.grad_fn).__name__, output.stride()

    with fake_mode():
        assert normalise(torch.float32, torch.float32)[0] == "CudnnBatchNormBackward0"
        assert normalise(torch.float32, torch.float32, training=False)[0] == "CudnnBatchNormBackward0"
        assert normalise(torch.half, torch.float32)[0] == "CudnnBatchNormBackward0"
        assert normalise(torch.half, torch.half)[0] == "NativeBatchNormBackward0"
        assert normalise(torch.bfloat16, torch.bfloat16)[0] == "NativeBatchNormBackward0"
        with torch.backends.cudnn.flags(enabled=False):
            assert normalise(torch.float32, torch.float32)[0] == "NativeBatchNormBackward0"


def test_a_transposed_convolution_that_no_library_takes_is_contiguous() -> None:
    with fake_mode():
        x = torch.rand(2, 2, 4, 4, device="cuda").to(memory_format=torch.channels_last)
        weight = torch.rand(2, 2, 3, 3, device="cuda")
        assert F.conv_transpose2d(x, weight, stride=2).is_contiguous(memory_format=torch.channels_last)
        padded = F.conv_transpose2d(x, weight, stride=2, output_padding=2, dilation=3)
        assert padded.is_contiguous()


def test_nansum_of_complex_numbers_is_only_for_gpus() -> None:
    with fake_mode():
        for sum_up in (torch.nansum, torch.nanmean):
            assert sum_up(torch.rand(3, dtype=torch.complex64, device="cuda")).dtype == torch.complex64
            with pytest.raises(RuntimeError, match="complex"):
                sum_up(torch.rand(3, dtype=torch.complex64))


@fake_mode()
def test_attention_with_a_bias_that_was_permuted_into_place_is_computed_in_steps() -> None:
    query = torch.empty(2, 4, 16, 64, device="cuda", requires_grad=True)
    bias = torch.empty(16, 16, 4, device="cuda").permute(2, 0, 1)
    attend = torch.nn.functional.scaled_dot_product_attention
    fused = attend(query, query, query, bias.contiguous())
    assert fused.grad_fn.name() == "ScaledDotProductEfficientAttentionBackward0"
    in_steps = attend(query, query, query, bias)
    assert in_steps.grad_fn.name() != fused.grad_fn.name()


def test_efficient_attention_keeps_the_state_of_its_random_numbers_on_the_cpu() -> None:
    attend = torch.ops.aten._scaled_dot_product_efficient_attention
    with fake_mode():
        q = torch.rand(2, 4, 8, 16, device="cuda")
        for _ in range(2):  # the second is a hit of the cache
            devices = [each.device.type for each in attend(q, q, q, None, True, 0.1)]
            assert devices == ["cuda", "cuda", "cpu", "cpu"]


def test_autocast_reaches_what_the_kernels_of_a_gpu_call() -> None:
    with fake_mode(), torch.autocast("cuda", torch.float16):
        numbers = torch.ones(3, 3, dtype=torch.float16, device="cuda")
        assert numbers.trace().dtype == torch.float32
        assert torch.linalg.matrix_exp(numbers[:1, :1]).dtype == torch.float32
        assert torch.linalg.matrix_exp(numbers.expand(2, 3, 3)).dtype == torch.float32
        assert torch.linalg.matrix_exp(numbers.expand(1, 3, 3)).dtype == torch.float16
    with fake_mode():
        assert numbers.trace().dtype == torch.float16


def test_streams_and_events_of_claimed_devices_have_nothing_to_wait_for() -> None:
    with fake_mode():
        stream, other = torch.cuda.Stream(), torch.cuda.Stream(device="cuda:1", priority=-1)
        before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        before.record()
        with torch.cuda.stream(stream):
            x = torch.ones(3, device="cuda") * 2
        x.record_stream(stream)
        after.record(stream)
        stream.wait_event(before)
        other.wait_stream(stream)
        torch.cuda.current_stream().wait_stream(other)
        after.synchronize()
        with torch.cuda.stream(None):
            assert torch.cuda.current_stream("cuda:1").device == torch.device("cuda:1")
    assert other.device == torch.device("cuda:1")
    assert after.query()
    assert stream.query()


def test_the_time_between_events_is_that_of_this_machine() -> None:
    with fake_mode():
        before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        before.record()
        after.record()
        assert 0 <= before.elapsed_time(after) < 60_000
        with pytest.raises(ValueError, match="recorded"):
            before.elapsed_time(torch.cuda.Event(enable_timing=True))
        generic = torch.Event("cuda", enable_timing=True)
        generic.record(torch.cuda.current_stream())
        with pytest.raises(DataAccessError, match="elapsed_time: nothing runs on a claimed device"):
            generic.elapsed_time(generic)


def test_a_stream_of_the_wrong_device_is_refused() -> None:
    with fake_mode(), pytest.raises(ValueError, match="cuda"):
        torch.cuda.Stream("cpu")


def test_a_claimed_gpu_has_the_capability_of_the_recorded_one() -> None:
    with fake_mode():
        assert torch.cuda.get_device_capability("cuda:3") == (9, 0)


@needs_no_gpu
@pytest.mark.parametrize("make", [torch.cuda.Stream, torch.cuda.Event, torch.cuda.current_stream])
def test_outside_the_mode_there_are_no_streams_without_a_gpu(make: Any) -> None:
    if make is torch.cuda.Event and torch.backends.cuda.is_built():
        pytest.skip("a PyTorch with CUDA makes the event when it is recorded")
    with pytest.raises((RuntimeError, AssertionError)):
        make()


def test_pytorchs_own_mode_leaves_the_claimed_devices_as_they_were() -> None:
    with FakeTensorMode():
        torch.empty(2)
    with fake_mode():
        assert torch.cuda.Stream().device == torch.device("cuda:0")
