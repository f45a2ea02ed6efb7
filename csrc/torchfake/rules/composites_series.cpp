// Decompositions of statistics, differences and spectra that read sizes as numbers, written over symbols.
// See Note [Sizes read as numbers].
#include <ATen/TensorOperators.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/_fft_c2c.h>
#include <ATen/ops/_fft_c2r.h>
#include <ATen/ops/_fft_r2c.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/cov.h>
#include <ATen/ops/imag.h>
#include <ATen/ops/meshgrid.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/nonzero_static.h>
#include <ATen/ops/pad.h>
#include <ATen/ops/real.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/unfold_backward.h>
#include <ATen/ops/view_as_real.h>

#include <c10/core/impl/TorchDispatchModeTLS.h>

#include <torchfake/rules/composites.h>

#include <array>
#include <numeric>

namespace torchfake {

namespace {

namespace ops = at::_ops;

// A condition that must hold; where it does not, the decomposition reports it.
bool holds(const c10::SymBool& condition) {
  return condition.expect_true(__FILE__, __LINE__);
}

at::Tensor part(
    const at::Tensor& self,
    int64_t dim,
    std::optional<c10::SymInt> start,
    std::optional<c10::SymInt> end = std::nullopt) {
  return self.slice_symint(dim, std::move(start), std::move(end));
}

// The results of these rules have the values that PyTorch's decompositions give: a tracer may record the calls.

// ---- Statistics -----------------------------------------------------------------------------------------------------

// (self, correction, fweights, aweights), without weights
bool cov(const Call& call) {
  const at::Tensor self = call.arg(0).toTensor();
  if (self.dim() > 2 || self.scalar_type() == c10::kBool || !call.arg(2).isNone() || !call.arg(3).isNone()) {
    return false;
  }
  at::Tensor variables = self.dim() == 2 ? self : self.reshape({1, -1});
  const c10::SymInt observations = variables.sym_size(1);
  const auto number = [&](const c10::SymInt& value) { return self.new_full({}, c10::Scalar(value), c10::kLong); };
  variables = variables - variables.sum(1).true_divide(number(observations)).unsqueeze(1);
  const at::Tensor products = at::mm(variables, variables.t().conj());
  answer_with(call, products.true_divide(number(observations - call.arg(1).toInt()).clamp_min(0)).squeeze());
  return true;
}

// (self)
bool corrcoef(const Call& call) {
  const at::Tensor self = call.arg(0).toTensor();
  if (self.dim() > 2) {
    return false;
  }
  at::Tensor products = at::cov(self);
  if (products.dim() == 0) {
    answer_with(call, products / products);
    return true;
  }
  const at::Tensor variances = products.diagonal();
  const at::Tensor deviations = (variances.is_complex() ? at::real(variances) : variances).sqrt();
  products = products / deviations.unsqueeze(1) / deviations.unsqueeze(0);
  const auto clipped = [](const at::Tensor& values) { return values.clip(-1, 1); };
  answer_with(
      call,
      products.is_complex() ? at::complex(clipped(at::real(products)), clipped(at::imag(products)))
                            : clipped(products));
  return true;
}

// (self, r, with_replacement): a row for each increasing choice of r places.
bool combinations(const Call& call) {
  constexpr int64_t kMostChosen = 12;
  const at::Tensor self = call.arg(0).toTensor();
  const int64_t chosen = call.arg(1).toInt();
  const bool with_replacement = call.arg(2).toBool();
  if (self.dim() != 1 || chosen < 1 || chosen > kMostChosen) {
    return false;
  }
  const c10::SymInt size = self.sym_size(0);
  c10::SymInt count = 1;
  int64_t orders = 1;
  for (int64_t i = 0; i < chosen; ++i) {
    count = count * (size + (with_replacement ? i : -i));
    orders *= i + 1;
  }
  const at::Tensor places = self.new_ones_symint({size}, c10::kLong).cumsum(0) - 1;
  std::vector<at::Tensor> grid = at::meshgrid(std::vector<at::Tensor>(chosen, places), "ij");
  at::Tensor is_taken = grid[0] >= 0;
  for (int64_t i = 1; i < chosen; ++i) {
    is_taken = is_taken.logical_and(with_replacement ? grid[i - 1] <= grid[i] : grid[i - 1] < grid[i]);
  }
  const at::Tensor rows = at::nonzero_static_symint(is_taken, count / orders);
  std::vector<at::Tensor> columns;
  columns.reserve(chosen);
  for (int64_t i = 0; i < chosen; ++i) {
    columns.push_back(self.index_select(0, rows.select(1, i)));
  }
  answer_with(call, at::stack(columns, 1));
  return true;
}

// (gradient, input, dim, output): as for factors of which none is zero, unless a mode sees the calls.
bool cumprod_backward(const Call& call) {
  const at::Tensor gradient = call.arg(0).toTensor();
  const at::Tensor input = call.arg(1).toTensor();
  if (input.dim() == 0 || c10::impl::dispatch_mode_enabled()) {
    return false;
  }
  const int64_t dim = call.arg(2).toInt();
  const at::Tensor products = call.arg(3).toTensor().conj() * gradient;
  answer_with(call, products.flip(dim).cumsum(dim).flip(dim).div(input.conj()));
  return true;
}

// ---- Differences ----------------------------------------------------------------------------------------------------

struct Differences {
  at::Tensor before;
  at::Tensor between;
  at::Tensor after;
};

// Between neighbours at an even distance.
Differences even_differences(const at::Tensor& self, int64_t dim, const c10::Scalar& distance, int64_t edge_order) {
  Differences found;
  found.between = (part(self, dim, 2) - part(self, dim, 0, -2)) / distance / 2;
  if (edge_order == 1) {
    found.before = (part(self, dim, 1, 2) - part(self, dim, 0, 1)) / distance;
    found.after = (part(self, dim, -1) - part(self, dim, -2, -1)) / distance;
  } else {
    found.before = (part(self, dim, 0, 1) * -1.5 + part(self, dim, 1, 2) * 2 - part(self, dim, 2, 3) * 0.5) / distance;
    found.after = (part(self, dim, -3, -2) * 0.5 - part(self, dim, -2, -1) * 2 + part(self, dim, -1) * 1.5) / distance;
  }
  return found;
}

// The sum of parts of `self` that are one apart, each times its weight.
at::Tensor weighted(
    const at::Tensor& self,
    int64_t dim,
    int64_t start,
    int64_t end,
    std::array<at::Tensor, 3> weights) {
  at::Tensor sum;
  for (int64_t i = 0; i < 3; ++i) {
    const int64_t last = end + i;
    const at::Tensor each =
        weights[i] * part(self, dim, start + i, last == 0 ? std::nullopt : std::optional<c10::SymInt>(last));
    sum = sum.defined() ? sum + each : each;
  }
  return sum;
}

// The weights of three neighbours in the slope at the middle one, or (`place` of 0 or 2) at an end, by the distances
// between them.
std::array<at::Tensor, 3> slope_weights(const at::Tensor& left, const at::Tensor& right, int place = 1) {
  const at::Tensor both = left + right;
  switch (place) {
    case 0:
      return {-(2.0 * left + right) / (left * both), both / (left * right), -left / (right * both)};
    case 2:
      return {right / (left * both), -both / (left * right), (2 * right + left) / (right * both)};
    default:
      return {-right / (left * both), (right - left) / (left * right), left / (right * both)};
  }
}

// Between neighbours at these places.
Differences uneven_differences(const at::Tensor& self, int64_t dim, const at::Tensor& places, int64_t edge_order) {
  const at::Tensor distances = places.diff();
  std::vector<int64_t> along(self.dim(), 1);
  along[dim] = -1;
  std::array<at::Tensor, 3> weights = slope_weights(part(distances, 0, 0, -1), part(distances, 0, 1));
  for (at::Tensor& each : weights) {
    each = each.reshape(along);
  }
  Differences found;
  found.between = weighted(self, dim, 0, -2, weights);
  if (edge_order == 1) {
    found.before = (part(self, dim, 1, 2) - part(self, dim, 0, 1)) / distances[0];
    found.after = (part(self, dim, -1) - part(self, dim, -2, -1)) / distances[-1];
  } else {
    found.before = weighted(self, dim, 0, 1, slope_weights(distances[0], distances[1], 0));
    found.after = weighted(self, dim, -3, -2, slope_weights(distances[-2], distances[-1], 2));
  }
  return found;
}

std::vector<int64_t> dims_of_gradient(const c10::IValue& dim, int64_t rank) {
  std::vector<int64_t> dims(rank);
  std::iota(dims.begin(), dims.end(), 0);
  return dim.isNone() ? dims : dim.isInt() ? std::vector<int64_t>{dim.toInt()} : dim.toIntVector();
}

// (self, spacing, dim, edge_order), or without the spacing: a number, one per dimension, or places per dimension.
bool gradient(const Call& call) {
  const at::Tensor self = call.arg(0).toTensor();
  const bool has_spacing = call.num_args() == 4;
  const std::vector<int64_t> dims = dims_of_gradient(call.arg(has_spacing ? 2 : 1), self.dim());
  const int64_t edge_order = call.arg(has_spacing ? 3 : 2).toInt();
  const c10::IValue spacing = has_spacing ? call.arg(1) : c10::IValue();
  const bool is_list = spacing.isList();
  if ((edge_order != 1 && edge_order != 2) || self.scalar_type() == c10::kByte ||
      (is_list && spacing.toListRef().size() != dims.size())) {
    return false;
  }
  std::vector<bool> is_taken(self.dim(), false);
  for (const int64_t dim : dims) {
    const bool is_valid = dim >= -self.dim() && dim < self.dim() && !is_taken[c10::maybe_wrap_dim(dim, self.dim())];
    if (!is_valid || !holds(self.sym_size(dim).sym_ge(edge_order + 1))) {
      return false;
    }
    is_taken[c10::maybe_wrap_dim(dim, self.dim())] = true;
  }
  std::vector<at::Tensor> gradients;
  for (size_t i = 0; i < dims.size(); ++i) {
    const int64_t dim = c10::maybe_wrap_dim(dims[i], self.dim());
    const c10::IValue each = is_list ? spacing.toListRef()[i] : spacing;
    if (each.isTensor() && (each.toTensor().dim() != 1 || each.toTensor().device() != self.device())) {
      return false;
    }
    const Differences found = each.isTensor()
        ? uneven_differences(self, dim, each.toTensor(), edge_order)
        : even_differences(self, dim, each.isNone() ? c10::Scalar(1.0) : each.toScalar(), edge_order);
    gradients.push_back(at::cat({found.before, found.between, found.after}, dim));
  }
  answer_with(call, std::move(gradients));
  return true;
}

// ---- Spectra --------------------------------------------------------------------------------------------------------

// The arguments of stft, from `window` on in a different order for its two overloads.
struct Stft {
  explicit Stft(const Call& call) : input(call.arg(0).toTensor()), length(call.arg(1).toInt()) {
    const bool has_center = call.num_args() == 11;
    const size_t after = has_center ? 7 : 5;
    hop = call.arg(2).isNone() ? length / 4 : call.arg(2).toInt();
    window_length = call.arg(3).isNone() ? length : call.arg(3).toInt();
    window = call.arg(4).isTensor() ? call.arg(4).toTensor() : at::Tensor();
    is_centered = has_center && call.arg(5).toBool();
    padding = has_center ? call.arg(6).toStringRef() : "constant";
    is_normalized = call.arg(after).toBool();
    onesided = call.arg(after + 1).toOptional<bool>();
    return_complex = call.arg(after + 2).toOptional<bool>();
    aligns = call.arg(after + 3).toOptional<bool>();
  }

  bool is_valid() const {
    const bool is_number = input.is_floating_point() || input.is_complex();
    const bool fits = hop > 0 && length > 0 && window_length > 0 && window_length <= length;
    // With an odd difference there may be one frame more than unfold() finds.
    const bool is_even = !aligns.value_or(false) || (length - window_length) % 2 == 0;
    return is_number && fits && is_even && (input.dim() == 1 || input.dim() == 2) && !(is_centered && aligns) &&
        (return_complex.has_value() || is_complex()) &&
        (!window.defined() ||
         (window.device() == input.device() && window.dim() == 1 && holds(window.sym_size(0).sym_eq(window_length))));
  }

  bool is_complex() const {
    return input.is_complex() || (window.defined() && window.is_complex());
  }

  at::Tensor input;
  int64_t length;
  int64_t hop = 0;
  int64_t window_length = 0;
  at::Tensor window;
  bool is_centered = false;
  std::string padding;
  bool is_normalized = false;
  std::optional<bool> onesided;
  std::optional<bool> return_complex;
  std::optional<bool> aligns;
};

// The window, with zeros around it.
at::Tensor padded_window(const Stft& call) {
  if (call.window_length == call.length) {
    return call.window;
  }
  const at::Tensor window = (call.window.defined() ? call.window : call.input).new_zeros({call.length});
  const at::Tensor middle = window.narrow(0, (call.length - call.window_length) / 2, call.window_length);
  call.window.defined() ? middle.copy_(call.window) : middle.fill_(1);
  return window;
}

// (self, n_fft, hop_length, win_length, window, [center, pad_mode,] normalized, onesided, return_complex, ...)
bool stft(const Call& call) {
  const Stft with(call);
  if (!with.is_valid()) {
    return false;
  }
  const bool is_single = with.input.dim() == 1;
  at::Tensor signals = is_single ? with.input.unsqueeze(0) : with.input;
  const auto pad = [&](int64_t amount) {
    signals = at::pad(signals.unsqueeze(0), {amount, amount}, with.padding).squeeze(0);
  };
  if (with.is_centered) {
    pad(with.length / 2);
  }
  const c10::SymInt samples = signals.sym_size(1);
  if (!holds(samples.sym_ge(with.length))) {
    return false;
  }
  if (!with.is_centered && with.aligns.value_or(false)) {
    pad((with.length - with.window_length) / 2);
  }
  at::Tensor windows = signals.unfold(1, with.length, with.hop);
  if (const at::Tensor window = padded_window(with); window.defined()) {
    windows = windows.mul(window);
  }
  const bool onesided = with.onesided.value_or(!windows.is_complex());
  if (windows.is_complex() && onesided) {
    return false;
  }
  constexpr int64_t kNone = 0;
  constexpr int64_t kByRoot = 1;
  const int64_t normalization = with.is_normalized ? kByRoot : kNone;
  at::Tensor spectra = windows.is_complex() ? at::_fft_c2c(windows, {2}, normalization, /*forward=*/true)
                                            : at::_fft_r2c(windows, {2}, normalization, onesided);
  spectra = spectra.transpose(1, 2);
  spectra = is_single ? spectra.squeeze(0) : spectra;
  answer_with(call, with.return_complex.value_or(true) ? spectra : at::view_as_real(spectra));
  return true;
}

// (self, n_fft, hop_length, win_length, window, center, normalized, onesided, length, return_complex)
bool istft(const Call& call) {
  const at::Tensor self = call.arg(0).toTensor();
  const int64_t length = call.arg(1).toInt();
  const int64_t hop = call.arg(2).isNone() ? length / 4 : call.arg(2).toInt();
  const int64_t window_length = call.arg(3).isNone() ? length : call.arg(3).toInt();
  const at::Tensor given = call.arg(4).isTensor() ? call.arg(4).toTensor() : at::Tensor();
  const bool is_centered = call.arg(5).toBool();
  const bool return_complex = call.arg(9).toBool();
  const bool is_valid = self.is_complex() && (self.dim() == 2 || self.dim() == 3) && hop > 0 && hop <= window_length &&
      window_length <= length && (!given.defined() || (given.dim() == 1 && given.device() == self.device()));
  if (!is_valid || (given.defined() && !holds(given.sym_size(0).sym_eq(window_length))) ||
      !holds(self.sym_numel().sym_gt(0))) {
    return false;
  }
  const c10::SymInt frames = self.sym_size(-1);
  const c10::SymInt frequencies = self.sym_size(-2);
  const bool is_whole = frequencies.sym_eq(length).guard_bool(__FILE__, __LINE__);
  const bool onesided = call.arg(7).isNone() ? !is_whole : call.arg(7).toBool();
  if (!holds(frequencies.sym_eq(onesided ? length / 2 + 1 : length)) || (onesided && return_complex) ||
      (!return_complex && given.defined() && given.is_complex())) {
    return false;
  }
  at::Tensor window = given.defined() ? given : at::real(self).new_ones({window_length});
  if (window_length != length) {
    const int64_t left = (length - window_length) / 2;
    window = at::constant_pad_nd(window, {left, length - window_length - left}, 0);
  }
  constexpr int64_t kByRoot = 1;
  constexpr int64_t kByLength = 2;
  const int64_t normalization = call.arg(6).toBool() ? kByRoot : kByLength;
  at::Tensor spectra = (self.dim() == 2 ? self.unsqueeze(0) : self).resolve_conj().transpose(1, 2);
  if (return_complex) {
    spectra = at::_fft_c2c(spectra, {2}, normalization, /*forward=*/false);
  } else {
    spectra = at::_fft_c2r(onesided ? spectra : spectra.slice(-1, 0, length / 2 + 1), {2}, normalization, length);
  }
  const c10::SymInt samples = (frames - 1) * hop + length;
  const auto overlapped = [&](const at::Tensor& parts) {
    return at::unfold_backward_symint(parts, {parts.sym_size(0), samples}, 1, length, hop);
  };
  at::Tensor signals = overlapped(spectra * window.view({1, 1, length}));
  at::Tensor envelope = overlapped(window.pow(2).expand_symint({1, frames, length}));
  const int64_t start = is_centered ? length / 2 : 0;
  const bool is_cut = !call.arg(8).isNone();
  const c10::SymInt end = is_cut ? call.arg(8).toSymInt() + start : is_centered ? c10::SymInt(-(length / 2)) : samples;
  signals = signals.slice_symint(1, start, end);
  envelope = envelope.slice_symint(1, start, end);
  signals = signals / envelope;
  signals = self.dim() == 2 ? signals.squeeze(0) : signals;
  if (is_cut && end.sym_gt(samples).guard_bool(__FILE__, __LINE__)) {
    signals = at::constant_pad_nd_symint(signals, {0, end - samples}, 0);
  }
  answer_with(call, std::move(signals));
  return true;
}

template <CompositeRule kRule, typename... Ops>
void rule_over_symbols(torch::Library& library) {
  composite<&over_symbols<kRule>, &of_symbols, Ops...>(library);
}

}  // namespace

bool cov_of_symbols(const Call& call) {
  return cov(call);
}

bool istft_of_symbols(const Call& call) {
  return istft(call);
}

CompositeList series_composites() {
  return {
      &rule_over_symbols<&corrcoef, ops::corrcoef>,
      &rule_over_symbols<&combinations, ops::combinations>,
      &rule_over_symbols<&cumprod_backward, ops::cumprod_backward>,
      &rule_over_symbols<
          &gradient,
          ops::gradient_scalarint,
          ops::gradient_scalararray,
          ops::gradient_array,
          ops::gradient_scalarrayint,
          ops::gradient_scalarrayarray,
          ops::gradient_tensorarrayint,
          ops::gradient_tensorarray>,
      &rule_over_symbols<&stft, ops::stft, ops::stft_center>,
  };
}

}  // namespace torchfake
