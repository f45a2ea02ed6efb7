"""torchfake.step_time: FLOPs as PyTorch counts them, bytes, and the roofline over both."""

from __future__ import annotations

import json
import textwrap
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

import torchfake
from torchfake import step_time
from torchfake._card_speeds import speed_of
from torchfake._cards import CARDS
from torchfake._run_outputs import Outputs
from torchfake.modes import fake_mode
from torchfake.run_program import Program, format_report, run_program

ROOT = Path(__file__).parents[2]
SCHEMAS = ROOT / "docs" / "schemas"
DEVICES = ["cpu", "cuda"]


def r(*shape: int, device: str = "cpu", dtype: torch.dtype = torch.float32, grad: bool = True) -> torch.Tensor:
    return torch.empty(shape, device=device, dtype=dtype, requires_grad=grad)


def flops_of(call: Callable[[str], Any], device: str, backward: bool) -> tuple[int, int]:
    """What FlopCounterMode counts, and what we count."""

    def run() -> None:
        result = call(device)
        outputs = [t for t in (result if isinstance(result, tuple) else (result,)) if t.requires_grad]
        if backward and outputs:
            sum(t.sum() for t in outputs).backward()  # type: ignore[union-attr]

    with torchfake.fake_mode():
        with FlopCounterMode(display=False) as counter:
            run()
        with step_time.measure() as work:
            run()
    return counter.get_total_flops(), work.flops


OPERATORS: dict[str, Callable[[str], Any]] = {
    "mm": lambda d: r(5, 7, device=d) @ r(7, 3, device=d),
    "bmm": lambda d: r(2, 5, 7, device=d) @ r(2, 7, 3, device=d),
    "batched_by_expansion": lambda d: r(4, 2, 5, 7, device=d) @ r(2, 7, 3, device=d),
    "addmm": lambda d: torch.addmm(r(3, device=d), r(5, 7, device=d), r(7, 3, device=d)),
    "baddbmm": lambda d: torch.baddbmm(r(2, 5, 3, device=d), r(2, 5, 7, device=d), r(2, 7, 3, device=d)),
    "linear": lambda d: F.linear(r(4, 6, 7, device=d), r(3, 7, device=d), r(3, device=d)),
    "linear_without_bias": lambda d: F.linear(r(4, 6, 7, device=d), r(3, 7, device=d)),
    "bilinear": lambda d: F.bilinear(r(4, 6, device=d), r(4, 7, device=d), r(3, 6, 7, device=d)),
    "einsum": lambda d: torch.einsum("bij,bjk->bik", r(2, 3, 4, device=d), r(2, 4, 5, device=d)),
    "tensordot": lambda d: torch.tensordot(r(3, 4, 5, device=d), r(5, 4, 2, device=d), dims=([1, 2], [1, 0])),
    "empty_product": lambda d: r(0, 7, device=d) @ r(7, 3, device=d),
    "conv1d": lambda d: F.conv1d(r(2, 3, 20, device=d), r(6, 3, 5, device=d), stride=2),
    "conv2d": lambda d: F.conv2d(r(2, 3, 20, 18, device=d), r(6, 3, 5, 3, device=d), r(6, device=d), padding=1),
    "conv2d_dilated": lambda d: F.conv2d(r(2, 3, 20, 18, device=d), r(6, 3, 3, 3, device=d), dilation=2),
    "conv3d": lambda d: F.conv3d(r(1, 2, 6, 7, 8, device=d), r(4, 2, 3, 3, 3, device=d)),
    "conv_transpose1d": lambda d: F.conv_transpose1d(r(2, 3, 20, device=d), r(3, 6, 5, device=d), stride=2),
    "conv_transpose2d": lambda d: F.conv_transpose2d(r(2, 3, 9, 9, device=d), r(3, 6, 4, 4, device=d), stride=2),
    "conv_of_data": lambda d: F.conv2d(r(2, 3, 9, 9, device=d, grad=False), r(6, 3, 3, 3, device=d)),
    "pointwise": lambda d: (r(5, 7, device=d) * 2).relu() + 1,
    "softmax": lambda d: r(5, 7, device=d).softmax(-1),
    "layer_norm": lambda d: F.layer_norm(r(5, 7, device=d), (7,)),
    "embedding": lambda d: F.embedding(torch.zeros(4, 3, dtype=torch.long, device=d), r(11, 6, device=d)),
    "cross_entropy": lambda d: F.cross_entropy(r(5, 7, device=d), torch.zeros(5, dtype=torch.long, device=d)),
    "custom_function": lambda d: torch.utils.checkpoint.checkpoint(
        lambda x: x @ x, r(6, 6, device=d), use_reentrant=False
    ),
}


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", OPERATORS)
def test_flops_are_those_of_pytorchs_counter(name: str, device: str, backward: bool) -> None:
    theirs, ours = flops_of(OPERATORS[name], device, backward)
    assert ours == theirs


def test_the_operators_above_have_flops_but_for_those_without_products() -> None:
    # PyTorch's counter does not know the kernel of bilinear, nor do we.
    without = {"bilinear", "pointwise", "softmax", "layer_norm", "embedding", "cross_entropy", "empty_product"}
    assert {name for name, call in OPERATORS.items() if flops_of(call, "cuda", True)[1] == 0} == without


ATTENTION = {
    "plain": {},
    "causal": {"is_causal": True},
    "dropout": {"dropout_p": 0.1},
    "mask": {"mask": True},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", ATTENTION)
def test_flops_of_attention_on_a_gpu_are_those_of_pytorchs_counter(name: str, dtype: torch.dtype) -> None:
    options = dict(ATTENTION[name])
    mask = options.pop("mask", False)

    def call(device: str) -> torch.Tensor:
        q, k, v = (r(2, 4, length, 64, device=device, dtype=dtype) for length in (32, 48, 48))
        bias = r(2, 4, 32, 48, device=device, dtype=dtype, grad=False) if mask else None
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, **options)  # type: ignore[arg-type]

    theirs, ours = flops_of(call, "cuda", backward=True)
    assert ours == theirs == 2 * 2 * 4 * 32 * 48 * 64 * 7


def test_causal_attention_needs_half_of_its_flops() -> None:
    with torchfake.fake_mode(), step_time.measure() as work:
        q = r(1, 2, 64, 32, device="cuda", dtype=torch.bfloat16)
        F.scaled_dot_product_attention(q, q, q, is_causal=True)
    (row,) = [row for row in work.rows if row.family == "attention"]
    assert row.least_flops * 2 == row.flops


def test_a_grouped_convolution_has_as_many_flops_backward_as_its_products() -> None:
    """FlopCounterMode takes the gradient of the weights for one without groups."""

    def call(device: str) -> torch.Tensor:
        return F.conv2d(r(2, 8, 9, 9, device=device), r(8, 1, 3, 3, device=device), groups=8)

    forward = 2 * 2 * 7 * 7 * 8 * 9
    assert flops_of(call, "cuda", backward=False) == (forward, forward)
    theirs, ours = flops_of(call, "cuda", backward=True)
    assert ours == 3 * forward
    assert theirs == 2 * forward + 8 * forward


def test_recurrent_networks_have_flops_which_pytorchs_counter_leaves_out() -> None:
    with torchfake.fake_mode(), step_time.measure() as work:
        network = nn.LSTM(16, 32, num_layers=2, device="cuda")
        network(r(5, 3, 16, device="cuda"))
    weights = 4 * 32 * (16 + 32) + 4 * 32 * (32 + 32)
    assert work.flops == 2 * 5 * 3 * weights


def transformer(device: str) -> torch.Tensor:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, device=device)
    result: torch.Tensor = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)(r(2, 10, 32, device=device))
    return result


def convolutional(device: str) -> torch.Tensor:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
    ).to(device)  # fmt: skip
    result: torch.Tensor = model(torch.empty(2, 3, 32, 32, device=device))
    return result


def autocast(device: str) -> torch.Tensor:
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)).to(device)
    with torch.autocast(device, torch.bfloat16):
        result: torch.Tensor = model(torch.empty(4, 16, device=device))
    return result.float()


def generator(device: str) -> torch.Tensor:
    model = nn.Sequential(nn.ConvTranspose2d(8, 4, 4, 2, 1), nn.GroupNorm(2, 4), nn.SiLU(), nn.ConvTranspose2d(4, 3, 3))
    result: torch.Tensor = model.to(device)(torch.empty(2, 8, 8, 8, device=device))
    return result


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("model", [transformer, convolutional, autocast, generator], ids=lambda f: f.__name__)
def test_flops_of_models_are_those_of_pytorchs_counter(model: Callable[[str], torch.Tensor], device: str) -> None:
    if device == "cpu" and model is transformer:
        pytest.skip("FlopCounterMode leaves out the CPU's kernel of attention")
    theirs, ours = flops_of(model, device, backward=True)
    assert ours == theirs > 0


@pytest.mark.parametrize(
    "family", ["GPT2LMHeadModel", "LlamaForCausalLM", "BertForMaskedLM", "ViTForImageClassification"]
)
def test_flops_of_architectures_are_those_of_pytorchs_counter(family: str) -> None:
    transformers = pytest.importorskip("transformers")
    model_class = getattr(transformers, family)
    small = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    if family == "GPT2LMHeadModel":
        small = {"n_embd": 64, "n_layer": 2, "n_head": 4}

    def call(device: str) -> torch.Tensor:
        model = model_class(model_class.config_class(**small)).to(device)
        if family.startswith("ViT"):
            output = model(torch.empty(2, 3, 224, 224, device=device))
        else:
            output = model(torch.ones(2, 16, dtype=torch.long, device=device))
        result: torch.Tensor = output.logits
        return result

    theirs, ours = flops_of(call, "cuda", backward=True)
    assert ours == theirs > 0


# ---- Bytes and kernels


def only_row(call: Callable[[], Any], op: str) -> step_time.Row:
    with step_time.measure() as work:
        call()
    (row,) = [row for row in work.rows if row.op == op]
    return row


@pytest.mark.parametrize(
    ("op", "call", "nbytes"),
    [
        ("aten::add", lambda x, i: x + x[:1], 4 * (1000 * 64 + 64 + 1000 * 64)),
        ("aten::add_", lambda x, i: x.add_(1), 4 * 2 * 1000 * 64),
        ("aten::fill_", lambda x, i: x.fill_(1), 4 * 1000 * 64),
        ("aten::sum", lambda x, i: x.sum(0), 4 * (1000 * 64 + 64)),
        ("aten::embedding", lambda x, i: F.embedding(i, x), 4 * 2 * 10 * 64 + 8 * 10),
        ("aten::index_select", lambda x, i: x.index_select(0, i), 4 * 2 * 10 * 64 + 8 * 10),
        (
            "aten::index_add_",
            lambda x, i: x.index_add_(0, i, torch.empty(10, 64, device="cuda")),
            4 * 3 * 10 * 64 + 8 * 10,
        ),
        ("aten::clone", lambda x, i: x[:1].expand(5, 64).clone(), 4 * (64 + 5 * 64)),
        ("aten::zeros_like", lambda x, i: torch.zeros_like(x), 4 * 1000 * 64),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bytes_are_what_a_kernel_has_to_read_and_write(
    op: str, call: Callable[[torch.Tensor, torch.Tensor], Any], nbytes: int
) -> None:
    with torchfake.fake_mode():
        x = torch.empty(1000, 64, device="cuda")
        i = torch.empty(10, dtype=torch.long, device="cuda")
        row = only_row(lambda: call(x, i), op)
    assert (row.nbytes, row.launches) == (nbytes, 1)


@pytest.mark.parametrize(
    ("call", "is_aligned"),
    [
        (lambda: r(16, 24, device="cuda") @ r(24, 32, device="cuda"), True),
        (lambda: r(5, 24, device="cuda") @ r(24, 32, device="cuda"), True),
        (lambda: r(5, 24, device="cuda").t() @ r(5, 32, device="cuda"), True),
        (lambda: r(16, 24, device="cuda") @ r(24, 50257, device="cuda"), False),
        (lambda: F.linear(r(16, 25, device="cuda"), r(32, 25, device="cuda")), False),
        (lambda: F.conv2d(r(2, 16, 9, 9, device="cuda"), r(8, 16, 3, 3, device="cuda")), True),
        (lambda: F.conv2d(r(2, 3, 9, 9, device="cuda"), r(8, 3, 3, 3, device="cuda")), False),
    ],
)
def test_products_are_aligned_if_their_rows_begin_at_multiples_of_8(call: Callable[[], Any], is_aligned: bool) -> None:
    with torchfake.fake_mode(), step_time.measure() as work:
        call()
    (row,) = [row for row in work.rows if row.flops]
    assert row.is_aligned == is_aligned


def test_rows_tell_what_the_host_does() -> None:
    with torchfake.fake_mode(), step_time.measure() as work:
        model = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.empty(4, 8, device="cuda")).sum().backward()
        optimizer.step()
    rows = {(row.op, row.phase): row for row in work.host_rows}
    assert rows["aten::addmm", "forward"].records_gradient
    assert not rows["aten::mm", "backward"].records_gradient
    assert rows["aten::t", "forward"].launches == 0
    assert rows["aten::_foreach_add_", "step"].tensors == 4
    assert rows["aten::addmm", "forward"].outputs == 4 * 8
    assert (rows["nn.Module", "forward"].calls, rows["Optimizer.step", "step"].tensors) == (3, 2)


@pytest.mark.parametrize(
    ("hidden", "dtype", "launches"), [(512, torch.float32, 20), (64, torch.float32, 2), (64, torch.bfloat16, 20)]
)
def test_a_recurrent_network_launches_kernels_for_each_step_unless_it_is_small(
    hidden: int, dtype: torch.dtype, launches: int
) -> None:
    with torchfake.fake_mode(), step_time.measure() as work:
        nn.LSTM(16, hidden, device="cuda", dtype=dtype)(torch.empty(10, 3, 16, device="cuda", dtype=dtype))
    (row,) = [row for row in work.rows if row.family == "recurrent"]
    assert row.launches == launches


def test_views_and_new_memory_are_no_work() -> None:
    with torchfake.fake_mode(), step_time.measure() as work:
        x = torch.empty(10, 10, device="cuda")
        x.t().unflatten(0, (2, 5))[1:].detach().unsqueeze_(0)
        torch.empty_like(x)
    assert work.rows == []
    assert work.estimate().computing == 0
    assert {row.launches for row in work.host_rows} == {0}
    assert work.estimate().on_host > 0


def test_lists_of_tensors_are_few_kernels() -> None:
    with torchfake.fake_mode():
        xs = [torch.empty(10, device="cuda") for _ in range(1000)]
        row = only_row(lambda: torch._foreach_mul_(xs, 2.0), "aten::_foreach_mul_")
    assert (row.launches, row.nbytes) == (2, 2 * 4 * 10 * 1000)


def test_copies_between_host_and_card_go_over_their_link() -> None:
    with torchfake.fake_mode():
        x = torch.empty(1000, 1000)
        row = only_row(lambda: x.to("cuda"), "aten::_to_copy")
        estimate = step_time.measure()
        with estimate:
            x.to("cuda")
    assert (row.family, row.traffic) == ("transfer", 4_000_000)
    assert estimate.estimate("A10", lower_bound=True).by_limit() == {"link": pytest.approx(4e6 / 31.5e9)}


def test_calls_with_symbolic_sizes_are_reported_as_not_counted() -> None:
    mode = torchfake.FakeTensorMode(shape_env=torchfake.ShapeEnv())
    x = mode.from_tensor(torch.ones(6, 4), dynamic={0: "batch"})
    with mode, step_time.measure() as work:
        x + x
    assert work.rows == []
    assert "not counted: 1 calls" in str(work.estimate())


# ---- Modules and phases


def test_work_belongs_to_the_module_it_is_for_in_the_backward_pass_too() -> None:
    with torchfake.fake_mode(), step_time.measure() as work:
        model = nn.Sequential(nn.Linear(16, 32, bias=False), nn.ReLU(), nn.Linear(32, 8, bias=False)).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(r(4, 16, device="cuda")).sum().backward()
        optimizer.step()
    found: dict[tuple[str, str], int] = defaultdict(int)
    for row in work.rows:
        if row.flops:
            found[row.module, row.phase] += row.flops * row.calls
    first, second = 2 * 4 * 16 * 32, 2 * 4 * 32 * 8
    assert found == {
        ("Sequential.0", "forward"): first,
        ("Sequential.0", "backward"): 2 * first,
        ("Sequential.2", "forward"): second,
        ("Sequential.2", "backward"): 2 * second,
    }
    assert {row.phase for row in work.rows if row.family == "optimizer"} == {"step"}


def test_a_block_that_is_computed_again_belongs_to_its_module() -> None:
    with torchfake.fake_mode(), step_time.measure() as work:
        block = nn.Linear(16, 16, bias=False, device="cuda")
        y = torch.utils.checkpoint.checkpoint(block, r(4, 16, device="cuda"), use_reentrant=False, early_stop=False)
        y.sum().backward()
    assert {row.module for row in work.rows if row.flops} == {"Linear"}
    assert work.flops == 4 * (2 * 4 * 16 * 16)


def test_nothing_is_counted_outside_a_measurement() -> None:
    with torchfake.fake_mode():
        with step_time.measure() as work:
            pass
        r(4, 4, device="cuda") @ r(4, 4, device="cuda")
    assert work.rows == []
    with pytest.raises(RuntimeError, match="entered only once"), work:
        pass


# ---- Time


def product(n: int, dtype: torch.dtype) -> step_time.Measurement:
    with torchfake.fake_mode(gpus="H200"), step_time.measure() as work:
        r(n, n, device="cuda", dtype=dtype, grad=False) @ r(n, n, device="cuda", dtype=dtype, grad=False)
    return work


def test_a_large_product_takes_its_flops_and_a_small_one_its_kernel() -> None:
    estimate = product(8192, torch.bfloat16).estimate(lower_bound=True)
    assert estimate.seconds == pytest.approx(2 * 8192**3 / 989.4e12)
    assert estimate.by_limit().keys() == {"products"}
    small = product(16, torch.bfloat16).estimate(lower_bound=True)
    assert small.seconds == 2e-6
    assert small.by_limit().keys() == {"launches"}


def test_float32_uses_tf32_where_the_program_allows_it() -> None:
    plain = product(8192, torch.float32).estimate(lower_bound=True).seconds
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        faster = product(8192, torch.float32).estimate(lower_bound=True).seconds
    finally:
        torch.set_float32_matmul_precision(before)
    assert plain == pytest.approx(2 * 8192**3 / (132 * 256 * 1.98e9))
    assert faster == pytest.approx(2 * 8192**3 / 494.7e12)


def test_arithmetic_takes_the_bandwidth_of_memory() -> None:
    with torchfake.fake_mode(), step_time.measure() as work:
        torch.empty(1 << 28, device="cuda").relu()
    assert work.estimate("A100-80GB", lower_bound=True).seconds == pytest.approx(2 * 4 * (1 << 28) / 2.039e12, rel=1e-3)


#: Bytes in a second, and those of float32 outside of tensor cores, as published: within 2 %, for clocks are rounded.
PUBLISHED = {
    "H200": (4.8e12, 66.9e12), "H100-80GB": (3.35e12, 66.9e12), "H100-94GB": (3.938e12, 60.3e12),
    "A100-40GB": (1.555e12, 19.5e12), "A100-80GB": (2.039e12, 19.5e12), "B200": (7.7e12, 74.45e12),
    "L40S": (864e9, 91.6e12), "L4": (300e9, 30.3e12), "A10": (600e9, 31.2e12), "T4": (320e9, 8.1e12),
    "RTX-4090": (1008e9, 82.6e12), "RTX-3090": (936e9, 35.6e12), "V100": (900e9, 15.7e12),
}  # fmt: skip


@pytest.mark.parametrize("name", CARDS)
def test_speeds_that_follow_from_clocks_are_the_published_ones(name: str) -> None:
    speed = speed_of(CARDS[name])
    assert (speed.memory, speed.float32) == pytest.approx(PUBLISHED[name], rel=0.02)
    assert speed.tensor_cores["Half"] >= speed.float32
    assert speed.products("Float", may_use_tf32=True) >= speed.float32 * 0.99
    assert 0 < speed.float64 < speed.float32


def test_communication_overlaps_with_computation() -> None:
    def row(family: str, traffic: int, flops: int) -> step_time.Row:
        return step_time.Row("op", "", "forward", family, "cuda:0", "Half", False, flops, flops, 8, traffic, 8, 1, 1)

    speed = speed_of(CARDS["H200"])
    costs = [
        step_time._cost(row(*of), speed, None, 8) for of in (("collective", 450 * 10**9, 0), ("matmul", 0, 10**12))
    ]
    estimate = step_time.Estimate("H200", "lower bound", None, costs, 0, 0)
    assert estimate.communicating == pytest.approx(1.0)
    assert estimate.seconds == estimate.communicating > estimate.computing > 0
    between_machines = step_time._cost(row("collective", 50 * 10**9, 0), speed, None, 4)
    assert (between_machines.seconds, between_machines.limit) == (1.0, "link")


def test_collectives_send_what_the_best_algorithm_has_to(tmp_path: Path) -> None:
    text = """
        import torch, torch.distributed as dist
        dist.init_process_group("nccl")
        x = torch.ones(1000, device="cuda")
        dist.all_reduce(x)
        out = torch.empty(4000, device="cuda")
        dist.all_gather_into_tensor(out, x)
        dist.reduce_scatter_tensor(x, out)
        dist.broadcast(x, 0)
        dist.barrier()
    """
    (tmp_path / "train.py").write_text(textwrap.dedent(text))
    from torchfake.run_program import Launch

    report = tmp_path / "report.json"
    mode = fake_mode(gpus="4xH200")
    code = run_program(
        Program(str(tmp_path / "train.py"), False), mode, launch=Launch(1, 4, 0), quiet=True, json_file=report,
        time_steps=True,
    )  # fmt: skip
    assert code == 0
    assert json.loads(report.read_text())["step_time"]["traffic"] == 6000 + 12000 + 12000 + 4000


# ---- Recordings


def recording(tmp_path: Path, **changes: Any) -> Path:
    program = {"set": "later", "name": "a", "measured": 1.0, "estimated": 0.8}
    data: dict[str, Any] = {
        "schema": 2, "card": "NVIDIA H200", "source": "made up",
        "kernels": {"matmul/BFloat16": [3.0, 1.5, 1.25, 0.0], "elementwise": [2.0, 1.1, 0.0, 0.0]},
        "operators": {"aten::relu": 2.0},
        "host": {
            "kernel/forward": 10e-6, "view/forward": 2e-6, "node": 1e-6, "module": 5e-6,
            "operator/aten::mm/forward": 4e-6,
        },
        "programs": [program, {**program, "set": "workloads", "estimated": 0.1}],
    }  # fmt: skip
    path = tmp_path / "step_time.json"
    path.write_text(json.dumps(data | changes))
    return path


def test_a_recording_says_how_long_kernels_take(tmp_path: Path) -> None:
    fitted = step_time.load_recording(recording(tmp_path))
    estimate = product(8192, torch.bfloat16).estimate(recording=fitted)
    memory = 3 * 2 * 8192**2 / speed_of(CARDS["H200"]).memory
    assert estimate.seconds == pytest.approx(3e-6 + max(1.5 * memory, 1.25 * 2 * 8192**3 / 989.4e12))
    assert (estimate.basis, estimate.error, estimate.source) == ("fitted", pytest.approx(0.2), "made up")
    assert "fitted to a recording of the card, 20% off" in str(estimate)
    with torchfake.fake_mode(), step_time.measure() as work:
        torch.empty(1 << 20, device="cuda").relu()
    nbytes = 8 * (1 << 20)
    assert work.estimate(recording=fitted).computing == pytest.approx(2 * (2e-6 + 1.1 * nbytes / 4.8e12), rel=1e-2)


def test_kernels_of_a_kind_that_was_not_recorded_take_their_lower_bound(tmp_path: Path) -> None:
    fitted = step_time.load_recording(recording(tmp_path))
    work = product(8192, torch.float32)
    assert work.estimate(recording=fitted).computing == work.estimate(lower_bound=True).seconds


def test_a_program_of_small_kernels_takes_as_long_as_the_host(tmp_path: Path) -> None:
    fitted = step_time.load_recording(recording(tmp_path))
    with torchfake.fake_mode(gpus="H200"):
        model = nn.Linear(8, 8, bias=False, device="cuda", dtype=torch.bfloat16)
        with step_time.measure() as work:
            model(torch.empty(4, 8, device="cuda", dtype=torch.bfloat16))
    estimate = work.estimate(recording=fitted)
    assert estimate.seconds == pytest.approx(sum(fitted.host_seconds(row) * row.calls for row in work.host_rows))
    # The module, and a product that autograd records.
    by_operator = estimate.by_operator()
    assert (by_operator["nn.Module"], by_operator["aten::mm"]) == (pytest.approx(5e-6), pytest.approx(15e-6))
    assert estimate.is_bound_by_host
    assert estimate.by_limit().keys() == {"host"}
    assert "on the host, to call operators and launch kernels: the card waits for it" in str(estimate)


def test_another_card_is_estimated_by_analogy_and_says_so() -> None:
    estimate = product(8192, torch.bfloat16).estimate("L40S")
    assert (estimate.basis, estimate.error) == ("by analogy", None)
    assert "scaled by published speeds; not checked on this one" in str(estimate)
    assert estimate.seconds > product(8192, torch.bfloat16).estimate("L40S", lower_bound=True).seconds


@pytest.mark.parametrize(
    "changes",
    [{"kernels": {"matmul": [0, 1]}}, {"kernels": []}, {"programs": [{}]}, {"host": {"node": "x"}}, {"schema": 1}],
)
def test_a_file_that_is_no_recording_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not a recording of step times"):
        step_time.load_recording(recording(tmp_path, **changes))


def test_a_lower_bound_says_that_it_is_one() -> None:
    estimate = product(64, torch.bfloat16).estimate("T4", lower_bound=True)
    assert (estimate.basis, estimate.on_host) == ("lower bound", 0)
    assert "a lower bound from the roofline, not fitted to a recording of the card" in str(estimate)
    with pytest.raises(ValueError, match="there is no card 'T5'"):
        product(64, torch.bfloat16).estimate("T5")


# ---- Reports

TRAINING = """
    import torch
    from torch import nn

    class Evil(nn.Module):
        def __init__(self):
            super().__init__()
            self.add_module("<script>alert(1)</script>", nn.Linear(1024, 1024))
        def forward(self, x):
            return list(self.children())[0](x)

    model = Evil().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        model(torch.randn(4096, 1024, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_run_reports_the_time_in_text_json_and_html(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(TRAINING))
    page, report = tmp_path / "report.html", tmp_path / "report.json"
    code = run_program(
        Program(str(tmp_path / "train.py"), False), fake_mode(gpus="L4"), quiet=True, json_file=report,
        outputs=Outputs(html=page), time_steps=True,
    )  # fmt: skip
    assert code == 0
    found = json.loads(report.read_text())
    jsonschema.validate(found, json.loads((SCHEMAS / "run.schema.json").read_text()))
    time = found["step_time"]
    jsonschema.validate(time, json.loads((SCHEMAS / "step-time.schema.json").read_text()))
    assert (time["card"], time["steps"], time["basis"]) == ("NVIDIA L4", 3, "by analogy")
    assert time["flops"] == 3 * 2 * (2 * 4096 * 1024 * 1024)
    for name in ("phases", "families", "operators", "limits", "modules"):
        assert sum(time[name].values()) == pytest.approx(time["seconds"])
    assert "3 steps: about" in format_report(found)
    text = page.read_text()
    assert "Time on NVIDIA L4: about" in text
    assert "<script" not in text
    assert "&lt;script&gt;alert(1)" in text


def test_an_estimate_renders_in_a_notebook() -> None:
    html = product(64, torch.bfloat16).estimate()._repr_html_()
    assert "Time on NVIDIA H200: about" in html
