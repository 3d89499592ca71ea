// A backward that stays on the CPU, run right here. See the header.
#include "direct-run.h"

#include "callback.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>

namespace pw {
namespace {

using torch::autograd::Edge;
using torch::autograd::Node;
using torch::autograd::edge_list;
using torch::autograd::variable_list;

bool on_cpu(Node& node) {
  const uint32_t count = node.num_inputs();
  for (uint32_t i = 0; i < count; ++i) {
    if (node.input_metadata(i).device().type() != c10::DeviceType::CPU) return false;
  }
  return true;
}

// As the engine adds gradients that arrive at the same place: in place where nobody else can see it.
void accumulate(at::Tensor& place, at::Tensor&& gradient) {
  if (!gradient.defined()) return;
  if (!place.defined()) {
    place = std::move(gradient);
    return;
  }
  if (place.layout() != at::kStrided) {
    place = at::add(gradient, place);
    return;
  }
  const bool alone = place.use_count() == 1 && place.has_storage() && place.storage().use_count() == 1;
  if (alone && gradient.layout() == at::kStrided && place.scalar_type() == gradient.scalar_type() && place.is_non_overlapping_and_dense() &&
      place.sizes() == gradient.sizes()) {
    place.add_(gradient);
    return;
  }
  place = at::add(place, gradient);
}

class DirectRun {
 public:
  bool busy = false;

  // Numbers the nodes and counts what each waits for; false where one is not on the CPU.
  bool prepare(const edge_list& roots) {
    table_.clear();
    items_.clear();
    size_t slots = 0;
    for (const Edge& root : roots) {
      if (!visit(root, slots)) return false;
    }
    for (uint32_t index = 0; index < items_.size(); ++index) {
      for (const Edge& edge : items_[index].node->next_edges()) {
        if (!edge.is_valid()) continue;
        if (!visit(edge, slots)) return false;
        ++items_[table_.find(edge.function.get())].waits;
      }
    }
    buffers_.clear();
    buffers_.resize(slots);
    return true;
  }

  void run(const edge_list& roots, variable_list gradients, bool keep_graph) {
    torch::autograd::validate_outputs(roots, gradients, [](const std::string& message) { return message; });
    const at::AutoGradMode off(false);
    ready_.clear();
    for (size_t i = 0; i < roots.size(); ++i) {
      Item& item = items_[table_.find(roots[i].function.get())];
      accumulate(buffers_[item.first + roots[i].input_nr], std::move(gradients[i]));
    }
    for (const Edge& root : roots) {
      const uint32_t index = table_.find(root.function.get());
      Item& item = items_[index];
      if (item.waits == 0 && !item.queued) push(index);
    }
    while (!ready_.empty()) {
      std::pop_heap(ready_.begin(), ready_.end());
      const uint32_t index = ready_.back().index;
      ready_.pop_back();
      step(index, keep_graph);
    }
  }

  void clear() {  // lets go of nodes and tensors; the memory stays
    items_.clear();
    buffers_.clear();
    ready_.clear();
  }

 private:
  struct Item {
    OwnedNode node;  // a function called in between may take the graph apart
    uint32_t waits = 0;
    uint32_t first = 0;  // its gradients among the buffers
    bool queued = false;
  };
  struct Ready {
    uint64_t sequence;
    uint32_t index;
    bool operator<(const Ready& other) const { return sequence < other.sequence; }
  };

  bool visit(const Edge& edge, size_t& slots) {
    const uint32_t before = table_.count();
    if (table_.add(edge.function.get()) != before) return true;
    if (!on_cpu(*edge.function)) return false;
    items_.push_back({edge.function, 0, static_cast<uint32_t>(slots), false});
    slots += edge.function->num_inputs();
    return true;
  }

  void push(uint32_t index) {
    items_[index].queued = true;
    ready_.push_back({items_[index].node->sequence_nr(), index});
    std::push_heap(ready_.begin(), ready_.end());
  }

  static variable_list hooked(Node& node, variable_list inputs) {
    for (const auto& hook : node.tensor_pre_hooks()) inputs = (*hook)(inputs);
    for (const auto& pair : node.retains_grad_hooks()) inputs = (*pair.second)(inputs);
    for (const auto& hook : node.pre_hooks()) inputs = (*hook)(inputs);
    return inputs;
  }

  static variable_list call(Node& node, variable_list inputs, bool keep_graph) {
    if (!node.tensor_pre_hooks().empty() || !node.retains_grad_hooks().empty() || !node.pre_hooks().empty()) inputs = hooked(node, std::move(inputs));
    if (!keep_graph) node.will_release_variables();
    const bool after = !node.post_hooks().empty();
    variable_list seen;
    if (after) seen = inputs;
    variable_list outputs = node(std::move(inputs));
    torch::autograd::validate_outputs(node.next_edges(), outputs, [&node](const std::string& message) { return "Function " + node.name() + " returned an " + message; });
    if (after) {
      for (const auto& hook : node.post_hooks()) outputs = (*hook)(outputs, seen);
    }
    return outputs;
  }

  void step(uint32_t index, bool keep_graph) {
    Node& node = *items_[index].node;
    const uint32_t first = items_[index].first, count = node.num_inputs();
    variable_list inputs;
    inputs.reserve(count);
    for (uint32_t i = 0; i < count; ++i) inputs.push_back(std::move(buffers_[first + i]));
    variable_list outputs = call(node, std::move(inputs), keep_graph);
    if (!keep_graph) node.release_variables();
    const edge_list& edges = node.next_edges();
    for (size_t i = 0; i < outputs.size() && i < edges.size(); ++i) {
      if (!edges[i].is_valid()) continue;
      const uint32_t next = table_.find(edges[i].function.get());
      if (next == NodeTable::kNone) continue;
      Item& item = items_[next];
      accumulate(buffers_[item.first + edges[i].input_nr], std::move(outputs[i]));
      if (--item.waits == 0) push(next);
    }
  }

  NodeTable table_;
  std::vector<Item> items_;
  std::vector<at::Tensor> buffers_;
  std::vector<Ready> ready_;
};

thread_local DirectRun shared_run;  // its memory is used again; a nested backward takes another

}  // namespace

bool direct_run(const edge_list& roots, const variable_list& gradients, bool keep_graph) {
  if (torch::autograd::get_current_graph_task_id() != -1 || torch::autograd::AnomalyMode::is_enabled()) return false;
  std::unique_ptr<DirectRun> nested;
  if (shared_run.busy) nested = std::make_unique<DirectRun>();
  DirectRun& run = nested ? *nested : shared_run;
  struct Busy {
    explicit Busy(DirectRun& owner) : run(owner) { run.busy = true; }
    ~Busy() {
      run.clear();
      run.busy = false;
    }
    DirectRun& run;
  } busy(run);
  if (!run.prepare(roots)) return false;
  run.run(roots, gradients, keep_graph);
  return true;
}

void run_backward(Env& env, const edge_list& roots, const variable_list& gradients, bool keep_graph) {
  run_engine(env, [&] {
    if (direct_run(roots, gradients, keep_graph)) return;
    torch::autograd::Engine::get_default_engine().execute(roots, gradients, keep_graph, false, true, {});
  });
}

}  // namespace pw
