// Version counters of fakes.
#include <torchfake/core/version_counters.h>

#include <torchfake/core/recycled.h>

#include <memory>

namespace torchfake {

namespace {

using Counter = c10::VariableVersion;

// Thread-local. Unchanged when the thread ends, after the slots were given back.
struct Pool {
  Counter* slots = nullptr;  // the first `count` of them are counters
  size_t count = 0;
  bool has_ended = false;
};

__attribute__((tls_model("initial-exec"))) thread_local Pool t_pool;

struct Slots {
  std::unique_ptr<Counter[]> slots = std::make_unique<Counter[]>(recycled::kMost);

  ~Slots() {
    t_pool = {nullptr, 0, /*has_ended=*/true};
  }
};

// Whether there are slots now.
bool make_slots() {
  if (t_pool.has_ended || !recycled::kEnabled) {
    return false;
  }
  static thread_local Slots slots;
  t_pool.slots = slots.slots.get();
  return true;
}

}  // namespace

Counter take_version_counter() {
  Pool& pool = t_pool;
  return pool.count == 0 ? Counter(/*version=*/0) : std::move(pool.slots[--pool.count]);
}

void leave_version_counter(Counter&& counter) noexcept {
  Pool& pool = t_pool;
  if (pool.count == recycled::kMost || (pool.slots == nullptr && !make_slots())) {
    return;
  }
  if (counter.current_version() != 0) {  // most have never counted, and an atomic write is expensive
    counter.set_version(0);
  }
  pool.slots[pool.count++] = std::move(counter);
}

}  // namespace torchfake
