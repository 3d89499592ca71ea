// A lane carries CUDA tensors one way, from one rank to another, in order and without headers: both sides know what comes.
// It has a stream of its own. Nothing here makes the host wait: a send waits on the GPU for what was computed before it, a
// receive for what was computed before it was posted (its memory may still be in use), and whoever uses what came, or the
// memory of what was sent, lets its stream wait for the lane.
//
// The interface is here, so that the main addon, which owns the tensors of JavaScript, can call what the CUDA addon makes.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

namespace pw {

// Thrown by lanes, with a code of DistributedError.
struct LaneError : std::runtime_error {
  LaneError(const char* error_code, const std::string& message) : std::runtime_error(message), code(error_code) {}
  const char* code;
};

struct LaneRequest {
  c10::intrusive_ptr<c10d::Store> store;  // the two ranks meet here, under `name`
  std::string name;
  bool sends = false;
  int peer = 0;
  int device = 0;
  int window = 4;  // so many messages may be under way before the computing stream waits for the oldest
};

class DeviceLane {
 public:
  virtual ~DeviceLane() = default;

  // Meets the other side and sends one message, so that all memory and connections are there. Blocks; on a helper thread.
  virtual void connect() = 0;

  // Tensors must be dense and on the lane's device. The number of the message, from 0.
  virtual uint64_t send(std::vector<at::Tensor> tensors) = 0;
  virtual uint64_t receive(std::vector<at::Tensor> tensors) = 0;

  // The current stream waits for a message that was received, and for no other one; no longer than that keeps the lane its
  // tensors.
  virtual void wait(uint64_t message) = 0;
  // The current stream waits for everything.
  virtual void join() = 0;

  // A mark in the current stream for whoever watches: after the replay of a graph, whose messages nobody else counts.
  virtual void mark() = 0;
  // A capture has failed: what was begun in it will never happen.
  virtual void forget() = 0;

  // From any thread: how many messages were begun, and how many of them the GPU has done with (those of a capture count
  // as done). Throws LaneError where the library knows of an error.
  struct Progress {
    uint64_t begun = 0, done = 0;
  };
  virtual Progress look() = 0;

  // From any thread: kernels that wait for the other side end, every later call throws.
  virtual void abort(const std::string& why) = 0;
};

using DeviceLaneFactory = std::shared_ptr<DeviceLane> (*)(const LaneRequest&);

}  // namespace pw
