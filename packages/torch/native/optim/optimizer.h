// What optimizers share: parameters that are stepped together and what is remembered of each.
#pragma once

#include "core/core.h"

#include <ATen/core/grad_mode.h>

namespace pw {

using Tensors = std::vector<at::Tensor>;

// How a slot begins: like the parameter, a number on the CPU, a number on the parameter's device, when first needed, as one
// number for each row or column of a matrix (of the last two dimensions), or like the parameter if that is no matrix.
enum SlotKind { kLike = 0, kNumber = 1, kDeviceNumber = 2, kLater = 3, kRows = 4, kColumns = 5, kLikeVector = 6 };

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

inline Bucket& bucket_of(napi_env env, napi_value value) {
  void* data = nullptr;
  check(env, napi_get_value_external(env, value, &data), "an optimizer's bucket");
  return *static_cast<Bucket*>(data);
}

}  // namespace pw
