// The backward of a stage in two halves. The input half is one engine run that stops at the parameters' branches and
// captures the gradients arriving there; then the edges from those places towards the inputs are cut, so that the
// weight half is one plain accumulating run from all of them: no path is walked twice, shared weights included.
#include "callback.h"

#include <ATen/ops/ones_like.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <unordered_map>

namespace pw {
namespace {

using torch::autograd::Edge;
using torch::autograd::Node;
using torch::autograd::edge_list;
using torch::autograd::variable_list;

// What the weight half needs; owned by the TypeScript object through a handle.
struct Pending {
  edge_list roots;
  variable_list gradients;
};

struct Mark {
  bool input = false;      // leads to a stage input
  bool weight = false;     // leads to a leaf that accumulates
  bool target = false;     // is a stage input
  bool done = false;
};

using Marks = std::unordered_map<Node*, Mark>;

// Marks every node that can be reached from the roots, children before parents.
void mark(const edge_list& roots, Marks& marks, std::vector<Node*>& order) {
  struct Frame {
    Node* node;
    size_t next;
  };
  std::vector<Frame> path;
  for (const Edge& root : roots) {
    Node* start = root.function.get();
    if (start == nullptr || marks[start].done) continue;
    path.push_back({start, 0});
    while (!path.empty()) {
      Frame& top = path.back();
      Node* node = top.node;
      const edge_list& edges = node->next_edges();
      Mark& mine = marks[node];
      if (mine.target || top.next == edges.size()) {
        if (mine.target) {
          mine.input = true;
        } else if (edges.empty()) {
          mine.weight = true;  // an accumulator
        } else {
          for (const Edge& edge : edges) {
            if (!edge.is_valid()) continue;
            const Mark& child = marks[edge.function.get()];
            mine.input |= child.input;
            mine.weight |= child.weight;
          }
        }
        mine.done = true;
        order.push_back(node);
        path.pop_back();
        continue;
      }
      Node* child = edges[top.next++].function.get();
      if (child != nullptr && !marks[child].done) path.push_back({child, 0});
    }
  }
}

}  // namespace

struct PendingTable {
  HandleTable<std::shared_ptr<Pending>> table;
};
static thread_local PendingTable pending;

// (outputs, gradients, inputs): [gradients of the inputs (null where there is none), handle of the weight half]
PW_ENTRY(input_backward, 3) {
  const std::vector<at::Tensor> outputs = args.tensors(0), given = args.tensors(1), inputs = args.tensors(2);
  if (outputs.size() != given.size()) throw CodedError("BAD_ARGUMENT", "inputBackward: as many gradients as outputs are needed");
  edge_list roots;
  variable_list gradients;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].defined() || !outputs[i].requires_grad()) continue;
    at::Tensor gradient = given[i];
    if (!gradient.defined()) {
      if (outputs[i].numel() != 1) throw CodedError("BAD_ARGUMENT", "inputBackward: an output of more than one element needs a gradient");
      gradient = at::ones_like(outputs[i], at::MemoryFormat::Preserve);
    }
    roots.push_back(torch::autograd::impl::gradient_edge(outputs[i]));
    gradients.push_back(std::move(gradient));
  }

  Marks marks;
  marks.reserve(256);
  edge_list captures;
  std::vector<size_t> capture_of;  // for each capture of an input: which input
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined() || !inputs[i].requires_grad()) continue;
    Edge edge = torch::autograd::impl::gradient_edge(inputs[i]);
    marks[edge.function.get()].target = true;
    captures.push_back(std::move(edge));
    capture_of.push_back(i);
  }
  std::vector<Node*> order;
  order.reserve(256);
  mark(roots, marks, order);

  auto half = std::make_shared<Pending>();
  std::vector<at::Tensor> result(inputs.size());
  edge_list input_roots;
  variable_list input_gradients;
  for (size_t i = 0; i < roots.size(); ++i) {
    const Mark& root = marks[roots[i].function.get()];
    if (root.input) {
      input_roots.push_back(roots[i]);
      input_gradients.push_back(gradients[i]);
    } else if (root.weight) {
      half->roots.push_back(roots[i]);
      half->gradients.push_back(gradients[i]);
    }
  }

  if (!input_roots.empty()) {
    // Where a parameter's branch meets the way from the inputs to the outputs.
    const size_t input_captures = captures.size();
    std::vector<Node*> meetings;
    for (Node* node : order) {
      const Mark& mine = marks[node];
      if (!mine.input || !mine.weight || mine.target) continue;
      bool meets = false;
      for (const Edge& edge : node->next_edges()) {
        if (!edge.is_valid()) continue;
        const Mark& child = marks[edge.function.get()];
        meets |= child.weight && !child.input;
      }
      if (!meets) continue;
      meetings.push_back(node);
      for (uint32_t k = 0; k < node->num_inputs(); ++k) captures.emplace_back(node->getptr(), k);
    }
    variable_list captured;
    const RecomputeRun run(true);  // what checkpoints recompute serves the weight half too
    run_engine(*args.env, [&] { captured = torch::autograd::Engine::get_default_engine().execute(input_roots, input_gradients, true, false, false, captures); });
    for (size_t i = 0; i < input_captures; ++i) result[capture_of[i]] = captured[i];
    for (size_t i = input_captures; i < captures.size(); ++i) {
      if (!captured[i].defined()) continue;
      half->roots.push_back(captures[i]);
      half->gradients.push_back(captured[i]);
    }
    for (Node* node : meetings) {
      for (size_t k = 0; k < node->num_outputs(); ++k) {
        const Edge& edge = node->next_edge(k);
        if (edge.is_valid() && marks[edge.function.get()].input) marks[node].done = false;
      }
    }
    // What only the input half needed can go now. Parents come after children in `order`; a node that loses its last
    // owner here was not needed any more, so go from the roots down and never touch a node after its owners were cut.
    std::vector<OwnedNode> owners;
    owners.reserve(order.size());
    for (Node* node : order) owners.push_back(node->getptr());
    for (Node* node : order) {
      const Mark& mine = marks[node];
      if (!mine.input || mine.target) continue;
      if (mine.done) {
        node->release_variables();
      } else {
        for (size_t k = 0; k < node->num_outputs(); ++k) {
          const Edge& edge = node->next_edge(k);
          if (edge.is_valid() && marks[edge.function.get()].input) node->set_next_edge(k, Edge());
        }
      }
    }
  }
  napi_value pair;
  napi_create_array_with_length(args.napi, 2, &pair);
  napi_set_element(args.napi, pair, 0, from_tensors(*args.env, result));
  napi_set_element(args.napi, pair, 1, from_int32(args.napi, pending.table.add(std::move(half))));
  return pair;
}

// (handle): accumulates the gradients of the parameters. A handle is used once.
PW_ENTRY(weight_backward, 1) {
  std::shared_ptr<Pending>* found = pending.table.find(args.int32(0));
  if (found == nullptr) throw CodedError("STALE_HANDLE", "this weight half was run or dropped already");
  std::shared_ptr<Pending> half = *found;
  pending.table.remove(args.int32(0));
  if (!half->roots.empty()) {
    const RecomputeRun run(false);
    run_engine(*args.env, [&] { torch::autograd::Engine::get_default_engine().execute(half->roots, half->gradients, false, false, true, {}); });
  }
  return undefined(args.napi);
}

PW_ENTRY(drop_weight_backward, 1) { return from_bool(args.napi, pending.table.remove(args.int32(0))); }

void init_split_backward(Env& env, napi_value exports) {
  add_exports(env, exports, {
    {"inputBackward", input_backward},
    {"weightBackward", weight_backward},
    {"dropWeightBackward", drop_weight_backward},
  });
}

}  // namespace pw
