// The only C++ of Tilefuse: what neither tch nor libtorch's C interface offers. Three parts: a boxed fallback on a
// dispatch key that reports operator calls, calls made from a stored stack, and cheap access to tensors and global
// state. Policy lives on the Rust side; data of variable size crosses as bytes in the encoding of `wire.rs`.
//
// Every function returns null, or a message that the caller frees with `tf_free`. No exception leaves this file.

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/COW.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <string>

namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;
using torch::jit::Stack;

// Above autograd and autocast: composite operators arrive whole.
constexpr DispatchKey KEY = DispatchKey::TESTING_ONLY_GenericMode;

template <class F>
char* guarded(F&& body) noexcept {
  try {
    body();
    return nullptr;
  } catch (const c10::Error& e) {
    return strdup(e.what_without_backtrace());
  } catch (const std::exception& e) {
    return strdup(e.what());
  } catch (...) {
    return strdup("unknown C++ exception");
  }
}

// ---- encoding -------------------------------------------------------------------------------------------------

enum Tag : uint8_t {
  NONE, TENSOR, TENSORS, BOOL, INT, FLOAT, COMPLEX, STR, INTS, FLOATS, BOOLS, DTYPE, LAYOUT, MEMORY_FORMAT, DEVICE,
  GENERATOR, OTHER
};

struct Writer {
  std::string bytes;
  template <class T>
  void put(T value) { bytes.append(reinterpret_cast<const char*>(&value), sizeof value); }
  void str(std::string_view s) { put<uint32_t>(s.size()); bytes.append(s); }
  void tensor(const at::Tensor& t) { put(t.defined() ? reinterpret_cast<uint64_t>(t.unsafeGetTensorImpl()) : 0); }
};

struct Reader {
  const uint8_t* at;
  const uint8_t* end;
  template <class T>
  T get() {
    TORCH_CHECK(size_t(end - at) >= sizeof(T), "truncated argument encoding");
    T value;
    std::memcpy(&value, at, sizeof value);
    at += sizeof value;
    return value;
  }
  std::string str() {
    size_t n = get<uint32_t>();
    TORCH_CHECK(size_t(end - at) >= n, "truncated argument encoding");
    std::string s(reinterpret_cast<const char*>(at), n);
    at += n;
    return s;
  }
  template <class T, class U = T>
  std::vector<T> list() {
    std::vector<T> out;
    for (size_t n = get<uint32_t>(); n > 0; --n) out.push_back(T(get<U>()));
    return out;
  }
};

const c10::Type& without_optional(const c10::Type& type) {
  auto optional = type.cast<c10::OptionalType>();
  return optional ? *optional->getElementType() : type;
}

void write_int(Writer& w, int64_t value, c10::TypeKind kind) {
  switch (kind) {
    case c10::TypeKind::ScalarTypeType: w.put(DTYPE); w.put<int8_t>(value); break;
    case c10::TypeKind::LayoutType: w.put(LAYOUT); w.put<int8_t>(value); break;
    case c10::TypeKind::MemoryFormatType: w.put(MEMORY_FORMAT); w.put<int8_t>(value); break;
    default: w.put(INT); w.put(value);
  }
}

template <class List, class T>
void write_list(Writer& w, Tag tag, const List& list) {
  w.put(tag);
  w.put<uint32_t>(list.size());
  for (size_t i = 0; i < list.size(); ++i) w.put<T>(list.get(i));
}

void write_value(Writer& w, const IValue& v, const c10::Type& declared) {
  if (v.isNone()) return w.put(NONE);
  if (v.isTensor()) {
    if (!v.toTensor().defined()) return w.put(NONE);
    w.put(TENSOR);
    return w.tensor(v.toTensor());
  }
  if (v.isTensorList()) {
    auto list = v.toTensorList();
    w.put(TENSORS);
    w.put<uint32_t>(list.size());
    for (size_t i = 0; i < list.size(); ++i) w.tensor(list.get(i));
    return;
  }
  if (v.isOptionalTensorList()) {
    auto list = v.toOptionalTensorList();
    w.put(TENSORS);
    w.put<uint32_t>(list.size());
    for (size_t i = 0; i < list.size(); ++i) w.tensor(list.get(i).value_or(at::Tensor()));
    return;
  }
  if (v.isBool()) { w.put(BOOL); return w.put<uint8_t>(v.toBool()); }
  if (v.isInt()) return write_int(w, v.toInt(), without_optional(declared).kind());
  if (v.isDouble()) { w.put(FLOAT); return w.put(v.toDouble()); }
  if (v.isComplexDouble()) {
    w.put(COMPLEX);
    w.put(v.toComplexDouble().real());
    return w.put(v.toComplexDouble().imag());
  }
  if (v.isString()) { w.put(STR); return w.str(v.toStringRef()); }
  if (v.isIntList()) return write_list<c10::List<int64_t>, int64_t>(w, INTS, v.toIntList());
  if (v.isDoubleList()) return write_list<c10::List<double>, double>(w, FLOATS, v.toDoubleList());
  if (v.isBoolList()) return write_list<c10::List<bool>, uint8_t>(w, BOOLS, v.toBoolList());
  if (v.isDevice()) {
    w.put(DEVICE);
    w.put<int8_t>(int8_t(v.toDevice().type()));
    return w.put<int8_t>(v.toDevice().index());
  }
  if (v.isGenerator()) return w.put(GENERATOR);
  w.put(OTHER);
  w.str(v.tagKind());
}

// ---- stored calls ---------------------------------------------------------------------------------------------

struct Hole {
  enum Kind { ONE, LIST, OPTIONAL_LIST } kind;
  uint32_t arg;
  std::vector<bool> present;  // of a list: which elements are tensors, not undefined
};

struct Call {
  c10::OperatorHandle op;
  Stack args;  // holes are None
  std::vector<Hole> holes;
  std::vector<bool> written;  // by argument
  bool keep_self_dtype = false;

  explicit Call(c10::OperatorHandle handle) : op(handle) {
    for (const auto& a : op.schema().arguments())
      written.push_back(a.alias_info() != nullptr && a.alias_info()->isWrite());
  }

  void push(const IValue& v) {
    uint32_t arg = args.size();
    if (v.isTensor() && v.toTensor().defined()) {
      holes.push_back({Hole::ONE, arg, {true}});
    } else if (v.isTensorList() || v.isOptionalTensorList()) {
      Hole hole{v.isTensorList() ? Hole::LIST : Hole::OPTIONAL_LIST, arg, {}};
      for (const IValue& e : v.toListRef()) hole.present.push_back(e.isTensor() && e.toTensor().defined());
      holes.push_back(std::move(hole));
    } else {
      args.push_back(v.isTensor() ? IValue(at::Tensor()) : v);
      return;
    }
    args.emplace_back();
  }
};

struct Filler {
  const Call& call;
  const at::Tensor* const* tensors;
  size_t n, next;
  uint64_t clone;  // bit set of argument positions

  at::Tensor take(uint32_t arg) {
    TORCH_CHECK(next < n, "too few tensors for ", call.op.schema().name());
    const at::Tensor& t = *tensors[next++];
    return arg < 64 && (clone >> arg & 1) ? t.clone() : t;
  }
  IValue fill(const Hole& h) {
    if (h.kind == Hole::ONE) return take(h.arg);
    if (h.kind == Hole::LIST) {
      c10::List<at::Tensor> list;
      for (bool p : h.present) list.push_back(p ? take(h.arg) : at::Tensor());
      return list;
    }
    c10::List<std::optional<at::Tensor>> list;
    for (bool p : h.present) list.push_back(p ? std::optional(take(h.arg)) : std::nullopt);
    return list;
  }
};

void collect(const IValue& v, std::vector<at::Tensor*>& out) {
  if (v.isTensor()) out.push_back(new at::Tensor(v.toTensor()));
  else if (v.isTensorList())
    for (const at::Tensor& t : v.toTensorVector()) out.push_back(new at::Tensor(t));
}

void bump_version(const at::Tensor& t) {
  if (t.defined() && !t.is_inference()) t.unsafeGetTensorImpl()->bump_version();
}

void run_call(const Call& call, const at::Tensor* const* tensors, size_t n, uint64_t clone,
              std::vector<at::Tensor*>& out) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  Stack stack = call.args;
  Filler filler{call, tensors, n, 0, clone};
  for (const Hole& h : call.holes) {
    stack[h.arg] = filler.fill(h);
    if (call.written[h.arg] && h.kind == Hole::ONE) bump_version(stack[h.arg].toTensor());
  }
  TORCH_CHECK(filler.next == n, "too many tensors for ", call.op.schema().name());
  call.op.callBoxed(stack);
  for (const IValue& v : stack) collect(v, out);
  if (call.keep_self_dtype && n > 0 && !out.empty() && out[0]->scalar_type() != tensors[0]->scalar_type())
    *out[0] = out[0]->to(tensors[0]->scalar_type());
}

IValue tensor_list_hole(Reader& r, const c10::Type& type, Hole& hole) {
  for (size_t n = r.get<uint32_t>(); n > 0; --n) hole.present.push_back(r.get<uint64_t>() != 0);
  auto list = type.cast<c10::ListType>();
  TORCH_CHECK(list, "a list of tensors where the schema has ", type.str());
  hole.kind = list->getElementType()->kind() == c10::TypeKind::OptionalType ? Hole::OPTIONAL_LIST : Hole::LIST;
  return {};
}

IValue read_value(Reader& r, const c10::Argument& a, Call& call) {
  const c10::Type& type = without_optional(*a.real_type());
  Hole hole{Hole::ONE, uint32_t(call.args.size()), {}};
  auto tag = Tag(r.get<uint8_t>());
  switch (tag) {
    case NONE: return a.type()->kind() == c10::TypeKind::TensorType ? IValue(at::Tensor()) : IValue();
    case TENSOR:
      hole.present.push_back(r.get<uint64_t>() != 0);
      call.holes.push_back(hole);
      return {};
    case TENSORS:
      tensor_list_hole(r, type, hole);
      call.holes.push_back(hole);
      return {};
    case BOOL: return bool(r.get<uint8_t>());
    case INT: {
      auto value = r.get<int64_t>();
      return type.kind() == c10::TypeKind::FloatType ? IValue(double(value)) : IValue(value);
    }
    case FLOAT: return r.get<double>();
    case COMPLEX: {
      double re = r.get<double>(), im = r.get<double>();
      return c10::complex<double>(re, im);
    }
    case STR: return r.str();
    case INTS: return r.list<int64_t>();
    case FLOATS: return r.list<double>();
    case BOOLS: {
      c10::List<bool> list;
      for (bool b : r.list<bool, uint8_t>()) list.push_back(b);
      return list;
    }
    case DTYPE: case LAYOUT: case MEMORY_FORMAT: return int64_t(r.get<int8_t>());
    case DEVICE: {
      auto kind = c10::DeviceType(r.get<int8_t>());
      return c10::Device(kind, r.get<int8_t>());
    }
    case GENERATOR: return {};
    case OTHER: TORCH_CHECK(false, "argument `", a.name(), "` cannot be made from a ", r.str());
  }
  TORCH_CHECK(false, "unknown tag ", int(tag), " in the argument encoding");
}

std::optional<c10::OperatorHandle> functional_operator(const Call& call) {
  const c10::FunctionSchema& schema = call.op.schema();
  std::string name = schema.name();
  if (name.size() < 2 || name.back() != '_' || name.ends_with("__")) return {};
  name.pop_back();
  auto op = c10::Dispatcher::singleton().findSchema({name, schema.overload_name()});
  if (!op || op->schema().arguments().size() != schema.arguments().size()) return {};
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto &a = schema.arguments()[i], &b = op->schema().arguments()[i];
    if (a.name() != b.name() || *a.real_type() != *b.real_type()) return {};
    if (b.alias_info() && b.alias_info()->isWrite()) return {};
  }
  return op;
}

int alias_of(const c10::Argument& ret, const std::vector<c10::Argument>& args) {
  if (!ret.alias_info()) return -1;
  for (size_t i = 0; i < args.size(); ++i)
    if (args[i].alias_info())
      for (const auto& set : ret.alias_info()->beforeSets())
        if (args[i].alias_info()->beforeSets().count(set)) return int(i);
  return -1;
}

void write_schema(Writer& w, const Call& call) {
  const c10::FunctionSchema& schema = call.op.schema();
  w.str(schema.name());
  w.str(schema.overload_name());
  bool generator = false;
  w.put<uint32_t>(schema.arguments().size());
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto& a = schema.arguments()[i];
    w.str(a.name());
    w.put<uint8_t>(call.written[i]);
    generator |= without_optional(*a.real_type()).kind() == c10::TypeKind::GeneratorType;
  }
  w.put<uint32_t>(schema.returns().size());
  for (const auto& ret : schema.returns()) w.put<int32_t>(alias_of(ret, schema.arguments()));
  w.put<uint8_t>(generator || call.op.hasTag(at::Tag::nondeterministic_seeded));
  w.put<uint8_t>(call.op.hasTag(at::Tag::data_dependent_output));
  w.put<uint8_t>(call.op.hasTag(at::Tag::dynamic_output_shape));
}

// ---- recording ------------------------------------------------------------------------------------------------

extern "C" struct TfHooks {
  void* ctx;
  // A call is about to run: operator identity, its stored form (owned by the callee from now on), its arguments.
  void (*before)(void* ctx, uint64_t op, Call* call, const uint8_t* args, size_t len);
  // The call has run; its results.
  void (*after)(void* ctx, const uint8_t* results, size_t len);
  // The call threw.
  void (*failed)(void* ctx);
  // The memory of a watched tensor was touched between two calls.
  void (*touched)(void* ctx);
};

struct Recorder final : c10::WarningHandler {
  TfHooks hooks;
  c10::WarningHandler* previous;
  bool in_call = false;
  void process(const c10::Warning& warning) override {
    if (warning.msg().find("data pointer of FakeTensor") == std::string::npos) return previous->process(warning);
    if (!in_call) hooks.touched(hooks.ctx);
  }
};

thread_local Recorder* recorder = nullptr;
// Calls seen with the key set on threads that do not record: work that a capture handed to another thread.
std::atomic<uint64_t> foreign_calls{0};

// libtorch warns of memory accesses once in a process, unless told to warn always: so it is while anybody records.
void warn_always(int change) {
  static std::mutex mutex;
  static int recorders = 0;
  static bool usual = false;
  std::lock_guard<std::mutex> lock(mutex);
  if (recorders == 0) usual = c10::WarningUtils::get_warnAlways();
  recorders += change;
  c10::WarningUtils::set_warnAlways(recorders > 0 || usual);
}

void record(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard once(KEY);
  keys = keys & DispatchKeySet(DispatchKeySet::FULL_AFTER, KEY);
  Recorder* r = recorder;
  if (r == nullptr || r->in_call) {
    foreign_calls += r == nullptr;
    return op.redispatchBoxed(keys, stack);
  }
  const auto& schema = op.schema();
  auto call = std::make_unique<Call>(op);
  Writer w;
  size_t first = stack->size() - schema.arguments().size();
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    write_value(w, (*stack)[first + i], *schema.arguments()[i].real_type());
    call->push((*stack)[first + i]);
  }
  r->in_call = true;
  auto* bytes = reinterpret_cast<const uint8_t*>(w.bytes.data());
  r->hooks.before(r->hooks.ctx, reinterpret_cast<uint64_t>(&schema), call.release(), bytes, w.bytes.size());
  try {
    op.redispatchBoxed(keys, stack);
  } catch (...) {
    r->hooks.failed(r->hooks.ctx);
    r->in_call = false;
    throw;
  }
  Writer out;
  for (size_t i = stack->size() - schema.returns().size(), k = 0; i < stack->size(); ++i, ++k)
    write_value(out, (*stack)[i], *schema.returns()[k].real_type());
  r->hooks.after(r->hooks.ctx, reinterpret_cast<const uint8_t*>(out.bytes.data()), out.bytes.size());
  r->in_call = false;
}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&record>());
}

// libtorch can warn when the memory of a storage is touched, but offers no way to end that; an explicit
// instantiation may name private members, so the two that do it are taken from there.
template <class Tag, typename Tag::type M>
struct Member {
  friend typename Tag::type member(Tag) { return M; }
};
struct WarnFlag {
  using type = bool c10::StorageImpl::*;
  friend type member(WarnFlag);
};
struct Refresh {
  using type = void (c10::StorageImpl::*)();
  friend type member(Refresh);
};
template struct Member<WarnFlag, &c10::StorageImpl::warn_deprecated_on_mutable_data_ptr_>;
template struct Member<Refresh, &c10::StorageImpl::refresh_has_data_ptr_check>;

// ---- tensors --------------------------------------------------------------------------------------------------

constexpr int MAX_RANK = 8;

enum Flag : uint32_t {
  REQUIRES_GRAD = 1, STRIDED = 2, CONJ = 4, NEG = 8, CONTIGUOUS = 16, META = 32, ODD = 64, INFERENCE = 128,
  HAS_STORAGE = 256, VIEW = 512, SPARSE = 1024, QUANTIZED = 2048, NESTED = 4096, HIGH_RANK = 8192,
  WRAPPED_NUMBER = 16384
};

extern "C" struct TfMeta {
  int64_t sizes[MAX_RANK], strides[MAX_RANK];
  int64_t offset, numel, nbytes, use_count, storage_use_count, version;
  void *data, *impl, *storage, *storage_data;
  uint32_t flags;
  int8_t dtype, device_type, device_index;
  uint8_t rank;
};

extern "C" struct TfExpect {
  int64_t sizes[MAX_RANK], strides[MAX_RANK];
  uint64_t align;  // the address is a multiple of it; a power of two
  uint32_t flags;
  int8_t dtype, device_type, device_index;
  uint8_t rank;
};

// Keys of tensors that are what they look like: dense memory on a backend, and the layers that every tensor has.
constexpr DispatchKeySet PLAIN = c10::backend_bitset_mask | c10::autograd_dispatch_keyset_with_ADInplaceOrView |
    c10::autocast_dispatch_keyset |
    DispatchKeySet({DispatchKey::Dense, DispatchKey::Conjugate, DispatchKey::Negative, DispatchKey::BackendSelect});

uint32_t flags_of(const at::Tensor& t, c10::TensorImpl& impl) {
  uint32_t f = 0;
  auto set = [&f](bool on, uint32_t bit) { f |= on ? bit : 0; };
  bool strided = impl.layout() == c10::kStrided;
  bool storage = impl.has_storage();
  set(t.requires_grad(), REQUIRES_GRAD);
  set(strided, STRIDED);
  set(t.is_conj(), CONJ);
  set(t.is_neg(), NEG);
  set(impl.is_meta(), META);
  set(impl.is_inference(), INFERENCE);
  set(storage, HAS_STORAGE);
  set(impl.is_sparse() || impl.is_sparse_csr(), SPARSE);
  set(impl.is_quantized(), QUANTIZED);
  set(impl.is_nested(), NESTED);
  set(impl.dim() > MAX_RANK, HIGH_RANK);
  set(impl.is_wrapped_number(), WRAPPED_NUMBER);
  bool plain = (impl.key_set().raw_repr() & ~PLAIN.raw_repr()) == 0;
  set(!plain || (storage && c10::impl::cow::is_cow_data_ptr(impl.storage().data_ptr())), ODD);
  set(strided && !impl.is_nested() && impl.is_contiguous(), CONTIGUOUS);
  return f;
}

char* address(const c10::TensorImpl& impl) {
  if (!impl.has_storage() || impl.numel() == 0) return nullptr;
  auto* base = static_cast<const char*>(impl.storage().data());
  return const_cast<char*>(base == nullptr ? base : base + impl.storage_offset() * impl.itemsize());
}

void fill_meta(const at::Tensor& t, TfMeta& m) {
  c10::TensorImpl& impl = *t.unsafeGetTensorImpl();
  m.flags = flags_of(t, impl);
  m.impl = t.unsafeGetTensorImpl();
  m.dtype = int8_t(t.scalar_type());
  m.device_type = int8_t(impl.device().type());
  m.device_index = impl.device().index();
  m.use_count = t.use_count();
  m.version = impl.is_inference() ? -1 : impl.version_counter().current_version();
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
  if (int8_t(t.scalar_type()) != e.dtype || impl.dim() != e.rank) return false;
  c10::Device device = impl.device();
  if (int8_t(device.type()) != e.device_type || device.index() != e.device_index) return false;
  if (((flags_of(t, impl) ^ e.flags) & mask) != 0) return false;
  size_t bytes = e.rank * sizeof(int64_t);
  if (std::memcmp(impl.sizes().data(), e.sizes, bytes) != 0) return false;
  if (std::memcmp(impl.strides().data(), e.strides, bytes) != 0) return false;
  *data = address(impl);
  return (reinterpret_cast<uint64_t>(*data) & (e.align - 1)) == 0;
}

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
  auto t = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(storage), base.key_set(),
                                                    c10::scalarTypeToTypeMeta(dtype));
  t.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, byte_offset / item);
  return t;
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

using Sink = void (*)(void* ctx, const uint8_t* bytes, size_t len);

struct TfGlobal {
  uint64_t included, excluded;
  int32_t threads;
  uint8_t grad, inference, autocast_cpu, autocast_cuda, autocast_cpu_dtype, autocast_cuda_dtype, deterministic,
      tf32_matmul, tf32_conv, default_dtype, fill_uninitialized;
};

void tf_free(char* message) { free(message); }

char* tf_record_start(const TfHooks* hooks) {
  return guarded([&] {
    TORCH_CHECK(recorder == nullptr, "this thread records already");
    auto r = std::make_unique<Recorder>();
    r->hooks = *hooks;
    r->previous = c10::WarningUtils::get_warning_handler();
    recorder = r.release();
    warn_always(1);
    c10::WarningUtils::set_warning_handler(recorder);
    c10::impl::tls_set_dispatch_key_included(KEY, true);
  });
}

void tf_record_stop() {
  if (recorder == nullptr) return;
  c10::impl::tls_set_dispatch_key_included(KEY, false);
  c10::WarningUtils::set_warning_handler(recorder->previous);
  warn_always(-1);
  delete recorder;
  recorder = nullptr;
}

bool tf_recording() { return recorder != nullptr; }
uint64_t tf_foreign_calls() { return foreign_calls; }

char* tf_watch(const at::Tensor* t, bool on) {
  return guarded([&] {
    if (!t->has_storage()) return;
    c10::StorageImpl* storage = t->storage().unsafeGetStorageImpl();
    storage->*member(WarnFlag{}) = on;
    (storage->*member(Refresh{}))();
  });
}

char* tf_tensor_of_impl(uint64_t impl, at::Tensor** out) {
  return guarded([&] {
    auto* p = reinterpret_cast<c10::TensorImpl*>(impl);
    *out = new at::Tensor(c10::intrusive_ptr<c10::TensorImpl>::unsafe_reclaim_from_nonowning(p));
  });
}

// The tensor that `t` is a differentiable view of, or null.
char* tf_base(const at::Tensor* t, void** out) {
  return guarded([&] { *out = t->is_view() ? t->_base().unsafeGetTensorImpl() : nullptr; });
}

// A copy of the whole storage, as bytes.
char* tf_snapshot(const at::Tensor* t, at::Tensor** out) {
  return guarded([&] {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    c10::impl::ExcludeDispatchKeyGuard unseen(KEY);
    int64_t nbytes = int64_t(t->storage().nbytes());
    *out = new at::Tensor(view_of(*t, 0, c10::kByte, {nbytes}, {1}).clone());
  });
}

char* tf_call_new(const char* name, const char* overload, const uint8_t* bytes, size_t len, Call** out) {
  return guarded([&] {
    auto call = std::make_unique<Call>(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload));
    Reader r{bytes, bytes + len};
    for (const auto& a : call->op.schema().arguments()) {
      TORCH_CHECK(r.at < r.end || a.default_value(), "argument `", a.name(), "` of ", name, " is missing");
      call->args.push_back(r.at < r.end ? read_value(r, a, *call) : *a.default_value());
    }
    TORCH_CHECK(r.at == r.end, "too many arguments for ", name);
    *out = call.release();
  });
}

void tf_call_drop(Call* call) { delete call; }

char* tf_call_schema(const Call* call, void* ctx, Sink sink) {
  return guarded([&] {
    Writer w;
    write_schema(w, *call);
    sink(ctx, reinterpret_cast<const uint8_t*>(w.bytes.data()), w.bytes.size());
  });
}

char* tf_call_functional(const Call* call, Call** out) {
  return guarded([&] {
    *out = nullptr;
    auto op = functional_operator(*call);
    if (!op) return;
    auto made = std::make_unique<Call>(*op);
    made->args = call->args;
    made->holes = call->holes;
    made->keep_self_dtype = true;
    *out = made.release();
  });
}

// `*out` is valid until this thread's next call; the tensors in it belong to the caller.
char* tf_call_run(const Call* call, const at::Tensor* const* tensors, size_t n, uint64_t clone, at::Tensor*** out,
                  size_t* n_out) {
  static thread_local std::vector<at::Tensor*> results;
  results.clear();
  char* error = guarded([&] { run_call(*call, tensors, n, clone, results); });
  if (error != nullptr) {
    for (at::Tensor* t : results) delete t;
    results.clear();
  }
  *out = results.data();
  *n_out = results.size();
  return error;
}

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
    *bad = 0;
    while (*bad < n && tensors[*bad]->defined() && matches(*tensors[*bad], expect[*bad], mask, &data[*bad])) ++*bad;
  });
}

char* tf_bump_version(const at::Tensor* t) {
  return guarded([&] { bump_version(*t); });
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
    out->tf32_matmul = uint8_t(ctx.float32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL));
    out->tf32_conv = uint8_t(ctx.float32Precision(at::Float32Backend::CUDA, at::Float32Op::CONV));
    out->default_dtype = uint8_t(c10::get_default_dtype_as_scalartype());
  });
}

char* tf_cuda_devices(int32_t* out) {
  return guarded([&] {
    TORCH_CHECK(at::hasCUDA(), "libtorch was built without CUDA");
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
