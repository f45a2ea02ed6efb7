// Rules that raise the errors of real kernels under torch.use_deterministic_algorithms(True). They compute no results.
#include <ATen/core/Reduction.h>
#include <torchfake/core/kernel_environment.h>
#include <torchfake/rules/operator_table.h>
#include <torchfake/rules/rules.h>

namespace torchfake {

namespace {

// A kernel without a deterministic implementation, and its name in PyTorch's error message.
struct Kernel {
  const char* operators;  // named as in the table of operators
  const char* name;
  bool on_cpu_too = false;
  bool (*runs)(const Call& call) = nullptr;  // whether the arguments select this kernel; null if all arguments do
};

bool is_reduced(const Call& call) {
  return call.arg(3).toInt() != at::Reduction::None;
}

// The mode of an embedding bag: 2 is the maximum.
template <size_t kMode>
bool takes_maxima(const Call& call) {
  return call.arg(kMode).toInt() == 2;
}

bool has_weights(const Call& call) {
  return call.arg(1).isTensor();
}

bool is_floating(const Call& call) {
  return call.arg(0).toTensor().is_floating_point();
}

// put_(self, index, source, accumulate): only the CPU accumulates in order.
bool overwrites(const Call& call) {
  return !call.arg(3).toBool() || call.arg(0).toTensor().is_cuda();
}

// scatter(self, dim, index, src, *, reduce): floating-point sums are computed by a deterministic kernel.
bool reduces_otherwise(const Call& call) {
  const bool sums =
      call.arg(4).toStringView() == "add" && !at::isIntegralType(call.arg(0).toTensor().scalar_type(), true);
  return !sums && call.arg(2).toTensor().numel() > 0;
}

// scatter_reduce(self, dim, index, src, reduce)
bool multiplies(const Call& call) {
  return call.arg(4).toStringView() == "prod" && call.arg(2).toTensor().numel() > 0;
}

constexpr Kernel kKernels[] = {
    {"max_unpool2d", "max_unpooling2d_forward_out", true},
    {"max_unpool3d", "max_unpooling3d_forward_out", true},
    {"put put_", "put_", true, &overwrites},
    {"bincount", "_bincount_cuda", false, &has_weights},
    {"histc", "_histc_cuda with floating point input", false, &is_floating},
    {"median.dim median.dim_values nanmedian.dim nanmedian.dim_values", "median CUDA with indices output"},
    {"index_reduce index_reduce_", "index_reduce_cuda"},
    {"scatter.reduce scatter.reduce_out scatter_.reduce", "scatter_reduce_cuda_kernel", false, &reduces_otherwise},
    {"scatter_reduce scatter_reduce_", "scatter_reduce_cuda_prod_", false, &multiplies},
    {"nll_loss2d_forward", "nll_loss2d_forward_out_cuda_template", false, &is_reduced},
    {"_ctc_loss_backward", "ctc_loss_backward_gpu"},
    {"_embedding_bag_backward", "embedding_bag_backward_cuda_max", false, &takes_maxima<8>},
    {"_embedding_bag_dense_backward", "embedding_bag_backward_cuda_max", false, &takes_maxima<7>},
    {"grid_sampler_2d_backward", "grid_sampler_2d_backward_cuda"},
    {"grid_sampler_3d_backward", "grid_sampler_3d_backward_cuda"},
    {"cudnn_grid_sampler_backward", "cudnn_grid_sampler_backward"},
    {"_adaptive_avg_pool2d_backward", "adaptive_avg_pool2d_backward_cuda"},
    {"_adaptive_avg_pool3d_backward", "adaptive_avg_pool3d_backward_cuda"},
    {"adaptive_avg_pool3d_backward", "adaptive_avg_pool3d_backward_out_cuda"},
    {"adaptive_max_pool2d_backward", "adaptive_max_pool2d_backward_cuda"},
    {"avg_pool3d_backward", "avg_pool3d_backward_cuda"},
    {"fractional_max_pool2d_backward", "fractional_max_pool2d_backward_cuda"},
    {"fractional_max_pool3d_backward.", "fractional_max_pool3d_backward_cuda"},
    {"fractional_max_pool3d_backward.grad_input", "fractional_max_pool3d_backward_out_cuda"},
    {"max_pool3d_with_indices_backward.", "max_pool3d_with_indices_backward_cuda"},
    {"max_pool3d_with_indices_backward.grad_input", "max_pool3d_with_indices_backward_out_cuda"},
    {"reflection_pad1d_backward", "reflection_pad1d_backward_out_cuda"},
    {"reflection_pad3d_backward", "reflection_pad3d_backward_out_cuda"},
    {"replication_pad1d_backward", "replication_pad1d_backward_cuda"},
    {"replication_pad2d_backward.", "replication_pad2d_backward_cuda"},
    {"replication_pad2d_backward.grad_input", "replication_pad2d_backward_out_cuda"},
    {"replication_pad3d_backward.", "replication_pad3d_backward_cuda"},
    {"replication_pad3d_backward.grad_input", "replication_pad3d_backward_out_cuda"},
    {"upsample_linear1d_backward", "upsample_linear1d_backward_out_cuda"},
    {"upsample_bilinear2d_backward", "upsample_bilinear2d_backward_out_cuda"},
    {"upsample_bicubic2d_backward", "upsample_bicubic2d_backward_out_cuda"},
    {"upsample_trilinear3d_backward", "upsample_trilinear3d_backward_out_cuda"},
    {"_upsample_bilinear2d_aa_backward", "upsample_bilinear2d_aa_backward_out_cuda"},
    {"_upsample_bicubic2d_aa_backward", "upsample_bicubic2d_aa_backward_out_cuda"},
};

RuleResult deterministic(Call& call, const ModePtr& /*mode*/) {
  check_determinism(call);
  return RuleResult::kContinue;
}

}  // namespace

void check_determinism(const Call& call) {
  if (!KernelEnvironment::deterministic()) {
    return;
  }
  const c10::OperatorName& whole = call.op.operator_name();
  const std::string_view base = std::string_view(whole.name).substr(whole.name.find("::") + 2);
  const at::Tensor first = call.arg(0).toTensor();
  for (const Kernel& kernel : kKernels) {
    const bool is_there = first.is_cuda() || (kernel.on_cpu_too && first.is_cpu());
    if (is_there && names_operator(kernel.operators, "aten", base, whole.overload_name) &&
        (kernel.runs == nullptr || kernel.runs(call))) {
      KernelEnvironment::alert_not_deterministic(kernel.name);
    }
  }
}

void check_bincount(const Call& call, int64_t /*limit*/) {
  check_determinism(call);
}

RuleList determinism_rules() {
  RuleList rules;
  for (const Kernel& kernel : kKernels) {
    const std::string_view operators = kernel.operators;
    if (!operators.starts_with("scatter") && operators != "bincount") {  // these have rules, which check this too
      rules.push_back({kernel.operators, &deterministic});
    }
  }
  return rules;
}

}  // namespace torchfake
