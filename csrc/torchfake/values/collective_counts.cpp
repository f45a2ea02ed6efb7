// Counts the calls of collectives and their bytes.
#include <torchfake/values/collective_counts.h>

#include <torchfake/core/call_context.h>

#include <algorithm>
#include <vector>

#if __has_include(<torch/csrc/distributed/c10d/ProcessGroup.hpp>)
#include <torch/custom_class.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#define TORCHFAKE_HAS_PROCESS_GROUPS 1
#else
#define TORCHFAKE_HAS_PROCESS_GROUPS 0
#endif

namespace torchfake {

namespace {

std::mutex& counters_mutex() {
  static auto* const mutex = new std::mutex();
  return *mutex;
}

std::vector<CollectiveCounter*>& counters() {
  static auto* const counters = new std::vector<CollectiveCounter*>();
  return *counters;
}

const c10::IValue* find_arg(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> arguments, const char* name) {
  const std::optional<int> index = schema.argumentIndexWithName(name);
  return index ? &arguments[*index] : nullptr;
}

// The size in bytes of the largest argument, where a list of tensors counts as one.
int64_t largest_argument(const Call& call) {
  int64_t most = 0;
  int64_t sum = 0;
  int last = -1;
  for (const TensorArg& tensor : call.tensors()) {
    sum = (last == tensor.arg ? sum : 0) + tensor.impl->numel() * static_cast<int64_t>(tensor.impl->itemsize());
    last = tensor.arg;
    most = std::max(most, sum);
  }
  return most;
}

}  // namespace

RankGroup group_of(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> arguments) {
#if TORCHFAKE_HAS_PROCESS_GROUPS
  const c10::IValue* group = find_arg(schema, arguments, "process_group");
  if (group != nullptr && group->isCustomClass()) {
    const auto process_group = group->toCustomClass<c10d::ProcessGroup>();
    return {process_group->getGroupName(), process_group->getSize()};
  }
  const c10::IValue* name = find_arg(schema, arguments, "group_name");
  if (name != nullptr && name->isString()) {
    const c10::IValue* size = find_arg(schema, arguments, "group_size");
    return {
        name->toStringRef(),
        size != nullptr && size->isInt() ? size->toInt() : c10d::resolve_process_group(name->toStringRef())->getSize()};
  }
#endif
  return {};
}

std::string written_name(const OpTraits& traits) {
  std::string name(traits.base_name());
  while (!name.empty() && name.back() == '_') {
    name.pop_back();
  }
  constexpr std::pair<std::string_view, const char*> kWritten[] = {
      {"allreduce", "all_reduce"},
      {"allreduce_coalesced", "all_reduce"},
      {"all_reduce_coalesced", "all_reduce"},
      {"allgather", "all_gather"},
      {"_allgather_base", "all_gather_into_tensor"},
      {"allgather_into_tensor_coalesced", "all_gather_into_tensor"},
      {"all_gather_into_tensor_out", "all_gather_into_tensor"},
      {"all_gather_into_tensor_coalesced", "all_gather_into_tensor"},
      {"_reduce_scatter_base", "reduce_scatter_tensor"},
      {"reduce_scatter_tensor_coalesced", "reduce_scatter_tensor"},
      {"alltoall", "all_to_all"},
      {"alltoall_base", "all_to_all_single"},
      {"recv_any_source", "recv"},
  };
  for (const auto& [op, written] : kWritten) {
    if (name == op) {
      return written;
    }
  }
  return name;
}

CollectiveCounter::CollectiveCounter(ModePtr mode) : mode_(std::move(mode)) {
  TORCH_CHECK_VALUE(mode_, "CollectiveCounter: expected a mode, got null");
  const std::lock_guard lock(counters_mutex());
  counters().push_back(this);
}

CollectiveCounter::~CollectiveCounter() {
  const std::lock_guard lock(counters_mutex());
  std::erase(counters(), this);
}

std::map<CollectiveCounter::Key, CollectiveCounter::Count> CollectiveCounter::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

void CollectiveCounter::add(const Call& call) {
  const size_t num_args = call.num_args();
  const RankGroup group =
      group_of(call.op.schema(), c10::ArrayRef<c10::IValue>(num_args > 0 ? &call.arg(0) : nullptr, num_args));
  const std::lock_guard lock(mutex_);
  Count& count = counts_[{group.name, written_name(call.traits)}];
  ++count.calls;
  count.nbytes += largest_argument(call);
  count.group_size = group.size;
}

void count_collective(const Call& call, const ModeState& mode) {
  const CallContext* around = CallContext::current();
  // Functional collectives also use operators of this library to wait for their results and to wrap them for autograd.
  const std::string_view name = call.traits.base_name();
  const bool sends = name != "wait_tensor" && name != "_wrap_tensor_autograd";
  if (!sends || (around != nullptr && around->kernel_depth > 0)) {
    return;  // part of another collective
  }
  const std::lock_guard lock(counters_mutex());
  for (CollectiveCounter* counter : counters()) {
    if (counter->mode_.get() == &mode) {
      counter->add(call);
    }
  }
}

}  // namespace torchfake
