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
// share a storage become fakes that share one. A fake comes back as it is.
// Throws UnsupportedFakeTensorException for tensors that are not strided, or quantized.
at::Tensor to_fake(const at::Tensor& tensor, std::optional<c10::Device> device = std::nullopt);

class ShapeEnv;

// The symbols of a mode's sizes, and the guards that operators asked for. A copy is the same one.
//
//   torchfake::FakeMode mode;
//   torchfake::SymbolicShapes shapes(mode);
//   at::Tensor x = torchfake::to_fake(real, {{0, "batch"}});
//   x.view({-1}).sym_size(0);        // 12*batch
//   shapes.guards();                 // batch >= 2
class SymbolicShapes {
 public:
  // From now on sizes of the mode's fakes can be symbols. A mode has one of these; throws c10::ValueError where it has one
  // already.
  explicit SymbolicShapes(const FakeMode& mode);

  // What has to hold of the symbols for the results so far, readable.
  std::vector<std::string> guards() const;
  // Whether that is so where the symbols have these values. Throws c10::ValueError for a name that is no symbol, and where
  // one that counts is missing.
  bool guards_hold(const std::map<std::string, int64_t>& values) const;
  // The value of a size there. Throws DynamicShapesError for a size of other symbols.
  int64_t evaluate(const c10::SymInt& size, const std::map<std::string, int64_t>& values) const;

 private:
  std::shared_ptr<ShapeEnv> env_;
};

// A fake of a real tensor in the thread's mode, some of whose sizes are symbols: by dimension, negative ones counted from the
// end, with the names of the symbols. Equal names are one symbol; an empty one takes the next free. The size now is the hint.
// Throws c10::ValueError for a fake, outside of a mode, for a mode without SymbolicShapes, and for one name with two sizes;
// c10::IndexError for a dimension that the tensor does not have.
at::Tensor to_fake(const at::Tensor& tensor, const std::map<int64_t, std::string>& dynamic);

// In the mode, a fake that knows the values of the real tensor that `make` returns, if they are few enough for it
// (FakeModeOptions::known_values); elsewhere that tensor. For torch::tensor, which writes through a pointer that fakes do
// not have:
//
//   at::Tensor ids = torchfake::constant([] { return torch::tensor({2, 3, 5}); }).to(torch::kCUDA);
at::Tensor constant(const std::function<at::Tensor()>& make);

// The device a fake claims. Throws c10::ValueError if `fake` is not fake.
c10::Device fake_device(const at::Tensor& fake);

}  // namespace torchfake
