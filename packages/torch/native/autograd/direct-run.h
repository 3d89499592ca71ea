// A backward that stays on the CPU and in one stream of one GPU, run right here: the same nodes in the same order as the
// engine's, with the same hooks and checks, but without its queues, locks and per-node thread state, which cost more than the
// work of a small node. On a GPU it also saves the engine's thread a cuBLAS handle with a workspace of its own (32 MiB on an H200).
#pragma once

#include "core/core.h"

#include <torch/csrc/autograd/function.h>

namespace pw {

// Nodes by number, for one walk over a graph. Open addressing: a walk runs once per backward, and the tables of the
// standard library would be a good part of a small stage's time.
class NodeTable {
 public:
  static constexpr uint32_t kNone = 0xffffffff;

  void clear() {
    if (slots_.size() != 256) slots_.resize(256);
    std::fill(slots_.begin(), slots_.end(), kNone);
    nodes_.clear();
  }

  // The node's number; a new one is the count before.
  uint32_t add(torch::autograd::Node* node) {
    if (nodes_.size() * 2 >= slots_.size()) grow();
    uint32_t& slot = probe(node);
    if (slot == kNone) {
      slot = static_cast<uint32_t>(nodes_.size());
      nodes_.push_back(node);
    }
    return slot;
  }

  uint32_t find(torch::autograd::Node* node) { return probe(node); }
  uint32_t count() const { return static_cast<uint32_t>(nodes_.size()); }
  torch::autograd::Node* at(uint32_t index) const { return nodes_[index]; }

 private:
  uint32_t& probe(torch::autograd::Node* node) {
    const size_t mask = slots_.size() - 1;
    size_t at = ((reinterpret_cast<uintptr_t>(node) >> 4) * 0x9e3779b97f4a7c15ull >> 24) & mask;
    while (slots_[at] != kNone && nodes_[slots_[at]] != node) at = (at + 1) & mask;
    return slots_[at];
  }

  void grow() {
    slots_.assign(slots_.size() * 2, kNone);
    for (uint32_t i = 0; i < nodes_.size(); ++i) probe(nodes_[i]) = i;
  }

  std::vector<uint32_t> slots_ = std::vector<uint32_t>(256, kNone);
  std::vector<torch::autograd::Node*> nodes_;
};

// Sees the gradients that arrive at chosen nodes, after the hooks of the tensors.
struct Arrivals {
  virtual ~Arrivals() = default;
  virtual const std::vector<OwnedNode>& nodes() const = 0;
  virtual void arrived(torch::autograd::Node& node, const torch::autograd::variable_list& gradients) = 0;
};

// Accumulates from the roots without recording. False, with nothing done, where the engine must do it: another device
// or stream, anomaly mode, a backward inside one of the engine's.
bool direct_run(const torch::autograd::edge_list& roots, const torch::autograd::variable_list& gradients,
    bool keep_graph, Arrivals* arrivals = nullptr);

// The same, by the engine where it must be.
void run_backward_here(
    const torch::autograd::edge_list& roots, const torch::autograd::variable_list& gradients, bool keep_graph);

// The same, where functions of TypeScript may be called.
void run_backward(Env& env, const torch::autograd::edge_list& roots, const torch::autograd::variable_list& gradients,
    bool keep_graph);

// Where a backward of a tensor that requires gradients begins. A view made without recording may require them and have no
// node, because its base does: an error, with the tensor's number.
torch::autograd::Edge root_edge(const at::Tensor& root, size_t index);

// Where a backward of these tensors begins; gradients that were not given are ones.
torch::autograd::edge_list edges_of(const std::vector<at::Tensor>& roots, std::vector<at::Tensor>& gradients);

}  // namespace pw
