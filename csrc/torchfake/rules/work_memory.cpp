// The work of memory-bound operators: which parts of their arguments they access, and in how many kernels.
#include <torchfake/rules/work_rows.h>

#include <algorithm>

namespace torchfake::work_rows {

namespace {

using work::bytes_of;
using work::Family;
using work::FinishedCall;
using work::Work;

int64_t bytes_at(const FinishedCall& call, const char* name) {
  const c10::TensorImpl* tensor = call.find_tensor(name);
  return tensor == nullptr ? 0 : bytes_of(*tensor);
}

// Reads as many elements of the source as there are in the output.
template <const char* kSource>
void gather(const FinishedCall& call, Work& work) {
  const c10::TensorImpl* output = call.output();
  const int64_t source = bytes_at(call, kSource);
  const int64_t taken = output == nullptr ? source : std::min(source, bytes_of(*output));
  work.nbytes -= source - taken;
}

// Reads and writes as many elements of the destination as there are values to write.
template <const char* kValues>
void scatter(const FinishedCall& call, Work& work) {
  const int64_t self = bytes_at(call, "self");
  const int64_t values = bytes_at(call, kValues);
  const bool is_in_place = call.traits.mutates;
  if (is_in_place && values > 0) {
    work.nbytes -= 2 * (self - std::min(self, values));
  }
}

// Lists of tensors are processed in several kernels. One kernel takes a limited number of tensors, which depends on the
// number of lists, and a limited number of blocks, one per 65,536 elements of a tensor. The limits are those of
// PyTorch's kernels for Volta and later.
void lists(const FinishedCall& call, Work& work) {
  constexpr int64_t kMostTensors[] = {770, 448, 336, 252, 210};
  constexpr int64_t kMostBlocks = 2240;
  constexpr int64_t kElementsOfBlock = 65536;
  size_t depth = 0;
  int64_t tensors = 0;
  int64_t blocks = 0;
  for (const c10::IValue& argument : call.arguments) {
    if (!argument.isTensorList()) {
      continue;
    }
    const std::vector<at::Tensor> list = argument.toTensorVector();
    if (list.empty() || list.front().dim() == 0) {
      continue;  // step counts
    }
    ++depth;
    if (tensors == 0) {
      tensors = static_cast<int64_t>(list.size());
      for (const at::Tensor& tensor : list) {
        blocks += (tensor.unsafeGetTensorImpl()->numel() + kElementsOfBlock - 1) / kElementsOfBlock;
      }
    }
  }
  if (depth == 0) {
    return;
  }
  depth += call.traits.mutates || call.outputs.empty() ? 0 : 1;
  const int64_t most = kMostTensors[std::min<size_t>(depth, std::size(kMostTensors)) - 1];
  const int64_t kernels = std::max((tensors + most - 1) / most, (blocks + kMostBlocks - 1) / kMostBlocks);
  work.launches = static_cast<int32_t>(std::max<int64_t>(kernels, 1));
}

constexpr char kSelf[] = "self";
constexpr char kWeight[] = "weight";
constexpr char kSrc[] = "src";
constexpr char kSource[] = "source";
constexpr char kValues[] = "values";

constexpr Row kRows[] = {
    {"aten::embedding", {Family::kIndexing, gather<kWeight>}},
    {"aten::_embedding_bag", {Family::kIndexing, gather<kWeight>}},
    {"aten::_embedding_bag_forward_only", {Family::kIndexing, gather<kWeight>}},
    {"aten::embedding_dense_backward", {Family::kIndexing}},
    {"aten::index", {Family::kIndexing, gather<kSelf>}},
    {"aten::index_select", {Family::kIndexing, gather<kSelf>}},
    {"aten::gather", {Family::kIndexing, gather<kSelf>}},
    {"aten::take", {Family::kIndexing, gather<kSelf>}},
    {"aten::index_put_", {Family::kIndexing, scatter<kValues>}},
    {"aten::_index_put_impl_", {Family::kIndexing, scatter<kValues>}},
    {"aten::index_add_", {Family::kIndexing, scatter<kSource>}},
    {"aten::index_copy_", {Family::kIndexing, scatter<kSource>}},
    {"aten::scatter_", {Family::kIndexing, scatter<kSrc>}},
    {"aten::scatter_add_", {Family::kIndexing, scatter<kSrc>}},
    {"aten::scatter_reduce_", {Family::kIndexing, scatter<kSrc>}},
    {"aten::sum", {Family::kReduction}},
    {"aten::mean", {Family::kReduction}},
    {"aten::amax", {Family::kReduction}},
    {"aten::amin", {Family::kReduction}},
    {"aten::max", {Family::kReduction}},
    {"aten::min", {Family::kReduction}},
    {"aten::argmax", {Family::kReduction}},
    {"aten::argmin", {Family::kReduction}},
    {"aten::any", {Family::kReduction}},
    {"aten::all", {Family::kReduction}},
    {"aten::cumsum", {Family::kReduction}},
    {"aten::var", {Family::kReduction}},
    {"aten::var_mean", {Family::kReduction}},
    {"aten::linalg_vector_norm", {Family::kReduction}},
    {"aten::nll_loss_forward", {Family::kReduction}},
    {"aten::mse_loss", {Family::kReduction}},
    {"aten::_softmax", {Family::kNormalization}},
    {"aten::_log_softmax", {Family::kNormalization}},
    {"aten::_softmax_backward_data", {Family::kNormalization}},
    {"aten::_log_softmax_backward_data", {Family::kNormalization}},
    {"aten::native_layer_norm", {Family::kNormalization}},
    {"aten::native_layer_norm_backward", {Family::kNormalization}},
    {"aten::native_group_norm", {Family::kNormalization}},
    {"aten::native_group_norm_backward", {Family::kNormalization}},
    {"aten::native_batch_norm", {Family::kNormalization}},
    {"aten::native_batch_norm_backward", {Family::kNormalization}},
    {"aten::cudnn_batch_norm", {Family::kNormalization}},
    {"aten::cudnn_batch_norm_backward", {Family::kNormalization}},
    {"aten::_fused_rms_norm", {Family::kNormalization}},
    {"aten::_fused_rms_norm_backward", {Family::kNormalization}},
    {"aten::_fused_adam_", {Family::kOptimizer, lists}},
    {"aten::_fused_adamw_", {Family::kOptimizer, lists}},
    {"aten::_fused_sgd_", {Family::kOptimizer, lists}},
    {"aten::_fused_adagrad_", {Family::kOptimizer, lists}},
    {"aten::_foreach_add_", {Family::kOptimizer, lists}},
    {"aten::_foreach_sub_", {Family::kOptimizer, lists}},
    {"aten::_foreach_mul_", {Family::kOptimizer, lists}},
    {"aten::_foreach_div_", {Family::kOptimizer, lists}},
    {"aten::_foreach_sqrt", {Family::kOptimizer, lists}},
    {"aten::_foreach_sqrt_", {Family::kOptimizer, lists}},
    {"aten::_foreach_neg", {Family::kOptimizer, lists}},
    {"aten::_foreach_neg_", {Family::kOptimizer, lists}},
    {"aten::_foreach_add", {Family::kOptimizer, lists}},
    {"aten::_foreach_mul", {Family::kOptimizer, lists}},
    {"aten::_foreach_div", {Family::kOptimizer, lists}},
    {"aten::_foreach_norm", {Family::kOptimizer, lists}},
    {"aten::_foreach_lerp_", {Family::kOptimizer, lists}},
    {"aten::_foreach_addcmul_", {Family::kOptimizer, lists}},
    {"aten::_foreach_addcdiv_", {Family::kOptimizer, lists}},
    {"aten::_foreach_copy_", {Family::kOptimizer, lists}},
    {"aten::_foreach_zero_", {Family::kOptimizer, lists}},
    {"aten::_amp_foreach_non_finite_check_and_unscale_", {Family::kOptimizer, lists}},
};

}  // namespace

c10::ArrayRef<Row> memory_rows() {
  return kRows;
}

}  // namespace torchfake::work_rows
