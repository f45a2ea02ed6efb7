// Rules for operators that PyTorch decomposes above the Fake key, where the decomposition looks at values or for a library.
#include <ATen/ExpandUtils.h>
#include <ATen/core/Reduction.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_ctc_loss.h>
#include <ATen/ops/_embedding_bag_sparse_backward_ops.h>
#include <ATen/ops/_pad_packed_sequence_ops.h>
#include <ATen/ops/_reshape_from_tensor_ops.h>
#include <ATen/ops/_saturate_weight_to_fp16_ops.h>
#include <ATen/ops/_shape_as_tensor_ops.h>
#include <ATen/ops/_sobol_engine_draw_ops.h>
#include <ATen/ops/_sobol_engine_ff_ops.h>
#include <ATen/ops/_sobol_engine_initialize_state_ops.h>
#include <ATen/ops/_sobol_engine_scramble_ops.h>
#include <ATen/ops/_sparse_bsc_tensor_unsafe_ops.h>
#include <ATen/ops/_sparse_bsr_tensor_unsafe_ops.h>
#include <ATen/ops/_sparse_compressed_tensor_unsafe_ops.h>
#include <ATen/ops/_sparse_csc_tensor_unsafe_ops.h>
#include <ATen/ops/_sparse_csr_tensor_unsafe_ops.h>
#include <ATen/ops/_sparse_mm_ops.h>
#include <ATen/ops/_thnn_differentiable_gru_cell_backward_ops.h>
#include <ATen/ops/_thnn_differentiable_lstm_cell_backward_ops.h>
#include <ATen/ops/_validate_sparse_coo_tensor_args_ops.h>
#include <ATen/ops/affine_grid_generator_backward_ops.h>
#include <ATen/ops/batch_norm_ops.h>
#include <ATen/ops/choose_qparams_optimized_ops.h>
#include <ATen/ops/cov_ops.h>
#include <ATen/ops/cross_entropy_loss_ops.h>
#include <ATen/ops/ctc_loss_ops.h>
#include <ATen/ops/cudnn_batch_norm.h>
#include <ATen/ops/cudnn_grid_sampler.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/fbgemm_linear_fp16_weight_fp32_activation_ops.h>
#include <ATen/ops/fbgemm_linear_fp16_weight_ops.h>
#include <ATen/ops/fbgemm_linear_int8_weight_fp32_activation_ops.h>
#include <ATen/ops/fbgemm_linear_int8_weight_ops.h>
#include <ATen/ops/fbgemm_linear_quantize_weight_ops.h>
#include <ATen/ops/fbgemm_pack_gemm_matrix_fp16_ops.h>
#include <ATen/ops/fbgemm_pack_quantized_matrix_ops.h>
#include <ATen/ops/full.h>
#include <ATen/ops/grid_sampler_ops.h>
#include <ATen/ops/gru_ops.h>
#include <ATen/ops/isfinite_ops.h>
#include <ATen/ops/istft_ops.h>
#include <ATen/ops/lstm_ops.h>
#include <ATen/ops/max_pool1d_ops.h>
#include <ATen/ops/max_pool1d_with_indices.h>
#include <ATen/ops/meshgrid_ops.h>
#include <ATen/ops/nanquantile_ops.h>
#include <ATen/ops/one_hot_ops.h>
#include <ATen/ops/quantile_ops.h>
#include <ATen/ops/quantized_gru_cell_ops.h>
#include <ATen/ops/quantized_lstm_cell_ops.h>
#include <ATen/ops/quantized_rnn_relu_cell_ops.h>
#include <ATen/ops/quantized_rnn_tanh_cell_ops.h>
#include <ATen/ops/rnn_relu_ops.h>
#include <ATen/ops/rnn_tanh_ops.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/scaled_dot_product_attention_ops.h>
#include <ATen/ops/sparse_coo_tensor_ops.h>
#include <ATen/ops/tensor_split_ops.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <torchfake/core/activation.h>
#include <torchfake/core/compat.h>
#include <torchfake/core/errors.h>
#include <torchfake/core/kernel_environment.h>
#include <torchfake/core/plain_cpu.h>
#include <torchfake/core/pytorch_errors.h>
#include <torchfake/dispatch/refusals.h>
#include <torchfake/rules/attention.h>
#include <torchfake/rules/cudnn_recurrent.h>
#include <torchfake/rules/decompositions.h>
#include <torchfake/rules/kernels.h>
#include <torchfake/rules/rules.h>
#include <torchfake/rules/sparse.h>
#include <torchfake/values/known_values.h>
#include <torchfake/values/stand_in_answers.h>

#include <limits>

namespace torchfake {

namespace {

// Note [Composite operators with a rule]
// An operator that has only a decomposition runs it on the autograd keys, before the engine sees the call. If that
// decomposition reads values that a fake does not have, although the result does not depend on them, a kernel of ours
// on those keys handles calls with a fake among the arguments. All other calls go on to the decomposition, unboxed: the
// dispatcher's table holds it at the backend's own key, so the detour costs one table lookup.
//
// Leaves the result on the stack in place of the arguments and returns true; or changes nothing and returns false.
using CompositeRule = bool (*)(const Call& call);

// On the CPU the decomposition checks that the indices are in range.
bool one_hot(const Call& call) {
  const at::Tensor self = call.arg(0).toTensor();
  const int64_t num_classes = call.arg(1).toInt();
  if (num_classes < 1 || self.numel() == 0 || self.scalar_type() != c10::kLong) {
    return false;
  }
  std::vector<int64_t> sizes = self.sizes().vec();
  sizes.push_back(num_classes);
  at::Tensor result = at::zeros(sizes, self.options());
  result.scatter_(-1, self.unsqueeze(-1), 1);
  answer_with(call, std::move(result));
  return true;
}

// Under stand-ins all values are assumed finite; integers always are.
bool isfinite(const Call& call) {
  const at::Tensor self = call.arg(0).toTensor();
  const FakeTensorImpl* fake = as_fake(self);
  if (fake == nullptr || is_known(*fake, value_limit(fake->mode()->options))) {
    return false;
  }
  const bool is_whole = c10::isIntegralType(self.scalar_type(), /*includeBool=*/true);
  if (!is_whole && !stands_in(fake->mode(), call.op_name(), "True, nothing is amiss")) {
    return false;
  }
  answer_with(call, all_of(true, self, fake->mode()));
  return true;
}

// max_pool1d(self, kernel_size, stride, padding, dilation, ceil_mode). On the CPU, without gradients, it loops over the
// data.
bool max_pool1d(const Call& call) {
  const at::Tensor self = call.arg(0).toTensor();
  if (!self.is_cpu() || (self.requires_grad() && KernelEnvironment::enabled(KernelEnvironment::kGradMode)) ||
      self._fw_grad(0).defined()) {
    return false;
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      self.is_floating_point() && !c10::isFloat8Type(self.scalar_type()),
      "\"max_pool1d_impl\" not implemented for '",
      self.scalar_type(),
      "'");
  const auto numbers = [&](size_t arg) { return call.arg(arg).toIntVector(); };
  at::Tensor pooled = std::get<0>(at::max_pool1d_with_indices(
      self.dim() == 2 ? self.unsqueeze(0) : self,
      numbers(1),
      numbers(2),
      numbers(3),
      numbers(4),
      call.arg(5).toBool()));
  pooled = pooled.clone(at::MemoryFormat::Contiguous);  // not a view, unlike the squeezed result
  if (self.dim() == 2) {
    pooled.squeeze_(0);
  }
  answer_with(call, std::move(pooled));
  return true;
}

// grid_sampler(input, grid, interpolation_mode, padding_mode, align_corners): cuDNN supports bilinear, zeros, aligned
// corners.
bool grid_sampler(const Call& call) {
  const at::Tensor input = call.arg(0).toTensor();
  const at::Tensor grid = call.arg(1).toTensor();
  const auto has_dtype = [](const at::Tensor& tensor) {
    const c10::ScalarType dtype = tensor.scalar_type();
    return dtype == c10::kDouble || dtype == c10::kFloat || dtype == c10::kHalf;
  };
  const auto is_small = [](const at::Tensor& tensor) { return tensor.numel() <= std::numeric_limits<int32_t>::max(); };
  const bool asked = call.arg(2).toInt() == 0 && call.arg(3).toInt() == 0 && call.arg(4).toBool();
  if (!asked || !input.is_cuda() || !grid.is_cuda() || !KernelEnvironment::enabled(KernelEnvironment::kCudnn) ||
      !has_dtype(input) || !has_dtype(grid) || input.numel() == 0 || grid.numel() == 0 || !is_small(input) ||
      !is_small(grid) || input.dim() != 4 || input.size(1) > 1024) {
    return false;
  }
  answer_with(call, at::cudnn_grid_sampler(input, grid));
  return true;
}

// batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled): a PyTorch with
// CUDA dispatches to cuDNN if cuDNN supports the inputs.
bool batch_norm(const Call& call) {
  const at::Tensor input = call.arg(0).toTensor();
  const auto tensor = [&](size_t arg) { return call.arg(arg).toOptional<at::Tensor>(); };
  const auto defined = [&](size_t arg) { return tensor(arg) && tensor(arg)->defined(); };
  const bool training = call.arg(5).toBool();
  constexpr double kLeastEps = 1e-5;
  const bool has_statistics = defined(3) && defined(4);
  if (!input.is_cuda() || input.dim() < 3 || input.numel() == 0 || !defined(1) || !defined(2) ||
      !cudnn_normalizes(input, *tensor(1)) || !(has_statistics || (!defined(3) && !defined(4) && training)) ||
      input.size(0) > (training ? 880801 : 65535) || call.arg(7).toDouble() < kLeastEps || !call.arg(8).toBool()) {
    return false;
  }
  auto outputs = at::cudnn_batch_norm(
      input.contiguous(input.suggest_memory_format()),
      *tensor(1),
      tensor(2),
      tensor(3),
      tensor(4),
      training,
      call.arg(6).toDouble(),
      call.arg(7).toDouble());
  answer_with(call, std::get<0>(outputs));
  return true;
}

[[noreturn]] void refuse_unknown(const Call& call, const TensorArg& tensor) {
  raise(
      ErrorKind::kDataDependentOutput,
      call.op_name(),
      call.describe(tensor) +
          " is read, and this fake tensor holds no values. Values are known only where they follow from small "
          "constants; pass them as such.");
}

// The decomposition reads the argument (lengths, split points) through a data pointer, and has its own error for an
// argument that is not on the CPU.
template <size_t... kArgs>
bool needs_values(const Call& call) {
  for (const TensorArg& tensor : call.tensors()) {
    const bool is_read = ((tensor.arg == kArgs) || ...);
    if (is_read && tensor.fake != nullptr && tensor.fake->claimed_device().is_cpu() && !is_in_memory(*tensor.fake)) {
      refuse_unknown(call, tensor);
    }
  }
  return false;
}

// A tensor with these numbers as known values. at::tensor() would write them through a data pointer.
at::Tensor known_numbers(c10::IntArrayRef numbers, const ModePtr& mode) {
  at::Tensor real;
  {
    PlainCpu plain;
    real = at::empty({static_cast<int64_t>(numbers.size())}, at::TensorOptions().dtype(c10::kLong).device(c10::kCPU));
    std::copy(numbers.begin(), numbers.end(), real.data_ptr<int64_t>());
  }
  return lift(real, mode, /*copy=*/false);
}

// Reads a list of numbers, or a tensor of numbers on any device. Stand-ins for unknown values are the maximum, `most`.
std::vector<int64_t> lengths_of(const Call& call, size_t arg, int64_t most) {
  if (call.traits.args[arg].kind != ArgKind::kTensor) {
    return call.arg(arg).toIntVector();
  }
  at::Tensor lengths = call.arg(arg).toTensor();
  TORCH_CHECK(c10::isIntegralType(lengths.scalar_type(), /*includeBool=*/false), "lengths must be of integral type");
  for (const TensorArg& tensor : call.tensors()) {
    if (tensor.arg == arg && tensor.fake != nullptr) {
      std::optional<at::Tensor> values = read_values(*tensor.fake, std::numeric_limits<int64_t>::max());
      if (!values && stands_in(tensor.fake->mode(), call.op_name(), "the whole length for each element")) {
        return std::vector<int64_t>(static_cast<size_t>(lengths.numel()), most);
      }
      if (!values) {
        refuse_unknown(call, tensor);
      }
      lengths = *values;
    }
  }
  PlainCpu plain;
  lengths = lengths.to(c10::kLong).contiguous();
  const auto* first = lengths.const_data_ptr<int64_t>();
  return std::vector<int64_t>(first, first + lengths.numel());
}

// ctc_loss(log_probs, targets, input_lengths, target_lengths, blank, reduction, zero_infinity), with lengths as numbers
// or tensors. The decomposition reads the lengths and makes a tensor from them.
bool ctc_loss(const Call& call) {
  const at::Tensor log_probs = call.arg(0).toTensor();
  const at::Tensor targets = call.arg(1).toTensor();
  const std::vector<int64_t> target_lengths = lengths_of(call, 3, targets.dim() == 2 ? targets.size(1) : 1);
  const int64_t reduction = call.arg(5).toInt();
  const bool zero_infinity = call.arg(6).toBool();
  const bool is_batched = log_probs.dim() == 3;
  TORCH_CHECK(log_probs.numel() > 0, "log_probs tensor must not be empty");
  at::Tensor result = std::get<0>(at::_ctc_loss(
      is_batched ? log_probs : log_probs.unsqueeze(1),
      targets.to(log_probs.device(), c10::kLong),
      lengths_of(call, 2, log_probs.dim() == 0 ? 1 : log_probs.size(0)),
      target_lengths,
      call.arg(4).toInt(),
      zero_infinity));
  if (zero_infinity) {
    result = at::where(result.eq(std::numeric_limits<double>::infinity()), at::zeros({}, result.options()), result);
  }
  if (reduction == at::Reduction::Mean) {
    const at::Tensor lengths = known_numbers(target_lengths, *call.find_mode()).to(result.options()).clamp_min(1);
    result = result.div(lengths).mean();
  } else if (reduction == at::Reduction::Sum) {
    result = result.sum();
  } else if (!is_batched) {
    result = result.squeeze(0);
  }
  answer_with(call, std::move(result));
  return true;
}

// _pad_packed_sequence(data, batch_sizes, batch_first, padding_value, total_length) -> (padded, lengths). The
// decomposition writes the lengths through a data pointer.
bool pad_packed_sequence(const Call& call) {
  needs_values<1>(call);
  const at::Tensor data = call.arg(0).toTensor();
  const at::Tensor batch_sizes = call.arg(1).toTensor();
  const bool batch_first = call.arg(2).toBool();
  const at::Scalar padding_value = call.arg(3).toScalar();
  const int64_t total_length = call.arg(4).toInt();
  const FakeTensorImpl& fake = *as_fake(batch_sizes);
  const at::Tensor values = *read_values(fake, std::numeric_limits<int64_t>::max());
  const auto steps = values.accessor<int64_t, 1>();
  const int64_t longest = steps.size(0);
  TORCH_CHECK(
      longest > 0 && data.dim() > 0,
      "expected data of one dimension or more and at least one batch size, got sizes ",
      data.sizes(),
      " and ",
      longest,
      " batch sizes");
  TORCH_CHECK(
      total_length <= 0 || total_length >= longest,
      "Expected total_length to be at least the length of the longest sequence in input, but got total_length=",
      total_length,
      " and max sequence length being ",
      longest);
  std::vector<int64_t> sizes = data.sizes().vec();
  sizes[0] = steps[0];
  sizes.insert(sizes.begin(), std::max(longest, total_length));
  at::Tensor padded = at::full(sizes, padding_value, data.options());
  std::vector<int64_t> lengths(steps[0], 0);
  for (int64_t step = 0, offset = 0; step < longest; offset += steps[step], ++step) {
    padded.select(0, step).narrow(0, 0, steps[step]).copy_(data.narrow(0, offset, steps[step]));
    for (int64_t i = 0; i < steps[step]; ++i) {
      lengths[i] = step + 1;
    }
  }
  at::Tensor fake_lengths = known_numbers(lengths, fake.mode());
  answer_with(call, batch_first ? padded.transpose(0, 1) : padded, std::move(fake_lengths));
  return true;
}

void decompose(const Call& call) {
  call.op.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, *call.stack);
}

// Decompositions that check values for validity, which is assumed: quantile checks once that q lies between 0 and 1,
// istft that the windows leave no gaps.
template <int kChecks>
bool of_valid_input(const Call& call) {
  const ValidInput valid(kChecks);
  decompose(call);
  return true;
}

// [nan]quantile(self, q, dim, keepdim, interpolation[, out]). On the CPU, some releases find a single quantile by
// selection, in a function that is not an operator and reads memory, but several by sorting. So a single quantile is
// requested twice.
bool quantile(const Call& call) {
  const at::Tensor self = call.arg(0).toTensor();
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

// affine_grid_generator_backward(grad_grid, size, align_corners). For a dimension with one element, the decomposition
// writes the coordinate through a data pointer.
bool affine_grid_generator_backward(const Call& call) {
  const at::Tensor grad_grid = call.arg(0).toTensor();
  const std::vector<int64_t> size = call.arg(1).toIntVector();
  TORCH_CHECK(
      size.size() == 4 || size.size() == 5, "AffineGridGenerator needs 4d (spatial) or 5d (volumetric) inputs.");
  const int64_t dims = static_cast<int64_t>(size.size()) - 2;
  std::vector<int64_t> expected{size[0]};
  expected.insert(expected.end(), size.begin() + 2, size.end());
  expected.push_back(dims);
  TORCH_CHECK(
      grad_grid.sizes() == expected,
      "affine_grid_generator_backward: expected a gradient of size ",
      expected,
      " for an image of size ",
      size,
      ", got ",
      grad_grid.sizes());
  const int64_t points = c10::multiply_integers(size.begin() + 2, size.end());
  const at::Tensor base_grid = grad_grid.new_empty({size[0], points, dims + 1});
  answer_with(call, base_grid.transpose(1, 2).bmm(grad_grid.reshape({size[0], points, dims})).transpose(1, 2));
  return true;
}

// _embedding_bag_sparse_backward(grad, ..., mode, per_sample_weights, padding_idx). The decomposition asserts this.
bool embedding_bag_sparse_backward(const Call& call) {
  TORCH_CHECK(
      !call.arg(8).isTensor() || call.arg(7).toInt() == 0,
      "_embedding_bag_sparse_backward: per_sample_weights go with mode 0 (sum), got mode ",
      call.arg(7).toInt());
  return false;
}

// _shape_as_tensor(self): known values, on the CPU whatever the tensor's device.
bool shape_as_tensor(const Call& call) {
  const ModePtr* mode = call.find_mode();
  at::Tensor sizes = known_numbers(call.arg(0).toTensor().sizes(), *mode);
  answer_with(call, std::move(sizes));
  return true;
}

// Decompositions that access data through a pointer, or print it in an error. Without data, PyTorch's own message is
// about kernels called during tracing.
bool of_data_in_memory(const Call& call) {
  try {
    decompose(call);
  } catch (const FakeTensorError&) {
    throw;
  } catch (const c10::Error& error) {
    if (!asks_for_data(error)) {
      throw;
    }
    raise(
        ErrorKind::kUnsupportedOperator,
        call.op_name(),
        "it reads or writes tensor data through pointers, and a fake tensor has no data. Keep this call out of "
        "the fake run.");
  }
  return true;
}

// quantized_lstm_cell(input, hx, ...) reads two states without checking that there are two.
bool quantized_lstm_cell(const Call& call) {
  TORCH_CHECK(call.arg(1).toListRef().size() == 2, "quantized_lstm_cell expects two hidden states");
  return of_data_in_memory(call);
}

// Throws if the sum of these arguments does not split into `count` chunks along its second dimension. The decomposition
// takes so many, and reads past the end of a shorter list.
void check_chunks(const Call& call, std::initializer_list<size_t> summed, int64_t count) {
  std::vector<int64_t> size;
  for (const size_t arg : summed) {
    const at::Tensor tensor = call.arg(arg).isTensor() ? call.arg(arg).toTensor() : at::Tensor();
    if (tensor.defined()) {
      size = at::infer_size(size, tensor.sizes());
    }
  }
  if (size.size() < 2 || size[1] == 0) {
    return;  // refused by the decomposition, or `count` empty chunks
  }
  const int64_t chunk = (size[1] + count - 1) / count;
  TORCH_CHECK(
      (size[1] + chunk - 1) / chunk == count,
      call.op_name(),
      ": expected gates whose second dimension splits into ",
      count,
      " chunks, got gates of size ",
      size);
}

// _thnn_differentiable_gru_cell_backward(grad_hy, input_gates, hidden_gates, hx, input_bias, hidden_bias).
bool gru_cell_backward(const Call& call) {
  check_chunks(call, {1, 4}, 3);
  check_chunks(call, {2, 5}, 3);
  return false;
}

// _thnn_differentiable_lstm_cell_backward(grad_hy, grad_cy, input_gates, hidden_gates, input_bias, hidden_bias, cx, cy).
bool lstm_cell_backward(const Call& call) {
  if (!call.arg(0).isNone() || !call.arg(1).isNone()) {  // else it returns nothing
    check_chunks(call, {2, 3, 4, 5}, 4);
  }
  return false;
}

// The operators of SobolEngine go through its state by numbers that they are given, without a look at its size.
template <size_t kState, size_t kDimension>
bool sobol(const Call& call) {
  constexpr int64_t kBits = 30;
  const at::Tensor state = call.arg(kState).toTensor();
  const int64_t dimension = call.arg(kDimension).toInt();
  TORCH_CHECK(
      state.defined() && state.dim() == 2 && dimension >= 1 && state.size(0) >= dimension && state.size(1) == kBits,
      call.op_name(),
      ": expected a state of size [",
      dimension,
      ", ",
      kBits,
      "], as torch.quasirandom.SobolEngine makes it");
  for (const TensorArg& tensor : call.tensors()) {
    TORCH_CHECK(
        tensor.arg == kState || tensor.impl->numel() >= dimension,
        call.op_name(),
        ": expected ",
        dimension,
        " elements or more, got ",
        tensor.impl->numel());
  }
  return of_data_in_memory(call);
}

// _sparse_mm(mat1, mat2) adds the product to zeros that it creates, which outside of a mode would not be fake.
bool in_mode_of_argument(const Call& call) {
  const FakeMode in_mode(*call.find_mode());
  decompose(call);
  return true;
}

// sparse_coo_tensor(indices, values) derives its size from the largest indices, which it reads through a data pointer.
bool sparse_of_largest_indices(const Call& call) {
  check_size_is_known(call);
  return of_data_in_memory(call);
}

// cov(self, correction, fweights, aweights) checks that the weights are not negative and do not sum to zero, then
// whether there are too few observations.
bool cov(const Call& call) {
  const auto is_unanswered = [](const at::Tensor& check) {
    const FakeTensorImpl* fake = as_fake(check);
    return fake != nullptr && !is_known(*fake, value_limit(fake->mode()->options));
  };
  int unanswered = 0;  // checks not already answered by known weights or their value ranges
  at::Tensor weights;
  for (const size_t arg : {2, 3}) {
    const at::Tensor given = call.arg(arg).isTensor() ? call.arg(arg).toTensor() : at::Tensor();
    if (!given.defined() || given.numel() == 0 || given.is_complex()) {
      continue;
    }
    unanswered += static_cast<int>(is_unanswered(given.min().ge(0)));
    weights = weights.defined() && weights.sizes() == given.sizes() ? weights.mul(given) : given;
  }
  if (weights.defined()) {
    unanswered += static_cast<int>(is_unanswered(weights.sum().ne(0)));
  }
  const ValidInput valid(unanswered);
  decompose(call);
  return true;
}

// cross_entropy_loss with weights and smoothing divides by the sum of the weights of the targets that are not ignored.
bool cross_entropy_loss(const Call& call) {
  const SelectsAll all;
  decompose(call);
  return true;
}

// lstm(data, batch_sizes, ...) and its variants step by the batch sizes, which they read through a data pointer.
template <Cudnn kMode>
bool packed_network(const Call& call) {
  const at::Tensor batch_sizes = call.arg(1).toTensor();
  TORCH_CHECK(
      batch_sizes.defined() && batch_sizes.is_cpu() && batch_sizes.scalar_type() == c10::kLong &&
          batch_sizes.numel() > 0,
      "expected batch sizes in a CPU tensor of int64, as pack_padded_sequence gives them");
  needs_values<1>(call);
  return cudnn_recurrent<kMode, true>(call);
}

template <CompositeRule kRule>
void boxed_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const Call call(op, OpTraits::of(op), keys, stack);
  const bool answered = call.has_fake() && at_the_boundary([&] { return kRule(call); });
  if (!answered) {
    op.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, *stack);
  }
}

// Whether a fake may be among the arguments. `keys` covers all of them, unless Fake is excluded from dispatch.
bool may_have_fake(c10::DispatchKeySet keys) {
  return keys.has(c10::DispatchKey::Fake) || c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::Fake);
}

// The key at which the dispatcher holds the decomposition of an operator that has no other kernel.
c10::DispatchKeySet backend_of(c10::DispatchKeySet keys) {
  const c10::BackendComponent backend = keys.highestBackendKey();
  return c10::DispatchKeySet(
      backend == c10::BackendComponent::InvalidBit
          ? c10::DispatchKey::CPU
          : c10::toRuntimePerBackendFunctionalityKey(c10::DispatchKey::Dense, backend));
}

template <typename Op, CompositeRule kRule, typename Schema = typename Op::schema>
struct CompositeKernel;

template <typename Op, CompositeRule kRule, typename Result, typename... Args>
struct CompositeKernel<Op, kRule, Result(Args...)> {
  static Result run(c10::DispatchKeySet keys, Args... args) {
    if (C10_LIKELY(!may_have_fake(keys))) {
      return Op::redispatch(backend_of(keys), std::forward<Args>(args)...);
    }
    static const c10::OperatorHandle op = c10::Dispatcher::singleton().findSchemaOrThrow(Op::name, Op::overload_name);
    static const auto boxed = c10::KernelFunction::makeFromBoxedFunction<&boxed_kernel<kRule>>();
    return boxed.template call<Result, Args...>(op, keys, std::forward<Args>(args)...);
  }
};

template <typename Op, CompositeRule kRule>
void add(torch::Library& library) {
  const std::string overload = Op::overload_name;
  const std::string name = Op::name + (overload.empty() ? "" : "." + overload);
  library.impl(name.c_str(), TORCH_FN((CompositeKernel<Op, kRule>::run)));
}

void add_all(torch::Library& library) {
  namespace ops = at::_ops;
  add<ops::quantile, &quantile>(library);
  add<ops::quantile_scalar, &quantile>(library);
  add<ops::quantile_out, &quantile>(library);
  add<ops::quantile_scalar_out, &quantile>(library);
  add<ops::nanquantile, &quantile>(library);
  add<ops::nanquantile_scalar, &quantile>(library);
  add<ops::nanquantile_out, &quantile>(library);
  add<ops::nanquantile_scalar_out, &quantile>(library);
  add<ops::cov, &cov>(library);
  add<ops::istft, &of_valid_input<0>>(library);
  add<ops::cross_entropy_loss, &cross_entropy_loss>(library);
  add<ops::isfinite, &isfinite>(library);
  add<ops::one_hot, &one_hot>(library);
  add<ops::scaled_dot_product_attention, &scaled_dot_product_attention>(library);
  add<ops::tensor_split_tensor_indices_or_sections, &needs_values<1>>(library);
  add<ops::ctc_loss_Tensor, &ctc_loss>(library);
  add<ops::ctc_loss_IntList, &ctc_loss>(library);
  add<ops::max_pool1d, &max_pool1d>(library);
  add<ops::batch_norm, &batch_norm>(library);
  add<ops::grid_sampler, &grid_sampler>(library);
  add<ops::_pad_packed_sequence, &pad_packed_sequence>(library);
  add<ops::affine_grid_generator_backward, &affine_grid_generator_backward>(library);
  add<ops::_embedding_bag_sparse_backward, &embedding_bag_sparse_backward>(library);
  add<ops::_shape_as_tensor, &shape_as_tensor>(library);
  add<ops::_reshape_from_tensor, &of_data_in_memory>(library);
  add<ops::_validate_sparse_coo_tensor_args, &of_data_in_memory>(library);
  add<ops::meshgrid, &of_data_in_memory>(library);
  add<ops::meshgrid_indexing, &of_data_in_memory>(library);
  add<ops::choose_qparams_optimized, &of_data_in_memory>(library);
  add<ops::fbgemm_linear_fp16_weight, &of_data_in_memory>(library);
  add<ops::fbgemm_linear_fp16_weight_fp32_activation, &of_data_in_memory>(library);
  add<ops::fbgemm_linear_fp16_weight_out, &of_data_in_memory>(library);
  add<ops::fbgemm_linear_fp16_weight_fp32_activation_out, &of_data_in_memory>(library);
  add<ops::fbgemm_linear_int8_weight, &of_data_in_memory>(library);
  add<ops::fbgemm_linear_int8_weight_fp32_activation, &of_data_in_memory>(library);
  add<ops::fbgemm_linear_quantize_weight, &of_data_in_memory>(library);
  add<ops::fbgemm_pack_gemm_matrix_fp16, &of_data_in_memory>(library);
  add<ops::fbgemm_pack_quantized_matrix, &of_data_in_memory>(library);
  add<ops::fbgemm_pack_quantized_matrix_KN, &of_data_in_memory>(library);
  add<ops::_saturate_weight_to_fp16, &of_data_in_memory>(library);
  add<ops::quantized_lstm_cell, &quantized_lstm_cell>(library);
  add<ops::quantized_gru_cell, &of_data_in_memory>(library);
  add<ops::quantized_rnn_relu_cell, &of_data_in_memory>(library);
  add<ops::quantized_rnn_tanh_cell, &of_data_in_memory>(library);
  add<ops::_thnn_differentiable_gru_cell_backward, &gru_cell_backward>(library);
  add<ops::_thnn_differentiable_lstm_cell_backward, &lstm_cell_backward>(library);
  add<ops::_sobol_engine_draw, &sobol<2, 3>>(library);
  add<ops::_sobol_engine_ff_, &sobol<2, 3>>(library);
  add<ops::_sobol_engine_scramble_, &sobol<0, 2>>(library);
  add<ops::_sobol_engine_initialize_state_, &sobol<0, 1>>(library);
  add<ops::sparse_coo_tensor_indices, &sparse_of_largest_indices>(library);
  add<ops::_sparse_mm, &in_mode_of_argument>(library);
  add<ops::_sparse_compressed_tensor_unsafe, &make_compressed_tensor>(library);
  add<ops::_sparse_csr_tensor_unsafe, &make_compressed_tensor>(library);
  add<ops::_sparse_csc_tensor_unsafe, &make_compressed_tensor>(library);
  add<ops::_sparse_bsr_tensor_unsafe, &make_compressed_tensor>(library);
  add<ops::_sparse_bsc_tensor_unsafe, &make_compressed_tensor>(library);
  add<ops::lstm_data, &packed_network<Cudnn::kLstm>>(library);
  add<ops::gru_data, &packed_network<Cudnn::kGru>>(library);
  add<ops::rnn_tanh_data, &packed_network<Cudnn::kRnnTanh>>(library);
  add<ops::rnn_relu_data, &packed_network<Cudnn::kRnnRelu>>(library);
  add<ops::lstm_input, &cudnn_recurrent<Cudnn::kLstm, false>>(library);
  add<ops::gru_input, &cudnn_recurrent<Cudnn::kGru, false>>(library);
  add<ops::rnn_tanh_input, &cudnn_recurrent<Cudnn::kRnnTanh, false>>(library);
  add<ops::rnn_relu_input, &cudnn_recurrent<Cudnn::kRnnRelu, false>>(library);
}

std::vector<torch::Library>& libraries() {
  static auto* libraries = new std::vector<torch::Library>();
  return *libraries;
}

// Other threads may be calling these operators, and the dispatcher reads its tables without a lock. During installation
// they find the old entry, this one, or a mixture; both are stateless and behave the same for real tensors.
void install() {
  for (const c10::DispatchKey key : kDenseAutogradKeys) {
    add_all(libraries().emplace_back(torch::Library::IMPL, "aten", key, __FILE__, __LINE__));
  }
}

// See Note [Activation].
const RegisterChange g_composites(Span::kOnceActive, {&install, [] { libraries().clear(); }});

}  // namespace

}  // namespace torchfake
