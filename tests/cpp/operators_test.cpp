// Calls at:: functions in a process without Python: each runs on inputs too large to be tried on zeros, on the CPU and
// on an absent GPU, forward and, if it has one, backward. Functions whose CPU backward reads values run on detached
// inputs: max, median, prod and cumprod.
#include <functional>

#include "testing.h"

namespace torchfake::testing {

namespace {

namespace F = torch::nn::functional;

using Run = std::function<std::vector<at::Tensor>(c10::Device)>;

struct Operator {
  const char* name;
  Run run;
};

// 2^24 floats: an operator without a meta kernel would be refused.
constexpr int64_t kLarge = 1 << 12;

at::Tensor matrix(c10::Device device) {
  return torch::rand({kLarge, kLarge}, on(device)).requires_grad_();
}

at::Tensor images(c10::Device device) {
  return torch::rand({64, 16, 128, 128}, on(device)).requires_grad_();
}

at::Tensor volumes(c10::Device device) {
  return torch::rand({16, 16, 64, 32, 32}, on(device)).requires_grad_();
}

at::Tensor indices(c10::Device device, c10::IntArrayRef sizes, int64_t high = 4) {
  return torch::randint(high, sizes, on(device).dtype(at::kLong));
}

template <typename Function>
Run of_matrix(Function function) {
  return [function](c10::Device device) -> std::vector<at::Tensor> { return {function(matrix(device))}; };
}

template <typename Function>
Run of_images(Function function) {
  return [function](c10::Device device) -> std::vector<at::Tensor> { return {function(images(device))}; };
}

template <typename Function>
Run of_volumes(Function function) {
  return [function](c10::Device device) -> std::vector<at::Tensor> { return {function(volumes(device))}; };
}

// A loss of two matrices.
template <typename Function>
Run of_pair(Function function) {
  return [function](c10::Device device) -> std::vector<at::Tensor> {
    return {function(matrix(device), torch::rand({kLarge, kLarge}, on(device)))};
  };
}

const std::vector<Operator>& operators() {
  static const std::vector<Operator> kOperators = {
      {"hardswish", of_matrix([](const at::Tensor& x) { return at::hardswish(x); })},
      {"hardtanh", of_matrix([](const at::Tensor& x) { return at::hardtanh(x); })},
      {"relu6", of_matrix([](const at::Tensor& x) { return at::relu6(x); })},
      {"log_sigmoid", of_matrix([](const at::Tensor& x) { return at::log_sigmoid(x); })},
      {"logit", of_matrix([](const at::Tensor& x) { return at::logit(x, 1e-6); })},
      {"glu", of_matrix([](const at::Tensor& x) { return at::glu(x); })},
      {"prelu", of_matrix([](const at::Tensor& x) { return at::prelu(x, at::rand({1}, x.options())); })},
      {"rrelu", of_matrix([](const at::Tensor& x) { return at::rrelu(x, 0.1, 0.3, /*training=*/true); })},
      {"nan_to_num", of_matrix([](const at::Tensor& x) { return at::nan_to_num(x); })},
      {"dropout", of_matrix([](const at::Tensor& x) { return at::dropout(x, 0.1, /*train=*/true); })},
      {"floor_divide", of_matrix([](const at::Tensor& x) { return at::floor_divide(x.detach(), 2); })},
      {"remainder", of_matrix([](const at::Tensor& x) { return at::remainder(2, x.detach()); })},
      {"rsub", of_matrix([](const at::Tensor& x) { return at::rsub(x, 2); })},
      {"isnan", of_matrix([](const at::Tensor& x) { return at::isnan(x); })},
      {"repeat", of_matrix([](const at::Tensor& x) { return x.repeat({2, 1}); })},
      {"roll", of_matrix([](const at::Tensor& x) { return at::roll(x, 3, 1); })},
      {"flip", of_matrix([](const at::Tensor& x) { return at::flip(x, {0}); })},
      {"tril", of_matrix([](const at::Tensor& x) { return at::tril(x); })},
      {"layer_norm", of_matrix([](const at::Tensor& x) { return at::layer_norm(x, {kLarge}); })},
      {"rms_norm", of_matrix([](const at::Tensor& x) { return at::rms_norm(x, {kLarge}); })},
      {"weight_norm", of_matrix([](const at::Tensor& x) {
         return at::_weight_norm(x, at::rand({kLarge, 1}, x.options()).requires_grad_());
       })},

      {"sort", of_matrix([](const at::Tensor& x) { return std::get<0>(at::sort(x)); })},
      {"topk", of_matrix([](const at::Tensor& x) { return std::get<0>(at::topk(x, 5)); })},
      {"kthvalue", of_matrix([](const at::Tensor& x) { return std::get<0>(at::kthvalue(x, 5)); })},
      {"mode", of_matrix([](const at::Tensor& x) { return std::get<0>(at::mode(x)); })},
      {"median", of_matrix([](const at::Tensor& x) { return at::median(x.detach()); })},
      {"median_dim", of_matrix([](const at::Tensor& x) { return std::get<0>(at::median(x, 1)); })},
      {"max", of_matrix([](const at::Tensor& x) { return at::max(x.detach()); })},
      {"max_dim", of_matrix([](const at::Tensor& x) { return std::get<0>(at::max(x, 1)); })},
      {"cummax", of_matrix([](const at::Tensor& x) { return std::get<0>(at::cummax(x, 1)); })},
      {"cummin", of_matrix([](const at::Tensor& x) { return std::get<0>(at::cummin(x, 1)); })},
      {"cumsum", of_matrix([](const at::Tensor& x) { return at::cumsum(x, 1); })},
      {"cumprod", of_matrix([](const at::Tensor& x) { return at::cumprod(x.detach(), 1); })},
      {"logcumsumexp", of_matrix([](const at::Tensor& x) { return at::logcumsumexp(x, 1); })},
      {"prod", of_matrix([](const at::Tensor& x) { return at::prod(x.detach(), 1); })},
      {"nansum", of_matrix([](const at::Tensor& x) { return at::nansum(x, 1); })},
      {"count_nonzero", of_matrix([](const at::Tensor& x) { return at::count_nonzero(x, at::IntArrayRef({1})); })},
      {"trace", of_matrix([](const at::Tensor& x) { return at::trace(x); })},
      {"dot", of_matrix([](const at::Tensor& x) { return at::dot(x.flatten(), x.flatten()); })},
      {"std", of_matrix([](const at::Tensor& x) { return at::std(x, 1); })},
      {"bucketize",
       of_matrix([](const at::Tensor& x) { return at::bucketize(x.detach(), at::rand({9}, x.options())); })},
      {"searchsorted",
       of_matrix([](const at::Tensor& x) { return at::searchsorted(x.detach(), at::rand({kLarge, 3}, x.options())); })},
      {"multinomial", of_matrix([](const at::Tensor& x) { return at::multinomial(x.detach(), 3); })},
      {"bernoulli", of_matrix([](const at::Tensor& x) { return at::bernoulli(x.detach()); })},
      {"histc", of_matrix([](const at::Tensor& x) { return at::histc(x.detach(), 10, 0, 1); })},
      {"gather", of_matrix([](const at::Tensor& x) { return at::gather(x, 1, indices(x.device(), {kLarge, 7})); })},
      {"scatter_add", of_matrix([](const at::Tensor& x) {
         return at::scatter_add(at::zeros({kLarge, 9}, x.options()), 1, indices(x.device(), {kLarge, kLarge}), x);
       })},
      {"index",
       of_matrix([](const at::Tensor& x) { return x.index({indices(x.device(), {5}), torch::indexing::Slice()}); })},
      {"index_put", of_matrix([](const at::Tensor& x) {
         return at::index_put(x, {indices(x.device(), {5})}, at::rand({5, kLarge}, x.options()));
       })},
      {"index_add", of_matrix([](const at::Tensor& x) {
         return at::index_add(x, 0, indices(x.device(), {5}), at::rand({5, kLarge}, x.options()));
       })},
      {"index_put_mask", of_matrix([](const at::Tensor& x) {
         return x.clone().index_put_({x.detach().gt(0.5)}, at::zeros({}, x.options()));
       })},
      {"masked_scatter",
       of_matrix([](const at::Tensor& x) { return at::masked_scatter(x, x.detach().gt(0.5), at::rand_like(x)); })},
      {"put",
       of_matrix([](const at::Tensor& x) { return at::put(x, indices(x.device(), {5}), at::rand({5}, x.options())); })},
      {"select_scatter",
       of_matrix([](const at::Tensor& x) { return at::select_scatter(x, at::rand({kLarge}, x.options()), 0, 1); })},
      {"slice_scatter", of_matrix([](const at::Tensor& x) {
         return at::slice_scatter(x, at::rand({2, kLarge}, x.options()), 0, 1, 3);
       })},
      {"permute_copy", of_matrix([](const at::Tensor& x) { return at::permute_copy(x, {1, 0}); })},
      {"unbind_copy", of_matrix([](const at::Tensor& x) { return at::unbind_copy(x)[0]; })},
      {"bernoulli_", of_matrix([](const at::Tensor& x) { return x.detach().bernoulli_(0.5); })},
      {"cauchy_", of_matrix([](const at::Tensor& x) { return x.detach().cauchy_(); })},
      {"exponential_", of_matrix([](const at::Tensor& x) { return x.detach().exponential_(); })},
      {"log_normal_", of_matrix([](const at::Tensor& x) { return x.detach().log_normal_(); })},
      {"fake_quantize",
       of_matrix([](const at::Tensor& x) { return at::fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127); })},
      {"fake_quantize_channels", of_matrix([](const at::Tensor& x) {
         const at::Tensor zeros = at::zeros({kLarge}, x.options().dtype(at::kInt).requires_grad(false));
         return at::fake_quantize_per_channel_affine(x, at::ones({kLarge}, on(x.device())), zeros, 0, -128, 127);
       })},
      {"lstsq", of_matrix([](const at::Tensor& x) {
         return std::get<0>(at::linalg_lstsq(x, at::rand({kLarge, 2}, x.options()), std::nullopt, "gels"));
       })},
      {"grouped_mm", of_matrix([](const at::Tensor& x) {
         const at::Tensor ends = indices(x.device(), {2}).to(at::kInt);
         return at::_grouped_mm(x, at::rand({2, kLarge, 8}, x.options()), ends).square();
       })},
      {"take", of_matrix([](const at::Tensor& x) { return at::take(x, indices(x.device(), {5})); })},
      {"masked_fill", of_matrix([](const at::Tensor& x) { return at::masked_fill(x, x.detach().gt(0.5), 0); })},
      {"where", of_matrix([](const at::Tensor& x) { return at::where(x.detach().gt(0.5), x, 0); })},
      {"unfold", of_matrix([](const at::Tensor& x) { return x.unfold(1, 4, 2); })},
      {"cdist", of_matrix([](const at::Tensor& x) { return at::cdist(x, at::rand({5, kLarge}, x.options())); })},
      {"pdist", of_matrix([](const at::Tensor& x) { return at::pdist(x); })},
      {"cross_entropy",
       of_matrix([](const at::Tensor& x) { return F::cross_entropy(x, indices(x.device(), {kLarge})); })},
      {"multi_margin_loss",
       of_matrix([](const at::Tensor& x) { return F::multi_margin_loss(x, indices(x.device(), {kLarge})); })},
      {"multilabel_margin_loss", of_matrix([](const at::Tensor& x) {
         return F::multilabel_margin_loss(x, indices(x.device(), {kLarge, kLarge}));
       })},
      {"embedding",
       [](c10::Device device)
           -> std::vector<at::Tensor> { return {at::embedding(matrix(device), indices(device, {3, 5}))}; }},
      {"embedding_bag",
       [](c10::Device device)
           -> std::vector<at::Tensor> { return {F::embedding_bag(indices(device, {3, 5}), matrix(device))}; }},
      {"binary_cross_entropy",
       of_pair([](const at::Tensor& x, const at::Tensor& y) { return F::binary_cross_entropy(x, y); })},
      {"binary_cross_entropy_with_logits",
       of_pair([](const at::Tensor& x, const at::Tensor& y) { return F::binary_cross_entropy_with_logits(x, y); })},
      {"huber_loss", of_pair([](const at::Tensor& x, const at::Tensor& y) { return F::huber_loss(x, y); })},
      {"smooth_l1_loss", of_pair([](const at::Tensor& x, const at::Tensor& y) { return F::smooth_l1_loss(x, y); })},
      {"mse_loss", of_pair([](const at::Tensor& x, const at::Tensor& y) { return F::mse_loss(x, y); })},
      {"l1_loss", of_pair([](const at::Tensor& x, const at::Tensor& y) { return F::l1_loss(x, y); })},
      {"kl_div", of_pair([](const at::Tensor& x, const at::Tensor& y) { return F::kl_div(x, y); })},
      {"poisson_nll_loss", of_pair([](const at::Tensor& x, const at::Tensor& y) { return F::poisson_nll_loss(x, y); })},
      {"soft_margin_loss", of_pair([](const at::Tensor& x, const at::Tensor& y) { return F::soft_margin_loss(x, y); })},
      {"multilabel_soft_margin_loss",
       of_pair([](const at::Tensor& x, const at::Tensor& y) { return F::multilabel_soft_margin_loss(x, y); })},
      {"hinge_embedding_loss",
       of_pair([](const at::Tensor& x, const at::Tensor& y) { return F::hinge_embedding_loss(x, y); })},
      {"triplet_margin_loss",
       of_pair([](const at::Tensor& x, const at::Tensor& y) { return F::triplet_margin_loss(x, y, y); })},
      {"ctc_loss",
       [](c10::Device device) -> std::
                                  vector<at::Tensor> {
                                    const at::Tensor x = torch::rand({512, 64, 600}, on(device)).requires_grad_();
                                    const std::vector<int64_t> inputs(64, 512), targets(64, 30);
                                    return {at::ctc_loss(x.log_softmax(2), indices(device, {64, 30}), inputs, targets)};
                                  }},

      {"nll_loss2d",
       of_images([](const at::Tensor& x) { return F::cross_entropy(x, indices(x.device(), {64, 128, 128})); })},
      {"batch_norm",
       of_images([](const at::Tensor& x) { return at::batch_norm(x, {}, {}, {}, {}, true, 0.1, 1e-5, true); })},
      {"group_norm", of_images([](const at::Tensor& x) { return at::group_norm(x, 4); })},
      {"instance_norm",
       of_images([](const at::Tensor& x) { return at::instance_norm(x, {}, {}, {}, {}, true, 0.1, 1e-5, true); })},
      {"max_pool2d", of_images([](const at::Tensor& x) { return at::max_pool2d(x, {2, 2}); })},
      {"avg_pool2d", of_images([](const at::Tensor& x) { return at::avg_pool2d(x, {2, 2}); })},
      {"adaptive_avg_pool2d", of_images([](const at::Tensor& x) { return at::adaptive_avg_pool2d(x, {4, 4}); })},
      {"adaptive_max_pool2d",
       of_images([](const at::Tensor& x) { return std::get<0>(at::adaptive_max_pool2d(x, {4, 4})); })},
      {"fractional_max_pool2d", of_images([](const at::Tensor& x) {
         return std::get<0>(at::fractional_max_pool2d(x, {2, 2}, {40, 40}, at::rand({64, 16, 2}, x.options())));
       })},
      {"max_unpool2d", of_images([](const at::Tensor& x) {
         return at::max_unpool2d(x, indices(x.device(), {64, 16, 128, 128}), {256, 256});
       })},
      {"lp_pool2d", of_images([](const at::Tensor& x) { return F::lp_pool2d(x, F::LPPool2dFuncOptions(2, 2)); })},
      {"reflection_pad2d", of_images([](const at::Tensor& x) { return at::reflection_pad2d(x, {1, 1, 1, 1}); })},
      {"replication_pad2d", of_images([](const at::Tensor& x) { return at::replication_pad2d(x, {1, 1, 1, 1}); })},
      {"upsample_nearest2d", of_images([](const at::Tensor& x) { return at::upsample_nearest2d(x, {256, 256}); })},
      {"upsample_bilinear2d",
       of_images([](const at::Tensor& x) { return at::upsample_bilinear2d(x, {256, 256}, false); })},
      {"upsample_bicubic2d",
       of_images([](const at::Tensor& x) { return at::upsample_bicubic2d(x, {256, 256}, false); })},
      {"upsample_bilinear2d_aa",
       of_images([](const at::Tensor& x) { return at::_upsample_bilinear2d_aa(x, {64, 64}, false); })},
      {"im2col", of_images([](const at::Tensor& x) { return at::im2col(x, {3, 3}, {1, 1}, {1, 1}, {1, 1}); })},
      {"grid_sampler", of_images([](const at::Tensor& x) {
         const at::Tensor theta = at::rand({64, 2, 3}, x.options());
         return at::grid_sampler(x, at::affine_grid_generator(theta, x.sizes(), false), 0, 0, false);
       })},
      {"pixel_shuffle", of_images([](const at::Tensor& x) { return at::pixel_shuffle(x, 2); })},
      {"channel_shuffle", of_images([](const at::Tensor& x) { return at::channel_shuffle(x.detach(), 4); })},
      {"convolution", of_images([](const at::Tensor& x) {
         return at::conv2d(x, at::rand({8, 16, 3, 3}, x.options()).requires_grad_());
       })},

      {"max_pool3d", of_volumes([](const at::Tensor& x) { return at::max_pool3d(x, {2, 2, 2}); })},
      {"avg_pool3d", of_volumes([](const at::Tensor& x) { return at::avg_pool3d(x, {2, 2, 2}); })},
      {"adaptive_avg_pool3d", of_volumes([](const at::Tensor& x) { return at::adaptive_avg_pool3d(x, {4, 4, 4}); })},
      {"fractional_max_pool3d", of_volumes([](const at::Tensor& x) {
         return std::get<0>(at::fractional_max_pool3d(x, {2, 2, 2}, {10, 10, 10}, at::rand({16, 16, 3}, x.options())));
       })},
      {"replication_pad3d",
       of_volumes([](const at::Tensor& x) { return at::replication_pad3d(x, {1, 1, 1, 1, 1, 1}); })},
      {"reflection_pad3d", of_volumes([](const at::Tensor& x) { return at::reflection_pad3d(x, {1, 1, 1, 1, 1, 1}); })},
      {"upsample_trilinear3d",
       of_volumes([](const at::Tensor& x) { return at::upsample_trilinear3d(x, {64, 64, 64}, false); })},

      {"scaled_dot_product_attention",
       [](c10::Device device) -> std::
                                  vector<at::Tensor> {
                                    const at::Tensor q = torch::rand({8, 16, 2048, 64}, on(device)).requires_grad_();
                                    return {
                                        at::scaled_dot_product_attention(q, q, q),
                                        at::scaled_dot_product_attention(q, q, q, {}, 0.1)};
                                  }},
      {"scaled_dot_product_attention of halves",
       [](c10::Device device)
           -> std::
               vector<at::Tensor> {
                 const at::Tensor q = torch::rand({8, 16, 2048, 64}, on(device).dtype(at::kBFloat16)).requires_grad_();
                 const at::Tensor mask = torch::ones({2048, 2048}, on(device).dtype(at::kBool));
                 return {
                     at::scaled_dot_product_attention(q, q, q, mask),
                     at::scaled_dot_product_attention(q, q, q, {}, 0, true)};
               }},

      {"linalg_cholesky", of_matrix([](const at::Tensor& x) { return at::linalg_cholesky(x); })},
      {"cholesky_inverse", of_matrix([](const at::Tensor& x) { return at::cholesky_inverse(x.detach()); })},
      {"linalg_qr", of_matrix([](const at::Tensor& x) { return std::get<0>(at::linalg_qr(x)); })},
      {"linalg_svd", of_matrix([](const at::Tensor& x) { return std::get<1>(at::linalg_svd(x, false)); })},
      {"linalg_eigh", of_matrix([](const at::Tensor& x) { return std::get<0>(at::linalg_eigh(x)); })},
      {"linalg_eig", of_matrix([](const at::Tensor& x) { return std::get<0>(at::linalg_eig(x.detach())); })},
      {"linalg_solve", of_matrix([](const at::Tensor& x) { return at::linalg_solve(x, at::rand_like(x)); })},
      {"linalg_solve_triangular",
       of_matrix([](const at::Tensor& x) { return at::linalg_solve_triangular(x, at::rand_like(x), true); })},
      {"linalg_inv", of_matrix([](const at::Tensor& x) { return at::linalg_inv(x); })},
      {"linalg_lu", of_matrix([](const at::Tensor& x) { return std::get<1>(at::linalg_lu(x)); })},
      {"linalg_det", of_matrix([](const at::Tensor& x) { return at::linalg_det(x); })},
      {"matrix_exp", of_matrix([](const at::Tensor& x) { return at::linalg_matrix_exp(x.detach()); })},
      {"fft_rfft", of_matrix([](const at::Tensor& x) { return at::real(at::fft_rfft(x)); })},
  };
  return kOperators;
}

class Operators : public ::testing::TestWithParam<c10::Device> {};

TEST_P(Operators, RunForwardAndBackwardOnLargeInputs) {
  const FakeMode mode(FakeModeOptions{.allow_fallback_kernels = false});
  for (const Operator& op : operators()) {
    SCOPED_TRACE(op.name);
    try {
      for (const at::Tensor& output : op.run(GetParam())) {
        EXPECT_TRUE(is_fake(output));
        EXPECT_EQ(output.device(), GetParam());
        if (output.requires_grad()) {
          output.sum().backward();
        }
      }
    } catch (const std::exception& error) {
      ADD_FAILURE() << std::string(error.what()).substr(0, 400);
    }
  }
}

TEST(OperatorsOfTheCpu, AreRefusedOnAGpu) {
  const FakeMode mode(FakeModeOptions{.allow_fallback_kernels = false});
  EXPECT_EQ(at::_histogramdd_bin_edges(at::rand({kLarge, 2}), {3, 4}).size(), 2);
  EXPECT_THROW(at::_histogramdd_bin_edges(at::rand({kLarge, 2}, kCuda0), {3, 4}), c10::NotImplementedError);
}

INSTANTIATE_TEST_SUITE_P(Devices, Operators, ::testing::Values(c10::Device(c10::kCPU), kCuda0), [](const auto& info) {
  return info.param.is_cpu() ? "Cpu" : "Cuda";
});

}  // namespace

}  // namespace torchfake::testing
