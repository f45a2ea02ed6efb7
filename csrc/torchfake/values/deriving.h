// Constant propagation: the values of outputs, stored with the outcome in the cache.
#pragma once

#include <torchfake/core/call.h>
#include <torchfake/core/derived_values.h>

namespace torchfake {

// Note [Constants]
// zeros, full, arange and zeros_like create small tensors with known values; fill_ and zero_ write known values to a
// tensor (Note [Known values]). The values depend on the non-tensor arguments, which are part of the cache key. The
// real operator therefore runs on the first calls only, and its result is stored with the entry. A later hit gets its
// own copy, which may be written to. At most a few kilobytes are stored: running the real operator is about as fast as
// copying more.
//
// Other operators compute values from their inputs, or bounds of them (Note [Value ranges]), or check known indices
// and compute nothing. Programs repeat the same computations:
//
//   hidden = hidden * (1 - padding_mask)   # in every layer
//   row = table[logits.argmax(-1)]         # bounds that follow from a size
//
// What the first hits compute is therefore stored too, together with its sources: what is known of the inputs, and the
// numbers that are not part of the key. A later hit with the same sources gets a copy, and nothing else is done. A few
// sources are kept for each key, the first ones: numbers that always change, such as counters of steps, never match.
// Sources are compared rather than tensors: a program may write to known values through a pointer (numpy) without the
// engine noticing.

// Everything that a call derives values from and that its key does not contain: what is known of each tensor, which of
// them are the same, and numbers. Returns false for what is costly to compare: repeated and partly known values, and
// more than a few kilobytes.
class Sources {
 public:
  bool read(const Call& call);

  bool are_those_of(const DerivedValues& derived) const;

  std::vector<char> copy() const {
    return {bytes_.begin(), bytes_.end()};
  }

 private:
  c10::SmallVector<char, 256> bytes_;
};

// Whether these are the sources of `derived`, without collecting them first. `factors`: the bits of the numbers whose
// values are not part of the key.
bool has_sources(const DerivedValues& derived, c10::ArrayRef<TensorArg> tensors, c10::ArrayRef<uint64_t> factors);

// Whether a mode with these options derives the same from the same sources.
bool fits_mode(const DerivedValues& derived, const FakeModeOptions& options);

// Whether the values of the single output of a call depend only on its key.
bool follows_from_key(const Call& call);

// Whether the values of an operator's outputs depend only on its key and sources. False for products, whose rounding
// depends on settings outside their key.
bool follows_from_sources(const OpTraits& traits);

// Called once the values of a call's outputs, all of them fresh, are known as far as they can be. Null if they are not
// worth storing. `must_be_known`: values have been computed for the outputs, so bounds are not sufficient.
c10::intrusive_ptr<DerivedValues> derived_values(const Call& call, const ModeState& mode, bool must_be_known);

// Gives a fresh output its values.
void give_values(const FakeTensorImpl& output, const DerivedValues::Output& values);

// Whether the fake fills its storage and the storage is as large as `bytes`, so that it can be overwritten with them.
bool is_covered_by(const FakeTensorImpl& fake, const c10::StorageImpl& bytes);

// Overwrites the values of a fake for which is_covered_by() holds. Known bytes keep their address: callers may hold a
// pointer to them.
void overwrite_with(const FakeTensorImpl& fake, const c10::StorageImpl& bytes);

}  // namespace torchfake
