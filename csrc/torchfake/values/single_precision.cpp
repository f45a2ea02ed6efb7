// Constant propagation: half-precision products, computed in single precision.
#include <torchfake/values/single_precision.h>

#include <algorithm>

namespace torchfake {

namespace {

bool is_half(const at::Tensor& tensor) {
  return tensor.defined() && (tensor.scalar_type() == c10::kHalf || tensor.scalar_type() == c10::kBFloat16);
}

// A half-precision argument, and the single-precision copy passed to the operator instead.
struct Widened {
  at::Tensor given;
  at::Tensor copy;
  bool is_written;
};

class Widener {
 public:
  c10::IValue widen(const c10::IValue& value, bool is_written) {
    if (value.isTensor()) {
      return widen(value.toTensor(), is_written);
    }
    if (value.isTensorList()) {
      std::vector<at::Tensor> tensors = value.toTensorVector();
      for (at::Tensor& tensor : tensors) {
        tensor = widen(tensor, is_written);
      }
      return tensors;
    }
    return value;
  }

  void write_back() const {
    for (const Widened& widened : widened_) {
      if (widened.is_written) {
        widened.given.resize_(widened.copy.sizes());
        widened.given.copy_(widened.copy);
      }
    }
  }

  at::Tensor narrow(const at::Tensor& output, c10::ScalarType dtype) const {
    for (const Widened& widened : widened_) {
      if (output.is_same(widened.copy)) {
        return widened.given;
      }
    }
    return output.to(dtype);
  }

 private:
  at::Tensor widen(const at::Tensor& tensor, bool is_written) {
    if (!is_half(tensor)) {
      return tensor;
    }
    widened_.push_back({tensor, tensor.to(c10::kFloat), is_written});
    return widened_.back().copy;
  }

  std::vector<Widened> widened_;
};

}  // namespace

bool is_half_precision_product(const Call& call) {
  return call.traits.is_product &&
      std::any_of(call.tensors().begin(), call.tensors().end(), [](const TensorArg& tensor) {
           const c10::ScalarType dtype = tensor.impl->dtype().toScalarType();
           return dtype == c10::kHalf || dtype == c10::kBFloat16;
         });
}

void call_in_single_precision(const Call& call, torch::jit::Stack& real) {
  Widener widener;
  for (size_t i = 0; i < real.size(); ++i) {
    real[i] = widener.widen(real[i], call.traits.args[i].is_written);
  }
  call.op.callBoxed(&real);
  widener.write_back();
  const c10::ArrayRef<c10::IValue> outputs = outputs_of(call);
  for (size_t i = 0; i < real.size(); ++i) {
    if (real[i].isTensor() && real[i].toTensor().defined() && outputs[i].isTensor() &&
        outputs[i].toTensor().defined()) {
      real[i] = widener.narrow(real[i].toTensor(), outputs[i].toTensor().scalar_type());
    }
  }
}

}  // namespace torchfake
