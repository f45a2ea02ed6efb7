"""The table of everything that torchfake replaces in PyTorch's Python. See Note [Replacements] in _patches.py.

docs/replacements.md is generated from it by docs/generate_replacements.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torchfake import (
    _C,
    _card_pools,
    _contributions,
    _data_parallel,
    _devices,
    _distributed,
    _loading,
    _saving,
    _serialization,
    _splits,
    _storages,
    _symbolic,
    _symbolic_proxies,
    _tensors,
    _tracing,
    _training,
    _unused_parameters,
    _virtual_cards,
    interop,
)
from torchfake._C import When
from torchfake._patches import Patch, Patches, Put
from torchfake.errors import ModeActiveError


def _instead(function: Callable[..., Any]) -> Callable[..., Any]:
    """A replacement that does not use the original."""

    def by(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    by.__qualname__, by.__module__ = function.__qualname__, function.__module__
    return by


def _each(pattern: str, by: Mapping[str, Callable[..., Any]], when: When, why: str, **rest: bool) -> tuple[Patch, ...]:
    """A row for each name, which replaces `{}` in the pattern."""
    return tuple(Patch(pattern.format(name), function, when, why, **rest) for name, function in by.items())


def _same(pattern: str, names: str, by: Callable[..., Any], when: When, why: str, **rest: bool) -> tuple[Patch, ...]:
    """The same for several names with one replacement."""
    return _each(pattern, dict.fromkeys(names.split(), by), when, why, **rest)


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

_TENSORS = (
    *ATTRIBUTES,
    *_each(
        "torch:Tensor.{}",
        _tensors.FOR_FAKES,
        When.GIVEN_FAKE,
        "Implemented in C, from the dispatch keys or the data pointer of a tensor.",
    ),
    Patch(
        "torch:FloatTensor.__class__.__instancecheck__",
        _tensors.is_of_legacy_type,
        When.GIVEN_FAKE,
        "`isinstance(x, torch.ByteTensor)`: answers from the dispatch keys of a tensor.",
    ),
    Patch(
        "torch:Tensor.set_",
        _storages.set_,
        When.FAKES_EXIST,
        "Would give a fake the storage of a real tensor, or vice versa.",
    ),
    *_each(
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
        "Sizes that are stand-ins cover the dimension.",
        copies=False,
    ),
    Patch(
        "torch:Tensor.split_with_sizes",
        _splits.split_with_sizes,
        When.GIVEN_FAKE,
        "Sizes that are stand-ins cover the dimension.",
        copies=False,
    ),
    Patch("torch:Tensor.__format__", _tensors.format_tensor, When.GIVEN_FAKE, "Formats a scalar by its value."),
    Patch(
        "torch._tensor_str:_str_intern",
        _tensors.str_intern,
        When.FAKES_EXIST,
        "Prints values, which a fake does not have; printing a real tensor runs operators.",
    ),
    Put(
        "torch:_has_compatible_shallow_copy_type",
        _training.make_is_compatible,
        When.GIVEN_FAKE,
        "`module.to()` checks whether it can set `parameter.data`, which it cannot between a real tensor and a fake.",
        condition_in_words="one argument is a fake and the other is not",
    ),
)

_STORAGES = (
    *_same(
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
    *_same(
        "torch.storage:{}",
        "UntypedStorage.__repr__ TypedStorage.__str__",
        _storages.show,
        When.GIVEN_META_STORAGE,
        "Prints elements.",
    ),
    *_same(
        "torch.storage:{}",
        "UntypedStorage._to TypedStorage._to",
        _storages.convert,
        When.IN_MODE_OR_GIVEN_META_STORAGE,
        "Converts elements through a tensor.",
    ),
    *_each(
        "torch.storage:UntypedStorage.{}",
        {"clone": _storages.clone, "to": _storages.to, "cpu": _storages.cpu, "mps": _storages.mps},
        When.GIVEN_META_STORAGE,
        "Copies data, which a fake does not have.",
    ),
    *_same(
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
        "Memory that is taken or given back without an operator.",
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
    *_same(
        "torch.distributed.{}",
        "utils:_data_ptr_allocated fsdp._flat_param:_same_storage "
        "fsdp._fully_shard._fsdp_param:FSDPParam.reset_sharded_param",
        _storages.comparing_addresses,
        When.FAKES_EXIST,
        "PyTorch's sharding compares the addresses of storages without reading from them.",
    ),
)

_CREATION = (
    *_each(
        "torch:{}",
        {"asarray": _storages.asarray, "frombuffer": _storages.frombuffer},
        When.IN_MODE,
        "Creates a tensor on existing memory without an operator.",
    ),
    Patch(
        "torch.utils.dlpack:from_dlpack",
        _storages.from_dlpack,
        When.IN_MODE_OR_GIVEN_FAKE,
        "Creates a tensor on existing memory without an operator; a fake has a storage to share, but no memory.",
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
            "A type, implemented in C, that cannot create tensors in a PyTorch without CUDA.",
            condition_in_words="called while the thread is in a mode; otherwise it raises PyTorch's error",
            optional=True,
        )
        for name in _devices.NAMES
    ),
)

_MODES = (
    *_same(
        "{}",
        "torch.utils._python_dispatch:_disable_current_modes() torch._subclasses.fake_tensor:unset_fake_temporarily()",
        interop.suspend_as_well,
        When.IN_MODE,
        "Functions that suspend modes also suspend a FakeTensorMode of torchfake.",
    ),
    Patch(
        "torch._subclasses.fake_tensor:FakeTensorMode.__enter__",
        interop.enter_pytorchs_mode,
        When.IN_MODE,
        "The innermost mode applies: PyTorch's own, entered inside one of torchfake, suspends that.",
    ),
    Patch(
        "torch._subclasses.fake_tensor:FakeTensorMode.__exit__",
        interop.leave_pytorchs_mode,
        When.FAKES_EXIST,
        "Resumes the mode that `__enter__` suspended.",
    ),
    Patch(
        "torch._subclasses.fake_tensor:FakeTensorMode.from_tensor",
        interop.from_tensor,
        When.IN_MODE,
        "Describes a tensor by calling factories, with sizes that may be symbols of a tracer.",
    ),
    Patch(
        "torch._guards:active_fake_mode",
        interop.active_mode,
        When.IN_MODE,
        "Returns the FakeTensorMode of torchfake that the thread is in.",
    ),
    Patch(
        "torch._guards:detect_fake_mode",
        interop.detect_mode,
        When.FAKES_EXIST,
        "Finds the FakeTensorMode of torchfake that the thread is in, or whose fakes it is given.",
    ),
    *(
        Put(
            f"torch.distributed._tools.{module}:FakeTensorMode",
            interop.either_mode,
            When.ALWAYS,
            "The tool checks with `isinstance` that it is in a FakeTensorMode; torchfake's is one.",
            condition_in_words="always; instances of both classes pass the check",
            optional=True,
        )
        for module in ("runtime_estimator", "sac_estimator")
    ),
    *(
        Put(
            f"torch._functorch.{module}:FakeTensor",
            interop.either_fake,
            When.ALWAYS,
            "AOTAutograd checks with `isinstance` that it traces FakeTensors; those of torchfake are plain tensors.",
            condition_in_words="always; tensors of both kinds pass the check",
            optional=True,
        )
        for module in (
            "aot_autograd",
            "_aot_autograd.frontend_utils",
            "_aot_autograd.functional_utils",
            "_aot_autograd.graph_compile",
            "_aot_autograd.runtime_wrappers",
            "_aot_autograd.utils",
        )
    ),
    *_same(
        "torch._functorch._aot_autograd.{}:is_fake_tensor",
        "frontend_utils functional_utils graph_compile runtime_wrappers utils",
        interop.is_fake_tensor,
        When.FAKES_EXIST,
        "Since 2.14: AOTAutograd asks a function whether it traces FakeTensors.",
        copies=False,
        optional=True,
    ),
    Patch(
        "torch._functorch._aot_autograd.frontend_utils:maybe_get_fake_mode",
        interop.mode_of_fake,
        When.FAKES_EXIST,
        "Since 2.14: AOTAutograd converts fakes of another mode than the one that it traces with.",
        copies=False,
        optional=True,
    ),
    Patch(
        "torch._inductor.fx_passes.memory_estimator:GraphAliasTracker._get_output_storages",
        interop.output_storages,
        When.FAKES_EXIST,
        "Looks for PyTorch's own FakeTensors in the graph, and would estimate 0 bytes.",
        optional=True,
    ),
    Patch(
        "torch.testing._internal.optests.generate_tests:is_abstract",
        interop.is_abstract,
        When.FAKES_EXIST,
        "`opcheck` compares data, which a fake does not have.",
        optional=True,
    ),
    Patch(
        "torch._subclasses.fake_tensor:FakeTensor.__torch_dispatch__",
        interop.dispatch,
        When.FAKES_EXIST,
        "If PyTorch's FakeTensors are mixed with torchfake's, the error says how to convert them.",
    ),
)

_TRACING = (
    Patch(
        "torch._dynamo:reset",
        _training.real,
        When.IN_MODE,
        "Resets the graphs of a CUDA that is there, if there is one.",
    ),
    Patch(
        "torch:compile",
        _tracing.compile,
        When.IN_MODE,
        "The default backend generates code for a device that is not there: the captured graph runs eagerly instead.",
        copies=False,
    ),
    Patch(
        "torch.fx.experimental.proxy_tensor:is_fake",
        _tracing.is_fake_to_tracers,
        When.FAKES_EXIST,
        "Tracers store a fake in the graph unchanged.",
        copies=False,
    ),
    Patch(
        "torch.fx.experimental.proxy_tensor:_MakefxTracer.trace",
        interop.trace,
        When.FAKES_EXIST,
        "`make_fx` would find the mode of fakes that has no symbols, and fail with an assertion.",
    ),
    Patch(
        "torch._C:_is_fake_tensor",
        _tracing.is_fake_of_pytorch,
        When.FAKES_EXIST,
        "Since 2.14: tracers assume that a tensor with the Fake key is one of PyTorch's own fakes.",
        optional=True,
    ),
    Patch(
        "torch._subclasses.meta_utils:_safe_copy",
        _tracing.safe_copy,
        When.FAKES_EXIST,
        "PyTorch's own mode, given a fake of ours and asked to propagate real values, copies its data.",
    ),
    Patch(
        "torch._subclasses.meta_utils:_safe_clone",
        _tracing.safe_clone,
        When.FAKES_EXIST,
        "PyTorch's own mode, given a fake of ours and asked to propagate real values, copies its data.",
    ),
    Patch(
        "torch._subclasses.meta_utils:_clone_real_storage_from_tensor",
        _tracing.clone_real_storage,
        When.FAKES_EXIST,
        "PyTorch's own mode, given a fake of ours and asked to propagate real values, copies its storage.",
        optional=True,
    ),
    Patch("torch.export:save", _tracing.save, When.FAKES_EXIST, "Writes data, which a fake does not have."),
    Patch(
        "torch._dynamo.utils:clone_input",
        _tracing.clone_input,
        When.FAKES_EXIST,
        "The compiler aligns its example inputs, for which it reads their addresses.",
    ),
    Patch(
        "torch._ops:HigherOrderOperator.dispatch",
        _tracing.dispatch,
        When.FAKES_EXIST,
        "Higher-order operators are dispatched in Python, which has no kernels for the Fake key.",
    ),
    Patch(
        "torch._ops:TorchBindOpOverload._dispatch_in_python",
        _tracing.dispatch_with_object,
        When.FAKES_EXIST,
        "Operators given a FakeScriptObject are dispatched in Python, which has no kernels for the Fake key.",
    ),
    Patch(
        "torch._higher_order_ops.utils:setup_compilation_env",
        _tracing.setup_compilation_env,
        When.IN_MODE,
        "The compiler uses its own fakes, so the mode is suspended.",
    ),
    Patch(
        "torch._library.fake_impl:construct_meta_kernel",
        _tracing.construct_meta_kernel,
        When.IN_MODE,
        "Under stand-ins a data-dependent size is the longest argument's: notes the arguments of a call.",
    ),
    Patch(
        "torch._library.fake_impl:set_ctx_getter",
        _tracing.set_ctx_getter,
        When.IN_MODE,
        "A fake implementation that needs a data-dependent size gets a typed error.",
    ),
)

_AUTOGRAD = (
    Patch(
        "torch.autograd.graph:_engine_run_backward",
        _training.engine_run_backward,
        When.FAKES_EXIST,
        "Backward creates tensors on the devices of its inputs: fakes for fakes, also outside the mode.",
    ),
    Patch(
        "torch._functorch.eager_transforms:_jvp_with_argnums",
        _training.jvp,
        When.FAKES_EXIST,
        "Forward-mode differentiation creates tangents of zeros on the devices of its inputs, likewise.",
    ),
    Patch(
        "torch.autograd:_make_grads",
        _training.make_grads,
        When.IN_MODE,
        "The initial gradient of a real graph has to be real.",
    ),
    *_each(
        "torch.autograd.graph:{}",
        {"_get_sid": _training.get_sid, "_get_tid": _training.get_tid},
        When.GIVEN_FAKE,
        "Identifies saved tensors by address.",
    ),
)

_DEVICES = (
    Patch(
        "torch.cuda.amp.common:amp_definitely_not_available",
        _devices.amp_definitely_not_available,
        When.IN_MODE,
        "Mixed precision works on a claimed GPU.",
    ),
    *_each(
        "torch.cuda:{}",
        {
            "is_bf16_supported": _virtual_cards.is_bf16_supported,
            "get_device_capability": _virtual_cards.get_device_capability,
        },
        When.IN_MODE,
        "Reads the properties of the device.",
    ),
    *_each(
        "{}",
        {target: _virtual_cards.on_cards(function) for target, function in _virtual_cards.ON_CARDS.items()},
        When.IN_MODE,
        "Answers for the cards of the mode; a `FakeTensorMode` has none, and the original answers.",
        optional=True,
    ),
    Patch(
        "torch.cuda:_lazy_init",
        _virtual_cards.lazy_init,
        When.FAKES_EXIST,
        "Answers for the cards of the mode, and outside of it says to enter one.",
    ),
    Patch(
        "torch.cuda.graphs:CUDAGraph.__new__",
        _virtual_cards.new_graph,
        When.IN_MODE,
        "Has no base class in a PyTorch without CUDA.",
    ),
    Patch(
        "torch.cuda.memory:MemPool.__new__",
        _card_pools.new_pool,
        When.IN_MODE,
        "Has no base class in a PyTorch without CUDA.",
        optional=True,
    ),
    Patch(
        "torch:get_device_module",
        _virtual_cards.get_device_module,
        When.IN_MODE,
        "Without an argument it returns the module of the accelerator, and caches it.",
    ),
    Patch(
        "torch._C:_get_accelerator",
        _virtual_cards.get_accelerator,
        When.IN_MODE,
        "The device of a mesh that `fully_shard` makes for itself.",
        optional=True,
    ),
    Patch(
        "torch.backends.cudnn:m.set_flags",
        _virtual_cards.set_flags,
        When.IN_MODE,
        "Reads a setting of cuDNN that a PyTorch without it does not have.",
        optional=True,
    ),
    Patch(
        "torch.cuda.graphs:graph.__enter__",
        _virtual_cards.begin_capture,
        When.IN_MODE,
        "Empties the caches of allocators that are not there.",
    ),
    Put(
        "torch.version:__class__",
        _virtual_cards.versions,
        When.IN_MODE,
        "`torch.version.cuda` is that of the cards.",
        condition_in_words="`cuda` is read while the thread is in a mode with cards",
    ),
    Patch(
        "torch.random:set_rng_state",
        _devices.set_rng_state,
        When.GIVEN_FAKE,
        "Reads the state from memory.",
    ),
    Patch(
        "torch.amp.grad_scaler:GradScaler._maybe_opt_step",
        _devices.maybe_opt_step,
        When.FAKES_EXIST,
        "Checks whether a gradient overflowed, which is an unknown value.",
    ),
    *_each(
        "torch.cuda:{}",
        {name: _instead(function) for name, function in _devices.IN_THE_MODE.items()},
        When.IN_MODE,
        "The current device, generators, streams and events of claimed devices.",
    ),
    *_each(
        "torch.cuda:{}.__new__",
        {"Stream": _devices.new_stream, "Event": _devices.new_event},
        When.IN_MODE,
        "Has no base class in a PyTorch without CUDA.",
    ),
    Patch(
        "torch._C:_ensureCUDADeviceGuardSet",
        _devices.leave_guard,
        When.FAKES_EXIST,
        "PyTorch's FakeTensorMode would replace torchfake's device guard by one without streams.",
    ),
    *_same(
        "{}",
        "torch.cuda:_check_bf16_tensor_supported torch.xpu:get_device_capability "
        "torch._subclasses.fake_tensor:init_gpu_context torch.nn.attention.varlen:_should_use_cudnn "
        "torch.nn.attention._fa3:_get_device_major torch.nn.attention._fa4:_get_device_major "
        "torch.utils._triton:has_triton torch.utils._triton:has_triton_tma "
        "torch.utils._triton:has_triton_tma_device torch.utils._triton:has_triton_stable_tma_api "
        "torch.utils._triton:has_triton_experimental_host_tma "
        "torch.utils._triton:has_triton_tensor_descriptor_host_tma "
        "torch.utils._triton:has_datacenter_blackwell_tma_device torch._utils_internal:max_clock_rate",
        _devices.uncached,
        When.IN_MODE,
        "PyTorch caches the result, which differs between a claimed and a real device.",
        optional=True,
    ),
)

_MODULES = (
    Patch(
        "torch.nn:RNNBase.flatten_parameters",
        _training.flatten_parameters,
        When.FAKES_EXIST,
        "Compares the weights by address.",
    ),
    Patch(
        "torch.nn:Module.load_state_dict",
        _loading.load_state_dict,
        When.FAKES_EXIST,
        "Would copy some of the tensors, and raise a generic error for real tensors mixed with fakes.",
    ),
    Patch(
        "torch.nn.init:_no_grad_trunc_normal_",
        _training.no_grad_trunc_normal_,
        When.GIVEN_FAKE,
        "Redraws values until all are in range.",
    ),
    Patch(
        "torch.nn.functional:gaussian_nll_loss",
        _training.with_nothing_negative,
        When.FAKES_EXIST,
        "Checks that no variance is negative.",
    ),
    *_same(
        "torch.distributions.{}",
        "distribution:Distribution.__init__ distribution:Distribution._validate_sample "
        "geometric:Geometric.__init__ continuous_bernoulli:ContinuousBernoulli.__init__",
        _training.with_valid_input,
        When.FAKES_EXIST,
        "Validates values.",
        optional=True,
    ),
    *_same(
        "torch.optim._adafactor:{}",
        "_single_tensor_adafactor _multi_tensor_adafactor",
        _training.with_factors_alone,
        When.FAKES_EXIST,
        "Reads norms, which are only used as factors.",
    ),
)

_DATA = (
    *_same(
        "torch.utils.data.sampler:{}.__iter__",
        "RandomSampler SubsetRandomSampler WeightedRandomSampler",
        _training.real_steps,
        When.FAKES_EXIST,
        "The samples of a batch are values, so they are drawn for real.",
    ),
    Patch(
        "torch.utils.data.sampler:WeightedRandomSampler.__init__",
        _training.weighted_init,
        When.IN_MODE_OR_GIVEN_FAKE,
        "Draws with these weights, which have to be known.",
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
    *_each(
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

_FILES = (
    Patch("torch.serialization:_load", _loading.load, When.IN_MODE, "Returns fakes without reading the data."),
    Patch(
        "torch.serialization:_legacy_load",
        _loading.legacy_load,
        When.FAKES_EXIST,
        "Returns fakes without reading the data; outside the mode it tells pickled fakes the map_location.",
    ),
    Patch("safetensors:safe_open", _loading.safe_open, When.IN_MODE, "Returns fakes, from the header alone."),
    Patch("safetensors.torch:load", _loading.load_safetensors, When.IN_MODE, "Returns fakes, from the header alone."),
    Patch(
        "safetensors.torch:save_file",
        _saving.save_file,
        When.FAKES_EXIST,
        "Writes data, which a fake does not have: a file of that size with a hole.",
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
    *_each(
        "torch:Tensor.{}",
        {"share_memory_": _serialization.share_memory_, "is_shared": _serialization.is_shared},
        When.GIVEN_FAKE,
        "A fake has no memory to share.",
    ),
    *_same(
        "multiprocessing.reduction:ForkingPickler._extra_reducers[{}]",
        "torch.Tensor torch.nn.parameter.Parameter",
        _serialization.reduce_for_process,
        When.GIVEN_FAKE,
        "Shares memory; a fake is pickled instead.",
    ),
)

_DISTRIBUTED = (
    *_each(
        "torch.nn.parallel.comm:{}",
        _data_parallel.OF_CARDS,
        When.IN_MODE_OR_GIVEN_FAKE,
        "`DataParallel` copies between cards through NCCL, in builds with CUDA alone.",
    ),
    Patch(
        "torch.cuda.nccl:reduce",
        _data_parallel.reduce,
        When.GIVEN_FAKE,
        "Adds the gradients of the copies through NCCL.",
    ),
    Patch(
        "torch.nn.parallel.parallel_apply:parallel_apply",
        _data_parallel.parallel_apply,
        When.IN_MODE,
        "Calls the copies of a module in threads of its own, which are not in the mode.",
    ),
    *_each(
        "torch.distributed.distributed_c10d:{}",
        _distributed.IN_A_GROUP,
        When.IN_MODE,
        "One process stands for one rank of many: there is nobody to meet or to hear from.",
        optional=True,
    ),
    *(
        Patch(
            f"torch.distributed.distributed_c10d:{name}",
            by,
            When.IN_MODE,
            "With stand-ins, all ranks contribute the values of this one if these are known.",
            optional=True,
        )
        for name, by in _contributions.OF_KNOWN_VALUES.items()
    ),
    Patch(
        "torch.distributed.device_mesh:DeviceMesh.__init__",
        _distributed.new_mesh,
        When.IN_MODE,
        "`--rank all` reads from the meshes of a program which ranks are alike.",
        optional=True,
    ),
    Patch(
        "torch.multiprocessing.spawn:start_processes",
        _distributed.start_processes,
        When.IN_MODE,
        "With stand-ins, one process stands for all that would be started.",
        optional=True,
    ),
    Patch(
        "torch.nn.parallel.distributed:DistributedDataParallel._pre_forward",
        _distributed.pre_forward,
        When.IN_MODE,
        "Reads the reduced gradients from the future of the fake group, which holds nothing.",
        optional=True,
    ),
    *(
        Patch(
            f"torch.nn.parallel.distributed:DistributedDataParallel.{name}",
            by,
            When.IN_MODE,
            "The reducer tells other ranks through memory which parameters were used.",
            optional=True,
        )
        for name, by in (
            ("_ddp_init_helper", _unused_parameters.make_reducer),
            ("_set_static_graph", _unused_parameters.set_static_graph),
            ("_post_forward", _unused_parameters.post_forward),
        )
    ),
    Patch(
        "torch.distributed.checkpoint.utils:_DistWrapper.__init__",
        _distributed.plan_alone,
        When.IN_MODE,
        "Rank 0 plans the checkpoint of all ranks: with stand-ins, the one that runs does so for itself.",
        optional=True,
    ),
    Patch(
        "torch.distributed.checkpoint.default_planner:_validate_global_plan",
        _distributed.validate_plan,
        When.IN_MODE,
        "Checks that the shards of all ranks make the whole; those of one rank do not.",
        optional=True,
    ),
    Patch(
        "torch.distributed.utils:_verify_param_shape_across_processes",
        _distributed.verify_shapes,
        When.FAKES_EXIST,
        "Compares shapes between ranks through the memory of a tensor.",
        optional=True,
    ),
)

_LIBRARIES = (
    Put(
        "torch._C:_cuda_CUDAAllocator_AllocatorState",
        _virtual_cards.allocator_state,
        When.IN_MODE,
        "PyTorch's compiler imports it where `torch.version.cuda` is set, as it is in a mode with cards.",
        condition_in_words="only if this PyTorch has no CUDA",
        optional=True,
    ),
    Patch(
        "torch._ops:_Ops.load_library",
        _virtual_cards.load_library,
        When.IN_MODE,
        "A library of operators that was compiled for CUDA does not load beside a PyTorch that has none.",
    ),
    Patch(
        "transformers.generation.utils:GenerationMixin._beam_search_has_unfinished_sequences",
        _training.goes_on,
        When.IN_MODE,
        "Whether a beam may improve is an unknown value: with stand-ins, generation goes on to its limit.",
        optional=True,
    ),
)

_SYMBOLIC = (
    Patch(
        "torch.fx.experimental.proxy_tensor:_build_proxy_for_sym_expr",
        _symbolic_proxies.build_proxy,
        When.ALWAYS,
        "Reads sympy's expressions only; for those of torchfake's symbols.",
        optional=True,
    ),
    Patch(
        "torch:SymBool.__sym_ite__",
        _symbolic.sym_ite,
        When.ALWAYS,
        "Accepts PyTorch's own nodes only; for those of torchfake's symbols.",
    ),
    *_each(
        "torch.fx.experimental.symbolic_shapes:{}",
        {
            "guarding_hint_or_throw": _symbolic.guarding_hint_or_throw,
            "_advise_is_size": _symbolic.advise_is_size,
            "_constrain_range_for_size": _symbolic.constrain_range_for_size,
            "compute_unbacked_bindings": _symbolic.compute_unbacked_bindings,
            "rebind_unbacked": _symbolic.rebind_unbacked,
            "has_static_value": _symbolic.is_singleton,
        },
        When.ALWAYS,
        "Accepts PyTorch's own nodes only; for those of torchfake's symbols.",
        optional=True,
    ),
)

#: The rows by subject, as documented.
SECTIONS: dict[str, tuple[Patch, ...]] = {
    "Tensors": _TENSORS,
    "Storages": _STORAGES,
    "Tensors made without an operator": _CREATION,
    "Modes": _MODES,
    "Tracers and compilers": _TRACING,
    "Autograd": _AUTOGRAD,
    "Devices": _DEVICES,
    "Modules, losses and optimizers": _MODULES,
    "Data loading": _DATA,
    "Files, copies and processes": _FILES,
    "Process groups": _DISTRIBUTED,
    "Other libraries": _LIBRARIES,
    "Symbolic numbers": _SYMBOLIC,
}

TABLE: tuple[Patch, ...] = tuple(patch for section in SECTIONS.values() for patch in section)

patches = Patches(TABLE)
_C._set_front(patches.install, patches.remove)


def uninstall() -> None:
    """Undoes everything that torchfake has changed in PyTorch: kernels, device guards, replaced functions.

    The changes are made when a mode is first entered or a fake first created, and again after this call. In between, no
    thread may use existing fakes.

    Raises:
        ModeActiveError: A thread is in a mode.

    >>> import torch, torchfake
    >>> with torchfake.fake_mode():
    ...     x = torch.ones(2, device="cuda")
    >>> torchfake.uninstall()
    >>> with torchfake.fake_mode():
    ...     x = torch.ones(2, device="cuda")
    """
    if not _C.deactivate():
        raise ModeActiveError(
            f"uninstall: {_C.entered_modes()} modes are active on the threads of this process; leave them first."
        )
