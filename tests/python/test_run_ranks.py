"""`torchfake run` and processes: one rank of each role, launchers inside the program, collectives, progress."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from torchfake._all_ranks import Mesh, Role, find_mesh, format_roles
from torchfake._progress import progress
from torchfake.modes import fake_mode
from torchfake.run_program import Launch, Program, run_program


@pytest.fixture(autouse=True)
def no_group_is_left():
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


SHARDED = """
    import os, torch, torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "tp"))
    x = torch.zeros(1 << (20 + mesh.get_local_rank("tp")), device="cuda")
    dist.all_reduce(x, group=mesh.get_group("tp"))
    dist.all_reduce(x, group=mesh.get_group("tp"))
    gathered = torch.empty(2 * x.numel(), device="cuda")
    dist.all_gather_into_tensor(gathered, x, group=mesh.get_group("dp"))
    print("rank", dist.get_rank())
"""


def command(folder: Path, *arguments: str, text: str = SHARDED) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(textwrap.dedent(text))
    return subprocess.run(
        [sys.executable, "-m", "torchfake", "run", *arguments], capture_output=True, text=True, cwd=folder
    )


def run(folder: Path, text: str, launch: Launch | None = None, **options: Any) -> dict[str, Any]:
    (folder / "train.py").write_text(textwrap.dedent(text))
    mode = fake_mode(gpus="2xH200", unknown="stand-in", **options)
    program = Program(str(folder / "train.py"), False)
    run_program(program, mode, launch=launch, quiet=True, json_file=folder / "report.json")
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return report


def test_collectives_are_counted_by_group_with_their_bytes(tmp_path):
    report = run(tmp_path, SHARDED, Launch(2, 2, 0))
    rows = {(row["operator"], row["ranks"]): row for row in report["collectives"]}
    reduced = rows["all_reduce", 2]
    assert (reduced["count"], reduced["nbytes"]) == (2, 2 * 4 << 20)
    gathered = rows["all_gather_into_tensor", 2]
    assert (gathered["count"], gathered["nbytes"]) == (1, 8 << 20)
    assert reduced["group"] != gathered["group"]


SHARDED_CHECKPOINT = """
    import os, sys, torch, torch.distributed as dist, torch.distributed.checkpoint as checkpoint, torch.nn as nn
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    mesh = init_device_mesh("cuda", (4,))
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 8))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.to_empty(device="cuda")
    for layer in model:
        layer.reset_parameters()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(2, 8, device="cuda")).sum().backward()
    optimizer.step()
    weights, state = get_state_dict(model, optimizer)
    saved = {"model": weights, "optimizer": state}
    checkpoint.save(saved, checkpoint_id=FOLDER)
    checkpoint.load(saved, checkpoint_id=FOLDER)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
    print(sorted(os.listdir(FOLDER)), tuple(model[0].weight.to_local().shape))
"""


@pytest.mark.parametrize("rank", [0, 3])
def test_a_rank_initialises_its_shards_and_saves_and_loads_them(tmp_path, capsys, rank):
    text = SHARDED_CHECKPOINT.replace("FOLDER", repr(str(tmp_path / "saved")))
    report = run(tmp_path, text, Launch(2, 2, rank))
    output = capsys.readouterr()
    assert output.out == "['.metadata', '__0_0.distcp'] (4, 8)\n", output.err
    assert "checkpoint" in {entry["what"] for entry in report["stand_ins"]}
    assert "_wrap_tensor_autograd" not in {row["operator"] for row in report["collectives"]}


def test_all_ranks_run_once_for_each_role(tmp_path):
    ended = command(
        tmp_path, "--gpus", "2xH200", "--nnodes", "2", "--nproc-per-node", "2", "--rank", "all", "--json", "r.json",
        "train.py",
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "rank 0\n"
    report = json.loads((tmp_path / "r.json").read_text())
    assert [(role["role"], role["ranks"]) for role in report["roles"]] == [("tp=0", [0, 2]), ("tp=1", [1, 3])]
    first, second = (role["peak_allocated"] for role in report["roles"])
    assert second == 2 * first == 24 << 20
    assert "0, 2   tp=0" in ended.stderr
    assert "rank 1 of 4, role 2 of 2" in ended.stderr


def test_the_page_of_all_ranks_has_a_table_of_them_and_other_files_are_written_by_each(tmp_path):
    ended = command(
        tmp_path, "--gpus", "2xH200", "--nnodes", "2", "--nproc-per-node", "2", "--rank", "all", "--html", "r.html",
        "--snapshot", "s.pickle", "--trace", "t.json", "train.py",
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    page = (tmp_path / "r.html").read_text()
    assert "<td>0, 2<td>tp=0<td class=number>0<td class=number>12.00 MiB" in page
    assert "<td>1, 3<td>tp=1<td class=number>0<td class=number>24.00 MiB" in page
    assert page.count("<details") == 2
    assert "communication" in page
    files = {path.name for path in tmp_path.iterdir()} - {"__pycache__"}
    assert files == {
        "train.py", "r.html", "s-rank0.pickle", "s-rank1.pickle", "t-rank0.json", "t-rank1.json",
    }  # fmt: skip


def test_roles_leave_out_the_dimensions_along_which_data_is_split():
    mesh = Mesh(("pp", "dp_shard", "tp"), (2, 2, 2), tuple(range(8)))
    assert mesh.roles() == {
        (("pp", 0), ("tp", 0)): [0, 2],
        (("pp", 0), ("tp", 1)): [1, 3],
        (("pp", 1), ("tp", 0)): [4, 6],
        (("pp", 1), ("tp", 1)): [5, 7],
    }
    assert find_mesh({"meshes": [{"names": ["tp"], "shape": [2], "ranks": [0, 1]}]}, 4) is None


def test_ranks_beyond_the_limit_are_named():
    report = {"exit_code": 0, "cards": [], "stand_ins": [], "collectives": []}
    assert "ranks did not run (16-19)" in format_roles([Role("", [0], report)], list(range(16, 20)))


def test_processes_of_a_launcher_run_under_the_mode_each_as_its_rank(tmp_path):
    worker = """
        import os, torch, torch.distributed as dist
        dist.init_process_group("nccl")
        print("worker", dist.get_rank(), dist.get_world_size(), torch.cuda.get_device_name())
    """
    (tmp_path / "worker.py").write_text(textwrap.dedent(worker))
    launcher = """
        import os, subprocess, sys
        for rank in range(2):
            subprocess.run([sys.executable, "-u", "worker.py"], check=True,
                           env={**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"})
        subprocess.run([sys.executable, "-c", "import sys; assert 'torchfake' not in sys.modules"], check=True)
    """
    ended = command(tmp_path, "--gpus", "2xA100-40GB", "--json", "r.json", "train.py", text=launcher)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == [f"worker {rank} 2 NVIDIA A100-SXM4-40GB" for rank in range(2)]
    assert [report["rank"] for report in json.loads((tmp_path / "r.json").read_text())["processes"]] == [0, 1]
    assert "2 processes that it started" in ended.stderr
    chosen = command(tmp_path, "--gpus", "2xA100-40GB", "--rank", "1", "train.py", text=launcher)
    assert chosen.stdout == "worker 1 2 NVIDIA A100-SXM4-40GB\n"


def test_a_process_that_the_program_leaves_behind_is_waited_for(tmp_path):
    (tmp_path / "worker.py").write_text("import time; time.sleep(1); print('the end')")
    launcher = "import subprocess, sys; subprocess.Popen([sys.executable, 'worker.py'])"
    ended = command(tmp_path, "--gpu", "T4", "train.py", text=launcher)
    assert (ended.returncode, ended.stdout) == (0, "the end\n"), ended.stderr
    assert "worker.py ended with 0" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_arguments_of_a_module_are_its_own(tmp_path):
    (tmp_path / "tool.py").write_text("import sys; print(sys.argv[1:])")
    ended = command(tmp_path, "--gpu", "T4", "-m", "tool", "--nproc-per-node", "2", "--quiet")
    assert ended.stdout == "['--nproc-per-node', '2', '--quiet']\n"
    assert "tool ended with 0" in ended.stderr


@pytest.mark.parametrize("rank", ["one", "-1"])
def test_a_rank_is_a_number_or_all(tmp_path, rank):
    ended = command(tmp_path, "--rank", rank, "train.py")
    assert ended.returncode == 2
    assert "expected a number, or all" in ended.stderr


def test_what_only_a_peer_knows_is_a_typed_error(tmp_path, capsys):
    program = """
        import torch.distributed as dist
        dist.init_process_group("nccl")
        dist.send_object_list([1], dst=1)
        shapes = [None]
        dist.recv_object_list(shapes, src=1)
    """
    assert run(tmp_path, program, Launch(1, 2, 0))["exit_code"] == 1
    shown = capsys.readouterr().err
    assert "DataDependentOutputException" in shown
    assert "what rank 1 sends is unknown" in shown


PIPELINE = """
    import os, torch, torch.nn as nn, torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("nccl")
    torch.cuda.set_device(rank)
    stage = PipelineStage(nn.Linear(8 << rank, 16 << rank).cuda(), rank, world, torch.device("cuda", rank))
    schedule = ScheduleGPipe(stage, 2, loss_fn=nn.functional.mse_loss)
    if rank == 0:
        schedule.step(torch.randn(4, 8, device="cuda"))
    elif rank == world - 1:
        schedule.step(target=torch.randn(4, 8 << world, device="cuda"))
    else:
        schedule.step()
    print("done", rank, stage.submod.weight.grad is not None)
    dist.destroy_process_group()
"""


@pytest.mark.parametrize("rank", [0, 2])
def test_neighbours_of_a_pipeline_stage_run_as_well(tmp_path, rank):
    options = ("--gpus", "3xH200", "--nproc-per-node", "3", "--rank", str(rank), "--json", "report.json")
    ended = command(tmp_path, *options, "train.py", text=PIPELINE)
    assert ended.stdout == f"done {rank} True\n", ended.stderr
    answers = {entry["answer"] for entry in json.loads((tmp_path / "report.json").read_text())["stand_ins"]}
    assert f"the object of rank {abs(rank - 1)}, which runs as well" in answers


def test_a_peer_that_ends_without_sending_is_named(tmp_path):
    text = """
        import torch.distributed as dist
        dist.init_process_group("nccl")
        shapes = [None]
        if dist.get_rank() == 1:
            raise SystemExit("no shapes")
        dist.recv_object_list(shapes, src=1)
    """
    ended = command(tmp_path, "--gpus", "2xH200", "--nproc-per-node", "2", "train.py", text=text)
    assert ended.returncode == 1
    assert "what rank 1 sends is unknown: rank 1 ended with 1: no shapes." in ended.stderr


def test_a_group_of_one_rank_gathers_what_it_gives(tmp_path, capsys):
    program = """
        import torch.distributed as dist
        dist.init_process_group("nccl")
        objects = [None]
        dist.all_gather_object(objects, {"a": 1})
        print(objects)
    """
    report = run(tmp_path, program, Launch(1, 1, 0))
    assert capsys.readouterr().out == "[{'a': 1}]\n"
    assert report["stand_ins"] == []


def test_a_long_run_reports_its_progress(capsys):
    mode = fake_mode(gpus="H200")
    with progress(mode, silent_for=0.05), mode:
        time.sleep(0.3)
    assert "torchfake: 0 s, peak 0.00 GiB on cuda:0" in capsys.readouterr().err


def test_a_short_run_reports_no_progress(capsys):
    mode = fake_mode(gpus="H200")
    with progress(mode), mode:
        pass
    assert capsys.readouterr().err == ""


def test_a_module_is_sharded_onto_the_cards_without_a_mesh(tmp_path):
    program = """
        import torch, torch.distributed as dist
        from torch.distributed.fsdp import fully_shard
        dist.init_process_group("nccl")
        torch.cuda.set_device(1)
        model = torch.nn.Sequential(torch.nn.Embedding(100, 64), torch.nn.Linear(64, 64))
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
        model(torch.zeros(2, 3, dtype=torch.long, device="cuda")).sum().backward()
        print(model[0].weight.device, model[0].weight.to_local().shape, torch.accelerator.current_accelerator())
        """
    ended = command(tmp_path, "--gpus", "4xH200", "--nproc-per-node", "4", "--rank", "1", "train.py", text=program)
    assert ended.stdout == "cuda:1 torch.Size([25, 64]) cuda\n", ended.stderr


def test_hooks_of_ddp_read_the_future_of_a_collective(tmp_path, capsys):
    text = """
        import torch, torch.distributed as dist
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
        dist.init_process_group("nccl")
        for hook in (default_hooks.allreduce_hook, default_hooks.bf16_compress_hook):
            model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64).cuda())
            model.register_comm_hook(None, hook)
            model(torch.randn(2, 64, device="cuda")).sum().backward()
            print(model.module.weight.grad.shape == (64, 64))
        pieces = [torch.empty(2, device="cuda") for _ in range(4)]
        works = [
            dist.all_reduce(pieces[0], async_op=True),
            dist.broadcast(pieces[1], 0, async_op=True),
            dist.all_gather(pieces, torch.ones(2, device="cuda"), async_op=True),
            dist.all_gather_into_tensor(torch.empty(8, device="cuda"), pieces[0], async_op=True),
        ]
        for work in works:
            work.wait()
        print([len(work.get_future().wait()) for work in works], works[0].is_completed())
        """
    report = run(tmp_path, text, launch=Launch(1, 4, 0))
    assert capsys.readouterr().out.splitlines() == ["True", "True", "[1, 1, 4, 1] True"]
    assert {Path(entry["file"]).name for entry in report["stand_ins"]} == {"train.py"}


@pytest.mark.parametrize("use_orig_params", [True, False])
def test_the_optimizer_state_of_all_shards_is_put_together(tmp_path, capsys, use_orig_params):
    program = f"""
        import torch, torch.nn as nn, torch.distributed as dist
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType
        dist.init_process_group("nccl")
        torch.cuda.set_device(dist.get_rank())
        model = FSDP(nn.Sequential(nn.Linear(64, 256), nn.Linear(256, 64)).cuda(), use_orig_params={use_orig_params})
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.randn(4, 64, device="cuda")).sum().backward()
        optimizer.step()
        for kind in (StateDictType.FULL_STATE_DICT, StateDictType.SHARDED_STATE_DICT):
            with FSDP.state_dict_type(model, kind):
                state = FSDP.optim_state_dict(model, optimizer)
                print({{name: tuple(each["exp_avg"].size()) for name, each in sorted(state["state"].items())}})
                optimizer.load_state_dict(FSDP.optim_state_dict_to_load(model, optimizer, state))
        optimizer.step()
    """
    sizes = {"0.bias": (256,), "0.weight": (256, 64), "1.bias": (64,), "1.weight": (64, 256)}
    for rank in (0, 1):
        assert run(tmp_path, program, Launch(1, 2, rank))["exit_code"] == 0, capsys.readouterr().err
        assert capsys.readouterr().out == f"{sizes}\n" * 2
