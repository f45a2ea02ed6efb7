// The memory of a card below the caching allocator: what cudaMalloc and the virtual memory functions return.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>

namespace torchfake::memory {

// Not thread-safe: covered by its allocator's lock.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;

  // cudaMalloc: the address of `nbytes`, or nothing if there is too little memory left.
  virtual std::optional<uint64_t> allocate(size_t nbytes) = 0;
  virtual void free(uint64_t address, size_t nbytes) = 0;

  // Address space without memory, and memory mapped into it, for expandable segments.
  virtual uint64_t reserve_addresses(size_t nbytes) = 0;
  virtual void free_addresses(uint64_t address, size_t nbytes) = 0;
  virtual bool map(uint64_t address, size_t nbytes) = 0;
  virtual void unmap(uint64_t address, size_t nbytes) = 0;

  virtual size_t total_bytes() const = 0;  // as in cudaDeviceProp::totalGlobalMem
  virtual size_t free_bytes() const = 0;  // as in cudaMemGetInfo
};

// A card with `total` bytes, of which the context and the libraries hold `taken`. Addresses are assigned as CUDA's
// driver does: in regions of a multiple of 32 MiB; the rest of a region is used for requests that fit. Each region lies
// above the previous one. A driver places them where the process has room, which differs between programs: most
// recordings of whole programs agree with upwards, those of bare allocations with downwards.
class CardMemory final : public DeviceMemory {
 public:
  explicit CardMemory(size_t total, size_t taken = 0);

  std::optional<uint64_t> allocate(size_t nbytes) override;
  void free(uint64_t address, size_t nbytes) override;
  uint64_t reserve_addresses(size_t nbytes) override;
  void free_addresses(uint64_t address, size_t nbytes) override;
  bool map(uint64_t address, size_t nbytes) override;
  void unmap(uint64_t address, size_t nbytes) override;
  size_t total_bytes() const override {
    return total_;
  }
  size_t free_bytes() const override {
    const size_t used = used_ + taken_;
    return used < total_ ? total_ - used : 0;
  }

  // Adds memory in use outside of the allocator: a library's handle.
  void take(size_t nbytes) {
    taken_ += nbytes;
  }
  // Whether requests beyond the card's size are granted.
  void set_unlimited(bool unlimited) {
    is_unlimited_ = unlimited;
  }

 private:
  struct Region {
    size_t size = 0;
    std::map<uint64_t, size_t> ranges;  // in use, by address
  };

  static std::optional<uint64_t> find_room(uint64_t begin, const Region& region, size_t nbytes);

  size_t total_;
  size_t taken_;
  size_t used_ = 0;
  bool is_unlimited_ = false;
  std::map<uint64_t, Region, std::greater<>> regions_;  // from the highest down
  uint64_t next_;
};

}  // namespace torchfake::memory
