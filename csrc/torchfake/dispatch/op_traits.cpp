// Step 1 of 5: facts about an operator.
#include <torchfake/dispatch/op_traits.h>

#include <ATen/core/enum_tag.h>

#include <torchfake/dispatch/native_table.h>
#include <torchfake/rules/cpu_equivalents.h>
#include <torchfake/rules/refused_dtypes.h>

#include <array>
#include <atomic>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace torchfake {

namespace {

bool starts_with(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

bool ends_with(std::string_view text, std::string_view suffix) {
  return text.size() >= suffix.size() && text.substr(text.size() - suffix.size()) == suffix;
}

ArgTraits traits_of(const c10::Argument& arg) {
  c10::TypePtr type = arg.real_type();
  if (auto optional = type->cast<c10::OptionalType>()) {
    type = optional->getElementType();
  }
  ArgTraits traits;
  if (type->kind() == c10::TypeKind::TensorType) {
    traits.kind = ArgKind::kTensor;
  } else if (auto list = type->cast<c10::ListType>()) {
    c10::TypePtr element = list->getElementType();
    if (auto optional = element->cast<c10::OptionalType>()) {
      element = optional->getElementType();
    }
    if (element->kind() == c10::TypeKind::TensorType) {
      traits.kind = ArgKind::kTensorList;
    }
  } else if (type->kind() == c10::TypeKind::DeviceObjType) {
    traits.kind = ArgKind::kDevice;
  } else if (type->kind() == c10::TypeKind::LayoutType) {
    traits.kind = ArgKind::kLayout;
  } else if (arg.name() == "pin_memory") {
    traits.kind = ArgKind::kPinMemory;
  }
  traits.is_written = arg.alias_info() != nullptr && arg.alias_info()->isWrite();
  traits.is_out = traits.is_written && arg.kwarg_only();
  return traits;
}

bool holds_tensors(const c10::TypePtr& type) {
  if (type->kind() == c10::TypeKind::TensorType) {
    return true;
  }
  for (const c10::TypePtr& inner : type->containedTypes()) {
    if (holds_tensors(inner)) {
      return true;
    }
  }
  return false;
}

// Batch norm that updates running statistics which its schema takes for inputs.
bool keeps_statistics(std::string_view base) {
  return base == "native_batch_norm" || base == "cudnn_batch_norm" || base == "miopen_batch_norm" ||
      base == "batch_norm_update_stats" || starts_with(base, "batch_norm_gather_stats");
}

// A PyTorch without CUDA cannot tell what it would have a kernel for.
bool is_for_cpu_alone(std::string_view base) {
  return base == "histogram" || starts_with(base, "_histogramdd_") || starts_with(base, "_upsample_lanczos2d_aa");
}

// Reads nothing of its tensor argument but sizes, strides, dtype and device.
bool takes_shape_only(std::string_view base) {
  return ends_with(base, "_like") || starts_with(base, "new_") || base == "resize_as_" || base == "empty_quantized";
}

ValueSource value_source(std::string_view base, bool is_random, bool takes_tensors) {
  if (!is_random && (starts_with(base, "empty") || starts_with(base, "new_empty"))) {
    return ValueSource::kUninitialised;
  }
  const bool unknown = starts_with(base, "_empty") || starts_with(base, "resize") || starts_with(base, "set_") ||
      starts_with(base, "rand") || base == "_resize_output_" || base == "_efficientzerotensor" || base == "_pin_memory";
  if (is_random || unknown) {
    return ValueSource::kNone;
  }
  if (base == "fill_" || base == "zero_" || base == "copy_") {
    return ValueSource::kOverwrite;
  }
  if (!takes_tensors || takes_shape_only(base)) {
    return ValueSource::kConstant;
  }
  return ValueSource::kInputs;
}

// Operators that take a factor: adding, scaling and the steps of optimizers. addmv and addbmm are not among them: of
// nothing, they look whether a factor is zero. A foreach form takes factors where its plain form does.
bool takes_factors(std::string_view base) {
  constexpr std::string_view kForeach = "_foreach_";
  if (starts_with(base, kForeach)) {
    base.remove_prefix(kForeach.size());
  }
  static const std::unordered_set<std::string_view> kNames = {
      "add",     "add_",     "sub",  "sub_",  "rsub",  "mul",    "mul_",    "div",      "div_", "addcmul", "addcmul_",
      "addcdiv", "addcdiv_", "lerp", "lerp_", "addmm", "addmm_", "baddbmm", "baddbmm_", "addr", "addr_"};
  return kNames.count(base) > 0 || starts_with(base, "_fused_adam") || starts_with(base, "_fused_sgd") ||
      starts_with(base, "_fused_adagrad");
}

bool is_factor(const c10::Argument& arg) {
  c10::TypePtr type = arg.real_type();
  if (auto list = type->cast<c10::ListType>()) {
    type = list->getElementType();
  }
  return type->kind() == c10::TypeKind::NumberType || type->kind() == c10::TypeKind::FloatType;
}

}  // namespace

OpTraits::OpTraits(const c10::OperatorHandle& op)
    : name(op.operator_name().name), overload(op.operator_name().overload_name), registration_(&op.operator_name()) {
  const c10::FunctionSchema& schema = op.schema();
  const std::string_view base = std::string_view(name).substr(name.find("::") + 2);
  for (const c10::Argument& arg : schema.arguments()) {
    args.push_back(traits_of(arg));
    ArgTraits& last = args.back();
    last.is_out &= base != "_compute_linear_combination";  // adds to what is there
    last.is_statistic = keeps_statistics(base) && (arg.name() == "running_mean" || arg.name() == "running_var");
    updates_statistics |= last.is_statistic;
    takes_tensors |= last.kind == ArgKind::kTensor || last.kind == ArgKind::kTensorList;
    mutates |= last.is_written;
    if (last.kind == ArgKind::kDevice) {
      device_arg = static_cast<int>(args.size()) - 1;
    }
  }
  num_returns = schema.returns().size();
  for (const c10::Argument& result : schema.returns()) {
    returns_tensors |= holds_tensors(result.real_type());
    is_view |= result.alias_info() != nullptr && !result.alias_info()->isWrite();
  }
  // These return views and do not say so: autograd must not know.
  is_view |= base == "_unsafe_view" || starts_with(base, "unsafe_split");
  is_random = op.hasTag(at::Tag::nondeterministic_seeded);
  data_dependent = op.hasTag(at::Tag::data_dependent_output);
  // With lengths that are numbers its shape is fixed.
  const bool is_fixed_ctc = base == "_ctc_loss" && overload.empty();
  dynamic_shape = op.hasTag(at::Tag::dynamic_output_shape) && !is_fixed_ctc;
  is_factory_like = takes_tensors && !mutates && takes_shape_only(base) && device_arg >= 0;
  values = value_source(base, is_random, takes_tensors);
  is_pointwise = !mutates && num_returns == 1 && (op.hasTag(at::Tag::pointwise) || base == "_to_copy");
  const std::string_view library = std::string_view(name).substr(0, name.find("::"));
  is_aten = library == "aten";
  is_builtin = is_aten || library == "prims";
  is_collective = library == "c10d" || library == "c10d_functional" || starts_with(library, "_c10d_functional");
  if (library == "c10d") {
    // Their schemas have no marks of aliases. By convention a name ends in an underscore where arguments are written, and
    // what is only read is called input, input_tensor, input_tensors.
    for (size_t i = 0; i < args.size(); ++i) {
      args[i].is_received = ends_with(base, "_") && !starts_with(schema.arguments()[i].name(), "input") &&
          holds_tensors(schema.arguments()[i].real_type());
    }
  }
  const auto has = [&](c10::DispatchKey key) { return op.hasKernelForDispatchKey(key); };
  lacks_cpu = is_aten && !has(c10::DispatchKey::CPU) && !has(c10::DispatchKey::CompositeExplicitAutograd) &&
      !has(c10::DispatchKey::CompositeExplicitAutogradNonFunctional) &&
      !has(c10::DispatchKey::CompositeImplicitAutograd);
  lacks_cuda = is_aten && is_for_cpu_alone(base);
  is_index = base == "index" || base == "_unsafe_index" || starts_with(base, "index_put") ||
      base == "_index_put_impl_" || base == "_unsafe_index_put";
  is_foreach = is_aten && starts_with(base, "_foreach_") && has(c10::DispatchKey::CompositeExplicitAutograd);
  needs_values = base == "masked_select" || base == "_pack_padded_sequence" || base == "multinomial";
  takes_rows = base == "embedding" || base == "nll_loss_forward" || base == "nll_loss2d_forward";
  keeps_seeds_on_cpu = base == "_scaled_dot_product_efficient_attention" || base == "_efficient_attention_forward";
  replaces_storage = base == "set_";
  native = find_native_kernel(qualified_name());
  cpu_equivalent = find_cpu_equivalent(qualified_name());
  if (cpu_equivalent != nullptr) {
    for (const size_t arg : cpu_equivalent->unread) {
      args[arg].is_unread = true;
    }
  }
  refused_dtypes = DtypeRefusals::of(op);
  is_composite = native == nullptr && op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
      !op.hasKernelForDispatchKey(c10::DispatchKey::Meta);
  is_keyed = is_builtin && !is_composite && !needs_values && !data_dependent && (!dynamic_shape || is_index);
  bool has_out = false;
  for (ArgTraits& arg : args) {
    has_out |= arg.is_out;
  }
  changes_geometry = mutates &&
      (has_out || op.hasTag(at::Tag::inplace_view) || base == "addbmm_" || starts_with(base, "resize") ||
       starts_with(base, "set_") || starts_with(base, "as_strided") || starts_with(base, "_resize"));
  // slice_scatter and its like return a copy of the first argument that keeps its place in its storage.
  reads_storage = is_view || changes_geometry || ends_with(base, "_scatter") || base == "as_strided_copy";
  if (takes_factors(base)) {
    for (size_t i = 0; i < args.size(); ++i) {
      args[i].scales_only = is_factor(schema.arguments()[i]);
    }
  }
}

// Note [Table of traits]
// Readers look an operator up by the address of its registration, without a lock: slots are atomics that point to finished
// OpTraits. An operator that is defined again under its name (a notebook cell that is run twice) has its registration at
// the same address, and another schema: so the table hears from the dispatcher when a definition is dropped, and puts
// a mark in its slot that matches nobody. The next call of the new definition makes new traits; a key of the shape cache
// names the traits, so outcomes of the old definition are not found any more. Slots with a mark are used again. What finds
// no slot goes into a map behind a lock: slow, and right.
// Traits are never freed: a call on another thread may still read them.
// Operators that have an unboxed kernel keep their traits there and do not ask again: they are defined by PyTorch's own
// library, whose definitions nobody can drop.
class TraitsTable {
 public:
  static TraitsTable& get() {
    static auto* const table = new TraitsTable();  // never destroyed: threads may outlive static storage
    return *table;
  }

  // Null where they are not in a slot.
  static const OpTraits* find(const c10::OperatorName* key) {
    size_t slot = slot_of(key);
    for (size_t probes = 0; probes < kProbes; ++probes, slot = (slot + 1) % kSlots) {
      const OpTraits* found = slots_[slot].load(std::memory_order_acquire);
      if (found == nullptr) {
        return nullptr;
      }
      if (C10_LIKELY(found->registration_ == key)) {
        return found;
      }
    }
    return nullptr;
  }

  const OpTraits& find_or_make(const c10::OperatorHandle& op) {
    while (true) {
      uint64_t drops = 0;
      {
        std::lock_guard<std::mutex> lock(mutex_);
        if (const OpTraits* found = find_locked(&op.operator_name())) {
          return *found;
        }
        drops = drops_;
      }
      // Without the lock: the dispatcher holds its own when it calls the listener.
      std::unique_ptr<const OpTraits> made(new OpTraits(op));
      std::lock_guard<std::mutex> lock(mutex_);
      if (const OpTraits* found = find_locked(&op.operator_name())) {
        return *found;
      }
      if (drops == drops_) {
        return insert(std::move(made));
      }
    }
  }

  // The definition of an operator is about to go.
  void drop(const c10::OperatorName* key) {
    std::lock_guard<std::mutex> lock(mutex_);
    ++drops_;
    others_.erase(key);
    size_t slot = slot_of(key);
    for (size_t probes = 0; probes < kProbes; ++probes, slot = (slot + 1) % kSlots) {
      const OpTraits* found = slots_[slot].load(std::memory_order_relaxed);
      if (found == nullptr) {
        return;
      }
      if (found->registration_ == key) {
        slots_[slot].store(dropped(), std::memory_order_release);
        return;
      }
    }
  }

 private:
  static constexpr size_t kSlots = 1 << 14;
  static constexpr size_t kProbes = 64;

  struct Listener final : c10::OpRegistrationListener {
    void onOperatorRegistered(const c10::OperatorHandle& /*op*/) override {}
    void onOperatorDeregistered(const c10::OperatorHandle& op) override {
      TraitsTable::get().drop(&op.operator_name());
    }
  };

  TraitsTable() : listening_(c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<Listener>())) {}

  static size_t slot_of(const void* key) {
    return (reinterpret_cast<uintptr_t>(key) >> 4) * 0x9E3779B97F4A7C15ull >> (64 - 14);
  }

  // Stands where traits have been dropped, so that those behind it are still found.
  static const OpTraits* dropped() {
    static const auto* const mark = new OpTraits();
    return mark;
  }

  const OpTraits* find_locked(const c10::OperatorName* key) const {
    if (const OpTraits* found = find(key)) {
      return found;
    }
    const auto other = others_.find(key);
    return other == others_.end() ? nullptr : other->second;
  }

  const OpTraits& insert(std::unique_ptr<const OpTraits> made) {
    const OpTraits* traits = made.release();
    size_t slot = slot_of(traits->registration_);
    for (size_t probes = 0; probes < kProbes; ++probes, slot = (slot + 1) % kSlots) {
      const OpTraits* found = slots_[slot].load(std::memory_order_relaxed);
      if (found == nullptr || found == dropped()) {
        slots_[slot].store(traits, std::memory_order_release);
        return *traits;
      }
    }
    others_.emplace(traits->registration_, traits);
    return *traits;
  }

  static std::array<std::atomic<const OpTraits*>, kSlots> slots_;
  std::mutex mutex_;  // of writers, and of the map
  std::unordered_map<const c10::OperatorName*, const OpTraits*> others_;
  uint64_t drops_ = 0;
  const c10::RegistrationHandleRAII listening_;
};

std::array<std::atomic<const OpTraits*>, TraitsTable::kSlots> TraitsTable::slots_{};

const OpTraits& OpTraits::of(const c10::OperatorHandle& op) {
  const OpTraits* found = TraitsTable::find(&op.operator_name());
  return C10_LIKELY(found != nullptr) ? *found : TraitsTable::get().find_or_make(op);
}

}  // namespace torchfake
