"""Process groups in a mode: one process represents one rank of many, whatever backend the program requests.

`init_process_group("nccl")` gives PyTorch's own fake group, with the rank and world size of the environment. Its
collectives have the right sizes and unknown values (Note [Values of other ranks] in collectives.h). Python objects are
the exception, since a program uses them at once: the receiver gets this rank's own contribution, which is recorded as a
stand-in of the mode.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from torchfake._peers import PeerEndedError, Peers
from torchfake._reading_code import reading_frame
from torchfake._virtual_cards import current_cards
from torchfake.errors import DataAccessError, DataDependentOutputException
from torchfake.fake import find_fake
from torchfake.modes import current_mode, fake_mode

_REPLACED = ("nccl", "gloo", "mpi", "ucc")


def _stands_for_many() -> bool:
    cards = current_cards()
    return cards is not None and len(cards) > 0


def _is_replaced(backend: Any) -> bool:
    """Whether a backend (None, a name, or `cpu:gloo,cuda:nccl`) would reach other processes."""
    names = [part.rpartition(":")[2] for part in str(backend or "nccl").lower().split(",")]
    return all(name in _REPLACED for name in names)


def _from_environment(given: int, variable: str) -> int:
    if given >= 0:
        return given
    if variable not in os.environ:
        raise ValueError(
            "Error initializing torch.distributed using env:// rendezvous: "
            f"environment variable {variable} expected, but not set. torchfake run --nproc-per-node sets it."
        )
    return int(os.environ[variable])


def init_process_group(
    original: Callable[..., None],
    backend: Any = None,
    init_method: str | None = None,
    timeout: Any = None,
    world_size: int = -1,
    rank: int = -1,
    store: Any = None,
    group_name: str = "",
    pg_options: Any = None,
    device_id: Any = None,
    **kwargs: Any,
) -> None:
    if not _stands_for_many() or not _is_replaced(backend):
        original(backend, init_method, timeout, world_size, rank, store, group_name, pg_options, device_id, **kwargs)
        return
    mode = current_mode()
    if isinstance(mode, fake_mode):
        mode.backend = "nccl" if backend is None else str(backend).lower()
    from torch.testing._internal.distributed.fake_pg import FakeStore

    original(
        "fake",
        rank=_from_environment(rank, "RANK"),
        world_size=_from_environment(world_size, "WORLD_SIZE"),
        store=FakeStore(),
        group_name=group_name,
    )


def new_group(
    original: Callable[..., Any],
    ranks: Any = None,
    timeout: Any = None,
    backend: Any = None,
    pg_options: Any = None,
    **kwargs: Any,
) -> Any:
    if _stands_for_many() and backend is not None and _is_replaced(backend) and _default_is_fake():
        return original(ranks, backend="fake", **{name: kwargs[name] for name in kwargs if name != "device_id"})
    return original(ranks, timeout, backend, pg_options, **kwargs)


def get_backend(original: Callable[..., Any], group: Any = None) -> Any:
    """The backend that the program asked for. PyTorch itself hears that the group is fake."""
    found = original(group)
    mode = current_mode()
    frame = reading_frame()
    if found != "fake" or not isinstance(mode, fake_mode) or mode.backend is None or frame is None:
        return found
    name = frame.f_globals.get("__name__", "")
    return found if name.partition(".")[0] == "torch" else dist.Backend(mode.backend)


def is_fake_group(group: Any = None) -> bool:
    """Whether PyTorch's fake group stands for this one."""
    return dist.is_initialized() and dist.Backend(dist.distributed_c10d._world.pg_map[_group(group)][0]) == "fake"


def _group(group: Any) -> Any:
    return group or dist.distributed_c10d._get_default_group()


def _default_is_fake() -> bool:
    return is_fake_group()


def _record_stand_in(name: str, group: Any, answer: str = "this rank's own object") -> None:
    """Records the stand-in; raises if the mode has none. In a group of one rank, nothing is unknown."""
    if dist.get_world_size(group) == 1:
        return
    mode = current_mode()
    if not isinstance(mode, fake_mode) or not mode._state.has_stand_ins:
        raise DataDependentOutputException(
            f"{name}: what other ranks send is unknown, since only one rank runs. "
            'fake_mode(unknown="stand-in") uses this rank\'s own contribution instead.',
            name,
        )
    mode.stand_ins.hear(name, answer)


def _applies() -> bool:
    return _stands_for_many() and _default_is_fake()


def all_gather_object(
    original: Callable[..., None], object_list: list[Any], obj: Any, group: Any = None, **kwargs: Any
) -> None:
    if not _applies():
        original(object_list, obj, group, **kwargs)
        return
    _record_stand_in("all_gather_object", group)
    object_list[:] = [obj] * len(object_list)


def gather_object(
    original: Callable[..., None],
    obj: Any,
    object_gather_list: list[Any] | None = None,
    dst: int | None = None,
    group: Any = None,
    **kwargs: Any,
) -> None:
    if not _applies():
        original(obj, object_gather_list, dst, group, **kwargs)
        return
    if object_gather_list is not None:
        _record_stand_in("gather_object", group)
        object_gather_list[:] = [obj] * len(object_gather_list)


def broadcast_object_list(
    original: Callable[..., None], object_list: list[Any], src: int | None = None, group: Any = None, **kwargs: Any
) -> None:
    if not _applies():
        original(object_list, src, group, **kwargs)
        return
    if dist.get_rank() != (0 if src is None else src):
        _record_stand_in("broadcast_object_list", group)


def scatter_object_list(
    original: Callable[..., None],
    scatter_object_output_list: list[Any],
    scatter_object_input_list: list[Any] | None = None,
    src: int | None = None,
    group: Any = None,
    **kwargs: Any,
) -> None:
    if not _applies():
        original(scatter_object_output_list, scatter_object_input_list, src, group, **kwargs)
        return
    if scatter_object_input_list:
        scatter_object_output_list[0] = scatter_object_input_list[dist.get_rank(group)]
    else:
        _record_stand_in("scatter_object_list", group)


def _peers() -> Peers | None:
    mode = current_mode()
    return mode.peers if isinstance(mode, fake_mode) and mode._state.has_stand_ins else None


def send_object_list(
    original: Callable[..., None], object_list: list[Any], dst: int | None = None, group: Any = None, **kwargs: Any
) -> None:
    if not _applies():
        original(object_list, dst, group, **kwargs)
        return
    peers = _peers()
    if peers is not None:
        peers.send(dist.get_rank(), _global_rank(dst, kwargs.get("group_dst"), group), object_list)


def recv_object_list(
    original: Callable[..., int], object_list: list[Any], src: int | None = None, group: Any = None, **kwargs: Any
) -> int:
    if not _applies():
        return original(object_list, src, group, **kwargs)
    group_source = kwargs.get("group_src")
    sender = "any" if src is None and group_source is None else _global_rank(src, group_source, group)
    peers = _peers()
    reason = "since only one rank runs"
    if peers is not None and isinstance(sender, int):
        try:
            object_list[:] = peers.receive(sender, dist.get_rank())
        except PeerEndedError as error:
            reason = str(error)
        else:
            _record_stand_in("recv_object_list", group, f"the object of rank {sender}, which runs as well")
            return sender
    raise DataDependentOutputException(
        f"recv_object_list: what rank {sender} sends is unknown: {reason}. Pipeline stages request the shapes of their "
        "neighbours in this way: `torchfake run` runs these too, or pass them "
        "(PipelineStage(..., input_args=..., output_args=...)).",
        "recv_object_list",
    )


def _global_rank(rank: int | None, group_rank: int | None, group: Any) -> int:
    return rank if rank is not None else dist.get_global_rank(_group(group), group_rank or 0)


def _has_stand_ins() -> bool:
    mode = current_mode()
    return isinstance(mode, fake_mode) and mode._state.has_stand_ins


def plan_alone(original: Callable[..., None], self: Any, group: Any, use_dist: bool, coordinator_rank: int) -> None:
    """Rank 0 plans a checkpoint from the tensors of all ranks; with stand-ins, the running rank plans its own."""
    alone = use_dist and _applies() and _has_stand_ins()
    if alone:
        _record_stand_in("checkpoint", group, "planned from this rank's tensors only")
    original(self, group, use_dist and not alone, coordinator_rank)


def validate_plan(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Assumes that the plan is complete, since the contributions of other ranks are unknown."""
    return [] if _applies() and _has_stand_ins() else original(*args, **kwargs)


def verify_shapes(original: Callable[..., None], process_group: Any, tensors: Any, *args: Any, **kwargs: Any) -> None:
    """Skips DDP's comparison of parameter shapes between ranks, which reads memory: all of them are this rank's."""
    if not (_default_is_fake() and find_fake(tensors) is not None):
        original(process_group, tensors, *args, **kwargs)


def _reduced(group: Any, bucket: Any) -> Any:
    """The result of an all-reduce of a gradient bucket. The fake group's future would hold nothing."""
    buffer = bucket.buffer()
    dist.all_reduce(buffer.div_(dist.get_world_size(group)), group=group)
    future: Any = torch.futures.Future()
    future.set_result(buffer)
    return future


_reduced.__annotations__.clear()  # DDP compares annotations with its own classes, and these are strings


class _Without:
    """A C++ object of PyTorch's with some methods replaced by constants."""

    def __init__(self, inner: Any, **answers: Any) -> None:
        self._inner = inner
        self._answers = answers

    def __getattr__(self, name: str) -> Any:
        if name in self._answers:
            return lambda *args, **kwargs: self._answers[name]
        return getattr(self._inner, name)


def pre_forward(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    if is_fake_group(self.process_group) and not isinstance(self.reducer, _Without):
        if not self._comm_hooks:
            self.register_comm_hook(self.process_group, _reduced)
        # Skipped: timings, which need a PyTorch with CUDA, and the bucket order, which ranks agree on through memory.
        self.logger = _Without(self.logger, set_runtime_stats_and_log=None)
        self.reducer = _Without(self.reducer, _rebuild_buckets=False)
    return original(self, *args, **kwargs)


def new_mesh(original: Callable[..., None], self: Any, *args: Any, **kwargs: Any) -> None:
    """Records the meshes of the program, from which `--rank all` determines which ranks are alike."""
    original(self, *args, **kwargs)
    mode = current_mode()
    names = getattr(self, "mesh_dim_names", None)
    if not isinstance(mode, fake_mode) or not names:
        return
    with torch.utils._python_dispatch._disable_current_modes():
        try:
            ranks = self.mesh.flatten().tolist()
        except DataAccessError:
            return  # the ranks of the mesh are unknown
    mesh = {"names": list(names), "shape": list(self.mesh.shape), "ranks": ranks}
    if mesh not in mode.meshes:
        mode.meshes.append(mesh)


class _Ended:
    """The result of `start_processes(join=False)`: its processes have ended."""

    def __init__(self) -> None:
        self.processes: list[Any] = []
        self.sentinels: list[int] = []

    def join(self, *args: Any, **kwargs: Any) -> bool:
        return True

    def pids(self) -> list[int]:
        return []


def start_processes(
    original: Callable[..., Any],
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    nprocs: int = 1,
    join: bool = True,
    *others: Any,
    **kwargs: Any,
) -> Any:
    """Runs only the selected rank of those that `torch.multiprocessing.spawn` would start, in this process."""
    mode = current_mode()
    if not isinstance(mode, fake_mode) or not mode._state.has_stand_ins:
        return original(fn, args, nprocs, join, *others, **kwargs)
    rank = min(int(os.environ.get("LOCAL_RANK", "0")), nprocs - 1)
    mode.stand_ins.hear("spawn", f"only process {rank} of {nprocs} runs, inside this one")
    fn(rank, *args)
    return None if join else _Ended()


#: The replacements, by name in `torch.distributed.distributed_c10d`.
IN_A_GROUP: dict[str, Callable[..., Any]] = {
    "init_process_group": init_process_group,
    "new_group": new_group,
    "get_backend": get_backend,
    "all_gather_object": all_gather_object,
    "gather_object": gather_object,
    "broadcast_object_list": broadcast_object_list,
    "scatter_object_list": scatter_object_list,
    "send_object_list": send_object_list,
    "recv_object_list": recv_object_list,
}
