// Memory for CUDA graphs: what libtorch's allocator gives out while work is captured must stay, since the graph has its
// addresses. The allocator has pools for that; it is found by name, for it is in a library that is opened at run time.
// libtorch's own class for graphs is not used: while it captures, random numbers cannot be drawn on any thread, and a
// capture that fails leaves generators and allocator in it.

#include "shim.h"

#if __has_include(<cuda_runtime_api.h>) && __has_include(<crt/host_config.h>)

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <dlfcn.h>

namespace {

template <class T>
T* symbol(const char* name) {
  void* found = dlsym(RTLD_DEFAULT, name);
  TORCH_CHECK(found != nullptr, "this libtorch has no ", name);
  return reinterpret_cast<T*>(found);
}

c10::cuda::CUDACachingAllocator::CUDAAllocator* allocator() {
  using Place = std::atomic<c10::cuda::CUDACachingAllocator::CUDAAllocator*>;
  static Place* place = symbol<Place>("_ZN3c104cuda20CUDACachingAllocator9allocatorE");
  return place->load();
}

c10::MempoolId_t new_pool() {
  static auto* make = symbol<c10::MempoolId_t()>("_ZN2at4cuda17graph_pool_handleEv");
  return make();
}

const c10::impl::DeviceGuardImplInterface* cuda() { return c10::impl::getDeviceGuardImpl(c10::kCUDA); }

}  // namespace

// A pool, and while it is open a stream of the caller's that is the current one of this thread and allocates from it.
struct Pool {
  c10::Device device;
  c10::MempoolId_t id;
  c10::Device device_before{c10::kCUDA, 0};
  c10::Stream stream_before;
  bool open = false;

  Pool(c10::Device on, void* own) : device(on), id(new_pool()), stream_before(cuda()->getStream(on)) {
    cudaStream_t stream = static_cast<cudaStream_t>(own);
    allocator()->beginAllocateToPool(device.index(), id, [stream](cudaStream_t of) { return of == stream; });
    device_before = cuda()->exchangeDevice(device);
    // A stream that is not of libtorch's own is named by its address.
    cuda()->exchangeStream(c10::Stream(c10::Stream::UNSAFE, device, reinterpret_cast<int64_t>(own)));
    open = true;
  }

  void close() {
    if (!open) return;
    open = false;
    cuda()->exchangeStream(stream_before);
    cuda()->exchangeDevice(device_before);
    allocator()->endAllocateToPool(device.index(), id);
  }

  ~Pool() {
    free(guarded([&] { close(); }));
    free(guarded([&] { allocator()->releasePool(device.index(), id); }));
  }
};

extern "C" {

char* tf_pool_open(int8_t device, void* stream, Pool** out) {
  return guarded([&] { *out = new Pool(c10::Device(c10::kCUDA, device), stream); });
}

char* tf_pool_close(Pool* pool) {
  return guarded([&] { pool->close(); });
}

void tf_pool_drop(Pool* pool) { delete pool; }

// Gives memory of CUDA devices that libtorch keeps, and that no tensor has, back to the driver.
char* tf_empty_cache() {
  return guarded([] { allocator()->emptyCache(); });
}

// Bytes of a CUDA device that tensors have, the most that they have had since the last call with `restart`, and what is kept of it.
char* tf_cuda_memory(int8_t device, bool restart, int64_t* allocated, int64_t* peak, int64_t* reserved) {
  return guarded([&] {
    const auto stats = allocator()->getDeviceStats(device);
    *allocated = stats.allocated_bytes[0].current;
    *peak = stats.allocated_bytes[0].peak;
    *reserved = stats.reserved_bytes[0].current;
    if (restart) allocator()->resetPeakStats(device);
  });
}

}  // extern "C"

#else

struct Pool {};

extern "C" {

char* tf_pool_open(int8_t, void*, Pool**) {
  return guarded([&] { TORCH_CHECK(false, "Tilefuse was built without CUDA's headers"); });
}

char* tf_pool_close(Pool*) { return nullptr; }

void tf_pool_drop(Pool*) {}

char* tf_empty_cache() { return nullptr; }

char* tf_cuda_memory(int8_t, bool, int64_t*, int64_t*, int64_t*) {
  return guarded([&] { TORCH_CHECK(false, "Tilefuse was built without CUDA's headers"); });
}

}  // extern "C"

#endif
