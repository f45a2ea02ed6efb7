"""Queries of PyTorch and real tensors whose results torchfake must not change: `harmless_questions.py SITUATION`.

Prints the results as JSON. Run by test_harmless_import.py, in a process for each situation. The result of a query that
raises is its error.
"""

from __future__ import annotations

import copy
import gc
import io
import json
import pickle
import re
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset, WeightedRandomSampler, random_split

DEVICE_TYPES = (
    "cuda",
    "xpu",
    "mps",
    "hpu",
    "mtia",
    "ipu",
    "ve",
    "maia",
    "xla",
    "lazy",
    "vulkan",
    "privateuseone",
    "meta",
)

SITUATIONS = ("without", "imported", "after_a_mode", "beside_a_mode", "uninstalled")

QUESTIONS: dict[str, Callable[[], Any]] = {}


def ask(**questions: Callable[[], Any]) -> None:
    assert not QUESTIONS.keys() & questions.keys()
    QUESTIONS.update(questions)


def seeded(function: Callable[[], Any]) -> Callable[[], Any]:
    def run() -> Any:
        torch.manual_seed(3)
        return function()

    return run


def grads_of(loss: torch.Tensor, *inputs: torch.Tensor) -> list[Any]:
    return [gradient.tolist() for gradient in torch.autograd.grad(loss, inputs)]


def numbers(*size: int) -> torch.Tensor:
    count = int(torch.tensor(size).prod()) if size else 1
    return torch.linspace(-1, 2, count).reshape(size)


# ---- PyTorch's properties --------------------------------------------------------------------------------------------

ask(
    config=torch.__config__.show,
    parallel_info=lambda: torch.__config__.parallel_info().partition("Environment")[0],
    cuda_available=torch.cuda.is_available,
    cuda_device_count=torch.cuda.device_count,
    cuda_initialized=torch.cuda.is_initialized,
    cuda_built=lambda: torch.backends.cuda.is_built(),
    cuda_arch_list=torch.cuda.get_arch_list,
    xpu_available=torch.xpu.is_available,
    mps_available=torch.backends.mps.is_available,
    mkldnn_available=torch.backends.mkldnn.is_available,
    cudnn_available=torch.backends.cudnn.is_available,
    accelerator_available=torch.accelerator.is_available,
    accelerator=torch.accelerator.current_accelerator,
    accelerator_count=torch.accelerator.device_count,
    default_device=torch.get_default_device,
    device_module=lambda: torch.get_device_module("cuda").__name__,
    lifts_cpu_only=lambda: torch._C._only_lift_cpu_tensors(),
    multithreaded_backward=torch.autograd.is_multithreading_enabled,
    modes=lambda: torch._C._len_torch_dispatch_stack(),
    threads=torch.get_num_threads,
    tensor_types=lambda: sorted(str(kind) for kind in torch._tensor_classes),
    legacy_type_is_one_of_them=lambda: torch.cuda.FloatTensor in torch._tensor_classes,
    legacy_type_dtype=lambda: torch.cuda.HalfTensor.dtype,
    legacy_type_by_default=lambda: torch.set_default_tensor_type("torch.cuda.FloatTensor"),
    legacy_type_of_half_by_default=lambda: torch.set_default_tensor_type(torch.cuda.HalfTensor),
    legacy_type_check=lambda: isinstance(torch.ones(1), torch.cuda.FloatTensor),
    sdp_flags=lambda: [torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.math_sdp_enabled()],
    overridable_methods=lambda: len(torch.overrides.get_overridable_functions()[torch.Tensor]),
    is_overridable=lambda: torch.overrides.is_tensor_method_or_property(torch.Tensor.numpy),
    signature_of_load_state_dict=lambda: str(__import__("inspect").signature(nn.Module.load_state_dict)),
    name_of_a_function=lambda: (torch.asarray.__name__, torch.cuda.set_device.__qualname__, torch.cuda.__name__),
)

# ---- Absent devices --------------------------------------------------------------------------------------------------

for kind in DEVICE_TYPES:
    ask(
        **{
            f"empty_on_{kind}": lambda kind=kind: torch.empty(2, device=kind),
            f"move_to_{kind}": lambda kind=kind: torch.ones(2).to(kind),
            f"tensor_on_{kind}": lambda kind=kind: torch.tensor([1.0], device=kind),
            f"stream_on_{kind}": lambda kind=kind: torch.Stream(kind),
            f"event_on_{kind}": lambda kind=kind: torch.Event(kind),
            f"generator_on_{kind}": lambda kind=kind: torch.Generator(kind),
        }
    )
ask(
    cuda_method=lambda: torch.ones(2).cuda(),
    module_to_cuda=lambda: nn.Linear(2, 2).cuda(),
    new_on_cuda=lambda: torch.ones(2).new_zeros(3, device="cuda:1"),
    like_on_cuda=lambda: torch.zeros_like(torch.ones(2), device="cuda"),
    pinned=lambda: torch.ones(2).pin_memory(),
    current_device=torch.cuda.current_device,
    set_device=lambda: torch.cuda.set_device(0),
    device_scope=lambda: torch.cuda.device(0).__enter__(),
    synchronize=torch.cuda.synchronize,
    current_stream=torch.cuda.current_stream,
    default_stream=torch.cuda.default_stream,
    cuda_stream=lambda: torch.cuda.Stream(),
    cuda_event=lambda: torch.cuda.Event(),
    cuda_capability=torch.cuda.get_device_capability,
    cuda_name=torch.cuda.get_device_name,
    cuda_properties=lambda: torch.cuda.get_device_properties(0),
    cuda_memory=torch.cuda.memory_allocated,
    cuda_seed=lambda: torch.cuda.manual_seed(3),
    cuda_initial_seed=torch.cuda.initial_seed,
    cuda_rng_state=torch.cuda.get_rng_state,
    cuda_bf16=lambda: torch.cuda.is_bf16_supported(including_emulation=False),
    cuda_float_tensor=lambda: torch.cuda.FloatTensor(2),
    cuda_grad_scaler=lambda: torch.amp.GradScaler("cuda").is_enabled(),
    cuda_autocast=lambda: torch.autocast("cuda")._enabled,
    accelerator_stream=torch.accelerator.current_stream,
    load_to_cuda=lambda: torch.load(saved(torch.ones(2)), map_location="cuda"),
)

# ---- The dispatcher --------------------------------------------------------------------------------------------------

#: Only queried when torchfake is not active: while it is, its kernels are registered.
OF_INACTIVE = ("table_of_", "computed_kernel_", "backends_of_")
for op in (
    "add.Tensor",
    "linear",
    "scaled_dot_product_attention",
    "_has_compatible_shallow_copy_type",
    "silu_backward",
):
    ask(**{f"table_of_{op}": lambda op=op: torch._C._dispatch_dump_table(f"aten::{op}")})
ask(
    computed_kernel_of_mm_on_cuda=lambda: torch._C._dispatch_has_computed_kernel_for_dispatch_key("aten::mm", "CUDA"),
    computed_kernel_of_mm_on_fake=lambda: torch._C._dispatch_has_computed_kernel_for_dispatch_key("aten::mm", "Fake"),
)


# ---- Real tensors ----------------------------------------------------------------------------------------------------


def saved(value: Any) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return file


def in_place_of_data() -> Any:
    x = torch.ones(2)
    x.data = torch.zeros(3, dtype=torch.half)
    return x


def mutated_while_saved() -> Any:
    x = torch.ones(2, requires_grad=True)
    with torch.autograd.graph.allow_mutation_on_saved_tensors():
        y = x.clone()
        z = (y**2).sum()
        y.zero_()
        return grads_of(z, x)


def subclass() -> Any:
    class Named(torch.Tensor):
        pass

    x = torch.ones(2).as_subclass(Named)
    return [type(x + 1).__name__, x.tolist(), x.numpy().tolist(), type(copy.deepcopy(x)).__name__, x.type()]


def seen_by_torch_function() -> Any:
    seen = []

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func.__name__)
            return func(*args, **(kwargs or {}))

    with Watch():
        torch.ones(2).tolist()
        torch.asarray([1.0])
        F.one_hot(torch.tensor([1, 2]))
    return seen


def seen_by_dispatch_mode() -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with Watch():
        x = torch.ones(1, 2, 4, 8, requires_grad=True)
        F.scaled_dot_product_attention(x, x, x).sum()
        F.cross_entropy(torch.ones(2, 3), torch.tensor([0, 2]))
    return seen


ask(
    add=lambda: (torch.ones(2) + 1).tolist(),
    text=lambda: f"{torch.ones(2)!r} {torch.tensor(2.5):.3f} {torch.tensor(2)}",
    text_of_parameter=lambda: repr(nn.Parameter(torch.ones(2, 2))),
    numpy=lambda: torch.arange(3).numpy().tolist(),
    numpy_of_leaf=lambda: torch.ones(2, requires_grad=True).numpy(),
    nested_list=lambda: numbers(2, 3).tolist(),
    type_name=lambda: [torch.ones(2).type(), torch.ones(2).type(torch.half).dtype, torch.ones(2).type("nonsense")],
    new=lambda: [torch.ones(2).new(3).shape, torch.ones(2).new_tensor([1, 2])],
    set_to_storage=lambda: torch.empty(0).set_(torch.ones(3).untyped_storage(), 0, (3,)),
    set_meta_to_real=lambda: torch.empty(0, device="meta").set_(torch.ones(3).untyped_storage()),
    set_real_to_meta=lambda: torch.empty(0).set_(torch.ones(3, device="meta").untyped_storage()),
    data=in_place_of_data,
    data_of_meta=lambda: setattr(torch.ones(2), "data", torch.ones(2, device="meta")),
    compatible=lambda: torch._has_compatible_shallow_copy_type(torch.ones(1), torch.ones(1, device="meta")),
    deepcopy=lambda: copy.deepcopy(nn.Parameter(torch.ones(2))),
    pickled=lambda: pickle.loads(pickle.dumps(torch.ones(2))),
    pickled_function=lambda: (
        pickle.loads(pickle.dumps([torch.asarray, F.gaussian_nll_loss, torch.cuda.current_device]))
        == [torch.asarray, F.gaussian_nll_loss, torch.cuda.current_device]
    ),
    pickled_method=lambda: pickle.loads(pickle.dumps(torch.Tensor.numpy))(torch.ones(1)).tolist(),
    saved=lambda: torch.load(saved({"a": torch.ones(2)})),
    saved_legacy=lambda: torch.load(legacy()),
    shared=lambda: [torch.ones(2).is_shared(), torch.ones(2).share_memory_().is_shared()],
    no_fake_mode_attribute=lambda: torch.ones(2).fake_mode,
    no_constant_attribute=lambda: hasattr(torch.ones(2), "constant"),
    own_attribute=lambda: [setattr(x := torch.ones(1), "fake_device", "mine"), x.fake_device][1],
    asarray=lambda: torch.asarray([1, 2], dtype=torch.half),
    frombuffer=lambda: torch.frombuffer(bytearray(8), dtype=torch.int32),
    dlpack=lambda: torch.from_dlpack(torch.arange(3)),
    dlpack_of_leaf=lambda: torch.utils.dlpack.to_dlpack(torch.ones(1, requires_grad=True)),
    subclass=subclass,
    torch_function=seen_by_torch_function,
    dispatch_mode=seen_by_dispatch_mode,
    compiled_by_name=lambda: torch.overrides.resolve_name(torch.Tensor.tolist),
)


def legacy() -> io.BytesIO:
    file = io.BytesIO()
    torch.save([torch.ones(2), torch.zeros(1)], file, _use_new_zipfile_serialization=False)
    file.seek(0)
    return file


# ---- Storages --------------------------------------------------------------------------------------------------------

ask(
    storage_text=lambda: repr(torch.ones(2).untyped_storage()),
    storage_element=lambda: torch.ones(2).untyped_storage()[3],
    storage_of_meta_element=lambda: torch.ones(2, device="meta").untyped_storage()[0],
    storage_of_meta_text=lambda: repr(torch.ones(2, device="meta").untyped_storage()),
    storage_of_meta_address=lambda: torch.ones(2, device="meta").untyped_storage().data_ptr(),
    storage_of_meta_clone=lambda: torch.ones(2, device="meta").untyped_storage().clone().device,
    storage_device=lambda: [
        torch.ones(2).untyped_storage().device,
        torch.ones(2, device="meta").untyped_storage().device,
    ],
    storage_fill=lambda: [x := torch.ones(2), x.untyped_storage().fill_(0), x][2],
    storage_resize=lambda: [x := torch.ones(2).untyped_storage(), x.resize_(3), x.nbytes()][2],
    storage_copy=lambda: torch.ones(2).untyped_storage().copy_(torch.zeros(2).untyped_storage()).tolist(),
    storage_copy_wrong=lambda: torch.ones(2).untyped_storage().copy_(torch.zeros(3).untyped_storage()),
    storage_convert=lambda: torch.ones(2).storage().double().tolist(),
    storage_swap=lambda: [x := torch.ones(1).untyped_storage(), x.byteswap(torch.float32), x.tolist()][2],
    storage_to_cuda=lambda: torch.ones(2).untyped_storage().cuda(),
)

# ---- Operators with a kernel of ours on autograd's keys, and functions that are replaced -----------------------------


def lstm(packed: bool) -> Any:
    network, x = nn.LSTM(3, 4), numbers(5, 2, 3)
    data = nn.utils.rnn.pack_padded_sequence(x, [5, 3]) if packed else x
    return network(data)[1][0].sum().backward(), [p.grad.sum() for p in network.parameters()]


ask(
    attention=lambda: F.scaled_dot_product_attention(numbers(1, 2, 3, 4), numbers(1, 2, 3, 4), numbers(1, 2, 3, 4)),
    attention_wrong=lambda: F.scaled_dot_product_attention(numbers(1, 2, 3, 4), numbers(1, 2, 3, 5), numbers(2)),
    batch_norm=seeded(lambda: nn.BatchNorm1d(3)(numbers(4, 3))),
    cross_entropy=lambda: F.cross_entropy(numbers(2, 3), torch.tensor([0, 2]), numbers(3), label_smoothing=0.1),
    quantile=lambda: torch.quantile(numbers(5), 0.3),
    quantile_wrong=lambda: torch.quantile(numbers(5), torch.tensor([0.3, 1.5])),
    nanquantile=lambda: torch.nanquantile(numbers(5), 0.3),
    one_hot=lambda: F.one_hot(torch.tensor([0, 2])),
    one_hot_wrong=lambda: F.one_hot(torch.tensor([0, 2]), 2),
    cov_wrong=lambda: torch.cov(numbers(2, 3), fweights=torch.tensor([-1, 1, 1])),
    istft_wrong=lambda: torch.istft(torch.zeros(3, 3, dtype=torch.cfloat), 4, window=torch.zeros(4)),
    ctc_loss=lambda: F.ctc_loss(numbers(4, 1, 3), torch.tensor([[1, 2]]), torch.tensor([4]), torch.tensor([2])),
    tensor_split=lambda: torch.tensor_split(numbers(5), torch.tensor([1, 3])),
    max_pool1d=lambda: F.max_pool1d(numbers(1, 1, 6), 2),
    grid_sample=lambda: F.grid_sample(numbers(1, 1, 3, 3), numbers(1, 2, 2, 2), align_corners=True),
    lstm=seeded(lambda: lstm(False)),
    lstm_packed=seeded(lambda: lstm(True)),
    flatten_parameters=seeded(lambda: nn.GRU(2, 2).flatten_parameters()),
    gaussian_nll_loss=lambda: F.gaussian_nll_loss(numbers(2), numbers(2), torch.ones(2)),
    gaussian_nll_loss_wrong=lambda: F.gaussian_nll_loss(numbers(2), numbers(2), torch.tensor([1.0, -1.0])),
    scripted_linear=lambda: torch.jit.script(nn.Linear(2, 2)).code,
    scripted_network=lambda: torch.jit.script(nn.LSTM(2, 2)).code[:300],
    compiled_loss=lambda: compiled_loss(),
    trunc_normal=seeded(lambda: nn.init.trunc_normal_(torch.empty(5), a=-0.5, b=0.5)),
    distribution=seeded(lambda: torch.distributions.Normal(0.0, 1.0).sample((2,))),
    distribution_wrong=lambda: torch.distributions.Normal(0.0, torch.tensor(-1.0)),
    distribution_of_wrong_value=lambda: torch.distributions.Bernoulli(0.5).log_prob(torch.tensor(2.0)),
    geometric_wrong=lambda: torch.distributions.Geometric(torch.tensor(0.0)),
    load_state_dict_wrong=lambda: nn.Linear(2, 2).load_state_dict({"weight": torch.ones(3, 3)}),
    load_state_dict=lambda: nn.Linear(1, 1).load_state_dict({"weight": torch.ones(1, 1), "bias": torch.ones(1)}),
    gradients=lambda: grads_of((w := torch.ones(2, requires_grad=True)).pow(2).sum(), w),
    gradients_of_nothing=lambda: torch.ones(2).sum().backward(),
    gradients_of_many=lambda: torch.ones(2, requires_grad=True).mul(2).backward(),
    anomaly=lambda: detect_anomaly(),
    mutated=mutated_while_saved,
)


def compiled_loss() -> Any:
    @torch.compile(backend="eager", fullgraph=True)
    def attention(x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, x, x).type(torch.float64) + x.new_tensor(1.0)

    @torch.compile(backend="eager")
    def loss(x: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
        return F.gaussian_nll_loss(x, x + 1, variance) + torch.asarray(2.0)

    return [attention(numbers(1, 2, 3, 4)), loss(numbers(2), torch.ones(2))]


def detect_anomaly() -> Any:
    with torch.autograd.detect_anomaly(check_nan=True):
        x = torch.zeros(1, requires_grad=True)
        (x.sqrt() * 0).sum().backward()


def step(optimizer: Callable[..., torch.optim.Optimizer]) -> Any:
    weight = nn.Parameter(numbers(2, 2))
    stepper = optimizer([weight])
    for _ in range(2):
        weight.pow(2).sum().backward()
        stepper.step()
    return weight


def scaled_step() -> Any:
    weight = nn.Parameter(numbers(2))
    scaler, stepper = torch.amp.GradScaler("cpu"), torch.optim.SGD([weight], 0.1)
    scaler.scale(weight.sum() * float("inf")).backward()
    scaler.step(stepper)
    return weight


ask(
    adafactor=lambda: step(torch.optim.Adafactor),
    adam=lambda: step(torch.optim.Adam),
    scaled_step=scaled_step,
    batches=seeded(lambda: [batch for (batch,) in DataLoader(TensorDataset(torch.arange(6)), 2, shuffle=True)]),
    sampler=seeded(lambda: list(RandomSampler(range(5)))),
    weighted_sampler=seeded(lambda: list(WeightedRandomSampler([0.1, 0.9], 4))),
    split=seeded(lambda: random_split(range(6), [2, 4])[0].indices),
)

# ---- Tracers, and PyTorch's own fakes --------------------------------------------------------------------------------


def pytorchs_fakes() -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        x = torch.ones(2, 3)
        seen = [repr(x @ x.t()), mode.from_tensor(torch.ones(4)).shape]
    return [*seen, torch._C._len_torch_dispatch_stack()]


def traced() -> str:
    from torch.fx.experimental.proxy_tensor import make_fx

    return make_fx(lambda x: F.cross_entropy(x.relu(), x.argmax(1)), tracing_mode="fake")(torch.ones(2, 3)).code


def branches() -> Any:
    from torch._higher_order_ops.cond import cond_op

    return cond_op(torch.tensor(True), lambda x: x + 1, lambda x: x - 1, (torch.ones(1),))


def custom_op() -> Any:
    @torch.library.custom_op("harmless::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @twice.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return x.new_empty(torch.library.get_ctx().new_dynamic_size())

    return [twice(torch.ones(1)), twice(torch.ones(1, device="meta"))]


ask(
    pytorchs_fakes=pytorchs_fakes,
    traced=traced,
    branches=branches,
    custom_op=custom_op,
    vmapped=lambda: torch.vmap(torch.sin)(numbers(2)),
    exported=lambda: torch.export.export(nn.Linear(2, 2), (torch.ones(1, 2),)).graph_module.code,
    saved_export=lambda: torch.export.save(torch.export.export(nn.Linear(2, 2), (torch.ones(1, 2),)), io.BytesIO()),
)


# ---- Answers ---------------------------------------------------------------------------------------------------------


def describe(answer: Any) -> str:
    if isinstance(answer, torch.Tensor) and answer.device.type == "cpu":
        return f"{answer.dtype} {answer.tolist()} {answer.requires_grad}"
    if isinstance(answer, (list, tuple)):
        return f"[{', '.join(map(describe, answer))}]"
    return repr(answer)


def answer(question: Callable[[], Any]) -> str:
    try:
        text = describe(question())
    except Exception as error:
        text = f"{type(error).__module__}.{type(error).__name__}: {error}"
    # Addresses and source lines may differ.
    return re.sub(r"0x[0-9a-f]+", "0x", text)


def use_torchfake() -> None:
    """Enters and leaves a mode, with a program that uses most of what torchfake replaces."""
    import torchfake

    with torchfake.fake_mode():
        model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)).cuda()
        optimizer = torch.optim.Adafactor(model.parameters())
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(torch.ones(2, 4, device="cuda")).sum()
        loss.backward()
        optimizer.step()
        torch.cuda.set_device(1)
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda.Event().record()
        torch.Stream("cuda:3"), torch.Event("xpu"), torch.cuda.is_bf16_supported(), torch.cuda.get_device_capability()
        torch.ones(2, device="maia") + 1
        next(iter(DataLoader(TensorDataset(torch.arange(6)), 2, shuffle=True)))
        with tempfile.TemporaryDirectory() as folder:
            torch.save({"a": torch.ones(1)}, Path(folder, "a.pt"))
            torch.load(Path(folder, "a.pt"), map_location="cuda")
        copy.deepcopy(model), repr(model), F.one_hot(torch.tensor([1])).numpy()
    with torchfake.FakeTensorMode() as mode:
        mode.from_tensor(torch.ones(2)).cuda().sum()
    torchfake.to_fake(torch.ones(2), "cuda").cpu()


def answers() -> dict[str, str]:
    return {name: answer(question) for name, question in QUESTIONS.items()}


def answers_in(situation: str) -> dict[str, str]:
    if situation == "without":
        return answers()
    import torchfake

    if situation == "imported":
        return answers()
    use_torchfake()
    gc.collect()
    if situation == "uninstalled":
        torchfake.uninstall()
        return answers()
    if situation == "after_a_mode":
        return answers()
    assert situation == "beside_a_mode"
    inside, done = threading.Event(), threading.Event()

    def stay() -> None:
        with torchfake.fake_mode():
            x = torch.ones(2, device="cuda")
            inside.set()
            done.wait()
            assert torchfake.is_fake(x + 1)

    thread = threading.Thread(target=stay)
    thread.start()
    inside.wait()
    try:
        return answers()
    finally:
        done.set()
        thread.join()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps(answers_in(sys.argv[1])))
