// Ordered, tagged, typed messages between ranks. An endpoint has one inbox with a queue per source, and one outlet per
// destination: straight into the inbox of another thread (same memory, no copy), or over a connection (gloo-channel.cc).
#pragma once

#include "distributed/wait.h"

#include <c10/util/SmallVector.h>

#include <deque>
#include <thread>

namespace pw {

struct ReadyMarks;  // device-order.h

struct Message {
  int64_t tag = 0;
  uint8_t space = 0;  // messages of different purposes never meet
  c10::SmallVector<at::Tensor, 2> tensors;
  std::string header;
  std::shared_ptr<ReadyMarks> marks;  // of tensors on a GPU: when they may be read
  std::vector<uint32_t> staged;       // tensors that came from a GPU through the host's memory, and belong on one
};
constexpr int64_t kAnyTag = -1;
enum Space : uint8_t { kChannel = 0, kPointToPoint = 1, kObject = 2 };

class Inbox {
 public:
  // `bound` is in messages per source, 0 for none; `spin`: senders are threads of this process.
  Inbox(int sources, size_t bound, bool spin) : bound_(bound), spin_(spin), queues_(sources), lost_(sources) {}

  void push(int source, Message&& message, const Wait* wait);  // waits only where there is a bound
  // The first message that fits. With `enough`, returns an empty one as soon as that is set (see nudge).
  Message take(int source, uint8_t space, int64_t tag, const Wait& wait, const std::atomic<bool>* enough = nullptr);
  void nudge();  // makes waiters look again
  bool has(int source, uint8_t space, int64_t tag);
  size_t pending();
  void lose(int source, const std::string& why);  // nothing more will come from there
  std::string lost(int source);                   // why nothing more comes; empty while something may
  void close(const std::string& why);             // the receiver is gone: drops what is here, refuses more

 private:
  bool pop(int source, uint8_t space, int64_t tag, Message& out);
  std::string describe(int source, int64_t tag);

  const size_t bound_;
  const bool spin_;
  std::mutex mutex_;
  std::condition_variable arrived_, room_;
  std::vector<std::deque<Message>> queues_;
  std::vector<std::string> lost_;
  std::string closed_;
  std::atomic<uint64_t> arrivals_{0};
  int blocked_ = 0, waiting_for_room_ = 0;
};

// The way to one destination.
struct Outlet {
  virtual ~Outlet() = default;
  virtual void push(Message&& message, const Wait* wait) = 0;
  virtual void flush(const Wait&) {}  // returns when everything pushed has left
};

// One rank's end of the channels of a group.
struct Endpoint {
  virtual ~Endpoint() = default;
  std::shared_ptr<Control> control;
  int rank = 0, size = 1;
  std::shared_ptr<Inbox> inbox;
  std::vector<std::unique_ptr<Outlet>> outlets;
  std::function<void(int)> open_source;  // starts receiving from a source; may be empty
  // Tells whoever was sent something that nothing more will come, and returns when they have it all, or when the wait is over.
  // May be empty: messages between threads are there at once.
  std::function<void(const std::string& why, const Wait& wait)> farewell;
  std::function<void()> close;  // leaves the group; safe to call twice
};

// JavaScript threads of this process that are in a thread group, and how many of them are blocked: who may spin.
struct Crowd {
  std::atomic<int> ranks{0}, blocked{0};
  bool core_is_free() const;
};
Crowd& crowd();

// This thread is about to sleep.
struct BlockedHere {
  explicit BlockedHere(bool rank) : counted(rank) {
    if (counted) ++crowd().blocked;
  }
  ~BlockedHere() {
    if (counted) --crowd().blocked;
  }
  BlockedHere(const BlockedHere&) = delete;
  const bool counted;
};

inline void relax_core() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

// Polls for a moment while a core is free. False: sleep instead. After two microseconds it offers the core at every turn:
// the system may have put the thread that is waited for on the same one.
template <typename Ready>
bool spin_until(const Wait& wait, Ready&& ready) {
  if (!wait.on_javascript_thread() || !crowd().core_is_free()) return false;
  const Clock::time_point start = Clock::now();
  for (;;) {
    for (int i = 0; i < 32; ++i) {
      if (ready()) return true;
      relax_core();
    }
    const Clock::duration spent = Clock::now() - start;
    if (spent > std::chrono::microseconds(300) || !crowd().core_is_free()) return false;
    if (spent > std::chrono::microseconds(2)) std::this_thread::yield();
  }
}

// The tensor for another thread: same memory, own autograd data, shared version counter (a change in place by one side is
// noticed by a backward of the other). Memory owned by JavaScript is copied: it would die with its thread.
at::Tensor hand_over(const at::Tensor& tensor);
// Whether JavaScript or a file owns the memory (tensor.cc): it ends with its thread.
bool borrows_memory(const at::Tensor& tensor);

// The endpoint of `handle` in this thread, and a new handle for one.
std::shared_ptr<Endpoint> endpoint_of(Env& env, int32_t handle);
int32_t add_endpoint(Env& env, std::shared_ptr<Endpoint> endpoint);

void abort_hub(const std::string& name, const std::string& why);  // also for ranks that have yet to join
void init_thread_group(Env& env, napi_value exports);

}  // namespace pw
