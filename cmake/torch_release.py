"""PyTorch's release in torchfake's metadata: a provider of dynamic metadata for scikit-build-core.

The engine is linked against PyTorch's C++ libraries and works with one minor release. A wheel therefore names that
release in its version (0.1.0+torch2.15) and depends on it. A source distribution can be built for any supported
release.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from typing import Any


class TorchRelease:
    """Sets `version` and adds to `dependencies`. Settings: `version`, and `torch`, the supported releases."""

    def __init__(self) -> None:
        self.state = "wheel"

    def build_state(self, state: str) -> None:
        """Called before the metadata is requested."""
        self.state = state

    def dynamic_metadata(self, settings: Mapping[str, Any], project: Mapping[str, Any]) -> dict[str, Any]:
        """The fields for the PyTorch of the build environment."""
        version: str = settings["version"]
        release = None if self.state == "sdist" else installed_release()
        if release is None:  # CMake refuses to build and explains what to install
            return {"version": version, "dependencies": [f"torch{settings['torch']}"]}
        return {"version": f"{version}+torch{release}", "dependencies": [f"torch=={release}.*"]}

    def dynamic_wheel(self, settings: Mapping[str, Any]) -> dict[str, bool]:
        """The fields that differ between wheels of one source distribution."""
        return {"dependencies": True}


def installed_release() -> str | None:
    """ "2.15" if PyTorch 2.15.0 is installed, None without PyTorch."""
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None
    return ".".join(version.split(".")[:2])
