"""The communication of `torch.nn.DataParallel`: broadcast, scatter, gather and reduction over several cards.

PyTorch implements these in C++ on top of NCCL, and only in builds with CUDA. Here they are composed of operators, with
the same views, sizes and allocations.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import _utils

Tensors = Sequence[torch.Tensor]

# Without types in PyTorch.
_flatten: Callable[..., torch.Tensor] = _utils._flatten_dense_tensors
_unflatten: Callable[..., Tensors] = _utils._unflatten_dense_tensors
_handle_complex: Callable[[torch.Tensor], torch.Tensor] = _utils._handle_complex
_take_tensors: Callable[..., Iterable[list[torch.Tensor]]] = _utils._take_tensors
_index_of: Callable[..., int] = _utils._get_device_index


def _cards(devices: Iterable[Any]) -> list[torch.device]:
    return [torch.device("cuda", _index_of(device)) for device in devices]


def _exactly_one(devices: Any, out: Any) -> None:
    if (devices is None) == (out is None):
        raise RuntimeError(
            f"Exactly one of 'devices' and 'out' must be specified, but got devices={devices} and out={out}"
        )


def _copies(tensor: torch.Tensor, devices: Sequence[torch.device]) -> list[torch.Tensor]:
    return [tensor if tensor.device == device else tensor.to(device, non_blocking=True) for device in devices]


def broadcast(
    original: Callable[..., Any], tensor: torch.Tensor, devices: Any = None, *, out: Any = None
) -> Sequence[torch.Tensor]:
    tensor = _handle_complex(tensor)
    _exactly_one(devices, out)
    if devices is not None:
        return _copies(tensor, _cards(devices))
    for copy in out:
        if copy.size() != tensor.size():
            raise RuntimeError(
                f"Expected all output tensors to have same shape as the source tensor {tuple(tensor.size())}, "
                f"but got one of shape {tuple(copy.size())}"
            )
    for copy in out:
        copy.copy_(tensor, non_blocking=True)
    return tuple(out)


def broadcast_coalesced(
    original: Callable[..., Any], tensors: Iterable[torch.Tensor], devices: Any, buffer_size: int = 10485760
) -> list[list[torch.Tensor]]:
    cards = _cards(devices)
    inputs = [_handle_complex(tensor) for tensor in tensors]
    if any(tensor.device != cards[0] for tensor in inputs):
        raise RuntimeError(f"all tensors must be on devices[0]: {cards[0].index}")
    outputs: list[list[torch.Tensor]] = [list(inputs)]
    order: list[torch.Tensor] = []
    copied: list[list[torch.Tensor]] = [[] for _ in cards[1:]]
    for chunk in _take_tensors(inputs, buffer_size):
        order += chunk
        # In a separate buffer, even for a single tensor.
        flat = chunk[0] if chunk[0].is_sparse else _flatten(chunk)
        for place, copy in zip(copied, _copies(flat, cards[1:]), strict=True):
            # With their own version counters: views of a buffer that is not used elsewhere.
            place += [copy] if copy.is_sparse else [part.data for part in _unflatten(copy, chunk)]
    places = {id(tensor): number for number, tensor in enumerate(order)}
    for place in copied:
        outputs.append([place[places[id(tensor)]] for tensor in inputs])
    return outputs


def scatter(
    original: Callable[..., Any],
    tensor: torch.Tensor,
    devices: Any = None,
    chunk_sizes: Any = None,
    dim: int = 0,
    streams: Any = None,
    *,
    out: Any = None,
) -> tuple[torch.Tensor, ...]:
    tensor = _handle_complex(tensor)
    if out is not None:
        if devices is not None or chunk_sizes is not None:
            raise RuntimeError("'devices' and 'chunk_sizes' must not be specified when 'out' is specified")
        parts = tensor.split_with_sizes([part.size(dim) for part in out], dim)
        for result, part in zip(out, parts, strict=True):
            result.copy_(part, non_blocking=True)
        return tuple(out)
    cards = _cards(devices)
    if chunk_sizes is None:
        chunks = tensor.chunk(len(cards), dim)
    else:
        if len(chunk_sizes) != len(cards):
            raise RuntimeError(
                f"Expected devices and chunk_sizes to be of same length, but got len(devices) = {len(cards)} and "
                f"len(chunk_sizes) = {len(chunk_sizes)}"
            )
        chunks = tensor.split_with_sizes(list(chunk_sizes), dim)
    results = []
    for number, (chunk, card) in enumerate(zip(chunks, cards, strict=False)):
        stream = streams[number] if streams is not None and number < len(streams) else None
        with contextlib.nullcontext() if stream is None else torch.cuda.stream(stream):
            results.append(chunk.to(card, non_blocking=True))
    return tuple(results)


def _gathered_size(tensors: Tensors, dim: int) -> list[int]:
    size = list(tensors[0].size())
    for number, tensor in enumerate(tensors):
        expected = list(size)
        expected[dim] = tensor.size(dim)
        if list(tensor.size()) != expected:
            raise RuntimeError(
                f"Input tensor at index {number} has invalid shape {list(tensor.size())}, but expected {expected}"
            )
    size[dim] = sum(tensor.size(dim) for tensor in tensors)
    return size


def gather(
    original: Callable[..., Any], tensors: Any, dim: int = 0, destination: Any = None, *, out: Any = None
) -> torch.Tensor:
    inputs = [_handle_complex(tensor) for tensor in tensors]
    size = _gathered_size(inputs, dim)
    if out is not None:
        if destination is not None:
            raise RuntimeError(
                f"'destination' must not be specified when 'out' is specified, but got destination={destination}"
            )
        return torch.cat([part.to(out.device, non_blocking=True) for part in inputs], dim, out=out)
    index = -1 if destination == -1 else _index_of(destination, allow_cpu=True, optional=True)
    device = torch.device("cpu") if index == -1 else torch.device("cuda", index)
    last = all(part.is_contiguous(memory_format=torch.channels_last) for part in inputs)
    form = torch.channels_last if last and len(size) == 4 else torch.contiguous_format
    gathered = torch.empty(size, dtype=inputs[0].dtype, device=device, memory_format=form)
    for place, part in zip(gathered.split_with_sizes([part.size(dim) for part in inputs], dim), inputs, strict=True):
        place.copy_(part, non_blocking=True)
    return gathered


def reduce(
    original: Callable[..., None], inputs: Tensors, output: Any = None, root: int = 0, *args: Any, **kwargs: Any
) -> None:
    """The sum of tensors on several cards, on one of them. Before PyTorch 1.5, the output could be passed as well."""
    if isinstance(output, Sequence):
        output = output[root]
    total = inputs[root] if output is None else output.copy_(inputs[root])
    for number, part in enumerate(inputs):
        if number != root:
            total.add_(part.to(total.device, non_blocking=True))


def parallel_apply(
    original: Callable[..., list[Any]], modules: Any, inputs: Any, kwargs_tup: Any = None, devices: Any = None
) -> list[Any]:
    """Calls one replica after another: the threads that PyTorch would start are not in the mode."""
    count = len(modules)
    if count != len(inputs):
        return original(modules, inputs, kwargs_tup, devices)  # raises the error
    given = [kwargs_tup or [{}] * count, devices or [None] * count]
    return [
        original([module], [arguments], [options], [device])[0]
        for module, arguments, options, device in zip(modules, inputs, *given, strict=True)
    ]


#: The replacements, by name in `torch.nn.parallel.comm`.
OF_CARDS: dict[str, Callable[..., Any]] = {
    "broadcast": broadcast,
    "broadcast_coalesced": broadcast_coalesced,
    "scatter": scatter,
    "gather": gather,
}
