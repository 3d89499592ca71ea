// The steps of the optimizers, over many parameters at once. A bucket holds the parameters of one group, device and type, and what
// the optimizer remembers of each; TypeScript says which slots there are and gives the numbers of the step.
#include "optim/active.h"
#include "optim/step.h"

#include <ATen/ops/_foreach_abs.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcdiv.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_maximum.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sqrt.h>
#include <ATen/ops/_fused_adagrad.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/norm.h>
#include <ATen/ops/ones_like.h>

#include <cmath>
#include <limits>

namespace pw {
namespace {

// The nearest matrix whose rows or columns are orthonormal, roughly: a polynomial that drives all singular values towards 1.
at::Tensor orthogonal(const at::Tensor& matrix, const double* factors, double eps, int64_t rounds) {
  at::Tensor x = matrix.to(at::kBFloat16);
  const bool tall = x.size(0) > x.size(1);
  if (tall) x = x.t();
  x = x.div(x.norm().clamp_min(eps));
  for (int64_t round = 0; round < rounds; ++round) {
    const at::Tensor gram = x.mm(x.t());
    x = at::addmm(x, at::addmm(gram, gram, gram, factors[1], factors[2]), x, factors[0], 1);
  }
  return tall ? x.t() : x;
}

// The distance from 1 to the next number of a type.
double epsilon_of(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return std::numeric_limits<double>::epsilon();
    case at::kHalf:
      return std::numeric_limits<c10::Half>::epsilon();
    case at::kBFloat16:
      return std::numeric_limits<c10::BFloat16>::epsilon();
    default:
      return std::numeric_limits<float>::epsilon();
  }
}

// libtorch's fused kernels leave the counters alone by which a backward notices that a tensor it needs was changed.
void count_change(const Tensors& params) {
  for (const at::Tensor& param : params) {
    if (!param.is_inference()) param.unsafeGetTensorImpl()->bump_version();
  }
}

}  // namespace

// lr, momentum, dampening, weight decay, nesterov, maximize; slots: momentum buffer if there is momentum
PW_ENTRY(sgd_step, 3) {
  namespace number = step_number::sgd;
  Step step(args);
  const double* n = step.n;
  Active active = gather(step.bucket);
  const bool nesterov = n[number::nesterov] != 0, maximize = n[number::maximize] != 0,
             has_momentum = n[number::momentum] != 0;
  Tensors params[2], grads[2], buffers[2];  // those at their first step, the others
  for (size_t i = 0; i < active.params.size(); ++i) {
    if (active.grads[i].layout() != at::kStrided) {
      if (has_momentum || n[number::weight_decay] != 0)
        throw CodedError("SPARSE", "SGD: a gradient is sparse, so momentum and weightDecay must be 0");
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
    if (step.rate.defined())
      at::_fused_sgd_(params[later], grads[later], buffers[later], n[number::weight_decay], n[number::momentum],
          step.rate, n[number::dampening], nesterov, maximize, later == 0);
    else
      at::_fused_sgd_(params[later], grads[later], buffers[later], n[number::weight_decay], n[number::momentum],
          n[number::lr], n[number::dampening], nesterov, maximize, later == 0);
    count_change(params[later]);
  }
  return undefined(args.napi);
}

// lr, beta1, beta2, eps, weight decay, amsgrad, maximize, decoupled; slots: step, average, average of squares, its maximum
PW_ENTRY(adam_step, 3) {
  namespace number = step_number::adam;
  Step step(args);
  const double* n = step.n;
  Active a = gather(step.bucket);
  if (a.empty()) return undefined(args.napi);
  refuse_sparse(a, "Adam");
  const bool amsgrad = n[number::amsgrad] != 0, maximize = n[number::maximize] != 0;
  const Tensors none;
  at::_foreach_add_(a.state[0], 1);
  const Tensors& largest = amsgrad ? a.state[3] : none;
  if (n[number::decoupled_weight_decay] != 0) {
    if (step.rate.defined())
      at::_fused_adamw_(a.params, a.grads, a.state[1], a.state[2], largest, a.state[0], step.rate, n[number::betas_0],
          n[number::betas_1], n[number::weight_decay], n[number::eps], amsgrad, maximize);
    else
      at::_fused_adamw_(a.params, a.grads, a.state[1], a.state[2], largest, a.state[0], n[number::lr],
          n[number::betas_0], n[number::betas_1], n[number::weight_decay], n[number::eps], amsgrad, maximize);
  } else if (step.rate.defined()) {
    at::_fused_adam_(a.params, a.grads, a.state[1], a.state[2], largest, a.state[0], step.rate, n[number::betas_0],
        n[number::betas_1], n[number::weight_decay], n[number::eps], amsgrad, maximize);
  } else {
    at::_fused_adam_(a.params, a.grads, a.state[1], a.state[2], largest, a.state[0], n[number::lr], n[number::betas_0],
        n[number::betas_1], n[number::weight_decay], n[number::eps], amsgrad, maximize);
  }
  count_change(a.params);
  return undefined(args.napi);
}

// lr, lr decay, weight decay, eps, maximize; slots: step, sum of squares
PW_ENTRY(adagrad_step, 3) {
  namespace number = step_number::adagrad;
  Step step(args);
  const double* n = step.n;
  Active a = gather(step.bucket);
  if (a.empty()) return undefined(args.napi);
  refuse_sparse(a, "Adagrad");
  const bool maximize = n[number::maximize] != 0;
  if (a.params[0].is_cpu()) {
    at::_foreach_add_(a.state[0], 1);
    at::_fused_adagrad_(a.params, a.grads, a.state[1], a.state[0], step.lr(), n[number::lr_decay],
        n[number::weight_decay], n[number::eps], maximize);
    count_change(a.params);
    return undefined(args.napi);
  }
  const double lr = step.lr();
  const std::vector<double> counts = count_steps(a.state[0]);
  const Tensors grads = directed(a, maximize, n[number::weight_decay]);
  at::_foreach_addcmul_(a.state[1], grads, grads, 1);
  Tensors scale = at::_foreach_sqrt(a.state[1]);
  at::_foreach_add_(scale, n[number::eps]);
  at::_foreach_addcdiv_(a.params, grads, scale,
      each(counts, [&](double count, size_t) { return -lr / (1 + (count - 1) * n[number::lr_decay]); }));
  return undefined(args.napi);
}

// lr, alpha, eps, weight decay, momentum, centered, maximize; slots: step, average of squares, momentum buffer, average
PW_ENTRY(rmsprop_step, 3) {
  namespace number = step_number::rmsprop;
  Step step(args);
  const double* n = step.n;
  Active a = gather(step.bucket);
  if (a.empty()) return undefined(args.napi);
  refuse_sparse(a, "RMSprop");
  const double lr = step.lr(), alpha = n[number::alpha], momentum = n[number::momentum];
  at::_foreach_add_(a.state[0], 1);
  const Tensors grads = directed(a, n[number::maximize] != 0, n[number::weight_decay]);
  at::_foreach_mul_(a.state[1], alpha);
  at::_foreach_addcmul_(a.state[1], grads, grads, 1 - alpha);
  Tensors scale;
  if (n[number::centered] != 0) {
    at::_foreach_lerp_(a.state[3], grads, 1 - alpha);
    scale = at::_foreach_addcmul(a.state[1], a.state[3], a.state[3], -1);
    at::_foreach_sqrt_(scale);
  } else {
    scale = at::_foreach_sqrt(a.state[1]);
  }
  at::_foreach_add_(scale, n[number::eps]);
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
  namespace number = step_number::adamax;
  Step step(args);
  const double* n = step.n;
  Active a = gather(step.bucket);
  if (a.empty()) return undefined(args.napi);
  refuse_sparse(a, "Adamax");
  const double lr = step.lr();
  const std::vector<double> counts = count_steps(a.state[0]);
  const Tensors grads = directed(a, n[number::maximize] != 0, n[number::weight_decay]);
  at::_foreach_lerp_(a.state[1], grads, 1 - n[number::betas_0]);
  at::_foreach_mul_(a.state[2], n[number::betas_1]);
  Tensors sizes = at::_foreach_abs(grads);
  at::_foreach_add_(sizes, n[number::eps]);
  at::_foreach_maximum_(a.state[2], sizes);
  at::_foreach_addcdiv_(a.params, a.state[1], a.state[2],
      each(counts, [&](double count, size_t) { return -(lr / (1 - std::pow(n[number::betas_0], count))); }));
  return undefined(args.napi);
}

// lr, beta1, beta2, eps, weight decay, momentum decay, decoupled, maximize; slots: step, product, average, average of squares
PW_ENTRY(nadam_step, 3) {
  namespace number = step_number::nadam;
  Step step(args);
  const double* n = step.n;
  Active a = gather(step.bucket);
  if (a.empty()) return undefined(args.napi);
  refuse_sparse(a, "NAdam");
  const double lr = step.lr(), beta1 = n[number::betas_0], beta2 = n[number::betas_1],
               decay = n[number::momentum_decay];
  const bool decoupled = n[number::decoupled_weight_decay] != 0;
  const std::vector<double> counts = count_steps(a.state[0]);
  const Tensors grads = directed(a, n[number::maximize] != 0, decoupled ? 0 : n[number::weight_decay]);
  if (decoupled && n[number::weight_decay] != 0) at::_foreach_mul_(a.params, 1 - lr * n[number::weight_decay]);
  const auto mu = [&](double count) { return beta1 * (1 - 0.5 * std::pow(0.96, count * decay)); };
  std::vector<double> products;
  for (size_t i = 0; i < counts.size(); ++i) {
    a.state[1][i].mul_(mu(counts[i]));
    products.push_back(a.state[1][i].item<double>());
  }
  at::_foreach_lerp_(a.state[2], grads, 1 - beta1);
  at::_foreach_mul_(a.state[3], beta2);
  at::_foreach_addcmul_(a.state[3], grads, grads, 1 - beta2);
  Tensors scale =
      at::_foreach_div(a.state[3], each(counts, [&](double count, size_t) { return 1 - std::pow(beta2, count); }));
  at::_foreach_sqrt_(scale);
  at::_foreach_add_(scale, n[number::eps]);
  at::_foreach_addcdiv_(a.params, grads, scale,
      each(counts, [&](double count, size_t i) { return -lr * (1 - mu(count)) / (1 - products[i]); }));
  at::_foreach_addcdiv_(a.params, a.state[2], scale,
      each(counts, [&](double count, size_t i) { return -lr * mu(count + 1) / (1 - products[i] * mu(count + 1)); }));
  return undefined(args.napi);
}

// lr, beta1, beta2, eps, weight decay, decoupled, maximize; slots: step, average, average of squares
PW_ENTRY(radam_step, 3) {
  namespace number = step_number::radam;
  Step step(args);
  const double* n = step.n;
  Active a = gather(step.bucket);
  if (a.empty()) return undefined(args.napi);
  refuse_sparse(a, "RAdam");
  const double lr = step.lr(), beta1 = n[number::betas_0], beta2 = n[number::betas_1], eps = n[number::eps];
  const bool decoupled = n[number::decoupled_weight_decay] != 0;
  const std::vector<double> counts = count_steps(a.state[0]);
  const Tensors grads = directed(a, n[number::maximize] != 0, decoupled ? 0 : n[number::weight_decay]);
  if (decoupled && n[number::weight_decay] != 0) at::_foreach_mul_(a.params, 1 - lr * n[number::weight_decay]);
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
  namespace number = step_number::adadelta;
  Step step(args);
  const double* n = step.n;
  Active a = gather(step.bucket);
  if (a.empty()) return undefined(args.napi);
  refuse_sparse(a, "Adadelta");
  const double rho = n[number::rho], eps = n[number::eps];
  at::_foreach_add_(a.state[0], 1);
  const Tensors grads = directed(a, n[number::maximize] != 0, n[number::weight_decay]);
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
  namespace number = step_number::rprop;
  Step step(args);
  const double* n = step.n;
  Active a = gather(step.bucket);
  if (a.empty()) return undefined(args.napi);
  refuse_sparse(a, "Rprop");
  at::_foreach_add_(a.state[0], 1);
  const Tensors grads = directed(a, n[number::maximize] != 0, 0);
  for (size_t i = 0; i < a.params.size(); ++i) {
    at::Tensor &before = a.state[1][i], &size = a.state[2][i];
    const at::Tensor agreement = grads[i].mul(before).sign_();
    const at::Tensor turned = agreement.lt(0);
    const at::Tensor factor = at::ones_like(agreement)
                                  .masked_fill_(turned, n[number::etas_0])
                                  .masked_fill_(agreement.gt(0), n[number::etas_1]);
    size.mul_(factor).clamp_(n[number::step_sizes_0], n[number::step_sizes_1]);
    const at::Tensor grad = grads[i].masked_fill(turned, 0);  // after a turn the step is left out
    a.params[i].addcmul_(grad.sign(), size, -1);
    before.copy_(grad);
  }
  return undefined(args.napi);
}

// lr, lambda, alpha, t0, weight decay, maximize; slots: step, eta, mu, average
PW_ENTRY(asgd_step, 3) {
  namespace number = step_number::asgd;
  Step step(args);
  const double* n = step.n;
  Active a = gather(step.bucket);
  if (a.empty()) return undefined(args.napi);
  refuse_sparse(a, "ASGD");
  const double lr = step.lr();
  const std::vector<double> counts = count_steps(a.state[0]);
  const Tensors grads = directed(a, n[number::maximize] != 0, n[number::weight_decay]);
  for (size_t i = 0; i < a.params.size(); ++i) {
    at::Tensor &eta = a.state[1][i], &mu = a.state[2][i], &average = a.state[3][i];
    const double rate = eta.item<double>(), share = mu.item<double>();
    a.params[i].mul_(1 - n[number::lambd] * rate).add_(grads[i], -rate);
    if (share == 1) average.copy_(a.params[i]);
    else average.add_(a.params[i].sub(average).mul_(share));
    eta.fill_(lr / std::pow(1 + n[number::lambd] * lr * counts[i], n[number::alpha]));
    mu.fill_(1 / std::max(1.0, counts[i] - n[number::t0]));
  }
  return undefined(args.napi);
}

// lr, power of the decay, least variance (not a number: the type's), least scale, clipping, weight decay, maximize; slots: step,
// average of squares per row, per column, of a vector
PW_ENTRY(adafactor_step, 3) {
  namespace number = step_number::adafactor;
  Step step(args);
  const double* n = step.n;
  Active a = gather(step.bucket);
  if (a.empty()) return undefined(args.napi);
  refuse_sparse(a, "Adafactor");
  const double lr = step.lr();
  const std::vector<double> counts = count_steps(a.state[0]);
  const Tensors grads = directed(a, n[number::maximize] != 0, 0);
  for (size_t i = 0; i < a.params.size(); ++i) {
    at::Tensor& param = a.params[i];
    const at::Tensor& grad = grads[i];
    const double share = std::pow(counts[i], n[number::beta2_decay]),
                 root = std::sqrt(static_cast<double>(param.numel()));
    const double least = std::isnan(n[number::eps_0]) ? epsilon_of(param.scalar_type()) : n[number::eps_0];
    const double size =
        std::max(n[number::eps_1], param.norm(2).item<double>() / root) * std::min(lr, 1 / std::sqrt(counts[i]));
    if (n[number::weight_decay] != 0) param.mul_(1 - lr * n[number::weight_decay]);
    at::Tensor variance;
    if (grad.dim() > 1) {
      at::Tensor &rows = a.state[1][i], &columns = a.state[2][i];
      rows.lerp_(at::norm(grad, 2, {-1}, true).square_().div_(grad.size(-1)), share);
      columns.lerp_(at::norm(grad, 2, {-2}, true).square_().div_(grad.size(-2)), share);
      variance = rows.matmul(columns).div_(rows.mean(-2, true).clamp_min_(least));
    } else {
      a.state[3][i].lerp_(grad.square(), share);
      variance = a.state[3][i].clone();
    }
    const at::Tensor update = variance.clamp_min_(least * least).rsqrt_().mul_(grad);
    const double excess = std::max(1.0, update.norm(2).item<double>() / (root * n[number::d]));
    param.add_(update, -size / excess);
  }
  return undefined(args.napi);
}

// lr, weight decay, momentum, nesterov, three factors, eps, rounds, whether the rate follows AdamW's, maximize; slots: momentum buffer
PW_ENTRY(muon_step, 3) {
  namespace number = step_number::muon;
  Step step(args);
  const double* n = step.n;
  Active a = gather(step.bucket);
  if (a.empty()) return undefined(args.napi);
  refuse_sparse(a, "Muon");
  const double lr = step.lr();
  const Tensors grads = directed(a, n[number::maximize] != 0, 0);
  for (size_t i = 0; i < a.params.size(); ++i) {
    at::Tensor &param = a.params[i], &buffer = a.state[0][i];
    buffer.lerp_(grads[i], 1 - n[number::momentum]);
    const at::Tensor update = orthogonal(n[number::nesterov] != 0 ? grads[i].lerp(buffer, n[number::momentum]) : buffer,
        n + number::ns_coefficients_0, n[number::eps], static_cast<int64_t>(n[number::ns_steps]));
    const double rows = static_cast<double>(param.size(0)), columns = static_cast<double>(param.size(1));
    const double ratio = n[number::adjust_lr_fn] != 0 ? 0.2 * std::sqrt(std::max(rows, columns))
                                                      : std::sqrt(std::max(1.0, rows / columns));
    param.mul_(1 - lr * n[number::weight_decay]).add_(update, -lr * ratio);
  }
  return undefined(args.napi);
}

void init_optimizer_steps(Env& env, napi_value exports) {
  add_exports(env, exports,
      {
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
          {"adafactorStep", adafactor_step},
          {"muonStep", muon_step},
      });
}

}  // namespace pw
