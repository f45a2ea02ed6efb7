"""A model of 405 billion parameters trains a step within the memory of a small process, and no tensor has data."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import torch

LIMIT = 600 * 10**6
GROWTH = 120 * 10**6  # beyond what importing takes, which is 400 MB more in a PyTorch with CUDA
SCALAR = 16  # bytes of the largest dtype: numbers in a program, such as the 2 in `x * 2`, are real tensors

LLAMA = """
    import json
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    from torchfake import fake_mode, is_fake

    def train_a_step(layers):
        config = LlamaConfig(
            hidden_size=16384,
            intermediate_size=53248,
            num_hidden_layers=layers,
            num_attention_heads=128,
            num_key_value_heads=8,
            vocab_size=128256,
        )
        model = LlamaForCausalLM(config).to("cuda")
        ids = torch.ones(1, 8192, dtype=torch.long, device="cuda")
        output = model(input_ids=ids, labels=ids)
        output.loss.backward()
        for parameter in model.parameters():
            assert is_fake(parameter) and parameter.device.type == "cuda"
            assert is_fake(parameter.grad) and parameter.grad.shape == parameter.shape
        assert output.logits.shape == (1, 8192, 128256)
        return model
"""


def run(program: str) -> dict[str, int]:
    """The output of `program`, run in a separate process after `LLAMA`."""
    source = textwrap.dedent(LLAMA) + textwrap.dedent(program)
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_llama_of_405_billion_parameters_trains_a_step_in_600_megabytes() -> None:
    found = run("""
        import transformers.models.llama.modeling_llama

        def peak():  # ru_maxrss would begin with what the process that started this one had
            [line] = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
            return int(line.split()[1]) * 1024

        imported = peak()
        with fake_mode():
            model = train_a_step(layers=126)
        parameters = sum(p.numel() for p in model.parameters())
        print(json.dumps({"parameters": parameters, "peak": peak(), "growth": peak() - imported}))
    """)
    assert found["parameters"] == 405_853_388_800
    assert found["growth"] < GROWTH
    assert found["peak"] < LIMIT or torch.version.cuda


PROFILED = """
    from torch.profiler import ProfilerActivity, profile

    def largest_allocation(run):
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
            run()
        events = profiler.profiler.kineto_results.events()
        return max((event.nbytes() for event in events if event.name() == "[memory]"), default=0)
"""


def test_training_a_step_allocates_no_tensor_data() -> None:
    found = run(
        PROFILED
        + """
    @fake_mode(known_values_limit=0)
    def on_fakes():
        train_a_step(layers=2)

    print(json.dumps({
        "real": largest_allocation(lambda: torch.empty(1000)),
        "fake": largest_allocation(on_fakes),
    }))
    """
    )
    assert found["real"] == 4000  # confirms that the profiler works
    assert found["fake"] <= SCALAR


def test_known_values_are_the_only_data_and_stay_small() -> None:
    found = run(
        PROFILED
        + """
    @fake_mode()
    def on_fakes():
        train_a_step(layers=2)

    print(json.dumps({"fake": largest_allocation(on_fakes)}))
    """
    )
    # The ids passed in, and values derived from them; 16,384 elements at most.
    assert 8192 * 8 <= found["fake"] <= 16_384 * 8
