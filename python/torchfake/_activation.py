"""What torchfake changes in PyTorch, installed by the engine with the first mode or fake, and taken back on demand."""

from __future__ import annotations

from torchfake import _C
from torchfake._patches import Patches
from torchfake._replacements import TABLE
from torchfake.errors import ModeActiveError

__all__ = ["uninstall"]

patches = Patches(TABLE)
_C._set_front(patches.install, patches.remove)


def uninstall() -> None:
    """Takes back everything that torchfake has changed in PyTorch: kernels, device guards, replaced names.

    Importing torchfake changes nothing; the first mode that is entered, or the first fake that is made, does, and so
    does the next one after this. Fakes that are alive cannot be used in between, by any thread.

    Raises:
        ModeActiveError: A thread is in a mode.

    >>> import torch, torchfake
    >>> with torchfake.fake_mode():
    ...     x = torch.ones(2, device="cuda")
    >>> torchfake.uninstall()
    >>> with torchfake.fake_mode():
    ...     x = torch.ones(2, device="cuda")
    """
    if not _C.deactivate():
        raise ModeActiveError(
            f"uninstall: {_C.entered_modes()} modes are entered on the threads of this process; leave them first."
        )
