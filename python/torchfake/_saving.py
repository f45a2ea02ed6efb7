"""Saving fakes in formats that store bytes: a normal header, with a sparse hole in place of the data.

Our loader only reads the header and returns fakes. Other readers get zeros; a marker in the header and a warning at
writing time indicate this.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from torchfake import _C
from torchfake._explain import warn_at_program
from torchfake._loading import _DTYPES
from torchfake.errors import DataAccessError
from torchfake.fake import find_fake

#: The key of the marker in the header's metadata.
MARKER = "torchfake"

_warned: set[str] = set()


def _warn(what: str) -> None:
    if what not in _warned:
        _warned.add(what)
        warn_at_program(
            f"{what}: the tensors are fake; the file has their sizes and dtypes, and zeros for their data (a sparse "
            "hole that takes no disk)."
        )


def save_script(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """`save` and `save_to_buffer` of a scripted module: TorchScript's writer reads the data of every tensor."""
    if find_fake((*self.parameters(), *self.buffers())) is not None:
        raise DataAccessError(
            "torch.jit.save: the module holds fake tensors, which have no data to write. Save its state_dict() with "
            "torch.save, which writes sizes and dtypes, or keep this call out of the fake run."
        )
    return original(self, *args, **kwargs)


def save_file(
    original: Callable[..., None],
    tensors: Mapping[str, Tensor],
    filename: str | os.PathLike[str],
    metadata: dict[str, str] | None = None,
) -> None:
    """`safetensors.torch.save_file` for a dictionary that contains fakes."""
    if not isinstance(tensors, dict) or not any(isinstance(t, Tensor) and _C.is_fake(t) for t in tensors.values()):
        original(tensors, filename, metadata)
        return
    import safetensors.torch

    safetensors.torch._evaluate_tensors_for_save(tensors)
    names = {dtype: name for name, dtype in _DTYPES.items()}
    header: dict[str, Any] = {"__metadata__": {**(metadata or {}), MARKER: "fake tensors: the data is a hole"}}
    offset = 0
    # Sorted like the library does: by alignment, then by name.
    for name, tensor in sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0])):
        if not tensor.is_contiguous():
            raise ValueError(
                f"You are trying to save a non contiguous tensor: `{name}` which is not allowed. Call `.contiguous()` "
                "on your tensor to pack it before saving."
            )
        nbytes = tensor.numel() * tensor.dtype.itemsize
        header[name] = {
            "dtype": names[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + nbytes],
        }
        offset += nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(filename, "wb") as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        file.truncate(8 + len(text) + offset)
    _warn("safetensors.torch.save_file")
