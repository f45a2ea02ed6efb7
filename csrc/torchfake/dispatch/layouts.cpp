// Layouts that fake tensors cannot have.
#include <torchfake/dispatch/layouts.h>

#include <torchfake/core/errors.h>

#include <unordered_set>

namespace torchfake {

void refuse_layout(const Call& call) {
  raise(
      ErrorKind::kUnsupportedFakeTensor,
      call.op_name(),
      "sparse, nested and quantized tensors cannot be fake; only strided ones can.");
}

void refuse_other_layouts(const Call& call) {
  static const std::unordered_set<std::string> kMakers = {
      "aten::_to_sparse",
      "aten::_to_sparse_csr",
      "aten::_to_sparse_csc",
      "aten::_to_sparse_bsr",
      "aten::_to_sparse_bsc",
      "aten::to_mkldnn",
      "aten::quantize_per_tensor",
      "aten::quantize_per_tensor_dynamic",
      "aten::quantize_per_channel",
      "aten::_empty_affine_quantized",
      "aten::_empty_per_channel_affine_quantized",
      "aten::empty_quantized",
      "aten::_sparse_coo_tensor_with_dims",
      "aten::_sparse_coo_tensor_with_dims_and_tensors",
      "aten::_sparse_compressed_tensor_with_dims",
      "aten::_nested_tensor_from_tensor_list",
      "aten::_nested_tensor_from_mask",
      "aten::_nested_view_from_buffer",
      "aten::_nested_view_from_jagged"};
  bool other = kMakers.count(call.traits.name) > 0;
  for (size_t i = 0; i < call.num_args(); ++i) {
    const c10::IValue& value = call.arg(i);
    other |= call.traits.args[i].kind == ArgKind::kLayout && value.isInt() && value.toLayout() != c10::kStrided;
  }
  if (other) {
    refuse_layout(call);
  }
}

}  // namespace torchfake
