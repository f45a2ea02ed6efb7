"""Operator libraries compiled for CUDA load in a mode with cards, with a PyTorch that has no CUDA."""

from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from torchfake import fake_mode

SOURCE = """
    #include <torch/library.h>
    #include <atomic>
    // What the headers of a PyTorch with CUDA refer to.
    namespace c10::cuda {
    namespace CUDACachingAllocator { class CUDAAllocator; extern std::atomic<CUDAAllocator*> allocator; }
    signed char device_count() noexcept;
    }
    static void* volatile used = &c10::cuda::CUDACachingAllocator::allocator;
    at::Tensor twice(const at::Tensor& x) { return x.add(x); }
    at::Tensor on_card(const at::Tensor& x) { return c10::cuda::device_count() ? x : twice(x); }
    TORCH_LIBRARY(compiled_for_cuda, m) { m.def("twice(Tensor x) -> Tensor"); }
    TORCH_LIBRARY_IMPL(compiled_for_cuda, CPU, m) { m.impl("twice", &twice); }
    TORCH_LIBRARY_IMPL(compiled_for_cuda, CUDA, m) { m.impl("twice", &on_card); }
    """

PROGRAM = """
    import sys, torch
    from torchfake import fake_mode
    path = sys.argv[1]
    try:
        torch.ops.load_library(path)
        sys.exit("it loads as it is")
    except OSError:
        pass
    with fake_mode(fake_cuda=False):
        try:
            torch.ops.load_library(path)
            sys.exit("it loads without cards")
        except OSError:
            pass
    with fake_mode(gpus="H200"):
        torch.ops.load_library(path)
        assert path in torch.ops.loaded_libraries
        x = torch.ops.compiled_for_cuda.twice(torch.ones(3))
    print(torch.ops.compiled_for_cuda.twice(torch.ones(2)).tolist(), x.shape)
    """


@pytest.mark.skipif(torch.backends.cuda.is_built(), reason="such a library loads as it is where PyTorch has CUDA")
@pytest.mark.skipif(shutil.which("g++") is None, reason="compiles a library")
def test_a_library_linked_with_cuda_loads_in_a_mode_with_cards(tmp_path):
    # Stubs for the library names that the linker needs; they are deleted before the library is loaded.
    for name in ("c10_cuda", "torch_cuda"):
        stub = tmp_path / f"{name}.cpp"
        stub.write_text(f"int {name}_stub;")
        subprocess.run(
            ["g++", "-shared", "-fPIC", f"-Wl,-soname,lib{name}.so", str(stub), "-o", str(tmp_path / f"lib{name}.so")],
            check=True,
        )
    root = Path(torch.__file__).parent
    (tmp_path / "library.cpp").write_text(textwrap.dedent(SOURCE))
    command = ["g++", "-std=c++20", "-O0", "-shared", "-fPIC", str(tmp_path / "library.cpp"), f"-I{root}/include"]
    command += [f"-I{root}/include/torch/csrc/api/include", f"-L{tmp_path}", f"-L{root}/lib", "-Wl,--no-as-needed"]
    command += ["-lc10", "-ltorch_cpu", "-lc10_cuda", "-ltorch_cuda", "-o", str(tmp_path / "library.so")]
    subprocess.run(command, check=True)
    for name in ("c10_cuda", "torch_cuda"):
        (tmp_path / f"lib{name}.so").unlink()
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), str(tmp_path / "library.so")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "[2.0, 2.0] torch.Size([3])\n"), done.stderr


def test_a_file_that_is_not_a_library_raises_pytorchs_error(tmp_path):
    broken = tmp_path / "broken.so"
    broken.write_text("no library")
    with fake_mode(gpus="H200"):
        for path in (broken, tmp_path / "missing.so"):
            with pytest.raises(OSError, match="Could not load this library"):
                torch.ops.load_library(str(path))


def test_a_selecting_operator_of_a_library_selects_everything():
    with fake_mode(unknown="stand-in") as mode:
        torch.library.define("test_compiled_libraries::pick", "(Tensor boxes, Tensor scores) -> Tensor")

        @torch.library.register_fake("test_compiled_libraries::pick")
        def _(boxes, scores):
            return boxes.new_empty(torch.library.get_ctx().new_dynamic_size(), dtype=torch.long)

        boxes, scores = torch.randn(100, 4, device="cuda"), torch.randn(100, device="cuda")
        assert torch.ops.test_compiled_libraries.pick(boxes, scores).shape == (100,)
        assert [entry.answer for entry in mode.stand_ins.entries] == ["100 elements"]
