// Quantized tensors of any size: operators that quantize, dequantize or share storage. All others run on small real
// tensors, see Note [Layout calls].
#include <torchfake/rules/quantized.h>

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>

#include <torchfake/core/fake_storage.h>
#include <torchfake/core/layout_fake.h>
#include <torchfake/core/plain_cpu.h>
#include <torchfake/values/known_values.h>

namespace torchfake {

namespace {

void answer(const Call& call, c10::IValue value) {
  torch::jit::drop(*call.stack, call.num_args());
  call.stack->push_back(std::move(value));
}

void check_dtypes(const Call& call, const at::Tensor& self, c10::ScalarType dtype) {
  TORCH_CHECK(self.scalar_type() == c10::kFloat, call.op_name(), " expects a Float Tensor, got ", self.scalar_type());
  TORCH_CHECK(c10::isQIntType(dtype), call.op_name(), ": expected a quantized dtype, got ", dtype);
}

// Elements smaller than a byte are packed; those are left to the stand-ins.
bool has_whole_bytes(c10::ScalarType dtype) {
  return dtype == c10::kQInt8 || dtype == c10::kQUInt8 || dtype == c10::kQInt32;
}

at::Tensor quantized_like(
    const at::Tensor& self,
    c10::ScalarType dtype,
    at::QuantizerPtr quantizer,
    bool known,
    c10::Device device,
    const ModePtr& mode) {
  const at::Tensor like = at::detail::empty_meta(self.sizes(), dtype, self.suggest_memory_format());
  return make_quantized_fake(
      *like.unsafeGetTensorImpl(),
      new_fake_storage(like.storage().nbytes(), device, mode->options.storage_observer),
      dtype,
      std::move(quantizer),
      known,
      device,
      mode);
}

// quantize_per_tensor(self, scale, zero_point, dtype)
bool quantize_per_tensor(Call& call, c10::Device device, const ModePtr& mode) {
  const at::Tensor self = call.arg(0).toTensor();
  const auto dtype = call.arg(3).toScalarType();
  if (!has_whole_bytes(dtype) || as_fake(self) == nullptr) {
    return false;
  }
  check_dtypes(call, self, dtype);
  at::QuantizerPtr quantizer = at::make_per_tensor_affine_quantizer(call.arg(1).toDouble(), call.arg(2).toInt(), dtype);
  answer(call, quantized_like(self, dtype, std::move(quantizer), /*known=*/true, device, mode));
  return true;
}

// The values of scales or zero points, on the CPU; ones if they are unknown. The second is whether they are known.
std::pair<at::Tensor, bool> parameters(const at::Tensor& tensor) {
  const FakeTensorImpl* fake = as_fake(tensor);
  std::optional<at::Tensor> known = fake == nullptr ? tensor : known_tensor(*fake, tensor.numel());
  PlainCpu plain;
  if (known) {
    return {known->clone(), true};
  }
  return {at::ones(tensor.sizes(), at::TensorOptions().dtype(tensor.scalar_type())), false};
}

// quantize_per_channel(self, scales, zero_points, axis, dtype)
bool quantize_per_channel(Call& call, c10::Device device, const ModePtr& mode) {
  const at::Tensor self = call.arg(0).toTensor();
  const at::Tensor scales = call.arg(1).toTensor();
  const at::Tensor zero_points = call.arg(2).toTensor();
  const int64_t axis = call.arg(3).toInt();
  const auto dtype = call.arg(4).toScalarType();
  if (!has_whole_bytes(dtype) || as_fake(self) == nullptr || self.scalar_type() != c10::kFloat) {
    return false;
  }
  check_dtypes(call, self, dtype);
  TORCH_CHECK(scales.dim() == 1, "scale tensor must have dimension 1");
  TORCH_CHECK(zero_points.dim() == 1, "zero_points tensor must have dimension 1");
  TORCH_CHECK(scales.numel() == zero_points.numel(), "number of elements in scales and zero_points must match");
  TORCH_CHECK(0 <= axis && axis < self.dim(), "Channel axis out of range in per channel affine quantization.");
  TORCH_CHECK(
      self.size(axis) == scales.numel(),
      "length of scales must equal to channel, expected ",
      self.size(axis),
      " got, ",
      scales.numel());
  const auto [scale, scale_known] = parameters(scales);
  const auto [zero_point, zero_point_known] = parameters(zero_points);
  at::QuantizerPtr quantizer;
  {
    PlainCpu plain;
    quantizer = at::make_per_channel_affine_quantizer(scale, zero_point, axis, dtype);
  }
  const bool known = scale_known && zero_point_known;
  answer(call, quantized_like(self, dtype, std::move(quantizer), known, device, mode));
  return true;
}

// dequantize(self), int_repr(self)
bool fresh(Call& call, c10::ScalarType dtype, const ModePtr& mode) {
  const at::Tensor self = call.arg(0).toTensor();
  if (!has_whole_bytes(self.scalar_type())) {
    return false;
  }
  const FakeMode in_mode(mode);
  const auto options = at::TensorOptions().dtype(dtype).device(as_layout_fake(self)->claimed_device());
  answer(call, at::empty(self.sizes(), options.memory_format(self.suggest_memory_format())));
  return true;
}

bool dequantize(Call& call, c10::Device /*device*/, const ModePtr& mode) {
  return fresh(call, c10::kFloat, mode);
}

bool int_repr(Call& call, c10::Device /*device*/, const ModePtr& mode) {
  return fresh(call, c10::toUnderlying(call.arg(0).toTensor().scalar_type()), mode);
}

// detach(self), alias(self): share the storage
bool same_storage(Call& call, c10::Device /*device*/, const ModePtr& mode) {
  const at::Tensor self = call.arg(0).toTensor();
  const FakeQuantizedImpl& fake = *as_quantized_fake(self);
  answer(
      call,
      make_quantized_fake(
          fake,
          c10::Storage(self.storage()),
          self.scalar_type(),
          fake.any_quantizer(),
          fake.parameters_are_known(),
          fake.claimed_device(),
          mode));
  return true;
}

// set_(self, source, storage_offset, size, stride), as called when loading a file
bool set_storage(Call& call, c10::Device /*device*/, const ModePtr& /*mode*/) {
  const at::Tensor self = call.arg(0).toTensor();
  const c10::Storage source = call.arg(1).toStorage();
  TORCH_CHECK(
      claimed_device_of(source.unsafeGetStorageImpl()).has_value(),
      call.op_name(),
      ": the storage is that of a real tensor, and the tensor is fake");
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(source);
  self.unsafeGetTensorImpl()->set_sizes_and_strides(
      call.arg(3).toIntVector(), call.arg(4).toIntVector(), call.arg(2).toInt());
  answer(call, self);
  return true;
}

}  // namespace

const std::vector<QuantizedRow>& quantized_rules() {
  static const std::vector<QuantizedRow> rules = {
      {"quantize_per_tensor.", &quantize_per_tensor, true},
      {"quantize_per_channel.", &quantize_per_channel, true},
      {"quantize_per_tensor.tensor_qparams quantize_per_tensor.tensors quantize_per_tensor_dynamic. "
       "_empty_affine_quantized. _empty_per_channel_affine_quantized. empty_quantized. "
       "_make_per_tensor_quantized_tensor. _make_per_channel_quantized_tensor.",
       nullptr,
       true},
      {"dequantize.self", &dequantize, false},
      {"int_repr.", &int_repr, false},
      {"detach. alias.", &same_storage, false},
      {"set_.source_Storage_storage_offset", &set_storage, false},
  };
  return rules;
}

}  // namespace torchfake
