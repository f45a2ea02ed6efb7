// Outputs: converts the results of a kernel to fakes.
#pragma once

#include <torchfake/core/call.h>

namespace torchfake {

// The tensor arguments of a call, which its outputs may be views of, kept alive during the call.
class Inputs {
 public:
  explicit Inputs(const Call& call);

  // The input that owns `storage`, or null.
  const FakeTensorImpl* owner_of(const c10::StorageImpl* storage) const;

  template <typename Visit>
  void for_each_fake(const Visit& visit) const {
    for (const auto& tensor : tensors_) {
      if (const FakeTensorImpl* fake = as_fake(tensor.get())) {
        visit(*fake);
      }
    }
  }

 private:
  c10::SmallVector<c10::intrusive_ptr<c10::TensorImpl>, 8> tensors_;
};

// Converts every tensor among the outputs on the stack to a fake: a returned input stays itself, a view of an input
// claims that input's device, and a fresh tensor claims `device`.
// Throws UnsupportedFakeTensorException for an output that is not strided, or is quantized.
void wrap_outputs(const Call& call, const Inputs& inputs, c10::Device device, const ModePtr& mode);

// Gives an out= argument the sizes and strides of `real`, which the real kernel produced in its place.
void lay_out_as(const at::Tensor& out, const at::Tensor& real);

}  // namespace torchfake
