// Gathers the parameters of a bucket that have a gradient; begins what is remembered of them, and lays all of it out alike.
#include "optim/active.h"

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_neg.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/view_as_real.h>

namespace pw {
namespace {

bool is_laid_out_like(const at::Tensor& tensor, const at::Tensor& param) {
  if (tensor.layout() != at::kStrided || tensor.sizes() != param.sizes()) return true;
  for (int64_t dim = 0; dim < param.dim(); ++dim)
    if (param.size(dim) != 1 && tensor.stride(dim) != param.stride(dim)) return false;
  return true;
}

at::Tensor laid_out_like(const at::Tensor& tensor, const at::Tensor& param) {
  return is_laid_out_like(tensor, param) ? tensor : at::empty_like(param, tensor.options()).copy_(tensor);
}

at::Tensor begin(const Slot& slot, const at::Tensor& param) {
  if (slot.kind == kLike) return at::full_like(param, slot.begin);
  if (slot.kind == kLikeVector) return param.dim() > 1 ? at::Tensor() : at::full_like(param, slot.begin);
  if (slot.kind == kRows || slot.kind == kColumns) {
    if (param.dim() < 2) return {};
    c10::DimVector sizes(param.sizes());
    sizes[sizes.size() - (slot.kind == kRows ? 1 : 2)] = 1;
    return at::full(sizes, slot.begin, param.options());
  }
  const at::Device device = slot.kind == kNumber ? at::Device(at::kCPU) : param.device();
  return at::full({}, slot.begin, at::TensorOptions().dtype(slot.dtype).device(device));
}

}  // namespace

at::Tensor as_real(const at::Tensor& tensor) { return tensor.is_complex() ? at::view_as_real(tensor) : tensor; }

Active gather(Bucket& bucket) {
  Active active;
  const size_t count = bucket.params.size();
  active.params.reserve(count);
  active.grads.reserve(count);
  active.at.reserve(count);
  active.state.resize(bucket.slots.size());
  for (Tensors& list : active.state) list.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const at::Tensor& grad = bucket.params[i].grad();
    if (!grad.defined()) continue;
    active.at.push_back(i);
    const bool has_gaps = !bucket.params[i].is_non_overlapping_and_dense();
    const at::Tensor param = has_gaps ? bucket.params[i].contiguous() : bucket.params[i];
    if (has_gaps) active.copies.emplace_back(bucket.params[i], param);
    active.params.push_back(as_real(param));
    active.grads.push_back(grad.layout() == at::kStrided ? as_real(laid_out_like(grad, param)) : grad);
    for (size_t k = 0; k < bucket.slots.size(); ++k) {
      at::Tensor& item = bucket.state[k][i];
      if (!item.defined() && bucket.slots[k].kind != kLater) item = begin(bucket.slots[k], param);
      if (item.defined()) item = laid_out_like(item, param);
      active.state[k].push_back(item.defined() ? as_real(item) : item);
    }
  }
  return active;
}

void refuse_sparse(const Active& active, const char* name) {
  for (const at::Tensor& grad : active.grads) {
    if (grad.layout() != at::kStrided)
      throw CodedError(
          "SPARSE", std::string(name) + ": a gradient is sparse; use SGD, or sparse: false in the embedding");
  }
}

Tensors directed(const Active& active, bool maximize, double weight_decay) {
  if (!maximize && weight_decay == 0) return active.grads;
  Tensors grads = maximize ? at::_foreach_neg(active.grads) : active.grads;
  if (weight_decay == 0) return grads;
  if (!maximize) return at::_foreach_add(grads, active.params, weight_decay);
  at::_foreach_add_(grads, active.params, weight_decay);
  return grads;
}

}  // namespace pw
