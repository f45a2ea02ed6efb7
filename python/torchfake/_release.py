"""Checks that the installed PyTorch is of the minor release that the engine was built for."""

from __future__ import annotations

import torch

__all__ = ["TorchReleaseError", "check_engine", "check_installed"]


class TorchReleaseError(ImportError):
    """torchfake was built for another minor release of PyTorch than the installed one."""

    def __init__(self, built_for: str, installed: str) -> None:
        super().__init__(
            f"this torchfake was built for PyTorch {built_for}, and PyTorch {installed} is installed. Install the "
            f"torchfake of that release (torchfake==*+torch{release_of(installed)}), PyTorch {built_for} (pip install "
            f"torch=={built_for}.*), or rebuild torchfake for the installed one: "
            "pip install --no-build-isolation --force-reinstall --no-deps .",
            name="torchfake",
        )
        self.built_for = built_for
        self.installed = installed


def release_of(version: str) -> str:
    """ "2.15" of "2.15.0+cu130"."""
    return ".".join(version.split(".")[:2])


def check_engine(built_for: str) -> None:
    """Raises TorchReleaseError if PyTorch is of another minor release than `built_for`."""
    if release_of(torch.__version__) != built_for:
        raise TorchReleaseError(built_for, torch.__version__)


def check_installed() -> None:
    """Checks the release that the build recorded, before the engine is loaded. The source folder has no record."""
    try:
        from torchfake._built_for import TORCH_RELEASE
    except ModuleNotFoundError:
        return
    check_engine(TORCH_RELEASE)
