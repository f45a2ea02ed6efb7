// Constant propagation: results determined by a single operand.
#include <torchfake/values/absorbing.h>

#include <torchfake/core/plain_cpu.h>
#include <torchfake/values/known_values.h>

#include <atomic>

namespace torchfake {

namespace {

std::atomic<AbsorbingLookup> g_lookup{nullptr};

bool is_whole(const c10::TensorImpl& tensor) {
  return c10::isIntegralType(tensor.dtype().toScalarType(), /*includeBool=*/true);
}

bool is_truth(const c10::TensorImpl& tensor) {
  return tensor.dtype() == caffe2::TypeMeta::Make<bool>();
}

// Whether every element of `known` is absorbing.
bool all_absorb(const at::Tensor& known, Absorbs what) {
  PlainCpu plain;
  return what == Absorbs::kTrue ? known.all().item<bool>() : !known.any().item<bool>();
}

}  // namespace

void set_absorbing_lookup(AbsorbingLookup lookup) {
  g_lookup.store(lookup, std::memory_order_release);
}

bool is_absorbed(const Call& call, int64_t limit) {
  if (call.tensors().size() != 2 || call.traits.has_out) {
    return false;
  }
  const TensorArg& first = call.tensors()[0];
  const TensorArg& second = call.tensors()[1];
  if (first.fake == nullptr || second.fake == nullptr || !is_whole(*first.impl) || !is_whole(*second.impl)) {
    return false;
  }
  const AbsorbingLookup lookup = g_lookup.load(std::memory_order_acquire);
  const Absorbs what = lookup == nullptr ? Absorbs::kNothing : lookup(call.traits);
  if (what == Absorbs::kNothing || (what == Absorbs::kTrue && !(is_truth(*first.impl) && is_truth(*second.impl)))) {
    return false;
  }
  const FakeTensorImpl& known = is_known(*first.fake, limit) ? *first.fake : *second.fake;
  const FakeTensorImpl& unknown = &known == first.fake ? *second.fake : *first.fake;
  // A repeated operand is not checked.
  const std::optional<at::Tensor> values =
      unknown.numel() <= limit && is_known(known, limit) ? known_tensor(known, limit) : std::nullopt;
  return values && values->numel() > 0 && all_absorb(*values, what);
}

}  // namespace torchfake
