"""Conversion of real tensors to fakes: once each, with aliases, autograd state and Python class preserved."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor as PyTorchsFakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils.weak import WeakIdKeyDictionary

from torchfake import _C, _symbolic
from torchfake.errors import DynamicShapesError, FakeArgumentError, UnsupportedFakeTensorException
from torchfake.helpers import note_where_made
from torchfake.modes import Mode, no_fake_mode

if TYPE_CHECKING:
    from torchfake.fake import FakeTensor

__all__ = ["FakeTensorConverter"]

AnyTensor = TypeVar("AnyTensor", bound=Tensor)

_MKLDNN: torch.layout = torch._mkldnn  # type: ignore[attr-defined]


class FakeTensorConverter:
    """Converts real tensors to fakes. Each mode has one; see `FakeTensorMode.from_tensor`.

    Args:
        copy_data: Stored as an attribute; whether values are converted too is an option of the mode.
        export: Stored as an attribute.
    """

    def __init__(self, *, copy_data: bool = False, export: bool = False) -> None:
        self.copy_data = copy_data
        self.export = export
        # Only wrappers; the engine remembers the fakes of plain tensors.
        self._wrappers = WeakIdKeyDictionary()
        self._wrappers_lock = threading.Lock()
        self._converted: weakref.WeakValueDictionary[int, Tensor] = weakref.WeakValueDictionary()

    @property
    def tensor_memo(self) -> Mapping[int, Tensor]:
        """The live fakes of plain tensors that this converter has created, by a number for each tensor.

        For counting only: the engine remembers what was converted.
        """
        return MappingProxyType(dict(self._converted))

    @property
    def meta_converter(self) -> ConvertedTensors:
        """The memos under PyTorch's name for what holds them."""
        return ConvertedTensors(self)

    def from_real_tensor(
        self,
        fake_mode: Mode,
        t: Tensor,
        make_constant: bool = False,
        shape_env: object = None,
        *,
        source: object = None,
        symbolic_context: object = None,
        trace: bool = True,
    ) -> FakeTensor:
        """The fake of `t` in the mode, the same one every time.

        Args:
            make_constant: Whether its value is tracked.
            shape_env: The mode's environment, or any of PyTorch's: sizes become its symbols as given by
                `symbolic_context`; without a context, every size does, and equal sizes share a symbol. With PyTorch's
                environment and a `source`, the value of an int64 or float64 scalar of the CPU is a symbol too.

        Raises:
            TypeError: `t` is not a tensor.
            FakeArgumentError: `make_constant` was given with a Parameter, or `t` is a meta tensor and the mode has
                `allow_meta=False`.
            ValueError: `make_constant` was given with more elements than the mode tracks.
            DynamicShapesError: A `torchfake.ShapeEnv` that is not the mode's, a `symbolic_context` without one, or
                symbols for the sizes of a view or a wrapper.
            UnsupportedFakeTensorException: `t` cannot be fake.
        """
        if not isinstance(t, Tensor):
            raise TypeError(f"from_tensor: expected a tensor, got {type(t).__name__}")
        if shape_env is not None or symbolic_context is not None:
            return self._convert_symbolic(fake_mode, t, shape_env, source, symbolic_context, make_constant)
        if is_plain(t) and _C.is_plain_fake(t) and t._has_symbolic_sizes_strides:
            return self._convert_symbolic_fake(fake_mode, t)
        if isinstance(t, PyTorchsFakeTensor):
            raise UnsupportedFakeTensorException(
                "from_tensor: this is a FakeTensor of PyTorch's own; torchfake.from_pytorch_fake converts it."
            )
        if t.layout is _MKLDNN:
            raise UnsupportedFakeTensorException(
                "from_tensor: MKL-DNN tensors cannot be faked; strided, sparse and quantized ones can. Convert it with "
                "to_dense()."
            )
        state = fake_mode._state
        if make_constant and is_plain(t):
            found = _C.find_converted(t, state)
            return self._make_constant(t, state) if found is None else found
        if is_plain(t):
            if t.is_meta and not state.allow_meta:
                raise FakeArgumentError(
                    "from_tensor: a meta tensor was given to a mode with allow_meta=False; from_meta_and_device takes "
                    "the device to claim."
                )
            fake = _with_class_of(t, _C.from_tensor(t, state))
            note_where_made(fake)
            self._converted[id(t)] = fake
            return fake
        wrapper = self._find_wrapper(t)
        if wrapper is None:
            wrapper = self._remember_wrapper(t, self._convert_wrapper(fake_mode, t))
        return cast("FakeTensor", wrapper)  # as typed in PyTorch, although only the wrapped tensors are fakes

    def _convert_symbolic(
        self, mode: Mode, t: Tensor, env: object, source: object, context: object, make_constant: bool
    ) -> FakeTensor:
        if env is None or (env is not mode.shape_env and not _symbolic.is_pytorchs(env)):
            name = "symbolic_context" if env is None else "shape_env"
            raise DynamicShapesError(f"from_tensor: a {name} was given that needs a mode with this shape_env.")
        if context is None and is_traceable_wrapper_subclass(t) and not isinstance(env, _C.ShapeEnv):
            return self._convert_symbolic_wrapper(mode, t, env, source)
        plain = is_plain(t) and t.layout is torch.strided
        found = _C.find_converted(t, mode._state) if plain and not _C.is_plain_fake(t) else None
        if found is not None:
            return found
        fake = self.from_real_tensor(mode, t, make_constant)
        if plain and source is not None and not self.export and not make_constant:
            _symbolic.remember_item(fake, t, env, source, context)
        # Scalars have no sizes; wrappers hold several tensors.
        may_be_symbolic = plain and not _C.is_plain_fake(t) and not is_recorded_view(fake) and t.dim() > 0
        if may_be_symbolic:
            _symbolic.make_symbolic(fake, t, env, source, context)
        elif context is not None and any(_symbolic.asks_for_symbol(each) for each in context.dynamic_sizes):  # type: ignore[attr-defined]
            raise DynamicShapesError(SIZES_STAY_NUMBERS)
        return fake

    def _convert_symbolic_wrapper(self, mode: Mode, t: Tensor, env: object, source: object) -> FakeTensor:
        """The wrapper around fakes with symbolic sizes."""
        wrapper = self._find_wrapper(t)
        if wrapper is None:

            def convert(inner: Tensor) -> Tensor:
                return self.from_real_tensor(mode, inner, shape_env=env, source=source)

            wrapper = self._remember_wrapper(t, self._convert_subclass(mode, t, convert))
        return cast("FakeTensor", wrapper)

    def _convert_symbolic_fake(self, mode: Mode, t: Tensor) -> FakeTensor:
        """The fake in `mode` for a fake of another mode with the same shape environment."""
        found = _C.find_converted(t, mode._state)
        if found is not None:
            return found
        if _C.mode_of(t) is mode._state:
            return cast("FakeTensor", t)
        if mode.shape_env is None or _symbolic.env_of(_C.mode_of(t)) is not mode.shape_env:
            raise DynamicShapesError(
                f"from_tensor: the tensor has the sizes {tuple(t.shape)} of another ShapeEnv than the mode's; give "
                "both modes the same one."
            )
        hints = [_symbolic.number_of(size) for size in t.shape], [_symbolic.number_of(each) for each in t.stride()]
        entered = _C.EnteredFakeMode(mode._state)
        try:
            with torch.no_grad():
                fake = torch.empty_strided(*hints, dtype=t.dtype, device=_C.fake_device(t))
        finally:
            entered.leave()
        _C.set_symbolic_geometry(fake, t.shape, t.stride(), t.storage_offset())
        if t.requires_grad:
            fake = fake.requires_grad_() if t.is_leaf else with_history(fake.requires_grad_())
        fake = _with_class_of(t, fake)
        _C.remember_converted(t, fake)
        return cast("FakeTensor", fake)

    def _find_wrapper(self, t: Tensor) -> Tensor | None:
        memo = self._wrappers.get(t)  # type: ignore[no-untyped-call]
        return None if memo is None else memo()

    def _remember_wrapper(self, t: Tensor, fake: Tensor) -> Tensor:
        """Returns the fake of `t`: `fake`, unless another thread was first."""
        with self._wrappers_lock:
            first = self._find_wrapper(t)
            if first is None:
                self._wrappers[t] = weakref.ref(fake)
            return fake if first is None else first

    def _make_constant(self, t: Tensor, state: _C.ModeState) -> FakeTensor:
        if isinstance(t, torch.nn.Parameter):
            raise FakeArgumentError("from_real_tensor: a Parameter cannot be a constant; leave out make_constant")
        return _C.lift_constant(t, state)

    def _convert_wrapper(self, mode: Mode, t: Tensor) -> Tensor:
        if is_traceable_wrapper_subclass(t):
            return self._convert_subclass(mode, t)
        fake = rewrap(t, lambda inner: self.from_real_tensor(mode, inner))
        is_functional = isinstance(t, FunctionalTensor) or torch._is_functional_tensor(t)
        if is_functional and t.requires_grad and not fake.requires_grad:
            fake.requires_grad_()  # a leaf regardless of `t`, whose history is in the wrapped tensors
        return fake

    def _convert_subclass(self, mode: Mode, t: Tensor, convert: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        if convert is None:

            def convert(inner: Tensor) -> Tensor:
                return self.from_real_tensor(mode, inner)

        # Held until the wrapper refers to it.
        ragged = _symbolic.convert_ragged(mode, t, convert) if t.layout is torch.jagged else None
        # In this mode rather than the thread's: the wrapper's constructor may run operators on its fakes.
        entered = _C.EnteredFakeMode(mode._state)
        try:
            is_view = not t.is_inference() and t._is_view()
            fake = self._replay_view(t, convert) if is_view else self._rebuild(t, convert)
        finally:
            entered.leave()
        if t.is_leaf and t.grad is not None:
            fake.grad = convert(t.grad)
        del ragged
        return _with_class_of(t, fake)

    def _rebuild(self, t: Tensor, convert: Callable[[Tensor], Tensor]) -> Tensor:
        """A wrapper like `t` around the fakes of what is inside it, with the same role in autograd."""
        fake = rewrap(t, convert)
        if fake.is_leaf and fake.requires_grad != t.requires_grad:
            fake.requires_grad_(t.requires_grad)
        return fake if t.is_leaf or not fake.is_leaf else with_history(fake)

    def _replay_view(self, t: Tensor, convert: Callable[[Tensor], Tensor]) -> Tensor:
        """The view of the fake of `t._base` that corresponds to `t`."""
        assert t._base is not None
        base = convert(t._base)
        if t.requires_grad and not t.is_leaf and not base.requires_grad:
            # `t` is a view of a view that requires gradients itself.
            with torch.no_grad():
                base = base.view(base.shape).requires_grad_()
        with torch.set_grad_enabled(t.requires_grad and not t.is_leaf):
            view: Tensor = t._view_func_unsafe(base, None, lambda inner: None if inner is None else convert(inner))
        return view.requires_grad_() if t.requires_grad and t.is_leaf else view

    def from_meta_and_device(
        self,
        fake_mode: Mode,
        t: Tensor,
        device: torch.device | str,
        pytype: type[Tensor] | None = None,
        dispatch_keys: object = None,
    ) -> FakeTensor:
        """A fake that claims `device`, with the metadata of a meta tensor; remembered like those of real tensors.

        `pytype` and `dispatch_keys` are stored as attributes.

        Raises:
            FakeArgumentError: `t` is not on the meta device, or `device` is, and the mode has `allow_meta=False`.
        """
        if t.device.type != "meta":
            raise FakeArgumentError(
                f"from_meta_and_device: expected a meta tensor: tensor's device must be `meta`, got {t.device.type} "
                "instead"
            )
        refuse_meta(device, fake_mode)
        if t._has_symbolic_sizes_strides:
            with no_fake_mode():
                fake = cast("FakeTensor", _symbolic.fake_of_meta(t, device, fake_mode))
            _C.remember_converted(t, fake)
        else:
            fake = _C.from_meta_and_device(t, torch.device(device), fake_mode._state)
        return store_unused_arguments(fake, pytype, dispatch_keys)

    def set_tensor_memo(self, t: Tensor, v: Tensor) -> None:
        """Makes `v` the fake of `t`."""
        _C.remember_converted(t, v)

    def add_constant_storage_mapping(self, fake_tensor: Tensor) -> None:
        """Checks that the value of `fake_tensor` is known. The engine tracks the aliases of all such fakes.

        Raises:
            FakeArgumentError: The value is not known, or the tensor is real.
        """
        if not _C.is_plain_fake(fake_tensor) or _C.constant_of(fake_tensor) is None:
            raise FakeArgumentError("add_constant_storage_mapping: expected a fake whose value is known")

    def invalidate_constant_aliases(self, tensor: Tensor) -> None:
        """Forgets the values of all fakes on the storage of `tensor`, a fake or a converted real tensor."""
        _C.forget_values(tensor)


class ConvertedTensors:
    """What a converter remembers, in the form of PyTorch's `MetaConverter`. For counting only."""

    def __init__(self, converter: FakeTensorConverter) -> None:
        self._converter = converter

    @property
    def tensor_memo(self) -> Mapping[int, Tensor]:
        """The live fakes of plain tensors, by a number for each tensor."""
        return self._converter.tensor_memo

    @property
    def storage_memo(self) -> Mapping[int, torch.UntypedStorage]:
        """The storages of these fakes, by a number for each storage."""
        strided = (fake for fake in self.tensor_memo.values() if fake.layout is torch.strided)
        return MappingProxyType({fake.untyped_storage()._cdata: fake.untyped_storage() for fake in strided})


def refuse_meta(device: torch.device | str, mode: Mode) -> None:
    """Raises if `device` is meta and the mode does not allow it."""
    if torch.device(device).type == "meta" and not mode._state.allow_meta:
        raise FakeArgumentError(
            "FakeTensor: the meta device was requested in a mode with allow_meta=False; name the device to claim."
        )


def store_unused_arguments(fake: AnyTensor, pytype: type[Tensor] | None, dispatch_keys: object) -> AnyTensor:
    """Stores constructor arguments that have no effect, for code that reads them."""
    if pytype is not None:
        vars(fake)["pytype"] = pytype
    if dispatch_keys is not None:
        vars(fake)["dispatch_keys"] = dispatch_keys
    return fake


SIZES_STAY_NUMBERS = (
    "from_tensor: the sizes of wrappers, and of views that autograd has recorded, cannot be symbolic. Make those of "
    "the wrapped or viewed tensor symbolic, and repeat the operation in the mode."
)


def is_recorded_view(fake: Tensor) -> bool:
    """Whether autograd may recreate this view from its base, using the recorded sizes."""
    return fake._is_view() and not fake.is_leaf


def is_plain(t: Tensor) -> bool:
    """Whether `t` is not a wrapper of any kind, so that the engine can convert it."""
    return not (
        is_traceable_wrapper_subclass(t)
        or isinstance(t, FunctionalTensor)
        or torch._is_functional_tensor(t)
        or torch._C._functorch.is_functorch_wrapped_tensor(t)
    )


def rewrap(t: Tensor, convert: Callable[[Tensor], Tensor]) -> Tensor:
    """A wrapper like `t` around the results of `convert` on each tensor inside.

    Raises:
        UnsupportedFakeTensorException: `t` does not declare what it wraps.
    """
    functorch = torch._C._functorch
    if is_traceable_wrapper_subclass(t):
        names, context = t.__tensor_flatten__()
        parts = {name: getattr(t, name) for name in names}
        # A wrapper may name attributes that are not tensors: a DTensor names its mesh.
        inner = {name: convert(part) if isinstance(part, Tensor) else part for name, part in parts.items()}
        subclass: Tensor = type(t).__tensor_unflatten__(inner, context, t.size(), t.stride())
        return subclass
    if isinstance(t, FunctionalTensor):
        return FunctionalTensor(convert(t.elem), t.mode)  # type: ignore[arg-type]
    if torch._is_functional_tensor(t):
        functional: Tensor = torch._to_functional_tensor(convert(torch._from_functional_tensor(t)))
        return functional
    if functorch.is_batchedtensor(t):
        inside = convert(functorch.get_unwrapped(t))
        batched: Tensor = functorch._add_batch_dim(inside, functorch.maybe_get_bdim(t), functorch.maybe_get_level(t))
        return batched
    if functorch.is_gradtrackingtensor(t):
        inside = convert(functorch.get_unwrapped(t))
        tracked: Tensor = functorch._wrap_for_grad(inside, functorch.maybe_get_level(t))
        return tracked
    raise UnsupportedFakeTensorException(
        f"from_tensor: a {type(t).__name__} with keys {torch._C._dispatch_keys(t)} cannot be faked; only strided "
        "tensors and wrappers around them can."
    )


class _History(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, leaf: Tensor) -> Tensor:
        return leaf.data

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


def with_history(leaf: AnyTensor) -> AnyTensor:
    """A non-leaf that shares its storage with `leaf`, unlike a clone."""
    with torch.enable_grad():
        result: AnyTensor = _History.apply(leaf)  # type: ignore[no-untyped-call]
    return result


def _with_class_of(t: Tensor, fake: AnyTensor) -> AnyTensor:
    """Gives `fake` the Python class of `t`: a Parameter, a Buffer, or a subclass without `__torch_dispatch__`."""
    kind = type(t)
    if kind is not Tensor and type(fake) is Tensor:
        if kind.__torch_dispatch__ is not Tensor.__torch_dispatch__:
            raise UnsupportedFakeTensorException(
                f"from_tensor: {kind.__name__} has a __torch_dispatch__ and no __tensor_flatten__, so what it wraps "
                "cannot be converted."
            )
        fake.__class__ = kind  # type: ignore[assignment]
    # Wrappers are marked too: their class does not show it.
    if isinstance(t, torch.nn.Parameter):
        fake._is_param = True
    if isinstance(t, torch.nn.Buffer):
        vars(fake).update(_is_buffer=True, persistent=t.persistent)
    return fake
