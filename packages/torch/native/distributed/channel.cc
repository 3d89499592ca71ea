#include "distributed/channel.h"

#include "core/pin.h"
#include "distributed/device-order.h"

#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <thread>

namespace pw {
namespace {

int cores() {
  static const int count = std::max(1u, std::thread::hardware_concurrency());
  return count;
}

struct Endpoints {
  HandleTable<std::shared_ptr<Endpoint>> table;
  std::vector<std::weak_ptr<Endpoint>> open;
};
thread_local std::unordered_map<Env*, Endpoints> by_env;
thread_local Env* last_env = nullptr;
thread_local Endpoints* last_endpoints = nullptr;

Endpoints& endpoints_of(Env& env) {
  if (last_env != &env) {
    last_env = &env;
    last_endpoints = &by_env[&env];
  }
  return *last_endpoints;
}
HandleTable<std::shared_ptr<Endpoint>>& table_of(Env& env) { return endpoints_of(env).table; }

Endpoint& endpoint_at(Env& env, int32_t handle) {
  std::shared_ptr<Endpoint>* found = table_of(env).find(handle);
  if (found == nullptr) throw CodedError("CLOSED", "the group is closed, or belongs to another thread");
  return **found;
}

void check_rank(const Endpoint& endpoint, int rank) {
  if (rank < 0 || rank >= endpoint.size) {
    throw CodedError("RANK", "rank " + std::to_string(rank) + " is not in a group of " + std::to_string(endpoint.size));
  }
}

}  // namespace

bool Crowd::core_is_free() const {
  return ranks.load(std::memory_order_relaxed) - blocked.load(std::memory_order_relaxed) <= cores();
}

Crowd& crowd() {
  static Crowd* all = new Crowd();
  return *all;
}

bool borrows_memory(const at::Tensor& tensor) {
  if (!tensor.is_cpu() || !tensor.has_storage()) return false;
  static const c10::DeleterFnPtr borrowed = c10::InefficientStdFunctionContext::makeDataPtr(
      nullptr, [](void*) {}, c10::Device(c10::DeviceType::CPU))
                                                .get_deleter();
  return tensor.storage().data_ptr().get_deleter() == borrowed;
}

at::Tensor hand_over(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  if (borrows_memory(tensor)) {
    c10::InferenceMode normal(false);
    return tensor.detach().clone();
  }
  forbid_resizing(tensor);  // the receiver may be reading it
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  const c10::VariableVersion version =
      impl->is_inference() ? c10::VariableVersion(c10::VariableVersion::DISABLED) : impl->version_counter();
  return at::Tensor(impl->shallow_copy_and_detach(version, /*allow_tensor_metadata_change=*/true));
}

// --- Inbox --------------------------------------------------------------------------------------------------------------

void Inbox::push(int source, Message&& message, const Wait* wait) {
  bool wake;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    std::deque<Message>& queue = queues_[source];
    if (!closed_.empty()) throw CodedError("PEER_LOST", closed_);
    while (bound_ != 0 && queue.size() >= bound_ && wait != nullptr) {
      ++waiting_for_room_;
      room_.wait_until(lock, wait->slice());
      --waiting_for_room_;
      if (!closed_.empty()) throw CodedError("PEER_LOST", closed_);
      if (queue.size() < bound_) break;
      const Stop stop = wait->check();
      if (stop != Stop::none)
        wait->fail(stop, "the receiver has " + std::to_string(queue.size()) + " messages it has not taken");
    }
    queue.push_back(std::move(message));
    arrivals_.fetch_add(1, std::memory_order_release);
    wake = blocked_ > 0;
  }
  if (wake) arrived_.notify_all();
}

bool Inbox::pop(int source, uint8_t space, int64_t tag, Message& out) {
  std::deque<Message>& queue = queues_[source];
  for (auto it = queue.begin(); it != queue.end(); ++it) {
    if (it->space != space || (tag != kAnyTag && it->tag != tag)) continue;
    out = std::move(*it);
    if (it == queue.begin()) {
      queue.pop_front();
    } else {
      queue.erase(it);
    }
    if (waiting_for_room_ > 0) room_.notify_all();
    return true;
  }
  return false;
}

std::string Inbox::describe(int source, int64_t tag) {
  const std::deque<Message>& queue = queues_[source];
  if (queue.empty()) return "no message came";
  std::string tags;
  size_t shown = 0;
  for (const Message& message : queue) {
    if (shown++ == 8) {
      tags += ", ...";
      break;
    }
    tags += (shown > 1 ? ", " : "") + std::to_string(message.tag);
  }
  return "no message with tag " + std::to_string(tag) + " came, but " + std::to_string(queue.size()) +
         " with other tags (" + tags + ")";
}

Message Inbox::take(int source, uint8_t space, int64_t tag, const Wait& wait, const std::atomic<bool>* enough) {
  Message message;
  const auto over = [&] { return (enough != nullptr && *enough) || pop(source, space, tag, message); };
  uint64_t seen = arrivals_.load(std::memory_order_acquire);
  std::unique_lock<std::mutex> lock(mutex_);
  if (over()) return message;
  while (spin_ && lost_[source].empty()) {
    lock.unlock();
    const bool news = spin_until(wait, [&] { return arrivals_.load(std::memory_order_acquire) != seen; });
    seen = arrivals_.load(std::memory_order_acquire);
    lock.lock();
    if (over()) return message;
    if (!news) break;
  }
  const BlockedHere blocked(wait.on_javascript_thread());
  struct Count {
    int& value;
    explicit Count(int& counter) : value(counter) { ++value; }
    ~Count() { --value; }
  } count(blocked_);
  for (;;) {
    if (over()) return message;
    if (!lost_[source].empty()) throw CodedError("PEER_LOST", lost_[source]);
    const Stop stop = wait.check();
    if (stop != Stop::none) wait.fail(stop, describe(source, tag));
    arrived_.wait_until(lock, wait.slice());
  }
}

void Inbox::nudge() {
  std::lock_guard<std::mutex> lock(mutex_);
  arrivals_.fetch_add(1, std::memory_order_release);
  arrived_.notify_all();
}

bool Inbox::has(int source, uint8_t space, int64_t tag) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const Message& message : queues_[source]) {
    if (message.space == space && (tag == kAnyTag || message.tag == tag)) return true;
  }
  return false;
}

size_t Inbox::pending() {
  std::lock_guard<std::mutex> lock(mutex_);
  size_t count = 0;
  for (const auto& queue : queues_) count += queue.size();
  return count;
}

void Inbox::lose(int source, const std::string& why) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (lost_[source].empty()) lost_[source] = why;
  arrivals_.fetch_add(1, std::memory_order_release);
  arrived_.notify_all();
}

std::string Inbox::lost(int source) {
  std::lock_guard<std::mutex> lock(mutex_);
  return lost_[source];
}

void Inbox::close(const std::string& why) {
  std::vector<std::deque<Message>> doomed(queues_.size());
  std::lock_guard<std::mutex> lock(mutex_);
  if (closed_.empty()) closed_ = why;
  doomed.swap(queues_);
  room_.notify_all();
}

// --- handles --------------------------------------------------------------------------------------------------------------

std::shared_ptr<Endpoint> endpoint_of(Env& env, int32_t handle) {
  endpoint_at(env, handle);
  return *table_of(env).find(handle);
}

int32_t add_endpoint(Env& env, std::shared_ptr<Endpoint> endpoint) {
  Endpoints& all = endpoints_of(env);
  all.open.erase(std::remove_if(all.open.begin(), all.open.end(), [](const auto& item) { return item.expired(); }),
      all.open.end());
  all.open.push_back(endpoint);
  return all.table.add(std::move(endpoint));
}

// --- entry points ---------------------------------------------------------------------------------------------------------

namespace {

// A single tensor without a header comes back as its handle; everything else as [tag, header, ...handles].
napi_value wrap_message(Env& env, Message&& message, bool plain) {
  arrive(message);
  if (plain && message.tensors.size() == 1 && message.header.empty() && message.tensors[0].defined()) {
    return from_int32(env.napi, env.wrap(std::move(message.tensors[0])));
  }
  napi_value array;
  napi_create_array_with_length(env.napi, message.tensors.size() + 2, &array);
  napi_set_element(env.napi, array, 0, from_int64(env.napi, message.tag));
  napi_set_element(env.napi, array, 1, from_string(env.napi, message.header));
  for (size_t i = 0; i < message.tensors.size(); ++i) {
    napi_value item;
    if (message.tensors[i].defined()) {
      item = from_int32(env.napi, env.wrap(std::move(message.tensors[i])));
    } else {
      napi_get_null(env.napi, &item);
    }
    napi_set_element(env.napi, array, static_cast<uint32_t>(i + 2), item);
  }
  return array;
}

}  // namespace

// (endpoint, destination, space, tag, handle | handles | null, header | null, timeoutMs)
PW_ENTRY(endpoint_send, 7) {
  Endpoint& endpoint = endpoint_at(*args.env, args.int32(0));
  const int destination = args.int32(1);
  check_rank(endpoint, destination);
  Message message;
  message.space = static_cast<uint8_t>(args.int32(2));
  message.tag = args.int64(3);
  napi_valuetype type;
  napi_typeof(args.napi, args.values[4], &type);
  if (type == napi_number) {
    message.tensors.push_back(hand_over(args.tensor(4)));
  } else if (type == napi_object) {
    for (const at::Tensor& tensor : args.tensors(4)) message.tensors.push_back(hand_over(tensor));
  }
  if (!args.missing(5)) message.header = args.string(5);
  mark_ready(message);
  if (endpoint.control->aborted) throw CodedError("ABORTED", endpoint.control->reason());
  const Wait wait(args.napi, endpoint.control, args.int64(6));
  endpoint.outlets[destination]->push(std::move(message), &wait);
  return nullptr;
}

// (endpoint, source, space, tag, timeoutMs)
PW_ENTRY(endpoint_receive, 5) {
  Endpoint& endpoint = endpoint_at(*args.env, args.int32(0));
  const int source = args.int32(1);
  check_rank(endpoint, source);
  const int64_t tag = args.int64(3);
  if (endpoint.open_source) endpoint.open_source(source);
  const Wait wait(args.napi, endpoint.control, args.int64(4));
  return wrap_message(
      *args.env, endpoint.inbox->take(source, static_cast<uint8_t>(args.int32(2)), tag, wait), tag != kAnyTag);
}

// The same, as a promise of [tag, header, ...handles]; the last argument is a key for cancelAsync().
PW_ENTRY(endpoint_receive_async, 6) {
  std::shared_ptr<Endpoint> endpoint = endpoint_of(*args.env, args.int32(0));
  const int source = args.int32(1);
  check_rank(*endpoint, source);
  const uint8_t space = static_cast<uint8_t>(args.int32(2));
  const int64_t tag = args.int64(3), timeout = args.int64(4);
  if (endpoint->open_source) endpoint->open_source(source);
  auto message = std::make_shared<Message>();
  return promise(
      *args.env, args.number(5),
      [=](const StopFlag& stop) {
        const Wait wait(nullptr, endpoint->control, timeout, stop);
        *message = endpoint->inbox->take(source, space, tag, wait);
      },
      [message](Env& env) { return wrap_message(env, std::move(*message), false); });
}

// (endpoint, source, space, tag): is such a message here?
PW_ENTRY(endpoint_has, 4) {
  Endpoint& endpoint = endpoint_at(*args.env, args.int32(0));
  const int source = args.int32(1);
  check_rank(endpoint, source);
  if (endpoint.open_source) endpoint.open_source(source);
  return from_bool(args.napi, endpoint.inbox->has(source, static_cast<uint8_t>(args.int32(2)), args.int64(3)));
}

PW_ENTRY(endpoint_pending, 1) {
  return from_double(args.napi, static_cast<double>(endpoint_at(*args.env, args.int32(0)).inbox->pending()));
}

PW_ENTRY(endpoint_close, 1) {
  std::shared_ptr<Endpoint>* found = table_of(*args.env).find(args.int32(0));
  if (found == nullptr) return nullptr;
  std::shared_ptr<Endpoint> endpoint = *found;
  table_of(*args.env).remove(args.int32(0));
  endpoint->close();
  return nullptr;
}

// (group name, rank or -1, reason): from any thread; how many ranks of this process were reached.
PW_ENTRY(waits_abort, 3) {
  const std::string name = args.string(0), why = args.string(2);
  const int rank = args.int32(1);
  if (rank < 0) abort_hub(name, why);
  return from_int32(args.napi, abort_waits(name, rank, why));
}
PW_ENTRY(waits_cancel, 3) { return from_int32(args.napi, cancel_waits(args.string(0), args.int32(1), args.string(2))); }

PW_ENTRY(async_cancel, 1) {
  cancel_promise(*args.env, args.number(0));
  return nullptr;
}

void init_channel(Env& env, napi_value exports) {
  at_env_end(env, [key = &env] {
    const std::vector<std::weak_ptr<Endpoint>> open = std::move(endpoints_of(*key).open);
    for (const auto& item : open) {
      if (std::shared_ptr<Endpoint> endpoint = item.lock()) endpoint->close();
    }
    by_env.erase(key);
    last_env = nullptr;
  });
  add_exports(env, exports,
      {
          {"endpointSend", endpoint_send},
          {"endpointReceive", endpoint_receive},
          {"endpointReceiveAsync", endpoint_receive_async},
          {"endpointHas", endpoint_has},
          {"endpointPending", endpoint_pending},
          {"endpointClose", endpoint_close},
          {"abortWaits", waits_abort},
          {"cancelWaits", waits_cancel},
          {"cancelAsync", async_cancel},
      });
  init_thread_group(env, exports);
}

}  // namespace pw
