// Memorised results of operators that read values of a fake.
#pragma once

#include <c10/core/Scalar.h>

#include <array>
#include <optional>

namespace torchfake {

// One number per kind of result, valid while the tensor's version and its mode's epoch are unchanged: a write to the
// tensor or a new trace invalidates it.
class ValueMemos {
 public:
  enum Kind : uint8_t { kNonzero, kItem, kUnique, kUniqueConsecutive, kCount };

  void set(Kind kind, c10::Scalar value, uint32_t version, int64_t epoch) {
    memos_[kind] = Memo{std::move(value), version, epoch};
  }

  std::optional<c10::Scalar> get(Kind kind, uint32_t version, int64_t epoch) const {
    const std::optional<Memo>& memo = memos_[kind];
    return memo && memo->version == version && memo->epoch == epoch ? std::optional(memo->value) : std::nullopt;
  }

 private:
  struct Memo {
    c10::Scalar value;
    uint32_t version;
    int64_t epoch;
  };
  std::array<std::optional<Memo>, kCount> memos_;
};

}  // namespace torchfake
