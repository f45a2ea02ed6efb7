"""safetensors files inside the mode: fakes are created from the header only."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from metadata import assert_same_metadata

import torchfake
from torchfake import fake_mode, is_fake

safetensors = pytest.importorskip("safetensors")
pytest.importorskip("safetensors.torch")

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e8m0fnu,
    torch.float4_e2m1fn_x2,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint64,
    torch.uint32,
    torch.uint16,
    torch.uint8,
    torch.bool,
    torch.complex64,
]


@pytest.fixture
def path(tmp_path: Path) -> str:
    tensors = {str(dtype): torch.zeros(2, 4, 8, dtype=torch.uint8).view(dtype) for dtype in DTYPES}
    tensors |= {"matrix": torch.randn(6, 4), "empty": torch.empty(0, 3), "number": torch.tensor(2.5)}
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors", metadata={"made": "here"})
    return str(tmp_path / "model.safetensors")


@pytest.mark.parametrize(
    ("device", "claimed"), [("cpu", "cpu"), ("cuda:1", "cuda:1"), ("cuda", "cuda:0"), (2, "cuda:2")]
)
def test_load_file_brings_fakes_of_every_dtype(path: str, device: Any, claimed: str) -> None:
    with fake_mode():
        fake = safetensors.torch.load_file(path, device=device)
    real = safetensors.torch.load_file(path)
    assert fake.keys() == real.keys()
    for name, tensor in real.items():
        # Through .clone(): real ones are views, of a kind that moving to a device ends.
        assert_same_metadata(fake[name].clone(), tensor.clone(), device=claimed)


def test_torch_load_of_a_safetensors_file_brings_fakes(path: str) -> None:
    with fake_mode():
        fake = torch.load(path, map_location="cuda")
    assert fake["matrix"].shape == (6, 4) and fake["matrix"].device == torch.device("cuda:0")


def test_load_of_bytes_brings_fakes(path: str) -> None:
    data = Path(path).read_bytes()
    real = safetensors.torch.load_file(path)
    with fake_mode():
        fake = safetensors.torch.load(data)
    assert fake.keys() == real.keys()
    assert_same_metadata({name: fake[name].clone() for name in real}, {name: real[name].clone() for name in real})
    assert fake["number"].item() == 2.5


def test_safe_open_answers_for_its_header(path: str) -> None:
    with safetensors.safe_open(path, "pt") as real, fake_mode(), safetensors.safe_open(path, "pt") as fake:
        assert fake.keys() == real.keys()
        assert fake.metadata() == {"made": "here"}
        assert fake.get_slice("matrix").get_shape() == [6, 4]
        assert fake.get_slice("matrix").get_dtype() == "F32"
        with pytest.raises(safetensors.SafetensorError):
            fake.get_tensor("absent")


@pytest.mark.parametrize("index", [slice(2, 4), (slice(None), slice(1, 3)), (slice(0, 5, 2), slice(3)), ...])
def test_a_slice_of_a_file_is_a_fake_slice(path: str, index: Any) -> None:
    with safetensors.safe_open(path, "pt") as file:
        real = file.get_slice("matrix")[index]
    with fake_mode(), safetensors.safe_open(path, "pt") as file:
        fake = file.get_slice("matrix")[index]
    assert is_fake(fake)
    assert (fake.shape, fake.stride(), fake.storage_offset()) == (real.shape, real.stride(), real.storage_offset())
    with fake_mode(), safetensors.safe_open(path, "pt", device="cuda:3") as file:
        moved = file.get_slice("matrix")[index]
    assert moved.device == torch.device("cuda:3") and moved.shape == real.shape


def test_a_single_element_is_read_and_known(path: str) -> None:
    with fake_mode():
        loaded = safetensors.torch.load_file(path, device="cuda")
    assert loaded["number"].item() == 2.5
    with pytest.raises(torchfake.DataDependentOutputException):
        loaded["matrix"][0, 0].item()


def test_a_file_larger_than_memory_is_loaded_at_once(tmp_path: Path) -> None:
    header = json.dumps({"large": {"dtype": "F32", "shape": [2**31], "data_offsets": [0, 2**33]}}).encode()
    with open(tmp_path / "large.safetensors", "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + 2**33)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with fake_mode():
        loaded = safetensors.torch.load_file(tmp_path / "large.safetensors", device="cuda")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # kilobytes
    assert loaded["large"].shape == (2**31,)


def test_load_model_fills_a_fake_model(tmp_path: Path) -> None:
    safetensors.torch.save_model(torch.nn.Linear(3, 4), str(tmp_path / "linear.safetensors"))
    with fake_mode():
        model = torch.nn.Linear(3, 4)
        state = safetensors.torch.load_file(tmp_path / "linear.safetensors")
        assert model.load_state_dict(state).missing_keys == []
    assert is_fake(model.weight)


def test_saving_fakes_leaves_a_hole_for_the_data(tmp_path: Path) -> None:
    with fake_mode():
        safetensors.torch.save_file({"x": torch.rand(3)}, tmp_path / "x.safetensors", metadata={"format": "pt"})
    with safetensors.safe_open(tmp_path / "x.safetensors", "pt") as file:
        assert "fake" in file.metadata()["torchfake"] and file.metadata()["format"] == "pt"
        assert file.get_tensor("x").tolist() == [0.0, 0.0, 0.0]


def test_outside_the_mode_files_bring_real_tensors(path: str) -> None:
    with fake_mode():
        pass
    loaded = safetensors.torch.load_file(path)
    assert not any(map(is_fake, loaded.values()))
    assert type(safetensors.safe_open(path, "pt")).__module__ != "torchfake._loading"


@pytest.mark.parametrize(
    "imports",
    [
        "import torchfake; from safetensors import safe_open; from safetensors.torch import load_file",
        "from safetensors import safe_open; from safetensors.torch import load_file; import torchfake",
        "from safetensors import safe_open; import torchfake; from safetensors.torch import load_file",
    ],
)
def test_safetensors_may_be_imported_before_or_after(path: str, imports: str) -> None:
    program = f"""
import sys
{imports}
with torchfake.fake_mode():
    assert torchfake.is_fake(safe_open({path!r}, "pt").get_tensor("matrix"))
    assert torchfake.is_fake(load_file({path!r}, device="cuda")["matrix"])
assert not torchfake.is_fake(load_file({path!r})["matrix"])
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_torchfake_does_not_import_safetensors() -> None:
    subprocess.run([sys.executable, "-c", "import torchfake, sys; assert 'safetensors' not in sys.modules"], check=True)


@pytest.mark.parametrize("safe_serialization", [True, False], ids=["safetensors", "torch_save"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_from_pretrained_brings_a_fake_model(tmp_path: Path, safe_serialization: bool, dtype: torch.dtype) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_attention_heads=4,
        num_hidden_layers=2,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        vocab_size=100,
    )
    real = transformers.LlamaForCausalLM(config).to(dtype)
    real.save_pretrained(tmp_path, safe_serialization=safe_serialization)
    with fake_mode():
        fake = transformers.LlamaForCausalLM.from_pretrained(tmp_path, dtype=dtype)
        tensors = [*fake.parameters(), *fake.buffers()]
        assert all(map(is_fake, tensors))
        logits = fake.to("cuda")(torch.ones(2, 5, dtype=torch.int64, device="cuda")).logits
        logits.sum().backward()
    assert {name: (value.shape, value.dtype) for name, value in fake.state_dict().items()} == {
        name: (value.shape, value.dtype) for name, value in real.state_dict().items()
    }
    assert fake.lm_head.weight is fake.model.embed_tokens.weight
    assert (logits.shape, logits.device) == ((2, 5, 100), torch.device("cuda:0"))
    assert fake.lm_head.weight.grad.device == torch.device("cuda:0")
