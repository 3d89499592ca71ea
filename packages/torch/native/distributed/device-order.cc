#include "distributed/device-order.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace pw {
namespace {

bool has_gpu() { return at::hasCUDA(); }

c10::impl::VirtualGuardImpl gpu() { return c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA); }

}  // namespace

// One mark per device; a message has tensors of one, as a rule.
struct ReadyMarks {
  c10::SmallVector<c10::Event, 1> events;
};

void mark_ready(Message& message) {
  for (const at::Tensor& tensor : message.tensors) {
    if (!tensor.defined() || !tensor.is_cuda()) continue;
    if (!message.marks) message.marks = std::make_shared<ReadyMarks>();
    bool marked = false;
    for (const c10::Event& event : message.marks->events)
      marked = marked || event.device_index() == tensor.device().index();
    if (marked) continue;
    c10::Event event(c10::DeviceType::CUDA);
    event.record(gpu().getStream(tensor.device()));
    message.marks->events.push_back(std::move(event));
  }
}

void arrive(Message& message) {
  if (!message.marks && message.staged.empty()) return;
  at::NoGradGuard no_grad;
  const c10::impl::VirtualGuardImpl impl = gpu();
  const c10::Device here = impl.getDevice();
  if (message.marks) {
    for (const c10::Event& event : message.marks->events) {
      event.block(impl.getStream(c10::Device(c10::DeviceType::CUDA, event.device_index())));
    }
    for (at::Tensor& tensor : message.tensors) {
      if (!tensor.defined() || !tensor.is_cuda()) continue;
      // The sender's allocator may not use the memory again before this thread's stream is done with it.
      impl.recordDataPtrOnStream(tensor.storage().data_ptr(), impl.getStream(tensor.device()));
      if (tensor.device() != here) tensor = tensor.to(here, /*non_blocking=*/true);
    }
    message.marks.reset();
  }
  for (uint32_t i : message.staged) message.tensors[i] = message.tensors[i].to(here, /*non_blocking=*/true);
  message.staged.clear();
}

void wait_for_streams(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined() && tensor.is_cuda()) gpu().synchronizeStream(gpu().getStream(tensor.device()));
  }
}

at::Tensor staged(const at::Tensor& tensor) {
  const at::Tensor dense = tensor.detach().resolve_conj().resolve_neg();
  at::Tensor host = staging(dense.sizes(), dense.scalar_type());
  host.copy_(dense, /*non_blocking=*/true);
  gpu().synchronizeStream(gpu().getStream(tensor.device()));
  return host;
}

at::Tensor staging(at::IntArrayRef sizes, at::ScalarType dtype) {
  const at::TensorOptions options = at::TensorOptions().dtype(dtype);
  return at::empty(sizes, has_gpu() ? options.pinned_memory(true) : options);
}

}  // namespace pw
