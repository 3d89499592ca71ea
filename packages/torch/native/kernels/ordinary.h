// Which tensors the kernels here take; all others go to libtorch's.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/variable.h>

namespace pw {

inline bool is_ordinary(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && at::isFloatingType(tensor.scalar_type()) && !tensor.is_neg() &&
         tensor.is_contiguous();
}

inline bool has_forward_gradient(const at::Tensor& tensor) {
  const auto* meta = static_cast<const torch::autograd::AutogradMeta*>(tensor.unsafeGetTensorImpl()->autograd_meta());
  return meta != nullptr && meta->fw_grad_ != nullptr;
}

}  // namespace pw
