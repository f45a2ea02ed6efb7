// Where the elements of a tensor lie: sizes, strides and offset, and the size of the storage in bytes.
#pragma once

#include <c10/core/TensorImpl.h>
#include <c10/util/SmallVector.h>

namespace torchfake {

// Refers to a tensor's geometry without owning it.
struct GeometryRef {
  c10::IntArrayRef sizes;
  c10::IntArrayRef strides;
  int64_t storage_offset = 0;
};

// Owns its data.
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

// Including everything PyTorch derives from it, so that it can be copied into a tensor.
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
  // Compares the numbers: SizesAndStrides also compares unused inline storage.
  bool operator==(const FakeGeometry& other) const {
    return sizes() == other.sizes() && strides() == other.strides() && storage_offset == other.storage_offset;
  }
};

}  // namespace torchfake
