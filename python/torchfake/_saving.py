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

#: The key of the marker in the header's metadata.
MARKER = "torchfake"

_warned: set[str] = set()


def warn_once(what: str, message: str) -> None:
    """Warns at the program's line, the first time that `what` saves fakes."""
    if what not in _warned:
        _warned.add(what)
        warn_at_program(f"{what}: {message}")


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
    warn_once(
        "safetensors.torch.save_file",
        "the tensors are fake; the file has their sizes and dtypes, and zeros for their data (a sparse hole that takes "
        "no disk).",
    )
