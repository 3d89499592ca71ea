// Memory of tensors that somebody outside of libtorch's operators reads or writes by its address: an ArrayBuffer, a
// backend that sends it, another thread. While it is pinned it is alive and stays where it is.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

namespace pw {

// Keeps a tensor's storage alive and refuses to resize it (`resize_`, an `out` argument that has to grow), whatever
// becomes of the tensor: `set_data` and `set_` give it another storage, this one stays.
class Pin {
 public:
  explicit Pin(const at::Tensor& tensor);
  Pin(Pin&&) = default;
  Pin& operator=(Pin&&) = delete;
  ~Pin();

 private:
  c10::Storage storage_;  // empty: there was none, or it was moved away
};

// Whether the memory of a tensor is pinned: somebody knows its address.
bool is_pinned(const at::Tensor& tensor);

// The bytes of a storage themselves, also where the storage gets others (a copy on write).
std::shared_ptr<void> share_bytes(const at::Tensor& tensor);

// For good: the memory is now known to several threads, and nobody says when that ends.
void forbid_resizing(const at::Tensor& tensor);

}  // namespace pw
