// Random operators: the checks that a real operator makes before drawing.
#include <ATen/native/DistributionTemplates.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/empty_like.h>

#include <torchfake/core/fake_tensor_impl.h>
#include <torchfake/rules/forms.h>
#include <torchfake/rules/results.h>

namespace torchfake {

namespace {

namespace templates = at::native::templates;
using OptGenerator = std::optional<at::Generator>;

// Replaces the kernel that PyTorch's templates call to draw after checking their arguments. Does nothing.
template <typename Generator>
struct Draw {
  template <typename... Arguments>
  void operator()(const Arguments&... /*arguments*/) const {}
};

// Requires a real dtype with bounds, other than float8 and the larger unsigned integers.
void require_countable(c10::ScalarType dtype, const char* kernel) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !c10::isComplexType(dtype) && !c10::isFloat8Type(dtype) && !c10::isBarebonesUnsignedType(dtype),
      '"',
      kernel,
      "\" not implemented for '",
      dtype,
      "'");
}

template <typename Generator>
struct DrawWhole {
  void operator()(const at::TensorIteratorBase& iterator, const OptGenerator& /*generator*/) const {
    require_countable(iterator.dtype(), "random_kernel");
  }
};

void require_drawable(c10::ScalarType dtype, const char* kernel) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      c10::isFloatingType(dtype) && !c10::isFloat8Type(dtype), '"', kernel, "\" not implemented for '", dtype, "'");
}

template <typename Generator>
struct DrawExponential {
  void operator()(const at::TensorIteratorBase& iterator, double /*lambda*/, const OptGenerator& /*generator*/) const {
    TORCH_CHECK(
        c10::isFloatingType(iterator.dtype()),
        "Exponential distribution is a continuous probability distribution. dtype must be a floating point but you "
        "specified ",
        iterator.dtype());
  }
};

template <typename Generator>
struct DrawNormal {
  void operator()(at::Tensor& self, double /*mean*/, double /*std*/, const OptGenerator& /*generator*/) const {
    at::TensorIterator::nullary_op(self);
    require_drawable(self.scalar_type(), "normal_kernel_cpu");
  }
};

template <typename Generator>
struct DrawLogNormal {
  void operator()(
      const at::TensorIteratorBase& iterator,
      double /*mean*/,
      double /*std*/,
      const OptGenerator& /*generator*/) const {
    require_drawable(iterator.dtype(), "log_normal_cpu");
  }
};

// One probability for all elements.
template <typename Generator>
struct DrawBernoulliOfOne {
  void operator()(const at::Tensor& self, double /*p*/, const OptGenerator& /*generator*/) const {
    require_countable(self.scalar_type(), "bernoulli_scalar_cpu_");
  }
};

template <typename Generator>
struct DrawBernoulli {
  void operator()(const at::Tensor& self, const at::Tensor& p, const OptGenerator& /*generator*/) const {
    p.expand(self.sizes());
    require_countable(self.scalar_type(), "bernoulli_tensor_self_");
    require_floating(p, "bernoulli_tensor_p_");
  }
};

at::Tensor& random_(at::Tensor& self, OptGenerator generator) {
  return templates::random_impl<DrawWhole, at::Generator>(self, std::move(generator));
}

at::Tensor& random_from_to(at::Tensor& self, int64_t from, std::optional<int64_t> to, OptGenerator generator) {
  return templates::random_from_to_impl<Draw, at::Generator>(self, from, to, std::move(generator));
}

at::Tensor& random_to(at::Tensor& self, int64_t to, OptGenerator generator) {
  return random_from_to(self, 0, to, std::move(generator));
}

at::Tensor& normal_(at::Tensor& self, double mean, double std, OptGenerator generator) {
  return templates::normal_impl_<DrawNormal, at::Generator>(self, mean, std, std::move(generator));
}

at::Tensor& uniform_(at::Tensor& self, double from, double to, OptGenerator generator) {
  return templates::uniform_impl_<Draw, at::Generator>(self, from, to, std::move(generator));
}

at::Tensor& log_normal_(at::Tensor& self, double mean, double std, OptGenerator generator) {
  return templates::log_normal_impl_<DrawLogNormal, at::Generator>(self, mean, std, std::move(generator));
}

at::Tensor& cauchy_(at::Tensor& self, double median, double sigma, OptGenerator generator) {
  return templates::cauchy_impl_<Draw, at::Generator>(self, median, sigma, std::move(generator));
}

at::Tensor& exponential_(at::Tensor& self, double lambda, OptGenerator generator) {
  return templates::exponential_impl_<DrawExponential, at::Generator>(self, lambda, std::move(generator));
}

at::Tensor& geometric_(at::Tensor& self, double p, OptGenerator generator) {
  return templates::geometric_impl_<Draw, at::Generator>(self, p, std::move(generator));
}

at::Tensor& bernoulli_with(at::Tensor& self, double p, OptGenerator generator) {
  return templates::bernoulli_impl_<DrawBernoulliOfOne, at::Generator>(self, p, std::move(generator));
}

at::Tensor& bernoulli_each(at::Tensor& self, const at::Tensor& p, OptGenerator generator) {
  return templates::bernoulli_impl_<DrawBernoulli, at::Generator>(self, p, std::move(generator));
}

// Draws in the dtype of `out`, which need not be that of the probabilities.
at::Tensor& bernoulli_out(const at::Tensor& self, OptGenerator generator, at::Tensor& out) {
  return templates::bernoulli_out_impl<DrawBernoulli, at::Generator>(out, self, std::move(generator));
}

void require_permutable(c10::ScalarType dtype) {
  require_countable(dtype, "randperm");
  TORCH_CHECK_NOT_IMPLEMENTED(dtype != c10::kBool, "\"randperm\" not implemented for 'Bool'");
}

at::Tensor randperm_generator(
    int64_t n,
    const OptGenerator& /*generator*/,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout> /*layout*/,
    std::optional<at::Device> /*device*/,
    std::optional<bool> /*pin_memory*/) {
  TORCH_CHECK(n >= 0, "n must be non-negative, got", n);
  require_permutable(dtype.value_or(c10::kLong));
  at::Tensor result = empty({0}, dtype.value_or(c10::kLong));
  at::native::check_supported_max_int_with_precision(n, result);
  return empty({n}, result.scalar_type());
}

at::Tensor randperm(
    int64_t n,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout> layout,
    std::optional<at::Device> device,
    std::optional<bool> pin_memory) {
  return randperm_generator(n, std::nullopt, dtype, layout, device, pin_memory);
}

// The kernel counts in the dtype of its output.
at::Tensor& randperm_out(int64_t n, const OptGenerator& /*generator*/, at::Tensor& out) {
  TORCH_CHECK(n >= 0, "n must be non-negative, got", n);
  require_permutable(out.scalar_type());
  at::native::check_supported_max_int_with_precision(n, out);
  out.resize_({n});
  return out;
}

// For an upper bound given as a tensor. Its value does not affect the shape, but the composite reads it.
at::Tensor randint_like_below(
    const at::Tensor& self,
    const at::Tensor& high,
    std::optional<at::ScalarType> dtype,
    std::optional<at::MemoryFormat> memory_format) {
  const FakeTensorImpl* fake = as_fake(high);
  const bool on_cpu = fake != nullptr ? fake->claimed_device().is_cpu() : high.is_cpu();
  TORCH_CHECK(high.numel() == 1 && high.dim() == 0 && on_cpu, "high must be a scalar tensor and on CPU");
  return at::empty_like(self, self.options().dtype(dtype.value_or(self.scalar_type())), memory_format);
}

at::Tensor randint_like_tensor(
    const at::Tensor& self,
    const at::Tensor& high,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout> /*layout*/,
    std::optional<at::Device> /*device*/,
    std::optional<bool> /*pin_memory*/,
    std::optional<at::MemoryFormat> memory_format) {
  return randint_like_below(self, high, dtype, memory_format);
}

at::Tensor randint_like_tensor_generator(
    const at::Tensor& self,
    const at::Tensor& high,
    const OptGenerator& /*generator*/,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout> /*layout*/,
    std::optional<at::Device> /*device*/,
    std::optional<bool> /*pin_memory*/,
    std::optional<at::MemoryFormat> memory_format) {
  return randint_like_below(self, high, dtype, memory_format);
}

// Categories are represented as floats.
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
    const OptGenerator& /*generator*/) {
  return empty(multinomial_sizes(self, num_samples, replacement), c10::kLong);
}

at::Tensor& multinomial_out(
    const at::Tensor& self,
    int64_t num_samples,
    bool replacement,
    const OptGenerator& /*generator*/,
    at::Tensor& out) {
  TORCH_CHECK(out.scalar_type() == c10::kLong, "multinomial expects Long tensor out, got: ", out.scalar_type());
  out.resize_(multinomial_sizes(self, num_samples, replacement));
  return out;
}

}  // namespace

KernelList random_kernels() {
  namespace ops = at::_ops;
  return {
      kernel<ops::random_, &random_>(),
      kernel<ops::random__from, &random_from_to>(),
      kernel<ops::random__to, &random_to>(),
      kernel<ops::uniform_, &uniform_>(),
      kernel<ops::normal_, &normal_>(),
      kernel<ops::log_normal_, &log_normal_>(),
      kernel<ops::cauchy_, &cauchy_>(),
      kernel<ops::exponential_, &exponential_>(),
      kernel<ops::geometric_, &geometric_>(),
      kernel<ops::bernoulli__float, &bernoulli_with>(),
      kernel<ops::bernoulli__Tensor, &bernoulli_each>(),
      kernel<ops::bernoulli_out, &bernoulli_out>(),
      kernel<ops::randperm, &randperm>(),
      kernel<ops::randperm_generator, &randperm_generator>(),
      kernel<ops::randperm_generator_out, &randperm_out>(),
      kernel<ops::randint_like_Tensor, &randint_like_tensor>(),
      kernel<ops::randint_like_Tensor_generator, &randint_like_tensor_generator>(),
      kernel<ops::multinomial, &multinomial>(),
      kernel<ops::multinomial_out, &multinomial_out>(),
  };
}

}  // namespace torchfake
