"""`make_fx`, `torch.export` and PyTorch's compiler, given fakes as samples."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.export
from torch import Tensor
from torch.fx.experimental import proxy_tensor

from torchfake.errors import DataAccessError
from torchfake.fake import is_fake

_real_export: Callable[..., Any] = torch.export.export
_real_save: Callable[..., Any] = torch.export.save
_is_fake_of_pytorch: Callable[[object], bool] = proxy_tensor.is_fake  # type: ignore[attr-defined]


def _is_fake(x: object) -> bool:
    """What tracers ask: a fake goes into `meta["val"]` as it is, and answers itself when asked for a value."""
    return _is_fake_of_pytorch(x) or is_fake(x)


def teach_compiler() -> None:
    """Makes the compiler take a fake as its own sample, as it takes PyTorch's fakes.

    It clones samples to the same place in a cache line, which takes an address. Called by what is about to compile, for
    importing the compiler takes seconds.
    """
    import torch._dynamo.utils
    import torch._dynamo.variables.builder

    clone: Callable[..., Tensor] = torch._dynamo.utils.clone_input
    if hasattr(clone, "_of_torchfake"):
        return

    @functools.wraps(clone)
    def clone_input(x: Tensor, **options: Any) -> Tensor:
        return x if is_fake(x) else clone(x, **options)

    clone_input._of_torchfake = True  # type: ignore[attr-defined]
    for name in ("torch._dynamo.utils", "torch._dynamo.variables.builder"):
        vars(sys.modules[name])["clone_input"] = clone_input


@functools.wraps(_real_export)
def _export(*args: Any, **kwargs: Any) -> Any:
    if kwargs.get("strict", False):
        teach_compiler()
    return _real_export(*args, **kwargs)


@functools.wraps(_real_save)
def _save(ep: torch.export.ExportedProgram, *args: Any, **kwargs: Any) -> Any:
    # PyTorch writes zeros for the weights of its own fakes, as many as real ones would take.
    for name, value in {**ep.state_dict, **ep.constants}.items():
        if is_fake(value):
            raise DataAccessError(
                f"torch.export.save: {name!r} is a fake tensor and holds no data to write. Load the real weights into "
                "the exported program first, or save what its graph says.",
                "torch.export.save",
            )
    return _real_save(ep, *args, **kwargs)


def install() -> None:
    """Puts the functions in place."""
    torch.export.export = _export
    torch.export.save = _save
    proxy_tensor.is_fake = _is_fake  # type: ignore[attr-defined,assignment]
