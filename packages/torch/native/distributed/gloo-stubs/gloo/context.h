// The wheels of torch ship no gloo headers. ProcessGroupGloo.hpp keeps only pointers to gloo classes, so that
// declarations are enough; the two functions below are exported by libtorch_cpu and may be called.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <gloo/transport/device.h>
#include <gloo/transport/unbound_buffer.h>

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
  void closeConnections();
};

}  // namespace gloo
