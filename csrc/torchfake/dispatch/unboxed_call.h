// Cache hits of unboxed calls: handled directly from the C++ arguments.
#pragma once

#include <ATen/core/IListRef.h>
#include <ATen/core/List.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/boxing/impl/boxing.h>

#include <torchfake/cache/cache_key.h>

#include <atomic>
#include <tuple>
#include <vector>

namespace torchfake {

struct CacheEntry;
struct DerivedValues;
struct OutputRecipe;  // incomplete on purpose: the tables that include this header are slow to compile

// Note [Unboxed calls]
// The fallback takes boxed arguments: a vector of IValues, a reference count increment for every tensor, and a heap
// allocation for every list. Boxing and unboxing cost more than a cache lookup. Every operator of PyTorch therefore
// has, on the Fake key, a kernel with its own C++ signature that builds the cache key directly from its arguments. If
// the thread's table contains the outcome, and nothing else has to be done, the kernel creates the outputs. Otherwise
// it boxes the arguments and calls the fallback, which starts from the beginning:
//
//   the cache is off or cross-checked, the call is made by the engine itself, a recorder is active, known values affect
//   the call in a way that the entry does not hold (Note [Constants]), an argument is real or has symbolic sizes, fakes
//   of two modes meet of which one is exclusive, the entry is an error, the thread has not seen the key
//
// It never gives a different result from the fallback, and changes nothing before it is certain that it handles the
// call.
//
// The kernels are generated from the operator definitions of the PyTorch being built against
// (cmake/generate_unboxed_table.py): one instance per signature, one object per operator. Operators of other libraries,
// and operators whose outputs are not tensors, only have the fallback.

class UnboxedCall {
 public:
  explicit UnboxedCall(const OpTraits& traits);

  // Cheap pre-check, called before any argument is inspected.
  static bool possible(const OpTraits& traits);

  void add(const ArgTraits& facts, const at::Tensor& tensor);
  void add(const ArgTraits& facts, const std::optional<at::Tensor>& tensor);
  void add(const ArgTraits& facts, at::TensorList tensors);
  void add(const ArgTraits& facts, const at::ITensorListRef& tensors);
  void add(const ArgTraits& facts, const c10::List<std::optional<at::Tensor>>& tensors);
  void add(const ArgTraits& facts, const at::Scalar& value);
  void add(const ArgTraits& facts, at::ArrayRef<at::Scalar> values);
  void add(const ArgTraits& facts, bool value);
  void add(const ArgTraits& facts, int64_t value);
  void add(const ArgTraits& facts, double value);
  void add(const ArgTraits& facts, const c10::SymInt& value);
  void add(const ArgTraits& facts, at::IntArrayRef values);
  void add(const ArgTraits& facts, c10::SymIntArrayRef values);
  void add(const ArgTraits& facts, at::OptionalIntArrayRef values);
  void add(const ArgTraits& facts, at::OptionalSymIntArrayRef values);
  void add(const ArgTraits& facts, at::ArrayRef<double> values);
  void add(const ArgTraits& facts, c10::string_view text);
  void add(const ArgTraits& facts, c10::Device device);
  void add(const ArgTraits& facts, const at::Generator& generator);

  // Integers when boxed.
  template <typename Enum>
    requires std::is_enum_v<Enum>
  void add(const ArgTraits& facts, Enum value) {
    add(facts, static_cast<int64_t>(value));
  }
  template <size_t kSize>
  void add(const ArgTraits& facts, const std::array<bool, kSize>& values) {
    key_.add_list(kSize);
    for (const bool value : values) {
      key_.add_bool(value);
    }
  }
  template <typename Value>
  void add(const ArgTraits& facts, const std::optional<Value>& value) {
    value.has_value() ? add(facts, *value) : key_.add_none();
  }

  // The outcome, or null if the call must take the slow path. Call once, after the last argument.
  const CacheEntry* find();

  // The outputs, one by one in the order of the entry; call `finish` after the last.
  at::Tensor next_tensor(const CacheEntry& entry);
  std::vector<at::Tensor> next_list(const CacheEntry& entry);
  void finish(const CacheEntry& entry);

 private:
  void add_tensor(const ArgTraits& facts, c10::TensorImpl* tensor);
  void add_factor(bool is_int, uint64_t bits);
  bool values_take_part() const;
  bool mode_agrees() const;
  at::Tensor make(const OutputRecipe& recipe);
  bool has_read_source() const;
  bool bounds_follow(const CacheEntry& entry) const;
  bool values_follow(const CacheEntry& entry) const;
  bool holds_for(const DerivedValues& derived) const;

  const OpTraits& traits_;
  const bool depends_on_known_values_;  // whether known values of its arguments affect the call
  const ModePtr* mode_ = nullptr;
  bool possible_ = true;
  bool one_mode_ = true;  // whether all fakes have the same mode
  bool has_source_ = false;  // whether a fake is only read
  bool may_be_known_ = false;  // whether any value of a fake may be known
  bool has_flag_ = false;  // whether there is an argument that is true or false
  bool any_flag_ = false;  // whether one is true
  const DerivedValues* derived_ = nullptr;  // the values of the outputs, if they are known: see Note [Constants]
  size_t next_output_ = 0;
  size_t next_return_ = 0;
  c10::SmallVector<TensorArg, 8> tensors_;
  c10::SmallVector<uint64_t, 2> factors_;  // bits of the numbers of which the key has only the types
  CacheKey key_;
};

// The fallback for boxed calls.
const c10::BoxedKernel& boxed_fallback();

// The kernel of one operator on the Fake key.
class UnboxedKernelBase : public c10::OperatorKernel {
 public:
  explicit UnboxedKernelBase(const c10::OperatorHandle& op) : op_(op) {}

 protected:
  const OpTraits& traits() {
    const OpTraits* traits = traits_.load(std::memory_order_acquire);
    if (C10_UNLIKELY(traits == nullptr)) {
      traits = &OpTraits::of(op_);  // at the first call: kernels may be registered until then
      traits_.store(traits, std::memory_order_release);
    }
    return *traits;
  }

  const c10::OperatorHandle op_;

 private:
  std::atomic<const OpTraits*> traits_{nullptr};
};

template <typename Signature>
class UnboxedKernel;

template <typename Return, typename... Args>
class UnboxedKernel<Return(Args...)> final : public UnboxedKernelBase {
 public:
  using UnboxedKernelBase::UnboxedKernelBase;

  Return operator()(c10::DispatchKeySet keys, Args... args) {
    const OpTraits& traits = this->traits();
    if (C10_LIKELY(UnboxedCall::possible(traits))) {
      UnboxedCall call(traits);
      const ArgTraits* facts = traits.args.begin();
      (call.add(*facts++, args), ...);
      if (const CacheEntry* entry = call.find()) {
        return Outputs<Return>::take(call, *entry, args...);
      }
    }
    return c10::impl::BoxedKernelWrapper<Return(Args...)>::call(
        boxed_fallback(), op_, keys, std::forward<Args>(args)...);
  }

 private:
  static at::Tensor next(UnboxedCall& call, const CacheEntry& entry, std::type_identity<at::Tensor> /*type*/) {
    return call.next_tensor(entry);
  }
  static std::vector<at::Tensor> next(
      UnboxedCall& call,
      const CacheEntry& entry,
      std::type_identity<std::vector<at::Tensor>> /*type*/) {
    return call.next_list(entry);
  }

  // Newly created tensors.
  template <typename Made>
  struct Outputs {
    static Made take(UnboxedCall& call, const CacheEntry& entry, const std::remove_reference_t<Args>&... /*args*/) {
      Made made = next(call, entry, std::type_identity<Made>());
      call.finish(entry);
      return made;
    }
  };
  template <typename... Made>
  struct Outputs<std::tuple<Made...>> {
    static std::tuple<Made...> take(
        UnboxedCall& call,
        const CacheEntry& entry,
        const std::remove_reference_t<Args>&... /*args*/) {
      std::tuple<Made...> made{next(call, entry, std::type_identity<Made>())...};  // braces evaluate from left to right
      call.finish(entry);
      return made;
    }
  };
  template <typename Nothing>
    requires std::is_void_v<Nothing>
  struct Outputs<Nothing> {
    static void take(UnboxedCall& call, const CacheEntry& entry, const std::remove_reference_t<Args>&... /*args*/) {
      call.finish(entry);
    }
  };

  // References to arguments, in the dispatcher's order: `self` of an in-place operator comes first, out= arguments
  // last.
  template <typename Tensor>
  struct Outputs<Tensor&> {
    static Tensor& take(UnboxedCall& call, const CacheEntry& entry, Args&... args) {
      call.finish(entry);
      std::tuple<Args&...> all(args...);
      if constexpr (std::is_same_v<std::tuple_element_t<0, std::tuple<Args...>>, Tensor&>) {
        return std::get<0>(all);
      } else {
        return std::get<sizeof...(Args) - 1>(all);
      }
    }
  };
  template <typename... Tensor>
  struct Outputs<std::tuple<Tensor&...>> {
    static std::tuple<Tensor&...> take(UnboxedCall& call, const CacheEntry& entry, Args&... args) {
      call.finish(entry);
      return last(std::tuple<Args&...>(args...), std::index_sequence_for<Tensor...>());
    }
    template <size_t... kIndex>
    static std::tuple<Tensor&...> last(std::tuple<Args&...> all, std::index_sequence<kIndex...> /*indices*/) {
      return std::tuple<Tensor&...>(std::get<sizeof...(Args) - sizeof...(Tensor) + kIndex>(all)...);
    }
  };
};

struct UnboxedOperator {
  const char* name;  // "aten::add"
  const char* overload;  // "Tensor"
  c10::KernelFunction (*kernel)(const c10::OperatorHandle& op);
};

template <typename Signature>
c10::KernelFunction unboxed_kernel(const c10::OperatorHandle& op) {
  return c10::KernelFunction::makeFromUnboxedFunctor<false, UnboxedKernel<Signature>>(
      std::make_unique<UnboxedKernel<Signature>>(op));
}

// Visits every operator of the generated table.
void for_each_unboxed_operator(void (*visit)(const UnboxedOperator&));

}  // namespace torchfake

// Boxed calls go to the fallback directly.
template <typename Signature>
struct c10::impl::make_boxed_from_unboxed_functor<torchfake::UnboxedKernel<Signature>, false> final {
  static void call(
      OperatorKernel* /*kernel*/,
      const OperatorHandle& op,
      DispatchKeySet keys,
      torch::jit::Stack* stack) {
    torchfake::boxed_fallback().callBoxed(op, keys, stack);
  }
};
