// Factory functions whose result is a part of a larger storage.
#include <ATen/EmptyTensor.h>
#include <c10/core/DefaultDtype.h>

#include <torchfake/rules/kernels.h>

namespace torchfake {

namespace {

// A periodic window is a symmetric one of one more element, with the last left out.
at::Tensor kaiser_window(
    int64_t window_length,
    bool periodic,
    double /*beta*/,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout> /*layout*/,
    std::optional<at::Device> /*device*/,
    std::optional<bool> /*pin_memory*/) {
  const c10::ScalarType type = dtype.value_or(c10::get_default_dtype_as_scalartype());
  TORCH_CHECK(
      c10::isFloatingType(type) || c10::isComplexType(type),
      "kaiser_window expects floating point dtypes, got: ",
      type);
  TORCH_CHECK(
      window_length >= 0, "kaiser_window requires non-negative window_length, got window_length=", window_length);
  if (window_length < 2 || !periodic) {
    return at::detail::empty_meta({window_length}, type);
  }
  return at::Tensor(at::detail::empty_meta({window_length + 1}, type)).narrow(0, 0, window_length);
}

at::Tensor kaiser_window_periodic(
    int64_t window_length,
    bool periodic,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout> layout,
    std::optional<at::Device> device,
    std::optional<bool> pin_memory) {
  return kaiser_window(window_length, periodic, /*beta=*/12.0, dtype, layout, device, pin_memory);
}

at::Tensor kaiser_window_default(
    int64_t window_length,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout> layout,
    std::optional<at::Device> device,
    std::optional<bool> pin_memory) {
  return kaiser_window_periodic(window_length, /*periodic=*/true, dtype, layout, device, pin_memory);
}

bool is_pinned(const at::Tensor& /*self*/, std::optional<at::Device> /*device*/) {
  return false;
}

}  // namespace

KernelList factory_kernels() {
  return {
      native_kernel<decltype(kaiser_window_default), &kaiser_window_default>("aten::kaiser_window"),
      native_kernel<decltype(kaiser_window_periodic), &kaiser_window_periodic>("aten::kaiser_window.periodic"),
      native_kernel<decltype(kaiser_window), &kaiser_window>("aten::kaiser_window.beta"),
      native_kernel<decltype(is_pinned), &is_pinned>("aten::is_pinned"),
  };
}

}  // namespace torchfake
