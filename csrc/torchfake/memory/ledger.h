// The owners of a device's memory: every allocation with its owner, operator, module and phase, in order.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/flat_hash_map.h>

#include <torchfake/memory/scopes.h>

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
  kActivations,  // created by a forward pass, in a module or from tensors that require gradients (a loss), and still alive
  // when a backward pass begins
  kInputs,  // created outside of modules, backward passes and optimizers
  kTemporaries,
  kWorkspaces,
  kCommunication,  // sent or received by collectives, unless one of the above
};
inline constexpr size_t kOwners = 9;
std::string_view to_string(Owner owner);

// What a thread is currently running, as far as it has declared this.
enum class Activity : uint8_t { kOutside, kForward, kBackward, kOptimizer };

// A block, from allocation to release.
struct LedgerRecord {
  const void* storage = nullptr;  // null for temporaries and workspaces
  size_t nbytes = 0;  // the size of the block
  size_t requested = 0;
  uint64_t address = 0;
  int64_t born = 0;  // the event number
  int64_t died = -1;  // -1 while alive
  std::string_view op;
  uint32_t scope = 0;  // that of scopes.h
  uint32_t phase = 0;
  uint32_t line = 0;  // the line, numbered by the line source; 0 if unknown
  c10::Device device{c10::kCPU};
  Activity activity = Activity::kOutside;
  Owner owner = Owner::kTemporaries;
  bool is_claimed = false;  // whether the owner was set explicitly
  bool is_of_forward = false;  // created by a forward pass whose gradients are recorded
};

struct TimelinePoint {
  int64_t event = 0;
  uint32_t phase = 0;
  std::array<int64_t, kOwners> bytes{};  // by owner

  int64_t total() const;
};

// Returns the number of the program line that this thread is running; 0 if unknown.
using LineSource = std::function<uint32_t()>;

// Thread-safe. Records blocks in the order in which a model takes and frees them.
class Ledger {
 public:
  // Returns a number to end it with. In a backward pass, a record without a scope gets that of the forward call whose
  // node runs.
  uint32_t birth(LedgerRecord record);
  void death(uint32_t record) noexcept;

  // Sets the owner and the module of a storage's block; 0 keeps the module that created it. Does nothing if the storage
  // has no live block. Throws IndexError for an unknown scope.
  void claim(const void* storage, Owner owner, uint32_t scope = 0);
  // The storage has been sent or received: its block belongs to communication unless it is claimed, or becomes an
  // activation when a backward pass begins.
  void note_collective(const void* storage) noexcept;
  // Starts a backward pass and a phase for it: tensors created by forward passes and still alive become activations.
  void begin_backward();

  // Claims parameters, each for the module with the number in `scopes`, and their gradients: at once, and whenever a
  // backward pass ends. Keeps no tensor alive. Throws ValueError if the lists differ in length.
  void claim_parameters(const std::vector<at::Tensor>& parameters, const std::vector<uint32_t>& scopes);
  void claim_gradients();

  // From now on; "" is none.
  void begin_phase(std::string name);

  // Must be called before a model uses this ledger. The source is called for every block, before the model takes its
  // lock.
  void set_line_source(LineSource source);
  const LineSource& line_source() const {
    return line_source_;
  }

  std::vector<LedgerRecord> records() const;
  // The blocks of `device` that are alive after an event.
  std::vector<LedgerRecord> records_at(c10::Device device, int64_t event) const;
  std::vector<std::string> phases() const;

  // Bytes of `device` by owner after each event. More than `points` events are reduced to the highest of each of
  // `points` intervals, and the last; 0 keeps all.
  std::vector<TimelinePoint> timeline(c10::Device device, size_t points) const;
  // The event at which the allocated bytes of `device` peaked, and the peak.
  std::pair<int64_t, int64_t> peak(c10::Device device) const;
  // Devices with records.
  std::vector<c10::Device> devices() const;

 private:
  struct Parameter {
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;
    uint32_t scope = 0;
  };

  mutable std::mutex mutex_;
  std::vector<LedgerRecord> records_;
  std::vector<int64_t> events_;  // the number of the record that was created, or the complement of the one that ended
  ska::flat_hash_map<const void*, uint32_t> alive_;
  ska::flat_hash_map<c10::TensorImpl*, Parameter> parameters_;
  std::vector<std::string> phases_{""};
  ScopesOfNodes scopes_of_nodes_;
  LineSource line_source_;
};

// Claims the storage of a tensor; does nothing for tensors that are undefined or not fake.
void claim_tensor(Ledger& ledger, const at::Tensor& tensor, Owner owner, uint32_t scope);

// The current context of this thread's allocations.
struct LedgerContext {
  Activity activity = Activity::kOutside;
  uint32_t scope = 0;
  uint32_t line = 0;
  bool takes_gradients = false;  // whether an argument of the running operator requires gradients
};
LedgerContext& ledger_context();

}  // namespace torchfake::memory
