// Rules for decompositions that check values or select by them although the metadata of the result does not depend on
// them.
#include <ATen/TensorOperators.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>

#include <torchfake/core/compat.h>
#include <torchfake/dispatch/symbolic_call.h>
#include <torchfake/rules/composites.h>
#include <torchfake/rules/decompositions.h>
#include <torchfake/symbolic/mode_env.h>
#include <torchfake/values/known_values.h>
#include <torchfake/values/stand_in_answers.h>
#include <torchfake/values/value_ranges.h>

namespace torchfake {

namespace {

namespace ops = at::_ops;

// The number of classes that `num_classes=-1` leaves to the largest index, under stand-ins; or -1.
int64_t classes_of_unknown(const Call& call, const at::Tensor& self) {
  const FakeTensorImpl* fake = as_fake(self);
  if (fake == nullptr || fake->has_symbolic_sizes_strides() || is_known(*fake, value_limit(fake->mode()->options))) {
    return -1;
  }
  const double highest = range_of(*fake).high;
  const bool is_bounded = highest < std::numeric_limits<int32_t>::max();
  const char* answer = is_bounded ? "what the largest possible element gives" : "what ones give";
  const int64_t classes = is_bounded ? static_cast<int64_t>(std::max(highest, 0.0)) + 1 : 2;
  return stands_in(fake->mode(), call.op_name(), answer) ? classes : -1;
}

// On the CPU the decomposition checks that the indices are in range.
bool one_hot(const Call& call) {
  const at::Tensor self = call.arg(0).toTensor();
  c10::SymInt num_classes = call.arg(1).toInt();
  const bool is_empty = self.sym_numel().sym_eq(0).guard_or_false(__FILE__, __LINE__);
  if (num_classes == -1 && !is_empty && self.scalar_type() == c10::kLong) {
    const FakeTensorImpl* fake = as_fake(self);
    const bool has_symbol = fake != nullptr && symbol_source_of(*fake->mode()) != nullptr;
    num_classes = has_symbol ? self.max().add(1).item().toSymInt()  // a symbol, unless the values are known
                             : c10::SymInt(classes_of_unknown(call, self));
  }
  if (!num_classes.sym_ge(1).expect_true(__FILE__, __LINE__) || is_empty || self.scalar_type() != c10::kLong) {
    return false;
  }
  std::vector<c10::SymInt> sizes = self.sym_sizes().vec();
  sizes.push_back(num_classes);
  at::Tensor result = self.new_zeros_symint(sizes);
  result.scatter_(-1, self.unsqueeze(-1), 1);
  answer_with(call, std::move(result));
  return true;
}

// Under stand-ins a comparison of unknown values within a tolerance passes, like that of allclose.
bool isclose(const Call& call) {
  const at::Tensor self = call.arg(0).toTensor();
  const at::Tensor other = call.arg(1).toTensor();
  const FakeTensorImpl* fake = as_fake(self);
  if (fake == nullptr || fake->has_symbolic_sizes_strides() || as_fake(other) == nullptr ||
      self.sym_sizes() != other.sym_sizes() || self.scalar_type() != other.scalar_type()) {
    return false;
  }
  const int64_t limit = value_limit(fake->mode()->options);
  const bool are_known = is_known(*fake, limit) && is_known(*as_fake(other), limit);
  if (are_known || !stands_in(fake->mode(), call.op_name(), "True, the check passes")) {
    return false;
  }
  answer_with(call, all_of(true, self, fake->mode()));
  return true;
}

// Under stand-ins all values are assumed finite; integers always are. See Note [Assumed masks].
bool isfinite(const Call& call) {
  const at::Tensor self = call.arg(0).toTensor();
  const FakeTensorImpl* fake = as_fake(self);
  if (fake == nullptr || fake->has_symbolic_sizes_strides() || is_known(*fake, value_limit(fake->mode()->options))) {
    return false;
  }
  const bool is_whole = c10::isIntegralType(self.scalar_type(), /*includeBool=*/true);
  if (!is_whole && !stands_in(fake->mode(), call.op_name(), "True, no invalid value")) {
    if (!fake->mode()->options.assumes_valid || !has_ranges(fake->mode()->options)) {
      return false;
    }
    decompose(call);
    if (const FakeTensorImpl* mask = as_fake(call.stack->back().toTensor())) {
      assume(*mask, true);
    }
    return true;
  }
  answer_with(call, all_of(true, self, fake->mode()));
  return true;
}

// Decompositions that check values for validity, which is assumed: quantile checks once that q lies between 0 and 1,
// istft that the windows leave no gaps.
template <int kChecks>
bool of_valid_input(const Call& call) {
  const ValidInput valid(kChecks);
  decompose(call);
  return true;
}

bool istft(const Call& call) {
  return over_symbols<&istft_of_symbols>(call) || of_valid_input<0>(call);
}

// Quantiles for sizes that are symbols, which PyTorch's decomposition uses as numbers.
at::Tensor symbolic_quantile(
    const at::Tensor& self,
    const at::Tensor& q,
    std::optional<int64_t> given_dim,
    bool keepdim,
    std::string_view interpolation,
    bool ignores_nan) {
  const int64_t dim = at::maybe_wrap_dim(given_dim.value_or(0), self.dim());
  std::vector<c10::SymInt> view(given_dim || !keepdim ? 0 : self.dim(), 1);
  at::Tensor sorted = self;
  if (!given_dim) {
    sorted = self.flatten();
  } else if (self.dim() == 0) {
    sorted = self.unsqueeze(0);
  } else {
    view = self.sym_sizes().vec();
    view[dim] = 1;
    if (!keepdim) {
      view.erase(view.begin() + dim);
    }
    sorted = dim == self.dim() - 1 ? self : self.unsqueeze(-1).transpose(dim, -1);
  }
  sorted = std::get<0>(sorted.sort());
  const c10::SymInt size = sorted.sym_size(-1);
  view.push_back(size);
  sorted = sorted.view_symint(view);
  TORCH_SYM_CHECK(size.sym_le(1 << 24), "quantile() input tensor is too large");

  const at::Tensor is_nan = sorted.isnan();
  at::Tensor ranks = ignores_nan ? q * (is_nan.logical_not().sum(-1, true) - 1)
                                 : at::masked_fill(q * (size - 1), is_nan.any(-1, true), size - 1);
  if (ignores_nan) {
    ranks.masked_fill_(ranks < 0, 0);
  }
  if (interpolation == "lower") {
    ranks.floor_();
  } else if (interpolation == "higher") {
    ranks.ceil_();
  } else if (interpolation == "nearest") {
    ranks.round_();
  }
  const at::Tensor below = ranks.to(c10::kLong);
  at::Tensor values = sorted.gather(-1, below);
  if (interpolation == "linear" || interpolation == "midpoint") {
    const at::Tensor weights = interpolation == "midpoint" ? at::full_like(ranks, 0.5) : ranks - below;
    values = values.lerp(sorted.gather(-1, ranks.ceil().to(c10::kLong)), weights);
  }
  return q.dim() == 0 ? values.squeeze(-1) : values.unsqueeze(0).transpose(0, -1).squeeze(-1);
}

bool is_interpolation(std::string_view name) {
  return name == "linear" || name == "midpoint" || name == "lower" || name == "higher" || name == "nearest";
}

// Invalid arguments are left to PyTorch's decomposition, which raises the error.
bool quantile_of_symbols(const Call& call, const at::Tensor& self) {
  const bool is_number = !call.arg(1).isTensor();
  const at::Tensor q = is_number ? at::scalar_tensor(call.arg(1).toScalar(), self.options()) : call.arg(1).toTensor();
  const bool is_valid = self.sym_numel().sym_gt(0).guard_or_false(__FILE__, __LINE__) &&
      (self.scalar_type() == c10::kFloat || self.scalar_type() == c10::kDouble) && q.dim() <= 1 &&
      q.scalar_type() == self.scalar_type() && q.device() == self.device() &&
      is_interpolation(call.arg(4).toStringView());
  const double number = is_number ? call.arg(1).toScalar().toDouble() : 0;
  if (!is_valid || call.num_args() != 5 || !(number >= 0 && number <= 1)) {
    return false;
  }
  if (!is_number && self.is_cpu()) {
    const ValidInput valid(1);
    TORCH_CHECK(q.ge(0).logical_and(q.le(1)).all().item<bool>(), "quantile() q values must be in the range [0, 1]");
  }
  answer_with(
      call,
      symbolic_quantile(
          self,
          q,
          call.arg(2).toOptional<int64_t>(),
          call.arg(3).toBool(),
          call.arg(4).toStringView(),
          call.traits.base_name() == "nanquantile"));
  return true;
}

// [nan]quantile(self, q, dim, keepdim, interpolation[, out]). On the CPU, some releases find a single quantile by
// selection, in a function that is not an operator and reads memory, but several by sorting. So a single quantile is
// requested twice.
bool quantile(const Call& call) {
  const at::Tensor self = call.arg(0).toTensor();
  if (has_symbols(call) && quantile_of_symbols(call, self)) {
    return true;
  }
  const bool is_number = !call.arg(1).isTensor();
  if (!compat::kSelectsSingleQuantile || !self.is_cpu() || (!is_number && call.arg(1).toTensor().numel() != 1)) {
    return of_valid_input<1>(call);
  }
  const at::Tensor q = is_number ? at::scalar_tensor(call.arg(1).toScalar(), self.options()) : call.arg(1).toTensor();
  torch::jit::Stack stack{self, q.reshape({1}).expand({2}), call.arg(2), call.arg(3), call.arg(4)};
  c10::Dispatcher::singleton().findSchemaOrThrow(call.traits.name.c_str(), "").callBoxed(stack);
  at::Tensor result = stack.front().toTensor().select(0, 0).contiguous();
  if (q.dim() == 1) {
    result = result.unsqueeze(-1).movedim(-1, 0);
  }
  if (call.num_args() == 5) {
    answer_with(call, std::move(result));
    return true;
  }
  at::Tensor out = call.arg(5).toTensor();
  TORCH_CHECK(out.scalar_type() == self.scalar_type(), "quantile() out tensor must be same dtype as the input tensor");
  at::native::resize_output(out, result.sizes());
  out.copy_(result);
  answer_with(call, std::move(out));
  return true;
}

// cov(self, correction, fweights, aweights) checks that the weights are not negative and do not sum to zero, then
// whether there are too few observations.
bool cov(const Call& call) {
  if (over_symbols<&cov_of_symbols>(call)) {
    return true;
  }
  const auto is_unanswered = [](const at::Tensor& check) {
    const FakeTensorImpl* fake = as_fake(check);
    return fake != nullptr && !is_known(*fake, value_limit(fake->mode()->options));
  };
  int unanswered = 0;  // checks not already answered by known weights or their value ranges
  at::Tensor weights;
  for (const size_t arg : {2, 3}) {
    const at::Tensor given = call.arg(arg).isTensor() ? call.arg(arg).toTensor() : at::Tensor();
    if (!given.defined() || given.sym_numel() == 0 || given.is_complex()) {
      continue;
    }
    unanswered += static_cast<int>(is_unanswered(given.min().ge(0)));
    weights = weights.defined() && weights.sym_sizes() == given.sym_sizes() ? weights.mul(given) : given;
  }
  if (weights.defined()) {
    unanswered += static_cast<int>(is_unanswered(weights.sum().ne(0)));
  }
  const ValidInput valid(unanswered);
  decompose(call);
  return true;
}

}  // namespace

CompositeList checking_composites() {
  return {
      &composite<
          &quantile,
          &of_fakes,
          ops::quantile,
          ops::quantile_scalar,
          ops::quantile_out,
          ops::quantile_scalar_out,
          ops::nanquantile,
          ops::nanquantile_scalar,
          ops::nanquantile_out,
          ops::nanquantile_scalar_out>,
      &composite<&cov, &of_fakes, ops::cov>,
      &composite<&istft, &of_fakes, ops::istft>,
      // With weights and smoothing it divides by the sum of the weights of the targets that are not ignored.
      &composite_within<SelectsAll, ops::cross_entropy_loss>,
      &composite<&isfinite, &of_fakes, ops::isfinite>,
      &composite<&isclose, &of_fakes, ops::isclose>,
      &composite<&one_hot, &of_fakes, ops::one_hot>,
  };
}

}  // namespace torchfake
