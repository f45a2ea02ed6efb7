// Rules for operators that read values but do not need them: the result follows from the tensors themselves, or does
// not affect the shape of the outcome, or is an assumption that the user has enabled. PyTorch's derivative formulas and
// decompositions call many of them: to decide whether to raise an error, or which of two equivalent formulas to use.
#include <ATen/EmptyTensor.h>
#include <ATen/ops/_nested_tensor_from_mask_left_aligned.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/ones.h>
#include <c10/core/WrapDimMinimal.h>
#include <c10/util/strides.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/generated/Functions.h>

#include <torchfake/core/errors.h>
#include <torchfake/core/plain_cpu.h>
#include <torchfake/core/to_fake.h>
#include <torchfake/rules/decompositions.h>
#include <torchfake/rules/rules.h>
#include <torchfake/values/known_values.h>
#include <torchfake/values/stand_in_answers.h>
#include <torchfake/values/value_ranges.h>

#include <algorithm>
#include <typeinfo>

namespace torchfake {

namespace {

// More bins than this are those of a dtype's bounds, which say nothing about sizes.
constexpr double kMostBins = 2147483647;

bool same_memory(const at::Tensor& self, const at::Tensor& other) {
  return self.dtype() == other.dtype() && self.is_alias_of(other) &&
      self.sym_storage_offset() == other.sym_storage_offset() && self.sym_strides() == other.sym_strides() &&
      self.is_conj() == other.is_conj() && self.is_neg() == other.is_neg();
}

// equal(self, other). Like the real kernels, treats a tensor as equal to itself even if it contains a NaN.
RuleResult equal(Call& call, const ModePtr& mode) {
  const at::Tensor self = call.arg(0).toTensor();
  const at::Tensor other = call.arg(1).toTensor();
  // PyTorch's C++ code checks conditions by comparing a bool scalar.
  const bool is_check = self.dim() == 0 && self.scalar_type() == c10::kBool && mode->options.assumes_valid;
  if (const std::optional<bool> holds = is_check ? ValidInput::next_check() : std::nullopt) {
    return answer_with(call, *holds);
  }
  const bool same_sizes = self.sym_sizes() == other.sym_sizes();
  const bool is_equal = same_sizes && (self.sym_numel() == 0 || same_memory(self, other));
  const bool known = !same_sizes || is_equal;
  if (!known && !mode->options.distinct_tensors_differ && mode->options.stand_ins != nullptr) {
    const bool truth = truth_in_place(mode);
    stands_in(mode, call.op_name(), truth ? "True, the check passes" : "False");
    return answer_with(call, truth);
  }
  if (!known && !mode->options.distinct_tensors_differ) {
    raise(
        ErrorKind::kDataDependentOutput,
        call.op_name(),
        "whether two tensors are equal depends on their values, which are unknown. Values are known only if they are "
        "derived from small constants; keep this branch out of the fake run, or create the mode with "
        "distinct_tensors_differ.");
  }
  return answer_with(call, is_equal);
}

// Whether this thread is running one of PyTorch's own derivative formulas, as opposed to a backward written in Python.
bool in_derivative_formula() {
  const auto node = torch::autograd::get_current_node();
  return node != nullptr && c10::demangle(typeid(*node).name()).rfind("torch::autograd::generated::", 0) == 0;
}

// The gradients of svd and eig check that the loss does not depend on the phase of the vectors, and otherwise raise.
RuleResult allclose(Call& call, const ModePtr& mode) {
  if (!in_derivative_formula() && !stands_in(mode, call.op_name(), "True")) {
    return RuleResult::kContinue;
  }
  return answer_with(call, true);
}

// The gradient of a product uses one of two formulas, depending on whether there are zeros among the factors. For
// contiguous factors both give the same strides; for other layouts the choice determines the result's strides.
template <typename Backward>
bool multiplies_contiguous(const torch::autograd::Node& node) {
  const auto* product = dynamic_cast<const Backward*>(&node);
  return product != nullptr && product->self_.unpack().is_contiguous();
}

template <typename... Backward>
bool is_any_of(const torch::autograd::Node& node) {
  return ((dynamic_cast<const Backward*>(&node) != nullptr) || ...);
}

// The value to assume for a number that a decomposition or formula reads, if its outcome does not depend on it.
std::optional<c10::Scalar> stand_in(const at::Tensor& asked, const ModePtr& mode) {
  using namespace torch::autograd::generated;
  const bool is_bool = asked.scalar_type() == c10::kBool;
  if (const std::optional<bool> holds =
          is_bool && mode->options.assumes_valid ? ValidInput::next_check() : std::nullopt) {
    return c10::Scalar(*holds);
  }
  if (const FakeTensorImpl* fake = is_bool && mode->options.assumes_valid ? as_fake(asked) : nullptr) {
    if (const std::optional<bool> assumed = assumed_value(*fake)) {
      return c10::Scalar(*assumed);
    }
  }
  if (FactorsAlone::active() && asked.is_floating_point()) {
    return c10::Scalar(1.0);
  }
  const auto node = torch::autograd::get_current_node();
  if (node == nullptr) {
    return std::nullopt;
  }
  // The number of zeros.
  if (multiplies_contiguous<ProdBackward1>(*node) || multiplies_contiguous<CumprodBackward0>(*node)) {
    return is_bool ? c10::Scalar(false) : c10::Scalar(int64_t{0});
  }
  // Whether an extremum is a NaN, which requires a different search.
  if (is_bool && is_any_of<MaxBackward1, MinBackward1, MedianBackward0, NanmedianBackward0>(*node)) {
    return c10::Scalar(false);
  }
  return std::nullopt;
}

RuleResult local_scalar_dense(Call& call, const ModePtr& mode) {
  const at::Tensor asked = call.arg(0).toTensor();
  std::optional<c10::Scalar> value = stand_in(asked, mode);
  if (!value) {
    const FakeTensorImpl* fake = as_fake(asked);
    value = fake == nullptr ? std::nullopt : number_in_place(mode, call.op_name(), *fake);
  }
  if (!value) {
    return RuleResult::kContinue;
  }
  return answer_with(call, *value);
}

// _unique(self, sorted, return_inverse). The gradient of a value written at several indices is summed over the distinct
// ones.
RuleResult unique(Call& call, const ModePtr& /*mode*/) {
  const auto node = torch::autograd::get_current_node();
  if (node == nullptr || !is_any_of<torch::autograd::generated::IndexFillBackward1>(*node)) {
    return RuleResult::kContinue;
  }
  const at::Tensor self = call.arg(0).toTensor();
  at::Tensor places = at::empty_symint({self.sym_numel()}, self.options());
  return answer_with(call, std::move(places), at::empty({0}, self.options().dtype(c10::kLong)));
}

// A single slice along a dimension is unique, whatever its values. The CPU kernel returns indices and counts even if
// they are not requested.
RuleResult unique_of_one_slice(Call& call, int64_t dim, size_t return_inverse) {
  const at::Tensor self = call.arg(0).toTensor();
  if (self.unsafeGetTensorImpl()->has_symbolic_sizes_strides() || self.numel() == 0 || dim < -self.dim() ||
      dim >= self.dim() || self.size(dim) != 1) {
    return RuleResult::kContinue;
  }
  // The slices are contiguous, one after the other.
  c10::DimVector strides = c10::contiguous_strides(self.sizes());
  strides[static_cast<size_t>(c10::maybe_wrap_dim(dim, self.dim()))] = self.numel();
  const at::TensorOptions indices = self.options().dtype(c10::kLong);
  const auto count = [&](size_t flag) -> int64_t { return self.is_cpu() || call.arg(flag).toBool() ? 1 : 0; };
  return answer_with(
      call,
      at::empty_strided(self.sizes(), strides, self.options()),
      at::empty({count(return_inverse)}, indices),
      at::empty({count(return_inverse + 1)}, indices));
}

// unique_dim(self, dim, sorted, return_inverse, return_counts), unique_dim_consecutive(self, dim, return_inverse,
// return_counts)
template <size_t kReturnInverse>
RuleResult unique_along_dim(Call& call, const ModePtr& /*mode*/) {
  return unique_of_one_slice(call, call.arg(1).toInt(), kReturnInverse);
}

// How many different integers lie between the bounds of a tensor.
int64_t values_between_bounds(const at::Tensor& self) {
  constexpr int64_t kMany = std::numeric_limits<int64_t>::max();
  const FakeTensorImpl* fake = as_fake(self);
  if (fake == nullptr || !c10::isIntegralType(self.scalar_type(), /*includeBool=*/true)) {
    return kMany;
  }
  const ValueRange range = range_of(*fake);
  const double count = range.high - range.low + 1;
  return count < static_cast<double>(kMany) ? static_cast<int64_t>(count) : kMany;
}

// bincount(self, weights, minlength): under stand-ins a bin for each number that its bounds allow.
RuleResult bins(Call& call, const ModePtr& mode) {
  check_determinism(call);
  const at::Tensor self = call.arg(0).toTensor();
  const FakeTensorImpl* fake = as_fake(self);
  const double highest = fake == nullptr ? kMostBins : range_of(*fake).high;
  const bool is_bounded = highest < kMostBins && self.dim() == 1 && self.numel() > 0;
  if (!is_bounded || read_values(*fake, value_limit(mode->options)) || call.arg(2).toInt() < 0 ||
      !stands_in(mode, call.op_name(), "what the largest possible element gives")) {
    return RuleResult::kContinue;
  }
  const auto weights = call.arg(1).toOptional<at::Tensor>();
  const bool is_weighted = weights.has_value() && weights->defined();
  const c10::ScalarType dtype = !is_weighted  ? c10::kLong
      : weights->scalar_type() == c10::kFloat ? c10::kFloat
                                              : c10::kDouble;
  const int64_t count = std::max(static_cast<int64_t>(highest) + 1, call.arg(2).toInt());
  return answer_with(call, at::empty({count}, self.options().dtype(dtype)));
}

// _unique2(self, sorted, return_inverse, return_counts), unique_consecutive(self, return_inverse, return_counts, dim):
// likewise for a single element.
template <size_t kReturnInverse>
RuleResult unique_of_one(Call& call, const ModePtr& mode) {
  const at::Tensor self = call.arg(0).toTensor();
  if (call.num_args() > kReturnInverse + 2 && !call.arg(kReturnInverse + 2).isNone()) {
    return unique_of_one_slice(call, call.arg(kReturnInverse + 2).toInt(), kReturnInverse);
  }
  if (self.unsafeGetTensorImpl()->has_symbolic_sizes_strides() ||
      (self.numel() != 1 && !stands_in(mode, call.op_name(), "all elements differ"))) {
    return RuleResult::kContinue;
  }
  const at::TensorOptions indices = self.options().dtype(c10::kLong);
  const std::vector<int64_t> nothing{0};
  const std::vector<int64_t> one{std::min(self.numel(), values_between_bounds(self))};
  return answer_with(
      call,
      at::empty(one, self.options()),
      at::empty(call.arg(kReturnInverse).toBool() ? self.sizes() : c10::IntArrayRef(nothing), indices),
      at::empty(call.arg(kReturnInverse + 1).toBool() ? one : nothing, indices));
}

// All indices of a tensor, in nonzero's format: they follow from its sizes.
RuleResult every_place(Call& call, const at::Tensor& self, const ModePtr& mode) {
  at::Tensor places;
  if (self.numel() * self.dim() <= value_limit(mode->options)) {
    at::Tensor real;
    {
      PlainCpu plain;
      real = at::ones(self.sizes(), at::TensorOptions().dtype(c10::kBool).device(c10::kCPU)).nonzero();
    }
    places = lift(real, mode, /*copy=*/false).to(self.device());
  } else {
    places = to_fake(at::detail::empty_meta({self.numel(), self.dim()}, c10::kLong), mode, self.device());
  }
  return answer_with(call, std::move(places));
}

// isnan(self), isinf(self): False everywhere for integers, and for values assumed to be valid under stand-ins.
RuleResult finds_nothing(Call& call, const ModePtr& mode) {
  const at::Tensor self = call.arg(0).toTensor();
  const FakeTensorImpl* fake = as_fake(self);
  const bool known = fake == nullptr || read_values(*fake, value_limit(mode->options));
  const bool is_whole = c10::isIntegralType(self.scalar_type(), /*includeBool=*/true);
  if (known || (!is_whole && !stands_in(mode, call.op_name(), "False, no invalid value"))) {
    return RuleResult::kContinue;
  }
  return answer_with(call, all_of(false, self, mode));
}

// In the gradient of a product of contiguous factors there are assumed to be no zeros. See multiplies_contiguous.
RuleResult nonzero(Call& call, const ModePtr& mode) {
  const at::Tensor self = call.arg(0).toTensor();
  const auto node = torch::autograd::get_current_node();
  if (node == nullptr || !multiplies_contiguous<torch::autograd::generated::ProdBackward0>(*node)) {
    const bool selects = call.num_args() == 1 && !self.unsafeGetTensorImpl()->has_symbolic_sizes_strides() &&
        (mode->options.selects_all || stands_in(mode, call.op_name(), "every element is selected"));
    return selects ? every_place(call, self, mode) : RuleResult::kContinue;
  }
  at::Tensor none = at::empty({0, self.dim()}, self.options().dtype(c10::kLong));
  return answer_with(call, std::move(none));
}

// _nested_tensor_from_mask_left_aligned(t, mask): whether the mask selects a prefix of each row. Only the sizes of `t`
// are read.
RuleResult left_aligned(Call& call, const ModePtr& mode) {
  const at::Tensor t = call.arg(0).toTensor();
  const at::Tensor mask = call.arg(1).toTensor();
  const FakeTensorImpl* fake = as_fake(mask);
  const std::optional<at::Tensor> known =
      fake == nullptr ? std::nullopt : read_values(*fake, value_limit(mode->options));
  if (known) {
    PlainCpu plain;
    const at::Tensor sizes = at::empty({1}, at::TensorOptions(t.scalar_type())).expand(t.sizes());
    return answer_with(call, at::_nested_tensor_from_mask_left_aligned(sizes, *known));
  }
  if (!stands_in(mode, call.op_name(), "True, padding comes last")) {
    raise(
        ErrorKind::kDataDependentOutput,
        call.op_name(),
        "whether padding comes last depends on the mask's values, which are not known; pass mask_check=False to the "
        "module.");
  }
  return answer_with(call, true);
}

}  // namespace

RuleList question_rules() {
  return {
      {"equal.", &equal},
      {"allclose", &allclose},
      {"_local_scalar_dense.", &local_scalar_dense},
      {"_unique", &unique},
      {"bincount", &bins},
      {"_unique2.", &unique_of_one<2>},
      {"unique_consecutive.", &unique_of_one<1>},
      {"unique_dim.", &unique_along_dim<3>},
      {"unique_dim_consecutive.", &unique_along_dim<2>},
      {"nonzero.", &nonzero},
      {"isnan. isinf.", &finds_nothing},
      {"_nested_tensor_from_mask_left_aligned.", &left_aligned},
  };
}

}  // namespace torchfake
