// Large memory on the host, which the Rust side hands out and takes back.

#include "shim.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/CPUAllocator.h>

namespace {

using Take = void* (*)(size_t bytes);
using Give = void (*)(void* address);

// Each piece of memory knows how it is given back, so that whoever holds the storage last does so, on any thread.
struct Kept final : c10::Allocator {
  const Take take;
  const Give give;
  Kept(Take t, Give g) : take(t), give(g) {}

  c10::DataPtr allocate(size_t bytes) override {
    void* address = take(bytes);
    // libtorch's own allocator says in its own words what cannot be had.
    if (address == nullptr) return c10::GetCPUAllocator()->allocate(bytes);
    return {address, address, give, c10::Device(c10::kCPU)};
  }

  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};

}  // namespace

extern "C" {

// A tensor on the host as `tf_empty_strided` makes it, in memory of `take`, which is the same in every call, as `give` is.
char* tf_empty_kept(const int64_t* sizes, const int64_t* strides, size_t rank, int8_t dtype, Take take, Give give,
                    at::Tensor** out) {
  return guarded([&] {
    // Storages refer to it, so it is never freed.
    static auto* kept = new Kept(take, give);
    *out = new at::Tensor(at::detail::empty_strided_generic({sizes, rank}, {strides, rank}, kept,
                                                            c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                            c10::ScalarType(dtype)));
  });
}

}  // extern "C"
