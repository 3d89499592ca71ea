// The backward of a stage in two halves. For the input half the edges towards parameters are taken out of the graph where
// a parameter's branch meets the way from the inputs to the outputs, and the edges to the inputs lead to nodes of ours;
// a plain engine run then computes what the inputs get and nothing else, and hooks note the gradients that arrive at the
// meeting places. For the weight half those edges are back and the others gone: one plain accumulating run from all the
// meeting places. No path is walked twice, shared weights included, and gradients do not flow beyond the inputs.
#include "autograd/direct-run.h"
#include "autograd/node.h"
#include "core/callback.h"

#include <ATen/ops/ones_like.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/tensor.h>
#include <torch/csrc/autograd/variable.h>

namespace pw {
namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;

// What the weight half needs; owned by the TypeScript object through a handle.
struct Pending {
  std::mutex mutex;  // engine threads of several devices may add at once
  edge_list roots;
  variable_list gradients;
};

// Stands in for a stage input: keeps the gradient that arrives, after the hooks of the tensor.
struct CaptureNode final : Node {
  explicit CaptureNode(const at::Tensor& input, Edge edge) : original(std::move(edge)) { add_input_metadata(input); }
  variable_list apply(variable_list&& gradients) override {
    captured = std::move(gradients[0]);
    return {};
  }
  std::string name() const override { return "StageInput"; }
  std::vector<std::unique_ptr<torch::autograd::FunctionPreHook>>& tensor_pre_hooks() noexcept override {
    // A leaf's hooks are all its own; a computed tensor's sit on its node, by output, and expect all of them.
    return original.function->next_edges().empty() ? original.function->tensor_pre_hooks() : Node::tensor_pre_hooks();
  }
  Edge original;
  at::Tensor captured;
};

// The hooks of a computed tensor, called with a list in which only its own gradient is defined.
struct ForwardedHooks final : torch::autograd::FunctionPreHook {
  explicit ForwardedHooks(Edge edge) : original(std::move(edge)) {}
  variable_list operator()(const variable_list& gradients) override {
    variable_list all(original.function->num_inputs());
    all[original.input_nr] = gradients[0];
    for (const auto& hook : original.function->tensor_pre_hooks()) all = (*hook)(all);
    const auto retained = original.function->retains_grad_hooks().find(original.input_nr);
    if (retained != original.function->retains_grad_hooks().end()) all = (*retained->second)(all);
    return {all[original.input_nr]};
  }
  Edge original;
};

// Notes the gradients that arrive at a meeting place, after the tensors' own hooks: for the engine's runs.
struct MeetingHook final : torch::autograd::FunctionPreHook {
  MeetingHook(Node& at, Arrivals& to) : node(at), arrivals(to) {}
  variable_list operator()(const variable_list& gradients) override {
    arrivals.arrived(node, gradients);
    return gradients;
  }
  Node& node;
  Arrivals& arrivals;  // outlives the engine's run; the hook is taken away after it
};

using CapturePtr = decltype(make_node<CaptureNode>(std::declval<const at::Tensor&>(), std::declval<Edge>()));

// Every node that can be reached from the roots without passing an input, children before parents.
class Walk {
 public:
  struct Target {
    Edge edge;
    CapturePtr capture;
  };
  struct Visit {
    bool input = false;   // leads to a stage input
    bool weight = false;  // leads to a leaf that accumulates
    bool done = false;
  };

  void run(const edge_list& roots, const std::vector<Target>& inputs) {
    targets_ = &inputs;
    table_.clear();
    visits_.clear();
    order_.clear();
    for (const Edge& root : roots) {
      if (target(root) == nullptr) descend(root.function.get());
    }
  }

  // The input that an edge leads to, or nothing.
  const Target* target(const Edge& edge) const {
    for (const Target& candidate : *targets_) {
      if (candidate.edge.function.get() == edge.function.get() && candidate.edge.input_nr == edge.input_nr)
        return &candidate;
    }
    return nullptr;
  }

  const Visit& of(Node* node) { return visits_[table_.find(node)]; }
  const std::vector<uint32_t>& order() const { return order_; }
  const Visit& at(uint32_t index) const { return visits_[index]; }
  Node* node(uint32_t index) const { return table_.at(index); }

 private:
  struct Frame {
    uint32_t index;
    uint32_t next;
  };

  uint32_t add(Node* node) {
    const uint32_t index = table_.add(node);
    if (index == visits_.size()) visits_.emplace_back();
    return index;
  }

  void descend(Node* root) {
    const uint32_t start = add(root);
    if (visits_[start].done) return;
    path_.push_back({start, 0});
    while (!path_.empty()) {
      Frame& top = path_.back();
      const uint32_t index = top.index;
      const edge_list& edges = table_.at(index)->next_edges();
      if (top.next < edges.size()) {
        const Edge& edge = edges[top.next++];
        if (!edge.is_valid()) continue;
        if (target(edge) != nullptr) {
          visits_[index].input = true;
          continue;
        }
        const uint32_t child = add(edge.function.get());
        if (!visits_[child].done) {
          --top.next;  // come back to this edge when the child is known
          path_.push_back({child, 0});
          continue;
        }
        visits_[index].input |= visits_[child].input;
        visits_[index].weight |= visits_[child].weight;
        continue;
      }
      if (edges.empty()) visits_[index].weight = true;  // an accumulator
      visits_[index].done = true;
      order_.push_back(index);
      path_.pop_back();
    }
  }

  const std::vector<Target>* targets_ = nullptr;
  NodeTable table_;
  std::vector<Visit> visits_;
  std::vector<uint32_t> order_;
  std::vector<Frame> path_;
};

// A change of a view in place has the operator's own node inside, and insists that both lead to the same places.
Node* inside(Node* node) {
  if (typeid(*node) != typeid(torch::autograd::CopySlices)) return nullptr;
  return static_cast<torch::autograd::CopySlices*>(node)->fn.get();
}

void set_edge(Node* node, uint32_t at, Edge edge) {
  if (at > 0) {
    Node* inner = inside(node);
    if (inner != nullptr && at < inner->next_edges().size()) inner->next_edges()[at] = edge;
  }
  node->next_edges()[at] = std::move(edge);
}

// The changes made to the graph for the input half, and what is learned at the places where they were made.
class Cuts final : public Arrivals {
 public:
  Cuts(Pending& half, size_t nodes) : half_(half) {
    changed_.reserve(2 * nodes);
    meetings_.reserve(nodes);
    passed_.reserve(nodes);
  }

  // Takes the edges of one node towards parameters out, and leads those towards inputs to the captures.
  void cut(Walk& walk, Node* node) {
    const edge_list& edges = node->next_edges();
    bool meets = false;
    for (uint32_t k = 0; k < edges.size(); ++k) {
      const Edge& edge = edges[k];
      if (!edge.is_valid()) continue;
      if (const Walk::Target* target = walk.target(edge)) {
        changed_.push_back({node, k, edge, false});
        set_edge(node, k, Edge(target->capture, 0));
      } else if (!walk.of(edge.function.get()).input) {
        changed_.push_back({node, k, edge, true});
        set_edge(node, k, Edge());
        meets = true;
      }
    }
    (meets ? meetings_ : passed_).push_back(node->getptr());
  }

  const std::vector<OwnedNode>& nodes() const override { return meetings_; }

  void arrived(Node& node, const variable_list& gradients) override {
    std::lock_guard<std::mutex> lock(half_.mutex);
    for (uint32_t k = 0; k < gradients.size(); ++k) {
      if (!gradients[k].defined()) continue;
      half_.roots.emplace_back(node.getptr(), k);
      half_.gradients.push_back(gradients[k]);
    }
  }

  void run(const edge_list& roots, const variable_list& gradients) {
    half_.roots.reserve(half_.roots.size() + meetings_.size());
    half_.gradients.reserve(half_.roots.capacity());
    if (direct_run(roots, gradients, true, this)) return;
    for (const auto& node : meetings_) node->add_tensor_pre_hook(std::make_unique<MeetingHook>(*node, *this));
    hooked_ = true;
    torch::autograd::Engine::get_default_engine().execute(roots, gradients, true, false, true, {});
  }

  // Puts everything back as it was.
  void undo() {
    for (Change& change : changed_) set_edge(change.node, change.at, std::move(change.edge));
    for (const auto& node : meetings_) {
      if (hooked_) node->tensor_pre_hooks().pop_back();
    }
  }

  // Leaves what the weight half needs, and frees what only the input half did.
  void finish() {
    for (const auto& node : meetings_) {
      for (uint32_t k = 0; k < node->next_edges().size(); ++k) {
        if (node->next_edges()[k].is_valid()) set_edge(node.get(), k, Edge());
      }
      if (!node->tensor_pre_hooks().empty()) node->tensor_pre_hooks().clear();  // they have run
      if (!node->retains_grad_hooks().empty()) node->retains_grad_hooks().clear();
    }
    for (Change& change : changed_) {
      if (change.weight) set_edge(change.node, change.at, std::move(change.edge));
    }
    for (const auto& node : passed_) node->release_variables();
  }

 private:
  struct Change {
    Node* node;
    uint32_t at;
    Edge edge;
    bool weight;
  };
  Pending& half_;
  std::vector<Change> changed_;
  std::vector<OwnedNode> meetings_, passed_;
  bool hooked_ = false;
};

}  // namespace

static thread_local HandleTable<std::shared_ptr<Pending>> pending;
static thread_local Walk walk;  // its memory is used again

// (outputs, gradients, inputs): [gradients of the inputs (null where there is none), handle of the weight half]
PW_ENTRY(input_backward, 3) {
  const std::vector<at::Tensor> outputs = args.tensors(0), given = args.tensors(1), inputs = args.tensors(2);
  if (outputs.size() != given.size())
    throw CodedError("BAD_ARGUMENT", "inputBackward: as many gradients as outputs are needed");
  edge_list roots;
  variable_list gradients;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].defined() || !outputs[i].requires_grad()) continue;
    roots.push_back(root_edge(outputs[i], i));
    gradients.push_back(given[i].defined() ? given[i] : at::ones_like(outputs[i], at::MemoryFormat::Preserve));
  }

  std::vector<Walk::Target> targets;
  std::vector<int> target_of(inputs.size(), -1);
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined() || !inputs[i].requires_grad()) continue;
    Edge edge = torch::autograd::impl::gradient_edge(inputs[i]);
    if (!edge.function) continue;  // a view made without recording: nothing leads to it
    for (size_t t = 0; t < targets.size(); ++t) {
      if (targets[t].edge.function == edge.function && targets[t].edge.input_nr == edge.input_nr)
        target_of[i] = static_cast<int>(t);
    }
    if (target_of[i] >= 0) continue;
    auto capture = make_node<CaptureNode>(inputs[i], edge);
    if (!edge.function->next_edges().empty()) capture->add_tensor_pre_hook(std::make_unique<ForwardedHooks>(edge));
    target_of[i] = static_cast<int>(targets.size());
    targets.push_back({std::move(edge), std::move(capture)});
  }

  walk.run(roots, targets);
  auto half = std::make_shared<Pending>();
  edge_list input_roots;
  variable_list input_gradients;
  for (size_t i = 0; i < roots.size(); ++i) {
    if (const Walk::Target* target = walk.target(roots[i])) {
      input_roots.emplace_back(target->capture, 0);
      input_gradients.push_back(gradients[i]);
    } else if (walk.of(roots[i].function.get()).input) {
      input_roots.push_back(roots[i]);
      input_gradients.push_back(gradients[i]);
    } else {
      half->roots.push_back(roots[i]);
      half->gradients.push_back(gradients[i]);
    }
  }

  if (!input_roots.empty()) {
    Cuts cuts(*half, walk.order().size());
    for (const uint32_t index : walk.order()) {
      if (walk.at(index).input) cuts.cut(walk, walk.node(index));
    }
    try {
      const RecomputeRun run(true);  // what checkpoints recompute serves the weight half too
      run_engine(*args.env, [&] { cuts.run(input_roots, input_gradients); });
    } catch (...) {
      cuts.undo();
      throw;
    }
    cuts.finish();
  }
  std::vector<at::Tensor> result(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (target_of[i] >= 0) result[i] = targets[static_cast<size_t>(target_of[i])].capture->captured;
  }
  napi_value pair;
  napi_create_array_with_length(args.napi, 2, &pair);
  napi_set_element(args.napi, pair, 0, from_tensors(*args.env, result));
  napi_set_element(args.napi, pair, 1, from_int32(args.napi, pending.add(std::move(half))));
  return pair;
}

// (handle): accumulates the gradients of the parameters. A handle is used once.
PW_ENTRY(weight_backward, 1) {
  std::shared_ptr<Pending>* found = pending.find(args.int32(0));
  if (found == nullptr) throw CodedError("STALE_HANDLE", "this weight half was run or dropped already");
  const std::shared_ptr<Pending> half = *found;
  pending.remove(args.int32(0));
  if (!half->roots.empty()) {
    const RecomputeRun run(false);
    run_backward(*args.env, half->roots, half->gradients, false);
  }
  return undefined(args.napi);
}

PW_ENTRY(drop_weight_backward, 1) { return from_bool(args.napi, pending.remove(args.int32(0))); }

void init_split_backward(Env& env, napi_value exports) {
  add_exports(env, exports,
      {
          {"inputBackward", input_backward},
          {"weightBackward", weight_backward},
          {"dropWeightBackward", drop_weight_backward},
      });
}

}  // namespace pw
