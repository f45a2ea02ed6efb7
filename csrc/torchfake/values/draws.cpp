// Constant propagation: draws small random results, which programs may read.
#include <torchfake/values/draws.h>

#include <ATen/CPUGeneratorImpl.h>

#include <atomic>
#include <mutex>

namespace torchfake {

namespace {

// The argument that holds the generator; null if the operator has none.
c10::IValue* find_generator(const Call& call, torch::jit::Stack& arguments) {
  const std::optional<int> index = call.op.schema().argumentIndexWithName("generator");
  return index ? &arguments[*index] : nullptr;
}

at::Generator copy_of_default() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  return generator.clone();
}

void set_default(const at::Generator& from) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  generator.unsafeGetGeneratorImpl()->set_state(*from.unsafeGetGeneratorImpl()->get_state());
}

std::atomic<DefaultGenerator> g_default_generator{nullptr};

// Draws on a claimed device depend on the seed and offset of its generator. Each draw advances the offset by as much as
// one of CUDA's.
uint64_t next_seed(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  auto* impl = generator.unsafeGetGeneratorImpl();
  const uint64_t offset = impl->get_offset();
  impl->set_offset(offset + 4);
  // splitmix64 of both, so that neighbouring offsets give unrelated numbers
  uint64_t mixed = impl->current_seed() + (offset + 1) * 0x9E3779B97F4A7C15ull;
  mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9ull;
  mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBull;
  return mixed ^ (mixed >> 31);
}

}  // namespace

void set_default_generator(DefaultGenerator find) {
  g_default_generator.store(find, std::memory_order_release);
}

int64_t draw_limit(const OpTraits& traits, const FakeModeOptions& options) {
  // A fake used outside its mode must not advance the generator of real tensors.
  const bool draws =
      traits.values == ValueSource::kDrawn && traits.is_builtin && !options.propagate_real_tensors && in_fake_mode();
  return draws ? std::min<int64_t>(options.drawn_values, options.known_values) : 0;
}

void with_generator(
    const Call& call,
    c10::Device device,
    torch::jit::Stack& arguments,
    const std::function<void()>& body) {
  c10::IValue* place = find_generator(call, arguments);
  const bool is_given = place != nullptr && place->isGenerator() && place->toGenerator().defined();
  if (is_given && place->toGenerator().device().is_cpu()) {
    return body();
  }
  if (!is_given && device.is_cpu()) {
    restore_when_left([]() -> std::function<void()> { return [before = copy_of_default()] { set_default(before); }; });
    return body();
  }
  const uint64_t seed =
      next_seed(is_given ? place->toGenerator() : g_default_generator.load(std::memory_order_acquire)(device));
  if (place != nullptr) {
    *place = at::make_generator<at::CPUGeneratorImpl>(seed);
    return body();
  }
  // An operator without a generator argument draws from the default generator, which is seeded temporarily.
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const at::Generator before = copy_of_default();
  {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard of_generator(generator.mutex());
    generator.unsafeGetGeneratorImpl()->set_current_seed(seed);
  }
  try {
    body();
  } catch (...) {
    set_default(before);
    throw;
  }
  set_default(before);
}

}  // namespace torchfake
