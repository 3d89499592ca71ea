// Tensors that no scope owns: freed when their JavaScript objects are gone. A finalization registry would not do: its
// callbacks wait for the end of a synchronous loop. A weak reference of Node-API is empty right after a collection, so
// TypeScript forces one where memory has grown much, and asks here what it freed.
#include "core/core.h"

#include <algorithm>
#include <cstdlib>

namespace pw {
namespace {

constexpr int64_t kLeastGrowth = 64 << 20;
constexpr size_t kLeastCount = 1 << 16, kChunk = 256;

int64_t bytes_in_use(const Env& env) { return thread_bytes() + env.tracker.device_bytes; }

bool is_pressed(const Env& env) {
  return bytes_in_use(env) > env.tracker.byte_limit || env.tracker.count > env.tracker.count_limit;
}

void forget_entry(Env& env, Tracker::Entry& entry) {
  napi_delete_reference(env.napi, entry.object);
  env.tracker.device_bytes -= entry.device_bytes;
  --env.tracker.count;
  entry = Tracker::Entry();
}

Tracker::Entry* find_entry(Env& env, int32_t handle) {
  const size_t slot = static_cast<uint32_t>(handle) & HandleTable<at::Tensor>::kSlotMask;
  if (slot >= env.tracker.entries.size()) return nullptr;
  Tracker::Entry& entry = env.tracker.entries[slot];
  return entry.object != nullptr && entry.handle == handle ? &entry : nullptr;
}

}  // namespace

// (object, handle): the tensor is freed once the object is gone. True: memory has grown much, a collection is due.
PW_ENTRY(track, 2) {
  Env& env = *args.env;
  const int32_t handle = args.int32(1);
  const at::Tensor& tensor = env.tensor(handle);
  const size_t slot = static_cast<uint32_t>(handle) & HandleTable<at::Tensor>::kSlotMask;
  if (slot >= env.tracker.entries.size())
    env.tracker.entries.resize(std::max(slot + 1, env.tracker.entries.size() * 2));
  Tracker::Entry& entry = env.tracker.entries[slot];
  if (entry.object != nullptr) forget_entry(env, entry);  // its tensor was released in another way
  check(args.napi, napi_create_reference(args.napi, args.values[0], 0, &entry.object), "an object");
  entry.handle = handle;
  entry.device_bytes = tensor.is_cpu() || tensor.is_meta() || !tensor.has_storage()
                           ? 0
                           : static_cast<int64_t>(tensor.storage().nbytes());
  env.tracker.device_bytes += entry.device_bytes;
  ++env.tracker.count;
  return from_bool(args.napi, is_pressed(env));
}

// (handle): somebody else frees the tensor from now on.
PW_ENTRY(untrack, 1) {
  if (Tracker::Entry* entry = find_entry(*args.env, args.int32(0))) forget_entry(*args.env, *entry);
  return nullptr;
}

// (handle): frees a tracked tensor now.
PW_ENTRY(release_tracked, 1) {
  const int32_t handle = args.int32(0);
  if (Tracker::Entry* entry = find_entry(*args.env, handle)) forget_entry(*args.env, *entry);
  args.env->tensors.remove(handle);
  return nullptr;
}

// Frees the tensors whose objects are gone; returns how many.
PW_ENTRY(sweep_tracked, 1) {
  Env& env = *args.env;
  size_t freed = 0;
  const size_t slots = env.tracker.entries.size();
  for (size_t start = 0; start < slots; start += kChunk) {
    napi_handle_scope scope;
    napi_open_handle_scope(args.napi, &scope);
    for (size_t slot = start; slot < std::min(start + kChunk, env.tracker.entries.size()); ++slot) {
      Tracker::Entry& entry = env.tracker.entries[slot];
      if (entry.object == nullptr) continue;
      napi_value object = nullptr;
      napi_get_reference_value(args.napi, entry.object, &object);
      if (object != nullptr) continue;
      const int32_t handle = entry.handle;
      forget_entry(env, entry);
      env.tensors.remove(handle);
      ++freed;
    }
    napi_close_handle_scope(args.napi, scope);
  }
  return from_double(args.napi, static_cast<double>(freed));
}

// Bytes in use by this thread: CPU memory, and tracked tensors on other devices.
PW_ENTRY(tracked_bytes, 1) { return from_double(args.napi, static_cast<double>(bytes_in_use(*args.env))); }

PW_ENTRY(is_memory_pressed, 1) { return from_bool(args.napi, is_pressed(*args.env)); }

// What is there now stays: the next collection is due after half as much again, and 64 MB at least.
PW_ENTRY(settle_tracked, 1) {
  Tracker& tracker = args.env->tracker;
  const int64_t bytes = std::max<int64_t>(0, bytes_in_use(*args.env));
  tracker.byte_limit = bytes + std::max(kLeastGrowth, bytes / 2);
  tracker.count_limit = tracker.count + std::max(kLeastCount, tracker.count / 2);
  return nullptr;
}

void init_tracker(Env& env, napi_value exports) {
  add_exports(env, exports,
      {
          {"track", track},
          {"untrack", untrack},
          {"releaseTracked", release_tracked},
          {"sweepTracked", sweep_tracked},
          {"trackedBytes", tracked_bytes},
          {"isMemoryPressed", is_memory_pressed},
          {"settleTracked", settle_tracked},
      });
}

}  // namespace pw
