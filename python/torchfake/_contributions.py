"""Collectives of known values under stand-ins: every rank is assumed to contribute the same values as this one.

Ranks agree on small numbers: sizes to pad to, whether to stop, how many have overflowed. If each of these were the
stand-in 1, they would be inconsistent.
"""

from __future__ import annotations

import datetime
import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from torchfake import _C
from torchfake._distributed import _applies, _has_stand_ins, _record_stand_in
from torchfake.modes import current_mode, fake_mode

_ANSWER = "as if every rank had this rank's values"


def _contribution(tensor: Any, group: Any) -> Tensor | None:
    """The known values of a tensor that this rank contributes, on the CPU; None if there is nothing to assume."""
    if not isinstance(tensor, Tensor) or not _C.is_plain_fake(tensor) or not _applies() or not _has_stand_ins():
        return None
    if dist.get_world_size(group) <= 1 or not _C.is_known(tensor):  # not a member: -1
        return None
    return tensor.detach().clone().cpu() if tensor.device.type == "cpu" else tensor.detach().cpu()


def _reduce(mine: Tensor, op: Any, ranks: int) -> Tensor | None:
    """The reduction of `ranks` equal contributions; None for an operation with a factor."""
    if op == dist.ReduceOp.SUM:
        return mine * ranks
    if op == dist.ReduceOp.PRODUCT:
        return mine**ranks
    if op == dist.ReduceOp.BXOR:
        return mine if ranks % 2 else torch.zeros_like(mine)
    same = (dist.ReduceOp.AVG, dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.BAND, dist.ReduceOp.BOR)
    return mine if any(op == each for each in same) else None


def _write(tensor: Tensor, values: Tensor) -> None:
    with torch.no_grad():
        tensor.copy_(values)


@functools.cache
def _finished_work() -> type:
    """A completed collective whose future holds its outputs. The fake group's own future is empty."""

    class Finished(dist.Work):
        def __init__(self, outputs: list[Tensor]) -> None:
            super().__init__()
            self._outputs = outputs

        def wait(self, timeout: datetime.timedelta | None = None) -> bool:
            return True

        def is_completed(self) -> bool:
            return True

        def is_success(self) -> bool:
            return True

        def result(self) -> list[Tensor]:
            return self._outputs

        def get_future(self) -> Any:
            future: Any = torch.futures.Future()
            future.set_result(self._outputs)
            return future

    return Finished


def _completed(work: Any, outputs: list[Tensor]) -> Any:
    """The result of a collective: `work` unchanged if it is None or not from a fake group."""
    return work if work is None or not _applies() else _finished_work()(outputs)


def all_reduce(
    original: Callable[..., Any],
    tensor: Any,
    op: Any = None,
    group: Any = None,
    async_op: bool = False,
    **kwargs: Any,
) -> Any:
    op = dist.ReduceOp.SUM if op is None else op
    mine = _contribution(tensor, group)
    work = original(tensor, op, group, async_op, **kwargs)
    reduced = None if mine is None else _reduce(mine, op, dist.get_world_size(group))
    if reduced is not None:
        _record_stand_in("all_reduce", group, _ANSWER)
        _write(tensor, reduced)
    return _completed(work, [tensor])


def broadcast(
    original: Callable[..., Any],
    tensor: Any,
    src: int | None = None,
    group: Any = None,
    async_op: bool = False,
    **kwargs: Any,
) -> Any:
    mine = _contribution(tensor, group)
    work = original(tensor, src, group, async_op, **kwargs)
    if mine is not None and not _C.is_known(tensor):  # this rank is not the source
        _record_stand_in("broadcast", group, _ANSWER)
        _write(tensor, mine)
    return _completed(work, [tensor])


def all_gather(
    original: Callable[..., Any],
    tensor_list: Any,
    tensor: Any,
    group: Any = None,
    async_op: bool = False,
    **kwargs: Any,
) -> Any:
    mine = _contribution(tensor, group)
    work = original(tensor_list, tensor, group, async_op, **kwargs)
    if mine is not None:
        _record_stand_in("all_gather", group, _ANSWER)
        for gathered in tensor_list:
            if gathered.shape == mine.shape:
                _write(gathered, mine)
    return _completed(work, tensor_list)


def all_gather_into_tensor(
    original: Callable[..., Any],
    output_tensor: Any,
    input_tensor: Any,
    group: Any = None,
    async_op: bool = False,
    **kwargs: Any,
) -> Any:
    mine = _contribution(input_tensor, group)
    work = original(output_tensor, input_tensor, group, async_op, **kwargs)
    if mine is not None:
        _record_stand_in("all_gather_into_tensor", group, _ANSWER)
        ranks = dist.get_world_size(group)
        _write(output_tensor, mine.reshape(-1).repeat(ranks).reshape(output_tensor.shape))
    return _completed(work, [output_tensor])


def send(
    original: Callable[..., None], tensor: Any, dst: int | None = None, group: Any = None, *args: Any, **kwargs: Any
) -> None:
    mine = _contribution(tensor, group)
    original(tensor, dst, group, *args, **kwargs)
    mode = current_mode()
    if mine is not None and isinstance(mode, fake_mode):
        mode.sent[dst, mine.shape, mine.dtype] = mine


def recv(
    original: Callable[..., int], tensor: Any, src: int | None = None, group: Any = None, *args: Any, **kwargs: Any
) -> int:
    """A rank that got a tensor from this one and sends one of the same size, as in a vote, sends the same values."""
    sender = original(tensor, src, group, *args, **kwargs)
    mode = current_mode()
    if isinstance(mode, fake_mode) and isinstance(tensor, Tensor) and _applies():
        theirs = mode.sent.get((src, tensor.shape, tensor.dtype))
        if theirs is not None:
            _record_stand_in("recv", group, "the values that this rank has sent there")
            _write(tensor, theirs)
    return sender


# Its other names, some of them older, end in this one.
_INTO_TENSOR = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"

#: The replacements, by name in `torch.distributed.distributed_c10d`.
OF_KNOWN_VALUES: dict[str, Callable[..., Any]] = {
    "all_reduce": all_reduce,
    "broadcast": broadcast,
    "all_gather": all_gather,
    "send": send,
    "recv": recv,
    _INTO_TENSOR: all_gather_into_tensor,
}
