// The fallback kernel on the Fake key, which handles every operator on fakes and every operator called in the mode.
#include <torch/library.h>

#include <torchfake/core/activation.h>
#include <torchfake/core/call_context.h>
#include <torchfake/core/dispatch_keys.h>
#include <torchfake/core/errors.h>
#include <torchfake/dispatch/admission.h>
#include <torchfake/dispatch/fake_call.h>
#include <torchfake/dispatch/known_answers.h>
#include <torchfake/dispatch/layout_call.h>
#include <torchfake/dispatch/meta_call.h>
#include <torchfake/dispatch/new_symbols.h>
#include <torchfake/dispatch/refusals.h>
#include <torchfake/dispatch/symbolic_call.h>
#include <torchfake/dispatch/unboxed_call.h>

#include <limits>

namespace torchfake {

namespace {

// Fakes carry their mode; this one is used if a key set contains Fake without a fake or a mode.
const ModePtr& default_mode() {
  static const ModePtr mode = [] {
    ModePtr made = c10::make_intrusive<ModeState>(FakeModeOptions{});
    made->used_in = std::numeric_limits<uint32_t>::max();  // excluded from the modes in use: it never ends
    return made;
  }();
  return mode;
}

void take_route(Route route, Call& call, const ModePtr& mode) {
  switch (route) {
    case Route::kFake:
      if (C10_UNLIKELY(ShapeEnv::exist())) {
        if (answer_with_new_symbols(call, mode)) {
          return;
        }
        if (has_symbols(call)) {
          return symbolic_call(call, mode, &fake_call);
        }
      }
      return fake_call(call, mode);
    case Route::kReal:
      return real_call(call);
    case Route::kLift:
      return lift_argument(call, mode);
    case Route::kNumbers:
      return answer_for_numbers(call, ModePtr(mode));
    case Route::kDecomposed:
      return call.op.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, *call.stack);
    case Route::kOneByOne:
      return call.op.callBoxedForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd, *call.stack);
    case Route::kLayout:
      return layout_call(call, mode);
    case Route::kLayoutKeptOut:
      return layout_call_kept_out(call);
  }
}

// A recorder is notified only of the program's own calls that the engine handles, not of calls made by a rule or a
// kernel. If a composite is decomposed, the recorder is notified of the resulting operators instead.
bool is_recorded(Route route, const ModeState& mode) {
  return (mode.options.recorder != nullptr || scope_is_recorded()) && CallContext::current() == nullptr &&
      (route == Route::kFake || route == Route::kLift || route == Route::kNumbers || route == Route::kLayout);
}

void take_recorded_route(Route route, Call& call, const ModePtr& of_argument) {
  // Copied: the argument that holds the mode may be destroyed during the call.
  const ModePtr mode = of_argument;  // NOLINT(performance-unnecessary-copy-initialization)
  const std::shared_ptr<OpRecorder> of_scope = scope_recorder();
  const std::vector<c10::IValue> arguments(
      call.stack->end() - static_cast<ptrdiff_t>(call.num_args()), call.stack->end());
  take_route(route, call, mode);
  for (OpRecorder* recorder : {mode->options.recorder.get(), of_scope.get()}) {
    if (recorder != nullptr) {
      recorder->on_op(call.op, arguments, outputs_of(call));
    }
  }
}

void dispatch(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  Call call(op, OpTraits::of(op), keys, stack);
  if (C10_UNLIKELY(InKernel::active())) {
    return nested_call(call);
  }
  // The mode usually belongs to an argument, so it must not be used once the arguments are off the stack.
  const ModePtr* found = call.find_mode();
  const ModePtr& mode = found != nullptr ? *found : default_mode();
  const Route route = find_route(call, mode);
  if (C10_UNLIKELY(is_recorded(route, *mode))) {
    return take_recorded_route(route, call, mode);
  }
  take_route(route, call, mode);
}

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  at_the_boundary([&] {
    try {
      dispatch(op, keys, stack);
    } catch (const FakeTensorError&) {
      throw;
    } catch (const c10::Error& error) {
      refuse_internal_assertion(op, error);
      throw;
    }
  });
}

// Called first by `x.data = y`, above the Fake key. PyTorch compares backends only and would let a real tensor take
// over a fake's storage.
bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from) {
  if ((as_fake(self) != nullptr) != (as_fake(from) != nullptr)) {
    at_the_boundary([] {
      raise(
          ErrorKind::kRealTensor,
          "set_data",
          "`x.data = y` with one of them real and the other fake; convert the real one with torchfake.to_fake first.");
    });
  }
  return self.unsafeGetTensorImpl()->has_compatible_shallow_copy_type(from.key_set());
}

std::vector<torch::Library>& libraries() {
  static auto* libraries = new std::vector<torch::Library>();
  return *libraries;
}

// Lets views of zero tensors through to the Fake key. PyTorch's kernels on the ZeroTensor key are those of the
// backends, which return plain tensors that are not fake.
void install_views_of_zero_tensors() {
  struct Silent : c10::WarningHandler {
    void process(const c10::Warning& /*warning*/) override {}
  } silent;
  const c10::WarningUtils::WarningHandlerGuard replaces_kernels(&silent);
  libraries().emplace_back(torch::Library::IMPL, "aten", c10::DispatchKey::ZeroTensor, __FILE__, __LINE__);
  for (const char* name : {"as_strided", "view", "_reshape_alias"}) {
    libraries().back().impl(name, torch::CppFunction::makeFallthrough());
  }
}

// Installs the fallback on the Fake key, and the check for `x.data = y` on every key at which it can receive a dense
// tensor. See Note [Activation].
void install_fallback() {
  libraries().emplace_back(torch::Library::IMPL, "_", c10::DispatchKey::Fake, __FILE__, __LINE__);
  libraries().back().fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
  for (const c10::DispatchKey key : kDenseAutogradKeys) {
    libraries().emplace_back(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
    libraries().back().impl("_has_compatible_shallow_copy_type", TORCH_FN(has_compatible_shallow_copy_type));
  }
  install_views_of_zero_tensors();
}

const RegisterChange g_fallback(Span::kOnceActive, {&install_fallback, [] { libraries().clear(); }});

}  // namespace

const c10::BoxedKernel& boxed_fallback() {
  static const c10::BoxedKernel kernel = c10::BoxedKernel::makeFromFunction<&fallback>();
  return kernel;
}

}  // namespace torchfake
