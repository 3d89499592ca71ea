// Buckets of parameters, and gradients as a whole: zeros, norms. The steps are in optimizer-steps.cc.
#include "optim/optimizer.h"

#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_foreach_zero.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>

#include <map>
#include <tuple>

namespace pw {
namespace {

struct KindOrder {
  using Kind = std::pair<at::Device, at::ScalarType>;
  static std::tuple<int, int, int> key(const Kind& kind) {
    return {static_cast<int>(kind.first.type()), kind.first.index(), static_cast<int>(kind.second)};
  }
  bool operator()(const Kind& a, const Kind& b) const { return key(a) < key(b); }
};

}  // namespace

// (handles, Float64Array of [kind, begin, dtype] per slot): a bucket.
PW_ENTRY(create_bucket, 2) {
  std::unique_ptr<Bucket> bucket = std::make_unique<Bucket>();
  bucket->params = args.tensors(0);
  const std::vector<napi_value> slots = elements(args.napi, args.values[1]);
  for (size_t i = 0; i + 2 < slots.size(); i += 3) {
    double numbers[3];
    for (size_t j = 0; j < 3; ++j)
      check(args.napi, napi_get_value_double(args.napi, slots[i + j], &numbers[j]), "a number");
    bucket->slots.push_back({static_cast<SlotKind>(static_cast<int>(numbers[0])), numbers[1],
        static_cast<at::ScalarType>(static_cast<int>(numbers[2]))});
    bucket->state.emplace_back(bucket->params.size());
  }
  napi_value result;
  check(args.napi,
      napi_create_external(
          args.napi, bucket.get(), [](napi_env, void* data, void*) { delete static_cast<Bucket*>(data); }, nullptr,
          &result),
      "memory");
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
  if (list.size() != bucket.params.size())
    throw CodedError("BAD_ARGUMENT", "internal: one tensor per parameter is needed");
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
    for (at::Tensor& norm : at::_foreach_norm(group.second, order))
      norms.push_back(groups.size() == 1 ? std::move(norm) : norm.to(first.device()));
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

void init_optimizer(Env& env, napi_value exports) {
  add_exports(env, exports,
      {
          {"createBucket", create_bucket},
          {"clearBucket", clear_bucket},
          {"bucketState", bucket_state},
          {"setBucketState", set_bucket_state},
          {"zeroBucketGrads", zero_bucket_grads},
          {"zeroGrads", zero_grads_of},
          {"gradsOf", grads_of},
          {"clipGradNorm", clip_grad_norm},
          {"makeParameter", make_parameter},
      });
}

}  // namespace pw
