// Padding by reflection and replication, for the forms without a structured kernel.
#include <ATen/ops/reflection_pad3d_backward_meta_dispatch.h>
#include <ATen/ops/reflection_pad3d_meta_dispatch.h>
#include <ATen/ops/replication_pad2d_meta_dispatch.h>
#include <ATen/ops/replication_pad3d_meta_dispatch.h>

#include <torchfake/core/compat.h>
#include <torchfake/rules/forms.h>
#include <torchfake/rules/results.h>

namespace torchfake {

namespace {

// The CPU preserves channels-last order; a GPU writes a contiguous result.
at::Tensor padded_result(c10::IntArrayRef sizes, const at::Tensor& self) {
  return claimed_device().is_cpu() ? formatted(sizes, self) : empty(sizes, self.scalar_type());
}

// `padding` starts with the last dimension and has two numbers per padded dimension.
std::vector<int64_t> padded_sizes(const at::Tensor& self, c10::IntArrayRef padding) {
  TORCH_CHECK(
      padding.size() % 2 == 0 && padding.size() / 2 <= static_cast<size_t>(self.dim()),
      "padding ",
      padding,
      " does not fit a tensor of size ",
      self.sizes());
  std::vector<int64_t> sizes = self.sizes().vec();
  for (size_t i = 0; i < padding.size() / 2; ++i) {
    sizes[sizes.size() - 1 - i] += padding[2 * i] + padding[2 * i + 1];
  }
  return sizes;
}

at::Tensor reflection_pad2d(const at::Tensor& self, c10::IntArrayRef padding) {
  compat::check_reflection_pad2d(self, padding);
  return padded_result(padded_sizes(self, padding), self);
}

enum class Padding : uint8_t { kReflection, kReplication };

template <Padding kPadding, size_t kDims>
void check_pad_backward(const at::Tensor& grad_output, const at::Tensor& self, c10::IntArrayRef padding) {
  TORCH_CHECK(padding.size() == 2 * kDims, "padding size is expected to be ", 2 * kDims, ", but got: ", padding.size());
  compat::check_pad_backward(grad_output, self, padding, kPadding == Padding::kReplication);
  TORCH_CHECK(
      grad_output.sizes() == c10::IntArrayRef(padded_sizes(self, padding)),
      "gradOutput size unexpected. Expected: ",
      padded_sizes(self, padding),
      ", Got: ",
      grad_output.sizes());
}

template <Padding kPadding, size_t kDims>
at::Tensor pad_backward(const at::Tensor& grad_output, const at::Tensor& self, c10::IntArrayRef padding) {
  check_pad_backward<kPadding, kDims>(grad_output, self, padding);
  TORCH_CHECK(
      self.numel() == 0 || self.scalar_type() == grad_output.scalar_type(),
      "expected scalar type ",
      grad_output.scalar_type(),
      " but found ",
      self.scalar_type());
  return padded_result(self.sizes(), self);
}

// The kernel uses the dtype of the gradient. The input is not read, so its dtype does not matter.
template <Padding kPadding, size_t kDims>
at::Tensor& pad_backward_out(
    const at::Tensor& grad_output,
    const at::Tensor& self,
    c10::IntArrayRef padding,
    at::Tensor& grad_input) {
  check_pad_backward<kPadding, kDims>(grad_output, self, padding);
  write_out(grad_input, padded_result(self.sizes(), self.to(grad_output.scalar_type())), OutDtype::kSame);
  return grad_input;
}

// The structured kernels determine the sizes; the real CPU kernel then restrides the result.
template <auto kMeta>
at::Tensor restrided(const at::Tensor& self, c10::IntArrayRef padding) {
  return padded_result(kMeta(self, padding).sizes(), self);
}

template <auto kMeta>
at::Tensor restrided_backward(const at::Tensor& grad_output, const at::Tensor& self, c10::IntArrayRef padding) {
  const at::Tensor result = kMeta(grad_output, self, padding);
  return grad_output.numel() == 0 ? result : padded_result(result.sizes(), self);
}

template <auto kMetaOut>
at::Tensor& restrided_backward_out(
    const at::Tensor& grad_output,
    const at::Tensor& self,
    c10::IntArrayRef padding,
    at::Tensor& grad_input) {
  kMetaOut(grad_output, self, padding, grad_input);
  if (claimed_device().is_cpu() && grad_output.numel() > 0) {
    grad_input.unsafeGetTensorImpl()->empty_tensor_restride(self.suggest_memory_format());
  }
  return grad_input;
}

// An existing argument is also restrided, even if its size already fits.
template <auto kMetaOut>
at::Tensor& restrided_out(const at::Tensor& self, c10::IntArrayRef padding, at::Tensor& out) {
  kMetaOut(self, padding, out);
  if (claimed_device().is_cpu()) {
    out.unsafeGetTensorImpl()->empty_tensor_restride(self.suggest_memory_format());
  }
  return out;
}

}  // namespace

KernelList padding_kernels() {
  namespace ops = at::_ops;
  return {
      kernel<ops::replication_pad2d, &restrided<&at::meta::replication_pad2d>>(),
      kernel<ops::replication_pad3d, &restrided<&at::meta::replication_pad3d>>(),
      kernel<ops::replication_pad2d_out, &restrided_out<&at::meta::replication_pad2d_outf>>(),
      kernel<ops::replication_pad3d_out, &restrided_out<&at::meta::replication_pad3d_outf>>(),
      kernel<ops::reflection_pad3d, &restrided<&at::meta::reflection_pad3d>>(),
      kernel<ops::reflection_pad3d_backward, &restrided_backward<&at::meta::reflection_pad3d_backward>>(),
      kernel<
          ops::reflection_pad3d_backward_grad_input,
          &restrided_backward_out<&at::meta::reflection_pad3d_backward_outf>>(),
      kernel<ops::reflection_pad2d, &reflection_pad2d>(),
      out_form<ops::reflection_pad2d_out, ops::reflection_pad2d>(OutDtype::kSame),
      kernel<ops::reflection_pad2d_backward, &pad_backward<Padding::kReflection, 2>>(),
      kernel<ops::reflection_pad2d_backward_grad_input, &pad_backward_out<Padding::kReflection, 2>>(),
      kernel<ops::replication_pad2d_backward, &pad_backward<Padding::kReplication, 2>>(),
      kernel<ops::replication_pad2d_backward_grad_input, &pad_backward_out<Padding::kReplication, 2>>(),
      kernel<ops::replication_pad3d_backward, &pad_backward<Padding::kReplication, 3>>(),
      kernel<ops::replication_pad3d_backward_grad_input, &pad_backward_out<Padding::kReplication, 3>>(),
  };
}

}  // namespace torchfake
