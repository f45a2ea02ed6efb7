"""`FakeTensorMode` and its companions: the names of `torch._subclasses.fake_tensor`, with the same meaning."""

from __future__ import annotations

import contextlib
import copy
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, Self, TypeVar

import torch
from torch import Tensor
from torch._functorch import config as functorch_config
from torch.nested._internal import nested_tensor
from torch.nested._internal.nested_int import NestedIntNode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from torchfake import _C, _symbolic, cache
from torchfake.cache import CacheInfo
from torchfake.converter import SIZES_STAY_NUMBERS, FakeTensorConverter, is_recorded_view
from torchfake.errors import DynamicShapesError
from torchfake.fake import FakeTensor
from torchfake.modes import Mode, current_mode, no_fake_mode

__all__ = [
    "CONSTANT_NUMEL_LIMIT",
    "FakeCopyMode",
    "FakeTensorMode",
    "FakeTensorTLS",
    "fake_tensor_tls",
    "unset_fake_temporarily",
]

CONSTANT_NUMEL_LIMIT = 1
"""The largest number of elements for which a `FakeTensorMode` tracks values."""


def _dynamo_says(name: str, default: bool) -> bool:
    # Importing it takes seconds. If it has not been imported, it has its default.
    config = sys.modules.get("torch._dynamo.config")
    return default if config is None else bool(getattr(config, name))


Value = TypeVar("Value", bool, int)


class _StateFlag(Generic[Value]):
    """An attribute that is stored in the mode state under the same name."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, mode: FakeTensorMode | None, owner: type | None = None) -> Value:
        if mode is None:
            return self  # type: ignore[return-value]  # as a property does: for help() and mocks
        value: Value = getattr(mode._state, self._name)
        return value

    def __set__(self, mode: FakeTensorMode, value: Value) -> None:
        setattr(mode._state, self._name, value)


class _CacheCounter:
    """A counter of the shape cache, read from the class or from a mode."""

    def __init__(self, field: str) -> None:
        self._field = field

    def __get__(self, mode: object, owner: type | None = None) -> Any:
        return getattr(cache.cache_info(), self._field)


class _CacheEntries:
    """The entries of the shape cache, which can be counted and dropped."""

    def __len__(self) -> int:
        return cache.cache_info().size

    def clear(self) -> None:
        cache.clear_cache()


def _unused_nested_int() -> int:
    """An unused number for a nested integer: PyTorch assigns one to offsets that it has not seen."""
    with no_fake_mode():
        made = nested_tensor.get_tensor_symint(torch.empty(0))  # type: ignore[no-untyped-call]
    number: int = made.node.nested_int()
    return number


class FakeTensorMode(Mode, TorchDispatchMode):  # type: ignore[no-untyped-call]
    """PyTorch's `FakeTensorMode`: tensors created in its scope are fake, and real ones have to be converted first.

    `fake_mode` is meant for running programs, this mode for tracing: it accepts only its own fakes, refuses real
    tensors, and tracks only the values of one-element constants (`torch.tensor(3)`).

    Args:
        allow_fallback_kernels: Whether an operator without a meta kernel may run its CPU kernel on zeros if its inputs
            are small; otherwise `UnsupportedOperatorException` is raised.
        allow_non_fake_inputs: Whether real tensors among the arguments are converted; otherwise `RealTensorError` is
            raised.
        shape_env: A `torchfake.ShapeEnv`, or PyTorch's own: `from_tensor` can make sizes symbolic. Without one,
            sizes are integers.
        static_shapes: Whether `from_tensor` makes sizes integers unless specified otherwise. False makes every size
            symbolic; that is the default with PyTorch's `ShapeEnv`, as there.
        export: Stored as an attribute.
        allow_meta: Whether a fake may claim the meta device.
        propagate_real_tensors: Whether every fake carries real values: each operator also runs for real on the CPU,
            `item()` returns the real value, and a fake result whose metadata differs from the real one's raises
            `MetadataMismatchError`.
        cache_enabled: Whether the shape cache is used; by default not with `propagate_real_tensors`.

    Raises:
        DynamicShapesError: `static_shapes=False` without a `shape_env`.
        TypeError: The `shape_env` is not one.

    Options left out default to `torch._functorch.config` and `torch._dynamo.config`, as in PyTorch.

    >>> import torch
    >>> from torchfake import FakeTensorMode
    >>> mode = FakeTensorMode()
    >>> weight = mode.from_tensor(torch.ones(3, 2))
    >>> with mode:
    ...     x = torch.ones(4, 3, device="cuda")
    >>> x @ weight.to("cuda")
    FakeTensor(..., device='cuda:0', size=(4, 2))
    >>> x.fake_mode is mode, mode.from_tensor(weight) is weight
    (True, True)
    """

    _OWN = Mode._OWN | {"fake_tensor_converter"}

    def __init__(
        self,
        *,
        allow_fallback_kernels: bool = True,
        allow_non_fake_inputs: bool = False,
        shape_env: object = None,
        static_shapes: bool | None = None,
        export: bool = False,
        allow_meta: bool | None = None,
        propagate_real_tensors: bool | None = None,
        cache_enabled: bool | None = None,
    ) -> None:
        _symbolic.check_env(shape_env)
        if static_shapes is False and shape_env is None:
            raise DynamicShapesError(
                "FakeTensorMode: static_shapes=False makes sizes symbolic, which needs a shape_env."
            )
        if propagate_real_tensors is None:
            propagate_real_tensors = functorch_config.fake_tensor_propagate_real_tensors
        if cache_enabled is None:
            # Real values are computed on every call, so a hit would save little.
            cache_enabled = _dynamo_says("fake_tensor_cache_enabled", True) and not propagate_real_tensors
        state = _C.ModeState(known_values=CONSTANT_NUMEL_LIMIT, exclusive=True)
        state.known_from_factories = False
        state.allow_fallback_kernels = allow_fallback_kernels
        state.allow_meta = functorch_config.fake_tensor_allow_meta if allow_meta is None else allow_meta
        state.propagate_real_tensors = propagate_real_tensors
        state.cache_enabled = cache_enabled
        if isinstance(shape_env, _C.ShapeEnv):
            _C.set_shape_env(state, shape_env)
        elif shape_env is not None:
            _C.set_symbol_source(state, shape_env)
        self._set_up(state, shape_env is None if static_shapes is None else static_shapes, export)
        self._asked_for_symbols = static_shapes is False
        self.allow_non_fake_inputs = allow_non_fake_inputs

    @classmethod
    def _with_state(cls, state: _C.ModeState) -> Self:
        mode = cls.__new__(cls)
        mode._set_up(state, _symbolic.env_of(state) is None, False)
        return mode

    def _set_up(self, state: _C.ModeState, static_shapes: bool, export: bool) -> None:
        super().__init__(state)
        self.shape_env = _symbolic.env_of(state)
        self._asked_for_symbols = False
        self.static_shapes = static_shapes
        self.export = export
        self.fake_tensor_converter = FakeTensorConverter(copy_data=state.propagate_real_tensors, export=export)
        self.nt_tensor_id_initial_count = nested_tensor._tensor_id_counter
        self.nt_tensor_id_counter = self.nt_tensor_id_initial_count
        self._in_kernel = False
        self._allow_unsafe_data_ptr_access = functorch_config.fake_tensor_allow_unsafe_data_ptr_access
        self._cross_checks = _dynamo_says("fake_tensor_cache_crosscheck_enabled", False)

    def __enter__(self) -> Self:
        preferred = functorch_config.fake_tensor_prefer_device_type
        if self._state.prefer_device_type != preferred:
            self._state.prefer_device_type = preferred
        super().__enter__()
        self._checks().append(_C.EnteredCrossCheck() if self._cross_checks else None)
        return self

    def _before_leaving(self) -> None:
        check = self._checks().pop()
        if check is not None:
            check.leave()

    def _checks(self) -> list[_C.EnteredCrossCheck | None]:
        if not hasattr(self._entered, "checks"):
            self._entered.checks = []
        checks: list[_C.EnteredCrossCheck | None] = self._entered.checks
        return checks

    @property
    def makes_sizes_symbolic(self) -> bool:
        """Whether `from_tensor` makes sizes symbolic unless specified otherwise."""
        if self.shape_env is None or self.static_shapes:
            return False
        return self._asked_for_symbols or not isinstance(self.shape_env, _C.ShapeEnv)

    allow_fallback_kernels = _StateFlag[bool]()
    allow_meta = _StateFlag[bool]()
    cache_enabled = _StateFlag[bool]()
    propagate_real_tensors = _StateFlag[bool]()
    epoch = _StateFlag[int]()

    @property
    def in_kernel_invocation(self) -> bool:
        """Whether this thread is inside a kernel, where fakes are meta tensors; or the value that was set."""
        return self._in_kernel or _C.in_kernel()

    @in_kernel_invocation.setter
    def in_kernel_invocation(self, inside: bool) -> None:
        self._in_kernel = inside

    @property
    def avoid_device_init(self) -> bool:
        """Whether this machine lacks an accelerator whose context could be initialised."""
        with no_fake_mode():
            module = getattr(torch, torch._C._get_privateuse1_backend_name(), None)
            others = [getattr(torch, "hpu", None), torch.xpu, module]
            return not any(each is not None and each.is_available() for each in (torch.cuda, *others))

    #: As in PyTorch; no effect without a `shape_env`.
    allow_scalar_outputs = False

    @property
    def enter_stack(self) -> list[object]:
        """One entry for each time that this thread has entered the mode and not left it."""
        return list(self._stack())

    @property
    def stack(self) -> str:
        """Where the mode was created. It is not recorded: PyTorch prints it in errors about two modes."""
        return "the place where a mode was created is not recorded"

    @property
    def cache_crosscheck_enabled(self) -> bool:
        """Whether cached results are compared with the kernel's. The cache and this flag are shared by all modes.

        `torch._dynamo.config.fake_tensor_cache_crosscheck_enabled`, when the mode is created, turns it on while the
        mode is entered.
        """
        return self._cross_checks or _C.cache_cross_check()

    @cache_crosscheck_enabled.setter
    def cache_crosscheck_enabled(self, enabled: bool) -> None:
        self._cross_checks = self._cross_checks and enabled
        _C.set_cache_cross_check(enabled)

    @property
    def allow_non_fake_inputs(self) -> bool:
        """Whether real tensors among the arguments are converted."""
        return self._state.real_tensors == _C.RealTensors.CONVERTED

    @allow_non_fake_inputs.setter
    def allow_non_fake_inputs(self, allow: bool) -> None:
        self._state.real_tensors = _C.RealTensors.CONVERTED if allow else _C.RealTensors.REFUSED

    def from_tensor(
        self,
        tensor: Tensor,
        *,
        static_shapes: bool | None = None,
        source: object = None,
        symbolic_context: object = None,
        trace: bool = True,
        dynamic: Sequence[int] | Mapping[int, str] = (),
    ) -> FakeTensor:
        """The fake of `tensor` in this mode: the same one every time, as long as it is referenced.

        It has the tensor's metadata, shares a storage where the tensor does, and has the same role in autograd: leaf or
        not, view of a base, `grad`. A `Parameter` becomes a `Parameter`, a wrapper subclass a wrapper around fakes.

        Args:
            dynamic: The dimensions whose sizes are symbols of the mode's `shape_env`, or a mapping from them to the
                names of the symbols. Equal names are one symbol and need equal sizes. Other sizes are integers.
            symbolic_context: A `StatelessSymbolicContext`: how each size is treated, and its bounds.
            static_shapes: False makes every size a symbol, with one symbol for equal sizes; True makes none. Defaults
                to the mode's setting.
            source: Where the tensor comes from, stored as the source of its sizes.

        Raises:
            UnsupportedFakeTensorException: `tensor` is nested or in a layout of MKL-DNN.
            DynamicShapesError: Symbols are requested but the mode has no `shape_env`, or the tensor is a wrapper or a
                view that autograd has recorded, or was converted before.
            ValueError: One name for two sizes, a context together with `dynamic` or `static_shapes=True`, or a context
                for another number of dimensions.
        """
        if symbolic_context is not None and (dynamic or static_shapes):
            raise ValueError("from_tensor: symbolic_context already defines each size; omit dynamic and static_shapes")
        if symbolic_context is not None and self.shape_env is None:
            raise DynamicShapesError(
                "from_tensor: `symbolic_context` needs a mode with a shape_env: FakeTensorMode(shape_env=...)."
            )
        if static_shapes is False and self.shape_env is None:
            raise DynamicShapesError(
                "from_tensor: static_shapes=False needs a mode with a shape_env: FakeTensorMode(shape_env=...)."
            )
        symbolic = self.makes_sizes_symbolic if static_shapes is None else not static_shapes
        if not dynamic and (symbolic or symbolic_context is not None):
            return self.fake_tensor_converter.from_real_tensor(
                self, tensor, shape_env=self.shape_env, source=source, symbolic_context=symbolic_context, trace=trace
            )
        names = _symbolic.names_of_dims(dynamic, tensor.dim()) if dynamic else {}
        known = _C.find_converted(tensor, self._state) if dynamic and not self.is_our_fake(tensor) else None
        fake = self.fake_tensor_converter.from_real_tensor(self, tensor, source=source, trace=trace)
        return self._with_dynamic(tensor, fake, names, source, known is not None) if dynamic else fake

    def _with_dynamic(
        self, tensor: Tensor, fake: FakeTensor, names: dict[int, str], source: object, known: bool
    ) -> FakeTensor:
        if self.shape_env is None:
            raise DynamicShapesError(
                "from_tensor: `dynamic` needs a mode with a shape_env: FakeTensorMode(shape_env=...)."
            )
        if fake is tensor or known:
            raise DynamicShapesError(
                "from_tensor: the tensor has been converted before, and the sizes of its fake cannot change; pass "
                "`dynamic` in the first call."
            )
        if not _C.is_plain_fake(fake) or is_recorded_view(fake):
            raise DynamicShapesError(SIZES_STAY_NUMBERS)
        _symbolic.name_sizes(fake, self.shape_env, names, source, "from_tensor")
        return fake

    def is_our_fake(self, tensor: object) -> bool:
        """Whether `tensor` is a fake of this mode."""
        return isinstance(tensor, Tensor) and _C.is_plain_fake(tensor) and _C.mode_of(tensor) is self._state

    def may_turn_const(self, tensor: Tensor) -> bool:
        """Whether a real tensor is small enough for its value to be tracked."""
        return tensor.numel() <= CONSTANT_NUMEL_LIMIT and tensor.device.type != "meta" and not self.is_our_fake(tensor)

    def create_symbolic_nested_int(self, *, nt_tensor_id: int | None = None) -> torch.SymInt:
        """A nested integer, the ragged size of jagged tensors; a symbol if `shape_env` is PyTorch's.

        Args:
            nt_tensor_id: Its number: equal numbers are equal sizes. By default one that no other nested integer has.
        """
        if nt_tensor_id is None:
            nt_tensor_id = _unused_nested_int()
            self.nt_tensor_id_counter = nt_tensor_id + 1
        number = torch.SymInt(NestedIntNode(nt_tensor_id, 1))  # type: ignore[no-untyped-call]
        if self.shape_env is None or isinstance(self.shape_env, _C.ShapeEnv):
            return number
        return _symbolic.nested_symbol(self.shape_env, number)

    def reset_nt_tensor_id_counter(self) -> None:
        """Resets the counter of nested tensors' ids to its value when the mode was created."""
        self.nt_tensor_id_counter = self.nt_tensor_id_initial_count

    cache_hits = _CacheCounter("hits")
    cache_misses = _CacheCounter("misses")
    cache_bypasses = _CacheCounter("bypasses")
    cache = _CacheEntries()

    @classmethod
    def cache_info(cls) -> CacheInfo:
        """The counters and contents of the shape cache, which all modes share."""
        return cache.cache_info()

    @classmethod
    def cache_clear(cls) -> None:
        """Empties the shape cache and resets its counters."""
        cache.clear_cache()

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Always True, as in PyTorch: the mode runs below those of users."""
        return True


@contextlib.contextmanager
def unset_fake_temporarily() -> Iterator[Mode | None]:
    """Suspends the active mode, of either kind, and yields it.

    >>> import torch
    >>> from torchfake import FakeTensorMode, is_fake, unset_fake_temporarily
    >>> with FakeTensorMode() as mode, unset_fake_temporarily() as suspended:
    ...     is_fake(torch.ones(2)), suspended is mode
    (False, True)
    """
    mode = current_mode()
    with no_fake_mode():
        yield mode


class FakeCopyMode(TorchFunctionMode):
    """Makes `copy.deepcopy` of a real module or tensor return fakes of a mode.

    >>> import copy, torch
    >>> from torchfake import FakeCopyMode, FakeTensorMode
    >>> with FakeCopyMode(FakeTensorMode()):
    ...     copy.deepcopy(torch.nn.Linear(2, 3)).weight
    Parameter containing:
    FakeTensor(..., size=(3, 2), requires_grad=True)
    """

    def __init__(self, fake_mode: FakeTensorMode) -> None:
        super().__init__()
        self.fake_mode = fake_mode

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch._C.TensorBase.clone:
            return func(self.fake_mode.from_tensor(args[0]), **kwargs)
        if func is Tensor.__deepcopy__:
            tensor, memo = args
            if id(tensor) not in memo:
                memo[id(tensor)] = self._copy(tensor, memo)
            return memo[id(tensor)]
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)

    def _copy(self, tensor: Tensor, memo: dict[int, Any]) -> Tensor:
        if not self.fake_mode.is_our_fake(tensor):
            return self.fake_mode.from_tensor(tensor)
        return copy.deepcopy(tensor, memo) if tensor.is_leaf else tensor.clone()


class FakeTensorTLS(threading.local):
    """Settings of a thread that override those of its modes."""

    def __init__(self) -> None:
        self.non_strict_export_fake_tensor_tracker: weakref.WeakSet[Tensor] = weakref.WeakSet()

    @property
    def allow_non_fake_inputs_override(self) -> bool | None:
        """Whether real tensors are converted, in all modes of this thread; None leaves it to each mode."""
        what = _C.real_tensors_override()
        return None if what is None else what == _C.RealTensors.CONVERTED

    @allow_non_fake_inputs_override.setter
    def allow_non_fake_inputs_override(self, allow: bool | None) -> None:
        convert, refuse = _C.RealTensors.CONVERTED, _C.RealTensors.REFUSED
        _C.set_real_tensors_override(None if allow is None else convert if allow else refuse)


fake_tensor_tls = FakeTensorTLS()
"""The settings of the current thread, a `FakeTensorTLS`."""
