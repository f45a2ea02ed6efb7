// The memory of a mode's devices.
#include <torchfake/memory/memory_model.h>

#include <ATen/core/grad_mode.h>
#include <c10/util/env.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <torchfake/memory/block.h>

#include <algorithm>
#include <map>
#include <tuple>

namespace torchfake::memory {

namespace {

// Autograd runs the backward pass of a GPU on a separate thread with separate library handles.
bool is_backward() {
  return torch::autograd::get_current_graph_task_id() != -1;
}

// CUBLAS_WORKSPACE_CONFIG: ":4096:2:16:8" means 2 of 4096 KiB and 8 of 16 KiB.
std::optional<size_t> configured_workspace() {
  const auto text = c10::utils::get_env("CUBLAS_WORKSPACE_CONFIG");
  if (!text) {
    return std::nullopt;
  }
  std::vector<size_t> numbers;
  for (size_t at = 0; at < text->size(); ++at) {
    if ((*text)[at] == ':') {
      numbers.push_back(std::strtoull(text->c_str() + at + 1, nullptr, 10));
    }
  }
  size_t total = 0;
  for (size_t i = 0; i + 1 < numbers.size(); i += 2) {
    total += numbers[i] * numbers[i + 1] * 1024;
  }
  return numbers.size() < 2 ? std::nullopt : std::optional(total);
}

Block* block_of(uintptr_t word) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the word of a storage is the address of its block
  return reinterpret_cast<Block*>(word);
}

}  // namespace

struct MemoryModel::Device {
  Device(c10::Device which, const Card& card, const AllocatorConfig& config)
      : device(which), memory(card.total_bytes, card.context_bytes), allocator(config, memory, which.index()) {
    memory.set_unlimited(card.is_unlimited);
  }

  c10::Device device;
  CardMemory memory;
  CachingAllocator allocator;
  std::shared_ptr<History> history;  // shared, to outlive the recording
  // Keyed by library, whether it is a backward pass, and stream.
  std::map<std::tuple<Workspace, bool, c10::StreamId>, Block*> workspaces;
  std::vector<std::pair<size_t, Block*>> temporaries;  // of the running calls, with the requested size
};

MemoryModel::MemoryModel(Card card, AllocatorConfig config) : card_(card), config_(std::move(config)) {}

MemoryModel::~MemoryModel() = default;

MemoryModel::Device& MemoryModel::device_of(c10::Device device) {
  const c10::Device which(device.type(), device.has_index() ? device.index() : c10::DeviceIndex{0});
  for (const auto& known : devices_) {
    if (known->device == which) {
      return *known;
    }
  }
  Device& made = *devices_.emplace_back(std::make_unique<Device>(which, card_, config_));
  attach_history(made);
  return made;
}

std::vector<c10::Device> MemoryModel::devices() const {
  const std::lock_guard lock(mutex_);
  std::vector<c10::Device> found;
  found.reserve(devices_.size());
  for (const auto& device : devices_) {
    found.push_back(device->device);
  }
  std::sort(found.begin(), found.end(), [](c10::Device a, c10::Device b) { return a.index() < b.index(); });
  return found;
}

void MemoryModel::set_config(std::string_view text) {
  const std::lock_guard lock(mutex_);
  config_ = parse_allocator_config(text, config_);
  for (const auto& device : devices_) {
    device->allocator.set_config(config_);
  }
}

// ---- History

void MemoryModel::attach_history(Device& device) {
  if (history_ == nullptr) {
    device.allocator.set_trace(nullptr);
    return;
  }
  device.history = std::make_shared<History>(*history_);
  device.allocator.set_trace([history = device.history](const TraceEntry& entry) { history->record(entry); });
}

void MemoryModel::set_history(std::optional<HistoryOptions> options, bool clear) {
  const std::lock_guard lock(mutex_);
  history_ = options ? std::make_shared<const HistoryOptions>(std::move(*options)) : nullptr;
  has_history_.store(history_ != nullptr, std::memory_order_release);
  for (const auto& device : devices_) {
    attach_history(*device);
    if (clear && history_ == nullptr) {
      device->history = nullptr;
    }
  }
}

void MemoryModel::with_history(c10::Device device, const std::function<void(const History*)>& f) {
  const std::lock_guard lock(mutex_);
  f(device_of(device).history.get());
}

std::function<StackPtr()> MemoryModel::gatherer() const {
  const std::lock_guard lock(mutex_);
  return history_ == nullptr || history_->stacks == HistoryOptions::Stacks::kNone ? nullptr : history_->gather;
}

CachingAllocator& MemoryModel::allocator(c10::Device device) {
  const std::lock_guard lock(mutex_);
  return device_of(device).allocator;
}

std::pair<size_t, size_t> MemoryModel::memory_info(c10::Device device) {
  const std::lock_guard lock(mutex_);
  const CardMemory& memory = device_of(device).memory;
  return {memory.free_bytes(), memory.total_bytes()};
}

HostBytes MemoryModel::host_bytes() const {
  const std::lock_guard lock(mutex_);
  return host_;
}

Owner MemoryModel::owner_of(const Allocation& allocation) {
  if (allocation.id == nullptr) {
    return Owner::kTemporaries;
  }
  const Activity activity = is_backward() ? Activity::kBackward : ledger_context().activity;
  return activity == Activity::kOutside ? Owner::kInputs : Owner::kTemporaries;
}

Block* MemoryModel::take(Device& device, const Allocation& allocation, Owner owner) {
  Block* block = device.allocator.allocate(allocation.nbytes, allocation.stream);
  block->storage = allocation.id;
  if (C10_UNLIKELY(ledger_ != nullptr)) {
    const int task = torch::autograd::get_current_graph_task_id();
    if (task != -1 && task != last_backward_) {
      last_backward_ = task;
      ledger_->begin_backward();
      torch::autograd::Engine::get_default_engine().queue_callback([ledger = ledger_] { ledger->claim_gradients(); });
    }
    LedgerRecord record;
    record.storage = allocation.id;
    record.nbytes = block->size;
    record.requested = allocation.nbytes;
    record.address = block->address;
    record.line = ledger_->line_source() ? ledger_context().line : 0;
    record.op = allocation.op;
    record.scope = ledger_context().scope;
    record.device = device.device;
    record.activity = task != -1 ? Activity::kBackward : ledger_context().activity;
    record.owner = owner;
    record.is_of_forward = at::GradMode::is_enabled() &&
        (record.activity == Activity::kForward ||
         (record.activity == Activity::kOutside && ledger_context().takes_gradients));
    block->record = ledger_->birth(record);
  }
  return block;
}

void MemoryModel::give_back(Block* block) noexcept {
  const uint32_t record = block->record;
  block->pool().allocator.free(block);
  if (C10_UNLIKELY(ledger_ != nullptr)) {
    ledger_->death(record);
  }
}

size_t MemoryModel::blas_workspace_bytes() const {
  static const std::optional<size_t> configured = configured_workspace();
  if (configured) {
    return *configured;
  }
  const bool is_large = config_.release.minor >= 13
      ? card_.capability_major == 9 || card_.capability_major == 10 || card_.capability_major == 12
      : card_.capability_major == 9;
  return is_large ? 32 * kMiB : 2 * 4096 * 1024 + 8 * 16 * 1024;
}

// A cuBLAS handle belongs to a thread and has one workspace per stream.
void MemoryModel::take_workspaces(Device& device, const Allocation& allocation) {
  const auto [known, is_new] = workspaces_of_operators_.emplace(allocation.op.data(), Workspace::kNone);
  if (is_new) {
    known->second = operator_memory(allocation.op).workspace;
  }
  if (C10_LIKELY(known->second == Workspace::kNone)) {
    return;
  }
  const bool needs_lt = known->second == Workspace::kBlasLt && !config_.release.shares_cublas_workspace();
  const auto take_one = [&](Workspace which, size_t nbytes) {
    Block*& block = device.workspaces[{which, is_backward(), allocation.stream}];
    if (block == nullptr && nbytes > 0) {
      Allocation workspace = allocation;
      workspace.id = nullptr;
      workspace.nbytes = nbytes;
      block = take(device, workspace, Owner::kWorkspaces);
    }
  };
  take_one(Workspace::kBlas, blas_workspace_bytes());
  if (needs_lt) {
    take_one(Workspace::kBlasLt, kMiB);
  }
}

// The program's stack, if the history asks for it; gathered before the lock is taken, for the same reason.
std::optional<GatheredStack> MemoryModel::gathered_stack() const {
  return C10_UNLIKELY(has_history_.load(std::memory_order_acquire))
      ? std::optional<GatheredStack>(std::in_place, gatherer())
      : std::nullopt;
}

void MemoryModel::note_line() const {
  if (const LineSource* source = line_source_.load(std::memory_order_acquire); C10_UNLIKELY(source != nullptr)) {
    ledger_context().line = (*source)();
  }
}

Block* MemoryModel::take_for_storage(const Allocation& allocation) {
  Device& device = device_of(allocation.device);
  Block* block = take(device, allocation, owner_of(allocation));
  if (!allocation.op.empty()) {
    try {
      take_workspaces(device, allocation);
    } catch (...) {
      give_back(block);
      throw;
    }
  }
  return block;
}

void MemoryModel::on_alloc(const Allocation& allocation) {
  if (allocation.nbytes == 0) {
    return;
  }
  note_line();
  const std::optional<GatheredStack> stack = gathered_stack();
  const std::lock_guard lock(mutex_);
  if (allocation.device.is_cpu() || allocation.device.is_meta()) {
    host_.current += allocation.device.is_cpu() ? static_cast<int64_t>(allocation.nbytes) : 0;
    host_.peak = std::max(host_.peak, host_.current);
  } else if (allocation.id == nullptr) {
    Device& device = device_of(allocation.device);
    Block* block = take(device, allocation, owner_of(allocation));
    device.temporaries.emplace_back(allocation.nbytes, block);
  } else {
    blocks_[allocation.id] = take_for_storage(allocation);
  }
}

uintptr_t MemoryModel::on_direct_alloc(const Allocation& allocation) {
  note_line();
  const std::optional<GatheredStack> stack = gathered_stack();
  const std::lock_guard lock(mutex_);
  Block* block = take_for_storage(allocation);
  if (words_++ == 0) {
    self_ = shared_from_this();
  }
  return reinterpret_cast<uintptr_t>(block);
}

void MemoryModel::on_direct_free(uintptr_t word) noexcept {
  std::shared_ptr<DirectObserver> last;  // released after the lock
  const std::optional<GatheredStack> stack = gathered_stack();
  const std::lock_guard lock(mutex_);
  give_back(block_of(word));
  if (--words_ == 0) {
    last = std::move(self_);
  }
}

size_t MemoryModel::direct_nbytes(uintptr_t word) const {
  return block_of(word)->requested_size;
}

// In PyTorch's order: allocate the new memory, copy, release the old memory.
void MemoryModel::on_resize(const Allocation& allocation, size_t old_nbytes) {
  note_line();
  const std::optional<GatheredStack> stack = gathered_stack();
  const std::lock_guard lock(mutex_);
  if (allocation.device.is_cpu() || allocation.device.is_meta()) {
    host_.current += allocation.device.is_cpu() ? static_cast<int64_t>(allocation.nbytes - old_nbytes) : 0;
    host_.peak = std::max(host_.peak, host_.current);
    return;
  }
  const auto old = blocks_.find(allocation.id);
  Block* before = old == blocks_.end() ? nullptr : old->second;
  if (allocation.nbytes > 0) {
    blocks_[allocation.id] = take(device_of(allocation.device), allocation, owner_of(allocation));
  } else if (before != nullptr) {
    blocks_.erase(old);
  }
  if (before != nullptr) {
    give_back(before);
  }
}

void MemoryModel::on_free(const void* id, c10::Device device, size_t nbytes) noexcept {
  if (nbytes == 0) {
    return;
  }
  const std::optional<GatheredStack> stack = gathered_stack();
  const std::lock_guard lock(mutex_);
  if (device.is_cpu() || device.is_meta()) {
    host_.current -= device.is_cpu() ? static_cast<int64_t>(nbytes) : 0;
    return;
  }
  if (id == nullptr) {
    auto& temporaries = device_of(device).temporaries;
    const auto found = std::find_if(
        temporaries.rbegin(), temporaries.rend(), [&](const auto& temporary) { return temporary.first == nbytes; });
    if (found != temporaries.rend()) {
      give_back(found->second);
      temporaries.erase(std::prev(found.base()));
    }
    return;
  }
  if (const auto found = blocks_.find(id); found != blocks_.end()) {
    give_back(found->second);
    blocks_.erase(found);
  }
}

void MemoryModel::record_stream(const Observation& storage, c10::StreamId stream) {
  const std::lock_guard lock(mutex_);
  Block* block = block_of(storage.word);
  if (const auto found = blocks_.find(storage.id); found != blocks_.end()) {
    block = found->second;
  }
  if (block != nullptr) {
    block->pool().allocator.record_stream(block, stream);
  }
}

void MemoryModel::on_collective(const void* id) noexcept {
  const std::lock_guard lock(mutex_);
  if (ledger_ != nullptr) {
    ledger_->note_collective(id);
  }
}

void MemoryModel::keep_buffer(Workspace which, c10::Device device, size_t nbytes) {
  const Allocation allocation = allocation_of(nullptr, device, nbytes);
  note_line();
  const std::lock_guard lock(mutex_);
  Device& on = device_of(device);
  Block*& block = on.workspaces[{which, false, 0}];
  if (block == nullptr) {
    block = take(on, allocation, Owner::kWorkspaces);
  }
}

void MemoryModel::clear_workspaces() {
  const std::lock_guard lock(mutex_);
  for (const auto& device : devices_) {
    for (auto entry = device->workspaces.begin(); entry != device->workspaces.end();) {
      if (std::get<Workspace>(entry->first) == Workspace::kDropoutState) {
        ++entry;
        continue;
      }
      if (entry->second != nullptr) {
        give_back(entry->second);
      }
      entry = device->workspaces.erase(entry);
    }
  }
}

void MemoryModel::set_ledger(std::shared_ptr<Ledger> ledger) {
  const std::lock_guard lock(mutex_);
  ledger_ = std::move(ledger);
  const bool has_lines = ledger_ != nullptr && ledger_->line_source();
  line_source_.store(has_lines ? &ledger_->line_source() : nullptr, std::memory_order_release);
  if (ledger_ == nullptr) {
    return;
  }
  for (const auto& device : devices_) {
    device->allocator.for_each_allocated([&](Block& block) {
      LedgerRecord record;
      record.storage = block.storage;
      record.nbytes = block.size;
      record.requested = block.size;
      record.address = block.address;
      record.device = device->device;
      record.owner = block.storage == nullptr ? Owner::kWorkspaces : Owner::kInputs;
      block.record = ledger_->birth(record);
    });
  }
}

std::shared_ptr<Ledger> MemoryModel::ledger() const {
  const std::lock_guard lock(mutex_);
  return ledger_;
}

}  // namespace torchfake::memory
