// Losses without a structured kernel, forward and backward.
#include <ATen/TensorIterator.h>
#include <ATen/core/Reduction.h>
#include <ATen/native/LossMulti.h>

#include <torchfake/rules/forms.h>
#include <torchfake/rules/results.h>

namespace torchfake {

namespace {

using TwoTensors = std::tuple<at::Tensor, at::Tensor>;

at::Tensor reduced(const at::Tensor& losses, int64_t reduction) {
  return reduction == at::Reduction::None ? losses : empty({}, losses.scalar_type());
}

at::Tensor binary_cross_entropy(
    const at::Tensor& self,
    const at::Tensor& target,
    const OptTensor& /*weight*/,
    int64_t reduction) {
  require_floating(self, "binary_cross_entropy");
  TORCH_CHECK(
      self.scalar_type() == target.scalar_type(),
      "Found dtype ",
      target.scalar_type(),
      " but expected ",
      self.scalar_type());
  pointwise(self, target);
  return reduced(strided_like(self), reduction);
}

at::Tensor binary_cross_entropy_backward(const at::Tensor& /*grad_output*/, const at::Tensor& self) {
  return strided_like(self);
}

at::Tensor huber_loss(const at::Tensor& self, const at::Tensor& target, int64_t reduction, double delta) {
  TORCH_CHECK(delta > 0, "huber_loss does not support non-positive values for delta.");
  // The loss has the input's dtype, whatever the target's.
  const at::Tensor loss = pointwise(self, target);
  check_castable(loss.scalar_type(), self.scalar_type());
  // An invalid reduction number counts as no reduction.
  const bool is_reduced = reduction == at::Reduction::Mean || reduction == at::Reduction::Sum;
  return reduced(loss.to(self.scalar_type()), is_reduced ? reduction : at::Reduction::None);
}

at::Tensor& mse_backward_out(
    const at::Tensor& grad_output,
    const at::Tensor& self,
    const at::Tensor& target,
    int64_t /*reduction*/,
    at::Tensor& grad_input) {
  at::TensorIteratorConfig()
      .add_output(grad_input)
      .add_const_input(self)
      .add_const_input(target)
      .add_const_input(grad_output)
      .promote_inputs_to_common_dtype(true)
      .cast_common_dtype_to_outputs(true)
      .enforce_safe_casting_to_output(true)
      .build();
  return grad_input;
}

at::Tensor mse_backward(
    const at::Tensor& grad_output,
    const at::Tensor& self,
    const at::Tensor& target,
    int64_t reduction) {
  at::Tensor grad_input = contiguous_like(self);  // resized by the iterator if the others are larger
  return mse_backward_out(grad_output, self, target, reduction, grad_input);
}

void check_nll2d(const at::Tensor& self, const at::Tensor& target, const at::Tensor& weight) {
  TORCH_CHECK(
      target.dim() == 3,
      "only batches of spatial targets supported (3D tensors) but got targets of dimension: ",
      target.dim());
  TORCH_CHECK(
      self.dim() == 4,
      "only batches of spatial inputs supported (4D tensors), but got input of dimension: ",
      self.dim());
  TORCH_CHECK(
      !weight.defined() || weight.numel() == self.size(1),
      "weight tensor should be defined either for all or no classes");
  TORCH_CHECK(
      self.size(0) == target.size(0) && self.size(2) == target.size(1) && self.size(3) == target.size(2),
      "size mismatch (got input: ",
      self.sizes(),
      " , target: ",
      target.sizes());
}

TwoTensors nll_loss2d(const at::Tensor& self, const at::Tensor& target, const OptTensor& weight, int64_t reduction) {
  check_nll2d(self, target, value(weight));
  require_floating(self, "nll_loss2d_forward");
  return {reduced(empty(target.sizes(), self.scalar_type()), reduction), empty({}, self.scalar_type())};
}

at::Tensor nll_loss2d_backward(
    const at::Tensor& /*grad_output*/,
    const at::Tensor& self,
    const at::Tensor& target,
    const OptTensor& weight) {
  check_nll2d(self, target, value(weight));
  return strided_like(self);
}

at::Tensor multi_margin_loss(
    const at::Tensor& self,
    const at::Tensor& target,
    const at::Scalar& p,
    const at::Scalar& /*margin*/,
    const OptTensor& weight,
    int64_t reduction) {
  int64_t frames = 0;
  int64_t classes = 0;
  TORCH_CHECK(p.toDouble() == 1 || p.toDouble() == 2, "only p == 1 and p == 2 supported");
  TORCH_CHECK(
      target.scalar_type() == c10::kLong, "expected scalar type Long but found ", c10::toString(target.scalar_type()));
  at::native::multi_margin_loss_shape_check(frames, classes, self.dim(), self, target, weight);
  const bool each = reduction == at::Reduction::None && target.dim() > 0;
  return each ? empty({frames}, self.scalar_type()) : empty({}, self.scalar_type());
}

// The margin losses write through a pointer of the input's dtype, unless there is nothing to write.
OutDtype margin_dtype(const at::Tensor& like_input) {
  return like_input.numel() > 0 ? OutDtype::kSame : OutDtype::kCastable;
}

void write_margins(const OutRule::Tensors& outs, const OutRule::Tensors& results) {
  for (size_t i = 0; i < outs.size(); ++i) {
    write_out(outs[i], results[i], margin_dtype(results.back()));
  }
}

at::Tensor& multi_margin_loss_out(
    const at::Tensor& self,
    const at::Tensor& target,
    const at::Scalar& p,
    const at::Scalar& margin,
    const OptTensor& weight,
    int64_t reduction,
    at::Tensor& out) {
  write_out(out, multi_margin_loss(self, target, p, margin, weight, reduction), margin_dtype(self));
  return out;
}

at::Tensor backward_of_first(const at::Tensor& /*grad_output*/, const at::Tensor& self) {
  return contiguous_like(self);
}

// The libraries have special kernels for some sizes, which are not modelled.
bool library_has_none() {
  return false;
}

// The sizes of one loss, or of one per row of a batch.
std::vector<int64_t> multilabel_sizes(const at::Tensor& self, const at::Tensor& target, int64_t reduction) {
  int64_t rows = 0;
  int64_t classes = 0;
  const int64_t ndims = self.dim();
  at::native::multilabel_margin_loss_shape_check(rows, classes, ndims, self, target);
  return reduction == at::Reduction::None && target.dim() > 1 ? std::vector<int64_t>{rows} : std::vector<int64_t>{};
}

TwoTensors multilabel_margin_loss(const at::Tensor& self, const at::Tensor& target, int64_t reduction) {
  const c10::ScalarType dtype = self.scalar_type();
  const std::vector<int64_t> sizes = multilabel_sizes(self, target, reduction);
  TORCH_CHECK(
      target.scalar_type() == c10::kLong || target.numel() == 0,
      "expected scalar type Long but found ",
      c10::toString(target.scalar_type()));
  if (claimed_device().is_cuda() && self.numel() == 0) {
    return {empty({0}, dtype), empty({0}, dtype)};  // the kernel returns before resizing its outputs
  }
  return {empty(sizes, dtype), contiguous_like(target, dtype)};
}

at::Tensor multilabel_margin_loss_backward(
    const at::Tensor& /*grad_output*/,
    const at::Tensor& self,
    const at::Tensor& target,
    int64_t reduction) {
  multilabel_sizes(self, target, reduction);
  return contiguous_like(self);
}

}  // namespace

KernelList loss_kernels() {
  namespace ops = at::_ops;
  return {
      kernel<ops::binary_cross_entropy, &binary_cross_entropy>(),
      out_form<ops::binary_cross_entropy_out, ops::binary_cross_entropy>(),
      kernel<ops::binary_cross_entropy_backward, &binary_cross_entropy_backward>(),
      out_form<ops::binary_cross_entropy_backward_grad_input, ops::binary_cross_entropy_backward>(),
      kernel<ops::huber_loss, &huber_loss>(),
      out_form<ops::huber_loss_out, ops::huber_loss>(),
      kernel<ops::mse_loss_backward_grad_input, &mse_backward_out>(),
      kernel<ops::nll_loss2d_forward, &nll_loss2d>(),
      out_form<ops::nll_loss2d_forward_output, ops::nll_loss2d_forward>(OutDtype::kSame),
      kernel<ops::nll_loss2d_backward, &nll_loss2d_backward>(),
      out_form<ops::nll_loss2d_backward_grad_input, ops::nll_loss2d_backward>(&write_contiguous),
      kernel<ops::multi_margin_loss, &multi_margin_loss>(),
      kernel<ops::multi_margin_loss_out, &multi_margin_loss_out>(),
      kernel<ops::multi_margin_loss_backward, &backward_of_first>(),
      out_form<ops::multi_margin_loss_backward_grad_input, ops::multi_margin_loss_backward>(&write_margins),
      out_form<ops::multilabel_margin_loss_forward_output, ops::multilabel_margin_loss_forward>(&write_margins),
      out_form<ops::multilabel_margin_loss_backward_grad_input, ops::multilabel_margin_loss_backward>(&write_margins),
      kernel<ops::multilabel_margin_loss_forward, &multilabel_margin_loss>(),
      kernel<ops::multilabel_margin_loss_backward, &multilabel_margin_loss_backward>(),
      kernel<ops::mse_loss_backward, &mse_backward>(),
      kernel<ops::_ctc_loss_backward, &backward_of_first>(),
      kernel<ops::_ctc_loss_backward_Tensor, &backward_of_first>(),
      kernel<ops::_use_cudnn_ctc_loss, &library_has_none>(),
      kernel<ops::_use_cudnn_ctc_loss_Tensor, &library_has_none>(),
      kernel<ops::_use_miopen_ctc_loss, &library_has_none>(),
      kernel<ops::_use_miopen_ctc_loss_Tensor, &library_has_none>(),
  };
}

}  // namespace torchfake
