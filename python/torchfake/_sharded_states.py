"""The optimizer state of FullyShardedDataParallel on one rank of many: what the other ranks hold of it.

Each rank holds the state of the parts of parameters in its shard. To build the whole state, ranks tell each other which
parameters these are, and the sizes of the parts. Both follow from how a flat parameter is sharded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchfake._distributed import _applies, _has_stand_ins, _record_stand_in

_ANSWER = "what follows from the shards of the other ranks"


def optimizer_keys(
    original: Callable[..., Any],
    optim_state_dict: dict[str, Any],
    group: Any,
    param_key_to_param: dict[Any, Any],
    param_to_fqns: dict[Any, list[str]],
    fqn_to_fsdp_param_info: dict[str, Any],
    merge_keys: bool = False,
) -> Any:
    """The keys of the state of all ranks, and those of this one. Every sharded parameter is on some rank."""
    state = optim_state_dict["state"]
    if not _applies() or not _has_stand_ins() or not state:
        return original(
            optim_state_dict, group, param_key_to_param, param_to_fqns, fqn_to_fsdp_param_info, merge_keys=merge_keys
        )
    from torch.distributed.fsdp._optim_utils import _OptimStateKey

    _record_stand_in("optim_state_dict", group, _ANSWER)
    every, own = [], {}
    for param_key, param in param_key_to_param.items():
        names = tuple(param_to_fqns[param])
        key = _OptimStateKey(unflat_param_names=names, is_fsdp_managed=names[0] in fqn_to_fsdp_param_info)
        if param_key in state:
            own[key] = param_key
        if param_key in state or (key.is_fsdp_managed and param.requires_grad):
            every.append(key)
    return (sorted(set(every)) if merge_keys else every), own


def convert_state_info(
    original: Callable[..., Any], fsdp_param_info: Any, gathered: list[dict[str, Any]], *args: Any, **kwargs: Any
) -> Any:
    """Replaces what each rank is assumed to have gathered: sizes and numbers of its state, by parameter."""
    fsdp_state, rank = fsdp_param_info.state, fsdp_param_info.state.rank
    held = [info for info in gathered[rank].values() if info.tensors]
    if not _applies() or not _has_stand_ins() or not held:
        return original(fsdp_param_info, gathered, *args, **kwargs)
    from torch.distributed.fsdp._optim_utils import StateInfo, _PosDimTensorInfo

    def info_of(shard: Any) -> StateInfo:
        if not shard.in_shard:
            return StateInfo({}, {}, {})
        sizes = torch.Size([shard.numel_in_shard])
        tensors = {name: _PosDimTensorInfo(sizes, info.dtype) for name, info in held[0].tensors.items()}
        return StateInfo(tensors, held[0].scalar_tensors, held[0].non_tensors)

    length = fsdp_param_info.handle.flat_param._sharded_size.numel()

    def infos_of(other: int) -> dict[str, StateInfo]:
        shards = fsdp_param_info.handle._get_shard_metadata(other * length, (other + 1) * length - 1)
        return {name: info_of(shards[fsdp_param_info.param_indices[name]]) for name in gathered[rank]}

    infos = [gathered[rank] if other == rank else infos_of(other) for other in range(fsdp_state.world_size)]
    return original(fsdp_param_info, infos, *args, **kwargs)
