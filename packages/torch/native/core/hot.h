// What generated/hot-ops.cc needs: arguments read with the fewest Node-API calls, results wrapped, and the way round
// the autograd kernels where there is nothing for them to do.
#pragma once

#include "core/core.h"
#include "core/generated/border.h"
#include "core/own-generator.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <c10/core/SymIntArrayRef.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/OptionalArrayRef.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/variable.h>

#include <cmath>
#include <cstdio>

namespace pw {

// A list of integers that is whatever an operator asks for.
struct HotInts {
  c10::SmallVector<int64_t, 8> values;
  operator at::IntArrayRef() const { return values; }
  operator c10::SymIntArrayRef() const { return c10::fromIntArrayRefSlow(values); }
  operator at::OptionalIntArrayRef() const { return at::IntArrayRef(values); }
  operator at::OptionalSymIntArrayRef() const { return c10::fromIntArrayRefSlow(values); }
};

inline int64_t hot_whole(double number, const char* what) {
  if (!(number >= -9223372036854775808.0 && number < 9223372036854775808.0) ||
      number != static_cast<double>(static_cast<int64_t>(number))) {
    char text[32];
    std::snprintf(text, sizeof text, "%.15g", number);
    throw CodedError("BAD_ARGUMENT", std::string("argument '") + what + "': expected an integer, got " + text);
  }
  return static_cast<int64_t>(number);
}

// Arguments of one call, always N of them: TypeScript has filled in the defaults.
struct HotArgs {
  napi_env napi;
  Env& env;
  const napi_value* values;

  at::Tensor& tensor(size_t i) const {
    int32_t handle = 0;
    check(napi, napi_get_value_int32(napi, values[i], &handle), "a tensor");
    at::Tensor* found = env.tensors.find(handle);
    return found != nullptr ? *found : env.tensor(handle);
  }
  std::optional<at::Tensor> optional_tensor(size_t i) const {  // 0 is none
    int32_t handle = 0;
    check(napi, napi_get_value_int32(napi, values[i], &handle), "a tensor or null");
    if (handle == 0) return std::nullopt;
    return env.tensor(handle);
  }
  double number(size_t i, const char* what) const {
    double value = 0;
    if (napi_get_value_double(napi, values[i], &value) != napi_ok)
      throw CodedError("BAD_ARGUMENT", std::string("argument '") + what + "': expected a number");
    return value;
  }
  int64_t integer(size_t i, const char* what) const { return hot_whole(number(i, what), what); }
  bool boolean(size_t i, const char* what) const {
    bool value = false;
    if (napi_get_value_bool(napi, values[i], &value) != napi_ok)
      throw CodedError("BAD_ARGUMENT", std::string("argument '") + what + "': expected true or false");
    return value;
  }
  at::Scalar scalar(size_t i, const char* what) const {  // the rule of to_scalar in op.cc
    const double value = number(i, what);
    if (std::abs(value) <= 9007199254740991.0) {
      const int64_t whole = static_cast<int64_t>(value);
      if (static_cast<double>(whole) == value && !(whole == 0 && std::signbit(value))) return at::Scalar(whole);
    }
    return at::Scalar(value);
  }
  size_t length(size_t i) const {
    const double count = number(i, "length");
    if (!(count >= 0 && count <= static_cast<double>(kHotListLength)))
      throw CodedError("BAD_ARGUMENT", "internal: a list of wrong length");
    return static_cast<size_t>(count);
  }
  HotInts ints(size_t i, const char* what) const {
    const size_t count = length(i);
    HotInts list;
    list.values.resize(count);
    for (size_t k = 0; k < count; ++k) list.values[k] = hot_whole(env.meta[kHotList + k], what);
    return list;
  }
  std::vector<at::Tensor> tensors(size_t i) const {
    const size_t count = length(i);
    std::vector<at::Tensor> list;
    list.reserve(count);
    for (size_t k = 0; k < count; ++k) list.push_back(env.tensor(static_cast<int32_t>(env.meta[kHotList + k])));
    return list;
  }

  napi_value wrap(at::Tensor&& tensor) const { return from_int32(napi, env.wrap(std::move(tensor))); }
  napi_value wrap(const std::vector<at::Tensor>& tensors) const { return from_tensors(env, tensors); }
};

template <size_t N, typename F>
napi_value hot_entry(napi_env napi, napi_callback_info info, const char* name, F&& body) noexcept {
  napi_value values[N];
  size_t count = N;
  void* data = nullptr;
  napi_get_cb_info(napi, info, &count, values, nullptr, &data);
  try {
    return body(HotArgs{napi, *static_cast<Env*>(data), values});
  } catch (...) {
    throw_to_js(napi, name);
    return nullptr;
  }
}

// Whether autograd has nothing to do with this tensor: no gradient is wanted of it, in either direction.
inline bool hot_plain(const at::Tensor& tensor, bool& grad_mode) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  const c10::AutogradMetaInterface* meta = impl->autograd_meta();
  if (meta == nullptr) return true;
  if (static_cast<const torch::autograd::AutogradMeta*>(meta)->fw_grad_ != nullptr) return false;
  return !grad_mode || !impl->requires_grad();
}
inline bool hot_plain(const std::optional<at::Tensor>& tensor, bool& grad_mode) {
  return !tensor.has_value() || hot_plain(*tensor, grad_mode);
}
inline bool hot_plain(const std::vector<at::Tensor>& tensors, bool& grad_mode) {
  for (const at::Tensor& tensor : tensors) {
    if (!hot_plain(tensor, grad_mode)) return false;
  }
  return true;
}

// Nothing but backend, autograd and what every thread has: no autocast, tracing, functional transforms, inference mode. The key of
// random.cc is on in all our threads, and operators that draw nothing fall through it.
inline bool hot_default_dispatch() {
  const c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  // The engine's threads also leave out named tensors in some versions, which changes nothing for tensors without names.
  return keys.included_ - c10::DispatchKeySet(kOwnGenerator) == c10::default_included_set &&
         keys.excluded_.has_all(c10::default_excluded_set) &&
         !(keys.excluded_ - c10::default_excluded_set).has_any(c10::autograd_dispatch_keyset_with_ADInplaceOrView);
}

template <typename... Ts>
inline bool hot_skips_autograd(const Ts&... tensors) {
  if (!hot_default_dispatch()) return false;
  bool grad_mode = c10::GradMode::is_enabled();
  return (hot_plain(tensors, grad_mode) && ...);
}

// Calls an operator whose results alias none of its arguments, below the autograd kernels where they would do nothing.
template <typename F, typename... Ts>
inline auto hot_functional(F&& call, const Ts&... tensors) {
  if (hot_skips_autograd(tensors...)) {
    at::AutoDispatchBelowADInplaceOrView below;
    return call();
  }
  return call();
}

// linear and layer_norm with the same kernels in fewer steps (linear.cc).
at::Tensor hot_linear(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias);
at::Tensor hot_layer_norm(const at::Tensor& input, const HotInts& shape, const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias, double eps, bool cudnn);
// cross_entropy_loss in less memory (cross-entropy.cc).
at::Tensor hot_cross_entropy(const at::Tensor& scores, const at::Tensor& target,
    const std::optional<at::Tensor>& weight, int64_t reduction, int64_t ignore_index, double label_smoothing);

}  // namespace pw
