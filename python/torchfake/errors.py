"""The exceptions of torchfake. All of them are `RuntimeError`s."""

from __future__ import annotations

import re
import sys
import traceback
from typing import Any

import torch
from torch._subclasses import fake_tensor

from torchfake import _C

__all__ = [
    "DataAccessError",
    "DataDependentOutputException",
    "DeviceMismatchError",
    "DeviceNotFakedError",
    "DynamicOutputShapeException",
    "DynamicShapesError",
    "FakeArgumentError",
    "FakeTensorDeviceMismatchError",
    "FakeTensorError",
    "MetadataMismatchError",
    "MixedModesError",
    "ModeActiveError",
    "RealTensorError",
    "StandInLimitError",
    "UnbackedSymbolError",
    "UnknownValuesError",
    "UnsupportedFakeTensorException",
    "UnsupportedMutationAliasingException",
    "UnsupportedOperatorException",
]


def _pytorchs_class(name: str) -> Any:
    """PyTorch's class of this name, so that existing `except` clauses catch torchfake's errors."""
    return getattr(fake_tensor, name, RuntimeError)


class FakeTensorError(RuntimeError):
    """Base class of torchfake's errors. `op` is the operator's name (`aten::nonzero.default`), or empty.

    Instead of the message, the operator itself may be passed, as in the constructors of PyTorch's exceptions:
    `DynamicOutputShapeException(torch.ops.aten.nonzero.default)`. Their keywords `func` and `reason` are accepted too.
    """

    def __init__(
        self,
        message: str | torch._ops.OpOverload | None = None,
        op: str = "",
        *,
        func: torch._ops.OpOverload | None = None,
        reason: str | None = None,
    ) -> None:
        given = [each for each in (message, func, reason) if each is not None]
        if len(given) != 1:
            raise TypeError(f"{type(self).__name__}: expected one of message, func and reason, got {len(given)}")
        (message,) = given
        RuntimeError.__init__(self, message)  # PyTorch's classes take other arguments
        if isinstance(message, torch._ops.OpOverload) and not op:
            op = message.name()  # type: ignore[no-untyped-call]
        self.op = op

    def __reduce__(self) -> tuple[type[FakeTensorError], tuple[str, str]]:
        return type(self), (str(self), self.op)

    # Not those of PyTorch's classes, which are dataclasses.
    __eq__ = RuntimeError.__eq__
    __hash__ = RuntimeError.__hash__
    __repr__ = RuntimeError.__repr__

    @property
    def reason(self) -> str:
        """The message, under PyTorch's name for it."""
        return str(self)

    @property
    def func(self) -> torch._ops.OpOverload | None:
        """The operator as an object of `torch.ops`, or None if no operator is involved."""
        if "::" not in self.op:
            return None
        namespace, _, name = self.op.partition("::")
        packet, _, overload = name.partition(".")
        func: torch._ops.OpOverload = getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
        return func


class DataAccessError(FakeTensorError):
    """The data of a fake tensor was accessed: `data_ptr()`, `numpy()`."""


class DataDependentOutputException(FakeTensorError, _pytorchs_class("DataDependentOutputException")):  # type: ignore[misc]
    """The result of an operator is an unknown value: `item()`, `bool(t)`, `torch.equal`."""


class UnknownValuesError(DataAccessError, DataDependentOutputException):
    """`tolist()` of a fake whose values are unknown. PyTorch's FakeTensors call `item()` for each element there."""

    @property
    def func(self) -> torch._ops.OpOverload:
        """The operator that `item()` calls."""
        func: torch._ops.OpOverload = torch.ops.aten._local_scalar_dense.default
        return func


class DynamicOutputShapeException(FakeTensorError, _pytorchs_class("DynamicOutputShapeException")):  # type: ignore[misc]
    """The shape of a result depends on unknown values: `nonzero`, `unique`, `x[mask]`."""


class UnsupportedOperatorException(FakeTensorError, _pytorchs_class("UnsupportedOperatorException")):  # type: ignore[misc]
    """No kernel, rule or decomposition can compute what the operator returns."""


class UnsupportedFakeTensorException(FakeTensorError, _pytorchs_class("UnsupportedFakeTensorException")):  # type: ignore[misc]
    """A tensor that cannot be faked: nested, MKL-DNN."""


class FakeArgumentError(UnsupportedFakeTensorException, ValueError, AssertionError):
    """A fake cannot be made from these arguments: not a meta tensor, or a constant `Parameter`.

    PyTorch raises an `AssertionError`.
    """


class DeviceMismatchError(FakeTensorError, _pytorchs_class("FakeTensorDeviceMismatchError")):  # type: ignore[misc]
    """Two inputs of one operator claim different devices: `common_device` and `device`, if both are known.

    PyTorch's arguments are accepted too: the operator and the two devices.
    """

    def __init__(
        self,
        message: str | torch._ops.OpOverload | None = None,
        op: str | torch.device = "",
        device: torch.device | None = None,
        *,
        func: torch._ops.OpOverload | None = None,
        common_device: torch.device | None = None,
    ) -> None:
        if isinstance(op, torch.device):
            common_device, op = op, ""
        func = message if isinstance(message, torch._ops.OpOverload) else func
        if func is not None and common_device is not None:
            message = (
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"{common_device} and {device}!"
            )
            super().__init__(message, func.name())  # type: ignore[no-untyped-call]
        else:
            super().__init__(message, op, func=None if func is message else func)
            found = re.search(r"two different devices (\S+), ([\w:]*\w)", str(self))
            common_device, device = (torch.device(each) for each in found.groups()) if found else (None, None)
        self.common_device = common_device
        self.device = device


FakeTensorDeviceMismatchError = DeviceMismatchError
"""PyTorch's name for `DeviceMismatchError`."""


class RealTensorError(FakeTensorError, AssertionError):
    """Real tensors and fakes are mixed in a way that the mode does not allow. PyTorch raises an `AssertionError`."""


class MetadataMismatchError(FakeTensorError, _pytorchs_class("MetadataMismatchError")):  # type: ignore[misc]
    """A cached result differs from the kernel's, or a fake result from the real one."""


class MixedModesError(FakeTensorError, AssertionError):
    """Fakes of two modes in one operator, or PyTorch's own FakeTensorMode active together with a mode of torchfake.

    PyTorch raises an `AssertionError` for the former.
    """


class ModeActiveError(FakeTensorError):
    """`torchfake.uninstall()` was called while a thread is in a mode."""


class StandInLimitError(DataDependentOutputException):
    """One line read unknown values 10,000 times in a row, a million in `for` loops, in a mode with stand-ins."""


class UnsupportedMutationAliasingException(FakeTensorError, _pytorchs_class("UnsupportedMutationAliasingException")):  # type: ignore[misc]
    """An operator without a fake implementation writes to an argument, or returns a view, undeclared by its schema."""


class DynamicShapesError(FakeTensorError, NotImplementedError):
    """A symbolic size was used where none is supported, or symbols of two `ShapeEnv`s were mixed."""


class UnbackedSymbolError(DataDependentOutputException):
    """A decision depends on a symbol without a hint, whose value depends on data."""


class _GuardError(UnbackedSymbolError):
    """Makes `UnbackedSymbolError` also a PyTorch error. Created once PyTorch's class has been imported."""

    made: type[UnbackedSymbolError] | None = None

    def __init__(self, message: str, op: str = "") -> None:
        super().__init__(message, op)
        self.args = (message,)
        self.cond = message  # PyTorch's is the condition in sympy

    def __reduce__(self) -> tuple[type[FakeTensorError], tuple[str, str]]:
        return UnbackedSymbolError, (str(self), self.op)


def _unbacked_symbol_error() -> type[UnbackedSymbolError]:
    """The class to raise. No program can refer to PyTorch's class before importing its module, which is slow."""
    theirs = sys.modules.get("torch.fx.experimental.symbolic_shapes")
    if theirs is None:
        return UnbackedSymbolError
    if _GuardError.made is None:
        bases = (_GuardError, theirs.GuardOnDataDependentSymNode)
        _GuardError.made = type("UnbackedSymbolError", bases, {"__module__": __name__})
    return _GuardError.made


class DeviceNotFakedError(FakeTensorError):
    """A device that this machine does not have was requested in a mode with `fake_cuda=False`."""


# In the order of ErrorKind in core/errors.h.
_BY_KIND: tuple[type[FakeTensorError], ...] = (
    DataAccessError,
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
    UnsupportedFakeTensorException,
    DeviceMismatchError,
    RealTensorError,
    MetadataMismatchError,
    MixedModesError,
    DeviceNotFakedError,
    UnsupportedMutationAliasingException,
    DynamicShapesError,
    UnbackedSymbolError,
)


#: The errors about unknown values.
_OF_UNKNOWN_VALUES = (DataAccessError, DataDependentOutputException, DynamicOutputShapeException)


#: The errors whose text is only the operator in PyTorch: `aten.nonzero.default`.
_OF_OPERATORS = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException)


def _in_torch_ops(op: str) -> str:
    """An operator's name as `torch.ops` prints it: `aten.nonzero.default` for `aten::nonzero`."""
    name = op.replace("::", ".")
    return name if "." in op else f"{name}.default"


def _make_exception(kind: int, op: str, message: str) -> FakeTensorError:
    error = _BY_KIND[kind]
    if error in _OF_OPERATORS and "::" in op:
        message += f" ({_in_torch_ops(op)})"
    if error is UnbackedSymbolError:
        error = _unbacked_symbol_error()
    return error(explained(message, error) if error in _OF_UNKNOWN_VALUES else message, op)


def explained(message: str, error: type[FakeTensorError]) -> str:
    """The message of an error about unknown values, with the expression in the program, its location and a way out."""
    from torchfake._explain import explanation
    from torchfake.modes import current_mode

    return message + explanation(current_mode(), message, is_about_shape=error is DynamicOutputShapeException)


_C._set_exception_factory(_make_exception)

#: What PyTorch's Python kernels raise for arguments they do not support. Other errors are meant for callers.
_MISTAKES = (AttributeError, KeyError, NameError, ZeroDivisionError)


def _describe_failure(error: BaseException) -> tuple[bool, str] | None:
    """Whether a kernel's failure is an assertion, and its text; None for an error that is meant for callers."""
    if isinstance(error, FakeTensorError):  # some are AssertionErrors, but not kernel failures
        return None
    is_assertion = isinstance(error, AssertionError)
    if not is_assertion and not isinstance(error, _MISTAKES):
        return None
    where = traceback.extract_tb(error.__traceback__)[-1:]
    text = str(error) if is_assertion else f"{type(error).__name__}: {error}"
    return is_assertion, text or "".join(f"`{frame.line}` in {frame.name}" for frame in where)


_C._set_failure_describer(_describe_failure)
