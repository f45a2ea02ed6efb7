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

import torch  # loads the libraries that the engine needs

from torchfake import _release

try:
    _release.check_installed()
    from torchfake import _C

    _release.check_engine(_C.torch_release)
except _release.TorchReleaseError:
    raise
except ImportError as error:
    raise ImportError(
        f"torchfake's engine does not load with PyTorch {torch.__version__}: it works only with the PyTorch it was "
        "built against. Rebuild it for this one: pip install --no-build-isolation --force-reinstall --no-deps ."
    ) from error
from torchfake import _serialization, _shape_env, _tracing
from torchfake._C import ShapeEnv, SymNode
from torchfake._replacements import uninstall
from torchfake.cache import (
    CacheInfo,
    DispatchCacheInfo,
    cache_info,
    clear_cache,
    cross_check_cache,
    disable_fake_tensor_cache,
    dump_cache_stats,
    set_cache_limits,
)
from torchfake.converter import FakeTensorConverter
from torchfake.cross_reference import CrossRefFakeMode, fake_check
from torchfake.errors import (
    DataAccessError,
    DataDependentOutputException,
    DeviceMismatchError,
    DeviceNotFakedError,
    DynamicOutputShapeException,
    DynamicShapesError,
    FakeArgumentError,
    FakeTensorDeviceMismatchError,
    FakeTensorError,
    MetadataMismatchError,
    MixedModesError,
    ModeActiveError,
    RealTensorError,
    StandInLimitError,
    UnbackedSymbolError,
    UnknownValuesError,
    UnsupportedFakeTensorException,
    UnsupportedMutationAliasingException,
    UnsupportedOperatorException,
)
from torchfake.fake import (
    FakeTensor,
    TensorMetadata,
    detect_fake_mode,
    extract_tensor_metadata,
    get_plain_tensors,
    is_fake,
    maybe_get_fake_mode,
    meta_like,
    no_fake_mode,
    to_fake,
)
from torchfake.fake_tensor_mode import (
    CONSTANT_NUMEL_LIMIT,
    FakeCopyMode,
    FakeTensorMode,
    FakeTensorTLS,
    fake_tensor_tls,
    unset_fake_temporarily,
)
from torchfake.helpers import (
    FakeTensorConfig,
    IncrementRecursionCount,
    SingletonConstant,
    SymNumberMemoDescriptor,
    get_schema_info,
    in_kernel_invocation_manager,
    init_gpu_context,
    ordered_set,
    should_allow_numbers_as_tensors,
    torch_decomp_decompositions,
    tree_flatten_only,
)
from torchfake.interop import from_pytorch_fake, to_pytorch_fake
from torchfake.interop import from_torch as from_torch  # deprecated
from torchfake.interop import to_torch as to_torch  # deprecated
from torchfake.modes import fake_mode

__all__ = [
    "CONSTANT_NUMEL_LIMIT",
    "CacheInfo",
    "CrossRefFakeMode",
    "DataAccessError",
    "DataDependentOutputException",
    "DeviceMismatchError",
    "DeviceNotFakedError",
    "DispatchCacheInfo",
    "DynamicOutputShapeException",
    "DynamicShapesError",
    "FakeArgumentError",
    "FakeCopyMode",
    "FakeTensor",
    "FakeTensorConfig",
    "FakeTensorConverter",
    "FakeTensorDeviceMismatchError",
    "FakeTensorError",
    "FakeTensorMode",
    "FakeTensorTLS",
    "IncrementRecursionCount",
    "MetadataMismatchError",
    "MixedModesError",
    "ModeActiveError",
    "RealTensorError",
    "ShapeEnv",
    "SingletonConstant",
    "StandInLimitError",
    "SymNode",
    "SymNumberMemoDescriptor",
    "TensorMetadata",
    "UnbackedSymbolError",
    "UnknownValuesError",
    "UnsupportedFakeTensorException",
    "UnsupportedMutationAliasingException",
    "UnsupportedOperatorException",
    "cache_info",
    "clear_cache",
    "cmake_prefix_path",
    "cross_check_cache",
    "detect_fake_mode",
    "disable_fake_tensor_cache",
    "dump_cache_stats",
    "extract_tensor_metadata",
    "fake_check",
    "fake_mode",
    "fake_tensor_tls",
    "from_pytorch_fake",
    "get_plain_tensors",
    "get_schema_info",
    "in_kernel_invocation_manager",
    "init_gpu_context",
    "is_fake",
    "maybe_get_fake_mode",
    "meta_like",
    "no_fake_mode",
    "ordered_set",
    "set_cache_limits",
    "should_allow_numbers_as_tensors",
    "to_fake",
    "to_pytorch_fake",
    "torch_decomp_decompositions",
    "tree_flatten_only",
    "uninstall",
    "unset_fake_temporarily",
]

__version__ = "0.1.0"

cmake_prefix_path = str(Path(__file__).parent / "share" / "cmake")
"""Where CMake's `find_package(torchfake)` finds the C++ library, like `torch.utils.cmake_prefix_path`."""

# Importing does nothing else. The replacements are installed with the first mode or fake.
_C._set_fake_impl_finder(_tracing.has_fake_impl)
_serialization.allow_in_safe_files()
_shape_env.extend()
