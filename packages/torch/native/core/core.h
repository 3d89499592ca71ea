// What every native file shares: the environment of one JavaScript thread, its handle tables, and the way
// C++ errors become JavaScript errors. A file here unwraps, calls and wraps; policy lives in TypeScript.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/InferenceMode.h>
#include <node_api.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

namespace pw {

// A JavaScript exception is already pending; unwind to the entry point and leave it alone.
struct PendingException : std::exception {
  const char* what() const noexcept override { return "a JavaScript exception is pending"; }
};

// An error with a stable code for TypeScript.
struct CodedError : std::runtime_error {
  CodedError(const char* error_code, const std::string& message) : std::runtime_error(message), code(error_code) {}
  const char* code;
};

// Slots addressed by small positive integers: low 22 bits are the slot, the next 9 its generation. A stale or made-up
// handle is an error, never a crash. A slot never moves: an operator may hold a reference to a tensor while a TypeScript
// function that it calls (a hook on saved tensors) makes new ones; while one runs, removed values stay where they are.
template <typename T>
class HandleTable {
 public:
  static constexpr uint32_t kSlotBits = 22, kSlotMask = (1u << kSlotBits) - 1, kGenerationMask = 0x1ff;

  int32_t add(T&& value) {
    uint32_t slot;
    if (free_ != kNone) {
      slot = free_;
      free_ = at(slot).next;
    } else {
      slot = count_;
      if (slot > kSlotMask)
        throw CodedError(
            "TOO_MANY_HANDLES", "4,194,304 tensors are alive in this thread: dispose of some, or use scope()");
      if ((slot & kBlockMask) == 0) blocks_.push_back(std::make_unique<Slot[]>(kBlockMask + 1));
      ++count_;
    }
    Slot& entry = at(slot);
    entry.value = std::move(value);
    entry.used = true;
    ++live_;
    return static_cast<int32_t>(slot | (entry.generation << kSlotBits));
  }

  T* find(int32_t handle) noexcept {
    const uint32_t bits = static_cast<uint32_t>(handle), slot = bits & kSlotMask;
    if (handle <= 0 || slot >= count_) return nullptr;
    Slot& entry = at(slot);
    return entry.used && entry.generation == (bits >> kSlotBits) ? &entry.value : nullptr;
  }

  bool remove(int32_t handle) {
    if (find(handle) == nullptr) return false;
    const uint32_t slot = static_cast<uint32_t>(handle) & kSlotMask;
    Slot& entry = at(slot);
    entry.used = false;
    entry.generation = entry.generation == kGenerationMask ? 1 : entry.generation + 1;
    --live_;
    if (held_) {
      waiting_.push_back(slot);
    } else {
      clear(slot);
    }
    return true;
  }

  // From hold to flush the values of removed handles stay in place.
  void hold() noexcept { held_ = true; }
  void flush() {
    held_ = false;
    while (!waiting_.empty()) {
      const uint32_t slot = waiting_.back();
      waiting_.pop_back();
      clear(slot);
    }
  }

  size_t live() const noexcept { return live_; }

 private:
  static constexpr uint32_t kNone = 0xffffffff, kBlockBits = 10, kBlockMask = (1u << kBlockBits) - 1;
  struct Slot {
    T value{};
    uint32_t generation = 1;
    uint32_t next = kNone;
    bool used = false;
  };
  Slot& at(uint32_t slot) noexcept { return blocks_[slot >> kBlockBits][slot & kBlockMask]; }
  void clear(uint32_t slot) {
    Slot& entry = at(slot);
    T doomed = std::move(entry.value);  // its destructor may come back to this table
    entry.value = T();
    entry.next = free_;
    free_ = slot;
  }
  std::vector<std::unique_ptr<Slot[]>> blocks_;
  std::vector<uint32_t> waiting_;
  uint32_t count_ = 0;
  uint32_t free_ = kNone;
  bool held_ = false;
  size_t live_ = 0;
};

// The part of an environment that other threads may touch: JavaScript references and callback numbers to drop later.
struct Graveyard {
  std::mutex mutex;
  bool open = true;
  std::vector<napi_ref> references;
  std::vector<double> callbacks;
};

// A value that a TypeScript function threw, with the engine between it and the entry point; comes out as the same object.
struct Thrown;
struct CallbackError : std::exception {
  explicit CallbackError(std::shared_ptr<Thrown> value) : thrown(std::move(value)) {}
  const char* what() const noexcept override;
  std::shared_ptr<Thrown> thrown;
};

using NodePtr =
    decltype(std::declval<const at::Tensor&>().grad_fn());  // owning pointer; its kind changed between versions
// Deduced from a const reference in some versions.
using OwnedNode = std::decay_t<NodePtr>;

class Bridge;

// Tensors that no scope owns, with weak references to their JavaScript objects: see tensor/tracker.cc.
struct Tracker {
  struct Entry {
    napi_ref object = nullptr;
    int32_t handle = 0;
    int64_t device_bytes = 0;
  };
  std::vector<Entry> entries;  // by slot of the handle
  size_t count = 0;
  int64_t device_bytes = 0;  // of tensors on other devices than the CPU
  int64_t byte_limit = 64 << 20;
  size_t count_limit = 1 << 16;
};

// One per JavaScript thread that loaded the addon.
struct Env {
  napi_env napi = nullptr;
  HandleTable<at::Tensor> tensors;
  HandleTable<at::Generator> generators;
  HandleTable<OwnedNode> nodes;
  std::vector<c10::IValue> stack;
  std::vector<std::unique_ptr<c10::InferenceMode>> inference;
  std::shared_ptr<Graveyard> graveyard = std::make_shared<Graveyard>();
  napi_ref callback_runner = nullptr;  // (id, extra, handles) => handles: runs a TypeScript function during backward
  int packing = 0;                     // how many TypeScript functions run inside an operator
  std::shared_ptr<Bridge> bridge;      // to this thread's TypeScript functions, from any thread: see callback.h
  napi_ref error_class = nullptr;      // TorchError, once TypeScript has told us
  double* meta = nullptr;              // shared with TypeScript: see tensor.cc
  napi_ref meta_ref = nullptr;
  Tracker tracker;

  at::Tensor& tensor(int32_t handle);
  int32_t wrap(at::Tensor&& tensor) { return tensors.add(std::move(tensor)); }
  int32_t wrap(const at::Tensor& tensor) { return tensors.add(at::Tensor(tensor)); }
};

Env* current_env();  // of the calling thread, or nullptr

// --- values -------------------------------------------------------------------------------------------------------

inline void check(napi_env env, napi_status status, const char* what) {
  if (status == napi_ok) return;
  bool pending = false;
  napi_is_exception_pending(env, &pending);
  if (pending) throw PendingException();
  throw CodedError("BAD_ARGUMENT", std::string("expected ") + what);
}

// The arguments of a call, at most N.
template <size_t N>
struct Args {
  Args(napi_env napi_environment, napi_callback_info info) : napi(napi_environment) {
    void* data = nullptr;
    napi_get_cb_info(napi, info, &count, values, nullptr, &data);
    env = static_cast<Env*>(data);
  }
  napi_env napi;
  Env* env = nullptr;
  size_t count = N;
  napi_value values[N];

  int32_t int32(size_t i) const {
    int32_t v = 0;
    check(napi, napi_get_value_int32(napi, values[i], &v), "a number");
    return v;
  }
  int64_t int64(size_t i) const;
  double number(size_t i) const {
    double v = 0;
    check(napi, napi_get_value_double(napi, values[i], &v), "a number");
    return v;
  }
  bool boolean(size_t i) const {
    bool v = false;
    check(napi, napi_get_value_bool(napi, values[i], &v), "a boolean");
    return v;
  }
  std::string string(size_t i) const;
  bool missing(size_t i) const;  // undefined or null
  at::Tensor& tensor(size_t i) const { return env->tensor(int32(i)); }
  at::Tensor optional_tensor(size_t i) const { return missing(i) ? at::Tensor() : tensor(i); }
  std::vector<at::Tensor> tensors(size_t i) const;  // holes (null) become undefined tensors
  std::vector<int64_t> ints(size_t i) const;
};

std::string to_string(napi_env env, napi_value value);
bool is_missing(napi_env env, napi_value value);
int64_t to_int64(napi_env env, napi_value value);    // numbers must be whole; BigInt in full
napi_value from_int64(napi_env env, int64_t value);  // a BigInt beyond 2^53
napi_value from_string(napi_env env, const std::string& value);
napi_value undefined(napi_env env);
inline napi_value from_int32(napi_env env, int32_t value) {
  napi_value v;
  napi_create_int32(env, value, &v);
  return v;
}
inline napi_value from_double(napi_env env, double value) {
  napi_value v;
  napi_create_double(env, value, &v);
  return v;
}
inline napi_value from_bool(napi_env env, bool value) {
  napi_value v;
  napi_get_boolean(env, value, &v);
  return v;
}
napi_value from_tensors(Env& env, const std::vector<at::Tensor>& tensors);  // array of handles, null for undefined
std::vector<napi_value> elements(napi_env env, napi_value array);

// --- entry points ---------------------------------------------------------------------------------------------------

// Call inside catch (...): turns the C++ exception into a JavaScript one. `where` is put before the message.
void throw_to_js(napi_env env, const char* where = nullptr) noexcept;

// Runs an entry point; nothing thrown in C++ passes through Node.
template <typename F>
napi_value guarded(napi_env env, F&& body) noexcept {
  try {
    return body();
  } catch (...) {
    throw_to_js(env);
    return nullptr;
  }
}

#define PW_ENTRY(name, N)                                          \
  static napi_value name##_body(Args<N>& args);                    \
  static napi_value name(napi_env napi, napi_callback_info info) { \
    return guarded(napi, [&] {                                     \
      Args<N> args(napi, info);                                    \
      return name##_body(args);                                    \
    });                                                            \
  }                                                                \
  static napi_value name##_body([[maybe_unused]] Args<N>& args)

struct Export {
  const char* name;
  napi_callback function;
};
void add_exports(Env& env, napi_value target, std::initializer_list<Export> exports);

// Drops what other threads buried; called at entry points that are not hot.
void sweep(Env& env);

// Throws the JavaScript value of a CallbackError in its own environment; false in another.
bool rethrow_callback_error(napi_env env, const CallbackError& error) noexcept;

// --- the parts, each in its file --------------------------------------------------------------------------------------

const char* mkl_dispatch();  // in core/mkl-dispatch.cc
void init_profiler(Env& env, napi_value exports);
void init_tensor(Env& env, napi_value exports);
void init_storage(Env& env, napi_value exports);
void init_tracker(Env& env, napi_value exports);
void init_ops(Env& env, napi_value exports);
void init_hot_ops(Env& env, napi_value exports);
void init_autograd(Env& env, napi_value exports);
void init_split_backward(Env& env, napi_value exports);
void init_put_off(Env& env, napi_value exports);
void init_callbacks(Env& env, napi_value exports);
void close_callbacks(Env& env);
void init_random(Env& env, napi_value exports);
void init_named_random(Env& env, napi_value exports);
void init_lend(Env& env, napi_value exports);
void init_optimizer(Env& env, napi_value exports);
void init_optimizer_steps(Env& env, napi_value exports);
void init_system(Env& env, napi_value exports);
void init_channel(Env& env, napi_value exports) __attribute__((weak));
void init_distributed(Env& env, napi_value exports) __attribute__((weak));

// Bytes this thread took from and gave back to the CPU allocator since it started (allocator.cc).
void install_allocator();
int64_t thread_bytes();

void install_kernels();  // in the place of libtorch's (kernels/gelu.cc)
namespace meta {
void register_kernels();  // once per process; what libtorch has is left alone (kernels/meta/kernels.cc)
}

}  // namespace pw
