// Custom functions: a graph node whose backward is a TypeScript function.
#include "autograd/node.h"
#include "core/callback.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <unordered_set>

namespace pw {
namespace {

using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

struct FunctionNode;
thread_local std::vector<FunctionNode*> running;  // whose backward TypeScript is in, innermost last

struct FunctionNode final : Node {
  FunctionNode(Env& env, double id, std::string function_name, bool materialize_gradients)
      : callback(env, id), label(std::move(function_name)), materialize(materialize_gradients) {}

  std::string name() const override { return label; }

  variable_list apply(variable_list&& gradients) override {
    if (materialize) {
      at::OptionalDeviceGuard guard;
      for (size_t i = 0; i < gradients.size(); ++i) {
        if (!gradients[i].defined() && i < outputs.size()) gradients[i] = outputs[i].zeros(guard);
      }
    }
    std::vector<bool> wanted(num_outputs());  // asked of the engine's own thread
    for (size_t i = 0; i < wanted.size(); ++i) wanted[i] = task_should_compute_output(i);
    variable_list result;
    callback.bridge().call([&](Env& env) {
      struct Running {
        explicit Running(FunctionNode* node) { running.push_back(node); }
        ~Running() { running.pop_back(); }
      } here(this);
      needs = std::move(wanted);
      result = invoke(env, callback.id(), 0, gradients);
    });
    result.resize(num_outputs());
    return result;
  }

  void release_variables() override {
    std::vector<SavedVariable> doomed;
    std::lock_guard<std::mutex> lock(saved_mutex);
    doomed.swap(saved);
    freed = freed || !doomed.empty();
  }

  Callback callback;
  std::string label;
  bool materialize;
  bool freed = false;
  std::mutex saved_mutex;
  std::vector<SavedVariable> saved;
  std::vector<torch::autograd::VariableInfo> outputs;
  std::vector<bool> needs;
};

using Set = std::unordered_set<at::TensorImpl*>;
using Outputs = std::vector<std::optional<at::Tensor>>;

// Versions differ in whether the attached node is told.
template <typename Wrap>
Outputs wrap_outputs(
    Wrap, const variable_list& inputs, const Set& plain, const Set& dirty, const Outputs& raw, const OwnedNode& node) {
  using torch::autograd::_wrap_outputs;
  const torch::autograd::_jvp_fn_t no_forward_mode = [](const variable_list&, const variable_list&) -> variable_list {
    throw CodedError("FORWARD_MODE", "custom functions have no forward-mode gradient");
  };
  const torch::autograd::_view_as_self_fn_t view_as_self = [](const at::Tensor& tensor) {
    return tensor.view_as(tensor);
  };
  if constexpr (std::is_invocable_v<Wrap, const variable_list&, const Set&, const Set&, Outputs, const OwnedNode&,
                    decltype(no_forward_mode), Set, decltype(view_as_self), bool, OwnedNode&>) {
    OwnedNode attached;
    return Wrap()(inputs, plain, dirty, raw, node, no_forward_mode, Set(), view_as_self, false, attached);
  } else {
    return Wrap()(inputs, plain, dirty, raw, node, no_forward_mode, Set(), view_as_self, false);
  }
}

struct Wrap {
  template <typename... A>
  auto operator()(A&&... arguments) -> decltype(torch::autograd::_wrap_outputs(std::forward<A>(arguments)...)) {
    return torch::autograd::_wrap_outputs(std::forward<A>(arguments)...);
  }
};

Set impls(const std::vector<at::Tensor>& tensors) {
  Set set;
  for (const at::Tensor& tensor : tensors) set.insert(tensor.unsafeGetTensorImpl());
  return set;
}

}  // namespace

// (name, inputs, outputs, changed in place, not differentiable, saved, id, materialize): the outputs with their history.
// The number is buried at once when nothing is recorded.
PW_ENTRY(wrap_function, 8) {
  const variable_list inputs = args.tensors(1), outputs = args.tensors(2), dirty = args.tensors(3),
                      saved = args.tensors(5);
  auto node = make_node<FunctionNode>(*args.env, args.number(6), args.string(0), args.boolean(7));
  const bool records = at::GradMode::is_enabled() && torch::autograd::any_variable_requires_grad(inputs);
  if (records) node->set_next_edges(torch::autograd::collect_next_edges(inputs));
  for (const at::Tensor& tensor : dirty) torch::autograd::impl::bump_version(tensor);
  Outputs raw;
  for (const at::Tensor& output : outputs)
    raw.emplace_back(output.defined() ? std::optional<at::Tensor>(output) : std::nullopt);
  const OwnedNode owner = records ? OwnedNode(node) : OwnedNode();
  const Outputs wrapped = wrap_outputs(Wrap(), inputs, impls(args.tensors(4)), impls(dirty), raw, owner);
  std::vector<at::Tensor> result;
  for (const auto& output : wrapped) result.push_back(output.has_value() ? *output : at::Tensor());
  if (records) {
    for (const at::Tensor& output : result) {
      if (output.defined()) node->outputs.emplace_back(output);
      else node->outputs.emplace_back();
    }
    node->saved.reserve(saved.size());
    for (const at::Tensor& tensor : saved) {
      const bool is_output = tensor.defined() && tensor.grad_fn().get() == static_cast<Node*>(node.get());
      node->saved.emplace_back(tensor.defined() ? tensor : at::Tensor(), is_output);
    }
  }
  return from_tensors(*args.env, result);
}

static FunctionNode& current_function(const char* what) {
  if (running.empty()) throw CodedError("NOT_IN_BACKWARD", std::string(what) + " can be read only while backward runs");
  return *running.back();
}

// The tensors saved by the function whose backward is running.
PW_ENTRY(function_saved, 1) {
  FunctionNode& node = current_function("savedTensors");
  std::vector<at::Tensor> result;
  if (node.freed)
    throw CodedError("BACKWARD_TWICE", node.label +
                                           ": the saved tensors were freed by an earlier backward; give it { "
                                           "retainGraph: true } to go through the graph again");
  for (const SavedVariable& variable : node.saved) result.push_back(variable.unpack(node.getptr()));
  return from_tensors(*args.env, result);
}

// For each tensor that went in: whether this backward wants its gradient.
PW_ENTRY(function_needs, 1) {
  const FunctionNode& node = current_function("needsInputGrad");
  napi_value result;
  napi_create_array_with_length(args.napi, node.needs.size(), &result);
  for (size_t i = 0; i < node.needs.size(); ++i)
    napi_set_element(args.napi, result, static_cast<uint32_t>(i), from_bool(args.napi, node.needs[i]));
  return result;
}

void init_custom_function(Env& env, napi_value exports) {
  add_exports(env, exports,
      {
          {"wrapFunction", wrap_function},
          {"functionSaved", function_saved},
          {"functionNeeds", function_needs},
      });
}

}  // namespace pw
