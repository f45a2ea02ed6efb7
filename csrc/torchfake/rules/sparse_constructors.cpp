// Sparse tensors made by composite operators: compressed ones from their members, COO ones without a size.
#include <torchfake/core/errors.h>
#include <torchfake/core/layout_fake.h>
#include <torchfake/core/plain_cpu.h>
#include <torchfake/core/to_fake.h>
#include <torchfake/rules/sparse.h>
#include <torchfake/values/known_values.h>

#include <algorithm>
#include <array>

namespace torchfake {

bool make_compressed_tensor(const Call& call) {
  std::array<at::Tensor, 3> members;
  for (size_t i = 0; i < members.size(); ++i) {
    members[i] = call.arg(i).toTensor();
    if (as_fake(members[i]) == nullptr) {
      raise(
          ErrorKind::kRealTensor,
          call.op_name(),
          c10::str(
              "argument '",
              call.op.schema().arguments()[i].name(),
              "' is a real tensor and others are fake; convert it with torchfake.to_fake, or create it inside the "
              "mode."));
    }
  }
  const FakeTensorImpl& fake = *as_fake(members[2]);
  const ModePtr mode = fake.mode();
  const c10::Device device = call.device_arg() ? normalize_device(*call.device_arg()) : fake.claimed_device();
  for (at::Tensor& member : members) {
    member = member.device() == device ? member : member.to(device);
  }
  std::array<at::Tensor, 3> plain;
  std::transform(members.begin(), members.end(), plain.begin(), &to_meta);
  torch::jit::Stack arguments(call.stack->end() - static_cast<ptrdiff_t>(call.num_args()), call.stack->end());
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (i < plain.size()) {
      arguments[i] = plain[i];
    } else if (call.traits.args[i].kind == ArgKind::kDevice) {
      arguments[i] = c10::Device(c10::kMeta);
    }
  }
  {
    PlainCpu no_engine;
    call.op.callBoxed(&arguments);
  }
  torch::jit::drop(*call.stack, call.num_args());
  call.stack->emplace_back(make_layout_fake(arguments.back().toTensor(), members, device, mode));
  return true;
}

void check_size_is_known(const Call& call) {
  const at::Tensor indices = call.arg(0).toTensor();
  const FakeTensorImpl* fake = as_fake(indices);
  if (fake != nullptr && indices.numel() > 0 && !is_in_memory(*fake)) {
    raise(
        ErrorKind::kDynamicOutputShape,
        call.op_name(),
        "without a size the shape of the result follows from the largest indices, and this fake tensor holds no "
        "values; pass the size.");
  }
}

}  // namespace torchfake
