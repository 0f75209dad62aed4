// NVTX ranges: libtorch's CUDA library has NVTX in it, and its profiler's stubs are the way there.

#include <torch/csrc/profiler/stubs/base.h>

#include "shim.h"

extern "C" {

// Whether libtorch's CUDA library is loaded.
bool tf_ranges() { return torch::profiler::impl::cudaStubs()->enabled(); }

char* tf_range_push(const char* name) {
  return guarded([&] { torch::profiler::impl::cudaStubs()->rangePush(name); });
}

char* tf_range_pop() {
  return guarded([] { torch::profiler::impl::cudaStubs()->rangePop(); });
}

}  // extern "C"
