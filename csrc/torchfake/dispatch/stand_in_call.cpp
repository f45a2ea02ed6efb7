// The fallback of layout calls: runs the real CPU kernel on small real tensors in place of the fakes.
#include <ATen/ops/as_strided.h>
#include <ATen/quantized/QTensorImpl.h>

#include <torchfake/core/errors.h>
#include <torchfake/core/fake_storage.h>
#include <torchfake/core/kernel_environment.h>
#include <torchfake/core/layout_fake.h>
#include <torchfake/core/plain_cpu.h>
#include <torchfake/core/to_fake.h>
#include <torchfake/dispatch/layout_call.h>
#include <torchfake/dispatch/map_tensors.h>
#include <torchfake/dispatch/refusals.h>
#include <torchfake/dispatch/stand_in_tensors.h>
#include <torchfake/dispatch/stored_counts.h>
#include <torchfake/dispatch/wrap_outputs.h>
#include <torchfake/values/known_values.h>

namespace torchfake {

namespace {

constexpr size_t kMaxBytes = size_t{16} << 20;

size_t bytes_of(const Call& call) {
  size_t bytes = 0;
  for (const TensorArg& tensor : call.tensors()) {
    bytes += static_cast<size_t>(tensor.impl->numel()) * tensor.impl->itemsize();
  }
  return bytes;
}

// The metadata of a result that a fake exposes, as text for comparison.
std::string describe(const c10::IValue& value);

std::string describe(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return "undefined";
  }
  std::string text = c10::str(tensor.layout(), tensor.scalar_type(), tensor.sizes());
  if (tensor.layout() == c10::kStrided) {
    return c10::str(text, tensor.strides(), tensor.storage_offset());
  }
  if (tensor.layout() == c10::kSparse) {
    text += static_cast<const at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl())->coalesced() ? "coalesced" : "";
  }
  if (is_sparse_layout(tensor.layout())) {
    for (const at::Tensor& member : members_of(tensor)) {
      text += describe(member);
    }
  }
  return text;
}

std::string describe(const c10::IValue& value) {
  if (value.isTensor()) {
    return describe(value.toTensor());
  }
  if (value.isTensorList()) {
    std::string text;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      text += describe(tensor) + ";";
    }
    return text;
  }
  return value.isObject() ? value.type()->repr_str() : c10::str(value);  // packed weights: a new object in each run
}

struct Run {
  StandInTensors stand_ins;
  torch::jit::Stack results;

  explicit Run(int number) : stand_ins(number) {}
};

std::unique_ptr<Run> run(const Call& call, int number) {
  PlainCpu plain;
  auto made = std::make_unique<Run>(number);
  for (size_t i = 0; i < call.num_args(); ++i) {
    if (call.traits.args[i].kind == ArgKind::kDevice) {
      made->results.emplace_back(call.arg(i).isNone() && call.has_fake() ? c10::IValue() : c10::Device(c10::kCPU));
    } else {
      made->results.push_back(
          map_tensors(call.arg(i), [&](const at::Tensor& tensor) { return made->stand_ins.of(tensor); }));
    }
  }
  call.op.callBoxed(&made->results);
  return made;
}

bool is_coalesced(const at::Tensor& tensor) {
  return tensor.layout() == c10::kSparse &&
      static_cast<const at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl())->coalesced();
}

// Whether two sparse tensors are the same but for the number of elements that they store.
bool differ_in_count_only(const at::Tensor& one, const at::Tensor& other) {
  if (!one.defined() || !other.defined() || !is_sparse_layout(one.layout()) || one.layout() != other.layout() ||
      one.sizes() != other.sizes() || one.scalar_type() != other.scalar_type()) {
    return false;
  }
  const std::vector<at::Tensor> of_one = members_of(one);
  const std::vector<at::Tensor> of_other = members_of(other);
  for (size_t i = 0; i < of_one.size(); ++i) {
    if (of_one[i].dim() != of_other[i].dim() || of_one[i].scalar_type() != of_other[i].scalar_type()) {
      return false;
    }
  }
  return of_one.back().sizes().slice(1) == of_other.back().sizes().slice(1) || one.layout() != c10::kSparse;
}

// The results, and the state of the arguments that were written to.
std::string outcome_of(const Call& call, Run& run) {
  std::string text;
  for (const c10::IValue& value : run.results) {
    text += describe(value) + "\n";
  }
  for (const TensorArg& tensor : call.tensors()) {
    if (tensor.is_written) {
      const at::Tensor given(c10::intrusive_ptr<c10::TensorImpl>::unsafe_reclaim_from_nonowning(tensor.impl));
      text += describe(run.stand_ins.of(given)) + "\n";
    }
  }
  return text;
}

// Whether the quantized tensors of both runs have the same scales and zero points.
bool agree_on_parameters(const Call& call, Run& one, Run& other) {
  const auto agree = [](const at::Tensor& a, const at::Tensor& b) {
    PlainCpu plain;
    return !a.defined() || !b.defined() || !a.is_quantized() || !b.is_quantized() ||
        at::get_qtensorimpl(a)->quantizer()->equalTo(at::get_qtensorimpl(b)->quantizer());
  };
  for (size_t i = 0; i < one.results.size(); ++i) {
    if (one.results[i].isTensor() && !agree(one.results[i].toTensor(), other.results[i].toTensor())) {
      return false;
    }
  }
  for (const TensorArg& tensor : call.tensors()) {
    const at::Tensor given(c10::intrusive_ptr<c10::TensorImpl>::unsafe_reclaim_from_nonowning(tensor.impl));
    if (tensor.is_written && !agree(one.stand_ins.of(given), other.stand_ins.of(given))) {
      return false;
    }
  }
  return true;
}

// Whether the number of stored elements of the only result is all that differs between two runs, and may be a symbol.
bool may_count_symbolically(const Call& call, const Run& one, const Run& other, const ModeState& mode) {
  const bool writes = std::any_of(
      call.tensors().begin(), call.tensors().end(), [](const TensorArg& tensor) { return tensor.is_written; });
  return !writes && counts_may_be_symbols(mode) && one.results.size() == 1 && one.results[0].isTensor() &&
      other.results[0].isTensor() && differ_in_count_only(one.results[0].toTensor(), other.results[0].toTensor());
}

[[noreturn]] void refuse_dependence(const Call& call) {
  const bool is_value = std::none_of(
      call.op.schema().returns().begin(), call.op.schema().returns().end(), [](const c10::Argument& result) {
        return result.real_type()->kind() == c10::TypeKind::TensorType ||
            result.real_type()->kind() == c10::TypeKind::ListType;
      });
  raise(
      is_value ? ErrorKind::kDataDependentOutput : ErrorKind::kDynamicOutputShape,
      call.op_name(),
      "the result depends on values or on which elements are stored, and fake tensors have neither. The number of "
      "stored "
      "elements is known only if indices and values are derived from small constants; use an operator whose outcome "
      "is fixed, or propagate real values (propagate_real_tensors).");
}

class Wrapping {
 public:
  Wrapping(const StandInTensors& stand_ins, bool parameters_are_known, c10::Device device, const ModePtr& mode)
      : stand_ins_(stand_ins), parameters_are_known_(parameters_are_known), device_(device), mode_(mode) {}

  at::Tensor quantized(const at::Tensor& real) const {
    const std::optional<c10::Storage> shared = stand_ins_.quantized_storage_of(real);
    return make_quantized_fake(
        *real.unsafeGetTensorImpl(),
        shared ? *shared : new_fake_storage(real.storage().nbytes(), device_, mode_->options.storage_observer),
        real.scalar_type(),
        at::get_qtensorimpl(real)->quantizer(),
        parameters_are_known_,
        device_,
        mode_);
  }

  // Applies an operator's effect on the geometry and the parameters of a quantized fake.
  void overwrite(FakeQuantizedImpl& fake, const at::Tensor& real) const {
    if (real.storage().nbytes() != fake.storage().nbytes()) {
      resize_storage(fake.unsafe_storage().unsafeGetStorageImpl(), real.storage().nbytes());
    }
    fake.set_sizes_and_strides(real.sizes(), real.strides(), real.storage_offset());
    fake.set_parameters(at::get_qtensorimpl(real)->quantizer(), parameters_are_known_);
  }

  at::Tensor strided(const at::Tensor& real) const {
    if (std::optional<at::Tensor> fake = stand_ins_.fake_of(real)) {
      return *fake;
    }
    if (std::optional<at::Tensor> base = stand_ins_.base_of(real)) {
      return at::as_strided(*base, real.sizes(), real.strides(), real.storage_offset());
    }
    at::Tensor fake = to_fake(real, mode_, device_);
    if (stand_ins_.all_known() && real.numel() <= value_limit(mode_->options)) {
      // The fake's storage is laid out like the real one, which has no other owner.
      set_known_bytes(fake.storage().unsafeGetStorageImpl(), device_, real.storage().getWeakStorageImpl().lock());
    }
    return fake;
  }

  std::vector<at::Tensor> members(const at::Tensor& sparse) const {
    std::vector<at::Tensor> members;
    for (const at::Tensor& member : members_of(sparse)) {
      members.push_back(strided(member));
    }
    return members;
  }

  at::Tensor any(const Call& call, const at::Tensor& real) const {
    if (!real.defined()) {
      return real;
    }
    if (std::optional<at::Tensor> fake = stand_ins_.fake_of(real)) {
      return *fake;
    }
    if (real.layout() == c10::kStrided && !real.is_nested()) {
      return real.is_quantized() ? quantized(real) : strided(real);
    }
    if (!is_sparse_layout(real.layout())) {
      refuse_layout(call);
    }
    return make_layout_fake(real, members(real), device_, mode_);
  }

 private:
  const StandInTensors& stand_ins_;
  const bool parameters_are_known_;
  const c10::Device device_;
  const ModePtr& mode_;
};

}  // namespace

void stand_in_call(Call& call, c10::Device device, const ModePtr& mode) {
  const auto refuse = [&](const char* why) {
    raise(
        ErrorKind::kUnsupportedOperator,
        call.op_name(),
        c10::str("no rule determines what this operator returns for these layouts, and ", why, "."));
  };
  if (!mode->options.allow_fallback_kernels) {
    refuse("the mode has allow_fallback_kernels=False");
  }
  if (bytes_of(call) > kMaxBytes) {
    refuse("its inputs are too large to try its CPU kernel on tensors in their place");
  }
  KernelEnvironment::note_all();
  const std::unique_ptr<Run> first = run(call, 0);
  const std::string outcome = outcome_of(call, *first);
  bool parameters_are_known = true;
  std::optional<bool> stays_coalesced;  // if the number of stored elements is unknown
  for (int number = 1; number < kRuns && !first->stand_ins.all_known(); ++number) {
    const std::unique_ptr<Run> other = run(call, number);
    if (outcome_of(call, *other) != outcome) {
      if (!may_count_symbolically(call, *first, *other, *mode)) {
        refuse_dependence(call);
      }
      stays_coalesced = stays_coalesced.value_or(is_coalesced(first->results[0].toTensor())) &&
          is_coalesced(other->results[0].toTensor());
      continue;
    }
    parameters_are_known = parameters_are_known && agree_on_parameters(call, *first, *other);
  }
  if (stays_coalesced) {
    const at::Tensor result = with_unknown_count(first->results[0].toTensor(), *stays_coalesced, device, mode);
    torch::jit::drop(*call.stack, call.num_args());
    call.stack->emplace_back(result);
    return;
  }
  const FakeMode in_mode(mode);
  const Wrapping wrapping(first->stand_ins, parameters_are_known, device, mode);
  for (const TensorArg& tensor : call.tensors()) {
    const at::Tensor given(c10::intrusive_ptr<c10::TensorImpl>::unsafe_reclaim_from_nonowning(tensor.impl));
    if (!tensor.is_written || !is_any_fake(given)) {
      continue;
    }
    const at::Tensor real = first->stand_ins.of(given);
    if (FakeQuantizedImpl* quantized = as_quantized_fake(given)) {
      wrapping.overwrite(*quantized, real);
    } else if (as_fake(given) != nullptr) {
      lay_out_as(given, real);
      forget_known_bytes(given.storage().unsafeGetStorageImpl());
    } else {
      set_members(given, real, wrapping.members(real));
    }
  }
  torch::jit::drop(*call.stack, call.num_args());
  for (const c10::IValue& value : first->results) {
    call.stack->push_back(map_tensors(value, [&](const at::Tensor& real) { return wrapping.any(call, real); }));
  }
}

}  // namespace torchfake
