// The parameters of a bucket that are stepped: those that have a gradient now.
#pragma once

#include "optim/optimizer.h"

#include <exception>

namespace pw {

// The parameters that have a gradient now, their gradients and their state. libtorch's fused kernels go through their memory in one
// line, so all of a parameter's tensors are laid out alike; a parameter with gaps is stepped as a copy, which is written back at the end.
struct Active {
  Tensors params, grads;
  std::vector<Tensors> state;
  std::vector<size_t> at;  // positions in the bucket
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  bool empty() const { return params.empty(); }

  Active() = default;
  Active(const Active&) = delete;
  Active& operator=(const Active&) = delete;
  Active(Active&&) = default;
  ~Active() noexcept(false) {
    if (std::uncaught_exceptions() > 0) return;
    for (const auto& [param, copy] : copies) param.copy_(copy);
  }
};

// Begins what is remembered of a parameter at its first gradient.
Active gather(Bucket& bucket);

// Complex numbers as pairs of real ones.
at::Tensor as_real(const at::Tensor& tensor);

// Sparse gradients have no kernels here.
void refuse_sparse(const Active& active, const char* name);

// What every foreach step begins with: the sign and the weight decay of the gradients, without touching them.
Tensors directed(const Active& active, bool maximize, double weight_decay);

}  // namespace pw
