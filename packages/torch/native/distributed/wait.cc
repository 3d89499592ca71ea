#include "distributed/wait.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <thread>

namespace pw {
namespace {

constexpr auto kSlice = std::chrono::milliseconds(10);

// All controls of the process. Never destroyed: helper threads may outlive main().
struct Controls {
  std::mutex mutex;
  std::unordered_multimap<std::string, Control*> by_name;
};
Controls& controls() {
  static Controls* all = new Controls();
  return *all;
}

// The group itself and the groups made from it, whose names begin with its own and a slash.
bool is_within(const std::string& name, const std::string& group) {
  return name == group ||
         (name.size() > group.size() && name[group.size()] == '/' && name.compare(0, group.size(), group) == 0);
}

template <typename F>
int each_control(const std::string& group, int rank, F&& body) {
  Controls& all = controls();
  std::lock_guard<std::mutex> lock(all.mutex);
  int reached = 0;
  for (const auto& [name, control] : all.by_name) {
    if (!is_within(name, group) || (rank >= 0 && control->rank != rank)) continue;
    body(*control);
    ++reached;
  }
  return reached;
}

// True where Node has asked this thread to end (worker.terminate(), process.exit()): any call that could run JavaScript
// is then refused.
bool thread_is_ending(napi_env napi) {
  napi_handle_scope scope;
  if (napi_open_handle_scope(napi, &scope) != napi_ok) return true;
  napi_value value;
  bool same = false;
  napi_get_undefined(napi, &value);
  const napi_status status = napi_strict_equals(napi, value, value, &same);
  napi_close_handle_scope(napi, scope);
  return status != napi_ok;
}

}  // namespace

Control::Control(std::string group, int group_rank) : name(std::move(group)), rank(group_rank) {
  Controls& all = controls();
  std::lock_guard<std::mutex> lock(all.mutex);
  all.by_name.emplace(name, this);
}

Control::~Control() {
  Controls& all = controls();
  std::lock_guard<std::mutex> lock(all.mutex);
  const auto range = all.by_name.equal_range(name);
  for (auto it = range.first; it != range.second; ++it) {
    if (it->second != this) continue;
    all.by_name.erase(it);
    break;
  }
}

std::string Control::reason() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return reason_;
}

void Control::cancel(const std::string& why) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!aborted) reason_ = why;
  }
  ++cancels;
}

void Control::abort(const std::string& why) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (aborted) return;
  reason_ = why;
  aborted = true;
}

int abort_waits(const std::string& name, int rank, const std::string& why) {
  return each_control(name, rank, [&](Control& control) { control.abort(why); });
}

int cancel_waits(const std::string& name, int rank, const std::string& why) {
  return each_control(name, rank, [&](Control& control) { control.cancel(why); });
}

size_t live_controls() {
  Controls& all = controls();
  std::lock_guard<std::mutex> lock(all.mutex);
  return all.by_name.size();
}

// --- generations --------------------------------------------------------------------------------------------------------

namespace {
std::atomic<const int32_t*> next_generation{nullptr};
std::atomic<int32_t> this_generation{0};
}  // namespace

Generation::Generation() : number_(this_generation.load(std::memory_order_relaxed)) {}

bool Generation::is_over() const {
  const int32_t* word = next_generation.load(std::memory_order_relaxed);
  return word != nullptr && __atomic_load_n(word, __ATOMIC_RELAXED) > number_;
}

void watch_generations(const std::string& file, size_t word) {
  const int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC);
  const size_t bytes = (word + 1) * sizeof(int32_t);
  struct stat status {};
  const bool fits = fd >= 0 && fstat(fd, &status) == 0 && static_cast<size_t>(status.st_size) >= bytes;
  // Mapped as long as the process lives: helper threads look at it.
  void* memory = fits ? mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
  if (fd >= 0) close(fd);
  if (memory == MAP_FAILED) throw CodedError("BAD_ARGUMENT", "the file " + file + " cannot be mapped");
  next_generation = static_cast<const int32_t*>(memory) + word;
}

void set_generation(int32_t number) { this_generation = number; }

// --- Wait -------------------------------------------------------------------------------------------------------------

Wait::Wait(napi_env napi, std::shared_ptr<Control> control, int64_t timeout_ms, StopFlag stop)
    : napi_(napi), control_(std::move(control)), stop_(std::move(stop)), start_(Clock::now()) {
  constexpr int64_t kLongest = int64_t{1000} * 3600 * 24 * 365;
  deadline_ = start_ + std::chrono::milliseconds(std::clamp<int64_t>(timeout_ms, 0, kLongest));
  ask_node_ = start_ + kSlice;
  if (control_) cancels_ = control_->cancels;
}

Stop Wait::check() const {
  if (stop_ && stop_->load(std::memory_order_relaxed)) return Stop::terminated;
  if (control_) {
    if (control_->aborted.load(std::memory_order_relaxed)) return Stop::aborted;
    if (control_->cancels.load(std::memory_order_relaxed) != cancels_) return Stop::cancelled;
  }
  if (generation_.is_over()) return Stop::aborted;
  const Clock::time_point now = Clock::now();
  if (napi_ != nullptr && now >= ask_node_) {
    ask_node_ = now + kSlice;
    if (thread_is_ending(napi_)) return Stop::terminated;
  }
  return now >= deadline_ ? Stop::timeout : Stop::none;
}

Clock::time_point Wait::slice() const { return std::min(deadline_, Clock::now() + kSlice); }

int64_t Wait::waited_ms() const {
  return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start_).count();
}

void Wait::fail(Stop stop, const std::string& detail) const {
  const std::string after = " (waited " + std::to_string(waited_ms()) + " ms)";
  switch (stop) {
    case Stop::timeout:
      throw CodedError("TIMED_OUT", detail + after);
    case Stop::cancelled:
      throw CodedError("CANCELLED", control_->reason() + after);
    case Stop::aborted:
      throw CodedError("ABORTED",
          (control_ && control_->aborted ? control_->reason() : "a rank was lost, and all ranks connect anew") + after);
    default:
      throw CodedError("TERMINATED", "the thread is ending" + after);
  }
}

// --- helper threads ---------------------------------------------------------------------------------------------------

namespace {

class Pool {
 public:
  void run(std::function<void()> job) {
    std::lock_guard<std::mutex> lock(mutex_);
    jobs_.push_back(std::move(job));
    if (idle_ >= jobs_.size()) {
      work_.notify_one();
    } else {
      std::thread([this] { loop(); }).detach();
    }
  }

 private:
  void loop() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      ++idle_;
      const bool found = work_.wait_for(lock, std::chrono::seconds(5), [&] { return !jobs_.empty(); });
      --idle_;
      if (!found) return;
      std::function<void()> job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      job();
      job = nullptr;
      lock.lock();
    }
  }
  std::mutex mutex_;
  std::condition_variable work_;
  std::deque<std::function<void()>> jobs_;
  size_t idle_ = 0;
};

class Interrupts {
 public:
  uint64_t add(std::function<void()> poke) {
    std::lock_guard<std::mutex> lock(mutex_);
    const uint64_t id = ++last_;
    pokes_.emplace(id, Poke{std::move(poke), Clock::now() + kSlice});
    if (!running_) {
      running_ = true;
      std::thread([this] { loop(); }).detach();
    } else if (asleep_) {
      wake_.notify_one();
    }
    return id;
  }
  void remove(uint64_t id) {
    std::lock_guard<std::mutex> lock(mutex_);
    pokes_.erase(id);
  }

 private:
  struct Poke {
    std::function<void()> call;
    Clock::time_point due;
  };
  void loop() {
    std::unique_lock<std::mutex> lock(mutex_);
    Clock::time_point last_busy = Clock::now();
    for (;;) {
      const Clock::time_point now = Clock::now();
      if (!pokes_.empty()) last_busy = now;
      for (auto& [id, poke] : pokes_) {
        if (poke.due > now) continue;
        poke.due = now + kSlice;
        poke.call();
      }
      if (now - last_busy > std::chrono::seconds(1)) {
        asleep_ = true;
        wake_.wait(lock, [&] { return !pokes_.empty(); });
        asleep_ = false;
        continue;
      }
      wake_.wait_until(lock, now + kSlice);
    }
  }
  std::mutex mutex_;
  std::condition_variable wake_;
  std::map<uint64_t, Poke> pokes_;
  uint64_t last_ = 0;
  bool running_ = false, asleep_ = false;
};

Interrupts& interrupts() {
  static Interrupts* all = new Interrupts();
  return *all;
}

}  // namespace

void run_on_pool(std::function<void()> job) {
  static Pool* pool = new Pool();
  pool->run(std::move(job));
}

Interrupter::Interrupter(std::function<void()> poke) : id_(interrupts().add(std::move(poke))) {}
Interrupter::~Interrupter() { interrupts().remove(id_); }

// --- promises -----------------------------------------------------------------------------------------------------------

namespace {

struct Settlement {
  Env* env;
  napi_deferred deferred;
  std::function<napi_value(Env&)> wrap;
  std::exception_ptr error;
};

// Carries results from helper threads to one JavaScript thread.
struct Courier {
  std::mutex mutex;
  bool open = true;
  napi_threadsafe_function function = nullptr;
  std::unordered_map<StopFlag, double> flags;  // with the keys to find them by
  int pending = 0;  // JavaScript thread only: keeps the event loop alive while promises are open

  void deliver(std::unique_ptr<Settlement> settlement, const StopFlag& flag) {
    std::lock_guard<std::mutex> lock(mutex);
    flags.erase(flag);
    if (!open) return;
    Settlement* raw = settlement.release();
    if (napi_call_threadsafe_function(function, raw, napi_tsfn_nonblocking) != napi_ok) delete raw;
  }
  void close() {
    std::lock_guard<std::mutex> lock(mutex);
    open = false;
    for (const auto& [flag, key] : flags) *flag = true;
  }
  void cancel(double wanted) {
    std::lock_guard<std::mutex> lock(mutex);
    for (const auto& [flag, key] : flags) {
      if (key == wanted) *flag = true;
    }
  }
};

thread_local std::unordered_map<Env*, std::shared_ptr<Courier>> couriers;

void settle(napi_env napi, napi_value, void* context, void* data) {
  std::unique_ptr<Settlement> settlement(static_cast<Settlement*>(data));
  if (napi == nullptr) return;
  Courier* courier = static_cast<Courier*>(context);
  if (--courier->pending == 0) napi_unref_threadsafe_function(napi, courier->function);
  napi_value value = guarded(napi, [&] {
    if (settlement->error) std::rethrow_exception(settlement->error);
    return settlement->wrap(*settlement->env);
  });
  bool failed = false;
  napi_is_exception_pending(napi, &failed);
  if (failed) {
    napi_value error;
    napi_get_and_clear_last_exception(napi, &error);
    napi_reject_deferred(napi, settlement->deferred, error);
  } else {
    napi_resolve_deferred(napi, settlement->deferred, value != nullptr ? value : undefined(napi));
  }
}

std::shared_ptr<Courier> courier_of(Env& env) {
  std::shared_ptr<Courier>& slot = couriers[&env];
  if (slot) return slot;
  auto courier = std::make_shared<Courier>();
  check(env.napi,
      napi_create_threadsafe_function(env.napi, nullptr, nullptr, from_string(env.napi, "pipewright"), 0, 1, nullptr,
          nullptr, courier.get(), settle, &courier->function),
      "a thread-safe function");
  napi_unref_threadsafe_function(env.napi, courier->function);
  at_env_end(env, [key = &env, courier] {
    courier->close();
    couriers.erase(key);
  });
  slot = courier;
  return courier;
}

}  // namespace

napi_value promise(
    Env& env, double key, std::function<void(const StopFlag&)> work, std::function<napi_value(Env&)> wrap) {
  std::shared_ptr<Courier> courier = courier_of(env);
  auto settlement = std::make_unique<Settlement>();
  napi_value result;
  check(env.napi, napi_create_promise(env.napi, &settlement->deferred, &result), "a promise");
  settlement->env = &env;
  settlement->wrap = std::move(wrap);
  auto flag = std::make_shared<std::atomic<bool>>(false);
  {
    std::lock_guard<std::mutex> lock(courier->mutex);
    courier->flags.emplace(flag, key);
  }
  if (courier->pending++ == 0) napi_ref_threadsafe_function(env.napi, courier->function);
  run_on_pool([courier, flag, work = std::move(work), raw = settlement.release()] {
    std::unique_ptr<Settlement> mine(raw);
    try {
      work(flag);
    } catch (...) {
      mine->error = std::current_exception();
    }
    courier->deliver(std::move(mine), flag);
  });
  return result;
}

void cancel_promise(Env& env, double key) {
  if (key != 0) courier_of(env)->cancel(key);
}

void at_env_end(Env& env, std::function<void()> body) {
  auto* owned = new std::function<void()>(std::move(body));
  napi_add_env_cleanup_hook(
      env.napi,
      [](void* data) {
        std::unique_ptr<std::function<void()>> call(static_cast<std::function<void()>*>(data));
        (*call)();
      },
      owned);
}

}  // namespace pw
