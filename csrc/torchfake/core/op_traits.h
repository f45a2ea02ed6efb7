// Facts about an operator: what its schema and tags say, in addition to the table of operators (OperatorFacts).
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/SmallVector.h>

#include <torchfake/core/operator_facts.h>

#include <atomic>
#include <string>
#include <string_view>

namespace torchfake {

enum class ArgKind : uint8_t {
  kOther,
  kTensor,  // Tensor or Tensor?
  kTensorList,  // Tensor[] or Tensor?[]
  kDevice,  // Device or Device?
  kLayout,
  kPinMemory,
};

struct ArgTraits {
  ArgKind kind = ArgKind::kOther;
  bool is_written = false;  // Tensor(a!)
  bool is_out = false;  // keyword-only and written: an out= argument, whose old contents are not read
  bool is_statistic = false;  // may be written although the schema does not say so
  bool is_unread = false;  // the CPU's equivalent does not need its values
  bool scales_only = false;  // a factor: the outcome's metadata depends on its type, but not on its value
  bool is_received = false;  // a collective writes what other ranks send, although the schema does not say so
};

struct OpTraits : OperatorFacts {
  // The facts about the current definition of `op`; a redefined operator gets new ones. Thread-safe; the reference
  // stays valid for the life of the process.
  static const OpTraits& of(const c10::OperatorHandle& op);

  std::string name;  // "aten::add"
  std::string overload;  // "Tensor"
  c10::SmallVector<ArgTraits, 8> args;
  size_t num_returns = 0;
  bool takes_tensors = false;
  bool returns_tensors = false;
  bool mutates = false;
  bool has_out = false;
  bool is_view = false;  // some output may be a view of an input
  bool is_random = false;
  bool data_dependent = false;  // a returned value depends on data
  bool dynamic_shape = false;  // the shape of an output depends on data
  bool is_builtin = false;  // defined by PyTorch
  bool is_aten = false;
  bool is_collective = false;  // exchanges values with other ranks, which are unknown here
  bool is_composite = false;  // had only a decomposition when it was first called
  bool lacks_cpu = false;  // has kernels for other backends only
  bool is_pointwise = false;  // each output element depends on the input elements at the same position
  bool is_foreach = false;  // operates on lists, element by element
  bool updates_statistics = false;  // writes arguments in training although the schema does not say so
  bool changes_geometry = false;  // may change sizes, strides, offset or storage size of an argument
  bool reads_storage = false;  // the outcome depends on where in their storage the arguments lie, and on its size
  bool is_keyed = false;  // a key of the shape cache determines its outcome
  bool is_factory_like = false;  // uses a tensor only for its shape: zeros_like, new_empty
  int device_arg = -1;  // index of the device argument
  ValueSource values = ValueSource::kInputs;
  // The settings that kernels of this operator have read so far; the set only grows. See Note [Kernel environment].
  mutable std::atomic<uint32_t> settings{0};

  // "add" for "aten::add".
  std::string_view base_name() const {
    return std::string_view(name).substr(name.find("::") + 2);
  }
  std::string qualified_name() const {
    return overload.empty() ? name : name + "." + overload;
  }

 private:
  friend class TraitsTable;
  OpTraits() = default;
  explicit OpTraits(const c10::OperatorHandle& op);
  void read_arguments(const c10::FunctionSchema& schema);
  void read_returns(const c10::FunctionSchema& schema);
  void read_tags(const c10::OperatorHandle& op);
  void read_collective(const c10::FunctionSchema& schema);

  const c10::OperatorName* registration_ = nullptr;  // of the operator described: see Note [Table of traits]
};

}  // namespace torchfake
