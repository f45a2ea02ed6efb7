// The memory of a card below the caching allocator.
#include <torchfake/memory/device_memory.h>

#include <c10/util/Exception.h>

#include <utility>

namespace torchfake::memory {

namespace {

constexpr uint64_t kBottom = 0x7e0000000000;
constexpr uint64_t kRegion = uint64_t{32} << 20;

}  // namespace

CardMemory::CardMemory(size_t total, size_t taken) : total_(total), taken_(taken), next_(kBottom) {}

std::optional<uint64_t> CardMemory::find_room(uint64_t begin, const Region& region, size_t nbytes) {
  uint64_t address = begin;
  for (const auto& [used, size] : region.ranges) {
    if (used >= address + nbytes) {
      break;
    }
    address = used + size;
  }
  return address + nbytes <= begin + region.size ? std::optional(address) : std::nullopt;
}

uint64_t CardMemory::reserve_addresses(size_t nbytes) {
  for (auto& [begin, region] : regions_) {
    if (const auto address = find_room(begin, region, nbytes)) {
      region.ranges.emplace(*address, nbytes);
      return *address;
    }
  }
  const size_t size = (nbytes + kRegion - 1) / kRegion * kRegion;
  const uint64_t begin = std::exchange(next_, next_ + size);
  Region& region = regions_[begin];
  region.size = size;
  region.ranges.emplace(begin, nbytes);
  return begin;
}

std::optional<uint64_t> CardMemory::allocate(size_t nbytes) {
  if (nbytes > free_bytes() && !is_unlimited_) {
    return std::nullopt;
  }
  used_ += nbytes;
  return reserve_addresses(nbytes);
}

void CardMemory::free(uint64_t address, size_t nbytes) {
  used_ -= nbytes;
  free_addresses(address, nbytes);
}

void CardMemory::free_addresses(uint64_t address, size_t nbytes) {
  // Ordered downwards: the first region that begins at or below the address contains it.
  const auto found = regions_.lower_bound(address);
  TORCH_INTERNAL_ASSERT(found != regions_.end());
  const auto range = found->second.ranges.find(address);
  TORCH_INTERNAL_ASSERT(range != found->second.ranges.end() && range->second == nbytes);
  found->second.ranges.erase(range);
}

bool CardMemory::map(uint64_t /*address*/, size_t nbytes) {
  if (nbytes > free_bytes() && !is_unlimited_) {
    return false;
  }
  used_ += nbytes;
  return true;
}

void CardMemory::unmap(uint64_t /*address*/, size_t nbytes) {
  used_ -= nbytes;
}

}  // namespace torchfake::memory
