// Operator calls that are stored with holes for their tensors and made again.

#include "shim.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/enum_tag.h>

#include <algorithm>

namespace {

using c10::IValue;
using torch::jit::Stack;

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

}  // namespace

// TorchScript's lists do not always carry the element type that the schema declares.
bool is_tensor_list(const IValue& v, const c10::Type& declared) {
  if (v.isTensorList() || v.isOptionalTensorList()) return true;
  auto list = without_optional(declared).cast<c10::ListType>();
  return v.isList() && list && without_optional(*list->getElementType()).kind() == c10::TypeKind::TensorType;
}

static bool hides_tensors(const IValue& v) {
  if (v.isList()) {
    auto parts = v.toListRef();
    return std::any_of(parts.begin(), parts.end(), [](const IValue& p) { return p.isTensor() || hides_tensors(p); });
  }
  return v.isTuple() || v.isGenericDict() || v.isObject();
}

void Call::push(const IValue& v) {
  const c10::Type& declared = *op.schema().arguments()[args.size()].real_type();
  uint32_t arg = args.size();
  if (v.isTensor() && v.toTensor().defined()) {
    holes.push_back({Hole::ONE, arg, {true}});
  } else if (is_tensor_list(v, declared)) {
    auto list = without_optional(declared).cast<c10::ListType>();
    bool optional = list ? list->getElementType()->kind() == c10::TypeKind::OptionalType : !v.isTensorList();
    Hole hole{optional ? Hole::OPTIONAL_LIST : Hole::LIST, arg, {}};
    for (const IValue& e : v.toListRef()) hole.present.push_back(e.isTensor() && e.toTensor().defined());
    holes.push_back(std::move(hole));
  } else {
    opaque |= hides_tensors(v);
    args.push_back(v.isTensor() ? IValue(at::Tensor()) : v);
    return;
  }
  args.emplace_back();
}

void write_value(Writer& w, const IValue& v, const c10::Type& declared) {
  if (v.isNone()) return w.put(NONE);
  if (v.isTensor()) {
    if (!v.toTensor().defined()) return w.put(NONE);
    w.put(TENSOR);
    return w.tensor(v.toTensor());
  }
  if (is_tensor_list(v, declared)) {
    w.put(TENSORS);
    w.put<uint32_t>(v.toListRef().size());
    for (const IValue& e : v.toListRef()) w.tensor(e.isTensor() ? e.toTensor() : at::Tensor());
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

namespace {

struct Filler {
  const Call& call;
  const at::Tensor* const* tensors;
  size_t n, next;

  const at::Tensor& take() {
    TORCH_CHECK(next < n, "too few tensors for ", call.op.schema().name());
    return *tensors[next++];
  }
  IValue fill(const Hole& h) {
    if (h.kind == Hole::ONE) return take();
    if (h.kind == Hole::LIST) {
      c10::List<at::Tensor> list;
      for (bool p : h.present) list.push_back(p ? take() : at::Tensor());
      return list;
    }
    c10::List<std::optional<at::Tensor>> list;
    for (bool p : h.present) list.push_back(p ? std::optional(take()) : std::nullopt);
    return list;
  }
};

// A result that is no tensor stands as an undefined one, so that the others keep their places.
void collect(const IValue& v, std::vector<at::Tensor*>& out) {
  if (v.isTensorList())
    for (const at::Tensor& t : v.toTensorVector()) out.push_back(new at::Tensor(t));
  else
    out.push_back(new at::Tensor(v.isTensor() ? v.toTensor() : at::Tensor()));
}

void bump_version(const at::Tensor& t) {
  if (t.defined() && !t.is_inference()) t.unsafeGetTensorImpl()->bump_version();
}

// What the coming call of this thread writes, where it is recorded: a part of the recorded call.
thread_local std::vector<at::Tensor> uncounted;

void count_write(const at::Tensor& t) {
  if (tf_recording()) uncounted.push_back(t);
  else bump_version(t);
}

}  // namespace

void count_writes() {
  for (const at::Tensor& t : uncounted) bump_version(t);
  uncounted.clear();
}

namespace {

void run_call(const Call& call, const at::Tensor* const* tensors, size_t n, std::vector<at::Tensor*>& out) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  uncounted.clear();
  Stack stack = call.args;
  Filler filler{call, tensors, n, 0};
  for (const Hole& h : call.holes) {
    stack[h.arg] = filler.fill(h);
    if (call.written[h.arg] && h.kind == Hole::ONE) count_write(stack[h.arg].toTensor());
  }
  TORCH_CHECK(filler.next == n, "too many tensors for ", call.op.schema().name());
  call.op.callBoxed(stack);
  count_writes();
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

}  // namespace

extern "C" {

using Sink = void (*)(void* ctx, const uint8_t* bytes, size_t len);

void tf_free(char* message) { free(message); }

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

// Whether the call holds tensors in a place that has no hole.
bool tf_call_opaque(const Call* call) { return call->opaque; }

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
char* tf_call_run(const Call* call, const at::Tensor* const* tensors, size_t n, at::Tensor*** out, size_t* n_out) {
  static thread_local std::vector<at::Tensor*> results;
  results.clear();
  char* error = guarded([&] { run_call(*call, tensors, n, results); });
  if (error != nullptr) {
    for (at::Tensor* t : results) delete t;
    results.clear();
  }
  *out = results.data();
  *n_out = results.size();
  return error;
}

char* tf_bump_version(const at::Tensor* t) {
  return guarded([&] { bump_version(*t); });
}

}  // extern "C"
