"""Rows of the table of replacements (`_replacements.py`): modes, tracers and compilers, autograd, symbolic numbers."""

from __future__ import annotations

from torchfake import _symbolic, _symbolic_proxies, _tracing, _training, interop
from torchfake._C import When
from torchfake._patches import Patch, Put, each, same

MODES = (
    *same(
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
            "The tool checks with `isinstance` that it is in a FakeTensorMode; torchfake's counts as one.",
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
    *same(
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

TRACING = (
    Patch(
        "torch._dynamo:reset",
        _training.real,
        When.IN_MODE,
        "Resets the graphs of a real CUDA device, if there is one.",
    ),
    Patch(
        "torch:compile",
        _tracing.compile,
        When.IN_MODE,
        "The default backend generates code for an absent device. The captured graph runs eagerly instead.",
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
        "`make_fx` would use the fakes' mode, which has no symbols, and fail with an assertion.",
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
        "Records the arguments of a call: under stand-ins, a data-dependent size is that of the longest one.",
    ),
    Patch(
        "torch._library.fake_impl:set_ctx_getter",
        _tracing.set_ctx_getter,
        When.IN_MODE,
        "A fake implementation that needs a data-dependent size gets a typed error.",
    ),
)

AUTOGRAD = (
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
        "Forward-mode differentiation creates zero tangents on the devices of its inputs, which must be fake as well.",
    ),
    Patch(
        "torch.autograd:_make_grads",
        _training.make_grads,
        When.IN_MODE,
        "The initial gradient of a real graph has to be real.",
    ),
    *each(
        "torch.autograd.graph:{}",
        {"_get_sid": _training.get_sid, "_get_tid": _training.get_tid},
        When.GIVEN_FAKE,
        "Identifies saved tensors by address.",
    ),
)

SYMBOLIC = (
    Patch(
        "torch.fx.experimental.proxy_tensor:_build_proxy_for_sym_expr",
        _symbolic_proxies.build_proxy,
        When.ALWAYS,
        "Only reads sympy's expressions, not those of torchfake's symbols.",
        optional=True,
    ),
    Patch(
        "torch.fx.experimental.proxy_tensor:_set_unbacked_bindings",
        _symbolic.set_unbacked_bindings,
        When.ALWAYS,
        "Only asks PyTorch's mode for its ShapeEnv, not torchfake's FakeTensorMode.",
        optional=True,
    ),
    Patch(
        "torch:SymBool.__sym_ite__",
        _symbolic.sym_ite,
        When.ALWAYS,
        "Only accepts PyTorch's own nodes, not those of torchfake's symbols.",
    ),
    *each(
        "torch.fx.experimental.symbolic_shapes:{}",
        {
            "guarding_hint_or_throw": _symbolic.guarding_hint_or_throw,
            "_advise_is_size": _symbolic.advise_is_size,
            "_constrain_range_for_size": _symbolic.constrain_range_for_size,
            "compute_unbacked_bindings": _symbolic.compute_unbacked_bindings,
            "_free_unbacked_symbols_with_path": _symbolic.free_unbacked_symbols_with_path,
            "rebind_unbacked": _symbolic.rebind_unbacked,
            "has_static_value": _symbolic.is_singleton,
        },
        When.ALWAYS,
        "Only accepts PyTorch's own nodes, not those of torchfake's symbols.",
        optional=True,
    ),
)
