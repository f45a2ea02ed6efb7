// Constant propagation: runs the real operator on known values alongside a call, and gives its results to the fakes.
#include <ATen/MemoryOverlap.h>
#include <ATen/core/List.h>
#include <ATen/ops/empty.h>

#include <torchfake/core/each_tensor.h>
#include <torchfake/core/errors.h>
#include <torchfake/core/fake_storage.h>
#include <torchfake/core/plain_cpu.h>
#include <torchfake/core/pytorch_errors.h>
#include <torchfake/values/draws.h>
#include <torchfake/values/known_values.h>
#include <torchfake/values/repeated_values.h>
#include <torchfake/values/single_precision.h>
#include <torchfake/values/value_tracker.h>

namespace torchfake {

namespace {

std::vector<at::Tensor> flat_tensors(c10::ArrayRef<c10::IValue> values) {
  std::vector<at::Tensor> tensors;
  for_each_tensor(values, [&](const at::Tensor& tensor) { tensors.push_back(tensor); });
  return tensors;
}

// If elements share memory, it is not possible to track which of them have been written.
bool overlaps_itself(const FakeTensorImpl& fake) {
  return at::has_internal_overlap(const_cast<FakeTensorImpl*>(&fake)) == at::MemOverlap::Yes;
}

class Silence final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& /*warning*/) override {}
};

}  // namespace

// The real tensor in place of a fake argument.
at::Tensor ValueTracker::real_argument(const FakeTensorImpl& fake, size_t arg) const {
  const ArgTraits& facts = call_.traits.args[arg];
  std::optional<at::Tensor> known = facts.is_out ? std::nullopt : known_tensor(fake, limit_);
  if (!known && !facts.is_written) {
    known = repeated_tensor(fake, limit_);
  }
  const bool partial = !known && facts.is_written && !facts.is_out && fake.has_storage() &&
      partly_known_bytes(storage_of(fake)) != nullptr;
  at::Tensor tensor;
  if (known) {
    tensor = *known;
  } else if (partial) {
    tensor = view_of_bytes(fake);
  } else {
    // Not read: the operator needs only its shape, or fills it. A tensor to fill has the right size already, because
    // not every kernel checks that its result fits.
    PlainCpu plain;
    tensor = fake.numel() > limit_ ? at::empty({0}, at::TensorOptions().dtype(fake.dtype()).device(c10::kCPU))
                                   : new_buffer(fake).zero_();
  }
  for (Written& written : written_) {
    if (written.fake.get() == &fake && written.arg == arg) {
      written.real = tensor;
      written.is_new = !known && !partial;
      written.is_partial = partial;
    }
  }
  return tensor;
}

// The arguments of the call for the real operator. Notes the tensors that it writes to.
torch::jit::Stack ValueTracker::real_arguments() const {
  torch::jit::Stack real;
  const auto substitute = [&](const c10::IValue& value, size_t arg) -> c10::IValue {
    const FakeTensorImpl* fake = value.isTensor() && value.toTensor().defined() ? as_fake(value.toTensor()) : nullptr;
    return fake == nullptr ? value : c10::IValue(real_argument(*fake, arg));
  };
  for (size_t i = 0; i < call_.num_args(); ++i) {
    const c10::IValue& value = call_.arg(i);
    switch (call_.traits.args[i].kind) {
      case ArgKind::kTensor:
        real.push_back(substitute(value, i));
        break;
      case ArgKind::kTensorList: {
        if (!value.isList()) {
          real.push_back(value);
          break;
        }
        c10::impl::GenericList list = value.toList().copy();
        for (size_t j = 0; j < list.size(); ++j) {
          list.set(j, substitute(list.get(j), i));
        }
        real.emplace_back(std::move(list));
        break;
      }
      case ArgKind::kDevice:
        real.emplace_back(c10::Device(c10::kCPU));
        break;
      case ArgKind::kPinMemory:
        real.emplace_back();
        break;
      default:
        real.push_back(value);
    }
  }
  return real;
}

void ValueTracker::run_real(Call& call) const {
  torch::jit::Stack real = real_arguments();
  {
    PlainCpu plain;
    call.op.callBoxed(&real);
  }
  torch::jit::drop(*call.stack, call.num_args());
  for (c10::IValue& value : real) {
    call.stack->push_back(std::move(value));
  }
}

bool ValueTracker::outputs_fit(const Call& call) const {
  bool fit = true;
  const int64_t limit = draws_ > 0 ? draws_ : limit_;
  for_each_tensor(outputs_of(call), [&](const at::Tensor& tensor) {
    fit = fit && (!tensor.defined() || (tensor.numel() <= limit && as_fake(tensor) != nullptr));
  });
  for (const Written& written : written_) {
    // The first write must fill the whole storage, or one of which every element is tracked: otherwise the rest of it is
    // unknown.
    fit = fit && written.fake->numel() <= limit_ &&
        (!written.is_new || fills_storage(*written.fake) || partly_known_bytes(storage_of(*written.fake)) != nullptr);
  }
  return fit;
}

void ValueTracker::forget_written() const {
  for (const Written& written : written_) {
    if (c10::StorageImpl* storage = storage_of(*written.fake)) {
      forget_known_bytes(storage);
    }
  }
}

void ValueTracker::finish_written(const torch::jit::Stack& real_outputs, const Call& call) const {
  for (const Written& written : written_) {
    const auto& fake = static_cast<const FakeTensorImpl&>(*written.fake);
    if (written.is_partial) {
      mark_written(fake);
    }
    if (!written.is_new) {
      continue;
    }
    if (overlaps_itself(fake) || written.real.sizes() != fake.sizes()) {
      forget_known_bytes(storage_of(fake));
    } else if (std::optional<at::Tensor> known = known_tensor(fake, limit_)) {
      PlainCpu plain;
      known->copy_(written.real);
    } else if (partly_known_bytes(storage_of(fake)) != nullptr) {
      PlainCpu plain;
      view_of_bytes(fake).copy_(written.real);
      mark_written(fake);
    } else {
      make_known(fake, written.real);
    }
  }
  const std::vector<at::Tensor> reals = flat_tensors(real_outputs);
  const std::vector<at::Tensor> fakes = flat_tensors(outputs_of(call));
  TORCH_INTERNAL_ASSERT(reals.size() == fakes.size());
  for (size_t i = 0; i < fakes.size(); ++i) {
    if (fakes[i].defined() && reals[i].defined()) {
      finish_output(*as_fake(fakes[i]), reals[i]);
    }
  }
}

// Whether the storage of a fake that does not fill it is small enough to be allocated.
bool ValueTracker::is_affordable(const FakeTensorImpl& fake) const {
  const c10::StorageImpl* storage = storage_of(fake);
  return storage != nullptr && storage->nbytes() / fake.itemsize() <= static_cast<size_t>(limit_) &&
      has_room_for(fake, 2 * storage->nbytes());
}

void ValueTracker::finish_output(const FakeTensorImpl& fake, const at::Tensor& real) const {
  const bool propagates = mode_.options.propagate_real_tensors;
  // On devices other than the CPU, PyTorch's own operators may return different metadata.
  if (propagates && (fake.claimed_device().is_cpu() || !call_.traits.is_builtin)) {
    check_agreement(fake, real);
  }
  if (partly_known_bytes(storage_of(fake)) != nullptr || real.sizes() != fake.sizes() || overlaps_itself(fake) ||
      (!propagates && real.dtype() != fake.dtype())) {
    return;
  }
  PlainCpu plain;
  const at::Tensor values = real.to(fake.dtype().toScalarType());
  if (fills_storage(fake)) {
    make_known(fake, values);
  } else if (is_affordable(fake)) {
    expect_values(fake);
    view_of_bytes(fake).copy_(values);
    mark_written(fake);
  }
}

void ValueTracker::check_agreement(const FakeTensorImpl& fake, const at::Tensor& real) const {
  if (real.sizes() != fake.sizes() || real.dtype() != fake.dtype()) {
    raise(
        ErrorKind::kMetadataMismatch,
        call_.op_name(),
        c10::str(
            "the fake result has sizes ",
            fake.sizes(),
            " and type ",
            fake.dtype(),
            ", the real one ",
            real.sizes(),
            " and ",
            real.dtype(),
            "; if the operator is yours, mend its register_fake."));
  }
}

// The single fresh output of a call, if known values can be attached to it.
const FakeTensorImpl* ValueTracker::only_output(const Call& call) {
  const c10::IValue& value = outputs_of(call).front();
  const FakeTensorImpl* fake = value.isTensor() ? as_fake(value.toTensor()) : nullptr;
  const bool usable = fake != nullptr && fills_storage(*fake) && partly_known_bytes(storage_of(*fake)) == nullptr;
  return usable ? fake : nullptr;
}

// Runs the real operator on the known values. Returns false if the CPU cannot run it (no kernel for a dtype, for
// example) but the claimed device might.
bool ValueTracker::run_aside(const Call& call, c10::Device device) {
  // The warning about resizing an out= argument was already given for the fake.
  static Silence silence;
  std::optional<c10::WarningUtils::WarningHandlerGuard> silent;
  if (has_out_) {
    silent.emplace(&silence);
  }
  try {
    if (draws_ > 0) {
      with_generator(call, device, real_, [&] {
        PlainCpu plain;
        call.op.callBoxed(&real_);
      });
      return true;
    }
    PlainCpu plain;
    const CpuEquivalent* equivalent = call.traits.cpu_equivalent;
    if (equivalent != nullptr && !device.is_cpu()) {
      equivalent->kernel.callBoxed(call.op, c10::DispatchKeySet(c10::DispatchKey::CPU), &real_);
    } else if (is_half_precision_product(call)) {
      call_in_single_precision(call, real_);
    } else {
      call.op.callBoxed(&real_);
    }
    return true;
  } catch (const c10::Error& error) {
    forget_written();
    if (device.is_cpu() || is_out_of_memory(error)) {
      throw;
    }
    return false;
  }
}

}  // namespace torchfake
