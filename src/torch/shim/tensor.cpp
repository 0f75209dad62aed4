// Cheap access to tensors, and libtorch's global state.

#include "shim.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/Generator.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/COW.h>

#include <cstddef>

using c10::DispatchKey;
using c10::DispatchKeySet;

at::Tensor view_of(const at::Tensor& base, int64_t byte_offset, c10::ScalarType dtype, c10::IntArrayRef sizes,
                   c10::IntArrayRef strides) {
  const c10::Storage& storage = base.storage();
  int64_t item = int64_t(c10::elementSize(dtype));
  TORCH_CHECK(byte_offset >= 0 && byte_offset % item == 0, "offset ", byte_offset, " is no multiple of ", item);
  __int128 end = byte_offset + item;
  bool empty = false;
  for (size_t i = 0; i < sizes.size(); ++i) {
    TORCH_CHECK(sizes[i] >= 0 && strides[i] >= 0, "negative size or stride");
    TORCH_CHECK(end <= INT64_MAX, "a view beyond all memory");
    empty |= sizes[i] == 0;
    end += (__int128(sizes[i]) - 1) * strides[i] * item;
  }
  TORCH_CHECK(empty || end <= __int128(storage.nbytes()), "a view beyond a storage of ", storage.nbytes(), " bytes");
  // The memory as it is, without what the base has yet to compute of it.
  auto keys = base.key_set() - DispatchKeySet({DispatchKey::Conjugate, DispatchKey::Negative, DispatchKey::ZeroTensor});
  auto t = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(storage), std::move(keys),
                                                    c10::scalarTypeToTypeMeta(dtype));
  t.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, byte_offset / item);
  // Autograd counts a write through either of the two.
  if (!base.is_inference()) t.unsafeGetTensorImpl()->set_version_counter(base.unsafeGetTensorImpl()->version_counter());
  return t;
}

namespace {


constexpr int MAX_RANK = 8;

enum Flag : uint32_t {
  REQUIRES_GRAD = 1, STRIDED = 2, CONJ = 4, NEG = 8, CONTIGUOUS = 16, META = 32, ODD = 64, INFERENCE = 128,
  HAS_STORAGE = 256, VIEW = 512, SPARSE = 1024, QUANTIZED = 2048, NESTED = 4096, HIGH_RANK = 8192,
  WRAPPED_NUMBER = 16384, PLAIN = 32768, COPY_ON_WRITE = 65536
};

// Above the flags lies the layout of tensors that are not plain.
constexpr int LAYOUT_SHIFT = 24;

extern "C" struct TfMeta {
  int64_t sizes[MAX_RANK], strides[MAX_RANK];
  int64_t offset, numel, nbytes, use_count, storage_use_count, version;
  void *data, *impl, *storage, *storage_data;
  uint32_t flags;
  int8_t dtype, device_type, device_index;
  uint8_t rank;
};

// As Rust's `Meta` asserts.
static_assert(sizeof(TfMeta) == 216 && offsetof(TfMeta, sizes) == 0 && offsetof(TfMeta, strides) == 64 &&
              offsetof(TfMeta, offset) == 128 && offsetof(TfMeta, numel) == 136 && offsetof(TfMeta, nbytes) == 144 &&
              offsetof(TfMeta, use_count) == 152 && offsetof(TfMeta, storage_use_count) == 160 &&
              offsetof(TfMeta, version) == 168 && offsetof(TfMeta, data) == 176 && offsetof(TfMeta, impl) == 184 &&
              offsetof(TfMeta, storage) == 192 && offsetof(TfMeta, storage_data) == 200 &&
              offsetof(TfMeta, flags) == 208 && offsetof(TfMeta, dtype) == 212 &&
              offsetof(TfMeta, device_type) == 213 && offsetof(TfMeta, device_index) == 214 &&
              offsetof(TfMeta, rank) == 215);

extern "C" struct TfExpect {
  int64_t sizes[MAX_RANK], strides[MAX_RANK];
  int64_t offset;  // into the storage; -1 where any will do
  uint64_t align;  // the address is a multiple of it; a power of two
  uint32_t flags;
  int8_t dtype, device_type, device_index;
  uint8_t rank;
};

// Keys of tensors that are what they look like: dense memory on a backend, and the layers that every tensor has.
constexpr DispatchKeySet PLAIN_KEYS = c10::backend_bitset_mask | c10::autograd_dispatch_keyset_with_ADInplaceOrView |
    c10::autocast_dispatch_keyset |
    DispatchKeySet({DispatchKey::Dense, DispatchKey::BackendSelect});

// What only tensors that are not plain can be.
uint32_t flags_of_odd(const at::Tensor& t, c10::TensorImpl& impl) {
  uint32_t f = ODD | uint32_t(impl.layout()) << LAYOUT_SHIFT;
  if (impl.layout() == c10::kStrided) f |= STRIDED;
  if (t.is_conj()) f |= CONJ;
  if (t.is_neg()) f |= NEG;
  if (impl.is_sparse() || impl.is_sparse_csr()) f |= SPARSE;
  if (impl.is_quantized()) f |= QUANTIZED;
  if (impl.is_nested()) f |= NESTED;
  return f;
}

char* address(const c10::TensorImpl& impl) {
  if (!impl.has_storage() || impl.numel() == 0) return nullptr;
  auto* base = static_cast<const char*>(impl.storage().data());
  return const_cast<char*>(base == nullptr ? base : base + impl.storage_offset() * impl.itemsize());
}

// Whether a tensor of these flags is what lies at its address, by its strides: the one rule of what kernels may address.
bool is_plain(const c10::TensorImpl& impl, uint32_t flags) {
  constexpr uint32_t need = STRIDED | HAS_STORAGE;
  constexpr uint32_t other = CONJ | NEG | META | ODD | SPARSE | QUANTIZED | NESTED | HIGH_RANK;
  return (flags & (need | other)) == need && (address(impl) != nullptr || impl.numel() == 0);
}

// The flags that `mask` asks for, and some others. What autograd keeps lies elsewhere in memory than the tensor.
uint32_t flags_of(const at::Tensor& t, c10::TensorImpl& impl, uint32_t mask = ~uint32_t(0)) {
  bool plain = (impl.key_set().raw_repr() & ~PLAIN_KEYS.raw_repr()) == 0;
  uint32_t f = plain ? STRIDED : flags_of_odd(t, impl);
  if (impl.has_storage()) {
    f |= HAS_STORAGE;
    if (c10::impl::cow::is_cow_data_ptr(impl.storage().data_ptr())) f |= ODD | COPY_ON_WRITE;
  }
  if (mask & REQUIRES_GRAD && impl.requires_grad()) f |= REQUIRES_GRAD;
  if (impl.is_meta()) f |= META;
  if (impl.is_inference()) f |= INFERENCE;
  if (impl.is_wrapped_number()) f |= WRAPPED_NUMBER;
  if (f & NESTED) return f;
  if (impl.dim() > MAX_RANK) f |= HIGH_RANK;
  if (mask & CONTIGUOUS && f & STRIDED && impl.is_contiguous()) f |= CONTIGUOUS;
  if (mask & PLAIN && is_plain(impl, f)) f |= PLAIN;
  return f;
}

int64_t version_of(c10::TensorImpl& impl) {
  return impl.is_inference() ? -1 : int64_t(impl.version_counter().current_version());
}

void fill_meta(const at::Tensor& t, TfMeta& m) {
  c10::TensorImpl& impl = *t.unsafeGetTensorImpl();
  m.flags = flags_of(t, impl);
  m.impl = t.unsafeGetTensorImpl();
  m.dtype = int8_t(t.scalar_type());
  m.device_type = int8_t(impl.device().type());
  m.device_index = impl.device().index();
  m.use_count = t.use_count();
  m.version = version_of(impl);
  m.offset = m.nbytes = m.storage_use_count = m.numel = 0;
  m.rank = 0;
  m.data = m.storage = m.storage_data = nullptr;
  if (m.flags & HAS_STORAGE) {
    const c10::Storage& s = impl.storage();
    m.storage = s.unsafeGetStorageImpl();
    m.storage_data = const_cast<void*>(s.data());
    m.nbytes = int64_t(s.nbytes());
    m.storage_use_count = s.use_count();
    m.offset = impl.storage_offset();
    m.data = address(impl);
  }
  if (m.flags & NESTED) return;
  m.numel = impl.numel();
  m.rank = uint8_t(std::min<int64_t>(impl.dim(), MAX_RANK));
  for (int i = 0; i < m.rank; ++i) {
    m.sizes[i] = impl.size(i);
    m.strides[i] = m.flags & STRIDED ? impl.stride(i) : 0;
  }
}

bool matches(const at::Tensor& t, const TfExpect& e, uint32_t mask, void** data) {
  c10::TensorImpl& impl = *t.unsafeGetTensorImpl();
  if (((flags_of(t, impl, mask) ^ e.flags) & mask) != 0) return false;
  if (int8_t(t.scalar_type()) != e.dtype || impl.dim() != e.rank) return false;
  c10::Device device = impl.device();
  if (int8_t(device.type()) != e.device_type || device.index() != e.device_index) return false;
  // Only strided tensors have strides.
  const int64_t *sizes = impl.sizes().data(), *strides = e.flags & STRIDED ? impl.strides().data() : e.strides;
  for (int i = 0; i < e.rank; ++i)
    if (sizes[i] != e.sizes[i] || strides[i] != e.strides[i]) return false;
  if (e.offset >= 0 && impl.storage_offset() != e.offset) return false;
  *data = address(impl);
  return (reinterpret_cast<uint64_t>(*data) & (e.align - 1)) == 0;
}

// How many tensors ahead a loop over many asks for their memory: between calls of a plan, the plan's own work has pushed it
// out of the caches, and one miss after the other takes longer than the checks.
constexpr size_t HANDLES_AHEAD = 24, IMPLS_AHEAD = 16, STORAGES_AHEAD = 8;

void prefetch_from(const at::Tensor* const* tensors, size_t i, size_t n) {
  if (i + HANDLES_AHEAD < n) __builtin_prefetch(tensors[i + HANDLES_AHEAD]);
  if (i + IMPLS_AHEAD < n) {
    const char* impl = reinterpret_cast<const char*>(tensors[i + IMPLS_AHEAD]->unsafeGetTensorImpl());
    for (size_t line = 0; line < sizeof(c10::TensorImpl); line += 64) __builtin_prefetch(impl + line);
  }
  if (i + STORAGES_AHEAD < n)
    __builtin_prefetch(tensors[i + STORAGES_AHEAD]->unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
}

at::Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype, c10::Device device) {
  if (device.is_cpu()) return at::detail::empty_strided_cpu(sizes, strides, dtype);
  TORCH_CHECK(device.is_cuda(), "no kernels run on ", device.str());
  c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(sizes, strides, c10::GetAllocator(c10::kCUDA),
                                           DispatchKeySet(DispatchKey::CUDA), dtype);
}

}  // namespace

extern "C" {

// The TF32 setting while libtorch's CUDA part is not loaded: no `Float32Precision`, so no state from before equals one from
// after. The settings are looked up in maps, which takes longer than all else in a state.
constexpr uint8_t NO_CUDA = 255;

struct TfGlobal {
  uint64_t included, excluded;
  int32_t threads;
  uint8_t grad, inference, autocast_cpu, autocast_cuda, autocast_cpu_dtype, autocast_cuda_dtype, deterministic,
      tf32_matmul, tf32_conv, default_dtype, fill_uninitialized;
};

char* tf_meta(const at::Tensor* t, TfMeta* out) {
  return guarded([&] {
    TORCH_CHECK(t->defined(), "an undefined tensor");
    fill_meta(*t, *out);
    if (t->is_view()) out->flags |= VIEW;
  });
}

// `*bad` is the index of the first tensor that does not match, or `n`.
char* tf_check(const at::Tensor* const* tensors, const TfExpect* expect, size_t n, uint32_t mask, void** data,
               size_t* bad) {
  return guarded([&] {
    for (*bad = 0; *bad < n; ++*bad) {
      prefetch_from(tensors, *bad, n);
      if (!tensors[*bad]->defined() || !matches(*tensors[*bad], expect[*bad], mask, &data[*bad])) break;
    }
  });
}

// Addresses of plain tensors; null for others, and `*all` is false where there are any.
char* tf_addresses(const at::Tensor* const* tensors, size_t n, void** data, bool* all) {
  return guarded([&] {
    *all = true;
    for (size_t i = 0; i < n; ++i) {
      TORCH_CHECK(tensors[i]->defined(), "an undefined tensor");
      c10::TensorImpl& impl = *tensors[i]->unsafeGetTensorImpl();
      bool plain = (flags_of(*tensors[i], impl, PLAIN) & PLAIN) != 0;
      data[i] = plain ? address(impl) : nullptr;
      *all &= plain;
    }
  });
}

// `TfMeta::version` and `TfMeta::data` of tensors.
char* tf_states(const at::Tensor* const* tensors, size_t n, int64_t* versions, void** data) {
  return guarded([&] {
    for (size_t i = 0; i < n; ++i) {
      TORCH_CHECK(tensors[i]->defined(), "an undefined tensor");
      c10::TensorImpl& impl = *tensors[i]->unsafeGetTensorImpl();
      versions[i] = version_of(impl);
      data[i] = address(impl);
    }
  });
}

char* tf_versions(const at::Tensor* const* tensors, const int64_t* versions, size_t n, bool* same) {
  return guarded([&] {
    *same = true;
    for (size_t i = 0; i < n; ++i)
      *same &= tensors[i]->unsafeGetTensorImpl()->version_counter().current_version() == versions[i];
  });
}

// Whether each tensor has more handles than `own`.
char* tf_held(const at::Tensor* const* tensors, const int64_t* own, size_t n, bool* held) {
  return guarded([&] {
    *held = true;
    for (size_t i = 0; i < n; ++i) *held &= int64_t(tensors[i]->use_count()) > own[i];
  });
}

char* tf_empty_strided(const int64_t* sizes, const int64_t* strides, size_t rank, int8_t dtype, int8_t device_type,
                       int8_t device_index, at::Tensor** out) {
  return guarded([&] {
    c10::Device device(c10::DeviceType(device_type), device_index);
    *out = new at::Tensor(empty_strided({sizes, rank}, {strides, rank}, c10::ScalarType(dtype), device));
  });
}

char* tf_view_of(const at::Tensor* base, int64_t byte_offset, int8_t dtype, const int64_t* sizes,
                 const int64_t* strides, size_t rank, at::Tensor** out) {
  return guarded([&] {
    *out = new at::Tensor(view_of(*base, byte_offset, c10::ScalarType(dtype), {sizes, rank}, {strides, rank}));
  });
}

char* tf_global(TfGlobal* out) {
  return guarded([&] {
    const at::Context& ctx = at::globalContext();
    auto local = c10::impl::tls_local_dispatch_key_set();
    out->included = local.included_.raw_repr();
    out->excluded = local.excluded_.raw_repr();
    out->threads = at::get_num_threads();
    out->grad = c10::GradMode::is_enabled();
    out->inference = c10::InferenceMode::is_enabled();
    out->autocast_cpu = at::autocast::is_autocast_enabled(c10::kCPU);
    out->autocast_cuda = at::autocast::is_autocast_enabled(c10::kCUDA);
    out->autocast_cpu_dtype = uint8_t(at::autocast::get_autocast_dtype(c10::kCPU));
    out->autocast_cuda_dtype = uint8_t(at::autocast::get_autocast_dtype(c10::kCUDA));
    out->deterministic = ctx.deterministicAlgorithms();
    out->fill_uninitialized = ctx.deterministicFillUninitializedMemory();
    bool cuda = c10::impl::hasDeviceGuardImpl(c10::kCUDA);
    auto precision = [&](at::Float32Op op) {
      return cuda ? uint8_t(ctx.float32Precision(at::Float32Backend::CUDA, op)) : NO_CUDA;
    };
    out->tf32_matmul = precision(at::Float32Op::MATMUL);
    out->tf32_conv = precision(at::Float32Op::CONV);
    out->default_dtype = uint8_t(c10::get_default_dtype_as_scalartype());
  });
}

// A copy of the state of a device's default generator of random numbers.
char* tf_generator_state(int8_t device_type, int8_t device_index, at::Tensor** out) {
  return guarded([&] {
    at::Generator generator =
        at::globalContext().defaultGenerator(c10::Device(c10::DeviceType(device_type), device_index));
    std::lock_guard<std::mutex> lock(generator.mutex());
    *out = new at::Tensor(generator.get_state());
  });
}

char* tf_set_generator_state(int8_t device_type, int8_t device_index, const at::Tensor* state) {
  return guarded([&] {
    at::Generator generator =
        at::globalContext().defaultGenerator(c10::Device(c10::DeviceType(device_type), device_index));
    std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(*state);
  });
}

char* tf_cuda_devices(int32_t* out) {
  return guarded([&] {
    TORCH_CHECK(at::hasCUDA(), "libtorch looked for CUDA before its CUDA part was loaded: ask "
                "tilefuse::torch::cuda_devices() before generators are seeded");
    *out = at::detail::getCUDAHooks().deviceCount();
  });
}

char* tf_cuda_stream(int8_t device, void** out) {
  return guarded([&] {
    const auto* guard = c10::impl::getDeviceGuardImpl(c10::kCUDA);
    *out = guard->getStreamNativeHandle(guard->getStream(c10::Device(c10::kCUDA, device)));
  });
}

}  // extern "C"
