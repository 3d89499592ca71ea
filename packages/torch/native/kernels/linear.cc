// linear and layer_norm in fewer steps. libtorch's linear is a transpose and an addmm, each with its own dispatch, graph node and saved tensors, which at small
// sizes costs more than the product. Here it is one node with the same kernels in the same order, so the same bits, but for weight and bias gradients that are added to earlier ones;
// whatever is out of the ordinary goes to libtorch's.
#include "autograd/node.h"
#include "autograd/put-off.h"
#include "core/hot.h"
#include "kernels/ordinary.h"

#include <ATen/ops/_unsafe_view.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/layer_norm_ops.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/native_layer_norm_ops.h>
#include <ATen/ops/reshape.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/t.h>
#include <ATen/ops/view.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/saved_variable.h>

namespace pw {
namespace {

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

at::Tensor as_matrix(const at::Tensor& tensor) {
  return tensor.dim() == 2 ? tensor : tensor.reshape({-1, tensor.size(-1)});
}

using torch::autograd::AccumulateGrad;

// The leaf that an edge leads to, if nobody watches its gradient (hooks), wants it returned or recorded, or has it
// accumulated in another stream, because autograd's accumulation also orders streams.
AccumulateGrad* plain_leaf(const torch::autograd::Edge& edge, const at::Tensor& gradient) {
  if (!(gradient.is_cpu() || gradient.is_cuda()) || c10::GradMode::is_enabled()) return nullptr;
  auto* leaf = dynamic_cast<AccumulateGrad*>(edge.function.get());
  if (leaf == nullptr) return nullptr;
  if (!leaf->tensor_pre_hooks().empty() || !leaf->pre_hooks().empty() || !leaf->post_hooks().empty() ||
      leaf->tensor_post_acc_grad_hooks() != nullptr)
    return nullptr;
  const auto* limits = torch::autograd::get_current_graph_task_exec_info();
  if (limits != nullptr && !limits->empty()) return nullptr;
  if (gradient.is_cpu()) return leaf;
  const c10::impl::VirtualGuardImpl device(gradient.device().type());
  return device.getStream(gradient.device()) == leaf->input_metadata(0).stream() ? leaf : nullptr;
}

// The gradient that is being accumulated, if more can be added to it in place: by the matrix multiplication itself for a
// weight, where a sum of its own would read and write the whole gradient once more, a good part of a large step.
at::Tensor accumulated(const AccumulateGrad* leaf, const at::Tensor& gradient) {
  if (leaf == nullptr) return {};
  const at::Tensor& grad = leaf->variable.grad();
  const bool plain = grad.defined() && grad.scalar_type() == gradient.scalar_type() &&
                     grad.device() == gradient.device() && grad.layout() == at::kStrided && grad.is_contiguous() &&
                     !grad.requires_grad() && !grad.is_neg();
  return plain ? grad : at::Tensor();
}

// What is left for autograd to accumulate: nothing where it was added in place.
at::Tensor weight_gradient(const AccumulateGrad* leaf, const at::Tensor& gradient, const at::Tensor& matrix) {
  at::Tensor grad = accumulated(leaf, gradient);
  if (!grad.defined()) return gradient.t().mm(matrix);
  grad.addmm_(gradient.t(), matrix);
  return {};
}
at::Tensor bias_gradient(const AccumulateGrad* leaf, const at::Tensor& gradient) {
  at::Tensor grad = accumulated(leaf, gradient);
  if (!grad.defined()) return gradient.sum(0);
  grad.add_(gradient.sum(0));
  return {};
}

// Gradients of input, weight and bias: the formulas of addmm and t, with the transposes cancelled.
struct LinearBackward final : torch::autograd::Node {
  std::string name() const override { return "LinearBackward0"; }

  variable_list apply(variable_list&& gradients) override {
    std::lock_guard<std::mutex> lock(mutex_);
    variable_list result(3);
    if (!gradients[0].defined()) return result;
    const at::Tensor gradient = as_matrix(gradients[0]);
    if (task_should_compute_output(0)) {
      const at::Tensor matrix = gradient.mm(weight.unpack(getptr()));
      result[0] = sizes.size() == 2 ? matrix : matrix.view(sizes);
    }
    const bool of_weight = task_should_compute_output(1), of_bias = task_should_compute_output(2);
    if (!of_weight && !of_bias) return result;
    AccumulateGrad* weight_leaf = of_weight ? plain_leaf(next_edge(1), gradient) : nullptr;
    AccumulateGrad* bias_leaf = of_bias ? plain_leaf(next_edge(2), gradient) : nullptr;
    const at::Tensor matrix = of_weight ? as_matrix(input.unpack(getptr())) : at::Tensor();
    PutOff* later = gradient.is_cpu() ? PutOff::current() : nullptr;
    const auto can_wait = [&](bool wanted, const AccumulateGrad* leaf) {
      return !wanted || (leaf != nullptr && !later->comes_first(leaf->variable));
    };
    if (later != nullptr && can_wait(of_weight, weight_leaf) && can_wait(of_bias, bias_leaf)) {
      later->add([gradient, matrix, weight = of_weight ? next_edge(1).function : OwnedNode(),
                     bias = of_bias ? next_edge(2).function : OwnedNode()] {
        if (weight) (*weight)({weight_gradient(static_cast<AccumulateGrad*>(weight.get()), gradient, matrix)});
        if (bias) (*bias)({bias_gradient(static_cast<AccumulateGrad*>(bias.get()), gradient)});
      });
      return result;
    }
    if (of_weight) result[1] = weight_gradient(weight_leaf, gradient, matrix);
    if (of_bias) result[2] = bias_gradient(bias_leaf, gradient);
    return result;
  }

  void release_variables() override {
    std::lock_guard<std::mutex> lock(mutex_);
    input.reset_data();
    weight.reset_data();
  }

  SavedVariable input, weight;
  c10::SmallVector<int64_t, 4> sizes;  // of the input
};

// The forward kernels, below autograd: what it is called with is held by the caller, so views need no record.
at::Tensor forward(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  at::AutoDispatchBelowADInplaceOrView below;
  const bool flat = input.dim() == 2;
  const at::Tensor matrix = flat ? input : input.view({-1, input.size(-1)});
  at::Tensor product = bias.has_value() ? at::addmm(*bias, matrix, weight.t()) : at::mm(matrix, weight.t());
  if (flat) return product;
  c10::SmallVector<int64_t, 4> sizes(input.sizes().begin(), input.sizes().end());
  sizes.back() = weight.size(0);
  return at::_unsafe_view(product, sizes);
}

}  // namespace

at::Tensor hot_linear(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  const bool ordinary =
      hot_default_dispatch() && input.dim() >= 2 && weight.dim() == 2 && is_ordinary(input) && is_ordinary(weight) &&
      input.numel() > 0 && weight.numel() > 0 && input.size(-1) == weight.size(1) && !has_forward_gradient(input) &&
      !has_forward_gradient(weight) &&
      (!bias.has_value() ||
          (input.dim() <= 3 && bias->dim() == 1 && is_ordinary(*bias) && !has_forward_gradient(*bias)));
  if (!ordinary) return at::linear(input, weight, bias);
  at::Tensor output = forward(input, weight, bias);
  if (!c10::GradMode::is_enabled()) return output;
  const bool input_grad = input.requires_grad(), weight_grad = weight.requires_grad(),
             bias_grad = bias.has_value() && bias->requires_grad();
  if (!input_grad && !weight_grad && !bias_grad) return output;
  auto node = make_node<LinearBackward>();
  torch::autograd::edge_list edges;
  edges.reserve(3);
  edges.emplace_back(torch::autograd::impl::gradient_edge(input));
  edges.emplace_back(torch::autograd::impl::gradient_edge(weight));
  if (bias.has_value()) edges.emplace_back(torch::autograd::impl::gradient_edge(*bias));
  else edges.emplace_back();
  node->set_next_edges(std::move(edges));
  if (weight_grad) node->input = SavedVariable(input, false);
  if (input_grad) {
    node->weight = SavedVariable(weight, false);
    node->sizes.assign(input.sizes().begin(), input.sizes().end());
  }
  const uint32_t number = node->add_input_metadata(output);
  torch::autograd::impl::set_gradient_edge(output, {OwnedNode(node), number});
  return output;
}

// libtorch's layer_norm only calls native_layer_norm and drops two results; autocast knows it by the outer name.
at::Tensor hot_layer_norm(const at::Tensor& input, const HotInts& shape, const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias, double eps, bool cudnn) {
  if (!hot_default_dispatch()) return at::_ops::layer_norm::call(input, shape, weight, bias, eps, cudnn);
  return hot_functional([&] { return std::get<0>(at::_ops::native_layer_norm::call(input, shape, weight, bias, eps)); },
      input, weight, bias);
}

}  // namespace pw
