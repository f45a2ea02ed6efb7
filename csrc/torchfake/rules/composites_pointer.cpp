// Rules for decompositions that read or write data through a pointer.
#include <ATen/ExpandUtils.h>

#include <torchfake/rules/composites.h>
#include <torchfake/rules/sparse.h>

namespace torchfake {

namespace {

namespace ops = at::_ops;

// affine_grid_generator_backward(grad_grid, size, align_corners). For a dimension with one element, the decomposition
// writes the coordinate through a data pointer.
bool affine_grid_generator_backward(const Call& call) {
  const at::Tensor grad_grid = call.arg(0).toTensor();
  std::vector<c10::SymInt> size;
  for (const c10::IValue& each : call.arg(1).toListRef()) {
    size.push_back(each.toSymInt());
  }
  TORCH_CHECK(
      size.size() == 4 || size.size() == 5, "AffineGridGenerator needs 4d (spatial) or 5d (volumetric) inputs.");
  const int64_t dims = static_cast<int64_t>(size.size()) - 2;
  std::vector<c10::SymInt> expected{size[0]};
  expected.insert(expected.end(), size.begin() + 2, size.end());
  expected.emplace_back(dims);
  const c10::SymIntArrayRef found = grad_grid.sym_sizes();
  TORCH_CHECK(
      std::equal(
          expected.begin(),
          expected.end(),
          found.begin(),
          found.end(),
          [](const c10::SymInt& a, const c10::SymInt& b) { return a.sym_eq(b).expect_true(__FILE__, __LINE__); }),
      "affine_grid_generator_backward: expected a gradient of size ",
      c10::SymIntArrayRef(expected),
      " for an image of size ",
      c10::SymIntArrayRef(size),
      ", got ",
      found);
  const c10::SymInt points = c10::multiply_integers(size.begin() + 2, size.end());
  const at::Tensor base_grid = grad_grid.new_empty_symint({size[0], points, dims + 1});
  answer_with(call, base_grid.transpose(1, 2).bmm(grad_grid.reshape_symint({size[0], points, dims})).transpose(1, 2));
  return true;
}

// _embedding_bag_sparse_backward(grad, ..., mode, per_sample_weights, padding_idx). The decomposition asserts this.
bool embedding_bag_sparse_backward(const Call& call) {
  TORCH_CHECK(
      !call.arg(8).isTensor() || call.arg(7).toInt() == 0,
      "_embedding_bag_sparse_backward: per_sample_weights are only supported for mode 0 (sum), got mode ",
      call.arg(7).toInt());
  return false;
}

// quantized_lstm_cell(input, hx, ...) reads two states without checking that there are two.
bool quantized_lstm_cell(const Call& call) {
  TORCH_CHECK(call.arg(1).toListRef().size() == 2, "quantized_lstm_cell expects two hidden states");
  return of_data_in_memory(call);
}

// Throws if the sum of these arguments does not split into `count` chunks along its second dimension. The decomposition
// takes that many, and reads past the end of a shorter list.
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
  if (!call.arg(0).isNone() || !call.arg(1).isNone()) {  // otherwise it returns nothing
    check_chunks(call, {2, 3, 4, 5}, 4);
  }
  return false;
}

// The operators of SobolEngine index its state by their arguments without checking its size.
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

}  // namespace

CompositeList pointer_composites() {
  return {
      &composite<
          &of_data_in_memory,
          &of_fakes,
          ops::_reshape_from_tensor,
          ops::_validate_sparse_coo_tensor_args,
          ops::meshgrid,
          ops::meshgrid_indexing,
          ops::choose_qparams_optimized,
          ops::fbgemm_linear_fp16_weight,
          ops::fbgemm_linear_fp16_weight_fp32_activation,
          ops::fbgemm_linear_fp16_weight_out,
          ops::fbgemm_linear_fp16_weight_fp32_activation_out,
          ops::fbgemm_linear_int8_weight,
          ops::fbgemm_linear_int8_weight_fp32_activation,
          ops::fbgemm_linear_quantize_weight,
          ops::fbgemm_pack_gemm_matrix_fp16,
          ops::fbgemm_pack_quantized_matrix,
          ops::fbgemm_pack_quantized_matrix_KN,
          ops::_saturate_weight_to_fp16,
          ops::quantized_gru_cell,
          ops::quantized_rnn_relu_cell,
          ops::quantized_rnn_tanh_cell>,
      &composite<&quantized_lstm_cell, &of_fakes, ops::quantized_lstm_cell>,
      &composite<&gru_cell_backward, &of_fakes, ops::_thnn_differentiable_gru_cell_backward>,
      &composite<&lstm_cell_backward, &of_fakes, ops::_thnn_differentiable_lstm_cell_backward>,
      &composite<&affine_grid_generator_backward, &of_fakes, ops::affine_grid_generator_backward>,
      &composite<&embedding_bag_sparse_backward, &of_fakes, ops::_embedding_bag_sparse_backward>,
      &composite<&sobol<2, 3>, &of_fakes, ops::_sobol_engine_draw, ops::_sobol_engine_ff_>,
      &composite<&sobol<0, 2>, &of_fakes, ops::_sobol_engine_scramble_>,
      &composite<&sobol<0, 1>, &of_fakes, ops::_sobol_engine_initialize_state_>,
      &composite<&sparse_of_largest_indices, &of_fakes, ops::sparse_coo_tensor_indices>,
      &composite<&in_mode_of_argument, &of_fakes, ops::_sparse_mm>,
      &composite<
          &make_compressed_tensor,
          &of_fakes,
          ops::_sparse_compressed_tensor_unsafe,
          ops::_sparse_csr_tensor_unsafe,
          ops::_sparse_csc_tensor_unsafe,
          ops::_sparse_bsr_tensor_unsafe,
          ops::_sparse_bsc_tensor_unsafe>,
  };
}

}  // namespace torchfake
