// The table of operators: what the engine knows about an operator by name.
#pragma once

#include <torchfake/core/operator_facts.h>

#include <string_view>

namespace torchfake {

// Note [Operator table]
// The effect of an operator on sizes and strides is defined by its kernel. Everything else that the engine needs to
// know about it and that its schema does not say is defined by the rows of this table and nowhere else: the steps of a
// call read fields of OperatorFacts and compare no names. A row names operators and sets facts for each of them:
//
//   {"copy_ copy _copy_from", [](Facts& facts) { facts.devices = DevicePolicy::kFirst; }}
//
// Names are those of aten and prims, without the library; names in other libraries are written in full
// (c10d::broadcast_). `*` at the beginning or the end matches anything. A name with a dot is one overload: `equal.` is
// the overload without a name. Several rows may match an operator; at most one may give it a rule.

// Whether one of the space-separated `names` matches the operator. `base` is its name without the library.
bool names_operator(std::string_view names, std::string_view library, std::string_view base, std::string_view overload);

}  // namespace torchfake
