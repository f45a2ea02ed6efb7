"""The metadata of a tensor as a value that can be compared and hashed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format
from torch._subclasses.meta_utils import is_sparse_any

__all__ = ["TensorMetadata", "extract_tensor_metadata"]


@dataclass(frozen=True, slots=True)
class TensorMetadata:
    """Everything of a tensor but its data. Two calls on equal metadata have equal outcomes.

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
        shape=tuple(t.shape),
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
