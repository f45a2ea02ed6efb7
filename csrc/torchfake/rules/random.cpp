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

}  // namespace

KernelList random_kernels() {
  return {
      native_kernel<at::Tensor&(at::Tensor&, int64_t, std::optional<int64_t>, std::optional<at::Generator>), &random_from_to>(
          "aten::random_.from"),
      native_kernel<at::Tensor&(at::Tensor&, int64_t, std::optional<at::Generator>), &random_to>("aten::random_.to"),
  };
}

}  // namespace torchfake
