"""Run PyTorch programs on tensors and GPUs that are not there.

>>> import torch
>>> from torchfake import fake_mode
>>> with fake_mode():
...     model = torch.nn.Linear(1_000_000, 1_000_000, device="cuda")  # 4 TB
...     y = model(torch.randn(8, 1_000_000, device="cuda"))
>>> y.shape, y.device
(torch.Size([8, 1000000]), device(type='cuda', index=0))
"""

from pathlib import Path

import torch  # noqa: F401  (its libraries have to be loaded before the engine's)

from torchfake import (
    _C,
    _amp,
    _autograd,
    _creation,
    _cuda,
    _data,
    _init,
    _legacy_types,
    _methods,
    _printing,
    _serialization,
    _storages,
)
from torchfake.cache import (
    CacheInfo,
    cache_info,
    clear_cache,
    cross_check_cache,
    disable_fake_tensor_cache,
    set_cache_limits,
)
from torchfake.errors import (
    DataAccessError,
    DataDependentOutputException,
    DeviceMismatchError,
    DeviceNotFakedError,
    DynamicOutputShapeException,
    FakeTensorError,
    MetadataMismatchError,
    RealTensorError,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torchfake.fake import FakeTensor, fake_mode, is_fake, meta_like, no_fake_mode, to_fake

__all__ = [
    "CacheInfo",
    "DataAccessError",
    "DataDependentOutputException",
    "DeviceMismatchError",
    "DeviceNotFakedError",
    "DynamicOutputShapeException",
    "FakeTensor",
    "FakeTensorError",
    "MetadataMismatchError",
    "RealTensorError",
    "UnsupportedFakeTensorException",
    "UnsupportedOperatorException",
    "cache_info",
    "clear_cache",
    "cmake_prefix_path",
    "cross_check_cache",
    "disable_fake_tensor_cache",
    "fake_mode",
    "is_fake",
    "meta_like",
    "no_fake_mode",
    "set_cache_limits",
    "to_fake",
]

__version__ = "0.1.0"

#: Where `find_package(torchfake)` finds the C++ library, as `torch.utils.cmake_prefix_path` is for PyTorch.
cmake_prefix_path = str(Path(__file__).parent / "share" / "cmake")

_C._stand_in_for_absent_devices()
_amp.install()
_autograd.install()
_creation.install()
_cuda.install()
_data.install()
_init.install()
_legacy_types.install()
_methods.install()
_printing.install()
_serialization.install()
_storages.install()
