// The hit of a call that is not boxed: answered by the cache from the arguments as C++ has them.
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
struct OutputRecipe;  // not their header: the tables that include this one take a minute to compile

// Note [Unboxed calls]
// The fallback takes its arguments in boxes: a vector of IValues, a reference counted up for every tensor, a list on
// the heap for every list. Making and dropping them costs more than finding an outcome in the cache. So every operator
// of PyTorch has, on the Fake key, a kernel with its own C++ signature, which builds the key of the cache straight from
// its arguments. Where the thread's table has the outcome, and nothing but the outcome is to be done, it makes the
// outputs. In every other case it boxes the arguments and calls the fallback, which does everything from the start:
//
//   the cache is off or cross-checked, a call of the engine is under way, a recorder listens, an argument's values are known (or the
//   outputs' will be), a real tensor is among the arguments, fakes of two modes meet where modes refuse each other's,
//   the entry is an error, the thread has not seen the key
//
// Nothing is decided here that the fallback would decide otherwise, and nothing is changed before it is decided.
//
// The kernels are made from the operator definitions that come with the PyTorch being built against
// (cmake/generate_unboxed_table.py): one instance for each signature, one object for each operator. Operators of other
// libraries, and those whose outputs are no tensors, have the fallback alone.

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

  // Boxed, these are integers.
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

  // The outcome, or null where the call has to take the long way. To be asked once, after the last argument.
  const CacheEntry* find();

  // The outputs, one by one in the order of the entry; `finish` after the last of them.
  at::Tensor next_tensor(const CacheEntry& entry);
  std::vector<at::Tensor> next_list(const CacheEntry& entry);
  void finish(const CacheEntry& entry);

 private:
  void add_tensor(const ArgTraits& facts, c10::TensorImpl* tensor);
  bool values_take_part() const;
  bool mode_agrees() const;
  at::Tensor make(const OutputRecipe& recipe);
  bool has_read_source() const;
  bool bounds_follow(const CacheEntry& entry) const;
  bool values_follow(const CacheEntry& entry) const;

  const OpTraits& traits_;
  const bool depends_on_known_values_;  // whether known values of its arguments matter to it
  const ModePtr* mode_ = nullptr;
  bool possible_ = true;
  bool one_mode_ = true;  // of all fakes
  bool has_source_ = false;  // a fake that is not written to
  bool gives_constant_ = false;  // the output gets values: see Note [Constants]
  size_t next_output_ = 0;
  size_t next_return_ = 0;
  c10::SmallVector<TensorArg, 8> tensors_;
  CacheKey key_;
};

// The fallback, to be called with boxes.
const c10::BoxedKernel& boxed_fallback();

// The kernel on the Fake key of one operator.
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

  // Tensors that are made.
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
      std::tuple<Made...> made{next(call, entry, std::type_identity<Made>())...};  // in braces: from left to right
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

  // References to arguments, as the dispatcher has them: `self` of an in-place operator, which comes first, or the out=
  // arguments, which come last.
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

// A call that arrives in boxes keeps them.
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
