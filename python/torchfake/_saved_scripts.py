"""Saving scripted modules of fakes: the code as TorchScript writes it, without data, and the fakes in an extra file.

TorchScript's writer reads the data of every tensor. It gets empty tensors instead, and the fakes are added as
`torch.save` writes them: as sizes, dtypes, devices and known values. `torch.jit.load` in a mode puts them back;
elsewhere the module has empty tensors.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from torchfake._saving import warn_once
from torchfake.errors import DataAccessError
from torchfake.fake import find_fake
from torchfake.modes import no_fake_mode

#: The extra file with the fakes.
FILE = "torchfake.tensors"


def _modules(script: Any) -> dict[str, Any]:
    return dict(script.named_modules(remove_duplicate=False))


def _tensors(script: Any) -> Iterator[tuple[str, str, Tensor]]:
    """The parameters, buffers and other tensors of a scripted module: path of the submodule, name, and tensor."""
    for path, module in _modules(script).items():
        names = [name for name, _ in module.named_parameters(recurse=False, remove_duplicate=False)]
        names += [name for name, _ in module.named_buffers(recurse=False, remove_duplicate=False)]
        kind = getattr(module, "_concrete_type", None)  # a loaded module has none
        names += [] if kind is None else [name for name in kind.get_attributes() if name not in names]
        for name in names:
            tensor = module._c.getattr(name)
            if isinstance(tensor, Tensor):
                yield path, name, tensor


def _set(script: Any, tensors: Iterable[tuple[str, str, Tensor]]) -> None:
    modules = _modules(script)
    for path, name, tensor in tensors:
        modules[path]._c.setattr(name, tensor)


def _empty(tensor: Tensor) -> Tensor:
    empty = torch.empty(0, dtype=tensor.dtype)
    return torch.nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else empty


def save(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """`save` and `save_to_buffer` of a scripted module."""
    tensors = list(_tensors(self))
    if find_fake([tensor for _, _, tensor in tensors]) is None:
        return original(self, *args, **kwargs)
    written = io.BytesIO()
    torch.save(tensors, written)
    extra = {**(kwargs.pop("_extra_files", None) or {}), FILE: written.getvalue()}
    warn_once(
        "torch.jit.save",
        "the tensors are fake; the file has the code, and sizes and dtypes for torch.jit.load in a fake mode. "
        "Elsewhere the tensors are empty.",
    )
    with no_fake_mode():
        empty = [(path, name, _empty(tensor)) for path, name, tensor in tensors]
    try:
        _set(self, empty)
        return original(self, *args, _extra_files=extra, **kwargs)
    finally:
        _set(self, tensors)


def refuse(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """The formats for mobile devices, which have no place for fakes."""
    if find_fake((*self.parameters(), *self.buffers())) is not None:
        raise DataAccessError(
            "torch.jit: the module holds fake tensors, which have no data to write. Save it with torch.jit.save, or "
            "its state_dict() with torch.save: both write sizes and dtypes."
        )
    return original(self, *args, **kwargs)


def load(original: Callable[..., Any], f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
    """`torch.jit.load` of such a file; `map_location` is as in `torch.load`."""
    begin = f.tell() if hasattr(f, "tell") else None
    reader = torch._C.PyTorchFileReader(f if begin is not None else str(f))
    record = f"extra/{FILE}"
    saved = reader.get_record(record) if record in reader.get_all_records() else None
    if begin is not None:
        f.seek(begin)
    if saved is None:
        return original(f, map_location, *args, **kwargs)
    script = original(f, map_location, *args, **kwargs)
    _set(script, torch.load(io.BytesIO(saved), map_location=map_location))
    return script
