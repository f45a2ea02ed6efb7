// Recurrent networks as cuDNN runs them: whole, on weights that lie in one buffer.
#pragma once

#include <torchfake/core/call.h>

namespace torchfake {

// cuDNN's numbers for the networks that it has.
enum class Cudnn : int64_t { kRnnRelu = 0, kRnnTanh = 1, kLstm = 2, kGru = 3 };

// lstm, gru, rnn_tanh and rnn_relu, of a padded or a packed batch. A PyTorch that has no CUDA decomposes them into cells;
// one that has it gives them to cuDNN, where the input is on a GPU and cuDNN takes it. Returns false, and leaves the call
// to PyTorch, anywhere else.
template <Cudnn kMode, bool kPacked>
bool cudnn_recurrent(const Call& call);

// Lays the weights of a network, fakes of one dtype on a GPU, out in one buffer, as cuDNN wants them: they become views of
// it. `hidden_size` is that of the network, whatever its projection.
void flatten_weights(at::TensorList weights, Cudnn mode, int64_t hidden_size, int64_t layers);

}  // namespace torchfake
