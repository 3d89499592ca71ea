// Ranks that are threads of this process: a hub that all of them find by its name, and a c10d backend over it.
#pragma once

#include "distributed/channel.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <map>

namespace pw {

struct Round;

// What the ranks of one thread group share.
class ThreadHub : public std::enable_shared_from_this<ThreadHub> {
 public:
  ThreadHub(std::string name, int size, size_t bound);

  // By name, made where it is missing; all ranks must agree on the size.
  static std::shared_ptr<ThreadHub> open(const std::string& name, int size, size_t bound);
  static bool forget(const std::string& name);      // the group and what is still queued in it
  static bool forget_all(const std::string& name);  // also the groups made from it

  std::shared_ptr<Endpoint> join(int rank);
  void leave(int rank, const std::string& why);
  void abort(const std::string& why);  // whoever joins from now on is aborted too
  std::string gone(int rank);          // why the rank is no longer there; empty while it may be
  std::shared_ptr<Round> round(uint64_t number);
  void finish_round(uint64_t number);

  const std::string name;
  const int size;

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<Inbox>> inboxes_;
  enum class Seat : uint8_t { empty, taken, left };
  std::vector<Seat> seats_;
  std::vector<std::string> why_;
  int left_ = 0;
  std::string aborted_;
  std::map<uint64_t, std::shared_ptr<Round>> rounds_;
};

// Work whose wait can be interrupted.
struct ThreadWork : c10d::Work {
  using c10d::Work::Work;
  virtual void wait_with(const Wait& wait) = 0;
  virtual bool poll() = 0;  // would wait_with() return at once?
  bool wait(std::chrono::milliseconds timeout) override;
};

// A backend on the hub's rank; collectives in collectives.cc.
c10::intrusive_ptr<c10d::Backend> make_thread_backend(
    std::shared_ptr<ThreadHub> hub, std::shared_ptr<Endpoint> endpoint);

// The hub and the endpoint of a handle made by joinThreads().
std::shared_ptr<ThreadHub> hub_of(const Endpoint& endpoint);

}  // namespace pw
