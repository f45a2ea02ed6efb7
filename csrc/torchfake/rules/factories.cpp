// Factory functions whose result is part of a larger storage or depends on tensors.
#include <ATen/EmptyTensor.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/logspace.h>
#include <c10/core/DefaultDtype.h>

#include <torchfake/core/kernel_environment.h>
#include <torchfake/rules/kernels.h>

namespace torchfake {

namespace {

// A periodic window is a symmetric one with one more element, without its last.
at::Tensor kaiser_window(
    int64_t window_length,
    bool periodic,
    double /*beta*/,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout> /*layout*/,
    std::optional<at::Device> /*device*/,
    std::optional<bool> /*pin_memory*/) {
  const c10::ScalarType type = dtype.value_or(KernelEnvironment::default_dtype());
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

bool is_complex(const at::Tensor& number) {
  return number.is_complex();
}

bool is_complex(const at::Scalar& number) {
  return number.isComplex();
}

void check_number(const at::Tensor& number) {
  TORCH_CHECK(
      number.dim() == 0,
      "linspace and logspace only support 0-dimensional start and end tensors, but got one of ",
      number.dim(),
      " dimension(s).");
}

void check_number(const at::Scalar& /*number*/) {}

// linspace and logspace between tensors: their values do not affect the shape, but the composite reads them.
template <typename Start, typename End>
at::Tensor linspace(
    const Start& start,
    const End& end,
    int64_t steps,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout> /*layout*/,
    std::optional<at::Device> /*device*/,
    std::optional<bool> /*pin_memory*/) {
  check_number(start);
  check_number(end);
  TORCH_CHECK(steps >= 0, "number of steps must be non-negative");
  const bool complex = is_complex(start) || is_complex(end);
  const c10::ScalarType inferred =
      complex ? KernelEnvironment::default_complex_dtype() : KernelEnvironment::default_dtype();
  TORCH_CHECK(
      !complex || !dtype || c10::isComplexType(*dtype),
      "inferred dtype ",
      inferred,
      " can't be safely cast to passed dtype ",
      dtype.value_or(inferred));
  return at::detail::empty_meta({steps}, dtype.value_or(inferred));
}

template <typename Start, typename End>
at::Tensor logspace(
    const Start& start,
    const End& end,
    int64_t steps,
    double /*base*/,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout> layout,
    std::optional<at::Device> device,
    std::optional<bool> pin_memory) {
  return linspace(start, end, steps, dtype, layout, device, pin_memory);
}

// A number of the same kind, if only its value is unknown.
at::Scalar stand_in(const at::Tensor& number) {
  check_number(number);
  return number.is_complex() ? at::Scalar(c10::complex<double>(0)) : at::Scalar(0);
}

at::Scalar stand_in(const at::Scalar& number) {
  return number;
}

// An argument with as many elements as there are steps keeps its shape, as in the overload that takes numbers.
template <typename Start, typename End>
at::Tensor& linspace_out(const Start& start, const End& end, int64_t steps, at::Tensor& out) {
  return at::linspace_out(out, stand_in(start), stand_in(end), steps);
}

template <typename Start, typename End>
at::Tensor& logspace_out(const Start& start, const End& end, int64_t steps, double base, at::Tensor& out) {
  return at::logspace_out(out, stand_in(start), stand_in(end), steps, base);
}

template <typename Start, typename End>
void add_spaces(KernelList& list, const std::string& overload) {
  const std::string linspace_name = "aten::linspace." + overload;
  const std::string logspace_name = "aten::logspace." + overload;
  list.push_back(native_kernel<decltype(linspace<Start, End>), &linspace<Start, End>>(linspace_name.c_str()));
  list.push_back(native_kernel<decltype(logspace<Start, End>), &logspace<Start, End>>(logspace_name.c_str()));
  list.push_back(
      native_kernel<decltype(linspace_out<Start, End>), &linspace_out<Start, End>>((linspace_name + "_out").c_str()));
  list.push_back(
      native_kernel<decltype(logspace_out<Start, End>), &logspace_out<Start, End>>((logspace_name + "_out").c_str()));
}

bool is_pinned(const at::Tensor& /*self*/, std::optional<at::Device> /*device*/) {
  return false;
}

}  // namespace

KernelList factory_kernels() {
  KernelList list = {
      native_kernel<decltype(kaiser_window_default), &kaiser_window_default>("aten::kaiser_window"),
      native_kernel<decltype(kaiser_window_periodic), &kaiser_window_periodic>("aten::kaiser_window.periodic"),
      native_kernel<decltype(kaiser_window), &kaiser_window>("aten::kaiser_window.beta"),
      native_kernel<decltype(is_pinned), &is_pinned>("aten::is_pinned"),
  };
  add_spaces<at::Tensor, at::Tensor>(list, "Tensor_Tensor");
  add_spaces<at::Tensor, at::Scalar>(list, "Tensor_Scalar");
  add_spaces<at::Scalar, at::Tensor>(list, "Scalar_Tensor");
  return list;
}

}  // namespace torchfake
