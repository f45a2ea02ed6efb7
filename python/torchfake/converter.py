"""Conversion of real tensors, once each, with what makes them special."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor as PyTorchsFakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils.weak import WeakIdKeyDictionary

from torchfake import _C
from torchfake.errors import UnsupportedFakeTensorException
from torchfake.modes import Mode

if TYPE_CHECKING:
    from torchfake.fake import FakeTensor

__all__ = ["FakeTensorConverter"]

AnyTensor = TypeVar("AnyTensor", bound=Tensor)

_MKLDNN: torch.layout = torch._mkldnn  # type: ignore[attr-defined]


class FakeTensorConverter:
    """Makes fakes of real tensors. A mode has one; see `FakeTensorMode.from_tensor`.

    Args:
        copy_data: Whether values go along; it is the mode that says so, and this is kept for those who read it.
        export: Kept for those who read it.
    """

    def __init__(self, *, copy_data: bool = False, export: bool = False) -> None:
        self.copy_data = copy_data
        self.export = export
        # Wrappers alone: plain tensors are remembered by the engine.
        self._wrappers = WeakIdKeyDictionary()
        self._wrappers_lock = threading.Lock()

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
        """The fake that stands for `t` in the mode, the same one every time.

        Args:
            make_constant: Whether its value is kept, if it is of one element.

        Raises:
            TypeError: `t` is no tensor.
            ValueError: A Parameter was to be made a constant.
            UnsupportedFakeTensorException: `t` cannot be fake.
        """
        if not isinstance(t, Tensor):
            raise TypeError(f"from_tensor: expected a tensor, got {type(t).__name__}")
        if isinstance(t, PyTorchsFakeTensor):
            raise UnsupportedFakeTensorException(
                "from_tensor: this is a FakeTensor of PyTorch's own; torchfake.from_pytorch_fake converts it."
            )
        if t.layout is _MKLDNN:
            raise UnsupportedFakeTensorException(
                "from_tensor: MKL-DNN tensors cannot be faked; only strided ones can. to_dense() makes one."
            )
        state = fake_mode._state
        if make_constant and is_plain(t):
            found = _C.find_converted(t, state)
            return self._make_constant(t, state) if found is None else found
        if is_plain(t):
            return _with_class_of(t, _C.from_tensor(t, state))
        wrapper = self._find_wrapper(t)
        if wrapper is None:
            wrapper = self._remember_wrapper(t, self._convert_wrapper(fake_mode, t))
        return cast("FakeTensor", wrapper)  # as PyTorch types it, although only what is inside the wrapper is one

    def _find_wrapper(self, t: Tensor) -> Tensor | None:
        memo = self._wrappers.get(t)  # type: ignore[no-untyped-call]
        return None if memo is None else memo()

    def _remember_wrapper(self, t: Tensor, fake: Tensor) -> Tensor:
        """The fake that stands for `t`: `fake`, unless another thread was first."""
        with self._wrappers_lock:
            first = self._find_wrapper(t)
            if first is None:
                self._wrappers[t] = weakref.ref(fake)
            return fake if first is None else first

    def _make_constant(self, t: Tensor, state: _C.ModeState) -> FakeTensor:
        if isinstance(t, torch.nn.Parameter):
            raise ValueError("from_real_tensor: a Parameter is no constant; leave out make_constant")
        return _C.lift_constant(t, state)

    def _convert_wrapper(self, mode: Mode, t: Tensor) -> Tensor:
        if is_traceable_wrapper_subclass(t):
            return self._convert_subclass(mode, t)
        return rewrap(t, lambda inner: self.from_real_tensor(mode, inner))

    def _convert_subclass(self, mode: Mode, t: Tensor) -> Tensor:
        # Made of this mode's fakes, and so in this mode, whichever the thread is in.
        entered = _C.EnteredFakeMode(mode._state)
        try:
            is_view = not t.is_inference() and t._is_view()
            fake = self._replay_view(mode, t) if is_view else self._rebuild(mode, t)
        finally:
            entered.leave()
        if t.is_leaf and t.grad is not None:
            fake.grad = self.from_real_tensor(mode, t.grad)
        return _with_class_of(t, fake)

    def _rebuild(self, mode: Mode, t: Tensor) -> Tensor:
        """The wrapper around fakes of what `t` is around, with its place in autograd."""
        fake = rewrap(t, lambda inner: self.from_real_tensor(mode, inner))
        if fake.is_leaf and fake.requires_grad != t.requires_grad:
            fake.requires_grad_(t.requires_grad)
        return fake if t.is_leaf or not fake.is_leaf else with_history(fake)

    def _replay_view(self, mode: Mode, t: Tensor) -> Tensor:
        """The view of the base's fake that `t` is of its base."""
        assert t._base is not None
        base: Tensor = self.from_real_tensor(mode, t._base)
        if t.requires_grad and not t.is_leaf and not base.requires_grad:
            # A view of a view that was made to require gradients itself.
            with torch.no_grad():
                base = base.view(base.shape).requires_grad_()
        with torch.set_grad_enabled(t.requires_grad and not t.is_leaf):
            view: Tensor = t._view_func_unsafe(
                base, None, lambda inner: None if inner is None else self.from_real_tensor(mode, inner)
            )
        return view.requires_grad_() if t.requires_grad and t.is_leaf else view

    def from_meta_and_device(
        self,
        fake_mode: Mode,
        t: Tensor,
        device: torch.device | str,
        pytype: type[Tensor] | None = None,
        dispatch_keys: object = None,
    ) -> FakeTensor:
        """A fake on `device` with the metadata of a meta tensor, remembered in the same way.

        `pytype` and `dispatch_keys` are kept as attributes for those who read them.

        Raises:
            ValueError: `t` is not on the meta device.
            UnsupportedFakeTensorException: `device` is meta, and the mode has `allow_meta=False`.
        """
        refuse_meta(device, fake_mode)
        fake = _C.from_meta_and_device(t, torch.device(device), fake_mode._state)
        return keep_for_readers(fake, pytype, dispatch_keys)

    def set_tensor_memo(self, t: Tensor, v: Tensor) -> None:
        """Makes `v` the fake that stands for `t`."""
        _C.remember_converted(t, v)

    def invalidate_constant_aliases(self, tensor: Tensor) -> None:
        """Ends what is known through a constant: of every fake that stands for the storage of a real tensor.

        Of a fake, what is known of it and of all that share its storage.
        """
        _C.forget_values(tensor)


def refuse_meta(device: torch.device | str, mode: Mode) -> None:
    """Raises where the meta device is to be claimed in a mode that does not allow it."""
    if torch.device(device).type == "meta" and not mode._state.allow_meta:
        raise UnsupportedFakeTensorException(
            "FakeTensor: the meta device was asked for in a mode with allow_meta=False; name the device to claim."
        )


def keep_for_readers(fake: AnyTensor, pytype: type[Tensor] | None, dispatch_keys: object) -> AnyTensor:
    """Notes on a fake what it was made with and does not act on."""
    if pytype is not None:
        vars(fake)["pytype"] = pytype
    if dispatch_keys is not None:
        vars(fake)["dispatch_keys"] = dispatch_keys
    return fake


def is_plain(t: Tensor) -> bool:
    """Whether the engine can convert it: no wrapper of any kind."""
    return not (
        is_traceable_wrapper_subclass(t)
        or isinstance(t, FunctionalTensor)
        or torch._is_functional_tensor(t)
        or torch._C._functorch.is_functorch_wrapped_tensor(t)
    )


def rewrap(t: Tensor, convert: Callable[[Tensor], Tensor]) -> Tensor:
    """A wrapper as `t` is one, around what `convert` makes of each tensor inside.

    Raises:
        UnsupportedFakeTensorException: `t` is no wrapper that says what is inside.
    """
    functorch = torch._C._functorch
    if is_traceable_wrapper_subclass(t):
        names, context = t.__tensor_flatten__()
        parts = {name: getattr(t, name) for name in names}
        # Not all that a wrapper names are tensors: a DTensor has its mesh among them.
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
    """What a leaf holds, in a place behind it. Not a clone, which would be of other memory."""
    with torch.enable_grad():
        result: AnyTensor = _History.apply(leaf)  # type: ignore[no-untyped-call]
    return result


def _with_class_of(t: Tensor, fake: AnyTensor) -> AnyTensor:
    """Gives `fake` the Python class of `t`: a Parameter, a Buffer, or a subclass that does not dispatch by itself."""
    kind = type(t)
    if kind is not Tensor and type(fake) is Tensor:
        if kind.__torch_dispatch__ is not Tensor.__torch_dispatch__:
            raise UnsupportedFakeTensorException(
                f"from_tensor: {kind.__name__} has a __torch_dispatch__ and no __tensor_flatten__, so what it holds "
                "cannot be converted."
            )
        fake.__class__ = kind  # type: ignore[assignment]
    # For wrappers too, whose class does not say it.
    if isinstance(t, torch.nn.Parameter):
        fake._is_param = True
    if isinstance(t, torch.nn.Buffer):
        vars(fake).update(_is_buffer=True, persistent=t.persistent)
    return fake
