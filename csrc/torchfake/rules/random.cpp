// Random operators: what a real one refuses before it draws.
#include <ATen/EmptyTensor.h>
#include <ATen/TensorIterator.h>

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

at::Tensor& geometric_(at::Tensor& self, double p, std::optional<at::Generator> /*generator*/) {
  TORCH_CHECK(0 < p && p < 1, "geometric_ expects p to be in (0, 1), but got p=", p);
  TORCH_CHECK_NOT_IMPLEMENTED(!self.is_complex(), "\"geometric_\" not implemented for '", self.scalar_type(), "'");
  at::TensorIterator::nullary_op(self);
  return self;
}

at::Tensor& normal_(at::Tensor& self, double /*mean*/, double std, std::optional<at::Generator> /*generator*/) {
  TORCH_CHECK(std >= 0.0, "normal expects std >= 0.0, but found std ", std);
  at::TensorIterator::nullary_op(self);
  return self;
}

// Categories are drawn as floats.
constexpr int64_t kMaxCategories = int64_t{1} << 24;

std::vector<int64_t> multinomial_sizes(const at::Tensor& self, int64_t num_samples, bool replacement) {
  TORCH_CHECK(self.dim() == 1 || self.dim() == 2, "prob_dist must be 1 or 2 dim");
  TORCH_CHECK(
      self.is_floating_point(), "multinomial only supports floating-point dtypes for input, got: ", self.scalar_type());
  TORCH_CHECK(num_samples > 0, "cannot sample n_sample <= 0 samples");
  TORCH_CHECK(
      replacement || num_samples <= self.size(-1),
      "cannot sample n_sample > prob_dist.size(-1) samples without replacement");
  TORCH_CHECK(self.size(-1) <= kMaxCategories, "number of categories cannot exceed 2^24");
  return self.dim() == 1 ? std::vector<int64_t>{num_samples} : std::vector<int64_t>{self.size(0), num_samples};
}

at::Tensor multinomial(
    const at::Tensor& self,
    int64_t num_samples,
    bool replacement,
    std::optional<at::Generator> /*generator*/) {
  return at::detail::empty_meta(multinomial_sizes(self, num_samples, replacement), c10::kLong);
}

at::Tensor& multinomial_out(
    const at::Tensor& self,
    int64_t num_samples,
    bool replacement,
    std::optional<at::Generator> /*generator*/,
    at::Tensor& out) {
  TORCH_CHECK(out.scalar_type() == c10::kLong, "multinomial expects Long tensor out, got: ", out.scalar_type());
  out.resize_(multinomial_sizes(self, num_samples, replacement));
  return out;
}

}  // namespace

KernelList random_kernels() {
  return {
      native_kernel<
          at::Tensor&(at::Tensor&, int64_t, std::optional<int64_t>, std::optional<at::Generator>),
          &random_from_to>("aten::random_.from"),
      native_kernel<at::Tensor&(at::Tensor&, int64_t, std::optional<at::Generator>), &random_to>("aten::random_.to"),
      native_kernel<decltype(randperm), &randperm>("aten::randperm"),
      native_kernel<decltype(geometric_), &geometric_>("aten::geometric_"),
      native_kernel<decltype(normal_), &normal_>("aten::normal_"),
      native_kernel<decltype(multinomial), &multinomial>("aten::multinomial"),
      native_kernel<decltype(multinomial_out), &multinomial_out>("aten::multinomial.out"),
      native_kernel<decltype(randperm_generator), &randperm_generator>("aten::randperm.generator"),
  };
}

}  // namespace torchfake
