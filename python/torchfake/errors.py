"""What can go wrong with fake tensors, as exceptions. All of them are `RuntimeError`s."""

from __future__ import annotations

import torch

from torchfake import _C

__all__ = [
    "DataAccessError",
    "DataDependentOutputException",
    "DeviceMismatchError",
    "DeviceNotFakedError",
    "DynamicOutputShapeException",
    "DynamicShapesError",
    "FakeTensorDeviceMismatchError",
    "FakeTensorError",
    "MetadataMismatchError",
    "MixedModesError",
    "ModeActiveError",
    "RealTensorError",
    "UnknownValuesError",
    "UnsupportedFakeTensorException",
    "UnsupportedMutationAliasingException",
    "UnsupportedOperatorException",
]


class FakeTensorError(RuntimeError):
    """Base of torchfake's errors. `op` is the operator's name (`aten::nonzero.default`), or empty."""

    def __init__(self, message: str, op: str = "") -> None:
        super().__init__(message)
        self.op = op

    def __reduce__(self) -> tuple[type[FakeTensorError], tuple[str, str]]:
        return type(self), (str(self), self.op)

    @property
    def reason(self) -> str:
        """The message, under the name that PyTorch's own exceptions have for it."""
        return str(self)

    @property
    def func(self) -> torch._ops.OpOverload | None:
        """The operator as `torch.ops` has it, or None where no operator is involved."""
        if "::" not in self.op:
            return None
        namespace, _, name = self.op.partition("::")
        packet, _, overload = name.partition(".")
        func: torch._ops.OpOverload = getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
        return func


class DataAccessError(FakeTensorError):
    """Data was asked of a fake tensor: `data_ptr()`, `numpy()`."""


class DataDependentOutputException(FakeTensorError):
    """The result of an operator is a value that is not known: `item()`, `bool(t)`, `torch.equal`."""


class UnknownValuesError(DataAccessError, DataDependentOutputException):
    """Values were asked of a fake as numbers: `tolist()`, for which PyTorch's FakeTensors ask `item()` of each."""


class DynamicOutputShapeException(FakeTensorError):
    """The shape of a result depends on values that are not known: `nonzero`, `unique`, `x[mask]`."""


class UnsupportedOperatorException(FakeTensorError):
    """No kernel, rule or decomposition can say what the operator returns."""


class UnsupportedFakeTensorException(FakeTensorError):
    """A tensor that cannot be faked: sparse, nested, quantized."""


class DeviceMismatchError(FakeTensorError):
    """Two inputs of one operator claim different devices."""


FakeTensorDeviceMismatchError = DeviceMismatchError
"""PyTorch's name for `DeviceMismatchError`."""


class RealTensorError(FakeTensorError):
    """A real tensor stands among fakes, or a fake among real ones."""


class MetadataMismatchError(FakeTensorError):
    """The cross-check of the shape cache found two different answers."""


class MixedModesError(FakeTensorError):
    """Fakes of two modes in one operator, or PyTorch's own FakeTensorMode active together with one of ours."""


class ModeActiveError(FakeTensorError):
    """`torchfake.uninstall()` was called while a thread is in a mode."""


class UnsupportedMutationAliasingException(FakeTensorError):
    """An operator without a fake implementation writes to an argument or returns a view of one, undeclared."""


class DynamicShapesError(FakeTensorError, NotImplementedError):
    """Symbolic sizes were asked for, which are not supported yet."""


class DeviceNotFakedError(FakeTensorError):
    """A device that this machine lacks was asked for in a mode with `fake_cuda=False`."""


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
)


def _make_exception(kind: int, op: str, message: str) -> FakeTensorError:
    return _BY_KIND[kind](message, op)


_C._set_exception_factory(_make_exception)
