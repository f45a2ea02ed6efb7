// The owners of a device's memory.
#include <torchfake/memory/ledger.h>

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <torchfake/core/fake_storage.h>
#include <torchfake/core/fake_tensor_impl.h>
#include <torchfake/memory/scopes.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <set>

namespace torchfake::memory {

std::string_view to_string(Owner owner) {
  constexpr std::array<std::string_view, kOwners> kNames{
      "parameters",
      "gradients",
      "optimizer state",
      "buffers",
      "activations",
      "inputs",
      "temporaries",
      "workspaces",
      "communication"};
  return kNames[static_cast<size_t>(owner)];
}

int64_t TimelinePoint::total() const {
  return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
}

LedgerContext& ledger_context() {
  __attribute__((tls_model("initial-exec"))) thread_local LedgerContext context;
  return context;
}

uint32_t Ledger::birth(LedgerRecord record) {
  const std::lock_guard lock(mutex_);
  const auto number = static_cast<uint32_t>(records_.size());
  record.born = static_cast<int64_t>(events_.size());
  record.phase = static_cast<uint32_t>(phases_.size() - 1);
  if (record.activity == Activity::kBackward && record.scope == 0) {
    record.scope = scopes_of_nodes_.of_current_node();
  } else if (ledger_context().takes_gradients && at::GradMode::is_enabled()) {
    scopes_of_nodes_.note(record.scope);
  }
  if (record.storage != nullptr) {
    alive_[record.storage] = number;
  }
  records_.push_back(record);
  events_.push_back(number);
  return number;
}

void Ledger::death(uint32_t number) noexcept {
  const std::lock_guard lock(mutex_);
  LedgerRecord& record = records_[number];
  record.died = static_cast<int64_t>(events_.size());
  if (const auto found = alive_.find(record.storage); found != alive_.end() && found->second == number) {
    alive_.erase(found);
  }
  events_.push_back(~static_cast<int64_t>(number));
}

void claim_tensor(Ledger& ledger, const at::Tensor& tensor, Owner owner, uint32_t scope) {
  if (tensor.defined() && as_fake(tensor) != nullptr) {
    if (c10::StorageImpl* storage = storage_of(*tensor.unsafeGetTensorImpl())) {
      ledger.claim(observation_of(storage).id, owner, scope);
    }
  }
}

void Ledger::claim(const void* storage, Owner owner, uint32_t scope) {
  const std::lock_guard lock(mutex_);
  TORCH_CHECK_INDEX(scope < scope_count(), "Ledger::claim: there is no scope ", scope, ".");
  if (const auto found = alive_.find(storage); found != alive_.end()) {
    records_[found->second].owner = owner;
    records_[found->second].is_claimed = true;
    if (scope != 0) {
      records_[found->second].scope = scope;
    }
  }
}

void Ledger::begin_backward() {
  const std::lock_guard lock(mutex_);
  phases_.emplace_back("backward");
  for (const auto& [storage, number] : alive_) {
    LedgerRecord& record = records_[number];
    if (!record.is_claimed && record.is_of_forward) {
      record.owner = Owner::kActivations;
      record.is_claimed = true;
    }
  }
}

void Ledger::note_collective(const void* storage) noexcept {
  const std::lock_guard lock(mutex_);
  if (const auto found = alive_.find(storage); found != alive_.end() && !records_[found->second].is_claimed) {
    records_[found->second].owner = Owner::kCommunication;
  }
}

void Ledger::claim_parameters(const std::vector<at::Tensor>& parameters, const std::vector<uint32_t>& scopes) {
  TORCH_CHECK_VALUE(parameters.size() == scopes.size(), "claim_parameters: expected a scope for each parameter");
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].defined()) {
      continue;
    }
    claim_tensor(*this, parameters[i], Owner::kParameters, scopes[i]);
    if (parameters[i].is_leaf()) {
      claim_tensor(*this, parameters[i].grad(), Owner::kGradients, scopes[i]);
      const std::lock_guard lock(mutex_);
      parameters_.insert_or_assign(
          parameters[i].unsafeGetTensorImpl(),
          Parameter{c10::weak_intrusive_ptr<c10::TensorImpl>(parameters[i].getIntrusivePtr()), scopes[i]});
    }
  }
}

void Ledger::claim_gradients() {
  std::vector<std::pair<at::Tensor, uint32_t>> alive;
  {
    const std::lock_guard lock(mutex_);
    for (auto entry = parameters_.begin(); entry != parameters_.end();) {
      if (auto tensor = entry->second.tensor.lock()) {
        alive.emplace_back(at::Tensor(std::move(tensor)), entry->second.scope);
        ++entry;
      } else {
        entry = parameters_.erase(entry);
      }
    }
  }
  for (const auto& [parameter, scope] : alive) {
    if (parameter.is_leaf()) {
      claim_tensor(*this, parameter.grad(), Owner::kGradients, scope);
    }
  }
}

void Ledger::set_line_source(LineSource source) {
  line_source_ = std::move(source);
}

void Ledger::begin_phase(std::string name) {
  const std::lock_guard lock(mutex_);
  phases_.push_back(std::move(name));
}

std::vector<LedgerRecord> Ledger::records() const {
  const std::lock_guard lock(mutex_);
  return records_;
}

std::vector<LedgerRecord> Ledger::records_at(c10::Device device, int64_t event) const {
  const std::lock_guard lock(mutex_);
  std::vector<LedgerRecord> found;
  std::copy_if(records_.begin(), records_.end(), std::back_inserter(found), [&](const LedgerRecord& record) {
    return record.device == device && record.born <= event && (record.died == -1 || record.died > event);
  });
  return found;
}

std::vector<std::string> Ledger::phases() const {
  const std::lock_guard lock(mutex_);
  return phases_;
}

std::vector<TimelinePoint> Ledger::timeline(c10::Device device, size_t points) const {
  const std::lock_guard lock(mutex_);
  std::vector<TimelinePoint> all;
  TimelinePoint now;
  for (size_t event = 0; event < events_.size(); ++event) {
    const bool is_birth = events_[event] >= 0;
    const LedgerRecord& record = records_[static_cast<size_t>(is_birth ? events_[event] : ~events_[event])];
    if (record.device != device) {
      continue;
    }
    const auto nbytes = static_cast<int64_t>(record.nbytes);
    now.bytes[static_cast<size_t>(record.owner)] += is_birth ? nbytes : -nbytes;
    now.event = static_cast<int64_t>(event);
    now.phase = is_birth ? record.phase : now.phase;
    all.push_back(now);
  }
  if (points == 0 || all.size() <= points) {
    return all;
  }
  // Keeps the maximum of each interval, so that no peak is lost.
  std::vector<TimelinePoint> kept;
  for (size_t i = 0; i < points; ++i) {
    const auto begin = all.begin() + static_cast<ptrdiff_t>(i * all.size() / points);
    const auto end = all.begin() + static_cast<ptrdiff_t>((i + 1) * all.size() / points);
    kept.push_back(*std::max_element(begin, end, [](const auto& a, const auto& b) { return a.total() < b.total(); }));
  }
  kept.push_back(all.back());
  return kept;
}

std::pair<int64_t, int64_t> Ledger::peak(c10::Device device) const {
  const std::lock_guard lock(mutex_);
  std::pair<int64_t, int64_t> most{-1, 0};
  int64_t now = 0;
  for (size_t event = 0; event < events_.size(); ++event) {
    const bool is_birth = events_[event] >= 0;
    const LedgerRecord& record = records_[static_cast<size_t>(is_birth ? events_[event] : ~events_[event])];
    if (record.device != device) {
      continue;
    }
    now += is_birth ? static_cast<int64_t>(record.nbytes) : -static_cast<int64_t>(record.nbytes);
    if (now > most.second) {
      most = {static_cast<int64_t>(event), now};
    }
  }
  return most;
}

std::vector<c10::Device> Ledger::devices() const {
  const std::lock_guard lock(mutex_);
  std::vector<c10::Device> found;
  for (const LedgerRecord& record : records_) {
    if (std::find(found.begin(), found.end(), record.device) == found.end()) {
      found.push_back(record.device);
    }
  }
  std::sort(found.begin(), found.end(), [](c10::Device a, c10::Device b) { return a.str() < b.str(); });
  return found;
}

}  // namespace torchfake::memory
