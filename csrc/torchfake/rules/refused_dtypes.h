// Which dtypes the real kernels of a device refuse, alone and beside each other.
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

// A set of dtypes, a bit for each.
using DtypeSet = uint64_t;

constexpr DtypeSet dtypes(std::initializer_list<c10::ScalarType> members) {
  DtypeSet set = 0;
  for (const c10::ScalarType member : members) {
    set |= DtypeSet{1} << static_cast<int>(member);
  }
  return set;
}

struct RefusedAlone {
  const char* kernel;  // as the real one names itself
  DtypeSet dtypes;
};

struct RefusedBeside {
  const char* argument;  // the one that differs from the first; "" where all the others do
  c10::ScalarType first;  // Undefined for any: the two have to agree
  DtypeSet dtypes;
};

// What is known of an operator called with these tensors, and no others of the arguments that its record has.
struct RefusedDtypes {
  const char* op;
  const char* arguments;  // "self,mat2"
  c10::ArrayRef<RefusedAlone> alone;
  c10::ArrayRef<RefusedBeside> beside;
};

// The record of a device, in the order of operators. Generated when building.
c10::ArrayRef<RefusedDtypes> refused_dtypes(c10::DeviceType device);

// The PyTorch that a device's record is of, for dtypes that are refused alone or beside others: "2.11.0+cu130". Empty
// without a record. Generated when building.
const char* refused_dtypes_release(c10::DeviceType device, bool beside);

// Note [Refused dtypes]
// A kernel is compiled for some dtypes and asks for some to agree. Meta kernels know little of that: PyTorch's accept a
// product of float and bfloat16, which no device has. What real kernels answered is recorded, operator by operator, by
// tools/record_refused_dtypes.py: cmake/records. A call is refused where the record says that every such call was: with
// the same arguments given, all of one dtype, or one of them or all but the first of another. Where the record cannot
// speak, nothing is refused: empty tensors, of which few kernels but the pointwise ones look at the dtype; numbers and
// scalars, which promote in their own way; calls that say in which dtype to work, or that leave out by which of several
// methods, where the records name one (div without a rounding mode); a number that promotes the tensors (sub of uint16 and
// 1.5).
// An out= form that has no record of its own is held to that of the plain form, where it is given arguments of the dtype
// that it computes in, or integers beside them (indices and pivots).
//
// A record is of one release of PyTorch, which the message names, and other releases have more kernels. What the
// installed release's own tables of dtypes (OpInfo) list as supported is taken out of it when building:
// tools/record_accepted_dtypes.py.
class DtypeRefusals final : public DtypeCheck {
 public:
  // Those of an operator, or null. The pointer lives as long as the process.
  static const DtypeRefusals* of(const c10::OperatorHandle& handle);

  // Throws where the kernels of `device` would, for the dtypes of the arguments.
  void check(const Call& call, c10::Device device) const override;

 private:
  struct Row {
    std::vector<size_t> arguments;
    const RefusedDtypes* record;
  };

  DtypeRefusals() = default;
  void add(const RefusedDtypes& record, const c10::FunctionSchema& schema, std::vector<Row>& rows);
  bool can_speak(const Call& call) const;

  std::vector<Row> cpu_;
  std::vector<Row> cuda_;
  std::vector<size_t> dtype_args_;
  std::vector<size_t> method_args_;
  std::vector<size_t> number_args_;  // in the place of a tensor: they take part in type promotion
  std::vector<size_t> outs_;  // of a form without records of its own
  bool looks_at_empty_ = false;
};

}  // namespace torchfake
