// Substitute for a missing CUDA runtime library: the functions that compiled code calls when it is loaded and unloaded,
// to register its kernels, which never run. See Note [Libraries compiled for CUDA].

// CUDA's names. NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)
extern "C" {
void** __cudaRegisterFatBinary(void*);
void __cudaRegisterFatBinaryEnd(void**);
void __cudaUnregisterFatBinary(void**);
void __cudaRegisterFunction();
void __cudaRegisterVar();
char __cudaInitModule(void**);

void** __cudaRegisterFatBinary(void* /*binary*/) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void** /*handle*/) {}
void __cudaUnregisterFatBinary(void** /*handle*/) {}
void __cudaRegisterFunction() {}
void __cudaRegisterVar() {}
char __cudaInitModule(void** /*handle*/) {
  return 0;
}
}
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
