"""Passes over `torch.fx` graphs on fake tensors."""

from torchfake.fx.fake_tensor_prop import FakeTensorProp

__all__ = ["FakeTensorProp"]
