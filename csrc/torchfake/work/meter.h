// Counts the work of a mode's operators. A recorder, so that programs that do not request it pay nothing.
#pragma once

#include <torchfake/core/fake_mode.h>
#include <torchfake/memory/scopes.h>
#include <torchfake/work/work.h>

#include <c10/util/flat_hash_map.h>

#include <mutex>
#include <vector>

namespace torchfake::work {

// All calls with equal work by one operator, in one module and one activity. Views and other calls without a kernel have
// rows too: they take time on the host.
struct WorkRow {
  std::string_view op;  // lives as long as the process
  uint32_t scope = 0;  // see memory/scopes.h
  uint8_t activity = 0;  // memory::Activity
  bool records_gradient = false;  // whether autograd makes a node for the call
  uint32_t tensors = 0;  // among the arguments
  Work work;
  int64_t calls = 0;
};

// Thread-safe.
class WorkMeter final : public OpRecorder {
 public:
  void on_op(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments, c10::ArrayRef<c10::IValue> outputs)
      override;

  // Ordered by the first call of each row.
  std::vector<WorkRow> rows() const;
  // The number of calls whose work was not counted: those with symbolic sizes or with layouts other than strided.
  int64_t uncounted() const;

 private:
  mutable std::mutex mutex_;
  std::vector<WorkRow> rows_;
  ska::flat_hash_map<uint64_t, std::vector<uint32_t>> rows_by_hash_;
  memory::ScopesOfNodes scopes_of_nodes_;
  int64_t uncounted_ = 0;
};

}  // namespace torchfake::work
