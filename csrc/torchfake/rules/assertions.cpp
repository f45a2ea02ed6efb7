// Operators without outputs: assertions about values, which run asynchronously and only require that there is one
// value; and record_stream, which nothing waits for.
#include <c10/core/DefaultDtype.h>

#include <torchfake/core/fake_storage.h>
#include <torchfake/core/kernel_environment.h>
#include <torchfake/memory/observer_pair.h>
#include <torchfake/rules/forms.h>
#include <torchfake/rules/results.h>

namespace torchfake {

namespace {

void check_one_value(const at::Tensor& self) {
  TORCH_CHECK(self.numel() != 0, "Boolean value of Tensor with no values is ambiguous");
  TORCH_CHECK(self.numel() < 2, "Boolean value of Tensor with more than one value is ambiguous");
}

// Returns a token that orders later operators after this one.
at::Tensor in_order(const at::Tensor& self, std::string_view /*assert_msg*/, const at::Tensor& dep_token) {
  check_one_value(self);
  return dep_token.clone();
}

at::Tensor token(std::optional<c10::ScalarType> dtype) {
  return empty({}, dtype.value_or(KernelEnvironment::default_dtype()));
}

// Affects only the allocator, which does not reuse the block before the stream is done.
void record_stream(at::Tensor& self, c10::Stream stream) {
  c10::StorageImpl* storage = storage_of(*self.unsafeGetTensorImpl());
  const Observation observed = storage == nullptr ? Observation{} : observation_of(storage);
  if (memory::MemoryModel* model = memory::model_among(observed.observer)) {
    model->record_stream(observed, stream.id());
  }
}

}  // namespace

KernelList assertion_kernels() {
  namespace ops = at::_ops;
  return {
      kernel<ops::_assert_async, &check_one_value>(),
      kernel<ops::_assert_async_msg, &check_one_value>(),
      kernel<ops::_functional_assert_async_msg, &in_order>(),
      kernel<ops::_make_dep_token, &token>(),
      kernel<ops::record_stream, &record_stream>(),
  };
}

}  // namespace torchfake
