"""`torchfake run`: whole programs on virtual cards, their exit codes, and the final report."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch

from torchfake.modes import fake_mode
from torchfake.run_program import Launch, Program, ProgramNotFoundError, run_program


def _write(folder: Path, text: str, name: str = "train.py") -> Program:
    path = folder / name
    path.write_text(textwrap.dedent(text))
    return Program(str(path), False)


def _run(folder: Path, text: str, *arguments: str, gpus: str = "H200", launch: Launch | None = None, **options):
    program = _write(folder, text)
    mode = fake_mode(gpus=gpus, unknown="stand-in", **options)
    code = run_program(
        Program(program.name, False, list(arguments)),
        mode,
        launch=launch,
        quiet=True,
        json_file=folder / "report.json",
    )
    return code, json.loads((folder / "report.json").read_text()), mode


TRAINING = """
    import argparse
    import torch, torch.nn as nn, torch.nn.functional as F
    from torch.utils.data import DataLoader, TensorDataset, random_split

    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--out")
    args = parser.parse_args()
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    assert device.type == "cuda"
    train, held_out = random_split(TensorDataset(torch.randn(96, 3, 16, 16), torch.randint(0, 10, (96,))), [64, 32])
    loader = DataLoader(train, batch_size=16, shuffle=True, num_workers=args.workers, pin_memory=True)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(1568, 10))
    model = model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
    scaler = torch.amp.GradScaler("cuda")
    best = float("inf")
    for epoch in range(2):
        model.train()
        running = 0.0
        for x, y in loader:
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", dtype=torch.float16):
                loss = F.cross_entropy(model(x), y)
            if not torch.isfinite(loss):
                raise SystemExit("the loss is not finite")
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            running += loss.item()
        schedule.step()
        model.eval()
        right = 0
        with torch.no_grad():
            for x, y in DataLoader(held_out, batch_size=16):
                right += (model(x.cuda()).argmax(1) == y.cuda()).sum().item()
        print(f"{epoch} {running:.3f} {right / 32:.2f} {norm:.2f} {scaler.get_scale()}")
        if running < best:
            best = running
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, args.out)
    state = torch.load(args.out, map_location=device)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    print("peak", torch.cuda.max_memory_allocated())
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_a_training_script_runs_unmodified(tmp_path, capsys, workers):
    code, report, _ = _run(tmp_path, TRAINING, "--workers", str(workers), "--out", str(tmp_path / "check.pt"))
    output = capsys.readouterr()
    assert code == 0, output.err
    assert int(output.out.split()[-1]) == report["cards"][0]["peak_allocated"] > 0
    assert "65536.0" in output.out
    lines = {entry["line"]: entry for entry in report["stand_ins"]}
    assert all(entry["file"] == str(tmp_path / "train.py") for entry in lines.values())
    assert any(entry["what"] == ".item()" and entry["count"] == 8 for entry in lines.values())


def test_a_character_model_with_batches_cut_from_a_file_runs(tmp_path, capsys):
    code, _, _ = _run(
        tmp_path,
        f"""
        import numpy as np, torch, torch.nn as nn, torch.nn.functional as F
        np.random.randint(0, 50, 5000).astype(np.uint16).tofile(r"{tmp_path}/train.bin")
        def get_batch():
            data = np.memmap(r"{tmp_path}/train.bin", dtype=np.uint16, mode="r")
            ix = torch.randint(len(data) - 32, (4,))
            x = torch.stack([torch.from_numpy(data[i : i + 32].astype(np.int64)) for i in ix])
            y = torch.stack([torch.from_numpy(data[i + 1 : i + 33].astype(np.int64)) for i in ix])
            return x.pin_memory().to("cuda", non_blocking=True), y.pin_memory().to("cuda", non_blocking=True)
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.embed, self.head = nn.Embedding(50, 64), nn.Linear(64, 50, bias=False)
                self.head.weight = self.embed.weight
            def forward(self, x):
                q = self.embed(x)[:, None]
                return self.head(F.scaled_dot_product_attention(q, q, q, is_causal=True)[:, 0])
        model = Model().cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        losses = torch.zeros(3)
        for step in range(3):
            x, y = get_batch()
            with torch.autocast("cuda", torch.bfloat16):
                loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            losses[step] = loss.item()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        print(f"{{losses.mean():.4f}}")
        tokens = torch.zeros(1, 1, dtype=torch.long, device="cuda")
        for _ in range(4):
            logits = model(tokens)[:, -1]
            top, _ = torch.topk(logits, 5)
            logits[logits < top[:, [-1]]] = -float("inf")
            tokens = torch.cat([tokens, torch.multinomial(F.softmax(logits, -1), 1)], 1)
        print(len(tokens[0].tolist()))
        """,
    )
    output = capsys.readouterr()
    assert code == 0, output.err
    assert output.out.split() == ["1.0000", "5"]


def test_a_syntax_error_is_shown_as_python_shows_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    assert _run(tmp_path, "x = (1,")[0] == 1
    shown = capsys.readouterr().err
    assert shown.lstrip().startswith("File ")
    assert "SyntaxError: '(' was never closed" in shown
    assert "run_program" not in shown


def test_arguments_exit_codes_and_errors_are_those_of_python(tmp_path, capsys, monkeypatch):
    # torch.distributed replaces the hook permanently once a group has been created in this process.
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    text = """
        import sys
        if __name__ == "__main__":
            if sys.argv[1] == "exit":
                sys.exit(int(sys.argv[2]))
            if sys.argv[1] == "say":
                sys.exit("bad weather")
            raise KeyError(sys.argv[1:])
        """
    assert _run(tmp_path, text, "exit", "7")[0] == 7
    assert _run(tmp_path, text, "say")[0] == 1
    assert capsys.readouterr().err == "bad weather\n"
    assert _run(tmp_path, text, "raise", "--now")[0] == 1
    shown = capsys.readouterr().err
    assert shown.startswith("Traceback (most recent call last):\n  File")
    assert "train.py" in shown.splitlines()[1]
    assert "run_program" not in shown
    assert "KeyError: ['raise', '--now']" in shown


def test_a_module_runs_as_main(tmp_path, monkeypatch, capsys):
    package = tmp_path / "my_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text("import sys, torch\nprint(__name__, sys.argv[1:], torch.ones(2).device)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert run_program(Program("my_package", True, ["a"]), fake_mode(), quiet=True) == 0
    assert capsys.readouterr().out == "__main__ ['a'] cpu\n"
    with pytest.raises(ProgramNotFoundError):
        run_program(Program("no_such_package_at_all", True), fake_mode())


def test_threads_of_the_program_are_in_the_mode(tmp_path, capsys):
    text = """
        import threading, torch
        def work():
            print(torch.ones(2, device="cuda").device)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        """
    assert _run(tmp_path, text)[0] == 0
    assert capsys.readouterr().out == "cuda:0\n"


def test_a_rank_of_many_sees_its_group(tmp_path, capsys):
    text = """
        import os, torch, torch.distributed as dist, torch.nn as nn
        from torch.nn.parallel import DistributedDataParallel
        from torch.utils.data import DataLoader, TensorDataset, DistributedSampler
        dist.init_process_group("nccl")
        local = int(os.environ["LOCAL_RANK"])
        torch.cuda.set_device(local)
        data = TensorDataset(torch.randn(256, 8), torch.randint(0, 4, (256,)))
        sampler = DistributedSampler(data)
        model = DistributedDataParallel(nn.Linear(8, 4).cuda(), device_ids=[local])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for epoch in range(2):
            sampler.set_epoch(epoch)
            for x, y in DataLoader(data, batch_size=4, sampler=sampler):
                loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            mean /= dist.get_world_size()
            mean.item()
        objects = [None] * dist.get_world_size()
        dist.all_gather_object(objects, dist.get_rank())
        dist.barrier()
        print(dist.get_rank(), dist.get_world_size(), torch.cuda.current_device(), len(sampler), objects[0])
        dist.destroy_process_group()
        """
    code, report, _ = _run(tmp_path, text, gpus="8xH100-80GB", launch=Launch(2, 8, 13))
    output = capsys.readouterr()
    assert code == 0, output.err
    assert output.out == "13 16 5 16 13\n"
    assert {entry["what"] for entry in report["stand_ins"]} >= {".item()", "all_gather_object"}
    assert report["cards"][5]["peak_allocated"] > 0
    assert report["cards"][0]["peak_allocated"] == 0


def test_a_program_that_spawns_its_ranks_runs_one_of_them(tmp_path, capsys):
    text = """
        import torch, torch.distributed as dist, torch.multiprocessing as mp
        def main(rank, world_size):
            dist.init_process_group("nccl", init_method="tcp://127.0.0.1:29501", rank=rank, world_size=world_size)
            assert dist.get_backend() == "nccl" == dist.get_backend(dist.new_group([0, 1]))
            torch.cuda.set_device(rank)
            x = torch.ones(4, device="cuda")
            dist.all_reduce(x)
            print(rank, dist.get_world_size(), x.device)
            dist.destroy_process_group()
        if __name__ == "__main__":
            mp.spawn(main, args=(torch.cuda.device_count(),), nprocs=torch.cuda.device_count(), join=True)
        """
    code, report, _ = _run(tmp_path, text, gpus="4xH100-80GB")
    output = capsys.readouterr()
    assert code == 0, output.err
    assert output.out == "0 4 cuda:0\n"
    assert "process 0 of 4" in report["stand_ins"][0]["answer"]


def test_processes_that_the_program_does_not_join_have_ended(tmp_path, capsys):
    text = """
        import torch.multiprocessing as mp
        def main(rank, queue):
            queue.put(rank)
        if __name__ == "__main__":
            queue = mp.SimpleQueue()
            started = mp.start_processes(main, args=(queue,), nprocs=2, join=False)
            while not started.join():
                pass
            print(len(started.processes), queue.get())
        """
    code, _, _ = _run(tmp_path, text, gpus="2xT4")
    assert (code, capsys.readouterr().out) == (0, "0 0\n")


def test_torch_compile_runs_the_captured_graph(tmp_path, capsys):
    text = """
        import torch, warnings
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            model = torch.compile(torch.nn.Linear(4, 4).cuda())
            torch.compile(mode="max-autotune")(lambda x: x)
        notes = [each.filename for each in told if "runs eagerly" in str(each.message)]
        print(len(notes) <= 1 and all(file == __file__ for file in notes))
        for batch in (2, 3):
            model(torch.randn(batch, 4, device="cuda")).sum().backward()
        print(list(model.state_dict()))
        """
    code, _, _ = _run(tmp_path, text)
    output = capsys.readouterr()
    assert code == 0, output.err
    assert output.out.splitlines() == ["True", "['_orig_mod.weight', '_orig_mod.bias']"]


def test_the_command_reports_and_strict_refuses(tmp_path):
    program = _write(tmp_path, "import torch\nx = torch.randn(1000, device='cuda')\nprint(x.sum().item())\n")
    command = [sys.executable, "-m", "torchfake", "run", "--gpu", "A100-40GB"]
    done = subprocess.run([*command, program.name], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.returncode, done.stdout) == (0, "1.0\n"), done.stderr
    assert "NVIDIA A100-SXM4-40GB: peak 0.00 GiB" in done.stderr
    assert "train.py:3  .item() -> 1.0  x1" in done.stderr
    strict = subprocess.run(
        [*command, "--strict", "--quiet", program.name], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert strict.returncode == 1
    assert "DataDependentOutputException" in strict.stderr
    assert "torchfake:" not in strict.stderr


def test_ctrl_c_ends_with_the_report(tmp_path):
    program = _write(tmp_path, "import time, torch\nprint('ready', flush=True)\nwhile True:\n    time.sleep(0.1)\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "torchfake", "run", program.name],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell makes its background jobs ignore the signal, and their children inherit this.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "ended with 130" in err


def test_invalid_options_are_reported(tmp_path):
    for arguments, said in (
        (["--gpu", "H900", "x.py"], "the known cards are H200"),
        (["no_such_file.py"], "no such script"),
        ([], "expected a script"),
        (["--nproc-per-node", "2", "--rank", "2", "x.py"], "there are 2 ranks"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "torchfake", "run", *arguments],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            check=False,
        )
        assert done.returncode == 2
        assert said in done.stderr


def test_safetensors_of_fakes_have_holes_and_load_as_fakes(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    path = tmp_path / "model.safetensors"
    with fake_mode():
        with pytest.warns(UserWarning, match="zeros for their data"):
            safetensors.save_file(
                {"a": torch.empty(1 << 30, dtype=torch.bfloat16, device="cuda"), "b": torch.ones(3)}, path
            )
        loaded = safetensors.load_file(path)
        assert loaded["a"].shape == (1 << 30,)
        assert loaded["b"].dtype == torch.float32
    assert path.stat().st_size > 1 << 31
    assert path.stat().st_blocks * 512 < 1 << 20
