// TypeScript functions that libtorch calls: hooks, custom functions, saved tensors, recomputation. They run on their own
// JavaScript thread. On the CPU the engine runs on that very thread and the call is plain; on CUDA the engine has threads
// of its own, so `run_engine` lets a helper thread drive it while the JavaScript thread serves what is asked of it. The same
// helper runs a backward beside the JavaScript thread (`start`, `finish`): what it asks for waits until `finish`.
#pragma once

#include "core/core.h"

#include <ATen/ThreadLocalState.h>
#include <c10/core/Stream.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <thread>

namespace pw {

// What a thread's code runs under: modes, current device, current streams.
class ThreadPlace {
 public:
  ThreadPlace();  // of the calling thread

  // Puts another thread there for as long as it lives.
  class Guard {
   public:
    explicit Guard(const ThreadPlace& place);
    ~Guard();

   private:
    std::unique_ptr<ThreadPlace> before_;
    at::ThreadLocalStateGuard modes_;
  };

 private:
  void enter_streams() const;
  at::ThreadLocalState modes_;
  int device_ = -1;
  std::vector<c10::Stream> streams_;
};

// The way to one environment's TypeScript functions. Outlives the environment.
class Bridge : public std::enable_shared_from_this<Bridge> {
 public:
  explicit Bridge(Env& env);

  // Runs `body` on the JavaScript thread and waits for it; throws what it throws.
  void call(const std::function<void(Env&)>& body);

  // JavaScript thread: runs `work`, which drives the engine, where callbacks cannot block it.
  void run_engine(const std::function<void()>& work);

  // JavaScript thread: runs `work` on the helper thread, with so many cores for its operators, until `finish`, which throws
  // what it threw. One at a time.
  void start(std::function<void()> work, int cores);
  void finish();
  bool finished();  // whether `finish` would not wait

  void close();  // JavaScript thread, at its end

  std::atomic<int64_t> callbacks{0};  // alive
  std::atomic<bool> forced{false};    // use the helper thread without CUDA too (tests)
  const std::shared_ptr<Graveyard> graveyard;

 private:
  struct Job {
    const std::function<void()>* work;
    ThreadPlace place;
    std::exception_ptr error;
    bool done = false;
    int cores = 0;  // as many as the thread had
    void run() noexcept;
  };
  struct Request {
    const std::function<void(Env&)>* body;
    ThreadPlace place;
    std::exception_ptr error;
    Job* job = nullptr;  // to be run by the thread that waits for this request
    bool done = false;
    std::condition_variable wake;
  };
  bool needs_helper() const;
  void serve(Job& job, std::unique_lock<std::mutex>& lock);
  void help_with(Job& job);
  void settle();
  void help();

  Env* env_;  // JavaScript thread only
  std::mutex mutex_;
  std::condition_variable wake_;         // the JavaScript thread
  std::condition_variable helper_wake_;  // the helper thread
  std::deque<Request*> requests_;
  Request* serving_ = nullptr;  // the request that the JavaScript thread is busy with
  int listening_ = 0;           // how deep the JavaScript thread is in serve()
  Job* helper_job_ = nullptr;
  std::function<void()> beside_work_;
  std::unique_ptr<Job> beside_;  // changed by the JavaScript thread, under the mutex
  bool closed_ = false;
  std::thread helper_;
};

// A TypeScript function, known to TypeScript by a number. Its last owner buries the number, on whatever thread.
class Callback {
 public:
  Callback(Env& env, double id);
  Callback(std::shared_ptr<Bridge> bridge, double id);
  ~Callback();
  Callback(const Callback&) = delete;
  Callback& operator=(const Callback&) = delete;

  // From any thread. An empty list where the function returned nothing.
  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs, double extra = 0) const;
  Bridge& bridge() const { return *bridge_; }
  std::shared_ptr<Bridge> shared_bridge() const { return bridge_; }
  double id() const { return id_; }

 private:
  std::shared_ptr<Bridge> bridge_;
  double id_;
};

// Calls TypeScript's runner; JavaScript thread only.
std::vector<at::Tensor> invoke(Env& env, double id, double extra, const std::vector<at::Tensor>& inputs);

// The engine's runs go through here; afterwards what was buried is swept.
void run_engine(Env& env, const std::function<void()>& work);

void forget_hook(double id);  // a number that was buried (hooks.cc)

// The parts, each in its file.
void init_hooks(Env& env, napi_value exports);
void init_custom_function(Env& env, napi_value exports);
void init_saved_tensors(Env& env, napi_value exports);

// One call of the engine: at its end what checkpoints recomputed for it is forgotten, unless a second half needs it.
struct Frame;
class RecomputeRun {
 public:
  explicit RecomputeRun(bool keep_values);
  ~RecomputeRun();
  static void touch(const std::shared_ptr<Frame>& frame);

 private:
  const bool keep_;
  RecomputeRun* const before_;
  std::vector<std::weak_ptr<Frame>> frames_;
};

}  // namespace pw
