// torchfake's C++ API: tensors that claim a device, a dtype, sizes and strides, and hold no data.
//
//   torchfake::FakeMode mode;
//   at::Tensor x = torch::ones({1 << 20, 1 << 20}, torch::kCUDA);  // four terabytes that are not there
//   at::Tensor y = x.matmul(x);                                     // [1048576, 1048576] on cuda:0
#pragma once

#include <ATen/core/Tensor.h>

#include <torchfake/core/errors.h>
#include <torchfake/core/fake_mode.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace torchfake {

// Whether `tensor` is fake. Looks through the wrappers of functorch and functionalization.
bool is_fake(const at::Tensor& tensor);

// A meta tensor with the sizes, strides and dtype of `fake`, detached. Throws c10::ValueError if `fake` is not fake.
at::Tensor meta_like(const at::Tensor& fake);

// A fake with the metadata of a real or meta tensor, in the thread's mode (or one with default options). Tensors that
// share a storage become fakes that share one. Returns a fake unchanged.
// Throws UnsupportedFakeTensorException for a nested or MKL-DNN tensor, and for one without a storage.
at::Tensor to_fake(const at::Tensor& tensor, std::optional<c10::Device> device = std::nullopt);

class ShapeEnv;

// The symbols of a mode's sizes, and the guards that operators have recorded. Copies refer to the same symbols.
//
//   torchfake::FakeMode mode;
//   torchfake::SymbolicShapes shapes(mode);
//   at::Tensor x = torchfake::to_fake(real, {{0, "batch"}});
//   x.view({-1}).sym_size(0);        // 12*batch
//   shapes.guards();                 // batch >= 2
class SymbolicShapes {
 public:
  // Enables symbolic sizes for the mode's fakes. Throws c10::ValueError if the mode already has a SymbolicShapes.
  explicit SymbolicShapes(const FakeMode& mode);

  // The conditions on the symbols under which the results so far are valid, as text.
  std::vector<std::string> guards() const;
  // Whether the guards hold for these values of the symbols. Throws c10::ValueError for an unknown name, and if a
  // required symbol is missing.
  bool guards_hold(const std::map<std::string, int64_t>& values) const;
  // The value of a size for these values of the symbols. Throws DynamicShapesError for a size with other symbols.
  int64_t evaluate(const c10::SymInt& size, const std::map<std::string, int64_t>& values) const;

 private:
  std::shared_ptr<ShapeEnv> env_;
};

// A fake of a real tensor in the thread's mode with symbolic sizes: maps dimensions, where negative ones count from the
// end, to the names of symbols. Equal names denote the same symbol; an empty name selects the next free one. The
// current size is the hint. Throws c10::ValueError for a fake, outside a mode, for a mode without SymbolicShapes, and
// for a name with two different sizes; c10::IndexError for a dimension out of range.
at::Tensor to_fake(const at::Tensor& tensor, const std::map<int64_t, std::string>& dynamic);

// In the mode, a fake with the known values of the real tensor that `make` returns, if they are few enough
// (FakeModeOptions::known_values); outside a mode that tensor itself. For torch::tensor, which writes through a pointer
// that fakes do not have:
//
//   at::Tensor ids = torchfake::constant([] { return torch::tensor({2, 3, 5}); }).to(torch::kCUDA);
at::Tensor constant(const std::function<at::Tensor()>& make);

// The device a fake claims. Throws c10::ValueError if `fake` is not fake.
c10::Device fake_device(const at::Tensor& fake);

}  // namespace torchfake
