// Constant propagation through collectives.
#include <torchfake/values/collectives.h>

#include <torchfake/core/collective_observer.h>
#include <torchfake/core/fake_storage.h>

#if __has_include(<torch/csrc/distributed/c10d/ProcessGroup.hpp>)
#include <torch/custom_class.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#define TORCHFAKE_HAS_PROCESS_GROUPS 1
#else
#define TORCHFAKE_HAS_PROCESS_GROUPS 0
#endif

namespace torchfake {

namespace {

// The argument with this name in the schema; null if there is none.
const c10::IValue* find_arg(const Call& call, const char* name) {
  const std::optional<int> index = call.op.schema().argumentIndexWithName(name);
  return index ? &call.arg(*index) : nullptr;
}

// Whether the arguments keep the values of this rank. Only for operators that work in place on `tensors`: the others
// copy from one argument to another, and no copy has taken place here.
bool is_of_this_rank_alone(const Call& call) {
#if TORCHFAKE_HAS_PROCESS_GROUPS
  const c10::IValue* group = find_arg(call, "process_group");
  if (find_arg(call, "tensors") == nullptr || group == nullptr || !group->isCustomClass()) {
    return false;
  }
  const auto process_group = group->toCustomClass<c10d::ProcessGroup>();
  const c10::IValue* root = find_arg(call, "root_rank");
  return process_group->getSize() == 1 ||
      (call.traits.is_broadcast && root != nullptr && root->toInt() == process_group->getRank());
#else
  return false;
#endif
}

void add_fakes(const c10::IValue& value, std::vector<c10::intrusive_ptr<c10::TensorImpl>>& fakes) {
  if (value.isTensor()) {
    if (value.toTensor().defined() && as_fake(value.toTensor()) != nullptr) {
      fakes.push_back(value.toTensor().getIntrusivePtr());
    }
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) {
      add_fakes(element, fakes);
    }
  }
}

}  // namespace

std::vector<c10::intrusive_ptr<c10::TensorImpl>> received_values(const Call& call) {
  std::vector<c10::intrusive_ptr<c10::TensorImpl>> fakes;
  const auto is_received = [](const ArgTraits& arg) { return arg.is_received; };
  if (std::none_of(call.traits.args.begin(), call.traits.args.end(), is_received) || is_of_this_rank_alone(call)) {
    return fakes;
  }
  for (size_t i = 0; i < call.num_args(); ++i) {
    if (call.traits.args[i].is_received) {
      add_fakes(call.arg(i), fakes);
    }
  }
  return fakes;
}

void note_collective(const c10::IValue& value) {
  std::vector<c10::intrusive_ptr<c10::TensorImpl>> fakes;
  add_fakes(value, fakes);
  for (const auto& fake : fakes) {
    c10::StorageImpl* storage = storage_of(*fake);
    const Observation observed = storage == nullptr ? Observation{} : observation_of(storage);
    if (auto* observer = dynamic_cast<CollectiveObserver*>(observed.observer)) {
      observer->on_collective(observed.id);
    }
  }
}

}  // namespace torchfake
