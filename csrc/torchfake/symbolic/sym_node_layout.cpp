// PyTorch's queries about the layout of a symbolic tensor, evaluated from its sizes and strides.
#include <torchfake/symbolic/errors.h>
#include <torchfake/symbolic/sym_node.h>

#include <numeric>

namespace torchfake {

// Whether a tensor is contiguous with its dimensions in this order, innermost first.
c10::SymNode SymExprNode::is_contiguous_in_order(
    c10::ArrayRef<c10::SymNode> sizes,
    c10::ArrayRef<c10::SymNode> strides,
    c10::ArrayRef<int64_t> order) const {
  return at_the_boundary([&]() -> c10::SymNode {
    ExprPtr expected = pool().integer(1);
    ExprPtr all = pool().boolean(true);
    ExprPtr any_empty = pool().boolean(false);
    for (const int64_t dim : order) {
      const ExprPtr size = unwrap(sizes[dim]);
      const ExprPtr fits =
          pool().logical_or(pool().eq(size, pool().integer(1)), pool().eq(unwrap(strides[dim]), expected));
      if (!env_->decide(fits, Asking::kStatically)) {
        all = pool().logical_and(all, fits);
      }
      any_empty = pool().logical_or(any_empty, pool().eq(size, pool().integer(0)));
      expected = pool().mul(expected, size);
    }
    return wrap(pool().logical_or(all, any_empty));
  });
}

c10::SymNode SymExprNode::is_contiguous(c10::ArrayRef<c10::SymNode> sizes, c10::ArrayRef<c10::SymNode> strides) {
  c10::SmallVector<int64_t, 5> order(sizes.size());
  std::iota(order.rbegin(), order.rend(), 0);
  return is_contiguous_in_order(sizes, strides, order);
}

c10::SymNode SymExprNode::is_channels_last_contiguous_2d(
    c10::ArrayRef<c10::SymNode> sizes,
    c10::ArrayRef<c10::SymNode> strides) {
  return sizes.size() == 4 ? is_contiguous_in_order(sizes, strides, {1, 3, 2, 0}) : wrap_bool(false);
}

c10::SymNode SymExprNode::is_channels_last_contiguous_3d(
    c10::ArrayRef<c10::SymNode> sizes,
    c10::ArrayRef<c10::SymNode> strides) {
  return sizes.size() == 5 ? is_contiguous_in_order(sizes, strides, {1, 4, 3, 2, 0}) : wrap_bool(false);
}

// The strides of sizes without hints cannot be sorted, so only contiguous channels-last tensors are recognised.
c10::SymNode SymExprNode::is_channels_last_strides_2d(
    c10::ArrayRef<c10::SymNode> sizes,
    c10::ArrayRef<c10::SymNode> strides) {
  return is_channels_last_contiguous_2d(sizes, strides);
}

c10::SymNode SymExprNode::is_channels_last_strides_3d(
    c10::ArrayRef<c10::SymNode> sizes,
    c10::ArrayRef<c10::SymNode> strides) {
  return is_channels_last_contiguous_3d(sizes, strides);
}

// Searches for an order of the dimensions in which each stride is the product of the preceding sizes.
c10::SymNode SymExprNode::is_non_overlapping_and_dense(
    c10::ArrayRef<c10::SymNode> sizes,
    c10::ArrayRef<c10::SymNode> strides) {
  return at_the_boundary([&]() -> c10::SymNode {
    ExprPtr expected = pool().integer(1);
    c10::SmallVector<bool, 5> is_placed(sizes.size(), false);
    for (size_t placed = 0; placed < sizes.size(); ++placed) {
      size_t dim = 0;
      for (; dim < sizes.size(); ++dim) {
        const auto fits = [&] {
          return env_->decide(
              pool().logical_or(
                  pool().eq(unwrap(sizes[dim]), pool().integer(1)), pool().eq(unwrap(strides[dim]), expected)),
              Asking::kStatically);
        };
        if (!is_placed[dim] && fits()) {
          break;
        }
      }
      if (dim == sizes.size()) {
        return wrap_bool(false);
      }
      is_placed[dim] = true;
      expected = pool().mul(expected, unwrap(sizes[dim]));
    }
    return wrap_bool(true);
  });
}

}  // namespace torchfake
