"""`torch.load`, `load_state_dict` and safetensors in the mode: files yield fakes, and their data is not read."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from types import TracebackType
from typing import IO, Any, Literal

import torch
from torch import Tensor, serialization
from torch.storage import TypedStorage, UntypedStorage

from torchfake import _C
from torchfake.errors import RealTensorError, UnsupportedFakeTensorException
from torchfake.modes import no_fake_mode

# ---- torch.load and load_state_dict ----------------------------------------------------------------------------------
#
# Note [Loading in the mode]
# A file written by `torch.save` is a pickle that refers to its storages by key, with their data stored elsewhere. In
# the mode only the pickle is read, each key becomes the storage of a fake, and PyTorch's own functions rebuild the
# tensors:
#
#     with fake_mode():
#         state = torch.load("llama.pt", map_location="cuda:1")   # reads a few kilobytes
#
# PyTorch creates a tensor on the device that its storage names, and the storage of a fake names the claimed one.
# Invariants: one storage per key, so aliases in the file are aliases in memory. Outside the mode nothing changes. Only
# storages with a single element are read, and their values known: an optimizer reads its step count.
# Rejected: wrapping PyTorch's rebuild functions. There are many, and weights_only loading checks their identity.

ByteOrder = Literal["little", "big"]

# Elements are written as integers of their width, whatever their dtype.
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

# The map_location of the torch.load in progress. PyTorch itself records it, but not for the legacy format.
_map_location: ContextVar[Any] = ContextVar("_map_location", default=None)


def _claim_storage(nbytes: int, device: torch.device) -> UntypedStorage:
    """Must be called in the mode."""
    return torch.empty(nbytes, dtype=torch.uint8, device=device).untyped_storage()


def claimed_device(location: str, nbytes: int) -> torch.device:
    """The device that `map_location` of the `torch.load` in progress chooses for a storage saved from `location`.

    Must be called in the mode: a map_location function gets a fake storage.
    """
    wanted = _map_location.get()
    if wanted is None:  # a file with pickled fakes, loaded outside the mode
        wanted = getattr(serialization._serialization_tls, "map_location", None)
    if callable(wanted):
        storage = wanted(_claim_storage(nbytes, torch.device("cpu")), location)
        return torch.device(location) if storage is None else storage.device
    if isinstance(wanted, Mapping):
        wanted = wanted.get(location, location)
    return torch.device(location if wanted is None else _text(wanted))


@contextlib.contextmanager
def _mapping_locations(map_location: Any) -> Iterator[None]:
    token = _map_location.set(map_location)
    try:
        yield
    finally:
        _map_location.reset(token)


def _text(value: Any) -> Any:
    # With encoding="bytes", strings written by Python 2 are bytes.
    return value.decode("ascii") if isinstance(value, bytes) else value


class _Storages:
    """The storages of one file, by key."""

    def __init__(self) -> None:
        self._by_key: dict[Any, UntypedStorage] = {}

    def __contains__(self, key: Any) -> bool:
        return key in self._by_key

    def get(self, key: Any, storage_type: Any, location: Any, numel: int) -> TypedStorage:
        dtype = torch.uint8 if storage_type is UntypedStorage else storage_type.dtype
        if key not in self._by_key:
            nbytes = numel * dtype.itemsize
            self._by_key[key] = _claim_storage(nbytes, claimed_device(_text(location), nbytes))
        return TypedStorage(wrap_storage=self._by_key[key], dtype=dtype, _internal=True)  # type: ignore[no-untyped-call]

    def nbytes(self, key: Any) -> int:
        return self._by_key[key].nbytes()

    def fill(self, key: Any, element: bytes, byteorder: ByteOrder) -> None:
        """Sets the value of a storage with a single element."""
        if dtype := INTEGERS.get(len(element)):
            storage = self._by_key[key]
            whole = torch.empty(0, dtype=dtype, device=storage.device).set_(storage, 0, (1,), (1,))
            whole.fill_(int.from_bytes(element, byteorder, signed=True))


def _unpickle(
    file: IO[bytes], pickle_module: Any, persistent_load: Callable[[Any], Any], pickle_load_args: dict[str, Any]
) -> Any:
    class Reader(pickle_module.Unpickler):  # type: ignore[misc]
        # The unpickler of weights_only files does not call this, and knows these names itself.
        def find_class(self, module: str, name: str) -> Any:
            if module.startswith("torch") and name.endswith("Storage") and name != "UntypedStorage":
                with contextlib.suppress(KeyError):
                    return serialization.StorageType(name)  # type: ignore[no-untyped-call]
            return super().find_class("torch._tensor" if module == "torch.tensor" else module, name)

    reader = Reader(file, **pickle_load_args)
    reader.persistent_load = persistent_load
    return reader.load()


def load(
    original: Callable[..., Any],
    zip_file: Any,
    map_location: Any,
    pickle_module: Any,
    pickle_file: str = "data.pkl",
    overall_storage: Any = None,
    **pickle_load_args: Any,
) -> Any:
    """Reads the zip format."""
    with _mapping_locations(map_location):
        pickle_load_args.pop("weights_only", None)  # since 2.15, for validating sparse tensors
        storages = _Storages()
        swapped = zip_file.has_record("byteorder") and zip_file.get_record("byteorder") == b"big"
        byteorder: ByteOrder = "big" if swapped else "little"

        def persistent_load(saved: tuple[Any, ...]) -> TypedStorage:
            _, storage_type, key, location, numel = saved
            is_new = key not in storages
            storage = storages.get(key, storage_type, location, numel)
            if is_new:
                # The position of the data in the file, for programs that read it later.
                storage._untyped_storage._checkpoint_offset = zip_file.get_record_offset(f"data/{key}")
            if is_new and numel == 1:
                storages.fill(key, zip_file.get_record(f"data/{key}"), byteorder)
            return storage

        data = io.BytesIO(zip_file.get_record(pickle_file))
        state = serialization._serialization_tls
        outer, state.map_location = state.map_location, map_location  # wrapper subclasses read it here
        try:
            result = _unpickle(data, pickle_module, persistent_load, pickle_load_args)
        finally:
            state.map_location = outer
        return result


def legacy_load(
    original: Callable[..., Any], file: IO[bytes], map_location: Any, pickle_module: Any, **pickle_load_args: Any
) -> Any:
    """Reads the format before PyTorch 1.6: five pickles, then the data of the storages that the fifth one names."""
    with _mapping_locations(map_location):
        if not _C.in_fake_mode():
            return original(file, map_location, pickle_module, **pickle_load_args)
        pickle_load_args.pop("weights_only", None)  # since 2.15, for validating sparse tensors
        if file.tell() == 0 and tarfile.is_tarfile(file):
            raise UnsupportedFakeTensorException(
                "torch.load: tar files of PyTorch 0.1 cannot be loaded inside fake_mode(); load the file outside it "
                "and save it again.",
                "torch.load",
            )
        if pickle_module.load(file, **pickle_load_args) != serialization.MAGIC_NUMBER:
            raise RuntimeError("torch.load: expected a file written by torch.save, got another magic number")
        if (version := pickle_module.load(file, **pickle_load_args)) != serialization.PROTOCOL_VERSION:
            raise RuntimeError(f"torch.load: expected protocol {serialization.PROTOCOL_VERSION}, got {version}")
        machine = {_text(name): fact for name, fact in pickle_module.load(file, **pickle_load_args).items()}
        byteorder: ByteOrder = "little" if machine.get("little_endian", True) else "big"
        storages = _Storages()

        def persistent_load(saved: tuple[Any, ...]) -> Any:
            if _text(saved[0]) == "module":
                return saved[1]  # a class, saved with its source code
            _, storage_type, key, location, numel, view = saved
            if view is not None:
                raise UnsupportedFakeTensorException(
                    "torch.load: the file contains a storage that is a view of another one, which is not supported; "
                    "load it outside fake_mode() and save it again.",
                    "torch.load",
                )
            return storages.get(key, storage_type, location, numel)

        result = _unpickle(file, pickle_module, persistent_load, pickle_load_args)
        # Skips the data, so that another object in the file can be read: 8 bytes of length per storage, then its bytes.
        for key in pickle_module.load(file, **pickle_load_args):
            if int.from_bytes(file.read(8), byteorder) == 1:
                storages.fill(key, file.read(storages.nbytes(key)), byteorder)
            else:
                file.seek(storages.nbytes(key), os.SEEK_CUR)
        return result


def _refuse_mixing(module: torch.nn.Module, state_dict: Mapping[str, Any]) -> None:
    """Raises RealTensorError if values would be copied between a real tensor and a fake."""
    for name, target in (*module.named_parameters(remove_duplicate=False), *module.named_buffers()):
        source = state_dict.get(name)
        if not isinstance(source, Tensor) or _C.is_fake(source) == _C.is_fake(target):
            continue
        if _C.is_fake(target) and source.dim() == 0 and source.device.type == "cpu":
            continue  # a real CPU scalar may be mixed with fakes
        real, fake = ("state dict", "module") if _C.is_fake(target) else ("module", "state dict")
        raise RealTensorError(
            f"load_state_dict: {name} is real in the {real} and fake in the {fake}; load the file inside fake_mode(), "
            "convert with torchfake.to_fake, or pass assign=True to replace the module's tensors.",
            "load_state_dict",
        )


def load_state_dict(
    original: Callable[..., Any],
    self: torch.nn.Module,
    state_dict: Mapping[str, Any],
    strict: bool = True,
    assign: bool = False,
) -> Any:
    # PyTorch would copy what it can, and then raise a generic error for the rest.
    if not assign and isinstance(state_dict, Mapping):
        _refuse_mixing(self, state_dict)
    return original(self, state_dict, strict=strict, assign=assign)


# ---- safetensors -----------------------------------------------------------------------------------------------------
#
# safetensors reads in Rust and copies to a data pointer, so its functions have to be replaced. Fakes are made from the
# header alone; as in Note [Loading in the mode], tensors with a single element are read.

_DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "U16": torch.uint16,
    "U32": torch.uint32,
    "U64": torch.uint64,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F4": torch.float4_e2m1fn_x2,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "F8_E8M0": torch.float8_e8m0fnu,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "C64": torch.complex64,
}


def _empty(dtype_name: str, shape: Sequence[int]) -> Tensor:
    dtype = _DTYPES.get(dtype_name)
    if dtype is None:
        raise UnsupportedFakeTensorException(f"safetensors: PyTorch has no dtype for {dtype_name}", "safetensors")
    if dtype is torch.float4_e2m1fn_x2:  # packs two elements of the file
        shape = (*shape[:-1], shape[-1] // 2)
    return torch.empty(tuple(shape), dtype=dtype, device="cpu")


def _known(number: Tensor) -> Tensor:
    """A fake with the values of a real tensor, as `torch.tensor` returns it."""
    return torch.ops.aten.lift_fresh(number)  # type: ignore[no-any-return]


class _FakeSlice:
    """The result of `get_slice` in the mode."""

    def __init__(self, real: Any, device: torch.device) -> None:
        self._real = real
        self._device = device

    def get_shape(self) -> list[int]:
        return self._real.get_shape()  # type: ignore[no-any-return]

    def get_dtype(self) -> str:
        return self._real.get_dtype()  # type: ignore[no-any-return]

    def __getitem__(self, index: Any) -> Tensor:
        return self._whole()[index].to(self._device)

    def _whole(self) -> Tensor:
        if math.prod(self.get_shape()) != 1:
            return _empty(self.get_dtype(), self.get_shape())
        with no_fake_mode():
            number = self._real[...]
        return _known(number)


class _FakeSafeOpen:
    """The result of `safe_open` in the mode. The library reads the header; the data is not read."""

    def __init__(self, real: Any, device: torch.device) -> None:
        self._real = real
        self._device = device

    def __enter__(self) -> _FakeSafeOpen:
        self._real.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._real.__exit__(kind, error, traceback)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)  # keys, offset_keys, metadata

    def get_slice(self, name: str) -> _FakeSlice:
        return _FakeSlice(self._real.get_slice(name), self._device)

    def get_tensor(self, name: str) -> Tensor:
        return self.get_slice(name)[...]

    def get_tensors(self) -> dict[str, Tensor]:
        return {name: self.get_tensor(name) for name in self._real.offset_keys()}


def safe_open(original: Callable[..., Any], filename: Any, framework: str, device: Any = "cpu", **kwargs: Any) -> Any:
    if framework not in ("pt", "torch", "pytorch"):
        return original(filename, framework, device, **kwargs)
    claimed = torch.device("cuda", device) if isinstance(device, int) else torch.device(device or "cpu")
    return _FakeSafeOpen(original(filename, framework, "cpu", **kwargs), claimed)


def load_safetensors(original: Callable[[bytes], dict[str, Tensor]], data: bytes) -> dict[str, Tensor]:
    # The file format: the header's length in 8 bytes, the header as JSON, the data.
    start = 8 + int.from_bytes(data[:8], "little")
    entries = json.loads(data[8:start])
    entries.pop("__metadata__", None)
    loaded = {}
    for name, entry in entries.items():
        loaded[name] = _empty(entry["dtype"], entry["shape"])
        if loaded[name].numel() == 1:
            begin, end = entry["data_offsets"]
            with no_fake_mode():
                number = torch.frombuffer(bytearray(data[start + begin : start + end]), dtype=loaded[name].dtype)
            loaded[name] = _known(number.reshape(entry["shape"]))
    return loaded
