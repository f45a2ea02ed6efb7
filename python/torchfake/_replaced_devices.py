"""Rows of the table of replacements (`_replacements.py`): devices, modules, process groups, other libraries."""

from __future__ import annotations

from torchfake import (
    _card_pools,
    _card_runtime,
    _contributions,
    _data_parallel,
    _devices,
    _distributed,
    _loading,
    _sharded_states,
    _training,
    _unused_parameters,
    _virtual_cards,
)
from torchfake._C import When
from torchfake._patches import Patch, Put, each, instead, same

DEVICES = (
    Patch(
        "torch.cuda.amp.common:amp_definitely_not_available",
        _devices.amp_definitely_not_available,
        When.IN_MODE,
        "Mixed precision works on a claimed GPU.",
    ),
    *each(
        "torch.cuda:{}",
        {
            "is_bf16_supported": _virtual_cards.is_bf16_supported,
            "get_device_capability": _virtual_cards.get_device_capability,
        },
        When.IN_MODE,
        "Reads the properties of the device.",
    ),
    *each(
        "{}",
        {target: _virtual_cards.on_cards(function) for target, function in _virtual_cards.ON_CARDS.items()},
        When.IN_MODE,
        "Describes the cards of the mode. In a `FakeTensorMode`, which has none, the original is called.",
        optional=True,
    ),
    Patch(
        "torch.cuda:_lazy_init",
        _virtual_cards.lazy_init,
        When.FAKES_EXIST,
        "Describes the cards of the mode. Outside of a mode, the error suggests entering one.",
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
        "Without an argument, it returns and caches the module of the accelerator.",
    ),
    Patch(
        "torch._C:_get_accelerator",
        _virtual_cards.get_accelerator,
        When.IN_MODE,
        "Chooses the device of the mesh that `fully_shard` creates.",
        optional=True,
    ),
    Patch(
        "torch.backends.cudnn:m.set_flags",
        _virtual_cards.set_flags,
        When.IN_MODE,
        "Reads a cuDNN setting that a PyTorch without cuDNN does not have.",
        optional=True,
    ),
    Patch(
        "torch.autograd.profiler:profile.__init__",
        _card_runtime.new_profile,
        When.IN_MODE,
        "Times claimed devices by CUDA events, in builds without CUDA's profiler.",
    ),
    Patch(
        "torch.autograd.profiler:emit_nvtx.__init__",
        _card_runtime.new_emit_nvtx,
        When.IN_MODE,
        "Fails in a PyTorch without CUDA.",
    ),
    Patch(
        "torch.cuda.graphs:graph.__enter__",
        _virtual_cards.begin_capture,
        When.IN_MODE,
        "Empties the caches of allocators that do not exist.",
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
    *each(
        "torch.cuda:{}",
        {name: instead(function) for name, function in _devices.IN_THE_MODE.items()},
        When.IN_MODE,
        "The current device, generators, streams and events of claimed devices.",
    ),
    *each(
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
    *same(
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
        "PyTorch caches the result, which differs between claimed and real devices.",
        optional=True,
    ),
)

MODULES = (
    Patch(
        "torch.nn:RNNBase.flatten_parameters",
        _training.flatten_parameters,
        When.FAKES_EXIST,
        "Compares the weights by address.",
    ),
    Patch(
        "torch.nn:TransformerEncoder.forward",
        _training.padded_encoder,
        When.GIVEN_FAKE,
        "Converts a padded batch to a nested tensor in evaluation mode.",
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
    *same(
        "torch.distributions.{}",
        "distribution:Distribution.__init__ distribution:Distribution._validate_sample "
        "geometric:Geometric.__init__ continuous_bernoulli:ContinuousBernoulli.__init__",
        _training.with_valid_input,
        When.FAKES_EXIST,
        "Validates values.",
        optional=True,
    ),
    *same(
        "torch.optim._adafactor:{}",
        "_single_tensor_adafactor _multi_tensor_adafactor",
        _training.with_only_factors,
        When.FAKES_EXIST,
        "Reads norms, which are only used as factors.",
    ),
)

DISTRIBUTED = (
    *each(
        "torch.nn.parallel.comm:{}",
        _data_parallel.OF_CARDS,
        When.IN_MODE_OR_GIVEN_FAKE,
        "`DataParallel` copies between cards through NCCL, which only builds with CUDA have.",
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
        "Calls the copies of a module in new threads, which are not in the mode.",
    ),
    *each(
        "torch.distributed.distributed_c10d:{}",
        _distributed.IN_A_GROUP,
        When.IN_MODE,
        "Only one rank runs, so there are no other processes to communicate with.",
        optional=True,
    ),
    *(
        Patch(
            f"torch.distributed.distributed_c10d:{name}",
            by,
            When.IN_MODE,
            "With stand-ins, all ranks are assumed to contribute the known values of this rank.",
            optional=True,
        )
        for name, by in _contributions.OF_KNOWN_VALUES.items()
    ),
    *each(
        "torch.distributed.fsdp._optim_utils:{}",
        {
            "_map_param_key_to_optim_keys": _sharded_states.optimizer_keys,
            "_convert_all_state_info": _sharded_states.convert_state_info,
        },
        When.IN_MODE,
        "With stand-ins, the other ranks hold the optimizer state of their shards, not of this rank's.",
        optional=True,
    ),
    Patch(
        "torch.distributed.device_mesh:DeviceMesh.__init__",
        _distributed.new_mesh,
        When.IN_MODE,
        "`--rank all` determines from the program's meshes which ranks are alike.",
        optional=True,
    ),
    Patch(
        "torch.multiprocessing.spawn:start_processes",
        _distributed.start_processes,
        When.IN_MODE,
        "With stand-ins, only one of the processes runs.",
        optional=True,
    ),
    Patch(
        "torch.nn.parallel.distributed:DistributedDataParallel._pre_forward",
        _distributed.pre_forward,
        When.IN_MODE,
        "Reads the reduced gradients from the fake group's future, which is empty.",
        optional=True,
    ),
    *(
        Patch(
            f"torch.nn.parallel.distributed:DistributedDataParallel.{name}",
            by,
            When.IN_MODE,
            "The reducer communicates through memory which parameters were used.",
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
        "Rank 0 plans the checkpoint of all ranks. With stand-ins, the running rank plans its own part.",
        optional=True,
    ),
    Patch(
        "torch.distributed.checkpoint.default_planner:_validate_global_plan",
        _distributed.validate_plan,
        When.IN_MODE,
        "Checks that the shards of all ranks cover each tensor, which those of one rank do not.",
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

LIBRARIES = (
    Put(
        "torch._C:_cuda_CUDAAllocator_AllocatorState",
        _virtual_cards.allocator_state,
        When.IN_MODE,
        "PyTorch's compiler imports it if `torch.version.cuda` is set, as it is in a mode with cards.",
        condition_in_words="only if this PyTorch has no CUDA",
        optional=True,
    ),
    Patch(
        "torch._ops:_Ops.load_library",
        _virtual_cards.load_library,
        When.IN_MODE,
        "A library of operators compiled for CUDA does not load with a PyTorch without CUDA.",
    ),
    Patch(
        "transformers.generation.utils:GenerationMixin._beam_search_has_unfinished_sequences",
        _training.continues_generation,
        When.IN_MODE,
        "Whether a beam may improve is an unknown value. With stand-ins, generation continues to its limit.",
        optional=True,
    ),
    Patch(
        "transformers.models.whisper.generation_whisper:WhisperGenerationMixin._retrieve_segment",
        _training.one_segment,
        When.IN_MODE,
        "Searches unknown tokens for timestamps, and would resume from the last one forever.",
        optional=True,
    ),
)
