// Facts about an operator.
#include <torchfake/core/op_traits.h>

#include <ATen/core/enum_tag.h>

#include <array>
#include <atomic>
#include <mutex>
#include <string_view>
#include <unordered_map>

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

bool is_factor(const c10::Argument& arg) {
  c10::TypePtr type = arg.real_type();
  if (auto list = type->cast<c10::ListType>()) {
    type = list->getElementType();
  }
  return type->kind() == c10::TypeKind::NumberType || type->kind() == c10::TypeKind::FloatType;
}

}  // namespace

OpTraits::OpTraits(const c10::OperatorHandle& op)
    : OperatorFacts(find_operator_facts(op)),
      name(op.operator_name().name),
      overload(op.operator_name().overload_name),
      registration_(&op.operator_name()) {
  const std::string_view library = std::string_view(name).substr(0, name.find("::"));
  is_aten = library == "aten";
  is_builtin = is_aten || library == "prims";
  is_collective = library == "c10d" || library == "c10d_functional" || starts_with(library, "_c10d_functional");
  read_arguments(op.schema());
  read_returns(op.schema());
  read_tags(op);
  if (library == "c10d") {
    read_collective(op.schema());
  }
  const auto has = [&](c10::DispatchKey key) { return op.hasKernelForDispatchKey(key); };
  lacks_cpu = is_aten && !has(c10::DispatchKey::CPU) && !has(c10::DispatchKey::CompositeExplicitAutograd) &&
      !has(c10::DispatchKey::CompositeExplicitAutogradNonFunctional) &&
      !has(c10::DispatchKey::CompositeImplicitAutograd);
  is_foreach = is_aten && starts_with(base_name(), "_foreach_") && has(c10::DispatchKey::CompositeExplicitAutograd);
  is_composite = kernel == nullptr && has(c10::DispatchKey::CompositeImplicitAutograd) && !has(c10::DispatchKey::Meta);
  is_keyed = is_builtin && !is_composite && !needs_values && !data_dependent && (!dynamic_shape || is_index);
  is_factory_like = takes_tensors && !mutates && takes_shape_only && device_arg >= 0;
  const ValueSource by_schema = !takes_tensors || takes_shape_only ? ValueSource::kConstant : ValueSource::kInputs;
  values = value_source.value_or(is_random ? ValueSource::kDrawn : by_schema);
  changes_geometry = mutates && (has_out || resizes || op.hasTag(at::Tag::inplace_view));
  reads_storage = is_view || changes_geometry || keeps_place;
}

void OpTraits::read_arguments(const c10::FunctionSchema& schema) {
  for (const c10::Argument& arg : schema.arguments()) {
    args.push_back(traits_of(arg));
    ArgTraits& last = args.back();
    last.is_out &= !reads_out;
    last.is_statistic = keeps_statistics && (arg.name() == "running_mean" || arg.name() == "running_var");
    last.scales_only = takes_factors && is_factor(arg);
    updates_statistics |= last.is_statistic;
    takes_tensors |= last.kind == ArgKind::kTensor || last.kind == ArgKind::kTensorList;
    mutates |= last.is_written;
    has_out |= last.is_out;
    if (last.kind == ArgKind::kDevice) {
      device_arg = static_cast<int>(args.size()) - 1;
    }
  }
  if (cpu_equivalent != nullptr) {
    for (const size_t arg : cpu_equivalent->unread) {
      args[arg].is_unread = true;
    }
  }
}

void OpTraits::read_returns(const c10::FunctionSchema& schema) {
  num_returns = schema.returns().size();
  is_view = returns_view;
  for (const c10::Argument& result : schema.returns()) {
    returns_tensors |= holds_tensors(result.real_type());
    is_view |= result.alias_info() != nullptr && !result.alias_info()->isWrite();
  }
}

void OpTraits::read_tags(const c10::OperatorHandle& op) {
  is_random = op.hasTag(at::Tag::nondeterministic_seeded);
  data_dependent = op.hasTag(at::Tag::data_dependent_output);
  dynamic_shape = op.hasTag(at::Tag::dynamic_output_shape) && !has_fixed_shape;
  is_pointwise = !mutates && num_returns == 1 && (op.hasTag(at::Tag::pointwise) || converts);
}

// Schemas of c10d have no alias annotations. By convention a name ends in an underscore if arguments are written, and
// arguments that are only read are called input, input_tensor or input_tensors.
void OpTraits::read_collective(const c10::FunctionSchema& schema) {
  for (size_t i = 0; i < args.size(); ++i) {
    const c10::Argument& arg = schema.arguments()[i];
    args[i].is_received =
        ends_with(base_name(), "_") && !starts_with(arg.name(), "input") && holds_tensors(arg.real_type());
  }
}

// Note [Table of traits]
// Readers look an operator up by the address of its registration, without a lock: slots are atomics that point to
// finished OpTraits. An operator that is redefined under the same name (a notebook cell that is run twice) has its
// registration at the same address but a different schema. So the table is notified by the dispatcher when a definition
// is dropped, and puts a tombstone into its slot. The next call of the new definition creates new traits; keys of the
// shape cache contain the address of the traits, so outcomes of the old definition are never found again. Tombstones
// are reused. Operators that find no free slot go into a map behind a lock, which is slow but correct.
// Traits are never freed: a call on another thread may still read them.
// Operators with an unboxed kernel keep their traits there and never look them up again: they are defined by PyTorch's
// own library, whose definitions cannot be dropped.
class TraitsTable {
 public:
  static TraitsTable& get() {
    static auto* const table = new TraitsTable();  // never destroyed: threads may outlive static storage
    return *table;
  }

  // Null if they are not in a slot.
  static const OpTraits* find(const c10::OperatorName* key) {
    size_t slot = slot_of(key);
    for (size_t probes = 0; probes < kProbes; ++probes, slot = (slot + 1) % kSlots) {
      const OpTraits* found = slots[slot].load(std::memory_order_acquire);
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
      // Without our lock: the dispatcher holds its own when it calls the listener.
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

  // Called when the definition of an operator is about to be dropped.
  void drop(const c10::OperatorName* key) {
    std::lock_guard<std::mutex> lock(mutex_);
    ++drops_;
    others_.erase(key);
    size_t slot = slot_of(key);
    for (size_t probes = 0; probes < kProbes; ++probes, slot = (slot + 1) % kSlots) {
      const OpTraits* found = slots[slot].load(std::memory_order_relaxed);
      if (found == nullptr) {
        return;
      }
      if (found->registration_ == key) {
        slots[slot].store(dropped(), std::memory_order_release);
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

  // A tombstone: marks a slot whose traits were dropped, so that slots probed after it are still found.
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
      const OpTraits* found = slots[slot].load(std::memory_order_relaxed);
      if (found == nullptr || found == dropped()) {
        slots[slot].store(traits, std::memory_order_release);
        return *traits;
      }
    }
    others_.emplace(traits->registration_, traits);
    return *traits;
  }

  static std::array<std::atomic<const OpTraits*>, kSlots> slots;
  std::mutex mutex_;  // for writers, and for the map
  std::unordered_map<const c10::OperatorName*, const OpTraits*> others_;
  uint64_t drops_ = 0;
  const c10::RegistrationHandleRAII listening_;
};

std::array<std::atomic<const OpTraits*>, TraitsTable::kSlots> TraitsTable::slots{};

const OpTraits& OpTraits::of(const c10::OperatorHandle& op) {
  const OpTraits* found = TraitsTable::find(&op.operator_name());
  return C10_LIKELY(found != nullptr) ? *found : TraitsTable::get().find_or_make(op);
}

}  // namespace torchfake
