"""The engines under comparison: torchfake, and PyTorch's own FakeTensorMode for reference.

Each is imported only in the process that runs it: torchfake replaces absent devices on import, which would help the
peer with what it cannot do by itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import torch
from torch.utils import _pytree as pytree

CACHE_MODES = ("off", "on", "cross-check")


class Session(Protocol):
    """One mode for one call: inputs are converted first, then the call runs inside."""

    def fake(self, tensor: torch.Tensor, device: str | None) -> torch.Tensor: ...
    def inside(self) -> contextlib.AbstractContextManager[Any]: ...


class Engine(Protocol):
    name: str
    #: Whether its fakes can have known values.
    knows_values: bool
    #: Whether gradients can be computed for fakes that claim a device this machine lacks.
    differentiates_absent_devices: bool
    #: The number of times a call is made: the second time, a cache may have the result.
    calls: int
    #: Exceptions that declare a dependence on values.
    declares: tuple[type[Exception], ...]
    #: Exceptions for a call that this engine does not support. They do not count as refusals of real PyTorch.
    gives_up: tuple[type[Exception], ...]

    def session(self, known: bool = False) -> Session: ...
    def is_fake(self, tensor: torch.Tensor) -> bool: ...


class Torchfake:
    """torchfake, with its cache disabled, enabled, or checked on every hit."""

    name = "torchfake"
    knows_values = True
    differentiates_absent_devices = True

    def __init__(self, cache: str = "on") -> None:
        import torchfake

        if cache not in CACHE_MODES:
            raise ValueError(f"cache must be one of {', '.join(CACHE_MODES)}, got {cache}")
        self.cache = cache
        self.calls = 1 if cache == "off" else 2
        self.declares = (torchfake.DataDependentOutputException, torchfake.DynamicOutputShapeException)
        self.gives_up = (
            torchfake.DataAccessError,
            torchfake.MetadataMismatchError,
            torchfake.RealTensorError,
            torchfake.UnsupportedFakeTensorException,
            torchfake.UnsupportedOperatorException,
        )
        self.is_fake = torchfake.is_fake

    def session(self, known: bool = False) -> Session:
        return _TorchfakeSession(self.cache, known)


class _TorchfakeSession:
    def __init__(self, cache: str, known: bool) -> None:
        import torchfake

        self.known = known
        self.cache = cache
        self.storages: dict[tuple[Any, ...], torch.Tensor] = {}
        # Fakes draw other random numbers than the real operator: random values are unknown to both.
        limits = {"known_values_limit": 1 << 20} if known else {}
        self.mode = torchfake.fake_mode(drawn_values_limit=0, **limits)

    def fake(self, tensor: torch.Tensor, device: str | None) -> torch.Tensor:
        import torchfake

        if not self.known or tensor.layout != torch.strided or tensor.is_nested:
            return torchfake.to_fake(tensor, device=device)
        with self.mode:
            fake = self._storage_of(tensor, device)
            fake = fake.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
            fake = torch._conj(fake) if tensor.is_conj() else fake
            fake = torch._neg_view(fake) if tensor.is_neg() else fake
            return fake.detach().requires_grad_(tensor.requires_grad)

    def _storage_of(self, tensor: torch.Tensor, device: str | None) -> torch.Tensor:
        """The whole storage as one known fake, so that tensors keep sharing it."""
        import torchfake

        key = (tensor.untyped_storage()._cdata, tensor.dtype, device)
        if key not in self.storages:
            with torchfake.no_fake_mode():
                size = tensor.untyped_storage().nbytes() // tensor.element_size()
                whole = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
                whole.set_(tensor.untyped_storage(), 0, (size,))
            fake = torchfake._C.lift(whole)
            self.storages[key] = fake.to(device) if device is not None else fake
        return self.storages[key]

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        import torchfake

        caches = {
            "off": torchfake.disable_fake_tensor_cache,
            "on": contextlib.nullcontext,
            "cross-check": torchfake.cross_check_cache,
        }
        with self.mode, caches[self.cache]():
            yield


class Peer:
    """PyTorch's own FakeTensorMode."""

    name = "FakeTensorMode"
    knows_values = False
    differentiates_absent_devices = False
    calls = 1

    def __init__(self) -> None:
        from torch._subclasses import fake_tensor

        self.declares = (fake_tensor.DataDependentOutputException, fake_tensor.DynamicOutputShapeException)
        self.gives_up = (
            fake_tensor.MetadataMismatchError,
            fake_tensor.UnsupportedFakeTensorException,
            fake_tensor.UnsupportedOperatorException,
        )

    def is_fake(self, tensor: torch.Tensor) -> bool:
        from torch._subclasses.fake_tensor import is_fake

        return is_fake(tensor)

    def session(self, known: bool = False) -> Session:
        if known:
            raise ValueError("FakeTensorMode keeps no values")
        return _PeerSession()


class _PeerSession:
    def __init__(self) -> None:
        from torch._subclasses import FakeTensorMode

        self.mode = FakeTensorMode()

    def fake(self, tensor: torch.Tensor, device: str | None) -> torch.Tensor:
        if device is None or torch.device(device) == tensor.device:
            return self.mode.from_tensor(tensor)
        # Without requires_grad: autograd would search for the device's threads and abort the process.
        with self.mode:
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)

    def inside(self) -> contextlib.AbstractContextManager[Any]:
        return self.mode


def make_engine(name: str, cache: str = "on") -> Engine:
    return Peer() if name == Peer.name else Torchfake(cache)


def fake_tree(session: Session, tree: Any, devices: Iterable[str] | None = None) -> Any:
    """The tree with its tensors fake. `devices` gives, for each tensor, the device to claim instead of its own.

    A meta tensor among them tests mixed devices, and stays on meta.
    """
    claims = iter(devices) if devices is not None else None

    def convert(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.is_meta:
            return value
        return session.fake(value, next(claims) if claims is not None else None)

    return pytree.tree_map(convert, tree)
