// The table of operators: what the engine knows of an operator by its name.
#pragma once

#include <torchfake/core/operator_facts.h>

#include <string_view>

namespace torchfake {

// Note [Operator table]
// What an operator does to sizes and strides stands in its kernel. What else the engine has to know of it, and its schema
// does not say, stands in rows of this table and nowhere else: the steps of a call read fields of OperatorFacts and compare
// no names. A row names operators and sets facts of each:
//
//   {"copy_ copy _copy_from", [](Facts& facts) { facts.devices = DevicePolicy::kFirst; }}
//
// Names are those of aten and prims, without the library; a name with another library is written out (c10d::broadcast_).
// `*` at the beginning or the end stands for anything. A name with a point is one overload: `equal.` is the overload
// without a name. Several rows may concern an operator; no two may give it a rule.

// Whether one of `names`, separated by spaces, is the operator. `base` is its name without the library.
bool names_operator(std::string_view names, std::string_view library, std::string_view base, std::string_view overload);

}  // namespace torchfake
