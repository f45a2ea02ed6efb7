"""The cards of a mode: their properties in torch.cuda and torch.accelerator, memory, streams, events and graphs."""

import copy

import pytest
import torch

import torchfake.memory
from torchfake import FakeTensorMode, fake_mode
from torchfake._cards import CARDS, find_card, parse_gpus, parse_size
from torchfake.errors import UnknownValuesError

GIB = 1 << 30


def test_a_meta_tensor_leaves_the_accelerator_what_it_was():
    with fake_mode():
        torch.ones(2, device="meta")
        assert torch.accelerator.current_device_index() == 0
        assert torch.accelerator.current_stream().device == torch.device("cuda", 0)


def test_a_mode_with_cards_says_what_was_asked_for():
    with fake_mode(gpus="8xH100-80GB"):
        assert torch.cuda.is_available()
        assert torch.cuda.device_count() == torch.accelerator.device_count() == 8
        assert torch.cuda.get_device_name(7) == "NVIDIA H100 80GB HBM3"
        assert torch.cuda.get_device_capability() == (9, 0)
        properties = torch.cuda.get_device_properties(3)
        assert (properties.major, properties.minor, properties.multi_processor_count) == (9, 0, 132)
        assert properties.total_memory == CARDS["H100-80GB"].total_memory
        assert "NVIDIA H100" in repr(properties)
        assert torch.cuda.mem_get_info(0)[1] == properties.total_memory
        assert torch.accelerator.current_accelerator() == torch.device("cuda")
        assert torch.get_device_module() is torch.cuda
        assert torch.distributed.is_nccl_available()
        assert torch.backends.cuda.is_built()
        assert torch.version.cuda is not None
        assert torch.cuda.can_device_access_peer(0, 1)
        assert torch.cuda.is_bf16_supported()


def test_plain_mode_says_one_card_and_lets_any_index_be_claimed():
    with fake_mode():
        assert torch.cuda.is_available()
        assert torch.cuda.device_count() >= 1
        assert torch.ones(1, device="cuda:5").device.index == 5
        assert torch.cuda.device_count() >= 6
        assert torch.cuda.get_device_name(5) == "NVIDIA H200"


def test_outside_the_mode_nothing_is_said_of_cards():
    before = (torch.cuda.is_available(), torch.cuda.device_count(), torch.version.cuda, torch.backends.cuda.is_built())
    with fake_mode(gpus="H200"):
        pass
    assert before == (
        torch.cuda.is_available(),
        torch.cuda.device_count(),
        torch.version.cuda,
        torch.backends.cuda.is_built(),
    )


def test_a_mode_without_fake_cuda_has_no_cards():
    with fake_mode(fake_cuda=False):
        assert not torch.cuda.is_available()
        assert torch.cuda.device_count() == 0
        assert torch.version.cuda is None


def test_fake_tensor_mode_says_what_pytorch_says():
    before = torch.cuda.is_available(), torch.cuda.device_count()
    with FakeTensorMode():
        assert (torch.cuda.is_available(), torch.cuda.device_count()) == before


def test_an_index_beyond_the_last_card_is_an_invalid_ordinal():
    with fake_mode(gpus="2xA100-40GB"):
        torch.ones(1, device="cuda:1")
        with pytest.raises(RuntimeError, match="invalid device ordinal"):
            torch.ones(1, device="cuda:2")
        with pytest.raises(RuntimeError, match="invalid device ordinal"):
            torch.cuda.set_device(2)
        with pytest.raises(AssertionError, match="Invalid device id"):
            torch.cuda.get_device_properties(2)


def test_memory_is_that_of_the_storages_that_live():
    with fake_mode(gpus="H200"):
        assert torch.cuda.memory_allocated() == 0
        x = torch.empty(1000, device="cuda")
        view = x[:10]
        assert torch.cuda.memory_allocated() == 4096
        del x
        assert torch.cuda.memory_allocated() == 4096
        del view
        assert torch.cuda.memory_allocated() == 0
        assert torch.cuda.max_memory_allocated() == 4096
        torch.cuda.reset_peak_memory_stats()
        assert torch.cuda.max_memory_allocated() == 0
        assert torch.cuda.memory_stats()["allocated_bytes.all.current"] == 0
        assert torch.accelerator.memory_allocated() == 0
        assert "allocated" in torch.cuda.memory_summary().lower()


def test_memory_beyond_the_card_raises_in_the_words_of_pytorch_and_changes_nothing():
    with fake_mode(gpus="A100-40GB"):
        kept = torch.empty(30 * GIB, dtype=torch.uint8, device="cuda")
        with pytest.raises(
            torch.cuda.OutOfMemoryError, match=r"CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0"
        ):
            torch.empty(20 * GIB, dtype=torch.uint8, device="cuda")
        assert torch.cuda.memory_allocated() == kept.nbytes
        del kept
        torch.empty(20 * GIB, dtype=torch.uint8, device="cuda")


def test_memory_of_a_card_can_be_given():
    with fake_mode(gpus="H200", gpu_memory="1GiB"):
        assert torch.cuda.get_device_properties(0).total_memory == GIB
        with pytest.raises(torch.cuda.OutOfMemoryError):
            torch.empty(2 * GIB, dtype=torch.uint8, device="cuda")


def test_plain_mode_counts_and_never_refuses():
    with fake_mode():
        x = torch.empty(10**13, dtype=torch.uint8, device="cuda")
        assert torch.cuda.memory_allocated() >= x.nbytes


def test_streams_and_events_are_those_of_torch_cuda():
    with fake_mode(gpus="2xH200"):
        stream = torch.cuda.Stream()
        assert isinstance(stream, torch.cuda.Stream)
        event = torch.cuda.Event(enable_timing=True)
        assert isinstance(event, torch.cuda.Event)
        with torch.cuda.stream(stream):
            x = torch.ones(2, device="cuda")
            event.record()
            assert torch.cuda.current_stream() == stream
        torch.cuda.current_stream().wait_stream(stream)
        stream.wait_event(event)
        event.synchronize()
        assert event.query()
        x.record_stream(torch.cuda.current_stream())
        with torch.cuda.device(1):
            assert torch.cuda.current_device() == 1
            assert torch.cuda.current_stream().device.index == 1
        assert stream != torch.cuda.Stream()
        assert torch.cuda.current_stream() == torch.cuda.default_stream()
        torch.cuda.synchronize()


def test_a_graph_is_captured_and_replayed():
    with fake_mode(gpus="H200"):
        x = torch.zeros(4, device="cuda")
        graph = torch.cuda.CUDAGraph()
        assert isinstance(graph, torch.cuda.CUDAGraph)
        with torch.cuda.graph(graph):
            y = x * 2
        graph.replay()
        assert y.shape == (4,)
        assert not torch.cuda.is_current_stream_capturing()


def test_rng_states_of_a_card_repeat_its_draws():
    with fake_mode(gpus="2xH200"):
        torch.cuda.manual_seed_all(3)
        states = torch.cuda.get_rng_state_all()
        assert len(states) == 2
        first = torch.rand(3, device="cuda").tolist()
        torch.cuda.set_rng_state_all(states)
        assert torch.rand(3, device="cuda").tolist() == first
        assert torch.rand(3, device="cuda").tolist() != first


def test_pinned_memory_is_pinned():
    with fake_mode(gpus="H200"):
        assert torch.ones(3).pin_memory().is_pinned()
        assert not torch.ones(3).is_pinned()


def test_a_copy_of_a_mode_claims_the_same_cards():
    mode = fake_mode(gpus="2xL4")
    with copy.deepcopy(mode):
        assert torch.cuda.device_count() == 2
        assert torch.cuda.get_device_name() == "NVIDIA L4"


@pytest.mark.parametrize("name", CARDS)
def test_every_card_of_the_table_answers(name):
    with fake_mode(gpus=f"2x{name}"):
        properties = torch.cuda.get_device_properties(1)
        assert properties.name == torch.cuda.get_device_name(1)
        assert (properties.major, properties.minor) == torch.cuda.get_device_capability(1)
        free, total = torch.cuda.mem_get_info(1)
        assert free <= total == properties.total_memory


def test_names_and_sizes_are_read_as_people_write_them():
    assert find_card("h100") is CARDS["H100-80GB"]
    assert find_card("RTX 4090") is CARDS["RTX-4090"]
    assert len(parse_gpus("8xH100-80GB")) == 8
    assert parse_size("24GiB") == 24 * GIB
    assert parse_size("80GB") == 80 * 10**9
    for bad in ("", "x", "24 elephants", "-1"):
        with pytest.raises(ValueError, match="size"):
            parse_size(bad)
    with pytest.raises(ValueError, match="the known cards are H200"):
        fake_mode(gpus="H900")
    with pytest.raises(ValueError, match="claims none"):
        fake_mode(gpus="H200", fake_cuda=False)


def test_memory_of_the_cards_asked_for_is_that_of_pytorchs_allocator() -> None:
    with fake_mode(gpus="2xA10"):
        first = [torch.empty(9 << 20, dtype=torch.uint8, device="cuda") for _ in range(2)]
        mask = torch.empty(3 << 19, dtype=torch.uint8, device="cuda")  # 1.5 MiB: what remains of 2 MiB is not split off
        assert torch.cuda.memory_allocated() == 20 << 20
        assert torch.cuda.memory_reserved() == 20 << 20
        assert torch.cuda.memory_allocated(1) == 0
        assert len(torch.cuda.memory_snapshot()) == 1
        del first, mask
        torch.cuda.empty_cache()
        assert (torch.cuda.memory_reserved(), torch.cuda.max_memory_reserved()) == (0, 20 << 20)
        torch.cuda.set_per_process_memory_fraction(0.01)
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(1 << 30, device="cuda")


def test_what_is_tracked_is_counted_before_and_after_as_well() -> None:
    with fake_mode():
        before = torch.empty(1000, device="cuda")
        with torchfake.memory.track() as tracked:
            inside = torch.empty(3 << 19, dtype=torch.uint8, device="cuda")
            assert torch.cuda.memory_allocated() == tracked.peak == 3 << 19
        assert torch.cuda.memory_allocated() == 4096 + (3 << 19)
        del before, inside
        assert torch.cuda.memory_allocated() == 0


def test_the_runtime_of_cuda_and_the_configuration_answer():
    with fake_mode(gpus="H200"):
        torch.cuda.profiler.start()
        torch.cuda.profiler.stop()
        free, total = torch.cuda.cudart().cudaMemGetInfo(0)
        assert 0 < free <= total
        assert "PyTorch built with" in torch.__config__.show()


def test_a_random_state_from_a_file_is_left_out_with_stand_ins(tmp_path):
    path = tmp_path / "rng.pt"
    torch.save((torch.get_rng_state(), torch.Generator().manual_seed(3).get_state()[:16]), path)
    with fake_mode(unknown="stand-in") as mode:
        of_cpu, of_card = torch.load(path)
        torch.set_rng_state(of_cpu)
        torch.cuda.set_rng_state(of_card)
        assert [entry.what for entry in mode.stand_ins.entries] == ["set_rng_state"] * 2
        torch.set_rng_state(torch.get_rng_state())
    with fake_mode(), pytest.raises(UnknownValuesError):
        torch.set_rng_state(torch.load(path)[0])


def test_an_optimizers_step_compiles(recwarn):
    with fake_mode(gpus="H200"):
        layer = torch.nn.Linear(2, 2, device="cuda")
        optimizer = torch.optim.Adam(layer.parameters())
        layer(torch.ones(1, 2, device="cuda")).sum().backward()
        torch.compile(optimizer.step)()
        assert len(optimizer.state) == 2
