// Rules for packed and jagged sequences: known lengths give known shapes, whatever tensor is packed.
#include <ATen/EmptyTensor.h>
#include <ATen/ops/_pack_padded_sequence.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <torchfake/core/errors.h>
#include <torchfake/core/to_fake.h>
#include <torchfake/rules/rules.h>
#include <torchfake/values/known_values.h>
#include <torchfake/values/stand_in_answers.h>

namespace torchfake {

namespace {

// _pack_padded_sequence(input, lengths, batch_first) -> (data, batch_sizes)
RuleResult pack_padded_sequence(Call& call, const ModePtr& mode) {
  const at::Tensor input = call.arg(0).toTensor();
  const at::Tensor lengths = call.arg(1).toTensor();
  const bool batch_first = call.arg(2).toBool();
  TORCH_CHECK(input.dim() >= 2, "pack_padded_sequence: expected an input of 2 dimensions or more, got ", input.dim());
  TORCH_CHECK(
      lengths.is_cpu() && lengths.scalar_type() == c10::kLong && lengths.dim() == 1,
      "'lengths' argument should be a 1D CPU int64 tensor, but got ",
      lengths.dim(),
      "D ",
      lengths.device(),
      " ",
      lengths.scalar_type(),
      " tensor");
  std::optional<at::Tensor> values = read_values(*as_fake(lengths), value_limit(mode->options));
  if (!values && stands_in(mode, call.op_name(), "the whole length for each element")) {
    NoFakeMode real;
    values =
        at::full(lengths.sizes(), input.size(batch_first ? 1 : 0), at::TensorOptions(c10::kLong).device(c10::kCPU));
  }
  if (!values) {
    raise(
        ErrorKind::kDynamicOutputShape,
        call.op_name(),
        "the size of the result is the sum of the lengths, and those are not known. Pass them as constants.");
  }
  // The real operator, on a tensor of the same outer sizes with one column, checks the lengths and computes the batch
  // sizes.
  at::Tensor batch_sizes;
  {
    NoFakeMode real;
    const at::Tensor outline = at::zeros({input.size(0), input.size(1), 1}, at::TensorOptions().device(c10::kCPU));
    batch_sizes = std::get<1>(at::_pack_padded_sequence(outline, *values, batch_first));
  }
  std::vector<int64_t> sizes;
  {
    NoFakeMode real;
    sizes.push_back(batch_sizes.sum().item<int64_t>());
  }
  sizes.insert(sizes.end(), input.sizes().begin() + 2, input.sizes().end());
  at::Tensor fake_batch_sizes = to_fake(batch_sizes, mode);
  make_known(*as_fake(fake_batch_sizes), batch_sizes);
  return answer_with(call, at::detail::empty_meta(sizes, input.scalar_type()), std::move(fake_batch_sizes));
}

// The last of the offsets, if they are known: the length of all sequences together.
std::optional<int64_t> last_offset(const at::Tensor& offsets, const ModePtr& mode) {
  const FakeTensorImpl* fake = as_fake(offsets);
  const std::optional<at::Tensor> values =
      fake == nullptr ? std::nullopt : read_values(*fake, value_limit(mode->options));
  if (!values || values->numel() == 0) {
    return std::nullopt;
  }
  NoFakeMode real;
  return values->select(0, -1).item().toLong();
}

// _padded_dense_to_jagged_forward(dense, offsets, total_L): the values of a jagged tensor.
RuleResult jagged_of_padded(Call& call, const ModePtr& mode) {
  const at::Tensor dense = call.arg(0).toTensor();
  const std::vector<at::Tensor> offsets = call.arg(1).toTensorVector();
  TORCH_CHECK(
      offsets.size() == 1 && offsets[0].dim() == 1 && dense.dim() >= 2,
      "_padded_dense_to_jagged_forward(): expected a padded tensor of 2 dimensions or more and one tensor of offsets, "
      "got ",
      dense.dim(),
      " dimensions and ",
      offsets.size(),
      " tensors");
  const std::optional<int64_t> last = last_offset(offsets[0], mode);
  const std::optional<int64_t> given = call.arg(2).toOptional<int64_t>();
  TORCH_CHECK(
      !last || !given || *last == *given, "_padded_dense_to_jagged_forward(): final offset should match total_L value");
  if (!last && !given) {
    raise(
        ErrorKind::kDynamicOutputShape,
        call.op_name(),
        "the size of the result is the last of the offsets, and those are not known. Pass total_L.");
  }
  std::vector<int64_t> sizes{given ? *given : *last};
  sizes.insert(sizes.end(), dense.sizes().begin() + 2, dense.sizes().end());
  return answer_with(call, at::detail::empty_meta(sizes, dense.scalar_type()));
}

}  // namespace

RuleList sequence_rules() {
  return {
      {"_pack_padded_sequence", &pack_padded_sequence},
      {"_padded_dense_to_jagged_forward", &jagged_of_padded},
  };
}

}  // namespace torchfake
