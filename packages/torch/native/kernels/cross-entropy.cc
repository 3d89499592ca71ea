// cross_entropy_loss of many scores in less memory. libtorch's backward makes the gradient of the logarithms of all probabilities, which is zero but for one number a
// row, and from it the gradient of the scores: with the logarithms three tensors of the scores' size. Here rows are taken in parts, and where the graph is not kept the result
// goes into the memory of the logarithms. The kernels are the same, row by row, so the bits are; whatever is out of the ordinary goes to libtorch's.
#include "autograd/node.h"
#include "core/hot.h"
#include "kernels/ordinary.h"

#include <ATen/Parallel.h>
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/add.h>
#include <ATen/ops/cross_entropy_loss_ops.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/nll_loss_backward.h>
#include <ATen/ops/nll_loss_forward.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable.h>

namespace pw {
namespace {

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

constexpr int64_t kLarge = 1 << 20;  // bytes of scores; fewer are not worth the parts

// A part is as small as the caches, and large enough for all threads or for a GPU.
int64_t rows_of_part(const at::Tensor& scores) {
  const int64_t bytes = scores.is_cuda() ? 16 << 20 : (512 << 10) * at::get_num_threads();
  const int64_t row = scores.size(1) * static_cast<int64_t>(scores.element_size());
  return std::max<int64_t>(bytes / row, 1);
}

// Its second output, the logarithms, is there for a backward through the backward only.
struct CrossEntropyBackward final : torch::autograd::Node {
  std::string name() const override { return "NllLossBackward0"; }

  variable_list apply(variable_list&& gradients) override {
    std::lock_guard<std::mutex> lock(mutex_);
    variable_list result(1);
    const at::Tensor &of_loss = gradients[0], &of_logs = gradients[1];
    if (!of_loss.defined() && !of_logs.defined()) return result;
    const at::Tensor log = logs.unpack(getptr()), classes = target.unpack(), weights = weight.unpack();
    if (c10::GradMode::is_enabled() || of_logs.defined()) {
      at::Tensor gradient = of_logs;
      if (of_loss.defined()) {
        gradient = at::nll_loss_backward(of_loss, log, classes, weights, reduction, ignore_index, total_weight);
        if (of_logs.defined()) gradient = at::add(gradient, of_logs);
      }
      result[0] = at::_log_softmax_backward_data(gradient, log, 1, log.scalar_type());
      return result;
    }
    const at::AutoDispatchBelowADInplaceOrView below;
    const at::Tensor plain = log.detach(), output = is_last_ ? plain : at::empty_like(plain);
    const int64_t rows = plain.size(0), step = rows_of_part(plain);
    for (int64_t from = 0; from < rows; from += step) {
      const int64_t count = std::min(step, rows - from);
      const at::Tensor part = plain.narrow(0, from, count);
      const at::Tensor gradient =
          at::nll_loss_backward(reduction == at::Reduction::None ? of_loss.narrow(0, from, count) : of_loss, part,
              classes.narrow(0, from, count), weights, reduction, ignore_index, total_weight);
      output.narrow(0, from, count).copy_(at::_log_softmax_backward_data(gradient, part, 1, part.scalar_type()));
    }
    if (is_last_) logs.reset_data();  // the memory is the result's now
    result[0] = output;
    return result;
  }

  void will_release_variables() override { is_last_ = true; }

  void release_variables() override {
    std::lock_guard<std::mutex> lock(mutex_);
    logs.reset_data();
    target.reset_data();
    weight.reset_data();
    total_weight.reset();
  }

  SavedVariable logs, target, weight;
  at::Tensor total_weight;
  int64_t reduction = 0, ignore_index = 0;

 private:
  bool is_last_ = false;  // the graph is not kept: no other backward will read the logarithms
};

bool has_saved_hooks() {
  return torch::autograd::Engine::get_default_engine().get_default_saved_variable_hooks() != nullptr;
}

bool takes(const at::Tensor& scores, const at::Tensor& target, const std::optional<at::Tensor>& weight) {
  if (scores.dim() != 2 || scores.numel() * static_cast<int64_t>(scores.element_size()) < kLarge) return false;
  if (!hot_default_dispatch() || !c10::GradMode::is_enabled() || !scores.requires_grad()) return false;
  if (!(scores.is_cpu() || scores.is_cuda()) || !is_ordinary(scores) || has_forward_gradient(scores)) return false;
  if (target.dim() != 1 || target.size(0) != scores.size(0) || target.scalar_type() != at::kLong ||
      target.device() != scores.device())
    return false;
  if (weight.has_value() &&
      (weight->requires_grad() || !is_ordinary(*weight) || weight->device() != scores.device() ||
          weight->scalar_type() != scores.scalar_type() || weight->dim() != 1 || has_forward_gradient(*weight)))
    return false;
  return !has_saved_hooks();
}

}  // namespace

at::Tensor hot_cross_entropy(const at::Tensor& scores, const at::Tensor& target,
    const std::optional<at::Tensor>& weight, int64_t reduction, int64_t ignore_index, double label_smoothing) {
  if (label_smoothing != 0 || !takes(scores, target, weight)) {
    const auto whole = [&] {
      return at::_ops::cross_entropy_loss::call(scores, target, weight, reduction, ignore_index, label_smoothing);
    };
    return hot_functional(whole, scores, target, weight);
  }
  at::Tensor logs, loss, total_weight;
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    logs = at::_log_softmax(scores, 1, false);
    std::tie(loss, total_weight) = at::nll_loss_forward(logs, target, weight, reduction, ignore_index);
  }
  auto node = make_node<CrossEntropyBackward>();
  node->set_next_edges({torch::autograd::impl::gradient_edge(scores)});
  for (at::Tensor* output : {&loss, &logs}) {
    const uint32_t number = node->add_input_metadata(*output);
    torch::autograd::impl::set_gradient_edge(*output, {OwnedNode(node), number});
  }
  node->logs = SavedVariable(logs, true);
  node->target = SavedVariable(target, false);
  if (weight.has_value()) node->weight = SavedVariable(*weight, false);
  node->total_weight = total_weight;
  node->reduction = reduction;
  node->ignore_index = ignore_index;
  return loss;
}

}  // namespace pw
