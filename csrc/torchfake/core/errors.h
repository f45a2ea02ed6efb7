// The errors a user of fake tensors can meet. Each names the operator, what was expected and got, and the way out.
#pragma once

#include <c10/util/Exception.h>

#include <string>

namespace torchfake {

enum class ErrorKind : uint8_t {
  kDataAccess,  // data was asked of a fake: data_ptr(), numpy(), tolist()
  kDataDependentOutput,  // the result of an operator is a value: item(), equal()
  kDynamicOutputShape,  // the shape of a result depends on values: nonzero(), unique()
  kUnsupportedOperator,  // no kernel, rule or decomposition can answer for this operator
  kUnsupportedFakeTensor,  // a tensor that cannot be faked (sparse, quantized, ...)
  kDeviceMismatch,  // two inputs claim different devices
  kRealTensor,  // a real tensor stands among fakes, or a fake among real ones
  kMetadataMismatch,  // the cross-check found two answers
  kMixedModes,  // fakes of two modes in one operator, or two kinds of modes at once
  kDeviceNotFaked,  // a device this machine lacks, in a mode that does not fake it
  kUnsupportedMutationAliasing,  // an operator writes to an argument, or returns a view of one, and does not say so
};

// Base of all of them. `op()` is the operator's name ("aten::nonzero"), empty where no operator is involved.
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

// Throws the error of that kind, as its own type. `raise` puts the operator's name before the detail.
[[noreturn]] void throw_error(ErrorKind kind, const std::string& op, const std::string& message);
[[noreturn]] void raise(ErrorKind kind, const std::string& op, const std::string& detail);

// A language front may turn these errors into its own: the hook is called with every error that is about to leave the
// engine and throws something else, or returns to let the error pass. Set once, at load.
using ErrorHook = void (*)(const FakeTensorError&);
void set_error_hook(ErrorHook hook);

// Runs `body`; an error of ours that leaves it goes through the hook. Every way out of the engine is inside one. Calls
// that the engine makes come back to it, and so have boundaries inside of boundaries. Between two of them errors keep
// their type, for the kernels of the outer call tell them apart; the outermost one shows them to the hook, and so does an
// inner one where Python code, which would lose the type, stands in between.
void show_to_hook(const FakeTensorError& error);

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
