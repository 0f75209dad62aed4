// The recorder: a boxed fallback that reports every operator call of one thread.

#include "shim.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/jit/runtime/interpreter.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torch/library.h>

#include <atomic>
#include <mutex>
#include <sstream>
#include <unordered_map>

namespace {

using c10::DispatchKeySet;
using torch::jit::Stack;

extern "C" struct TfHooks {
  void* ctx;
  // A call is about to run: operator identity, its stored form (owned by the callee from now on), its arguments.
  void (*before)(void* ctx, uint64_t op, Call* call, const uint8_t* args, size_t len);
  // The call has run; its results.
  void (*after)(void* ctx, const uint8_t* results, size_t len);
  // The call threw.
  void (*failed)(void* ctx);
  // The recorder itself met an error.
  void (*broken)(void* ctx);
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

void report_call(const Recorder& r, const c10::OperatorHandle& op, const Stack& stack) {
  const auto& schema = op.schema();
  auto call = std::make_unique<Call>(op);
  Writer w;
  size_t first = stack.size() - schema.arguments().size();
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    write_value(w, stack[first + i], *schema.arguments()[i].real_type());
    call->push(stack[first + i]);
  }
  auto* bytes = reinterpret_cast<const uint8_t*>(w.bytes.data());
  r.hooks.before(r.hooks.ctx, reinterpret_cast<uint64_t>(&schema), call.release(), bytes, w.bytes.size());
}

void report_results(const Recorder& r, const c10::OperatorHandle& op, const Stack& stack) {
  const auto& returns = op.schema().returns();
  Writer w;
  size_t first = stack.size() - returns.size();
  for (size_t i = 0; i < returns.size(); ++i) write_value(w, stack[first + i], *returns[i].real_type());
  r.hooks.after(r.hooks.ctx, reinterpret_cast<const uint8_t*>(w.bytes.data()), w.bytes.size());
}

// Runs a step of the recorder, whose failure is no failure of the model.
template <class F>
void step(const Recorder& r, F&& body) {
  try {
    body();
  } catch (...) {
    r.hooks.broken(r.hooks.ctx);
  }
}

void record(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard once(KEY);
  keys = keys & DispatchKeySet(DispatchKeySet::FULL_AFTER, KEY);
  Recorder* r = recorder;
  if (r == nullptr || r->in_call) {
    foreign_calls += r == nullptr;
    return op.redispatchBoxed(keys, stack);
  }
  r->in_call = true;
  step(*r, [&] { report_call(*r, op, *stack); });
  count_writes();
  try {
    op.redispatchBoxed(keys, stack);
  } catch (...) {
    r->hooks.failed(r->hooks.ctx);
    r->in_call = false;
    throw;
  }
  step(*r, [&] { report_results(*r, op, *stack); });
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

// Identifies a tensor and its storage, whose addresses are not used again, without keeping their memory.
using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
struct TfWeak {
  WeakTensor tensor;
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> storage;
};

}  // namespace

extern "C" {

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

// The methods that TorchScript's interpreter is in on this thread, from the outermost on, each as name(Type)::method.
char* tf_script_stack(void* ctx, void (*sink)(void* ctx, const uint8_t* bytes, size_t len)) {
  return guarded([&] {
    for (const auto& frame : torch::jit::currentModuleHierarchy()) {
      sink(ctx, reinterpret_cast<const uint8_t*>(frame.data()), frame.size());
    }
  });
}

// The lines of source at which TorchScript's interpreter is on this thread, from the innermost call on, each as file:line. In front of
// that of a traced operator is the stack of Python's calls that the trace kept, as text of lines like `file(line): function`.
char* tf_script_lines(void* ctx, void (*sink)(void* ctx, const uint8_t* bytes, size_t len)) {
  return guarded([&] {
    for (const auto& entry : torch::jit::currentCallstack()) {
      // Of a file that was loaded: the line of what it was made of, not of the text in it.
      const auto origin = entry.range.findSourceRangeThatGenerated();
      const auto& range = origin ? *origin : entry.range;
      const auto place = range.file_line_col();
      if (!place) continue;
      const std::string text = range.text().str();
      if (text.substr(0, text.find('\n')).find("): ") != std::string::npos)
        sink(ctx, reinterpret_cast<const uint8_t*>(text.data()), text.size());
      const auto line = std::get<0>(*place) + ":" + std::to_string(std::get<1>(*place));
      sink(ctx, reinterpret_cast<const uint8_t*>(line.data()), line.size());
    }
  });
}

// The bytes of a TorchScript file with the floating-point tensors of its module converted, as Python's `Module.to` converts them.
char* tf_script_converted(const char* path, int8_t dtype, void* ctx,
                          void (*sink)(void* ctx, const uint8_t* bytes, size_t len)) {
  return guarded([&] {
    auto module = torch::jit::load(path, c10::kCPU);
    const auto convert = [&](at::Tensor t) {
      if (t.is_floating_point()) t.set_data(t.to(c10::ScalarType(dtype)));
    };
    for (const auto& t : module.parameters()) convert(t);
    for (const auto& t : module.buffers()) convert(t);
    std::ostringstream out;
    module.save(out);
    const std::string bytes = out.str();
    sink(ctx, reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  });
}

bool tf_recording() { return recorder != nullptr; }
uint64_t tf_foreign_calls() { return foreign_calls; }

char* tf_weak_new(const at::Tensor* t, TfWeak** out) {
  return guarded([&] {
    auto weak = std::make_unique<TfWeak>(TfWeak{WeakTensor(t->getIntrusivePtr()), {}});
    if (t->has_storage()) weak->storage = t->storage().getWeakStorageImpl();
    *out = weak.release();
  });
}

void tf_weak_drop(TfWeak* weak) { delete weak; }

// `*out` is null where the tensor is gone.
char* tf_weak_lock(const TfWeak* weak, at::Tensor** out) {
  return guarded([&] {
    auto impl = weak->tensor.lock();
    *out = impl.defined() ? new at::Tensor(std::move(impl)) : nullptr;
  });
}

// How many tensors hold the storage; 0 where it is gone or there is none.
int64_t tf_weak_storage_holders(const TfWeak* weak) {
  return weak->storage ? int64_t(weak->storage->use_count()) : 0;
}

// Each call with `on` takes one without: several threads may watch one storage.
char* tf_watch(const TfWeak* weak, bool on) {
  return guarded([&] {
    static std::mutex mutex;
    static std::unordered_map<const c10::StorageImpl*, int> watchers;
    if (!weak->storage) return;
    std::lock_guard<std::mutex> lock(mutex);
    // The address is no other storage's while there is a weak pointer to it.
    auto at = watchers.try_emplace(weak->storage->_unsafe_get_target(), 0).first;
    at->second += on ? 1 : -1;
    bool watched = at->second > 0;
    if (!watched) watchers.erase(at);
    auto storage = weak->storage->lock();
    if (!storage) return;
    storage.get()->*member(WarnFlag{}) = watched;
    (storage.get()->*member(Refresh{}))();
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

// Zeroes the whole storage, which counts as no write.
char* tf_zero(const at::Tensor* t) {
  return guarded([&] {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    c10::impl::ExcludeDispatchKeyGuard unseen(KEY);
    int64_t nbytes = int64_t(t->storage().nbytes());
    view_of(*t, 0, c10::kByte, {nbytes}, {1}).zero_();
  });
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

}  // extern "C"
