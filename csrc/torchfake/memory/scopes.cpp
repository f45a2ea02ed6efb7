// Numbers for the paths of modules.
#include <torchfake/memory/scopes.h>

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <mutex>

namespace torchfake::memory {

namespace {

struct Names {
  std::mutex mutex;
  std::vector<std::string> names{""};
  ska::flat_hash_map<std::string, uint32_t> numbers{{"", 0}};
};

Names& all() {
  static auto* const names = new Names();  // never destroyed: threads may outlive static storage
  return *names;
}

}  // namespace

uint32_t scope_number(const std::string& path) {
  Names& known = all();
  const std::lock_guard lock(known.mutex);
  const auto [entry, is_new] = known.numbers.emplace(path, static_cast<uint32_t>(known.names.size()));
  if (is_new) {
    known.names.push_back(path);
  }
  return entry->second;
}

std::vector<std::string> scope_names() {
  Names& known = all();
  const std::lock_guard lock(known.mutex);
  return known.names;
}

uint32_t scope_count() {
  Names& known = all();
  const std::lock_guard lock(known.mutex);
  return static_cast<uint32_t>(known.names.size());
}

void ScopesOfNodes::note(uint32_t scope) {
  const uint64_t next = at::sequence_number::peek();
  auto& ranges = ranges_[at::RecordFunction::currentThreadId()];
  const uint64_t first = next > 0 ? next - 1 : 0;
  if (ranges.empty() || (ranges.back().second != scope && ranges.back().first < first)) {
    ranges.emplace_back(first, scope);
  } else if (ranges.back().first == first) {
    ranges.back().second = scope;  // the previous call created no node
  }
}

uint32_t ScopesOfNodes::of_current_node() const {
  const auto node = torch::autograd::get_current_node();
  if (node == nullptr) {
    return 0;
  }
  const auto found = ranges_.find(node->thread_id());
  if (found == ranges_.end()) {
    return 0;
  }
  const auto after = std::upper_bound(
      found->second.begin(), found->second.end(), node->sequence_nr(), [](uint64_t number, const auto& range) {
        return number < range.first;
      });
  return after == found->second.begin() ? 0 : std::prev(after)->second;
}

}  // namespace torchfake::memory
