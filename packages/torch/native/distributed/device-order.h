// Tensors on a GPU that change hands between ranks: in which order streams may touch them, and on which GPU they end up.
// Only what libc10 offers for all devices is used, so that it needs no CUDA headers.
#pragma once

#include "distributed/channel.h"

namespace pw {

// Marks in the sender's streams after which the tensors of a message may be read.
void mark_ready(Message& message);

// On the thread of the receiver: its stream waits for the marks; a tensor of another GPU is copied to the current one, and
// what was staged through the host's memory goes to the GPU.
void arrive(Message& message);

// Where tensors on a GPU are used by other threads with no marks: waits for the streams of this thread.
void wait_for_streams(const std::vector<at::Tensor>& tensors);

// The values in memory of the host that the GPU can copy from on its own, when they are there.
at::Tensor staged(const at::Tensor& tensor);
// Memory for values that will go to a GPU, where there is one.
at::Tensor staging(at::IntArrayRef sizes, at::ScalarType dtype);

}  // namespace pw
