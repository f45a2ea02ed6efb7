// The errors that users of fake tensors can get. Each names the operator, what was expected and found, and a way out.
#pragma once

#include <c10/util/Exception.h>

#include <string>

namespace torchfake {

enum class ErrorKind : uint8_t {
  kDataAccess,  // data of a fake was requested: data_ptr(), numpy(), tolist()
  kDataDependentOutput,  // an operator's result is a value: item(), equal()
  kDynamicOutputShape,  // the shape of a result depends on values: nonzero(), unique()
  kUnsupportedOperator,  // no kernel, rule or decomposition handles this operator
  kUnsupportedFakeTensor,  // a tensor that cannot be faked (sparse, quantized, ...)
  kDeviceMismatch,  // two inputs claim different devices
  kRealTensor,  // a real tensor among fakes, or a fake among real tensors
  kMetadataMismatch,  // cross-checking found a difference
  kMixedModes,  // fakes of two modes in one operator, or two kinds of modes at once
  kDeviceNotFaked,  // a device this machine lacks, in a mode that does not fake absent devices
  kUnsupportedMutationAliasing,  // an operator mutates an argument, or returns a view of one, without declaring it
};

// The base class. `op()` is the operator's name ("aten::nonzero"), or empty if no operator is involved.
class FakeTensorError : public c10::Error {
 public:
  FakeTensorError(ErrorKind kind, std::string op, const std::string& message);

  ErrorKind kind() const noexcept {
    return kind_;
  }
  const std::string& op() const noexcept {
    return op_;
  }

 private:
  ErrorKind kind_;
  std::string op_;
};

template <ErrorKind kKind>
class TypedError final : public FakeTensorError {
 public:
  TypedError(std::string op, const std::string& message) : FakeTensorError(kKind, std::move(op), message) {}
};

using DataAccessError = TypedError<ErrorKind::kDataAccess>;
using DataDependentOutputException = TypedError<ErrorKind::kDataDependentOutput>;
using DynamicOutputShapeException = TypedError<ErrorKind::kDynamicOutputShape>;
using UnsupportedOperatorException = TypedError<ErrorKind::kUnsupportedOperator>;
using UnsupportedFakeTensorException = TypedError<ErrorKind::kUnsupportedFakeTensor>;
using DeviceMismatchError = TypedError<ErrorKind::kDeviceMismatch>;
using RealTensorError = TypedError<ErrorKind::kRealTensor>;
using MetadataMismatchError = TypedError<ErrorKind::kMetadataMismatch>;
using MixedModesError = TypedError<ErrorKind::kMixedModes>;
using DeviceNotFakedError = TypedError<ErrorKind::kDeviceNotFaked>;
using UnsupportedMutationAliasingException = TypedError<ErrorKind::kUnsupportedMutationAliasing>;

// Throws an error of the given kind, with its own type. `raise` prepends the operator's name to the detail.
[[noreturn]] void throw_error(ErrorKind kind, const std::string& op, const std::string& message);
[[noreturn]] void raise(ErrorKind kind, const std::string& op, const std::string& detail);

// A language binding may translate these errors: the hook is called with every error that is about to leave the engine,
// and either throws another or returns to let it pass. Set once, at load time.
using ErrorHook = void (*)(const FakeTensorError&);
void set_error_hook(ErrorHook hook);

// Passes an error that leaves the engine to the hook, unless an enclosing boundary will do so.
void show_to_hook(const FakeTensorError& error);

// Runs `body`; an error of ours that leaves it is passed to the hook. Every exit of the engine is inside such a
// boundary. The engine's own calls come back to it, so boundaries nest. Between two of them errors keep their type,
// because kernels of the outer call distinguish them. The outermost boundary calls the hook, and so does an inner one
// if Python code, which would lose the type, runs in between.
template <typename Body>
decltype(auto) at_the_boundary(const Body& body) {
  try {
    return body();
  } catch (const FakeTensorError& error) {
    show_to_hook(error);
    throw;
  }
}

}  // namespace torchfake
