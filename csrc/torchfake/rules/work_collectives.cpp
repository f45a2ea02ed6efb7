// The work of collectives: the bytes that a rank sends or receives over its link, whichever is more. Also registers all
// rows.
#include <torchfake/rules/work_rows.h>
#include <torchfake/values/collective_counts.h>

#include <algorithm>
#include <string>

namespace torchfake::work_rows {

namespace {

using work::Family;
using work::FinishedCall;
using work::Work;

int64_t list_bytes(const c10::IValue& value) {
  if (value.isTensor()) {
    return value.toTensor().defined() ? work::bytes_of(*value.toTensor().unsafeGetTensorImpl()) : 0;
  }
  int64_t sum = 0;
  if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) {
      sum += list_bytes(element);
    }
  }
  return sum;
}

// The size of the data that the ranks exchange: that of the inputs or of the outputs, whichever is larger.
int64_t shared_bytes(const FinishedCall& call) {
  int64_t most = 0;
  for (const auto values : {call.arguments, call.outputs}) {
    for (const c10::IValue& value : values) {
      most = std::max(most, list_bytes(value));
    }
  }
  return most;
}

// The traffic of the best algorithms over a ring or a switch, for n ranks that exchange `nbytes`:
//   all_reduce          2 (n - 1) / n: each part is reduced, then sent to all
//   gather, scatter     (n - 1) / n: all parts except the rank's own
//   broadcast, reduce   1
void collective(const FinishedCall& call, Work& work) {
  const RankGroup group = group_of(call.schema, call.arguments);
  const int64_t ranks = std::max<int64_t>(group.size, 1);
  const int64_t nbytes = shared_bytes(call);
  const std::string name = written_name(call.traits);
  work.group_size = static_cast<int32_t>(ranks);
  if (name == "wait_tensor" || name == "barrier") {
    work.launches = 0;  // only waits for another call
    work.nbytes = 0;
    return;
  }
  const double part = static_cast<double>(ranks - 1) / static_cast<double>(ranks);
  double sent = static_cast<double>(nbytes) * part;
  if (name == "all_reduce") {
    sent *= 2;
  } else if (name == "broadcast" || name == "reduce" || name == "send" || name == "recv") {
    sent = ranks > 1 ? static_cast<double>(nbytes) : 0;
  }
  work.traffic = static_cast<int64_t>(sent);
}

constexpr Row kRows[] = {
    {"c10d::allreduce_", {Family::kCollective, collective}},
    {"c10d::allreduce_coalesced_", {Family::kCollective, collective}},
    {"c10d::allgather_", {Family::kCollective, collective}},
    {"c10d::_allgather_base_", {Family::kCollective, collective}},
    {"c10d::allgather_into_tensor_coalesced_", {Family::kCollective, collective}},
    {"c10d::reduce_scatter_", {Family::kCollective, collective}},
    {"c10d::_reduce_scatter_base_", {Family::kCollective, collective}},
    {"c10d::reduce_scatter_tensor_coalesced_", {Family::kCollective, collective}},
    {"c10d::broadcast_", {Family::kCollective, collective}},
    {"c10d::reduce_", {Family::kCollective, collective}},
    {"c10d::gather_", {Family::kCollective, collective}},
    {"c10d::scatter_", {Family::kCollective, collective}},
    {"c10d::alltoall_", {Family::kCollective, collective}},
    {"c10d::alltoall_base_", {Family::kCollective, collective}},
    {"c10d::send", {Family::kCollective, collective}},
    {"c10d::recv_", {Family::kCollective, collective}},
    {"c10d::recv_any_source_", {Family::kCollective, collective}},
    {"c10d::barrier", {Family::kCollective, collective}},
    {"_c10d_functional::all_reduce", {Family::kCollective, collective}},
    {"_c10d_functional::all_reduce_", {Family::kCollective, collective}},
    {"_c10d_functional::all_reduce_coalesced", {Family::kCollective, collective}},
    {"_c10d_functional::all_gather_into_tensor", {Family::kCollective, collective}},
    {"_c10d_functional::all_gather_into_tensor_out", {Family::kCollective, collective}},
    {"_c10d_functional::all_gather_into_tensor_coalesced", {Family::kCollective, collective}},
    {"_c10d_functional::reduce_scatter_tensor", {Family::kCollective, collective}},
    {"_c10d_functional::reduce_scatter_tensor_coalesced", {Family::kCollective, collective}},
    {"_c10d_functional::all_to_all_single", {Family::kCollective, collective}},
    {"_c10d_functional::broadcast", {Family::kCollective, collective}},
    {"_c10d_functional::broadcast_", {Family::kCollective, collective}},
    {"_c10d_functional::wait_tensor", {Family::kCollective, collective}},
};

struct Registration {
  Registration() {
    for (const auto rows : {collective_rows(), memory_rows(), product_rows()}) {
      for (const Row& row : rows) {
        work::register_operator_work(row.name, row.work);
      }
    }
  }
};
const Registration registration;

}  // namespace

c10::ArrayRef<Row> collective_rows() {
  return kRows;
}

}  // namespace torchfake::work_rows
