// The dtypes that the real kernels of a device refuse, alone and in combination.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include <torchfake/core/operator_facts.h>

#include <array>
#include <initializer_list>
#include <vector>

namespace c10 {
class OperatorHandle;
struct FunctionSchema;
}  // namespace c10

namespace torchfake {

// A set of dtypes, one bit each.
using DtypeSet = uint64_t;

constexpr DtypeSet dtypes(std::initializer_list<c10::ScalarType> members) {
  DtypeSet set = 0;
  for (const c10::ScalarType member : members) {
    set |= DtypeSet{1} << static_cast<int>(member);
  }
  return set;
}

struct RefusedAlone {
  const char* kernel;  // as the real kernel names itself
  DtypeSet dtypes;
};

struct RefusedBeside {
  const char* argument;  // the argument that differs from the first; "" if all others do
  c10::ScalarType first;  // Undefined for any: the two must agree
  DtypeSet dtypes;
};

// The record of an operator called with exactly these of its recorded tensor arguments.
struct RefusedDtypes {
  const char* op;
  const char* arguments;  // "self,mat2"
  c10::ArrayRef<RefusedAlone> alone;
  c10::ArrayRef<RefusedBeside> beside;
};

// The record of a device, sorted by operator. Generated at build time.
c10::ArrayRef<RefusedDtypes> refused_dtypes(c10::DeviceType device);

// The PyTorch release from which a device's record was made, for dtypes refused alone or in combination:
// "2.11.0+cu130". Empty without a record. Generated at build time.
const char* refused_dtypes_release(c10::DeviceType device, bool beside);

// Note [Refused dtypes]
// A kernel is compiled for some dtypes and may require several arguments to agree. Meta kernels check little of this:
// PyTorch's accept a product of float and bfloat16, which no device supports. The behaviour of the real kernels is
// recorded, operator by operator, by tools/record_refused_dtypes.py: cmake/records. A call is refused if the record
// says that every such call was refused: with the same arguments given, all of one dtype, or one of them (or all but
// the first) of another. If the record does not cover a call, it is not refused: empty tensors, whose dtype is ignored
// by most kernels other than the pointwise ones; numbers and scalars, which have their own promotion rules; calls that
// specify the dtype to compute in, or that omit the method if the records name one (div without a rounding mode); a
// number that promotes the tensors (sub of uint16 and 1.5).
// An out= form without its own record uses that of the plain form, if its out= arguments have the dtype in which it
// computes, or are integers next to a result of another kind (indices and pivots).
//
// A record comes from one release of PyTorch, which the message names; other releases have more kernels. Dtypes that
// the installed release's own dtype tables (OpInfo) list as supported are removed from it at build time:
// tools/record_accepted_dtypes.py.
class DtypeRefusals final : public DtypeCheck {
 public:
  // The refusals of an operator, or null. The pointer lives as long as the process.
  static const DtypeRefusals* of(const c10::OperatorHandle& handle);

  // Throws if the kernels of `device` would refuse the dtypes of the arguments.
  void check(const Call& call, c10::Device device) const override;

 private:
  class Operands;
  struct Row {
    std::vector<size_t> arguments;
    const RefusedDtypes* record;
  };

  DtypeRefusals() = default;
  void add(const RefusedDtypes& record, const c10::FunctionSchema& schema, std::vector<Row>& rows);
  bool can_speak(const Call& call) const;
  static const Row* find_row(const std::vector<Row>& rows, const Operands& operands);
  bool covers(const Call& call, const Operands& operands, c10::ScalarType first) const;
  static void check_combination(
      const Call& call,
      const Operands& operands,
      const Row& row,
      size_t differing,
      bool all_others,
      c10::Device device);

  std::vector<Row> cpu_;
  std::vector<Row> cuda_;
  std::vector<size_t> dtype_args_;
  std::vector<size_t> method_args_;
  std::vector<size_t> number_args_;  // passed instead of a tensor: they take part in type promotion
  std::vector<size_t> outs_;  // of a form without its own records
  bool looks_at_empty_ = false;
};

}  // namespace torchfake
