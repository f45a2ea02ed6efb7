// Announces a kernel's allocations in addition to its outputs, in order.
#include <torchfake/cache/side_allocations.h>

#include <torchfake/core/call_context.h>

namespace torchfake {

namespace {

using Kind = SideAllocation::Kind;

bool has_listener(c10::ArrayRef<SideAllocation> allocations, const ModePtr& mode) {
  return C10_UNLIKELY(mode->options.storage_observer != nullptr) && !allocations.empty() && !InKernel::active();
}

// The storages of the tensors that a call returns; null for one that is undefined.
c10::SmallVector<c10::StorageImpl*, 4> storages_of(c10::ArrayRef<c10::IValue> outputs) {
  c10::SmallVector<c10::StorageImpl*, 4> storages;
  const auto add = [&](const at::Tensor& tensor) {
    storages.push_back(tensor.defined() ? storage_of(*tensor.unsafeGetTensorImpl()) : nullptr);
  };
  for (const c10::IValue& output : outputs) {
    if (output.isTensor()) {
      add(output.toTensor());
    } else if (output.isTensorList()) {
      for (const at::Tensor& tensor : output.toTensorVector()) {
        add(tensor);
      }
    }
  }
  return storages;
}

}  // namespace

OrderedOutputs::OrderedOutputs(c10::ArrayRef<SideAllocation> allocations, const ModePtr& mode) {
  if (has_listener(allocations, mode) && name_outputs(allocations)) {
    deferred_.emplace();
  }
}

void announce_allocations(
    c10::ArrayRef<SideAllocation> allocations,
    c10::ArrayRef<c10::IValue> outputs,
    const ModePtr& mode) {
  if (C10_LIKELY(!has_listener(allocations, mode))) {
    return;
  }
  StorageObserver& observer = *mode->options.storage_observer;
  DeferredAllocations* deferred = name_outputs(allocations) ? DeferredAllocations::current() : nullptr;
  const auto storages = deferred == nullptr ? c10::SmallVector<c10::StorageImpl*, 4>() : storages_of(outputs);
  std::vector<uint32_t> taken;
  const auto give_back = [&](uint32_t step) {
    observer.on_free(nullptr, allocations[step].device, allocations[step].nbytes);
  };
  const auto end = [&] {
    for (; !taken.empty(); taken.pop_back()) {
      give_back(taken.back());
    }
  };
  try {
    for (uint32_t step = 0; step < allocations.size(); ++step) {
      const SideAllocation& allocation = allocations[step];
      if (allocation.kind == Kind::kTake) {
        observer.on_alloc(allocation_of(nullptr, allocation.device, allocation.nbytes));
        taken.push_back(step);
      } else if (allocation.kind == Kind::kGiveBack) {
        std::erase(taken, allocation.number);
        give_back(allocation.number);
      } else if (deferred != nullptr && allocation.number < storages.size() && storages[allocation.number] != nullptr) {
        deferred->tell(storages[allocation.number]);
      }
    }
    if (deferred != nullptr) {
      deferred->tell_rest();
    }
  } catch (...) {
    end();
    throw;
  }
  end();
}

}  // namespace torchfake
