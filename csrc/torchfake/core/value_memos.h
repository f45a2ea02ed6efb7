// What operators that look at values found in a fake.
#pragma once

#include <c10/core/Scalar.h>

#include <array>
#include <optional>

namespace torchfake {

// One number for each kind of question. It counts while the tensor's version and the epoch of its mode are those of
// the answer: a write to the tensor, and a new trace with it, end it.
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
