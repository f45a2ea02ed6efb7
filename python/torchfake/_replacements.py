"""The table of everything that torchfake replaces in PyTorch's Python. See Note [Replacements] in _patches.py.

Its rows are in `_replaced_tensors.py`, `_replaced_modes.py` and `_replaced_devices.py`. docs/replacements.md is
generated from it by docs/generate_replacements.py.
"""

from __future__ import annotations

from torchfake import _C
from torchfake import _replaced_devices as devices
from torchfake import _replaced_modes as modes
from torchfake import _replaced_tensors as tensors
from torchfake._patches import Patch, Patches
from torchfake.errors import ModeActiveError

#: The rows by subject, as documented.
SECTIONS: dict[str, tuple[Patch, ...]] = {
    "Tensors": tensors.TENSORS,
    "Storages": tensors.STORAGES,
    "Tensors created without an operator": tensors.CREATION,
    "Modes": modes.MODES,
    "Tracers and compilers": modes.TRACING,
    "Autograd": modes.AUTOGRAD,
    "Devices": devices.DEVICES,
    "Modules, losses and optimizers": devices.MODULES,
    "Data loading": tensors.DATA,
    "Files, copies and processes": tensors.FILES,
    "Process groups": devices.DISTRIBUTED,
    "Other libraries": devices.LIBRARIES,
    "Symbolic numbers": modes.SYMBOLIC,
}

TABLE: tuple[Patch, ...] = tuple(patch for section in SECTIONS.values() for patch in section)

patches = Patches(TABLE)
_C._set_front(patches.install, patches.remove)


def uninstall() -> None:
    """Undoes everything that torchfake has changed in PyTorch: kernels, device guards, replaced functions.

    The changes are made when a mode is first entered or a fake first created, and again after this call. In between,
    operators on existing fakes are errors, and device guards remain as long as these are alive.

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
            f"uninstall: {_C.entered_modes()} modes are active on the threads of this process; leave them first."
        )
