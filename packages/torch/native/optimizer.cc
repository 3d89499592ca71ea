// Optimizer steps over many parameters at once. A bucket holds the parameters of one group, device and type, and what
// the optimizer remembers of each; TypeScript says which slots there are and gives the numbers of the step.
#include "core.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_abs.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcdiv.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_maximum.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_neg.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_foreach_sqrt.h>
#include <ATen/ops/_foreach_zero.h>
#include <ATen/ops/_fused_adagrad.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/view_as_real.h>

#include <cmath>
#include <map>
#include <tuple>

namespace pw {
namespace {

using Tensors = std::vector<at::Tensor>;
using Numbers = std::vector<at::Scalar>;

// How a slot begins: like the parameter, a number on the CPU, a number on the parameter's device, or when first needed.
enum SlotKind { kLike = 0, kNumber = 1, kDeviceNumber = 2, kLater = 3 };

struct Slot {
  SlotKind kind;
  double begin;
  at::ScalarType dtype;  // of a number
};

struct Bucket {
  Tensors params;
  std::vector<Slot> slots;
  std::vector<Tensors> state;  // state[slot][parameter]; undefined until the parameter's first gradient
};

// The parameters that have a gradient now, their gradients and their state.
struct Active {
  Tensors params, grads;
  std::vector<Tensors> state;
  std::vector<size_t> at;  // positions in the bucket
  bool empty() const { return params.empty(); }
};

at::Tensor as_real(const at::Tensor& tensor) { return tensor.is_complex() ? at::view_as_real(tensor) : tensor; }

at::Tensor begin(const Slot& slot, const at::Tensor& param) {
  if (slot.kind == kLike) return at::full_like(param, slot.begin);
  const at::Device device = slot.kind == kNumber ? at::Device(at::kCPU) : param.device();
  return at::full({}, slot.begin, at::TensorOptions().dtype(slot.dtype).device(device));
}

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
    active.params.push_back(as_real(bucket.params[i]));
    active.grads.push_back(grad.layout() == at::kStrided ? as_real(grad) : grad);
    for (size_t k = 0; k < bucket.slots.size(); ++k) {
      at::Tensor& item = bucket.state[k][i];
      if (!item.defined() && bucket.slots[k].kind != kLater) item = begin(bucket.slots[k], bucket.params[i]);
      active.state[k].push_back(item.defined() ? as_real(item) : item);
    }
  }
  return active;
}

// Sparse gradients have no kernels here.
void refuse_sparse(const Active& active, const char* name) {
  for (const at::Tensor& grad : active.grads) {
    if (grad.layout() != at::kStrided) throw CodedError("SPARSE", std::string(name) + ": a gradient is sparse; use SGD, or sparse: false in the embedding");
  }
}

Bucket& bucket_of(napi_env env, napi_value value) {
  void* data = nullptr;
  check(env, napi_get_value_external(env, value, &data), "an optimizer's bucket");
  return *static_cast<Bucket*>(data);
}

struct KindOrder {
  using Kind = std::pair<at::Device, at::ScalarType>;
  static std::tuple<int, int, int> key(const Kind& kind) { return {static_cast<int>(kind.first.type()), kind.first.index(), static_cast<int>(kind.second)}; }
  bool operator()(const Kind& a, const Kind& b) const { return key(a) < key(b); }
};

// (bucket, Float64Array, learning rate as a tensor or nothing)
struct Step {
  explicit Step(Args<3>& args) : bucket(bucket_of(args.napi, args.values[0])), rate(args.optional_tensor(2)), guard(false) {
    napi_typedarray_type type;
    void* data = nullptr;
    napi_value buffer;
    size_t offset = 0, length = 0;
    check(args.napi, napi_get_typedarray_info(args.napi, args.values[1], &type, &length, &data, &buffer, &offset), "a Float64Array");
    if (type != napi_float64_array || length < 8) throw CodedError("BAD_ARGUMENT", "internal: an optimizer step takes 8 numbers");
    n = static_cast<const double*>(data);
  }
  Bucket& bucket;
  at::Tensor rate;
  const double* n;
  at::AutoGradMode guard;

  double lr() const { return rate.defined() ? rate.item<double>() : n[0]; }
};

// What every foreach step begins with: the sign and the weight decay of the gradients, without touching them.
Tensors directed(const Active& active, bool maximize, double weight_decay) {
  if (!maximize && weight_decay == 0) return active.grads;
  Tensors grads = maximize ? at::_foreach_neg(active.grads) : active.grads;
  if (weight_decay == 0) return grads;
  if (!maximize) return at::_foreach_add(grads, active.params, weight_decay);
  at::_foreach_add_(grads, active.params, weight_decay);
  return grads;
}

// Counts the step of each parameter and returns the counts.
std::vector<double> count_steps(Tensors& steps) {
  std::vector<double> counts;
  counts.reserve(steps.size());
  for (at::Tensor& step : steps) {
    step.add_(1);
    counts.push_back(step.item<double>());
  }
  return counts;
}

template <typename F>
Numbers each(const std::vector<double>& counts, F&& number) {
  Numbers numbers;
  numbers.reserve(counts.size());
  for (size_t i = 0; i < counts.size(); ++i) numbers.emplace_back(number(counts[i], i));
  return numbers;
}

}  // namespace

// (handles, Float64Array of [kind, begin, dtype] per slot): a bucket.
PW_ENTRY(create_bucket, 2) {
  std::unique_ptr<Bucket> bucket = std::make_unique<Bucket>();
  bucket->params = args.tensors(0);
  const std::vector<napi_value> slots = elements(args.napi, args.values[1]);
  for (size_t i = 0; i + 2 < slots.size(); i += 3) {
    double numbers[3];
    for (size_t j = 0; j < 3; ++j) check(args.napi, napi_get_value_double(args.napi, slots[i + j], &numbers[j]), "a number");
    bucket->slots.push_back({static_cast<SlotKind>(static_cast<int>(numbers[0])), numbers[1], static_cast<at::ScalarType>(static_cast<int>(numbers[2]))});
    bucket->state.emplace_back(bucket->params.size());
  }
  napi_value result;
  check(args.napi, napi_create_external(args.napi, bucket.get(), [](napi_env, void* data, void*) { delete static_cast<Bucket*>(data); }, nullptr, &result), "memory");
  bucket.release();
  return result;
}

// Frees what the optimizer remembers, and lets go of the parameters.
PW_ENTRY(clear_bucket, 1) {
  Bucket& bucket = bucket_of(args.napi, args.values[0]);
  bucket.params.clear();
  for (Tensors& list : bucket.state) list.clear();
  return undefined(args.napi);
}

// (bucket, slot): a handle or null per parameter.
PW_ENTRY(bucket_state, 2) {
  return from_tensors(*args.env, bucket_of(args.napi, args.values[0]).state.at(static_cast<size_t>(args.int32(1))));
}

// (bucket, slot, handles or null per parameter): the tensors are taken as they are.
PW_ENTRY(set_bucket_state, 3) {
  Bucket& bucket = bucket_of(args.napi, args.values[0]);
  Tensors list = args.tensors(2);
  if (list.size() != bucket.params.size()) throw CodedError("BAD_ARGUMENT", "internal: one tensor per parameter is needed");
  bucket.state.at(static_cast<size_t>(args.int32(1))) = std::move(list);
  return undefined(args.napi);
}

static void zero_grads(Tensors& params, bool set_to_none) {
  at::AutoGradMode guard(false);
  Tensors grads;
  for (at::Tensor& param : params) {
    at::Tensor& grad = param.mutable_grad();
    if (!grad.defined()) continue;
    if (set_to_none) {
      grad.reset();
      continue;
    }
    if (grad.grad_fn()) grad.detach_();
    if (grad.layout() == at::kStrided) grads.push_back(grad);
    else grad.zero_();
  }
  if (!grads.empty()) at::_foreach_zero_(grads);
}

// (bucket, setToNone)
PW_ENTRY(zero_bucket_grads, 2) {
  zero_grads(bucket_of(args.napi, args.values[0]).params, args.boolean(1));
  return undefined(args.napi);
}

// (handles, setToNone)
PW_ENTRY(zero_grads_of, 2) {
  Tensors params = args.tensors(0);
  zero_grads(params, args.boolean(1));
  return undefined(args.napi);
}

// (handles): handles of the gradients that are there.
PW_ENTRY(grads_of, 1) {
  Tensors grads;
  for (const at::Tensor& param : args.tensors(0)) {
    if (param.grad().defined()) grads.push_back(param.grad());
  }
  return from_tensors(*args.env, grads);
}

// (handles, largest norm, order of the norm): scales all gradients together so that their norm is at most the largest;
// returns the norm before, or nothing where there are no gradients.
PW_ENTRY(clip_grad_norm, 3) {
  at::AutoGradMode guard(false);
  const double largest = args.number(1), order = args.number(2);
  std::map<std::pair<at::Device, at::ScalarType>, Tensors, KindOrder> groups;
  at::Tensor first;
  for (const at::Tensor& param : args.tensors(0)) {
    const at::Tensor& grad = param.grad();
    if (!grad.defined()) continue;
    if (!first.defined()) first = grad;
    groups[{grad.device(), grad.scalar_type()}].push_back(grad);
  }
  if (!first.defined()) return undefined(args.napi);
  Tensors norms;
  for (auto& group : groups) {
    for (at::Tensor& norm : at::_foreach_norm(group.second, order)) norms.push_back(groups.size() == 1 ? std::move(norm) : norm.to(first.options()));
  }
  at::Tensor total = at::linalg_vector_norm(at::stack(norms), order);
  const at::Tensor factor = total.add(1e-6).reciprocal_().mul_(largest).clamp_max_(1);
  for (auto& group : groups) at::_foreach_mul_(group.second, factor.to(group.first.first));
  return from_int32(args.napi, args.env->wrap(std::move(total)));
}

// (tensor, requiresGrad): the same memory as a leaf of its own, whose data may be set.
PW_ENTRY(make_parameter, 2) {
  at::Tensor leaf = args.tensor(0).detach();
  leaf.unsafeGetTensorImpl()->set_allow_tensor_metadata_change(true);
  if (args.boolean(1)) leaf.requires_grad_(true);
  return from_int32(args.napi, args.env->wrap(std::move(leaf)));
}

// lr, momentum, dampening, weight decay, nesterov, maximize; slots: momentum buffer if there is momentum
PW_ENTRY(sgd_step, 3) {
  Step step(args);
  const double* n = step.n;
  Active active = gather(step.bucket);
  const bool nesterov = n[4] != 0, maximize = n[5] != 0, has_momentum = n[1] != 0;
  Tensors params[2], grads[2], buffers[2];  // those at their first step, the others
  for (size_t i = 0; i < active.params.size(); ++i) {
    if (active.grads[i].layout() != at::kStrided) {
      if (has_momentum || n[3] != 0) throw CodedError("SPARSE", "SGD: a gradient is sparse, so momentum and weightDecay must be 0");
      active.params[i].add_(active.grads[i], maximize ? step.lr() : -step.lr());
      continue;
    }
    const bool first = has_momentum && !active.state[0][i].defined();
    if (first) {
      at::Tensor& buffer = step.bucket.state[0][active.at[i]];
      buffer = at::empty_like(step.bucket.params[active.at[i]]);
      active.state[0][i] = as_real(buffer);
    }
    params[!first].push_back(active.params[i]);
    grads[!first].push_back(active.grads[i]);
    if (has_momentum) buffers[!first].push_back(active.state[0][i]);
  }
  for (int later = 0; later < 2; ++later) {
    if (params[later].empty()) continue;
    if (step.rate.defined()) at::_fused_sgd_(params[later], grads[later], buffers[later], n[3], n[1], step.rate, n[2], nesterov, maximize, later == 0);
    else at::_fused_sgd_(params[later], grads[later], buffers[later], n[3], n[1], n[0], n[2], nesterov, maximize, later == 0);
  }
  return undefined(args.napi);
}

// lr, beta1, beta2, eps, weight decay, amsgrad, maximize, decoupled; slots: step, average, average of squares, its maximum
PW_ENTRY(adam_step, 3) {
  Step step(args);
  const double* n = step.n;
  Active a = gather(step.bucket);
  if (a.empty()) return undefined(args.napi);
  refuse_sparse(a, "Adam");
  const bool amsgrad = n[5] != 0, maximize = n[6] != 0;
  const Tensors none;
  at::_foreach_add_(a.state[0], 1);
  const Tensors& largest = amsgrad ? a.state[3] : none;
  if (n[7] != 0) {
    if (step.rate.defined()) at::_fused_adamw_(a.params, a.grads, a.state[1], a.state[2], largest, a.state[0], step.rate, n[1], n[2], n[4], n[3], amsgrad, maximize);
    else at::_fused_adamw_(a.params, a.grads, a.state[1], a.state[2], largest, a.state[0], n[0], n[1], n[2], n[4], n[3], amsgrad, maximize);
  } else if (step.rate.defined()) {
    at::_fused_adam_(a.params, a.grads, a.state[1], a.state[2], largest, a.state[0], step.rate, n[1], n[2], n[4], n[3], amsgrad, maximize);
  } else {
    at::_fused_adam_(a.params, a.grads, a.state[1], a.state[2], largest, a.state[0], n[0], n[1], n[2], n[4], n[3], amsgrad, maximize);
  }
  return undefined(args.napi);
}

// lr, lr decay, weight decay, eps, maximize; slots: step, sum of squares
PW_ENTRY(adagrad_step, 3) {
  Step step(args);
  const double* n = step.n;
  Active a = gather(step.bucket);
  if (a.empty()) return undefined(args.napi);
  refuse_sparse(a, "Adagrad");
  const bool maximize = n[4] != 0;
  if (a.params[0].is_cpu()) {
    at::_foreach_add_(a.state[0], 1);
    at::_fused_adagrad_(a.params, a.grads, a.state[1], a.state[0], step.lr(), n[1], n[2], n[3], maximize);
    return undefined(args.napi);
  }
  const double lr = step.lr();
  const std::vector<double> counts = count_steps(a.state[0]);
  const Tensors grads = directed(a, maximize, n[2]);
  at::_foreach_addcmul_(a.state[1], grads, grads, 1);
  Tensors scale = at::_foreach_sqrt(a.state[1]);
  at::_foreach_add_(scale, n[3]);
  at::_foreach_addcdiv_(a.params, grads, scale, each(counts, [&](double count, size_t) { return -lr / (1 + (count - 1) * n[1]); }));
  return undefined(args.napi);
}

// lr, alpha, eps, weight decay, momentum, centered, maximize; slots: step, average of squares, momentum buffer, average
PW_ENTRY(rmsprop_step, 3) {
  Step step(args);
  const double* n = step.n;
  Active a = gather(step.bucket);
  if (a.empty()) return undefined(args.napi);
  refuse_sparse(a, "RMSprop");
  const double lr = step.lr(), alpha = n[1], momentum = n[4];
  at::_foreach_add_(a.state[0], 1);
  const Tensors grads = directed(a, n[6] != 0, n[3]);
  at::_foreach_mul_(a.state[1], alpha);
  at::_foreach_addcmul_(a.state[1], grads, grads, 1 - alpha);
  Tensors scale;
  if (n[5] != 0) {
    at::_foreach_lerp_(a.state[3], grads, 1 - alpha);
    scale = at::_foreach_addcmul(a.state[1], a.state[3], a.state[3], -1);
    at::_foreach_sqrt_(scale);
  } else {
    scale = at::_foreach_sqrt(a.state[1]);
  }
  at::_foreach_add_(scale, n[2]);
  if (momentum > 0) {
    at::_foreach_mul_(a.state[2], momentum);
    at::_foreach_addcdiv_(a.state[2], grads, scale, 1);
    at::_foreach_add_(a.params, a.state[2], -lr);
  } else {
    at::_foreach_addcdiv_(a.params, grads, scale, -lr);
  }
  return undefined(args.napi);
}

// lr, beta1, beta2, eps, weight decay, maximize; slots: step, average, largest
PW_ENTRY(adamax_step, 3) {
  Step step(args);
  const double* n = step.n;
  Active a = gather(step.bucket);
  if (a.empty()) return undefined(args.napi);
  refuse_sparse(a, "Adamax");
  const double lr = step.lr();
  const std::vector<double> counts = count_steps(a.state[0]);
  const Tensors grads = directed(a, n[5] != 0, n[4]);
  at::_foreach_lerp_(a.state[1], grads, 1 - n[1]);
  at::_foreach_mul_(a.state[2], n[2]);
  Tensors sizes = at::_foreach_abs(grads);
  at::_foreach_add_(sizes, n[3]);
  at::_foreach_maximum_(a.state[2], sizes);
  at::_foreach_addcdiv_(a.params, a.state[1], a.state[2], each(counts, [&](double count, size_t) { return -(lr / (1 - std::pow(n[1], count))); }));
  return undefined(args.napi);
}

// lr, beta1, beta2, eps, weight decay, momentum decay, decoupled, maximize; slots: step, product, average, average of squares
PW_ENTRY(nadam_step, 3) {
  Step step(args);
  const double* n = step.n;
  Active a = gather(step.bucket);
  if (a.empty()) return undefined(args.napi);
  refuse_sparse(a, "NAdam");
  const double lr = step.lr(), beta1 = n[1], beta2 = n[2], decay = n[5];
  const bool decoupled = n[6] != 0;
  const std::vector<double> counts = count_steps(a.state[0]);
  const Tensors grads = directed(a, n[7] != 0, decoupled ? 0 : n[4]);
  if (decoupled && n[4] != 0) at::_foreach_mul_(a.params, 1 - lr * n[4]);
  const auto mu = [&](double count) { return beta1 * (1 - 0.5 * std::pow(0.96, count * decay)); };
  std::vector<double> products;
  for (size_t i = 0; i < counts.size(); ++i) {
    a.state[1][i].mul_(mu(counts[i]));
    products.push_back(a.state[1][i].item<double>());
  }
  at::_foreach_lerp_(a.state[2], grads, 1 - beta1);
  at::_foreach_mul_(a.state[3], beta2);
  at::_foreach_addcmul_(a.state[3], grads, grads, 1 - beta2);
  Tensors scale = at::_foreach_div(a.state[3], each(counts, [&](double count, size_t) { return 1 - std::pow(beta2, count); }));
  at::_foreach_sqrt_(scale);
  at::_foreach_add_(scale, n[3]);
  at::_foreach_addcdiv_(a.params, grads, scale, each(counts, [&](double count, size_t i) { return -lr * (1 - mu(count)) / (1 - products[i]); }));
  at::_foreach_addcdiv_(a.params, a.state[2], scale, each(counts, [&](double count, size_t i) { return -lr * mu(count + 1) / (1 - products[i] * mu(count + 1)); }));
  return undefined(args.napi);
}

// lr, beta1, beta2, eps, weight decay, decoupled, maximize; slots: step, average, average of squares
PW_ENTRY(radam_step, 3) {
  Step step(args);
  const double* n = step.n;
  Active a = gather(step.bucket);
  if (a.empty()) return undefined(args.napi);
  refuse_sparse(a, "RAdam");
  const double lr = step.lr(), beta1 = n[1], beta2 = n[2], eps = n[3];
  const bool decoupled = n[5] != 0;
  const std::vector<double> counts = count_steps(a.state[0]);
  const Tensors grads = directed(a, n[6] != 0, decoupled ? 0 : n[4]);
  if (decoupled && n[4] != 0) at::_foreach_mul_(a.params, 1 - lr * n[4]);
  at::_foreach_lerp_(a.state[1], grads, 1 - beta1);
  at::_foreach_mul_(a.state[2], beta2);
  at::_foreach_addcmul_(a.state[2], grads, grads, 1 - beta2);
  const double rho_inf = 2 / (1 - beta2) - 1;
  Tensors early, early_averages, late, late_averages, scale;  // the variance is not yet, or already, tractable
  Numbers early_rates, late_rates;
  for (size_t i = 0; i < counts.size(); ++i) {
    const double correction1 = 1 - std::pow(beta1, counts[i]), correction2 = 1 - std::pow(beta2, counts[i]);
    const double rho = rho_inf - 2 * counts[i] * std::pow(beta2, counts[i]) / correction2;
    if (rho > 5) {
      const double rectified = std::sqrt((rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho));
      late.push_back(a.params[i]);
      late_averages.push_back(a.state[1][i]);
      scale.push_back(a.state[2][i]);
      late_rates.emplace_back(-lr * std::sqrt(correction2) * rectified / correction1);
    } else {
      early.push_back(a.params[i]);
      early_averages.push_back(a.state[1][i]);
      early_rates.emplace_back(-lr / correction1);
    }
  }
  if (!early.empty()) at::_foreach_add_(early, at::_foreach_mul(early_averages, early_rates));
  if (!late.empty()) {
    scale = at::_foreach_sqrt(scale);
    at::_foreach_add_(scale, eps);
    at::_foreach_addcdiv_(late, late_averages, scale, late_rates);
  }
  return undefined(args.napi);
}

// lr, rho, eps, weight decay, maximize; slots: step, average of squares, average of squared moves
PW_ENTRY(adadelta_step, 3) {
  Step step(args);
  const double* n = step.n;
  Active a = gather(step.bucket);
  if (a.empty()) return undefined(args.napi);
  refuse_sparse(a, "Adadelta");
  const double rho = n[1], eps = n[2];
  at::_foreach_add_(a.state[0], 1);
  const Tensors grads = directed(a, n[4] != 0, n[3]);
  at::_foreach_mul_(a.state[1], rho);
  at::_foreach_addcmul_(a.state[1], grads, grads, 1 - rho);
  Tensors scale = at::_foreach_add(a.state[1], eps), moves = at::_foreach_add(a.state[2], eps);
  at::_foreach_sqrt_(scale);
  at::_foreach_sqrt_(moves);
  at::_foreach_div_(moves, scale);
  at::_foreach_mul_(moves, grads);
  at::_foreach_mul_(a.state[2], rho);
  at::_foreach_addcmul_(a.state[2], moves, moves, 1 - rho);
  at::_foreach_add_(a.params, moves, -step.lr());
  return undefined(args.napi);
}

// lr, smaller eta, larger eta, least step, largest step, maximize; slots: step, gradient before, size of the step
PW_ENTRY(rprop_step, 3) {
  Step step(args);
  const double* n = step.n;
  Active a = gather(step.bucket);
  if (a.empty()) return undefined(args.napi);
  refuse_sparse(a, "Rprop");
  at::_foreach_add_(a.state[0], 1);
  const Tensors grads = directed(a, n[5] != 0, 0);
  for (size_t i = 0; i < a.params.size(); ++i) {
    at::Tensor &before = a.state[1][i], &size = a.state[2][i];
    const at::Tensor agreement = grads[i].mul(before).sign_();
    const at::Tensor turned = agreement.lt(0);
    const at::Tensor factor = at::ones_like(agreement).masked_fill_(turned, n[1]).masked_fill_(agreement.gt(0), n[2]);
    size.mul_(factor).clamp_(n[3], n[4]);
    const at::Tensor grad = grads[i].masked_fill(turned, 0);  // after a turn the step is left out
    a.params[i].addcmul_(grad.sign(), size, -1);
    before.copy_(grad);
  }
  return undefined(args.napi);
}

// lr, lambda, alpha, t0, weight decay, maximize; slots: step, eta, mu, average
PW_ENTRY(asgd_step, 3) {
  Step step(args);
  const double* n = step.n;
  Active a = gather(step.bucket);
  if (a.empty()) return undefined(args.napi);
  refuse_sparse(a, "ASGD");
  const double lr = step.lr();
  const std::vector<double> counts = count_steps(a.state[0]);
  const Tensors grads = directed(a, n[5] != 0, n[4]);
  for (size_t i = 0; i < a.params.size(); ++i) {
    at::Tensor &eta = a.state[1][i], &mu = a.state[2][i], &average = a.state[3][i];
    const double rate = eta.item<double>(), share = mu.item<double>();
    a.params[i].mul_(1 - n[1] * rate).add_(grads[i], -rate);
    if (share == 1) average.copy_(a.params[i]);
    else average.add_(a.params[i].sub(average).mul_(share));
    eta.fill_(lr / std::pow(1 + n[1] * lr * counts[i], n[2]));
    mu.fill_(1 / std::max(1.0, counts[i] - n[3]));
  }
  return undefined(args.napi);
}

void init_optimizer(Env& env, napi_value exports) {
  add_exports(env, exports, {
    {"createBucket", create_bucket},
    {"clearBucket", clear_bucket},
    {"bucketState", bucket_state},
    {"setBucketState", set_bucket_state},
    {"zeroBucketGrads", zero_bucket_grads},
    {"zeroGrads", zero_grads_of},
    {"gradsOf", grads_of},
    {"clipGradNorm", clip_grad_norm},
    {"makeParameter", make_parameter},
    {"sgdStep", sgd_step},
    {"adamStep", adam_step},
    {"adagradStep", adagrad_step},
    {"rmspropStep", rmsprop_step},
    {"adamaxStep", adamax_step},
    {"nadamStep", nadam_step},
    {"radamStep", radam_step},
    {"adadeltaStep", adadelta_step},
    {"rpropStep", rprop_step},
    {"asgdStep", asgd_step},
  });
}

}  // namespace pw
