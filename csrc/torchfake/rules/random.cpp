// Random operators: what a real one refuses before it draws.
#include <ATen/EmptyTensor.h>

#include <torchfake/rules/kernels.h>

namespace torchfake {

namespace {

at::Tensor& random_from_to(
    at::Tensor& self,
    int64_t from,
    std::optional<int64_t> to,
    std::optional<at::Generator> /*generator*/) {
  TORCH_CHECK(
      !to || from < *to, "random_ expects 'from' to be less than 'to', but got from=", from, " >= to=", to.value_or(0));
  return self;
}

at::Tensor& random_to(at::Tensor& self, int64_t to, std::optional<at::Generator> generator) {
  return random_from_to(self, 0, to, std::move(generator));
}

at::Tensor randperm_generator(
    int64_t n,
    std::optional<at::Generator> /*generator*/,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout> /*layout*/,
    std::optional<at::Device> /*device*/,
    std::optional<bool> /*pin_memory*/) {
  TORCH_CHECK(n >= 0, "n must be non-negative, got", n);
  return at::detail::empty_meta({n}, dtype.value_or(c10::kLong));
}

at::Tensor randperm(
    int64_t n,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout> layout,
    std::optional<at::Device> device,
    std::optional<bool> pin_memory) {
  return randperm_generator(n, std::nullopt, dtype, layout, device, pin_memory);
}

}  // namespace

KernelList random_kernels() {
  return {
      native_kernel<
          at::Tensor&(at::Tensor&, int64_t, std::optional<int64_t>, std::optional<at::Generator>),
          &random_from_to>("aten::random_.from"),
      native_kernel<at::Tensor&(at::Tensor&, int64_t, std::optional<at::Generator>), &random_to>("aten::random_.to"),
      native_kernel<decltype(randperm), &randperm>("aten::randperm"),
      native_kernel<decltype(randperm_generator), &randperm_generator>("aten::randperm.generator"),
  };
}

}  // namespace torchfake
