"""`make_fx`, `torch.export` and PyTorch's compiler, given fakes as samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from torchfake import _C
from torchfake.errors import DataAccessError
from torchfake.fake import is_fake

if TYPE_CHECKING:
    from torch.export import ExportedProgram


def is_fake_to_tracers(original: Callable[[object], bool], x: object) -> bool:
    """What tracers ask: a fake goes into `meta["val"]` as it is, and answers itself when asked for a value."""
    return original(x) or is_fake(x)


def is_fake_of_pytorch(original: Callable[[Tensor], bool], x: Tensor) -> bool:
    """Whether a fake is one of PyTorch's own, whose tracers make such a fake again where they would detach another one.

    Since 2.14 PyTorch asks for the key that fakes of its own in C++ will have, and that ours have today.
    """
    return original(x) and not _C.is_plain_fake(x)


def clone_input(original: Callable[..., Tensor], x: Tensor, **options: Any) -> Tensor:
    """The compiler takes a fake as its own sample, as it takes PyTorch's fakes.

    Others it clones to the same place in a cache line, which takes an address.
    """
    return x if is_fake(x) else original(x, **options)


def save(original: Callable[..., Any], ep: ExportedProgram, *args: Any, **kwargs: Any) -> Any:
    # PyTorch writes zeros for the weights of its own fakes, as many as real ones would take.
    for name, value in {**ep.state_dict, **ep.constants}.items():
        if is_fake(value):
            raise DataAccessError(
                f"torch.export.save: {name!r} is a fake tensor and holds no data to write. Load the real weights into "
                "the exported program first, or save what its graph says.",
                "torch.export.save",
            )
    return original(ep, *args, **kwargs)
