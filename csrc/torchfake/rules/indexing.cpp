// Rules for indexing: a mask with known values gives a known shape, whatever tensor is indexed.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/multinomial.h>
#include <ATen/ops/ones.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/generated/Functions.h>

#include <torchfake/core/errors.h>
#include <torchfake/core/plain_cpu.h>
#include <torchfake/core/to_fake.h>
#include <torchfake/rules/decompositions.h>
#include <torchfake/rules/rules.h>
#include <torchfake/values/known_values.h>
#include <torchfake/values/repeated_values.h>
#include <torchfake/values/stand_in_answers.h>

namespace torchfake {

namespace {

[[noreturn]] void refuse_mask(const Call& call) {
  raise(
      ErrorKind::kDynamicOutputShape,
      call.op_name(),
      "how many elements a mask selects depends on its values, which are not known. Use torch.where or a fixed number "
      "of indices, or build the mask from constants.");
}

// Whether the running node is the gradient of a masked write, which only sums up the selected elements.
bool sums_selection_up() {
  const auto node = torch::autograd::get_current_node();
  return dynamic_cast<const torch::autograd::generated::MaskedFillBackward1*>(node.get()) != nullptr;
}

// Returns the values of a mask, or throws.
at::Tensor mask_values(const Call& call, const FakeTensorImpl& mask, const ModePtr& mode) {
  const std::optional<at::Tensor> values = read_values(mask, value_limit(mode->options));
  if (!values &&
      (mode->options.selects_all || SelectsAll::active() || sums_selection_up() ||
       stands_in(mode, call.op_name(), "every element is selected"))) {
    PlainCpu plain;
    return at::ones({}, at::TensorOptions().dtype(c10::kBool).device(c10::kCPU)).expand(mask.sizes());
  }
  if (!values) {
    refuse_mask(call);
  }
  return *values;
}

// x[mask]: replaces the mask by the indices it stands for.
RuleResult index(Call& call, const ModePtr& mode) {
  bool has_mask = false;
  for (const TensorArg& tensor : call.tensors()) {
    has_mask |= tensor.arg == 1 && tensor.fake != nullptr && is_mask(tensor.fake->dtype().toScalarType());
  }
  if (!has_mask) {
    return RuleResult::kContinue;
  }
  c10::List<std::optional<at::Tensor>> indices;
  for (const c10::IValue& value : call.arg(1).toListRef()) {
    const FakeTensorImpl* fake = value.isTensor() && value.toTensor().defined() ? as_fake(value.toTensor()) : nullptr;
    if (fake == nullptr || !is_mask(fake->dtype().toScalarType())) {
      indices.push_back(value.toOptional<at::Tensor>());
      continue;
    }
    const int64_t count = nonzero_count(mask_values(call, *fake, mode));
    for (int64_t dim = 0; dim < fake->dim(); ++dim) {
      indices.push_back(to_fake(at::detail::empty_meta({count}, c10::kLong), mode, fake->claimed_device()));
    }
  }
  call.arg(1) = std::move(indices);
  call.rescan();
  return RuleResult::kContinue;
}

void check_masked_select_out(const at::Tensor& out, const at::Tensor& self, const at::Tensor& mask) {
  TORCH_CHECK(
      out.scalar_type() == self.scalar_type(), "masked_select(): self and result must have the same scalar type");
  at::assert_no_internal_overlap(out);
  at::assert_no_overlap(out, self);
  at::assert_no_overlap(out, mask);
}

// masked_select(self, mask), or with out=
RuleResult masked_select(Call& call, const ModePtr& mode) {
  const at::Tensor self = call.arg(0).toTensor();
  const at::Tensor mask = call.arg(1).toTensor();
  const FakeTensorImpl* fake_mask = as_fake(mask);
  TORCH_CHECK(mask.scalar_type() == c10::kBool, "masked_select: expected BoolTensor for mask");
  const std::vector<int64_t> shape = at::infer_size(self.sizes(), mask.sizes());
  const bool has_out = call.num_args() == 3;
  if (has_out) {
    check_masked_select_out(call.arg(2).toTensor(), self, mask);
  }
  const at::Tensor values = mask_values(call, *fake_mask, mode);
  const int64_t repetitions = values.numel() == 0 ? 0 : c10::multiply_integers(shape) / values.numel();
  const int64_t count = nonzero_count(values) * repetitions;
  if (!has_out) {
    return answer_with(call, at::detail::empty_meta({count}, self.scalar_type()));
  }
  const at::Tensor out = call.arg(2).toTensor();
  at::native::resize_output(out, {count});
  return answer_with(call, out);
}

// multinomial(self, num_samples, replacement, generator), or with out=. The CPU checks the probabilities: if they are
// known, the real operator does so, with a generator of its own.
RuleResult multinomial(Call& call, const ModePtr& mode) {
  const FakeTensorImpl* self = as_fake(call.arg(0).toTensor());
  const bool looks = self != nullptr && self->claimed_device().is_cpu() && self->dim() > 0;
  if (const auto values = looks ? read_values(*self, mode->options.known_values) : std::nullopt) {
    NoFakeMode real;
    at::multinomial(*values, call.arg(1).toInt(), call.arg(2).toBool(), at::detail::createCPUGenerator());
  }
  return RuleResult::kContinue;
}

}  // namespace

RuleList indexing_rules() {
  return {
      {"index.Tensor _unsafe_index.Tensor", &index},
      {"masked_select", &masked_select},
      {"multinomial", &multinomial},
  };
}

}  // namespace torchfake
