"""Modules of `torch.nn` that look at more than their tensors' metadata.

`module.to()` where it makes parameters fake that were real: the module gets new ones, the real ones stay real.
Recurrent modules on a GPU: cuDNN has their weights in one buffer, and they are told apart by address.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.backends import cudnn

from torchfake import _C


def make_is_compatible(original: Callable[[Tensor, Tensor], bool]) -> Callable[[Tensor, Tensor], bool]:
    """Asked by modules: whether `input.data = from_` works, which is an error between a real tensor and a fake."""

    # A function of Python, with the arguments that PyTorch's compiler expects.
    @functools.wraps(original)
    def is_compatible(input: Tensor, from_: Tensor) -> bool:
        return _C.is_plain_fake(input) == _C.is_plain_fake(from_) and original(input, from_)

    return is_compatible


# What cuDNN calls them; PyTorch has its numbers only where it has cuDNN.
_CUDNN_MODES = {"RNN_RELU": 0, "RNN_TANH": 1, "LSTM": 2, "GRU": 3}


def flatten_parameters(original: Callable[[nn.RNNBase], None], self: nn.RNNBase) -> None:
    weights = [weight for weight in self._flat_weights if isinstance(weight, Tensor)]
    if not any(map(_C.is_plain_fake, weights)):
        original(self)
        return
    if len(weights) < len(self._flat_weights) or not all(_goes_to_cudnn(weight, weights[0]) for weight in weights):
        return
    places = {(weight.untyped_storage()._cdata, weight.storage_offset()) for weight in weights}
    if len(places) == len(weights):
        layers = self.num_layers * (2 if self.bidirectional else 1)
        _C.flatten_weights(weights, _CUDNN_MODES[self.mode], self.hidden_size, layers)


def _goes_to_cudnn(weight: Tensor, first: Tensor) -> bool:
    return (
        _C.is_plain_fake(weight)
        and weight.is_cuda
        and weight.dtype == first.dtype
        and weight.dtype in cudnn.CUDNN_TENSOR_DTYPES
        and torch._C._get_cudnn_enabled()
    )
