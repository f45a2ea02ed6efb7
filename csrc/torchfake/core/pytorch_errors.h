// PyTorch's errors that have no type of their own, recognised by their text.
#pragma once

#include <c10/util/Exception.h>

#include <string_view>

namespace torchfake {

inline bool says(const c10::Error& error, std::string_view text) {
  return std::string_view(error.what_without_backtrace()).find(text) != std::string_view::npos;
}

// The CPU allocator ran out of memory.
inline bool is_out_of_memory(const c10::Error& error) {
  return says(error, "can't allocate memory");
}

// A typed data pointer was requested from a tensor that has no data.
inline bool is_data_access(const c10::Error& error) {
  return says(error, "its data is not allocated yet");
}

// A kernel was not compiled for a dtype.
inline bool refuses_dtype(const c10::Error& error) {
  return says(error, "\" not implemented for '");
}

}  // namespace torchfake
