"""Rows of the table of replacements (`_replacements.py`): tensors and storages, created, read and saved."""

from __future__ import annotations

from torchfake import (
    _devices,
    _loading,
    _saved_scripts,
    _saving,
    _serialization,
    _splits,
    _storages,
    _tensors,
    _training,
)
from torchfake._C import When
from torchfake._patches import Patch, Put, each, same

#: The attributes of fakes.
ATTRIBUTES = tuple(
    Put(
        f"torch:Tensor.{name}",
        lambda _, name=name: _tensors.make_attribute(name),
        When.GIVEN_FAKE,
        "Attributes that only fakes have. Fakes are plain tensors, so they are found on `torch.Tensor`.",
        condition_in_words="read from a fake; any other tensor raises `AttributeError`, as before",
    )
    for name in _tensors.NAMES
)

TENSORS = (
    *ATTRIBUTES,
    *each(
        "torch:Tensor.{}",
        _tensors.FOR_FAKES,
        When.GIVEN_FAKE,
        "Implemented in C, from the dispatch keys or the data pointer of a tensor.",
    ),
    Patch(
        "torch:FloatTensor.__class__.__instancecheck__",
        _tensors.is_of_legacy_type,
        When.GIVEN_FAKE,
        "`isinstance(x, torch.ByteTensor)` is decided by the dispatch keys of a tensor.",
    ),
    Patch(
        "torch:Tensor.set_",
        _storages.set_,
        When.FAKES_EXIST,
        "Would give a fake the storage of a real tensor, or vice versa.",
    ),
    *each(
        "torch:Tensor.{}",
        {
            "__bool__": _tensors.read_as(bool),
            "__complex__": _tensors.read_as(complex),
            "__float__": _tensors.read_as(float),
            "__index__": _tensors.read_as(int),
        },
        When.GIVEN_FAKE,
        "Read by `torch.tensor([x, 2.0])` with the engine switched off.",
    ),
    Patch(
        "torch:Tensor.split",
        _splits.split,
        When.GIVEN_FAKE,
        "Adjusts sizes that are stand-ins so that they cover the dimension.",
        copies=False,
    ),
    Patch(
        "torch:Tensor.split_with_sizes",
        _splits.split_with_sizes,
        When.GIVEN_FAKE,
        "Adjusts sizes that are stand-ins so that they cover the dimension.",
        copies=False,
    ),
    Patch("torch:Tensor.__format__", _tensors.format_tensor, When.GIVEN_FAKE, "Formats a scalar by its value."),
    Patch(
        "torch._tensor_str:_str_intern",
        _tensors.str_intern,
        When.FAKES_EXIST,
        "Prints values, which a fake does not have; printing a real tensor runs operators.",
    ),
    Patch(
        "torch._tensor_str:_str",
        _tensors.str_released,
        When.FAKES_EXIST,
        "Holds a guard in a local variable, which the error would keep if printing fails in a kernel.",
    ),
    Put(
        "torch:_has_compatible_shallow_copy_type",
        _training.make_is_compatible,
        When.GIVEN_FAKE,
        "`module.to()` checks whether it can set `parameter.data`, which it cannot between a real tensor and a fake.",
        condition_in_words="one argument is a fake and the other is not",
    ),
)

STORAGES = (
    *same(
        "torch.storage:{}",
        "UntypedStorage.__getitem__ TypedStorage._getitem",
        _storages.read,
        When.IN_MODE_OR_GIVEN_META_STORAGE,
        "Reads data, which a fake does not have.",
    ),
    Patch(
        "torch.storage:UntypedStorage.device",
        _storages.device,
        When.GIVEN_META_STORAGE,
        "Returns the device that the fake claims.",
    ),
    *same(
        "torch.storage:{}",
        "UntypedStorage.__repr__ TypedStorage.__str__",
        _storages.show,
        When.GIVEN_META_STORAGE,
        "Prints elements.",
    ),
    *same(
        "torch.storage:{}",
        "UntypedStorage._to TypedStorage._to",
        _storages.convert,
        When.IN_MODE_OR_GIVEN_META_STORAGE,
        "Converts elements through a tensor.",
    ),
    *each(
        "torch.storage:UntypedStorage.{}",
        {"clone": _storages.clone, "to": _storages.to, "cpu": _storages.cpu, "mps": _storages.mps},
        When.GIVEN_META_STORAGE,
        "Copies data, which a fake does not have.",
    ),
    *same(
        "torch.storage:UntypedStorage.{}",
        "__setitem__ _set_cdata _set_from_file fill_",
        _storages.write,
        When.IN_MODE_OR_GIVEN_META_STORAGE,
        "Writes without an operator: known values are forgotten.",
    ),
    Patch(
        "torch.storage:UntypedStorage.resize_",
        _storages.resize_,
        When.IN_MODE_OR_GIVEN_META_STORAGE,
        "Changes the size of memory without an operator.",
    ),
    Patch(
        "torch.storage:TypedStorage._setitem",
        _storages.set_item,
        When.IN_MODE_OR_GIVEN_META_STORAGE,
        "Writes through a tensor on the storage.",
    ),
    Patch(
        "torch.storage:UntypedStorage._byteswap",
        _storages.byteswap,
        When.GIVEN_META_STORAGE,
        "Writes without an operator: known values are forgotten.",
    ),
    Patch(
        "torch.storage:UntypedStorage.copy_",
        _storages.copy_,
        When.IN_MODE_OR_GIVEN_META_STORAGE,
        "Copies data, which a fake does not have.",
    ),
    Patch(
        "torch.storage:UntypedStorage.data_ptr",
        _storages.data_ptr,
        When.GIVEN_META_STORAGE,
        "Returns a unique number in functions that only compare addresses (the next rows).",
    ),
    *same(
        "torch.distributed.{}",
        "utils:_data_ptr_allocated fsdp._flat_param:_same_storage "
        "fsdp._fully_shard._fsdp_param:FSDPParam.reset_sharded_param",
        _storages.comparing_addresses,
        When.FAKES_EXIST,
        "PyTorch's sharding compares the addresses of storages without reading from them.",
    ),
)

CREATION = (
    *each(
        "torch:{}",
        {"asarray": _storages.asarray, "frombuffer": _storages.frombuffer},
        When.IN_MODE,
        "Creates a tensor on existing memory without an operator.",
    ),
    Patch(
        "torch.utils.dlpack:from_dlpack",
        _storages.from_dlpack,
        When.IN_MODE_OR_GIVEN_FAKE,
        "Creates a tensor on existing memory without an operator. A fake shares its storage instead.",
    ),
    Patch(
        "torch._C:_from_dlpack",
        _storages.frombuffer,
        When.IN_MODE,
        "Creates a tensor on existing memory without an operator.",
    ),
    Patch(
        "torch.utils.dlpack:to_dlpack",
        _storages.to_dlpack,
        When.GIVEN_FAKE,
        "Exports memory, which a fake does not have.",
    ),
    *(
        Put(
            f"torch.cuda:{name}",
            _devices.stand_in,
            When.IN_MODE,
            "A type implemented in C that cannot create tensors in a PyTorch without CUDA.",
            condition_in_words="called while the thread is in a mode; otherwise it raises PyTorch's error",
            optional=True,
        )
        for name in _devices.NAMES
    ),
    Patch(
        "torch._C:_set_default_tensor_type",
        _devices.set_default_tensor_type,
        When.ALWAYS,
        "Given one of these types, it raises PyTorch's error only for the original.",
    ),
)

DATA = (
    *same(
        "torch.utils.data.sampler:{}.__iter__",
        "RandomSampler SubsetRandomSampler WeightedRandomSampler",
        _training.real_indices,
        When.FAKES_EXIST,
        "The samples of a batch are values, so they are drawn for real.",
    ),
    Patch(
        "torch.utils.data.sampler:WeightedRandomSampler.__init__",
        _training.weighted_init,
        When.IN_MODE_OR_GIVEN_FAKE,
        "Draws with these weights, which must be known.",
    ),
    Patch(
        "torch.utils.data.distributed:DistributedSampler.__iter__",
        _training.real,
        When.IN_MODE,
        "The samples of a batch are values, so they are drawn for real.",
    ),
    Patch(
        "torch.utils.data.dataset:randperm", _training.real, When.IN_MODE, "`random_split` draws indices.", copies=False
    ),
    *each(
        "torch.utils.data.dataloader:_BaseDataLoaderIter.{}",
        {"__init__": _training.real_unless_drawn, "_next_index": _training.real, "_reset": _training.real},
        When.IN_MODE,
        "Draws the seed of the workers and runs the sampler. Samples are fetched elsewhere, in the mode.",
    ),
    Patch(
        "torch.utils.data._utils.collate:default_collate_fn_map[torch.Tensor]",
        _serialization.collate,
        When.FAKES_EXIST,
        "A worker allocates shared memory to stack into.",
    ),
)

FILES = (
    Patch("torch.serialization:_load", _loading.load, When.IN_MODE, "Returns fakes without reading the data."),
    Patch(
        "torch.serialization:_legacy_load",
        _loading.legacy_load,
        When.FAKES_EXIST,
        "Returns fakes without reading the data. Outside the mode, passes `map_location` to pickled fakes.",
    ),
    Patch("safetensors:safe_open", _loading.safe_open, When.IN_MODE, "Returns fakes, reading only the header."),
    Patch("safetensors.torch:load", _loading.load_safetensors, When.IN_MODE, "Returns fakes, reading only the header."),
    Patch(
        "safetensors.torch:save_file",
        _saving.save_file,
        When.FAKES_EXIST,
        "Writes data, which a fake does not have. Writes a sparse file of that size instead.",
    ),
    *same(
        "torch.jit._script:{}",
        "RecursiveScriptModule.save RecursiveScriptModule.save_to_buffer ScriptModule.save ScriptModule.save_to_buffer",
        _saved_scripts.save,
        When.FAKES_EXIST,
        "Reads the data of every tensor, which a fake does not have. Writes the code, and the fakes' metadata.",
        optional=True,
    ),
    *same(
        "torch.jit._script:{}",
        "RecursiveScriptModule._save_for_lite_interpreter ScriptModule._save_for_lite_interpreter "
        "RecursiveScriptModule._save_to_buffer_for_lite_interpreter ScriptModule._save_to_buffer_for_lite_interpreter",
        _saved_scripts.refuse,
        When.FAKES_EXIST,
        "Reads the data of every tensor, which a fake does not have.",
        optional=True,
    ),
    Patch(
        "torch.jit._serialization:load",
        _saved_scripts.load,
        When.IN_MODE,
        "Returns a module with empty tensors for one that was saved with fakes. Puts the fakes back.",
    ),
    Patch(
        "torch:Tensor._reduce_ex_internal",
        _serialization.reduce_ex,
        When.GIVEN_FAKE,
        "Pickles data; for a fake, its metadata.",
    ),
    Patch(
        "torch:Tensor.__deepcopy__",
        _serialization.deepcopy,
        When.GIVEN_FAKE,
        "Copies data, which a fake does not have.",
    ),
    *each(
        "torch:Tensor.{}",
        {"share_memory_": _serialization.share_memory_, "is_shared": _serialization.is_shared},
        When.GIVEN_FAKE,
        "A fake has no memory to share.",
    ),
    *same(
        "multiprocessing.reduction:ForkingPickler._extra_reducers[{}]",
        "torch.Tensor torch.nn.parameter.Parameter",
        _serialization.reduce_for_process,
        When.GIVEN_FAKE,
        "Shares memory; a fake is pickled instead.",
    ),
)
