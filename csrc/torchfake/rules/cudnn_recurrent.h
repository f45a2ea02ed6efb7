// Recurrent networks as cuDNN runs them: as one operator, on weights packed into one buffer.
#pragma once

#include <torchfake/core/call.h>

namespace torchfake {

// cuDNN's numbers for its kinds of networks.
enum class Cudnn : int64_t { kRnnRelu = 0, kRnnTanh = 1, kLstm = 2, kGru = 3 };

// lstm, gru, rnn_tanh and rnn_relu of a padded or packed batch. A PyTorch without CUDA decomposes them into cells; one
// with CUDA dispatches to cuDNN if the input is on a GPU and cuDNN supports it. Otherwise returns false and leaves the
// call to PyTorch.
template <Cudnn kMode, bool kPacked>
bool cudnn_recurrent(const Call& call);

// Packs the weights of a network (fakes of one dtype on a GPU) into one buffer in cuDNN's layout, of which they become
// views. `hidden_size` is that of the network, regardless of projections.
void flatten_weights(at::TensorList weights, Cudnn mode, int64_t hidden_size, int64_t layers);

}  // namespace torchfake
