// Operators whose meaning the Rust side gives.

#include "shim.h"

#include <torch/csrc/jit/frontend/function_schema_parser.h>

namespace {

using torch::jit::Stack;

struct TfAnswer {
  std::vector<at::Tensor> tensors;
  std::string error;
  bool failed = false;
};

// Gets new handles of the inputs, which it owns, and answers through `tf_answer_tensor` or `tf_answer_error`.
using Body = void (*)(const void* ctx, at::Tensor* const* inputs, size_t n, TfAnswer* answer);

struct Functor final : c10::OperatorKernel {
  Body body;
  const void* ctx;
  Functor(Body b, const void* c) : body(b), ctx(c) {}

  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, Stack* stack) {
    std::vector<at::Tensor> inputs = stack->back().toTensorVector();
    std::vector<at::Tensor*> handles;
    for (const at::Tensor& t : inputs) handles.push_back(new at::Tensor(t));
    TfAnswer answer;
    body(ctx, handles.data(), handles.size(), &answer);
    TORCH_CHECK(!answer.failed, answer.error);
    stack->pop_back();
    stack->emplace_back(c10::List<at::Tensor>(answer.tensors));
  }
};

}  // namespace

extern "C" {

void tf_answer_tensor(TfAnswer* answer, const at::Tensor* t) { answer->tensors.push_back(*t); }

void tf_answer_error(TfAnswer* answer, const char* text, size_t len) {
  answer->error.assign(text, len);
  answer->failed = true;
}

// Registers `NAME(Tensor[] inputs) -> Tensor[]` for the rest of the process. `ctx` lives as long.
char* tf_operator_new(const char* name, Body body, const void* ctx) {
  return guarded([&] {
    auto& dispatcher = c10::Dispatcher::singleton();
    c10::FunctionSchema schema = torch::jit::parseSchema(std::string(name) + "(Tensor[] inputs) -> Tensor[]");
    c10::OperatorName op = schema.operator_name();
    TORCH_CHECK(!dispatcher.findSchema(op), "there is an operator ", name, " already");
    static auto* kept = new std::vector<c10::RegistrationHandleRAII>();
    kept->push_back(dispatcher.registerDef(std::move(schema), "tilefuse"));
    kept->push_back(dispatcher.registerImpl(
        op, c10::DispatchKey::CompositeExplicitAutograd,
        c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<Functor>(body, ctx)), {}, nullptr, "tilefuse"));
  });
}

}  // extern "C"
