// Parses the options of PyTorch's caching allocator.
#include <torchfake/memory/allocator_config.h>

#include <c10/util/Exception.h>
#include <c10/util/env.h>

#include <algorithm>
#include <bit>
#include <cctype>
#include <charconv>
#include <vector>

namespace torchfake::memory {

namespace {

// A cursor over the tokens of "key:value,key:[a:1,>:2]".
class Tokens {
 public:
  explicit Tokens(std::string_view text) {
    std::string word;
    const auto flush = [&] {
      if (!word.empty()) {
        tokens_.push_back(std::exchange(word, {}));
      }
    };
    for (const char c : text) {
      if (c == ',' || c == ':' || c == '[' || c == ']') {
        flush();
        tokens_.emplace_back(1, c);
      } else if (std::isspace(static_cast<unsigned char>(c)) == 0) {
        word += c;
      }
    }
    flush();
  }

  bool done() const {
    return at_ == tokens_.size();
  }
  std::string next(std::string_view expected_what) {
    TORCH_CHECK_VALUE(!done(), "allocator options: expected ", expected_what, " at the end of the text.");
    return tokens_[at_++];
  }
  bool accept(std::string_view token) {
    if (done() || tokens_[at_] != token) {
      return false;
    }
    ++at_;
    return true;
  }
  void expect(std::string_view token) {
    const std::string found = next(token);
    TORCH_CHECK_VALUE(found == token, "allocator options: expected '", token, "', got '", found, "'.");
  }

 private:
  std::vector<std::string> tokens_;
  size_t at_ = 0;
};

size_t to_size(const std::string& word, std::string_view key) {
  size_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  TORCH_CHECK_VALUE(
      error == std::errc{} && end == word.data() + word.size(),
      "allocator option ",
      key,
      ": '",
      word,
      "' is no number.");
  return value;
}

double to_double(const std::string& word, std::string_view key) {
  size_t used = 0;
  double value = 0;
  try {
    value = std::stod(word, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  TORCH_CHECK_VALUE(used == word.size() && used > 0, "allocator option ", key, ": '", word, "' is no number.");
  return value;
}

bool to_bool(const std::string& word, std::string_view key) {
  TORCH_CHECK_VALUE(
      word == "True" || word == "False", "allocator option ", key, ": expected 'True' or 'False', got '", word, "'.");
  return word == "True";
}

size_t mebibytes(size_t count) {
  return std::min(count, std::numeric_limits<size_t>::max() / kMiB) * kMiB;
}

size_t at_least_a_segment(const std::string& word, std::string_view key, const AllocatorConfig& config) {
  const size_t value = to_size(word, key);
  TORCH_CHECK_VALUE(
      value >= config.large_segment_size / kMiB,
      "CachingAllocator option ",
      key,
      " too small, must be >= ",
      config.large_segment_size / kMiB);
  return mebibytes(value);
}

// Either one number of divisions for all sizes, or "[64:8,256:4,>:1]": the divisions by size in MiB.
void read_divisions(Tokens& tokens, AllocatorConfig& config) {
  constexpr std::string_view kKey = "roundup_power2_divisions";
  auto& divisions = config.roundup_power2_divisions;
  if (!tokens.accept("[")) {
    const size_t value = to_size(tokens.next("a number"), kKey);
    TORCH_CHECK_VALUE(std::has_single_bit(value), "For roundups, the divisions has to be power of 2 ");
    divisions.fill(value);
    return;
  }
  size_t last = 0;
  bool is_first = true;
  while (!tokens.accept("]")) {
    const std::string boundary = tokens.next("a size");
    tokens.expect(":");
    const size_t value = to_size(tokens.next("a number"), kKey);
    TORCH_CHECK_VALUE(
        value == 0 || std::has_single_bit(value),
        "For roundups, the divisions has to be power of 2 or 0 to disable roundup ");
    if (boundary == ">") {
      std::fill(divisions.begin() + static_cast<ptrdiff_t>(last) + 1, divisions.end(), value);
    } else {
      const size_t size = to_size(boundary, kKey);
      TORCH_CHECK_VALUE(std::has_single_bit(size), "For roundups, the intervals have to be power of 2 ");
      last = std::min<size_t>(std::bit_width(size) - 1, divisions.size() - 1);
      if (is_first) {
        std::fill(divisions.begin(), divisions.begin() + static_cast<ptrdiff_t>(last), value);
        is_first = false;
      }
      divisions[last] = value;
    }
    tokens.accept(",");
  }
}

// Options for host memory, locks and graphs that do not affect allocations.
bool has_no_effect(std::string_view key) {
  constexpr std::array kKeys{
      std::string_view("pinned_use_background_threads"),
      std::string_view("pinned_max_round_threshold_mb"),
      std::string_view("pinned_max_cached_size_mb"),
      std::string_view("pinned_use_cuda_host_register"),
      std::string_view("pinned_num_register_threads"),
      std::string_view("pinned_reserve_segment_size_mb"),
      std::string_view("pinned_free_catch_all"),
      std::string_view("release_lock_on_cudamalloc"),
      std::string_view("graph_capture_record_stream_reuse"),
      std::string_view("release_lock_on_hipmalloc"),
      std::string_view("pinned_use_hip_host_register"),
  };
  return std::find(kKeys.begin(), kKeys.end(), key) != kKeys.end();
}

void read_option(const std::string& key, Tokens& tokens, AllocatorConfig& config) {
  tokens.expect(":");
  if (key == "roundup_power2_divisions") {
    read_divisions(tokens, config);
    return;
  }
  const std::string word = tokens.next("a value");
  if (key == "large_segment_size_mb") {
    TORCH_CHECK_VALUE(to_size(word, key) > 10, "CachingAllocator option large_segment_size_mb must be > 10 MB");
    config.large_segment_size = mebibytes(to_size(word, key));
  } else if (key == "max_split_size_mb") {
    config.max_split_size = at_least_a_segment(word, key, config);
  } else if (key == "max_non_split_rounding_mb") {
    config.max_non_split_rounding_size = at_least_a_segment(word, key, config);
  } else if (key == "garbage_collection_threshold") {
    config.garbage_collection_threshold = to_double(word, key);
    TORCH_CHECK_VALUE(
        config.garbage_collection_threshold > 0 && config.garbage_collection_threshold < 1,
        "garbage_collect_threshold is invalid, set it in (0.0, 1.0)");
  } else if (key == "per_process_memory_fraction") {
    config.per_process_memory_fraction = to_double(word, key);
    TORCH_CHECK_VALUE(
        config.per_process_memory_fraction >= 0 && config.per_process_memory_fraction <= 1,
        "per_process_memory_fraction is invalid, set it in [0.0, 1.0]");
  } else if (key == "expandable_segments") {
    config.expandable_segments = to_bool(word, key);
  } else if (key == "throw_on_cudamalloc_oom") {
    config.throws_before_allocating = to_bool(word, key);
  } else if (key == "backend") {
    TORCH_CHECK_VALUE(word == "native", "allocator option backend: only native is modelled, got '", word, "'.");
  } else {
    TORCH_CHECK_VALUE(has_no_effect(key), "Unrecognized key '", key, "' in CUDA allocator config.");
  }
}

}  // namespace

size_t AllocatorConfig::divisions_for(size_t nbytes) const {
  const size_t mib = nbytes / kMiB;
  const size_t index = mib == 0 ? 0 : std::bit_width(mib) - 1;
  return roundup_power2_divisions[std::min(index, roundup_power2_divisions.size() - 1)];
}

AllocatorConfig parse_allocator_config(std::string_view text, const AllocatorConfig& before) {
  AllocatorConfig config;
  config.text = text;
  config.release = before.release;
  config.large_segment_size = before.large_segment_size;
  config.expandable_segments = before.expandable_segments;
  config.per_process_memory_fraction = before.per_process_memory_fraction;
  config.throws_before_allocating = before.throws_before_allocating;
  // The segment size is parsed first, wherever it appears: it is the minimum for other options.
  for (const bool segments_only : {true, false}) {
    if (!segments_only) {
      config.max_non_split_rounding_size = config.large_segment_size;
    }
    AllocatorConfig ignored = config;
    Tokens tokens(text);
    while (!tokens.done()) {
      const std::string key = tokens.next("an option");
      const bool is_segments = key == "large_segment_size_mb";
      if (segments_only && !is_segments) {
        // Parsed only to skip it; its errors are reported in the second pass.
        ignored.large_segment_size = 0;
      }
      read_option(key, tokens, segments_only && !is_segments ? ignored : config);
      if (!tokens.done()) {
        tokens.expect(",");
      }
    }
  }
  return config;
}

AllocatorConfig allocator_config_of_environment() {
  for (const char* name : {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"}) {
    if (const auto text = c10::utils::get_env(name)) {
      return parse_allocator_config(*text);
    }
  }
  return {};
}

}  // namespace torchfake::memory
