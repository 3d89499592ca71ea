#include "core/device-failure.h"

#include "core/core.h"

#include <atomic>

namespace pw {
namespace {

struct DeviceFailure {
  std::atomic<bool> set{false};
  std::mutex mutex;
  const char* code = "";
  std::string why;
};
DeviceFailure& device_failure() {
  static DeviceFailure* one = new DeviceFailure();
  return *one;
}

}  // namespace

void set_device_failure(const char* code, const std::string& why) {
  DeviceFailure& failure = device_failure();
  std::lock_guard<std::mutex> lock(failure.mutex);
  if (failure.set) return;
  failure.code = code;
  failure.why = why;
  failure.set = true;
}

void clear_device_failure() { device_failure().set = false; }

void check_device_failure() {
  DeviceFailure& failure = device_failure();
  if (!failure.set.load(std::memory_order_relaxed)) return;
  std::lock_guard<std::mutex> lock(failure.mutex);
  throw CodedError(failure.code, "what the GPU holds is no result, a message did not come: " + failure.why);
}

}  // namespace pw
