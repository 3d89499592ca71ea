// Weight gradients that wait until the gradients of chosen tensors are there: a stage before waits for those, and for nothing
// else. Which nodes can wait is theirs to say (linear.cc); the others give all their gradients at once.
#pragma once

#include "core/core.h"

#include <functional>

namespace pw {

class PutOff {
 public:
  explicit PutOff(std::vector<at::Tensor> first) : first_(std::move(first)) {}

  // Of the backward that this thread runs; mostly none.
  static PutOff* current();

  // Whether the gradient of a leaf must not wait.
  bool comes_first(const at::Tensor& leaf) const {
    for (const at::Tensor& tensor : first_) {
      if (tensor.is_same(leaf)) return true;
    }
    return false;
  }
  void add(std::function<void()> work) { work_.push_back(std::move(work)); }
  void run();

  // Lets nodes put off while it lives.
  class Guard {
   public:
    explicit Guard(PutOff& list);
    ~Guard();
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    PutOff* const before_;
  };

 private:
  const std::vector<at::Tensor> first_;
  std::vector<std::function<void()>> work_;
};

}  // namespace pw
