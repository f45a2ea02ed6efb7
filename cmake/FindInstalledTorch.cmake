# Finds the PyTorch installed for the Python in use, and refuses unsupported versions.
# Sets TORCHFAKE_TORCH_DIR, TORCHFAKE_TORCH_RELEASE and TORCHFAKE_CPP_RUNTIME, and defines the target torchfake::torch.
set(TORCHFAKE_TORCH_MIN 2.13 CACHE STRING "The oldest PyTorch to build against; older ones are tried at your own risk")
set(TORCHFAKE_TORCH_MAX 2.16 CACHE STRING "The first PyTorch not to build against")

find_package(Python REQUIRED COMPONENTS Interpreter)
execute_process(
  COMMAND ${Python_EXECUTABLE} -c
    "import os, torch; print(os.path.dirname(torch.__file__), torch.__version__.split('+')[0], sep=';')"
  OUTPUT_VARIABLE torch_answer ERROR_VARIABLE torch_error RESULT_VARIABLE torch_status
  OUTPUT_STRIP_TRAILING_WHITESPACE)
if(NOT torch_status EQUAL 0)
  message(FATAL_ERROR
    "torchfake is built against an installed PyTorch, and ${Python_EXECUTABLE} has none.\n"
    "Install it first, then build without isolation:\n"
    "  pip install torch==${TORCHFAKE_TORCH_MIN}.0 scikit-build-core cmake ninja pyyaml\n"
    "  pip install --no-build-isolation .\n"
    "Python said: ${torch_error}")
endif()
list(GET torch_answer 0 TORCHFAKE_TORCH_DIR)
list(GET torch_answer 1 torch_version)
if(torch_version VERSION_LESS TORCHFAKE_TORCH_MIN OR NOT torch_version VERSION_LESS TORCHFAKE_TORCH_MAX)
  message(FATAL_ERROR
    "torchfake supports PyTorch from ${TORCHFAKE_TORCH_MIN} to before ${TORCHFAKE_TORCH_MAX}; ${Python_EXECUTABLE} has \
${torch_version}.\n"
    "Install a supported one: pip install torch==${TORCHFAKE_TORCH_MIN}.0")
endif()
# The release that the built libraries depend on: 2.15 for 2.15.0.
string(REGEX MATCH "^[0-9]+\\.[0-9]+" TORCHFAKE_TORCH_RELEASE "${torch_version}")
message(STATUS "PyTorch ${torch_version} in ${TORCHFAKE_TORCH_DIR}")
include(torchfakeTorch)
torchfake_add_torch("${TORCHFAKE_TORCH_DIR}")

# The C++ runtime library that PyTorch has loaded. Some compilers link a static copy of it into every library, whose
# symbols are then resolved partly to the loaded library and partly to the copy; the first error message that contains a
# number crashes the process. Linking the loaded library before the compiler's own resolves all of them to it.
execute_process(
  COMMAND ${Python_EXECUTABLE} -c
    "import torch; print(next((l.split()[-1] for l in open('/proc/self/maps') if '/libstdc++.so' in l), ''))"
  OUTPUT_VARIABLE TORCHFAKE_CPP_RUNTIME ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
