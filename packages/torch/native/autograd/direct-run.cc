// A backward that stays in one place, run right here. See the header.
#include "autograd/direct-run.h"

#include "core/callback.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/ones_like.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

namespace pw {
namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;

// What needs no other thread and no other stream: the CPU, and the current stream of the current GPU.
class Here {
 public:
  bool has(Node& node) {
    const uint32_t count = node.num_inputs();
    for (uint32_t i = 0; i < count; ++i) {
      const torch::autograd::InputMetadata& made = node.input_metadata(i);
      const c10::Device device = made.device();
      if (device.is_cpu()) continue;
      if (!device.is_cuda()) return false;
      if (!stream_.has_value()) stream_ = current();
      if (device != stream_->device() || made.stream() != *stream_) return false;
    }
    return true;
  }

 private:
  static c10::Stream current() {
    const c10::impl::VirtualGuardImpl gpu(c10::DeviceType::CUDA);
    return gpu.getStream(gpu.getDevice());
  }
  std::optional<c10::Stream> stream_;
};

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
  if (alone && gradient.layout() == at::kStrided && place.scalar_type() == gradient.scalar_type() &&
      place.is_non_overlapping_and_dense() && place.sizes() == gradient.sizes()) {
    place.add_(gradient);
    return;
  }
  place = at::add(place, gradient);
}

class DirectRun {
 public:
  bool busy = false;

  // Numbers the nodes, finds where each edge leads and counts what each node waits for; false where one belongs elsewhere.
  bool prepare(const edge_list& roots) {
    table_.clear();
    items_.clear();
    next_.clear();
    slots_ = 0;
    here_ = Here();
    for (const Edge& root : roots) {
      if (visit(root) == NodeTable::kNone) return false;
    }
    for (uint32_t index = 0; index < items_.size(); ++index) {
      items_[index].edges = static_cast<uint32_t>(next_.size());
      for (const Edge& edge : items_[index].node->next_edges()) {
        if (!edge.is_valid()) {
          next_.push_back(NodeTable::kNone);
          continue;
        }
        const uint32_t next = visit(edge);
        if (next == NodeTable::kNone) return false;
        ++items_[next].waits;
        next_.push_back(next);
      }
    }
    buffers_.clear();
    buffers_.resize(slots_);
    return true;
  }

  void watch(Arrivals* arrivals) {
    arrivals_ = arrivals;
    if (arrivals == nullptr) return;
    for (const auto& node : arrivals->nodes()) {
      const uint32_t index = table_.find(node.get());
      if (index != NodeTable::kNone) items_[index].watched = true;
    }
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
    uint32_t edges = 0;  // its edges among all
    bool queued = false;
    bool watched = false;
  };
  struct Ready {
    uint64_t sequence;
    uint32_t index;
    bool operator<(const Ready& other) const { return sequence < other.sequence; }
  };

  uint32_t visit(const Edge& edge) {
    const uint32_t before = table_.count(), index = table_.add(edge.function.get());
    if (index != before) return index;
    if (!here_.has(*edge.function)) return NodeTable::kNone;
    items_.push_back({edge.function, 0, slots_, 0, false, false});
    slots_ += edge.function->num_inputs();
    return index;
  }

  void push(uint32_t index) {
    items_[index].queued = true;
    ready_.push_back({items_[index].node->sequence_nr(), index});
    std::push_heap(ready_.begin(), ready_.end());
  }

  static void call_hooks(Node& node, variable_list& inputs) {
    for (const auto& hook : node.tensor_pre_hooks()) inputs = (*hook)(inputs);
    for (const auto& pair : node.retains_grad_hooks()) inputs = (*pair.second)(inputs);
  }

  variable_list call(Node& node, variable_list&& inputs, bool watched, bool keep_graph) {
    if (!node.tensor_pre_hooks().empty() || !node.retains_grad_hooks().empty()) call_hooks(node, inputs);
    if (watched) arrivals_->arrived(node, inputs);
    for (const auto& hook : node.pre_hooks()) inputs = (*hook)(inputs);
    if (!keep_graph) node.will_release_variables();
    const bool after = !node.post_hooks().empty();
    variable_list seen;
    if (after) seen = inputs;
    variable_list outputs = node(std::move(inputs));
    torch::autograd::validate_outputs(node.next_edges(), outputs,
        [&node](const std::string& message) { return "Function " + node.name() + " returned an " + message; });
    for (const auto& hook : node.post_hooks()) outputs = (*hook)(outputs, seen);
    return outputs;
  }

  void step(uint32_t index, bool keep_graph) {
    Item& item = items_[index];
    Node& node = *item.node;
    const uint32_t first = item.first, edges = item.edges, count = node.num_inputs();
    const uint32_t end = index + 1 < items_.size() ? items_[index + 1].edges : static_cast<uint32_t>(next_.size());
    variable_list inputs;
    inputs.reserve(count);
    for (uint32_t i = 0; i < count; ++i) inputs.push_back(std::move(buffers_[first + i]));
    variable_list outputs = call(node, std::move(inputs), item.watched, keep_graph);
    if (!keep_graph) node.release_variables();
    for (uint32_t i = 0; edges + i < end && i < outputs.size(); ++i) {
      const uint32_t next = next_[edges + i];
      if (next == NodeTable::kNone || !node.next_edge(i).is_valid()) continue;
      Item& child = items_[next];
      accumulate(buffers_[child.first + node.next_edge(i).input_nr], std::move(outputs[i]));
      if (--child.waits == 0) push(next);
    }
  }

  Here here_;
  NodeTable table_;
  std::vector<Item> items_;
  std::vector<uint32_t> next_;  // for each edge: the number of the node it leads to
  uint32_t slots_ = 0;
  Arrivals* arrivals_ = nullptr;
  std::vector<at::Tensor> buffers_;
  std::vector<Ready> ready_;
};

thread_local DirectRun shared_run;  // its memory is used again; a nested backward takes another

}  // namespace

bool direct_run(const edge_list& roots, const variable_list& gradients, bool keep_graph, Arrivals* arrivals) {
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
  run.watch(arrivals);
  run.run(roots, gradients, keep_graph);
  return true;
}

void run_backward_here(const edge_list& roots, const variable_list& gradients, bool keep_graph) {
  if (direct_run(roots, gradients, keep_graph)) return;
  torch::autograd::Engine::get_default_engine().execute(roots, gradients, keep_graph, false, true, {});
}

void run_backward(Env& env, const edge_list& roots, const variable_list& gradients, bool keep_graph) {
  run_engine(env, [&] { run_backward_here(roots, gradients, keep_graph); });
}

Edge root_edge(const at::Tensor& root, size_t index) {
  Edge edge = torch::autograd::impl::gradient_edge(root);
  if (edge.function) return edge;
  throw CodedError(
      "NO_GRAD", "tensor " + std::to_string(index) +
                     " is a view that was made inside noGrad(): its base requires a gradient, but nothing was recorded "
                     "from there to the view; make the view outside of noGrad()");
}

edge_list edges_of(const std::vector<at::Tensor>& roots, std::vector<at::Tensor>& gradients) {
  edge_list edges;
  edges.reserve(roots.size());
  gradients.resize(roots.size());
  for (size_t i = 0; i < roots.size(); ++i) {
    edges.push_back(root_edge(roots[i], i));
    if (!gradients[i].defined()) gradients[i] = at::ones_like(roots[i], at::MemoryFormat::Preserve);
  }
  return edges;
}

}  // namespace pw
