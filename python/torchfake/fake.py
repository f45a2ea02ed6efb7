"""Fake tensors: they claim a device, a dtype, sizes and strides, and hold no data.

This module has the names of `torchdistx.fake` with the same meaning, so code written for it runs with the import
renamed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar, cast, overload

import torch
from torch import Tensor, nn
from torch._prims_common import suggest_memory_format
from torch._subclasses.functional_tensor import FunctionalTensor
from torch._subclasses.meta_utils import is_sparse_any
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from torchfake import _C, _symbolic
from torchfake.converter import refuse_meta, store_unused_arguments
from torchfake.errors import DynamicShapesError, FakeArgumentError, MixedModesError, RealTensorError
from torchfake.helpers import note_where_made
from torchfake.modes import Mode, current_mode, mode_of, no_fake_mode
from torchfake.modes import fake_mode as _fake_mode

if TYPE_CHECKING:
    from torchfake.fake_tensor_mode import FakeTensorMode

_Module = TypeVar("_Module", bound=nn.Module)

__all__ = [
    "FakeTensor",
    "TensorMetadata",
    "detect_fake_mode",
    "extract_tensor_metadata",
    "fake_mode",
    "get_plain_tensors",
    "is_fake",
    "maybe_get_fake_mode",
    "meta_like",
    "no_fake_mode",
    "to_fake",
]


class fake_mode(_fake_mode):
    """`torchfake.fake_mode` with the default of torchdistx: devices that this machine lacks are faked on request only.

    >>> from torchfake.fake import fake_mode
    >>> fake_mode().fake_cuda, fake_mode(fake_cuda=True).fake_cuda
    (False, True)
    """

    def __init__(self, *, fake_cuda: bool = False, **options: Any) -> None:
        super().__init__(fake_cuda=fake_cuda, **options)


def find_fake(values: Iterable[object]) -> Tensor | None:
    """The first fake among `values`, without its wrappers; None if there is none."""
    for value in values:
        if isinstance(value, Tensor):
            inner = _unwrap(value)
            if inner is not None:
                return inner
    return None


def _unwrap(tensor: Tensor) -> Tensor | None:
    """The fake that `tensor` is or wraps; None for a real tensor."""
    if _C.is_plain_fake(tensor):
        return tensor
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return _unwrap(torch._C._functorch.get_unwrapped(tensor))
    if torch._is_functional_tensor(tensor):
        return _unwrap(torch._from_functional_tensor(tensor))
    if isinstance(tensor, FunctionalTensor):
        return _unwrap(tensor.elem)
    if is_traceable_wrapper_subclass(tensor):
        names, _ = tensor.__tensor_flatten__()
        return find_fake(getattr(tensor, name) for name in names)
    return None


def holds_fake(tensor: object) -> TypeGuard[Tensor]:
    """Whether `tensor` is a fake or wraps one, possibly among real tensors."""
    return isinstance(tensor, Tensor) and _unwrap(tensor) is not None


def _parts(tensor: Tensor) -> list[Tensor]:
    """The tensors inside a wrapper subclass, at any depth; otherwise the tensor itself."""
    return [part for part in get_plain_tensors(tensor, out=[]) if isinstance(part, Tensor)]


def is_fake(tensor: object) -> TypeGuard[Tensor]:
    """Whether `tensor` is fake, or a wrapper around fakes: of functorch, of functionalization, or a wrapper subclass.

    Raises:
        RealTensorError: A wrapper subclass holds fakes and real tensors.

    >>> import torch
    >>> from torchfake import fake_mode, is_fake
    >>> with fake_mode():
    ...     x = torch.ones(2)
    >>> is_fake(x), is_fake(torch.ones(2))
    (True, False)
    """
    if not isinstance(tensor, Tensor):
        return False
    answers = {_unwrap(part) is not None for part in _parts(tensor)}
    if len(answers) > 1:
        raise RealTensorError(
            f"is_fake: got mixed fake and real tensors! A {type(tensor).__name__} holds both; convert the real ones "
            "with the mode's from_tensor, or torchfake.to_fake."
        )
    return True in answers


def maybe_get_fake_mode(t: object) -> Mode | None:
    """The mode of the fakes that `t` is or wraps; None for anything else.

    Raises:
        MixedModesError: A wrapper subclass holds fakes of different modes, or fakes and real tensors.

    >>> import torch
    >>> from torchfake import fake_mode, maybe_get_fake_mode
    >>> with fake_mode() as mode:
    ...     x = torch.ones(2)
    >>> maybe_get_fake_mode(x) is mode, maybe_get_fake_mode(torch.ones(2))
    (True, None)
    """
    if not isinstance(t, Tensor):
        return None
    fakes = [_unwrap(part) for part in _parts(t)]
    modes = [None if fake is None else mode_of(fake) for fake in fakes]
    if any(mode is not modes[0] for mode in modes):
        raise MixedModesError(
            f"maybe_get_fake_mode: a {type(t).__name__} holds tensors that do not belong to one mode; convert them "
            "with the mode's from_tensor."
        )
    return modes[0] if modes else None


def detect_fake_mode(inputs: object = None) -> Mode | None:
    """The active mode, or else that of the first fake in `inputs` (a pytree), or None.

    Raises:
        MixedModesError: Two fakes in `inputs` belong to different modes, one of which is a `FakeTensorMode`.
    """
    found = current_mode()
    for leaf in torch.utils._pytree.tree_leaves(inputs):
        mode = maybe_get_fake_mode(leaf)
        if mode is None or mode is found:
            continue
        if found is None:
            found = mode
        elif found._state.exclusive or mode._state.exclusive:
            raise MixedModesError(
                "detect_fake_mode: the inputs belong to different modes: the fake mode of one doesn't match mode of "
                "another, or the active one"
            )
    return found


def get_plain_tensors(subclass: Tensor, *, out: list[Any]) -> list[Any]:
    """Appends to `out` the plain tensors inside a wrapper subclass, in order and at any depth.

    >>> import torch
    >>> from torchfake import get_plain_tensors
    >>> len(get_plain_tensors(torch.ones(2), out=[]))
    1
    """
    if not is_traceable_wrapper_subclass(subclass):
        out.append(subclass)
        return out
    names, _ = subclass.__tensor_flatten__()
    for name in names:
        get_plain_tensors(getattr(subclass, name), out=out)
    return out


def meta_like(fake: Tensor) -> Tensor:
    """A meta tensor with the sizes, strides and dtype of `fake`, detached from autograd.

    Raises:
        ValueError: `fake` is a real tensor.

    >>> import torch
    >>> from torchfake import fake_mode, meta_like
    >>> with fake_mode():
    ...     x = torch.ones(2, 3, device="cuda").t()
    >>> m = meta_like(x)
    >>> m.device, m.size(), m.stride()
    (device(type='meta'), torch.Size([3, 2]), (1, 3))
    """
    return _C.meta_like(fake)


@overload
def to_fake(
    tensor: Tensor, device: torch.device | str | None = None, *, dynamic: Sequence[int] | Mapping[int, str] = ()
) -> FakeTensor: ...
@overload
def to_fake(tensor: _Module, device: torch.device | str | None = None) -> _Module: ...
def to_fake(
    tensor: Tensor | nn.Module,
    device: torch.device | str | None = None,
    *,
    dynamic: Sequence[int] | Mapping[int, str] = (),
) -> Any:
    """A fake with the metadata of a real or meta tensor; a fake is returned unchanged. Of a module, a copy with fakes.

    Tensors that share a storage become fakes that share one. The fake claims `device`, by default the tensor's own, or
    the CPU for a meta tensor. A `Parameter` becomes a `Parameter`. The copy of a module has a fake for each parameter
    and buffer; the module itself stays real.

    Args:
        dynamic: The dimensions whose sizes are symbols of the active mode's `shape_env`, or a mapping from them to the
            names of the symbols, as for `FakeTensorMode.from_tensor`.

    Raises:
        UnsupportedFakeTensorException: `tensor` is nested or in a layout of MKL-DNN.
        DynamicShapesError: `dynamic` is given, and `tensor` is a fake, a wrapper or a module, or the active mode has
            no `shape_env`.
        ValueError: One name for two sizes.

    >>> import torch
    >>> from torchfake import ShapeEnv, fake_mode, to_fake
    >>> to_fake(torch.zeros(4, 2), device="cuda:1")
    tensor(..., device='cuda:1', size=(4, 2), fake=True)
    >>> to_fake(torch.nn.Linear(2, 3)).bias
    Parameter containing:
    tensor(..., size=(3,), fake=True, requires_grad=True)
    >>> real = torch.zeros(4, 2)
    >>> with fake_mode(shape_env=ShapeEnv()):
    ...     to_fake(real, dynamic={0: "batch"})
    tensor(..., size=(batch, 2), fake=True)
    """
    if dynamic:
        env = _env_for_dynamic(tensor)
    if isinstance(tensor, nn.Module):
        return _fake_module(tensor, device)
    names = _symbolic.names_of_dims(dynamic, tensor.dim()) if dynamic else {}
    fake = _C.to_fake(tensor, torch.device(device) if device is not None else None)
    if dynamic:
        _symbolic.name_sizes(fake, env, names, None, "to_fake")
    if isinstance(tensor, torch.nn.Parameter) and not isinstance(fake, torch.nn.Parameter):
        return torch.nn.Parameter(fake.detach(), requires_grad=tensor.requires_grad)
    return fake


def _env_for_dynamic(tensor: object) -> Any:
    """The environment of the active mode, for a tensor whose sizes can become its symbols."""
    if not isinstance(tensor, Tensor) or is_traceable_wrapper_subclass(tensor) or is_fake(tensor):
        raise DynamicShapesError(
            "to_fake: `dynamic` is for plain real tensors; the sizes of modules, wrappers and existing fakes cannot be "
            f"made symbolic; got {'a fake' if is_fake(tensor) else type(tensor).__name__}."
        )
    mode = current_mode()
    env = None if mode is None else mode.shape_env
    if env is None:
        raise DynamicShapesError(
            "to_fake: `dynamic` needs an active mode with a shape_env: with fake_mode(shape_env=torchfake.ShapeEnv())."
        )
    return env


def _fake_module(module: nn.Module, device: torch.device | str | None) -> nn.Module:
    fakes: dict[int, Any] = {}
    for tensor in chain(module.parameters(), module.buffers()):
        if id(tensor) not in fakes:
            fakes[id(tensor)] = to_fake(tensor, device)
    return copy.deepcopy(module, fakes)


def _value_to_keep(mode: Mode, constant: Tensor | None, real_tensor: Tensor | None) -> Tensor | None:
    state = mode._state
    if real_tensor is not None and not state.propagate_real_tensors:
        raise FakeArgumentError(
            "FakeTensor: real_tensor requires a mode with propagate_real_tensors=True; pass a constant instead"
        )
    if constant is not None and state.propagate_real_tensors:
        raise ValueError(
            "FakeTensor: constant requires a mode without propagate_real_tensors; pass a real_tensor instead"
        )
    value = real_tensor if constant is None else constant
    if value is None or not is_fake(value):
        return value
    known = _C.known_values_of(value, copy=True)
    if known is None:
        name = "real_tensor" if constant is None else "constant"
        raise ValueError(f"FakeTensor: {name} is a fake tensor whose values are unknown; pass a real one")
    return known


def write_value(value: Tensor, fake: Tensor) -> None:
    """Gives `fake` the values of a real tensor."""
    with no_fake_mode(), torch.no_grad():
        fake.copy_(_C.lift_constant(value.detach().clone(), _C.mode_of(fake)))
        _C.keep_values(fake, value.detach())


def _mode_and_elem(first: Mode | Tensor | None, elem: Tensor | None, mode: Mode | None) -> tuple[Mode, Tensor]:
    if isinstance(first, Mode):
        if mode is not None and mode is not first:
            raise TypeError("FakeTensor: got conflicting fake_mode values")
        mode = first
    elif first is not None:
        if not isinstance(first, Tensor):
            raise TypeError(f"FakeTensor: expected a mode or a tensor as first argument, got {type(first).__name__}")
        if elem is not None:
            raise TypeError("FakeTensor: expected either (fake_mode, elem, ...) or (elem, fake_mode=..., ...)")
        elem = first
    if mode is None:
        raise TypeError("FakeTensor: missing required argument: 'fake_mode'")
    if elem is None:
        raise TypeError("FakeTensor: missing required argument: 'elem'")
    return mode, elem


def _one_device(given: dict[str, torch.device | str | None], mode: Mode) -> torch.device:
    """The device that the arguments agree on, with an index."""
    devices = {name: normalize_device(device, mode) for name, device in given.items() if device is not None}
    if not devices:
        raise TypeError("FakeTensor: missing required argument: 'device' (or 'fake_device')")
    if len(set(devices.values())) > 1:
        said = ", ".join(f"{name}={device}" for name, device in devices.items())
        raise ValueError(f"FakeTensor: got conflicting device values: {said}")
    return next(iter(devices.values()))


def normalize_device(device: torch.device | str, mode: Mode) -> torch.device:
    """`device` with the index that a fake of the mode would claim."""
    claimed = torch.device(device)
    if claimed.index is not None or claimed.type in ("cpu", "meta"):
        return claimed
    with no_fake_mode():
        return _C.fake_device(_C.to_fake_of(torch.empty(0, device="meta"), mode._state, claimed))


def _meta_of(elem: Tensor) -> Tensor:
    """A plain meta tensor like `elem`, which may be a fake that claims meta."""
    return _C.to_meta(elem) if _C.is_plain_fake(elem) else elem.detach()


def set_fake_device(fake: Tensor, device: torch.device | str) -> None:
    """Makes `fake` claim another device, with a new storage and without known values."""
    claimed = normalize_device(device, mode_of(fake))
    if claimed != _C.fake_device(fake):
        with no_fake_mode(), torch.no_grad():
            fake.data = _C.to_fake_of(_C.meta_like(fake), _C.mode_of(fake), claimed)


class _FakeTensorMeta(type(Tensor)):  # type: ignore[misc]
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, Tensor) and _C.is_plain_fake(instance)


class FakeTensor(Tensor, metaclass=_FakeTensorMeta):
    """The type of fakes for `isinstance` and type checkers. At runtime a fake is a plain `torch.Tensor`.

    A wrapper around a fake is not a `FakeTensor`; `is_fake` recognises it.

    >>> import torch
    >>> from torchfake import FakeTensor, fake_mode
    >>> with fake_mode():
    ...     x = torch.ones(2)
    >>> isinstance(x, FakeTensor), isinstance(torch.ones(2), FakeTensor)
    (True, False)
    """

    fake_device: torch.device
    """The device that the fake claims."""
    fake_mode: Mode
    """The mode it belongs to."""
    constant: Tensor | None
    """A copy of its value if that is known, else None."""
    real_tensor: Tensor | None
    """Its real value in a mode with `propagate_real_tensors=True`, else None."""
    item_memo: complex | None
    """The result of `item()`, until a write or a new epoch of the mode."""
    nonzero_memo: complex | None
    """The number of nonzero elements, once `nonzero` has counted them."""
    unique_memo: complex | None
    """The number of distinct values, once `unique` has counted them."""
    unique_consecutive_memo: complex | None
    """The same of `unique_consecutive`."""
    get_nested_int: Callable[..., torch.SymInt]
    """Returns `nested_int_memo`, created if it does not exist, times `coeff`."""
    pytype: type[Tensor] | None
    """The constructor's argument; has no effect."""
    dispatch_keys: object
    """The constructor's argument; has no effect."""

    nested_int_memo: torch.SymInt | None
    """The nested integer that represents it as the offsets of a jagged tensor."""

    def __new__(
        cls,
        fake_mode_or_elem: Mode | Tensor | None = None,
        elem: Tensor | None = None,
        device: torch.device | str | None = None,
        constant: Tensor | None = None,
        real_tensor: Tensor | None = None,
        pytype: type[Tensor] | None = None,
        dispatch_keys: object = None,
        *,
        fake_mode: Mode | None = None,
        fake_device: torch.device | str | None = None,
        _fake_device: torch.device | str | None = None,
        requires_grad: bool | None = None,
    ) -> FakeTensor:
        """A fake of a mode that claims `device`, with the metadata of a meta tensor.

        Called as `FakeTensor(mode, elem, device)` or `FakeTensor(elem, fake_mode=mode, fake_device=device)`.

        Args:
            constant: Its value, of at most as many elements as the mode tracks.
            real_tensor: Its value, in a mode with `propagate_real_tensors=True`.
            pytype: Stored as an attribute, without effect.
            dispatch_keys: Likewise.
            fake_device: Another name of `device`.

        Raises:
            TypeError: The mode, `elem` or the device is missing.
            FakeArgumentError: `elem` is not on the meta device, or `device` is, and the mode has `allow_meta=False`.
            ValueError: The mode does not track the value, or two different devices are given.
        """
        mode, elem = _mode_and_elem(fake_mode_or_elem, elem, fake_mode)
        claimed = _one_device({"device": device, "fake_device": fake_device, "_fake_device": _fake_device}, mode)
        if elem.device.type != "meta":
            raise FakeArgumentError(
                f"FakeTensor: expected a meta tensor: elem.device.type must be 'meta', got {elem.device.type}"
            )
        refuse_meta(claimed, mode)
        value = _value_to_keep(mode, constant, real_tensor)
        with no_fake_mode():  # detached, so that the converter does not remember the fake for `elem`
            fake = cast("FakeTensor", _symbolic.fake_of_meta(_meta_of(elem), claimed, mode))
        if value is not None:
            write_value(value, fake)
        fake.requires_grad_(elem.requires_grad if requires_grad is None else requires_grad)
        note_where_made(fake)
        return store_unused_arguments(fake, pytype, dispatch_keys)

    @staticmethod
    def from_tensor(t: Tensor, fake_mode: FakeTensorMode) -> FakeTensor:
        """The fake of a real tensor in a mode, as `FakeTensorMode.from_tensor` returns it."""
        return fake_mode.from_tensor(t)


@dataclass(frozen=True, slots=True)
class TensorMetadata:
    """Everything about a tensor but its data, as a value that can be compared and hashed.

    >>> import torch
    >>> from torchfake import extract_tensor_metadata, fake_mode
    >>> real = extract_tensor_metadata(torch.ones(2, 3).t())
    >>> with fake_mode():
    ...     fake = extract_tensor_metadata(torch.ones(2, 3).t())
    >>> fake == real, fake.stride
    (True, (1, 3))
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    device: torch.device
    layout: torch.layout
    memory_format: torch.memory_format | None
    storage_offset: int
    storage_bytes: int | None
    requires_grad: bool
    is_quantized: bool
    is_conj: bool
    is_neg: bool
    is_inference: bool
    is_sparse: bool
    is_coalesced: bool | None
    dense_dim: int | None
    sparse_dim: int | None


def extract_tensor_metadata(t: Tensor) -> TensorMetadata:
    """The metadata of a tensor, real or fake."""
    sparse = is_sparse_any(t)
    memory_format = None if sparse else suggest_memory_format(t)
    if memory_format is not None and not t.is_contiguous(memory_format=memory_format):
        memory_format = None
    return TensorMetadata(
        dtype=t.dtype,
        shape=t.shape,
        stride=() if sparse else tuple(t.stride()),
        device=t.device,
        layout=t.layout,
        memory_format=memory_format,
        storage_offset=0 if sparse else int(t.storage_offset()),
        storage_bytes=None if sparse else t.untyped_storage().nbytes(),
        requires_grad=t.requires_grad,
        is_quantized=t.is_quantized,
        is_conj=t.is_conj(),
        is_neg=t.is_neg(),
        is_inference=t.is_inference(),
        is_sparse=t.is_sparse,
        is_coalesced=t.is_coalesced() if t.is_sparse else None,
        dense_dim=t.dense_dim() if sparse else None,
        sparse_dim=t.sparse_dim() if sparse else None,
    )
