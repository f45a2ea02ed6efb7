# torchfake::torch: the headers and libraries of the PyTorch in the folder `torch_dir`. For the build and for programs
# that use the installed package.
#
# Not find_package(Torch): for a PyTorch with CUDA it requires the CUDA toolkit, which is not needed here, and it leaves
# absolute paths in the exported targets. torch_cpu and c10 contain the dispatcher, autograd and torch::nn.
function(torchfake_add_torch torch_dir)
  if(TARGET torchfake::torch)
    return()
  endif()
  add_library(torchfake::torch INTERFACE IMPORTED GLOBAL)
  target_include_directories(torchfake::torch INTERFACE
    "${torch_dir}/include" "${torch_dir}/include/torch/csrc/api/include")
  target_link_libraries(torchfake::torch INTERFACE "${torch_dir}/lib/libtorch_cpu.so" "${torch_dir}/lib/libc10.so")
  # Since 2.15, libtorch_cpu.so of a PyTorch with CUDA uses libraries in other packages of Python, which it finds itself.
  target_link_options(torchfake::torch INTERFACE "LINKER:--allow-shlib-undefined")
  target_compile_features(torchfake::torch INTERFACE cxx_std_20)
endfunction()
