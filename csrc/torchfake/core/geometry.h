// Where the elements of a tensor lie: sizes, strides and offset in a storage of so many bytes.
#pragma once

#include <c10/core/TensorImpl.h>
#include <c10/util/SmallVector.h>

namespace torchfake {

// Of a tensor that somebody else keeps.
struct GeometryRef {
  c10::IntArrayRef sizes;
  c10::IntArrayRef strides;
  int64_t storage_offset = 0;
};

// Kept.
struct Geometry {
  c10::SmallVector<int64_t, 5> sizes;
  c10::SmallVector<int64_t, 5> strides;
  int64_t storage_offset = 0;
  size_t nbytes = 0;  // of the storage

  Geometry() = default;
  explicit Geometry(const c10::TensorImpl& tensor)
      : sizes(tensor.sizes().begin(), tensor.sizes().end()),
        strides(tensor.strides().begin(), tensor.strides().end()),
        storage_offset(tensor.storage_offset()),
        nbytes(tensor.has_storage() ? tensor.unsafe_storage().nbytes() : 0) {}

  bool operator==(const Geometry& other) const = default;
};

// With all that PyTorch works out from it, so that a tensor can be given it by copying.
struct FakeGeometry {
  c10::impl::SizesAndStrides sizes_and_strides;
  int64_t storage_offset = 0;
  int64_t numel = 0;
  bool is_contiguous = true;
  bool is_channels_last = false;
  bool is_channels_last_contiguous = false;
  bool is_channels_last_3d = false;
  bool is_channels_last_3d_contiguous = false;
  bool is_non_overlapping_and_dense = true;

  c10::IntArrayRef sizes() const {
    return sizes_and_strides.sizes_arrayref();
  }
  c10::IntArrayRef strides() const {
    return sizes_and_strides.strides_arrayref();
  }
  // By the numbers: SizesAndStrides compares what lies behind them too.
  bool operator==(const FakeGeometry& other) const {
    return sizes() == other.sizes() && strides() == other.strides() && storage_offset == other.storage_offset;
  }
};

}  // namespace torchfake
