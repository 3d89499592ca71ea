// Hooks: TypeScript functions called with a tensor's gradient, after a leaf's gradient was accumulated, or around a node.
#include "core/callback.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

namespace pw {
namespace {

using torch::autograd::Node;
using torch::autograd::variable_list;
namespace impl = torch::autograd::impl;

// The functions of one place, in the order of registration. Changed by TypeScript, read by engine threads.
class HookList {
 public:
  void add(std::shared_ptr<Callback> callback) {
    std::lock_guard<std::mutex> lock(mutex_);
    callbacks_.push_back(std::move(callback));
  }
  bool remove(double id) {
    std::shared_ptr<Callback> doomed;  // dies after the lock
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto at = callbacks_.begin(); at != callbacks_.end(); ++at) {
      if ((*at)->id() != id) continue;
      doomed = std::move(*at);
      callbacks_.erase(at);
      return true;
    }
    return false;
  }
  std::vector<std::shared_ptr<Callback>> all() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return callbacks_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<Callback>> callbacks_;
};

// Which list a hook sits in, for removal: of this JavaScript thread.
thread_local std::unordered_map<double, std::weak_ptr<HookList>> lists;

struct HasList {
  std::shared_ptr<HookList> list = std::make_shared<HookList>();
};

// Before a node runs: the gradient of one tensor.
struct TensorHook final : torch::autograd::FunctionPreHook, HasList {
  explicit TensorHook(size_t at) : index(at) {}
  variable_list operator()(const variable_list& gradients) override {
    variable_list result = gradients;
    if (index >= result.size() || !result[index].defined()) return result;
    for (const auto& callback : list->all()) {
      std::vector<at::Tensor> changed = callback->run({result[index]});
      if (!changed.empty() && changed[0].defined()) result[index] = std::move(changed[0]);
    }
    return result;
  }
  const size_t index;
};

// After a leaf's gradient was accumulated.
struct AccumulatedHook final : torch::autograd::PostAccumulateGradHook, HasList {
  void operator()(const at::Tensor& tensor) override {
    for (const auto& callback : list->all()) callback->run({tensor});
  }
};

// Before a node runs: all the gradients that arrive.
struct NodePreHook final : torch::autograd::FunctionPreHook, HasList {
  variable_list operator()(const variable_list& gradients) override {
    variable_list result = gradients;
    for (const auto& callback : list->all()) {
      std::vector<at::Tensor> changed = callback->run(result);
      if (!changed.empty()) result = std::move(changed);
    }
    return result;
  }
};

// After a node ran: the gradients it made, then those it had; the number says how many were made.
struct NodePostHook final : torch::autograd::FunctionPostHook, HasList {
  variable_list operator()(const variable_list& made, const variable_list& had) override {
    variable_list result = made;
    for (const auto& callback : list->all()) {
      std::vector<at::Tensor> both = result;
      both.insert(both.end(), had.begin(), had.end());
      std::vector<at::Tensor> changed = callback->run(both, static_cast<double>(result.size()));
      if (!changed.empty()) result = std::move(changed);
    }
    return result;
  }
};

// The hook object of ours among `hooks`, if it is there already.
template <typename T, typename Base, typename Match>
T* find_hook(const std::vector<std::unique_ptr<Base>>& hooks, Match matches) {
  for (const auto& hook : hooks) {
    T* mine = dynamic_cast<T*>(hook.get());
    if (mine != nullptr && matches(*mine)) return mine;
  }
  return nullptr;
}

void put(Env& env, const std::shared_ptr<HookList>& list, double id) {
  list->add(std::make_shared<Callback>(env, id));
  lists[id] = list;
}

TensorHook& tensor_hook(const at::Tensor& tensor) {
  const size_t index = tensor.output_nr();
  const auto same = [&](const TensorHook& hook) { return hook.index == index; };
  const auto node = tensor.grad_fn();
  auto& hooks = node ? node->tensor_pre_hooks() : impl::hooks(tensor);
  if (TensorHook* found = find_hook<TensorHook>(hooks, same)) return *found;
  hooks.push_back(std::make_unique<TensorHook>(index));
  return static_cast<TensorHook&>(*hooks.back());
}

Node& node_of(Env& env, int32_t handle) {
  OwnedNode* found = env.nodes.find(handle);
  if (found == nullptr)
    throw CodedError("STALE_HANDLE", "this graph node was disposed of, or belongs to another thread");
  return **found;
}

}  // namespace

void forget_hook(double id) { lists.erase(id); }

// (tensor, id)
PW_ENTRY(register_hook, 2) {
  put(*args.env, tensor_hook(args.tensor(0)).list, args.number(1));
  return undefined(args.napi);
}

// (tensor, id): a leaf that requires gradients
PW_ENTRY(register_accumulated_hook, 2) {
  const at::Tensor& tensor = args.tensor(0);
  auto& slot = impl::post_acc_grad_hooks(tensor);
  AccumulatedHook* hook = dynamic_cast<AccumulatedHook*>(slot.get());
  if (hook == nullptr) {
    auto made = std::make_unique<AccumulatedHook>();
    hook = made.get();
    impl::set_post_acc_grad_hooks(tensor, std::move(made));
  }
  put(*args.env, hook->list, args.number(1));
  return undefined(args.napi);
}

// (node, id)
PW_ENTRY(register_node_prehook, 2) {
  Node& node = node_of(*args.env, args.int32(0));
  NodePreHook* hook = find_hook<NodePreHook>(node.pre_hooks(), [](const NodePreHook&) { return true; });
  if (hook == nullptr) {
    auto made = std::make_unique<NodePreHook>();
    hook = made.get();
    node.add_pre_hook(std::move(made));
  }
  put(*args.env, hook->list, args.number(1));
  return undefined(args.napi);
}

// (node, id)
PW_ENTRY(register_node_hook, 2) {
  Node& node = node_of(*args.env, args.int32(0));
  NodePostHook* hook = find_hook<NodePostHook>(node.post_hooks(), [](const NodePostHook&) { return true; });
  if (hook == nullptr) {
    auto made = std::make_unique<NodePostHook>();
    hook = made.get();
    node.add_post_hook(std::move(made));
  }
  put(*args.env, hook->list, args.number(1));
  return undefined(args.napi);
}

// (id): whether it was there
PW_ENTRY(remove_hook, 1) {
  const auto found = lists.find(args.number(0));
  if (found == lists.end()) return from_bool(args.napi, false);
  const std::shared_ptr<HookList> list = found->second.lock();
  lists.erase(found);
  return from_bool(args.napi, list != nullptr && list->remove(args.number(0)));
}

void init_hooks(Env& env, napi_value exports) {
  add_exports(env, exports,
      {
          {"registerHook", register_hook},
          {"registerAccumulatedHook", register_accumulated_hook},
          {"registerNodePrehook", register_node_prehook},
          {"registerNodeHook", register_node_hook},
          {"removeHook", remove_hook},
      });
}

}  // namespace pw
