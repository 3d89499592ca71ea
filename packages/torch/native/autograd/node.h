// Making graph nodes: versions of libtorch differ in how a node is owned.
#pragma once

#include "core/core.h"

#include <torch/csrc/autograd/function.h>

namespace pw {

template <typename T, typename... A>
auto make_node(A&&... arguments) {
  if constexpr (std::is_same_v<OwnedNode, std::shared_ptr<torch::autograd::Node>>) {
    return std::shared_ptr<T>(new T(std::forward<A>(arguments)...), [](T* node) { deleteNode(node); });
  } else {
    return c10::make_intrusive<T>(std::forward<A>(arguments)...);
  }
}

}  // namespace pw
