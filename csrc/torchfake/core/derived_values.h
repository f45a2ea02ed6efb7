// The values of a call's outputs, stored with its outcome. See Note [Constants].
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/core/StorageImpl.h>

#include <torchfake/core/value_range.h>

#include <array>
#include <atomic>
#include <optional>
#include <vector>

namespace torchfake {

struct DerivedValues final : c10::intrusive_ptr_target {
  // What is known of one output: its values, their bounds, or neither.
  struct Output {
    c10::intrusive_ptr<c10::StorageImpl> bytes;
    std::optional<ValueRange> range;
    c10::ScalarType range_dtype = c10::ScalarType::Undefined;
  };

  std::array<Output, 2> outputs;  // further outputs have neither
  // What they were derived from; empty if the key determines them.
  std::vector<char> sources;
  // The options of the mode that the derivation depends on.
  int64_t limit = 0;
  bool with_ranges = false;
  // The values of the same outcome for other sources; owned, set once.
  mutable std::atomic<const DerivedValues*> next{nullptr};

  ~DerivedValues() override {
    release(next.load(std::memory_order_relaxed));
  }
  static void release(const DerivedValues* owned) {
    if (owned != nullptr) {
      c10::intrusive_ptr<DerivedValues>::reclaim(const_cast<DerivedValues*>(owned));
    }
  }

  bool same_origin_as(const DerivedValues& other) const {
    return sources == other.sources && limit == other.limit && with_ranges == other.with_ranges;
  }

  size_t nbytes() const {
    size_t sum = sizeof(DerivedValues) + sources.capacity();
    for (const Output& output : outputs) {
      sum += output.bytes ? output.bytes->nbytes() : 0;
    }
    return sum;
  }
};

}  // namespace torchfake
