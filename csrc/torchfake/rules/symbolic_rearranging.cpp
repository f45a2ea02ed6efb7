// Symbolic rules of padding, resampling, transforms, scattering and factories. See Note [Symbolic calls].
#include <ATen/WrapDimUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <torchfake/core/call_context.h>
#include <torchfake/rules/symbolic_rules.h>

namespace torchfake {

namespace symbolic_rules {

namespace {

// (self, pad, ...): amounts before and after, for the last dimension first.
bool pad(SymbolicCall& call) {
  const at::Tensor self = call.tensor(0);
  bool only_cuts = true;
  Sizes sizes = sizes_of(self);
  const Sizes amounts = call.integers(1);
  if (amounts.size() % 2 != 0 || amounts.size() / 2 > sizes.size()) {
    return false;
  }
  for (size_t i = 0; i < amounts.size() / 2; ++i) {
    c10::SymInt& size = sizes[sizes.size() - 1 - i];
    for (const c10::SymInt& amount : {amounts[2 * i], amounts[2 * i + 1]}) {
      only_cuts = only_cuts && if_known(amount.sym_le(0));
      size = size + amount;
    }
    if (!guard(size.sym_ge(0))) {
      return false;
    }
  }
  call.guard_stride_order();
  call.set_outputs(sizes);
  if (only_cuts && !call.fits(0)) {
    // A copy of a slice: a slice that is dense but for dimensions of size one keeps its strides.
    for (const c10::SymInt& size : sizes) {
      is_one(size);
    }
    call.set_geometry(0, sizes, self.sym_strides(), 0);
  }
  return true;
}

// (self, src, ...): a copy of self with its strides, where a view of it has been replaced by src.
template <typename View>
bool scatter_into(SymbolicCall& call, const View& view) {
  const at::Tensor self = call.tensor(0);
  const at::Tensor source = call.tensor(1);
  at::Tensor replaced;
  {
    CallContext context;  // the view is not part of the program
    const at::AutoDispatchBelowADInplaceOrView below;
    replaced = view(self);
  }
  if (replaced.dim() != source.dim()) {
    return false;
  }
  for (int64_t dim = 0; dim < source.dim(); ++dim) {
    if (!guard(source.sym_size(dim).sym_eq(replaced.sym_size(dim)))) {
      return false;
    }
  }
  call.set_geometry(0, self.sym_sizes(), self.sym_strides(), self.sym_storage_offset());
  if (!call.fits(0)) {  // the copy of an expanded tensor is dense
    call.guard_stride_order();
    call.set_output(0, self.sym_sizes());
  }
  return true;
}

// The value of an optional argument.
std::optional<c10::SymInt> place(const SymbolicCall& call, size_t arg) {
  return call.arg(arg).isNone() ? std::optional<c10::SymInt>() : call.integer(arg);
}

// (self, src, dim, index)
bool select_scatter(SymbolicCall& call) {
  return scatter_into(
      call, [&](const at::Tensor& self) { return self.select_symint(call.arg(2).toInt(), call.integer(3)); });
}

// (self, src, dim, start, end, step)
bool slice_scatter(SymbolicCall& call) {
  return scatter_into(call, [&](const at::Tensor& self) {
    return self.slice_symint(call.arg(2).toInt(), place(call, 3), place(call, 4), call.integer(5));
  });
}

// (self, src, offset, dim1, dim2)
bool diagonal_scatter(SymbolicCall& call) {
  return scatter_into(call, [&](const at::Tensor& self) {
    return self.diagonal(call.arg(2).toInt(), call.arg(3).toInt(), call.arg(4).toInt());
  });
}

// (self, src, size, stride, storage_offset)
bool as_strided_scatter(SymbolicCall& call) {
  return scatter_into(call, [&](const at::Tensor& self) {
    return self.as_strided_symint(call.integers(2), call.integers(3), place(call, 4));
  });
}

// (self, mask, source)
bool masked_scatter(SymbolicCall& call) {
  Sizes sizes = sizes_of(call.tensor(0));
  if (!broadcast(sizes, call.tensor(1).sym_sizes())) {
    return false;
  }
  call.guard_stride_order();
  call.set_outputs(sizes);
  return true;
}

// (i1, i2, i3, expand1, expand2, expand3, sumdim, ...): factors with new dimensions, multiplied and summed.
bool trilinear(SymbolicCall& call) {
  Sizes product;
  for (size_t i = 0; i < 3; ++i) {
    Sizes factor = sizes_of(call.tensor(i));
    for (const int64_t dim : call.arg(i + 3).toIntVector()) {
      if (dim < 0 || dim > static_cast<int64_t>(factor.size())) {
        return false;
      }
      factor.insert(factor.begin() + dim, c10::SymInt(1));
    }
    if (!broadcast(product, factor)) {
      return false;
    }
  }
  std::vector<bool> is_summed(product.size(), false);
  for (const int64_t dim : call.arg(6).toIntVector()) {
    is_summed[c10::maybe_wrap_dim(dim, static_cast<int64_t>(product.size()))] = true;
  }
  Sizes sizes;
  for (size_t i = 0; i < product.size(); ++i) {
    if (!is_summed[i]) {
      sizes.push_back(product[i]);
    }
  }
  call.guard_stride_order();
  call.set_outputs(sizes);
  return true;
}

// The argument `output_size` contains the last dimensions; for a gradient, `input_size` contains all of them.
bool resample(SymbolicCall& call) {
  if (const int input_size = call.arg_named("input_size"); input_size >= 0) {
    call.guard_stride_order();
    call.set_outputs(call.integers(input_size));
    return true;
  }
  const int output_size = call.arg_named("output_size");
  if (output_size < 0 || !call.arg(output_size).isList()) {
    return false;
  }
  Sizes sizes = sizes_of(call.tensor(0));
  const Sizes last = call.integers(output_size);
  if (last.size() > sizes.size()) {
    return false;
  }
  std::copy(last.begin(), last.end(), sizes.end() - static_cast<ptrdiff_t>(last.size()));
  call.guard_stride_order();
  call.set_outputs(sizes);
  return true;
}

// (self, dim, normalization, onesided)
bool real_to_complex(SymbolicCall& call) {
  Sizes sizes = sizes_of(call.tensor(0));
  const std::vector<int64_t> dims = call.arg(1).toIntVector();
  if (dims.empty() || sizes.empty()) {
    return false;
  }
  if (call.arg(3).toBool()) {
    c10::SymInt& last = sizes[c10::maybe_wrap_dim(dims.back(), static_cast<int64_t>(sizes.size()))];
    last = last / 2 + 1;
  }
  call.guard_stride_order();
  call.set_outputs(sizes);
  return true;
}

// (self, dim, normalization, last_dim_size)
bool complex_to_real(SymbolicCall& call) {
  Sizes sizes = sizes_of(call.tensor(0));
  const std::vector<int64_t> dims = call.arg(1).toIntVector();
  if (dims.empty() || sizes.empty()) {
    return false;
  }
  sizes[c10::maybe_wrap_dim(dims.back(), static_cast<int64_t>(sizes.size()))] = call.integer(3);
  call.guard_stride_order();
  call.set_outputs(sizes);
  return true;
}

// (size, physical_layout): dimensions from outermost to innermost.
bool empty_permuted(SymbolicCall& call) {
  const Sizes sizes = call.integers(0);
  const std::vector<int64_t> layout = call.arg(1).toIntVector();
  if (layout.size() != sizes.size()) {
    return false;
  }
  Sizes strides(sizes.size());
  c10::SymInt stride = 1;
  for (auto dim = layout.rbegin(); dim != layout.rend(); ++dim) {
    const int64_t place = c10::maybe_wrap_dim(*dim, static_cast<int64_t>(sizes.size()));
    strides[place] = stride;
    stride = stride * sizes[place].max(1);
  }
  call.set_geometry(0, sizes, strides, 0);
  return true;
}

bool strided_as_asked(SymbolicCall& call) {
  const int size = call.arg_named("size");
  const int stride = call.arg_named("stride");
  call.set_geometry(0, call.integers(size), call.integers(stride), 0);
  return true;
}

// (n, ...) or (n, m, ...)
bool square(SymbolicCall& call) {
  const int columns = call.arg_named("m");
  call.set_outputs({call.integer(0), call.integer(columns < 0 ? 0 : columns)});
  return true;
}

// (n, ...)
bool line(SymbolicCall& call) {
  call.set_outputs({call.integer(0)});
  return true;
}

// (end), (start, end) or (start, end, step), for integers only.
bool arange(SymbolicCall& call) {
  std::array<c10::SymInt, 3> numbers{0, 0, 1};
  const std::array<const char*, 3> names{"start", "end", "step"};
  for (size_t i = 0; i < names.size(); ++i) {
    const int arg = call.arg_named(names[i]);
    if (arg >= 0 && !call.arg(arg).isInt() && !call.arg(arg).isSymInt()) {
      return false;
    }
    numbers[i] = arg >= 0 ? call.integer(arg) : numbers[i];
  }
  const auto& [start, end, step] = numbers;
  const std::optional<bool> is_up = decided(step.sym_gt(0));
  if (!is_up) {
    return false;
  }
  const c10::SymInt way = *is_up ? end - start : start - end;
  const c10::SymInt stride = *is_up ? step : -step;
  if (!guard(way.sym_ge(0))) {
    return false;
  }
  call.set_outputs({(way + stride - 1) / stride});
  return true;
}

// (self, index): one element per index.
bool take(SymbolicCall& call) {
  call.guard_stride_order();
  call.set_outputs(sizes_of(call.tensor(1)));
  return true;
}

// (self, dim, index, ...)
bool gather(SymbolicCall& call) {
  const Sizes sizes = sizes_of(call.tensor(0));
  const Sizes index = sizes_of(call.tensor(2));
  if (sizes.size() != index.size()) {
    return false;
  }
  const int64_t dim = sizes.empty() ? 0 : c10::maybe_wrap_dim(call.arg(1).toInt(), static_cast<int64_t>(sizes.size()));
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (static_cast<int64_t>(i) != dim && !guard(index[i].sym_le(sizes[i]))) {
      return false;
    }
  }
  call.set_outputs(index);
  return true;
}

// (self, k, dim, ...): values and indices.
bool topk(SymbolicCall& call) {
  Sizes sizes = sizes_of(call.tensor(0));
  const c10::SymInt count = call.integer(1);
  if (sizes.empty()) {
    return false;
  }
  c10::SymInt& size = sizes[c10::maybe_wrap_dim(call.arg(2).toInt(), static_cast<int64_t>(sizes.size()))];
  if (!guard(count.sym_ge(0)) || !guard(count.sym_le(size))) {
    return false;
  }
  size = count;
  call.guard_stride_order();
  call.set_outputs(sizes);
  return true;
}

constexpr Row kRows[] = {
    {"constant_pad_nd", &pad},
    {"upsample_* _upsample_* adaptive_max_pool2d adaptive_max_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d "
     "fractional_max_pool2d fractional_max_pool3d max_unpool2d max_unpool3d",
     &resample},
    {"_fft_r2c", &real_to_complex},
    {"_fft_c2r", &complex_to_real},
    {"empty_permuted", &empty_permuted},
    {"empty_strided new_empty_strided", &strided_as_asked},
    {"eye eye.m", &square},
    {"randperm", &line},
    {"arange. arange.start arange.start_step", &arange},
    {"select_scatter", &select_scatter},
    {"slice_scatter", &slice_scatter},
    {"diagonal_scatter", &diagonal_scatter},
    {"as_strided_scatter", &as_strided_scatter},
    {"masked_scatter masked_scatter_", &masked_scatter},
    {"_trilinear", &trilinear},
    {"take", &take},
    {"gather", &gather},
    {"topk", &topk},
};

}  // namespace

c10::ArrayRef<Row> rearrangements() {
  return kRows;
}

}  // namespace symbolic_rules

}  // namespace torchfake
