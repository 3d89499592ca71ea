#include "core/pin.h"

#include <mutex>
#include <unordered_map>

namespace pw {
namespace {

struct PinCount {
  int pins = 0;
  bool was_resizable = false;
};

std::mutex pins_mutex;
std::unordered_map<c10::StorageImpl*, PinCount>& pin_counts() {
  static auto* all = new std::unordered_map<c10::StorageImpl*, PinCount>();  // outlives threads that end late
  return *all;
}

using SharedData = std::shared_ptr<c10::DataPtr>;

void drop_share(void* context) { delete static_cast<SharedData*>(context); }

}  // namespace

Pin::Pin(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return;
  storage_ = tensor.storage();
  c10::StorageImpl* impl = storage_.unsafeGetStorageImpl();
  std::lock_guard<std::mutex> lock(pins_mutex);
  PinCount& count = pin_counts()[impl];
  if (count.pins++ == 0) count.was_resizable = impl->resizable();
  impl->set_resizable(false);
}

Pin::~Pin() {
  if (!storage_) return;
  c10::StorageImpl* impl = storage_.unsafeGetStorageImpl();
  std::lock_guard<std::mutex> lock(pins_mutex);
  const auto found = pin_counts().find(impl);
  if (found == pin_counts().end() || --found->second.pins > 0) return;
  impl->set_resizable(found->second.was_resizable);
  pin_counts().erase(found);
}

bool is_pinned(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return false;
  std::lock_guard<std::mutex> lock(pins_mutex);
  return pin_counts().count(tensor.storage().unsafeGetStorageImpl()) > 0;
}

std::shared_ptr<void> share_bytes(const at::Tensor& tensor) {
  const c10::Storage& storage = tensor.storage();
  void* data = storage.mutable_data();  // the storage's own copy, where it had been put off
  std::lock_guard<std::mutex> lock(pins_mutex);
  const c10::DataPtr& now = storage.data_ptr();
  if (now.get_deleter() == &drop_share) return *static_cast<SharedData*>(now.get_context());
  // Memory of somebody else's (JavaScript's, a file's) is never resized or copied on write: the storage keeps it.
  if (now.get_context() != data) return std::make_shared<c10::Storage>(storage);
  SharedData shared = std::make_shared<c10::DataPtr>();
  *shared = storage.unsafeGetStorageImpl()->set_data_ptr(
      c10::DataPtr(data, new SharedData(shared), &drop_share, now.device()));
  return shared;
}

void forbid_resizing(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return;
  c10::StorageImpl* impl = tensor.storage().unsafeGetStorageImpl();
  std::lock_guard<std::mutex> lock(pins_mutex);
  const auto found = pin_counts().find(impl);
  if (found != pin_counts().end()) found->second.was_resizable = false;
  impl->set_resizable(false);
}

}  // namespace pw
