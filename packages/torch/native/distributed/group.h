// Process groups over any c10d backend, and the operations that are under way in them.
#pragma once

#include "core/pin.h"
#include "distributed/channel.h"
#include "distributed/process-group.h"

namespace pw {

enum class BackendKind : uint8_t { thread, gloo, other };

// One rank of one group.
struct Group {
  ~Group();
  BackendKind kind = BackendKind::other;
  std::shared_ptr<Control> control;
  c10::intrusive_ptr<c10d::Backend> backend;
  std::mutex post;                     // one thread at a time calls into the backend
  std::shared_ptr<Endpoint> endpoint;  // of a thread group at once, of gloo on demand

  int rank() const { return backend->getRank(); }
  int size() const { return backend->getSize(); }
  std::mutex unfinished_mutex;
  std::vector<std::weak_ptr<class Pending>> unfinished;

  void add(const std::shared_ptr<class Pending>& pending);
  void flush(const Wait& wait);  // returns when everything sent has arrived, and the others know that nothing follows
  bool has_unfinished();
  // Ends all waits here. `broken`: also cuts the connections, so that the other ranks notice.
  void shut(const std::string& why, bool broken);
  // The same for everybody, but what was sent arrives before. Waits here end at once, the rest happens on a helper thread.
  static void abandon(const std::shared_ptr<Group>& group, const std::string& why);
  void await_abandoned(const Wait& wait);  // returns when that is done, or the wait is over

 private:
  std::mutex abandon_mutex_;
  std::condition_variable abandon_changed_;
  bool abandoning_ = false, abandoned_ = false;
};

// An operation under way. It keeps its tensors until it is over, also when nobody waits for it.
class Pending : public std::enable_shared_from_this<Pending> {
 public:
  enum class Kind : uint8_t { send, receive, collective };
  Pending(std::shared_ptr<Group> owner, c10::intrusive_ptr<c10d::Work> operation, Kind operation_kind);

  void finish(const Wait& wait);  // returns when it is over; may be called again after a time-out
  bool is_over();                 // where only a wait can tell, begins one on a helper thread
  bool is_plain() const { return how_ == How::plain; }
  void poll(const Wait& wait);  // of a plain one: returns when it is over, without finishing it
  void finish_on_pool();        // for a result that nobody is waiting for

  const std::shared_ptr<Group> group;
  const Kind kind;
  void hold(const std::vector<at::Tensor>& tensors);  // until it is over they are alive and do not move
  std::function<void()> after;                        // runs once, when the operation is over

 private:
  // How the backend lets us wait.
  enum class How : uint8_t { thread, interrupt, signal, plain } how_;
  struct Signal {
    std::mutex mutex;
    std::condition_variable ready;
    bool set = false;
    std::exception_ptr error;
    void give(std::exception_ptr outcome) {
      std::lock_guard<std::mutex> lock(mutex);
      set = true;
      error = std::move(outcome);
      ready.notify_all();
    }
  };
  void wait_for_backend(const Wait& wait);

  c10::intrusive_ptr<c10d::Work> work_;
  std::vector<at::Tensor> held_;
  std::vector<Pin> pins_;
  std::shared_ptr<Signal> signal_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool busy_ = false, over_ = false, watched_ = false;
  std::exception_ptr error_;
};

// What gloo and the stores throw, as an error with a code.
[[noreturn]] void rethrow_coded(std::exception_ptr error);

c10::intrusive_ptr<c10d::Store> store_of(Env& env, int32_t handle);
std::shared_ptr<Group> group_of(Env& env, int32_t handle);
int32_t add_pending(Env& env, std::shared_ptr<Pending> pending);

std::shared_ptr<Endpoint> make_gloo_endpoint(const std::shared_ptr<Group>& group);

void init_store(Env& env, napi_value exports);
void init_group(Env& env, napi_value exports);
void init_collectives(Env& env, napi_value exports);
void init_device_lanes(Env& env, napi_value exports);

}  // namespace pw
