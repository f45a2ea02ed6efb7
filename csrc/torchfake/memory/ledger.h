// Who owns the bytes of a device: every allocation with its owner, operator, module and phase, in order.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/flat_hash_map.h>

#include <array>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace torchfake::memory {

enum class Owner : uint8_t {
  kParameters,
  kGradients,
  kOptimizerState,
  kBuffers,
  kActivations,  // made in a forward pass and alive when its backward pass begins
  kInputs,  // made outside of modules, backward passes and optimizers
  kTemporaries,
  kWorkspaces,
};
inline constexpr size_t kOwners = 8;
std::string_view to_string(Owner owner);

// What a thread is doing, as far as it says so.
enum class Activity : uint8_t { kOutside, kForward, kBackward, kOptimizer };

// One block from its allocation to its end.
struct LedgerRecord {
  const void* storage = nullptr;  // null for temporaries and workspaces
  size_t nbytes = 0;  // of the block
  size_t requested = 0;
  uint64_t address = 0;
  int64_t born = 0;  // the number of the event
  int64_t died = -1;  // -1 while it lives
  std::string_view op;
  uint32_t scope = 0;  // that of scopes.h
  uint32_t phase = 0;
  uint32_t line = 0;  // of those that the line source has named; 0 is none
  c10::Device device{c10::kCPU};
  Activity activity = Activity::kOutside;
  Owner owner = Owner::kTemporaries;
  bool is_claimed = false;  // whether somebody said whose it is
  bool keeps_graph = false;  // made where gradients are recorded
};

struct TimelinePoint {
  int64_t event = 0;
  uint32_t phase = 0;
  std::array<int64_t, kOwners> bytes{};  // by owner

  int64_t total() const;
};

// Names the line of the program that is running on this thread; 0 where there is none.
using LineSource = std::function<uint32_t()>;

// Thread-safe. Hears of blocks in the order in which a model takes and frees them.
class Ledger {
 public:
  // Returns a number to end it with.
  uint32_t birth(LedgerRecord record);
  void death(uint32_t record) noexcept;

  // Whose the block of a storage is, and of which module; 0 leaves the one that made it. Nothing where it has no block that
  // lives. Throws IndexError if no such scope was named.
  void claim(const void* storage, Owner owner, uint32_t scope = 0);
  // A backward pass begins, and with it a phase: what forward passes made and still lives are activations.
  void begin_backward();

  // From now on; "" is none.
  void begin_phase(std::string name);

  // To be set before a model has this ledger. Called for every block, before the model takes its lock.
  void set_line_source(LineSource source);
  const LineSource& line_source() const {
    return line_source_;
  }

  std::vector<LedgerRecord> records() const;
  std::vector<std::string> phases() const;

  // Bytes of `device` by owner after each event; those that share an owner and a phase with their neighbours and are no
  // peak may be left out, down to about `points` of them.
  std::vector<TimelinePoint> timeline(c10::Device device, size_t points) const;
  // The event after which `device` had most allocated, and how much that was.
  std::pair<int64_t, int64_t> peak(c10::Device device) const;
  // Devices with records.
  std::vector<c10::Device> devices() const;

 private:
  mutable std::mutex mutex_;
  std::vector<LedgerRecord> records_;
  std::vector<int64_t> events_;  // the record that was born (its number), or died (its complement)
  ska::flat_hash_map<const void*, uint32_t> alive_;
  std::vector<std::string> phases_{""};
  LineSource line_source_;
};

// What this thread's allocations are made for.
struct LedgerContext {
  Activity activity = Activity::kOutside;
  uint32_t scope = 0;
  uint32_t line = 0;
};
LedgerContext& ledger_context();

}  // namespace torchfake::memory
