// Stands for CUDA's runtime library where there is none: what compiled code calls when it is loaded and unloaded, which
// announces its kernels. They never run. See Note [Libraries compiled for CUDA].

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
