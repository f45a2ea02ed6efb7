"""The whole interface of torch.cuda: the same calls to virtual cards and, if available, a real GPU.

Tests do not depend on which one they run on: they check that results are consistent.
"""

import contextlib
import warnings

import pytest
import torch

from torchfake import fake_mode
from torchfake._cards import CARDS

MACHINES = {
    "one card": lambda: fake_mode(gpus="H200"),
    "two cards": lambda: fake_mode(gpus="2xA100-40GB"),
    "old cards": lambda: fake_mode(gpus="2xT4"),
    "plain mode": fake_mode,
}
if torch.cuda.is_available():
    MACHINES["real"] = contextlib.nullcontext


@pytest.fixture(autouse=True, params=MACHINES)
def machine(request):
    with MACHINES[request.param]():
        yield


def indices():
    return range(torch.cuda.device_count())


def test_all_functions_agree_on_the_available_cards():
    assert torch.cuda.is_available()
    assert torch.accelerator.is_available()
    assert torch.cuda.device_count() == torch.accelerator.device_count() >= 1
    assert torch.accelerator.current_accelerator() == torch.device("cuda")
    assert torch.accelerator.current_accelerator(check_available=True) == torch.device("cuda")
    assert torch.get_device_module() is torch.cuda
    assert torch.get_device_module("cuda") is torch.cuda
    assert torch.backends.cuda.is_built()
    assert torch.backends.cudnn.is_available()
    assert torch.backends.cudnn.version() >= 90000
    assert int(torch.version.cuda.split(".")[0]) >= 11
    assert torch.distributed.is_nccl_available()
    torch.cuda.init()
    assert torch.cuda.is_initialized()
    assert not torch.cuda.amp.common.amp_definitely_not_available()


def test_properties_agree_with_the_functions_that_return_one():
    for index in indices():
        properties = torch.cuda.get_device_properties(index)
        for device in (index, f"cuda:{index}", torch.device("cuda", index)):
            assert torch.cuda.get_device_name(device) == properties.name
            assert torch.cuda.get_device_capability(device) == (properties.major, properties.minor)
            assert torch.cuda.get_device_properties(device).total_memory == properties.total_memory
        free, total = torch.cuda.mem_get_info(index)
        assert 0 < free <= total == properties.total_memory
        assert properties.multi_processor_count > 0
        assert properties.L2_cache_size > 0
        assert properties.warp_size == 32
        assert properties.max_threads_per_multi_processor % properties.warp_size == 0
        assert properties.shared_memory_per_block <= properties.shared_memory_per_block_optin
        assert properties.shared_memory_per_block_optin <= properties.shared_memory_per_multiprocessor
        assert properties.regs_per_multiprocessor == 65536
        assert str(properties.uuid)
        text = repr(properties)
        assert f"name='{properties.name}'" in text
        assert f"major={properties.major}" in text


def test_architectures_contain_one_that_the_card_runs():
    major, minor = torch.cuda.get_device_capability()
    numbers = [
        int(name.partition("_")[2].rstrip("af")) for name in torch.cuda.get_arch_list() if name.startswith("sm_")
    ]
    assert any(number // 10 == major and number % 10 <= minor for number in numbers)
    assert f"compute_{numbers[0]}" in torch.cuda.get_gencode_flags()


def test_supported_features_follow_from_the_capability():
    recent = torch.cuda.get_device_capability() >= (8, 0)
    assert torch.cuda.is_bf16_supported(including_emulation=False) == recent
    assert torch.cuda.is_bf16_supported()
    assert torch.cuda.is_tf32_supported() == recent
    assert torch.bfloat16 in torch.accelerator.get_device_capability()["supported_dtypes"]
    query = torch.empty(2, 4, 64, 64, dtype=torch.float16, device="cuda")
    params = torch.backends.cuda.SDPAParams(query, query, query, None, 0.0, False, False)
    assert torch.backends.cuda.can_use_flash_attention(params) == recent
    assert torch.backends.cuda.can_use_cudnn_attention(params) == recent
    assert torch.backends.cuda.can_use_efficient_attention(params)
    assert torch.backends.cuda.is_flash_attention_available()


def test_a_bad_index_is_refused_and_changes_nothing():
    before = torch.cuda.current_device()
    for ask in (torch.cuda.get_device_properties, torch.cuda.get_device_name, torch.cuda.get_device_capability):
        with pytest.raises((AssertionError, RuntimeError), match=r"[Ii]nvalid device|invalid device ordinal"):
            ask(127)
    with pytest.raises((AssertionError, RuntimeError), match=r"[Ii]nvalid"):
        torch.cuda.can_device_access_peer(0, 127)
    with pytest.raises(ValueError, match="cuda"):
        torch.cuda.get_device_name("cpu")
    assert torch.cuda.current_device() == before


def test_the_current_card_is_set_and_restored():
    last = torch.cuda.device_count() - 1
    before = torch.cuda.current_device()
    with torch.cuda.device(last):
        assert torch.cuda.current_device() == torch.accelerator.current_device_index() == last
        assert torch.ones(1, device="cuda").device.index == last
        assert torch.cuda.current_stream().device.index == last
    assert torch.cuda.current_device() == before
    with torch.cuda.device_of(torch.ones(1, device=f"cuda:{last}")):
        assert torch.cuda.current_device() == last
    torch.cuda.set_device(last)
    assert torch.accelerator.current_device_index() == last
    torch.accelerator.set_device_index(before)
    assert torch.cuda.current_device() == before


def test_peers_are_the_other_cards():
    for index in indices():
        for peer in indices():
            if index == peer:
                assert not torch.cuda.can_device_access_peer(index, peer)
            else:
                assert isinstance(torch.cuda.can_device_access_peer(index, peer), bool)


def test_memory_counts_follow_the_life_of_tensors():
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    free, _ = torch.cuda.mem_get_info()
    x = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_allocated() - before == x.nbytes == 64 << 20
    assert torch.cuda.memory_reserved() >= torch.cuda.memory_allocated()
    assert free - torch.cuda.mem_get_info()[0] >= x.nbytes
    assert torch.accelerator.memory_allocated() == torch.cuda.memory_allocated()
    assert torch.accelerator.memory_reserved() == torch.cuda.memory_reserved()
    stats = torch.cuda.memory_stats()
    assert stats["allocated_bytes.all.current"] == torch.cuda.memory_allocated()
    assert (
        torch.cuda.memory_stats_as_nested_dict()["allocated_bytes"]["all"]["current"] == torch.cuda.memory_allocated()
    )
    del x
    assert torch.cuda.memory_allocated() == before
    assert torch.cuda.max_memory_allocated() == before + (64 << 20)
    assert torch.accelerator.max_memory_allocated() == torch.cuda.max_memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == before
    torch.cuda.empty_cache()
    assert torch.cuda.device_memory_used() <= torch.cuda.get_device_properties(0).total_memory
    assert "allocated" in torch.cuda.memory_summary().lower()
    assert torch.cuda.get_allocator_backend() in ("native", "cudaMallocAsync")
    assert isinstance(torch.cuda.memory_snapshot(), list)


def test_memory_can_be_requested_from_the_allocator_directly():
    before = torch.cuda.memory_allocated()
    address = torch.cuda.caching_allocator_alloc(4096)
    assert address > 0
    assert torch.cuda.memory_allocated() == before + 4096
    torch.cuda.caching_allocator_delete(address)
    assert torch.cuda.memory_allocated() == before


def test_a_share_of_the_memory_can_be_set():
    assert torch.cuda.get_per_process_memory_fraction() == pytest.approx(1.0)
    torch.cuda.set_per_process_memory_fraction(0.5)
    torch.cuda.set_per_process_memory_fraction(1.0)
    with pytest.raises(ValueError, match="Invalid fraction"):
        torch.cuda.set_per_process_memory_fraction(1.5)
    with pytest.raises(TypeError, match="fraction"):
        torch.cuda.set_per_process_memory_fraction(1)


def test_pinned_memory_has_statistics():
    assert all(isinstance(value, int) for value in torch.cuda.host_memory_stats().values())
    torch.cuda.reset_peak_host_memory_stats()
    torch.cuda.reset_accumulated_host_memory_stats()
    torch.accelerator.memory.empty_host_cache()
    assert torch.ones(3).pin_memory().is_pinned()
    assert not torch.ones(3).is_pinned()


def test_streams_have_a_device_and_an_identity():
    stream = torch.cuda.Stream()
    assert isinstance(stream, torch.cuda.Stream)
    assert isinstance(stream, torch.Stream)
    assert stream == stream
    assert stream != torch.cuda.Stream()
    assert stream.device == torch.device("cuda", torch.cuda.current_device())
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert torch.cuda.default_stream().cuda_stream == 0
    assert stream.cuda_stream != 0
    assert {stream: 1}[stream] == 1
    with torch.cuda.stream(stream) as entered:
        assert entered is None
        assert torch.cuda.current_stream() == stream
        assert torch.accelerator.current_stream().stream_id == stream.stream_id
    with torch.cuda.stream(None):
        assert torch.cuda.current_stream() == torch.cuda.default_stream()
    torch.cuda.set_stream(stream)
    assert torch.cuda.current_stream() == stream
    torch.cuda.set_stream(torch.cuda.default_stream())
    stream.synchronize()
    assert stream.query()
    stream.wait_stream(torch.cuda.default_stream())
    assert isinstance(stream.record_event(), torch.cuda.Event)
    assert torch.cuda.Stream(priority=-1).priority <= 0
    torch.ones(2, device="cuda").record_stream(stream)


def test_elapsed_times_are_not_negative():
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    assert isinstance(start, torch.cuda.Event)
    start.record()
    torch.ones(2, device="cuda") @ torch.ones(2, device="cuda")
    end.record()
    end.synchronize()
    torch.cuda.synchronize()
    torch.accelerator.synchronize()
    assert end.query()
    assert start.elapsed_time(end) >= 0
    assert isinstance(start.elapsed_time(end), float)
    torch.cuda.default_stream().wait_event(end)


def test_seeds_and_states_repeat_what_is_drawn():
    torch.cuda.manual_seed(7)
    assert torch.cuda.initial_seed() == 7
    first = torch.rand(5, device="cuda").tolist()
    torch.cuda.manual_seed(7)
    assert torch.rand(5, device="cuda").tolist() == first
    state = torch.cuda.get_rng_state()
    assert state.dtype == torch.uint8
    assert state.device.type == "cpu"
    second = torch.rand(5, device="cuda").tolist()
    torch.cuda.set_rng_state(state)
    assert torch.rand(5, device="cuda").tolist() == second
    states = torch.cuda.get_rng_state_all()
    assert len(states) == torch.cuda.device_count()
    torch.cuda.set_rng_state_all(states)
    torch.manual_seed(3)
    assert torch.cuda.initial_seed() == 3
    torch.cuda.manual_seed_all(4)
    assert torch.cuda.initial_seed() == 4
    torch.cuda.seed()
    torch.cuda.seed_all()
    generator = torch.Generator("cuda").manual_seed(1)
    assert generator.device.type == "cuda"
    a = torch.rand(3, device="cuda", generator=generator).tolist()
    assert torch.rand(3, device="cuda", generator=generator.manual_seed(1)).tolist() == a
    with torch.random.fork_rng():
        torch.rand(3, device="cuda")
    torch.cuda.manual_seed(9)
    assert len(set(torch.rand(50, device="cuda").tolist())) > 40


def test_a_graph_is_captured_and_replayed_as_it_ran():
    x = torch.zeros(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    assert isinstance(graph, torch.cuda.CUDAGraph)
    with torch.cuda.graph(graph, pool=torch.cuda.graph_pool_handle()):
        y = x * 2 + 1
    x.fill_(3)
    graph.replay()
    torch.cuda.synchronize()
    assert y.shape == (4,)
    assert not torch.cuda.is_current_stream_capturing()
    graph.reset()
    module = torch.nn.Linear(4, 4).cuda()
    graphed = torch.cuda.make_graphed_callables(module, (torch.zeros(2, 4, device="cuda"),))
    graphed(torch.ones(2, 4, device="cuda")).sum().backward()
    assert module.weight.grad.shape == (4, 4)


def test_pools_name_memory():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        x = torch.empty(8, device="cuda")
    assert pool.id != torch.cuda.MemPool().id
    assert x.shape == (8,)


def test_markers_and_profilers_nest():
    assert torch.cuda.nvtx.range_push("outer") + 1 == torch.cuda.nvtx.range_push("inner")
    torch.cuda.nvtx.range_pop()
    torch.cuda.nvtx.range_pop()
    torch.cuda.nvtx.mark("here")
    torch.cuda.nvtx.range_end(torch.cuda.nvtx.range_start("later"))
    with torch.cuda.nvtx.range("step {}", 1):
        pass
    torch.cuda.cudart().cudaProfilerStart()
    torch.cuda.check_error(torch.cuda.cudart().cudaProfilerStop())
    with torch.cuda.profiler.profile():
        pass


def test_profilers_of_claimed_cards_time_the_run_on_the_cpu(capfd):
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, record_shapes=True, profile_memory=True) as profiler:
        torch.ones(8, device="cuda") + 1
    assert "aten::add" in profiler.key_averages().table(sort_by="cuda_time_total")
    with torch.autograd.profiler.profile(use_device="cuda") as older:
        torch.ones(8, device="cuda") + 1
    assert older.self_cpu_time_total > 0
    with torch.autograd.profiler.emit_nvtx():
        torch.ones(8, device="cuda")
    assert "CUDA event" not in capfd.readouterr().err


def test_libraries_have_handles_and_workspaces():
    assert torch.cuda.current_blas_handle() != 0
    assert torch.backends.cuda.cublas_workspace_size() >= 0
    assert torch.backends.cuda.cublaslt_workspace_size() >= 0
    assert torch.backends.cuda.blas_workspace_size() >= 0
    assert torch.cuda.nccl.version() >= (2, 0, 0)


def test_synchronizing_calls_can_be_reported():
    assert torch.cuda.get_sync_debug_mode() == 0
    torch.cuda.set_sync_debug_mode("warn")
    assert torch.cuda.get_sync_debug_mode() == 1
    torch.cuda.set_sync_debug_mode(0)
    with pytest.raises(RuntimeError, match="debug_mode"):
        torch.cuda.set_sync_debug_mode(3)


def test_backends_keep_what_is_set():
    flags = (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic)
    with torch.backends.cudnn.flags(enabled=True, benchmark=True, deterministic=True):
        assert torch.backends.cudnn.benchmark
        assert torch.backends.cudnn.deterministic
    assert flags[1:] == (torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic)
    torch.backends.cuda.matmul.allow_tf32 = not flags[0]
    assert torch.backends.cuda.matmul.allow_tf32 == (not flags[0])
    torch.backends.cuda.matmul.allow_tf32 = flags[0]
    for name in ("flash_sdp", "mem_efficient_sdp", "math_sdp", "cudnn_sdp"):
        assert getattr(torch.backends.cuda, f"{name}_enabled")()
        getattr(torch.backends.cuda, f"enable_{name}")(False)
        assert not getattr(torch.backends.cuda, f"{name}_enabled")()
        getattr(torch.backends.cuda, f"enable_{name}")(True)
    assert torch.get_float32_matmul_precision() in ("highest", "high", "medium")


def test_tensors_and_modules_move_between_cards():
    module = torch.nn.Linear(3, 3).to("cuda", torch.float16)
    assert module.weight.is_cuda
    assert module.weight.get_device() == torch.cuda.current_device()
    assert torch.ones(2).cuda(non_blocking=True).device.type == "cuda"
    assert torch.ones(2, device="cuda").cpu().device.type == "cpu"
    with torch.amp.autocast("cuda", dtype=torch.bfloat16):
        assert module.float()(torch.ones(2, 3, device="cuda")).dtype == torch.bfloat16
    assert torch.get_autocast_dtype("cuda") == torch.float16
    assert torch.cuda.FloatTensor is not None


def test_nothing_that_takes_no_argument_fails_in_a_way_of_its_own():
    """Every public function that needs no argument returns: none raises AttributeError for what is not built."""
    left_out = {"list_gpu_processes", "seed", "seed_all"}  # asks the driver; tested above
    for module in (
        torch.cuda,
        torch.cuda.memory,
        torch.cuda.random,
        torch.cuda.graphs,
        torch.accelerator,
        torch.accelerator.memory,
        torch.backends.cuda,
    ):
        for name in getattr(module, "__all__", ()):
            function = getattr(module, name, None)
            if isinstance(function, type) or not callable(function) or name in left_out:
                continue
            required = [
                parameter
                for parameter in __import__("inspect").signature(function).parameters.values()
                if parameter.default is parameter.empty and parameter.kind in (0, 1)
            ]
            if not required:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    with contextlib.suppress(ModuleNotFoundError):  # of NVIDIA's management library
                        function()


@pytest.mark.parametrize("name", CARDS)
def test_a_row_of_the_table_is_consistent(name):
    with fake_mode(gpus=name):
        test_properties_agree_with_the_functions_that_return_one()
        test_supported_features_follow_from_the_capability()
