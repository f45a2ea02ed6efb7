// Symbolic rules of patches, grids, factorisations, histograms and recurrent layers. See Note [Symbolic calls].
#include <ATen/WrapDimUtils.h>

#include <torchfake/rules/symbolic_rules.h>

namespace torchfake {

namespace symbolic_rules {

namespace {

bool nothing(SymbolicCall& /*call*/) {
  return true;
}

// The outputs have the sizes computed for the stand-ins: they follow from arguments that are numbers.
bool numbers(SymbolicCall& call) {
  for (size_t i = 0; i < call.outputs.size(); ++i) {
    call.set_output(i, c10::fromIntArrayRefSlow(call.outputs[i].sizes()));
  }
  return true;
}

// ---- Patches --------------------------------------------------------------------------------------------------------

// The number of patches and the number of elements in each, from the arguments (kernel_size, dilation, padding, stride)
// at `first` and after.
struct Patches {
  c10::SymInt count = 1;
  int64_t elements = 1;
};

std::optional<Patches> patches_of(const SymbolicCall& call, size_t first, c10::SymIntArrayRef spatial) {
  std::array<std::vector<int64_t>, 4> each;
  for (size_t i = 0; i < each.size(); ++i) {
    each[i] = call.arg(first + i).toIntVector();
    each[i].resize(2, each[i].empty() ? 1 : each[i].back());
  }
  const auto& [kernel, dilation, padding, stride] = each;
  Patches patches;
  for (size_t i = 0; i < 2; ++i) {
    const c10::SymInt room = spatial[i] + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1;
    if (!guard(room.sym_ge(0))) {
      return std::nullopt;
    }
    patches.count = patches.count * (room / stride[i] + 1);
    patches.elements *= kernel[i];
  }
  return patches;
}

// (self, kernel_size, dilation, padding, stride): one column per patch.
bool image_to_columns(SymbolicCall& call) {
  const Sizes image = sizes_of(call.tensor(0));
  const size_t rank = image.size();
  if (rank != 3 && rank != 4) {
    return false;
  }
  const std::optional<Patches> patches = patches_of(call, 1, {image[rank - 2], image[rank - 1]});
  if (!patches) {
    return false;
  }
  Sizes sizes(image.begin(), image.end() - 2);
  sizes.back() = sizes.back() * patches->elements;
  sizes.push_back(patches->count);
  call.set_outputs(sizes);
  return true;
}

// (self, output_size, kernel_size, dilation, padding, stride)
bool columns_to_image(SymbolicCall& call) {
  const Sizes columns = sizes_of(call.tensor(0));
  const size_t rank = columns.size();
  const Sizes spatial = call.integers(1);
  if ((rank != 2 && rank != 3) || spatial.size() != 2) {
    return false;
  }
  const std::optional<Patches> patches = patches_of(call, 2, spatial);
  if (!patches || !guard((columns[rank - 2] % patches->elements).sym_eq(0)) ||
      !guard(columns[rank - 1].sym_eq(patches->count))) {
    return false;
  }
  Sizes sizes(columns.begin(), columns.end() - 1);
  sizes.back() = sizes.back() / patches->elements;
  sizes.insert(sizes.end(), spatial.begin(), spatial.end());
  call.set_outputs(sizes);
  return true;
}

// (theta, size, ...): coordinates in the image for every element of the output.
bool affine_grid(SymbolicCall& call) {
  const Sizes size = call.integers(1);
  if (size.size() < 3 || !guard(call.tensor(0).sym_size(0).sym_eq(size[0]))) {
    return false;
  }
  Sizes sizes(size.begin() + 2, size.end());
  sizes.insert(sizes.begin(), size[0]);
  sizes.emplace_back(static_cast<int64_t>(size.size()) - 2);
  call.set_outputs(sizes);
  return true;
}

// ---- Factorisations -------------------------------------------------------------------------------------------------

c10::SymInt smaller(const c10::SymInt& a, const c10::SymInt& b) {
  const std::optional<bool> is_first = decided(a.sym_le(b));
  return !is_first ? a.min(b) : *is_first ? a : b;
}

// (self): the factors in place of the matrices, and one scale per reflector.
bool geqrf(SymbolicCall& call) {
  const Sizes matrices = sizes_of(call.tensor(0));
  const size_t rank = matrices.size();
  if (rank < 2) {
    return false;
  }
  Sizes scales(matrices.begin(), matrices.end() - 1);
  scales.back() = smaller(matrices[rank - 2], matrices[rank - 1]);
  call.set_output(0, matrices);
  call.set_output(1, scales);
  return true;
}

// (self, b, ...): solutions, residuals, ranks and singular values. The last three are empty if the algorithm or the
// shape does not produce them.
bool least_squares(SymbolicCall& call) {
  const Sizes matrices = sizes_of(call.tensor(0));
  const Sizes sides = sizes_of(call.tensor(1));
  const size_t rank = matrices.size();
  if (rank < 2 || sides.size() != rank || !guard(matrices[rank - 2].sym_eq(sides[rank - 2]))) {
    return false;
  }
  const bool is_tall = matrices[rank - 2].sym_gt(matrices[rank - 1]).guard_bool(__FILE__, __LINE__);
  Sizes batch(matrices.begin(), matrices.end() - 2);
  if (!broadcast(batch, {sides.data(), rank - 2})) {
    return false;
  }
  const auto with = [&](std::initializer_list<c10::SymInt> last) {
    Sizes sizes = batch;
    sizes.insert(sizes.end(), last.begin(), last.end());
    return sizes;
  };
  call.set_output(0, with({matrices[rank - 1], sides[rank - 1]}));
  const auto set_unless_empty = [&](size_t output, const Sizes& sizes) {
    const at::Tensor& made = call.outputs.at(output);
    call.set_output(output, made.dim() == 1 && made.size(0) == 0 ? Sizes{c10::SymInt(0)} : sizes);
  };
  set_unless_empty(1, with({sides[rank - 1]}));
  set_unless_empty(2, batch);
  set_unless_empty(3, with({is_tall ? matrices[rank - 1] : matrices[rank - 2]}));
  return true;
}

// (tensors): one after the other on the diagonal.
bool block_diag(SymbolicCall& call) {
  Sizes sizes(2, c10::SymInt(0));
  for (const at::Tensor& block : call.arg(0).toTensorVector()) {
    const int64_t rank = block.dim();
    sizes[0] = sizes[0] + (rank == 2 ? block.sym_size(0) : c10::SymInt(1));
    sizes[1] = sizes[1] + (rank == 0 ? c10::SymInt(1) : block.sym_size(rank - 1));
  }
  call.set_output(0, sizes);
  return true;
}

// ---- Histograms -----------------------------------------------------------------------------------------------------

// (self, bins, ...): one count between two edges.
bool histogram_of_edges(SymbolicCall& call) {
  const c10::SymInt edges = call.tensor(1).sym_size(0);
  call.set_output(0, {edges - 1});
  call.set_output(1, {edges});
  return true;
}

// (self, edges per dimension, ...)
bool histogram_of_many_edges(SymbolicCall& call) {
  const std::vector<at::Tensor> edges = call.arg(1).toTensorVector();
  const Sizes points = sizes_of(call.tensor(0));
  if (points.empty() || !guard(points.back().sym_eq(static_cast<int64_t>(edges.size())))) {
    return false;
  }
  Sizes sizes;
  for (const at::Tensor& each : edges) {
    sizes.push_back(each.sym_size(0) - 1);
  }
  call.set_outputs(sizes);
  return true;
}

// (self, bins per dimension, ...)
bool histogram_of_counts(SymbolicCall& call) {
  const Sizes points = sizes_of(call.tensor(0));
  const auto dims = static_cast<int64_t>(call.arg(1).toListRef().size());
  return !points.empty() && guard(points.back().sym_eq(dims)) && numbers(call);
}

// ---- Recurrent layers -----------------------------------------------------------------------------------------------

// (input, four weights, hx, cx, ..., hidden_size, ...): the outputs, the last states and a workspace.
bool recurrent_layer(SymbolicCall& call) {
  Sizes outputs = sizes_of(call.tensor(0));
  if (outputs.size() != 3) {
    return false;
  }
  outputs[2] = call.integer(call.arg_named("hidden_size"));
  call.set_output(0, outputs);
  call.set_output(1, sizes_of(call.tensor(5)));
  call.set_output(2, sizes_of(call.tensor(6)));
  call.set_output(3, {c10::SymInt(0)});
  return true;
}

// (input, four weights, hx, cx, ...): the gradients of these. Those of the biases have the sizes computed for the
// stand-ins.
bool recurrent_layer_backward(SymbolicCall& call) {
  for (const size_t each : {0, 1, 2, 5, 6}) {
    call.set_output(each, sizes_of(call.tensor(each)));
  }
  for (const size_t bias : {3, 4}) {
    if (call.outputs.at(bias).defined()) {
      call.set_output(bias, c10::fromIntArrayRefSlow(call.outputs[bias].sizes()));
    }
  }
  return true;
}

constexpr Row kRows[] = {
    {"mkldnn_rnn_layer", &recurrent_layer},
    {"mkldnn_rnn_layer_backward", &recurrent_layer_backward, Use::kHintsOnly},
    {"_linalg_check_errors", &nothing, Use::kHintsOnly},
    {"block_diag", &block_diag},
    {"im2col", &image_to_columns},
    {"col2im", &columns_to_image},
    {"affine_grid_generator", &affine_grid},
    {"geqrf", &geqrf},
    {"linalg_lstsq", &least_squares, Use::kHintsOnly},
    {"histogram.bins_tensor", &histogram_of_edges},
    {"histogram.bin_ct", &numbers, Use::kHintsOnly},
    {"_histogramdd_bin_edges _histogramdd_from_bin_cts", &histogram_of_counts, Use::kHintsOnly},
    {"_histogramdd_from_bin_tensors", &histogram_of_many_edges},
};

}  // namespace

c10::ArrayRef<Row> decompositions() {
  return kRows;
}

}  // namespace symbolic_rules

}  // namespace torchfake
