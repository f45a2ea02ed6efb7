// Which scaling recipes can be combined, as defined in a header of PyTorch's kernels.
#include <torchfake/rules/scaling_recipes.h>

#include <torchfake/core/compat.h>

#if TORCHFAKE_HAS_SCALING_RECIPES
#include <ATen/native/ScaledBlasUtils.h>
#endif

namespace torchfake {

#if TORCHFAKE_HAS_SCALING_RECIPES

namespace {

using Kind = at::blas::ScalingType;

std::vector<Kind> kinds_of(const ScalingRecipe& recipe) {
  return at::native::scaled::convert_int_to_enum<Kind>(recipe.kinds);
}

}  // namespace

bool is_by_rows(const ScalingRecipe& recipe) {
  return kinds_of(recipe).front() == Kind::RowWise;
}

bool go_together(const ScalingRecipe& a, const ScalingRecipe& b, bool on_gpu) {
  namespace scaled = at::native::scaled;
  std::vector<Kind> kinds_a = kinds_of(a);
  std::vector<Kind> kinds_b = kinds_of(b);
  c10::ArrayRef<at::Tensor> scales_a = a.scales;
  c10::ArrayRef<at::Tensor> scales_b = b.scales;
  const auto holds = [&](auto check) { return check(a.dtype, kinds_a, scales_a, b.dtype, kinds_b, scales_b); };
  if (holds(&scaled::check_tensorwise_recipe) || holds(&scaled::check_rowwise_recipe)) {
    return true;
  }
  const auto in_blocks = [&](Kind first, Kind second) {
    return scaled::check_deepseek_recipe(first, second, a.dtype, kinds_a, scales_a, b.dtype, kinds_b, scales_b);
  };
  return on_gpu &&
      (in_blocks(Kind::BlockWise1x128, Kind::BlockWise128x128) ||
       in_blocks(Kind::BlockWise128x128, Kind::BlockWise1x128) ||
       in_blocks(Kind::BlockWise1x128, Kind::BlockWise1x128) || holds(&scaled::check_nvfp4_recipe) ||
       holds(&scaled::check_nvfp4_recipe_single_scale) || holds(&scaled::check_mxfp8_recipe) ||
       holds(&scaled::check_mxfp4_recipe));
}

#else

bool is_by_rows(const ScalingRecipe& /*recipe*/) {
  return false;
}

bool go_together(const ScalingRecipe& /*a*/, const ScalingRecipe& /*b*/, bool /*on_gpu*/) {
  return true;
}

#endif

}  // namespace torchfake
