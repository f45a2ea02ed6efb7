// Counts the live storages on the devices of one type.
#include <torchfake/core/storage_counts.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <vector>

namespace torchfake {

namespace {

struct Pool {
  std::mutex mutex;
  std::vector<StorageCounts*> given_back;  // some of their storages may still be alive
};

Pool& pool() {
  static auto* pool = new Pool();  // threads may end after the process's own statics
  return *pool;
}

}  // namespace

bool DeviceCounts::becomes_owner() {
  const void* nobody = nullptr;
  return owner_.compare_exchange_strong(nobody, &t_thread, std::memory_order_relaxed);
}

void DeviceCounts::clear() {
  for (Numbers* numbers : {&owned_, &shared_}) {
    numbers->bytes.store(0, std::memory_order_relaxed);
    numbers->live.store(0, std::memory_order_relaxed);
    numbers->allocations.store(0, std::memory_order_relaxed);
  }
  peak_.store(0, std::memory_order_relaxed);
  owner_.store(nullptr, std::memory_order_relaxed);
}

bool StorageCounts::is_idle() const {
  return std::all_of(devices_.begin(), devices_.end(), [](const DeviceCounts& counts) { return counts.live() == 0; });
}

StorageCounts* StorageCounts::take(c10::DeviceType type) {
  Pool& all = pool();
  const std::lock_guard lock(all.mutex);
  const auto idle = std::find_if(
      all.given_back.begin(), all.given_back.end(), [](StorageCounts* counts) { return counts->is_idle(); });
  StorageCounts* counts = nullptr;
  if (idle == all.given_back.end()) {
    counts = std::make_unique<StorageCounts>().release();
  } else {
    counts = *idle;
    all.given_back.erase(idle);
    for (DeviceCounts& device : counts->devices_) {
      device.clear();
    }
  }
  counts->type_ = type;
  return counts;
}

void StorageCounts::give_back(StorageCounts* counts) {
  Pool& all = pool();
  const std::lock_guard lock(all.mutex);
  all.given_back.push_back(counts);
}

}  // namespace torchfake
