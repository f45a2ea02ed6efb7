// Memory for objects that are created and dropped with every operator call: fakes and their storages.
#pragma once

#include <cstddef>

namespace torchfake {

// Note [Recycled memory]
// malloc and free of a tensor and its storage cost as much as the rest of a cache hit. A class that inherits from
// Recycled takes its memory from a thread-local list that holds a few of the most recently dropped blocks of that
// class. An object may die on another thread than it was created on: its block then joins that thread's list, and
// whatever a list cannot hold goes back to the heap. A thread that ends gives its list back.
// With the address sanitizer the lists stay empty, so that a use after free is still detected; likewise with the thread
// sanitizer, which would take two objects at the same address for one.
namespace recycled {

inline constexpr size_t kMost = 64;  // blocks in a list

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kEnabled = false;
#else
inline constexpr bool kEnabled = true;
#endif

struct Block {
  Block* next;
};

struct List {
  Block* first = nullptr;
  size_t room = 0;  // how many more it may hold; none until the thread has registered their release
};

// Called if a list has no room. Registers its release at the end of the thread, unless that has begun. Returns whether
// there is room now.
bool make_room(List& list);

}  // namespace recycled

template <typename Class>
class Recycled {
 public:
  // The class must be final: blocks of one size.
  static void* operator new(size_t size) {
    recycled::List& list = t_list;
    if (recycled::Block* block = list.first) {
      list.first = block->next;
      ++list.room;
      return block;
    }
    return ::operator new(size);
  }
  static void* operator new(size_t /*size*/, void* place) noexcept {
    return place;
  }
  static void operator delete(void* memory) noexcept {
    recycled::List& list = t_list;
    if (!recycled::kEnabled || (list.room == 0 && (list.first != nullptr || !recycled::make_room(list)))) {
      ::operator delete(memory);
      return;
    }
    auto* block = static_cast<recycled::Block*>(memory);
    block->next = list.first;
    list.first = block;
    --list.room;
  }

 private:
  __attribute__((tls_model("initial-exec"))) static inline thread_local recycled::List t_list;
};

}  // namespace torchfake
