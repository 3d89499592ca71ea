// Groups and operations under way: made, waited for, closed.
#include "distributed/group.h"

#include "distributed/thread/group.h"

#include <torch/csrc/distributed/c10d/exception.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <cstdlib>
#include <thread>

namespace pw {
namespace {

struct Groups {
  HandleTable<std::shared_ptr<Group>> groups;
  HandleTable<std::shared_ptr<Pending>> pendings;
  std::vector<std::weak_ptr<Group>> open;
};
thread_local std::unordered_map<Env*, Groups> tables;

// The connections of a gloo group, which only a derived class may see.
struct GlooAccess : c10d::ProcessGroupGloo {
  static std::vector<std::shared_ptr<::gloo::Context>>& contexts(c10d::ProcessGroupGloo& group) {
    return group.*(&GlooAccess::contexts_);
  }
};

void close_connections(c10d::Backend& backend) {
  auto* gloo = dynamic_cast<c10d::ProcessGroupGloo*>(&backend);
  if (gloo == nullptr) {
    backend.abort();
    return;
  }
  for (const auto& context : GlooAccess::contexts(*gloo)) context->closeConnections();
}

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

}  // namespace

BackendRegistry& backend_registry() {
  static BackendRegistry* registry = new BackendRegistry();
  return *registry;
}

void rethrow_coded(std::exception_ptr error) {
  std::string text;
  try {
    std::rethrow_exception(error);
  } catch (const CodedError&) {
    throw;
  } catch (const c10::Error& problem) {
    text = problem.what_without_backtrace();
  } catch (const std::exception& problem) {
    text = problem.what();
  } catch (...) {
    text = "an unknown C++ exception";
  }
  const size_t trace = text.find("\nException raised from");
  if (trace != std::string::npos) text.resize(trace);
  // gloo tells what happened only in words
  const bool late = contains(text, "imed out") || contains(text, "imeout");
  const bool lost = contains(text, "Connection closed") || contains(text, "Connection reset") ||
                    contains(text, "roken pipe") || contains(text, "closed by peer") ||
                    contains(text, "Socket closed") || contains(text, "Connection refused") ||
                    contains(text, "pair closure") || contains(text, "got 0 bytes") || contains(text, "recvBytes") ||
                    contains(text, "sendBytes");
  throw CodedError(lost ? "PEER_LOST" : late ? "TIMED_OUT" : "LIBTORCH", text);
}

Group::~Group() {
  // The destructor of a backend waits for its threads, which may be stuck in an operation until its time is up.
  if (backend && kind != BackendKind::thread) run_on_pool([doomed = std::move(backend)]() mutable { doomed.reset(); });
}

void Group::add(const std::shared_ptr<Pending>& pending) {
  std::lock_guard<std::mutex> lock(unfinished_mutex);
  if (unfinished.size() >= 64) {
    std::vector<std::weak_ptr<Pending>> rest;
    for (const auto& item : unfinished) {
      const std::shared_ptr<Pending> alive = item.lock();
      if (alive && !alive->is_over()) rest.push_back(item);
    }
    unfinished.swap(rest);
  }
  unfinished.push_back(pending);
}

void Group::flush(const Wait& wait) {
  std::vector<std::weak_ptr<Pending>> all;
  {
    std::lock_guard<std::mutex> lock(unfinished_mutex);
    all = unfinished;
  }
  for (const auto& item : all) {
    const std::shared_ptr<Pending> pending = item.lock();
    if (pending && pending->kind == Pending::Kind::send) pending->finish(wait);
  }
  if (!endpoint) return;
  for (const auto& outlet : endpoint->outlets) {
    if (outlet) outlet->flush(wait);
  }
  if (endpoint->farewell) endpoint->farewell("it has closed the group", wait);
}

bool Group::has_unfinished() {
  std::lock_guard<std::mutex> lock(unfinished_mutex);
  for (const auto& item : unfinished) {
    const std::shared_ptr<Pending> pending = item.lock();
    if (pending && !pending->is_over()) return true;
  }
  return false;
}

void Group::shut(const std::string& why, bool broken) {
  control->abort(why);
  if (endpoint) endpoint->close();
  if (!broken || kind == BackendKind::thread) return;
  std::lock_guard<std::mutex> lock(post);
  try {
    close_connections(*backend);
  } catch (...) {
    // the connections are gone already
  }
}

namespace {
constexpr int64_t kLinger =
    60000;  // how long a rank that failed waits until the others have what it sent, in milliseconds
}

void Group::abandon(const std::shared_ptr<Group>& group, const std::string& why) {
  {
    std::lock_guard<std::mutex> lock(group->abandon_mutex_);
    if (group->abandoning_) return;
    group->abandoning_ = true;
  }
  group->control->abort(why);
  const auto finish = [group, why] {
    if (group->endpoint && group->endpoint->farewell) group->endpoint->farewell(why, Wait(nullptr, nullptr, kLinger));
    group->shut(why, true);
    std::lock_guard<std::mutex> lock(group->abandon_mutex_);
    group->abandoned_ = true;
    group->abandon_changed_.notify_all();
  };
  if (group->endpoint && group->endpoint->farewell) run_on_pool(finish);
  else finish();
}

void Group::await_abandoned(const Wait& wait) {
  std::unique_lock<std::mutex> lock(abandon_mutex_);
  while (abandoning_ && !abandoned_ && wait.check() == Stop::none) abandon_changed_.wait_until(lock, wait.slice());
}

// --- Pending --------------------------------------------------------------------------------------------------------------

Pending::Pending(std::shared_ptr<Group> owner, c10::intrusive_ptr<c10d::Work> operation, Kind operation_kind)
    : group(std::move(owner)), kind(operation_kind), work_(std::move(operation)) {
  if (group->kind == BackendKind::thread) {
    how_ = How::thread;
  } else if (group->kind != BackendKind::gloo) {
    how_ = How::plain;
  } else if (kind != Kind::collective) {
    how_ = How::interrupt;
  } else {
    how_ = How::signal;
    signal_ = std::make_shared<Signal>();
    c10::intrusive_ptr<c10::ivalue::Future> future;
    try {
      future = work_->getFuture();
    } catch (const std::exception&) {
      // some collectives of gloo have none
    }
    if (future) {
      future->addCallback([signal = signal_](c10::ivalue::Future& ended) {
        signal->give(ended.hasError() ? ended.exception_ptr() : nullptr);
      });
    } else {
      run_on_pool([work = work_, signal = signal_] {
        std::exception_ptr error;
        try {
          work->wait();
        } catch (...) {
          error = std::current_exception();
        }
        signal->give(error);
      });
    }
  }
}

void Pending::wait_for_backend(const Wait& wait) {
  const char* late = kind == Kind::send      ? "the message was not taken"
                     : kind == Kind::receive ? "no message came"
                                             : "not all ranks did their part";
  switch (how_) {
    case How::thread:
      static_cast<ThreadWork&>(*work_).wait_with(wait);
      return;
    case How::plain:
      work_->wait();
      return;
    case How::signal: {
      std::unique_lock<std::mutex> lock(signal_->mutex);
      while (!signal_->set) {
        signal_->ready.wait_until(lock, wait.slice());
        if (!signal_->set) wait.check_or_throw(late);
      }
      if (signal_->error) rethrow_coded(signal_->error);
      return;
    }
    case How::interrupt:
      // A time limit given to gloo would break its connections: interrupt the wait and look for ourselves.
      for (;;) {
        {
          Interrupter interrupter([work = work_] { work->abort(); });
          try {
            if (work_->wait(std::chrono::hours(24 * 365))) return;
          } catch (...) {
            rethrow_coded(std::current_exception());
          }
        }
        wait.check_or_throw(late);
      }
  }
}

void Pending::finish(const Wait& wait) {
  std::unique_lock<std::mutex> lock(mutex_);
  while (busy_ && !over_) {
    changed_.wait_until(lock, wait.slice());
    if (busy_ && !over_) wait.check_or_throw("another wait for the same operation is not over");
  }
  if (!over_) {
    busy_ = true;
    lock.unlock();
    bool over = true;
    std::exception_ptr error;
    try {
      wait_for_backend(wait);
      if (after) after();
    } catch (const CodedError& problem) {
      // These end the wait, not the operation.
      const std::string code = problem.code;
      over = code != "TIMED_OUT" && code != "CANCELLED" && code != "ABORTED" && code != "TERMINATED";
      error = std::current_exception();
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    busy_ = false;
    over_ = over;
    changed_.notify_all();
    if (over) {
      error_ = error;
      held_.clear();
      pins_.clear();
      after = nullptr;
    } else if (error) {
      std::rethrow_exception(error);
    }
  }
  if (error_) std::rethrow_exception(error_);
}

void Pending::hold(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    held_.push_back(tensor);
    pins_.emplace_back(tensor);
  }
}

bool Pending::is_over() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (over_) return true;
    if (busy_) return false;
    if (how_ == How::interrupt) {
      if (!watched_) finish_on_pool();
      watched_ = true;
      return false;
    }
  }
  switch (how_) {
    case How::thread:
      return static_cast<ThreadWork&>(*work_).poll();
    case How::plain:
      return work_->isCompleted();
    default: {
      std::lock_guard<std::mutex> lock(signal_->mutex);
      return signal_->set;
    }
  }
}

void Pending::poll(const Wait& wait) {
  while (!work_->isCompleted()) {
    wait.check_or_throw("not all ranks did their part");
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

void Pending::finish_on_pool() {
  run_on_pool([self = shared_from_this()] {
    try {
      const Wait wait(nullptr, self->group->control, INT64_MAX);
      // Finishing it would order a stream of this thread behind it, and free memory that streams of others may take at once.
      if (self->is_plain()) self->poll(wait);
      self->finish(wait);
    } catch (...) {
      // whoever waits is told
    }
  });
}

// --- handles --------------------------------------------------------------------------------------------------------------

std::shared_ptr<Group> group_of(Env& env, int32_t handle) {
  std::shared_ptr<Group>* found = tables[&env].groups.find(handle);
  if (found == nullptr) throw CodedError("CLOSED", "the group is closed, or belongs to another thread");
  return *found;
}

int32_t add_pending(Env& env, std::shared_ptr<Pending> pending) {
  pending->group->add(pending);
  return tables[&env].pendings.add(std::move(pending));
}

namespace {

napi_value add_group(Env& env, std::shared_ptr<Group> group) {
  Groups& all = tables[&env];
  std::vector<std::weak_ptr<Group>> open;
  for (auto& item : all.open) {
    if (!item.expired()) open.push_back(std::move(item));
  }
  open.push_back(group);
  all.open.swap(open);
  return from_int32(env.napi, all.groups.add(std::move(group)));
}

std::shared_ptr<Pending> pending_of(Env& env, int32_t handle) {
  std::shared_ptr<Pending>* found = tables[&env].pendings.find(handle);
  if (found == nullptr) throw CodedError("CLOSED", "this operation is over, or belongs to another thread");
  return *found;
}

// Lets the waits of a connected group be ended by name, and its other ranks notice.
std::shared_ptr<Group> connected(const std::string& name, c10::intrusive_ptr<c10d::Backend> backend, BackendKind kind) {
  auto group = std::make_shared<Group>();
  group->kind = kind;
  group->backend = std::move(backend);
  group->control = std::make_shared<Control>(name, group->backend->getRank());
  return group;
}

}  // namespace

// --- entry points ---------------------------------------------------------------------------------------------------------

// (store, name, rank, size, timeoutMs, interface | null, host | null): returns when all ranks are connected.
PW_ENTRY(gloo_group, 7) {
  c10::intrusive_ptr<c10d::Store> store = store_of(*args.env, args.int32(0));
  const std::string name = args.string(1);
  const int rank = args.int32(2), size = args.int32(3);
  const int64_t timeout = args.int64(4);
  const std::string interface = args.missing(5) ? "" : args.string(5), host = args.missing(6) ? "" : args.string(6);
  const Wait wait(args.napi, nullptr, timeout + 2000);
  try {
    c10::intrusive_ptr<c10d::Backend> backend =
        interruptible(wait, "not all ranks came", [=]() -> c10::intrusive_ptr<c10d::Backend> {
          auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::milliseconds(timeout));
          store->setTimeout(std::chrono::milliseconds(timeout));
          if (!interface.empty())
            options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForInterface(interface));
          else if (!host.empty()) options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(host));
          else options->devices.push_back(c10d::ProcessGroupGloo::createDefaultDevice());
          return c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options);
        });
    return add_group(*args.env, connected(name, std::move(backend), BackendKind::gloo));
  } catch (const CodedError&) {
    throw;
  } catch (...) {
    rethrow_coded(std::current_exception());
  }
}

// (endpoint): a group over the endpoint of a thread group.
PW_ENTRY(thread_group, 1) {
  std::shared_ptr<Endpoint> endpoint = endpoint_of(*args.env, args.int32(0));
  auto group = std::make_shared<Group>();
  group->kind = BackendKind::thread;
  group->endpoint = endpoint;
  group->control = endpoint->control;
  group->backend = make_thread_backend(hub_of(*endpoint), endpoint);
  return add_group(*args.env, std::move(group));
}

// (store, name, rank, size, timeoutMs, device)
PW_ENTRY(nccl_group, 6) {
  BackendRequest request;
  request.store = store_of(*args.env, args.int32(0));
  request.name = args.string(1);
  request.rank = args.int32(2);
  request.size = args.int32(3);
  const int64_t timeout = args.int64(4);
  request.timeout = std::chrono::milliseconds(timeout);
  request.device = args.int32(5);
  const BackendFactory factory = backend_registry().nccl;
  if (factory == nullptr) throw CodedError("NO_NCCL", "the CUDA addon with NCCL is not loaded");
  const Wait wait(args.napi, nullptr, timeout + 2000);
  c10::intrusive_ptr<c10d::Backend> backend =
      interruptible(wait, "not all ranks came", [=] { return factory(request); });
  return add_group(*args.env, connected(request.name, std::move(backend), BackendKind::other));
}

// The address of the table in which another addon puts its backend (process-group.h).
PW_ENTRY(registry_address, 1) {
  napi_value value;
  napi_create_bigint_uint64(args.napi, reinterpret_cast<uint64_t>(&backend_registry()), &value);
  return value;
}

// (group): the endpoint for messages of any shape.
PW_ENTRY(group_endpoint, 1) {
  std::shared_ptr<Group> group = group_of(*args.env, args.int32(0));
  if (!group->endpoint) {
    if (group->kind != BackendKind::gloo) throw CodedError("BAD_ARGUMENT", "this backend has no channels");
    group->endpoint = make_gloo_endpoint(group);
  }
  return from_int32(args.napi, add_endpoint(*args.env, group->endpoint));
}

// (group, reason): for everybody.
PW_ENTRY(group_abort, 2) {
  Group::abandon(group_of(*args.env, args.int32(0)), args.string(1));
  return nullptr;
}

// (group, timeoutMs): returns when the others have what was sent before an abort.
PW_ENTRY(group_await_abort, 2) {
  group_of(*args.env, args.int32(0))->await_abandoned(Wait(nullptr, nullptr, args.int64(1)));
  return nullptr;
}

// (group, timeoutMs)
PW_ENTRY(group_flush, 2) {
  std::shared_ptr<Group> group = group_of(*args.env, args.int32(0));
  group->flush(Wait(args.napi, group->control, args.int64(1)));
  return nullptr;
}

// (group): what is left of its operations goes on without us.
PW_ENTRY(group_close, 1) {
  Groups& all = tables[args.env];
  std::shared_ptr<Group>* found = all.groups.find(args.int32(0));
  if (found == nullptr) return nullptr;
  std::shared_ptr<Group> group = *found;
  all.groups.remove(args.int32(0));
  group->shut("the group is closed", false);
  return nullptr;
}

// (operation, timeoutMs)
PW_ENTRY(work_wait, 2) {
  std::shared_ptr<Pending> pending = pending_of(*args.env, args.int32(0));
  pending->finish(Wait(args.napi, pending->group->control, args.int64(1)));
  return nullptr;
}

// (operation, timeoutMs, key): a promise; cancelAsync(key) ends the wait.
PW_ENTRY(work_done, 3) {
  std::shared_ptr<Pending> pending = pending_of(*args.env, args.int32(0));
  const int64_t timeout = args.int64(1);
  if (pending->is_plain()) {
    // A stream waits for it, and that must be the stream of this thread.
    return promise(
        *args.env, args.number(2),
        [pending, timeout](
            const StopFlag& stop) { pending->poll(Wait(nullptr, pending->group->control, timeout, stop)); },
        [pending](Env& env) {
          pending->finish(Wait(env.napi, pending->group->control, 0));
          return undefined(env.napi);
        });
  }
  return promise(
      *args.env, args.number(2),
      [pending, timeout](
          const StopFlag& stop) { pending->finish(Wait(nullptr, pending->group->control, timeout, stop)); },
      [](Env& env) { return undefined(env.napi); });
}

PW_ENTRY(work_is_over, 1) {
  std::shared_ptr<Pending> pending = pending_of(*args.env, args.int32(0));
  return from_bool(args.napi, pending->is_over());
}

// Gives the handle back. The operation itself lives until it is over: on a helper thread where it has to be waited for.
PW_ENTRY(work_release, 1) {
  HandleTable<std::shared_ptr<Pending>>& table = tables[args.env].pendings;
  std::shared_ptr<Pending>* found = table.find(args.int32(0));
  if (found == nullptr) return nullptr;
  std::shared_ptr<Pending> pending = std::move(*found);
  table.remove(args.int32(0));
  if (!pending->is_over()) pending->finish_on_pool();
  return nullptr;
}

PW_ENTRY(live_works, 1) { return from_double(args.napi, static_cast<double>(tables[args.env].pendings.live())); }

void init_group(Env& env, napi_value exports) {
  at_env_end(env, [key = &env] {
    Groups doomed = std::move(tables[key]);
    tables.erase(key);
    for (const auto& item : doomed.open) {
      if (std::shared_ptr<Group> group = item.lock())
        group->shut("the thread of this rank has ended", group->has_unfinished());
    }
  });
  add_exports(env, exports,
      {
          {"glooGroup", gloo_group},
          {"threadGroup", thread_group},
          {"ncclGroup", nccl_group},
          {"backendRegistry", registry_address},
          {"groupEndpoint", group_endpoint},
          {"groupAbort", group_abort},
          {"groupAwaitAbort", group_await_abort},
          {"groupFlush", group_flush},
          {"groupClose", group_close},
          {"workWait", work_wait},
          {"workDone", work_done},
          {"workIsOver", work_is_over},
          {"workRelease", work_release},
          {"liveWorks", live_works},
      });
}

void init_distributed(Env& env, napi_value exports) {
  init_store(env, exports);
  init_group(env, exports);
  init_collectives(env, exports);
  init_device_lanes(env, exports);
}

}  // namespace pw
