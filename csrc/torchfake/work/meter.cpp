// Counts the work of a mode's operators.
#include <torchfake/work/meter.h>

#include <ATen/Context.h>
#include <c10/core/GradMode.h>
#include <c10/util/hash.h>

#include <torch/csrc/autograd/graph_task.h>

#include <torchfake/memory/ledger.h>

namespace torchfake::work {

namespace {

uint64_t hash_of(const WorkRow& row) {
  const Work& work = row.work;
  size_t hash = c10::hash_combine(reinterpret_cast<uintptr_t>(row.op.data()), row.scope);
  for (const int64_t part :
       {static_cast<int64_t>(row.activity),
        work.flops,
        work.nbytes,
        work.traffic,
        static_cast<int64_t>(work.launches),
        static_cast<int64_t>(row.tensors),
        static_cast<int64_t>(row.records_gradient),
        static_cast<int64_t>(work.dtype),
        static_cast<int64_t>(work.device.index())}) {
    hash = c10::hash_combine(hash, static_cast<size_t>(part));
  }
  return hash;
}

bool are_equal(const WorkRow& a, const WorkRow& b) {
  return a.op.data() == b.op.data() && a.scope == b.scope && a.activity == b.activity &&
      a.records_gradient == b.records_gradient && a.tensors == b.tensors && a.work == b.work;
}

// Counts the tensors among the arguments, and notes whether one of them requires a gradient.
void count_tensors(c10::ArrayRef<c10::IValue> arguments, WorkRow& row) {
  const auto count = [&](const at::Tensor& tensor) {
    if (tensor.defined()) {
      ++row.tensors;
      row.records_gradient |= tensor.requires_grad();
    }
  };
  for (const c10::IValue& argument : arguments) {
    if (argument.isTensor()) {
      count(argument.toTensor());
    } else if (argument.isTensorList()) {
      for (const at::Tensor& tensor : argument.toTensorVector()) {
        count(tensor);
      }
    }
  }
  row.records_gradient &= c10::GradMode::is_enabled();
}

// Products of float32 may be computed in TF32 if the program allows it; for cuDNN it is allowed by default.
bool may_use_tf32(const Work& work) {
  if (work.dtype != c10::kFloat || work.flops == 0) {
    return false;
  }
  const at::Float32Op op = work.family == Family::kConvolution ? at::Float32Op::CONV
      : work.family == Family::kRecurrent                      ? at::Float32Op::RNN
                                                               : at::Float32Op::MATMUL;
  return at::globalContext().float32Precision(at::Float32Backend::CUDA, op) == at::Float32Precision::TF32;
}

}  // namespace

void WorkMeter::on_op(
    const c10::OperatorHandle& op,
    c10::ArrayRef<c10::IValue> arguments,
    c10::ArrayRef<c10::IValue> outputs) {
  const FinishedCall call{OpTraits::of(op), op.schema(), arguments, outputs};
  if (has_symbolic_sizes(call)) {
    const std::lock_guard lock(mutex_);
    ++uncounted_;
    return;
  }
  WorkRow row;
  row.op = call.traits.name;
  row.work = work_of(call);
  row.work.may_use_tf32 = may_use_tf32(row.work);
  count_tensors(arguments, row);
  const memory::LedgerContext& context = memory::ledger_context();
  const bool is_backward = torch::autograd::get_current_graph_task_id() != -1;
  row.activity = static_cast<uint8_t>(is_backward ? memory::Activity::kBackward : context.activity);
  row.scope = context.scope;
  const std::lock_guard lock(mutex_);
  if (is_backward && row.scope == 0) {
    row.scope = scopes_of_nodes_.of_current_node();
  } else {
    scopes_of_nodes_.note(row.scope);  // for views as well, which also create nodes
  }
  std::vector<uint32_t>& candidates = rows_by_hash_[hash_of(row)];
  for (const uint32_t candidate : candidates) {
    if (are_equal(rows_[candidate], row)) {
      ++rows_[candidate].calls;
      return;
    }
  }
  row.calls = 1;
  candidates.push_back(static_cast<uint32_t>(rows_.size()));
  rows_.push_back(row);
}

std::vector<WorkRow> WorkMeter::rows() const {
  const std::lock_guard lock(mutex_);
  return rows_;
}

int64_t WorkMeter::uncounted() const {
  const std::lock_guard lock(mutex_);
  return uncounted_;
}

}  // namespace torchfake::work
