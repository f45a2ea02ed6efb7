// Memory of claimed cards.
#include <torchfake/devices/card_memory.h>

#include <c10/util/Exception.h>

#include <cstdio>
#include <string>

namespace torchfake {

namespace {

int64_t rounded(size_t nbytes) {
  constexpr size_t kBlock = 512;
  return static_cast<int64_t>((nbytes + kBlock - 1) / kBlock * kBlock);
}

// As PyTorch writes sizes in its messages.
std::string format_size(int64_t bytes) {
  std::array<char, 64> text{};
  const auto size = static_cast<double>(bytes);
  if (bytes <= 1024) {
    std::snprintf(text.data(), text.size(), "%lld bytes", static_cast<long long>(bytes));
  } else if (bytes <= 1048576) {
    std::snprintf(text.data(), text.size(), "%.2f KiB", size / 1024.0);
  } else if (bytes <= 1073741824) {
    std::snprintf(text.data(), text.size(), "%.2f MiB", size / 1048576.0);
  } else {
    std::snprintf(text.data(), text.size(), "%.2f GiB", size / 1073741824.0);
  }
  return text.data();
}

}  // namespace

CardMemory::CardMemory(c10::DeviceType type, std::vector<int64_t> capacities, int64_t context)
    : type_(type), capacities_(std::move(capacities)), context_(context) {}

int64_t CardMemory::allocated(c10::DeviceIndex index) const {
  return card(index).allocated.load(std::memory_order_relaxed);
}

int64_t CardMemory::peak(c10::DeviceIndex index) const {
  return card(index).peak.load(std::memory_order_relaxed);
}

int64_t CardMemory::allocations(c10::DeviceIndex index) const {
  return card(index).allocations.load(std::memory_order_relaxed);
}

int64_t CardMemory::live(c10::DeviceIndex index) const {
  return card(index).live.load(std::memory_order_relaxed);
}

void CardMemory::reset_peak(c10::DeviceIndex index) {
  Card& card = this->card(index);
  card.peak.store(card.allocated.load(std::memory_order_relaxed), std::memory_order_relaxed);
}

void CardMemory::add(c10::Device device, int64_t nbytes, int64_t asked) {
  const auto index = static_cast<size_t>(static_cast<uint8_t>(device.index()));
  Card& card = this->card(device.index());
  const int64_t now = card.allocated.fetch_add(nbytes, std::memory_order_relaxed) + nbytes;
  if (index < capacities_.size() && now > capacities_[index] - context_ && nbytes > 0) {
    card.allocated.fetch_sub(nbytes, std::memory_order_relaxed);
    const int64_t capacity = capacities_[index];
    const int64_t used = now - nbytes;
    TORCH_CHECK_WITH(
        OutOfMemoryError,
        false,
        "CUDA out of memory. Tried to allocate ",
        format_size(asked),
        ". GPU ",
        index,
        " has a total capacity of ",
        format_size(capacity),
        " of which ",
        format_size(std::max<int64_t>(capacity - context_ - used, 0)),
        " is free. Including non-PyTorch memory, this process has ",
        format_size(context_ + used),
        " memory in use. Of the allocated memory ",
        format_size(used),
        " is allocated by PyTorch, and ",
        format_size(0),
        " is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
        "PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory "
        "Management  (https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-alloc-"
        "conf)");
  }
  int64_t peak = card.peak.load(std::memory_order_relaxed);
  while (now > peak && !card.peak.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
  }
}

void CardMemory::on_alloc(const Allocation& allocation) {
  if (allocation.device.type() != type_ || allocation.nbytes == 0) {
    return;
  }
  add(allocation.device, rounded(allocation.nbytes), static_cast<int64_t>(allocation.nbytes));
  Card& card = this->card(allocation.device.index());
  if (allocation.id == nullptr) {  // for the time of a kernel
    card.allocated.fetch_sub(rounded(allocation.nbytes), std::memory_order_relaxed);
    return;
  }
  card.allocations.fetch_add(1, std::memory_order_relaxed);
  card.live.fetch_add(1, std::memory_order_relaxed);
}

void CardMemory::on_resize(const Allocation& allocation, size_t old_nbytes) {
  if (allocation.device.type() != type_) {
    return;
  }
  add(allocation.device, rounded(allocation.nbytes) - rounded(old_nbytes), static_cast<int64_t>(allocation.nbytes));
  Card& card = this->card(allocation.device.index());
  const int64_t change = static_cast<int64_t>(allocation.nbytes > 0) - static_cast<int64_t>(old_nbytes > 0);
  card.live.fetch_add(change, std::memory_order_relaxed);
}

void CardMemory::on_free(const void* id, c10::Device device, size_t nbytes) noexcept {
  if (device.type() != type_ || nbytes == 0 || id == nullptr) {
    return;  // the last: what a kernel takes was given back as it was taken
  }
  Card& card = this->card(device.index());
  card.allocated.fetch_sub(rounded(nbytes), std::memory_order_relaxed);
  card.live.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace torchfake
