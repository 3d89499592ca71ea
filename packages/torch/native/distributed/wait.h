// Waiting: every blocking call of the distributed part has a time limit, can be ended from another thread, and ends
// when Node stops the thread it runs on.
#pragma once

#include "core/core.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <optional>

namespace pw {

using Clock = std::chrono::steady_clock;

enum class Stop : uint8_t { none, timeout, cancelled, aborted, terminated };

// What ends the waits of one rank of one group from outside. Found by the group's name from any thread.
class Control {
 public:
  Control(std::string name, int rank);
  ~Control();
  Control(const Control&) = delete;

  const std::string name;
  const int rank;
  std::atomic<uint64_t> cancels{0};  // ends the waits of the moment
  std::atomic<bool> aborted{false};  // ends all waits from now on

  std::string reason() const;
  void cancel(const std::string& why);
  void abort(const std::string& why);

 private:
  mutable std::mutex mutex_;
  std::string reason_;
};

// Also in the groups made from this one. How many ranks of this process were reached; rank -1 means all of the group.
int abort_waits(const std::string& name, int rank, const std::string& why);
int cancel_waits(const std::string& name, int rank, const std::string& why);

size_t live_controls();  // for leak tests

// Generations of the ranks of a job: whoever starts them again after a loss writes the number of the next generation into memory
// that this process has mapped; all waits that began in an earlier one then end.
class Generation {
 public:
  Generation();  // the one of this moment
  bool is_over() const;

 private:
  int32_t number_;
};
void watch_generations(const std::string& file, size_t word);
void set_generation(int32_t number);

using StopFlag = std::shared_ptr<std::atomic<bool>>;

// One wait. `napi` is null on helper threads, which watch `stop` instead.
class Wait {
 public:
  Wait(napi_env napi, std::shared_ptr<Control> control, int64_t timeout_ms, StopFlag stop = nullptr);

  Stop check() const;               // none: wait one more slice
  Clock::time_point slice() const;  // when to check next
  int64_t waited_ms() const;
  bool on_javascript_thread() const { return napi_ != nullptr; }
  [[noreturn]] void fail(Stop stop, const std::string& detail) const;
  // The usual step of a loop: throws where the wait is over.
  void check_or_throw(const std::string& detail) const {
    const Stop stop = check();
    if (stop != Stop::none) fail(stop, detail);
  }

 private:
  napi_env napi_;
  std::shared_ptr<Control> control_;
  StopFlag stop_;
  Clock::time_point start_, deadline_;
  uint64_t cancels_ = 0;
  Generation generation_;
  mutable Clock::time_point ask_node_;
};

// Helper threads for calls that block and cannot be interrupted, and for promises. They are kept and used again.
void run_on_pool(std::function<void()> job);

// Runs `body` on a helper thread. Returns its result, or throws as soon as the wait is over: the helper then ends on its
// own, and what it made is dropped.
template <typename Body>
auto interruptible(const Wait& wait, const std::string& detail, Body body) -> decltype(body()) {
  using Result = decltype(body());
  struct Shared {
    std::mutex mutex;
    std::condition_variable ready;
    bool done = false;
    std::optional<Result> result;
    std::exception_ptr error;
  };
  auto shared = std::make_shared<Shared>();
  run_on_pool([shared, body = std::move(body)]() mutable {
    std::optional<Result> result;
    std::exception_ptr error;
    try {
      result.emplace(body());
    } catch (...) {
      error = std::current_exception();
    }
    std::lock_guard<std::mutex> lock(shared->mutex);
    shared->result = std::move(result);
    shared->error = error;
    shared->done = true;
    shared->ready.notify_all();
  });
  std::unique_lock<std::mutex> lock(shared->mutex);
  while (!shared->done) {
    shared->ready.wait_until(lock, wait.slice());
    if (!shared->done) wait.check_or_throw(detail);
  }
  if (shared->error) std::rethrow_exception(shared->error);
  return std::move(*shared->result);
}

// Calls `poke` every slice from a helper thread while it lives: for waits inside a library that only a call from another
// thread can interrupt.
class Interrupter {
 public:
  explicit Interrupter(std::function<void()> poke);
  ~Interrupter();
  Interrupter(const Interrupter&) = delete;

 private:
  uint64_t id_;
};

// A promise settled by a helper thread. `work` runs there; `wrap` makes its value on the JavaScript thread. A worker that
// ends, or cancelAsync(key) with a key other than 0, sets the flag given to `work`.
napi_value promise(
    Env& env, double key, std::function<void(const StopFlag&)> work, std::function<napi_value(Env&)> wrap);
void cancel_promise(Env& env, double key);

// Runs `body` when the JavaScript thread of `env` ends, before its handles go.
void at_env_end(Env& env, std::function<void()> body);

}  // namespace pw
