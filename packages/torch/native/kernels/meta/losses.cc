// Losses: a number, or one per element or example.
#include "kernels/meta/kernels.h"

#include <ATen/core/Reduction.h>
#include <ATen/ops/empty_like.h>

namespace pw::meta {
namespace {

bool is_none(const Arguments& in, size_t i) { return in.integer(i) == at::Reduction::None; }

Results cross_entropy(const Arguments& in) {
  return {is_none(in, 3) ? at::empty_like(in.tensor(0)) : scalar_like(in.tensor(0))};
}
Results huber(const Arguments& in) {
  return {is_none(in, 2) ? pointwise({in.tensor(0), in.tensor(1)}) : scalar_like(in.tensor(0))};
}

Results multi_margin(const Arguments& in) {
  const at::Tensor self = in.tensor(0), target = in.tensor(1);
  return {is_none(in, 5) && target.dim() > 0 ? plain(target.sizes(), self.options()) : scalar_like(self)};
}

Results multilabel_margin(const Arguments& in) {
  const at::Tensor self = in.tensor(0), target = in.tensor(1);
  return {is_none(in, 2) && target.dim() > 1 ? plain({target.size(0)}, self.options()) : scalar_like(self),
      plain(target.sizes(), self.options())};
}

Results likelihood_of_images(const Arguments& in) {
  const at::Tensor self = in.tensor(0);
  return {is_none(in, 3) ? plain(in.tensor(1).sizes(), self.options()) : scalar_like(self), scalar_like(self)};
}

// Gradients of an input that is the second argument.
Results like_second(const Arguments& in) { return {at::empty_like(in.tensor(1))}; }
Results plain_like_second(const Arguments& in) { return {plain_like(in.tensor(1))}; }

}  // namespace

const std::vector<Entry> loss_kernels = {
    {{"binary_cross_entropy", "binary_cross_entropy.out"}, cross_entropy},
    {{"huber_loss", "huber_loss.out"}, huber},
    {{"multi_margin_loss", "multi_margin_loss.out"}, multi_margin},
    {{"multilabel_margin_loss_forward", "multilabel_margin_loss_forward.output"}, multilabel_margin},
    {{"nll_loss2d_forward", "nll_loss2d_forward.output"}, likelihood_of_images},
    {{"binary_cross_entropy_backward", "binary_cross_entropy_backward.grad_input"}, like_second},
    {{"mse_loss_backward", "mse_loss_backward.grad_input", "huber_loss_backward.out",
         "smooth_l1_loss_backward.grad_input", "multi_margin_loss_backward", "multi_margin_loss_backward.grad_input",
         "multilabel_margin_loss_backward", "multilabel_margin_loss_backward.grad_input", "nll_loss2d_backward",
         "nll_loss2d_backward.grad_input", "_ctc_loss_backward", "_ctc_loss_backward.Tensor", "glu_backward",
         "glu_backward.grad_input"},
        plain_like_second},
};

}  // namespace pw::meta
