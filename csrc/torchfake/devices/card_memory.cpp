// Memory of claimed cards.
#include <torchfake/devices/card_memory.h>

namespace torchfake {

void CardMemory::on_alloc(const Allocation& allocation) {
  DeviceCounts* card = counts()->of(allocation.device);
  if (card == nullptr || allocation.nbytes == 0) {
    return;
  }
  const int64_t nbytes = StorageCounts::rounded(allocation.nbytes);
  allocation.id == nullptr ? card->add_temporary(nbytes) : card->add(nbytes);
}

void CardMemory::on_resize(const Allocation& allocation, size_t old_nbytes) {
  if (DeviceCounts* card = counts()->of(allocation.device)) {
    card->resize(StorageCounts::rounded(old_nbytes), StorageCounts::rounded(allocation.nbytes));
  }
}

void CardMemory::on_free(const void* id, c10::Device device, size_t nbytes) noexcept {
  DeviceCounts* card = counts()->of(device);
  if (card == nullptr || nbytes == 0) {
    return;
  }
  id == nullptr ? card->add_temporary(-StorageCounts::rounded(nbytes)) : card->remove(StorageCounts::rounded(nbytes));
}

}  // namespace torchfake
