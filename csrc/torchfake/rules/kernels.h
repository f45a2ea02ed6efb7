// Our own kernels for operators whose C++ meta kernel PyTorch lacks, or whose meta kernel deviates from the real one.
// One file per family. Each kernel is written like the operator itself and runs inside a kernel call, where fakes
// report `meta`.
#pragma once

#include <torchfake/rules/native_table.h>

namespace torchfake {

// The device claimed by the running call: the layout of some results depends on it.
c10::Device claimed_device();

// Whether cuDNN supports batch normalisation in these dtypes. Half-precision inputs require single-precision
// parameters.
bool cudnn_normalizes(const at::Tensor& input, const at::Tensor& weight);

using KernelList = std::vector<NativeKernel>;

// Families.
KernelList pointwise_kernels();
KernelList reduction_kernels();
KernelList rearranging_kernels();
KernelList normalization_kernels();
KernelList convolution_kernels();
KernelList recurrent_kernels();
KernelList cudnn_recurrent_kernels();
KernelList random_kernels();
KernelList attention_kernels();
KernelList factory_kernels();
KernelList filling_kernels();
KernelList fourier_kernels();
KernelList vision_kernels();
KernelList activation_kernels();
KernelList distribution_kernels();
KernelList distance_kernels();
KernelList embedding_kernels();
KernelList linalg_kernels();
KernelList loss_kernels();
KernelList optimizer_kernels();
KernelList padding_kernels();
KernelList pooling_kernels();
KernelList quantization_kernels();
KernelList scaled_product_kernels();
KernelList grouped_product_kernels();
KernelList transformer_kernels();
KernelList assertion_kernels();
KernelList searching_kernels();
KernelList selection_kernels();

}  // namespace torchfake
