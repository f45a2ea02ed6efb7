"""Functions of PyTorch in Python that look at values, and whose outcome does not depend on what they see.

They ask whether their input is valid, and raise if not; or for a number that they only multiply with. On values that
are known the answer is the true one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import distributions
from torch.optim import _adafactor

from torchfake import _C

_MANY = 1 << 30


def _within(function: Callable[..., Any], enter: Callable[[], Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        entered = enter()
        try:
            return function(*args, **kwargs)
        finally:
            entered.leave()

    return call


def install() -> None:
    """Tells the engine what to answer while they run."""
    all_hold = functools.partial(_C.EnteredValidInput, _MANY)
    base = distributions.Distribution
    for kind in (base, distributions.Geometric, distributions.ContinuousBernoulli):
        kind.__init__ = _within(kind.__init__, all_hold)  # type: ignore[method-assign]
    base._validate_sample = _within(base._validate_sample, all_hold)  # type: ignore[method-assign]
    # It looks for variances that are negative.
    F.gaussian_nll_loss = _within(F.gaussian_nll_loss, functools.partial(_C.EnteredValidInput, 0))
    for name in ("_single_tensor_adafactor", "_multi_tensor_adafactor"):
        setattr(_adafactor, name, _within(getattr(_adafactor, name), _C.EnteredFactorsAlone))
