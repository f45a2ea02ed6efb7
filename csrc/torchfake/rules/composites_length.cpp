// Rules for decompositions that read lengths: of sequences, of their packed form, of the parts of a tensor.
#include <ATen/core/Reduction.h>
#include <ATen/ops/_ctc_loss.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <torchfake/core/plain_cpu.h>
#include <torchfake/rules/composites.h>
#include <torchfake/rules/cudnn_recurrent.h>
#include <torchfake/values/known_values.h>
#include <torchfake/values/stand_in_answers.h>

#include <limits>

namespace torchfake {

namespace {

namespace ops = at::_ops;

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

// Reads a list of numbers, or a tensor of numbers on any device. Stand-ins for unknown values are the maximum, `most`.
std::vector<int64_t> lengths_of(const Call& call, size_t arg, int64_t most) {
  if (call.traits.args[arg].kind != ArgKind::kTensor) {
    return call.arg(arg).toIntVector();
  }
  const at::Tensor lengths = call.arg(arg).toTensor();
  TORCH_CHECK(c10::isIntegralType(lengths.scalar_type(), /*includeBool=*/false), "lengths must be of integral type");
  if (std::optional<std::vector<int64_t>> values = values_of(call, arg)) {
    return *std::move(values);
  }
  if (stands_in(*call.find_mode(), call.op_name(), "the whole length for each element")) {
    return std::vector<int64_t>(static_cast<size_t>(lengths.numel()), most);
  }
  return known_values_of(call, arg);  // throws
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

void check_batch_sizes(const at::Tensor& sizes) {
  TORCH_CHECK(
      sizes.defined() && sizes.scalar_type() == c10::kLong && sizes.dim() == 1,
      "expected batch sizes in a row of int64, as pack_padded_sequence gives them");
}

// _pad_packed_sequence(data, batch_sizes, batch_first, padding_value, total_length) -> (padded, lengths). The
// decomposition writes the lengths through a data pointer.
bool pad_packed_sequence(const Call& call) {
  const at::Tensor data = call.arg(0).toTensor();
  check_batch_sizes(call.arg(1).toTensor());
  const std::vector<int64_t> steps = known_values_of(call, 1);
  const bool batch_first = call.arg(2).toBool();
  const at::Scalar padding_value = call.arg(3).toScalar();
  const int64_t total_length = call.arg(4).toInt();
  const auto longest = static_cast<int64_t>(steps.size());
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
  at::Tensor padded = data.new_full(sizes, padding_value);  // on the CPU outside of a mode as well
  std::vector<int64_t> lengths(steps[0], 0);
  for (int64_t step = 0, offset = 0; step < longest; offset += steps[step], ++step) {
    padded.select(0, step).narrow(0, 0, steps[step]).copy_(data.narrow(0, offset, steps[step]));
    for (int64_t i = 0; i < steps[step]; ++i) {
      lengths[i] = step + 1;
    }
  }
  at::Tensor fake_lengths = known_numbers(lengths, *call.find_mode());
  answer_with(call, batch_first ? padded.transpose(0, 1) : padded, std::move(fake_lengths));
  return true;
}

// _shape_as_tensor(self): known values, on the CPU whatever the tensor's device.
bool shape_as_tensor(const Call& call) {
  const ModePtr* mode = call.find_mode();
  at::Tensor sizes = known_numbers(call.arg(0).toTensor().sizes(), *mode);
  answer_with(call, std::move(sizes));
  return true;
}

// lstm(data, batch_sizes, ...) and its variants step by the batch sizes, which they read through a data pointer.
template <Cudnn kMode>
bool packed_network(const Call& call) {
  const at::Tensor batch_sizes = call.arg(1).toTensor();
  check_batch_sizes(batch_sizes);
  TORCH_CHECK(batch_sizes.is_cpu() && batch_sizes.numel() > 0, "expected batch sizes on the CPU, and at least one");
  needs_values<1>(call);
  return cudnn_recurrent<kMode, true>(call);
}

}  // namespace

CompositeList length_composites() {
  return {
      &composite<&needs_values<1>, &of_fakes, ops::tensor_split_tensor_indices_or_sections>,
      &composite<&ctc_loss, &of_fakes, ops::ctc_loss_Tensor, ops::ctc_loss_IntList>,
      &composite<&pad_packed_sequence, &of_fakes, ops::_pad_packed_sequence>,
      &composite<&shape_as_tensor, &of_fakes, ops::_shape_as_tensor>,
      &composite<&packed_network<Cudnn::kLstm>, &of_fakes, ops::lstm_data>,
      &composite<&packed_network<Cudnn::kGru>, &of_fakes, ops::gru_data>,
      &composite<&packed_network<Cudnn::kRnnTanh>, &of_fakes, ops::rnn_tanh_data>,
      &composite<&packed_network<Cudnn::kRnnRelu>, &of_fakes, ops::rnn_relu_data>,
  };
}

}  // namespace torchfake
