// Replaces the tensors in an argument or a result.
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>

namespace torchfake {

// A tensor mapped, a copy of a list with its tensors mapped, or the value itself.
template <typename Map>
c10::IValue map_tensors(const c10::IValue& value, const Map& map) {
  if (value.isTensor()) {
    return map(value.toTensor());
  }
  if (!value.isList()) {
    return value;
  }
  c10::impl::GenericList list = value.toList().copy();
  for (size_t i = 0; i < list.size(); ++i) {
    const c10::IValue& element = list.get(i);
    if (element.isTensor()) {
      list.set(i, map(element.toTensor()));
    }
  }
  return list;
}

}  // namespace torchfake
