#pragma once

// What the parts of the shim share. The shim is the only C++ of Tilefuse: what neither tch nor libtorch's C interface
// offers. `record.cpp` reports operator calls through a boxed fallback, `call.cpp` stores calls and makes them again,
// `tensor.cpp` looks at tensors and global state, `operator.cpp` registers operators, `graph.cpp` keeps memory for CUDA graphs,
// `ranges.cpp` names what runs for profilers.
// Policy lives on the Rust side; data of variable size crosses as bytes in the encoding of `wire.rs`.
//
// Every exported function returns null, or a message that the caller frees with `tf_free`. No exception leaves it.

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>

#include <cstring>
#include <string>
#include <vector>

// Above autograd and autocast: composite operators arrive whole.
constexpr c10::DispatchKey KEY = c10::DispatchKey::TESTING_ONLY_GenericMode;

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

// Appends a value of the stack, whose declared type tells dtypes and the like from integers.
void write_value(Writer& w, const c10::IValue& v, const c10::Type& declared);

struct Hole {
  enum Kind { ONE, LIST, OPTIONAL_LIST } kind;
  uint32_t arg;
  std::vector<bool> present;  // of a list: which elements are tensors, not undefined
};

struct Call {
  c10::OperatorHandle op;
  torch::jit::Stack args;  // holes are None
  std::vector<Hole> holes;
  std::vector<bool> written;  // by argument
  bool keep_self_dtype = false;
  bool opaque = false;  // tensors hide in other values

  explicit Call(c10::OperatorHandle handle) : op(handle) {
    for (const auto& a : op.schema().arguments())
      written.push_back(a.alias_info() != nullptr && a.alias_info()->isWrite());
  }

  // Appends an argument of the stack.
  void push(const c10::IValue& v);
};

// A tensor on the storage of `base`.
at::Tensor view_of(const at::Tensor& base, int64_t byte_offset, c10::ScalarType dtype, c10::IntArrayRef sizes,
                   c10::IntArrayRef strides);

// Whether this thread records.
extern "C" bool tf_recording();

// Raises the versions of what the call that begins writes, where `tf_call_run` makes it.
void count_writes();
