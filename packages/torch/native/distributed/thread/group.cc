#include "distributed/thread/group.h"

namespace pw {
namespace {

// All thread groups of the process. Never destroyed: helper threads may outlive main().
struct Hubs {
  std::mutex mutex;
  std::unordered_map<std::string, std::shared_ptr<ThreadHub>> by_name;
};
Hubs& hubs() {
  static Hubs* all = new Hubs();
  return *all;
}

struct ThreadEndpoint : Endpoint {
  std::shared_ptr<ThreadHub> hub;
};

struct ThreadOutlet final : Outlet {
  ThreadOutlet(std::shared_ptr<Inbox> target, int rank) : inbox(std::move(target)), source(rank) {}
  void push(Message&& message, const Wait* wait) override { inbox->push(source, std::move(message), wait); }
  std::shared_ptr<Inbox> inbox;
  const int source;
};

thread_local int memberships = 0;

}  // namespace

ThreadHub::ThreadHub(std::string group, int ranks, size_t bound)
    : name(std::move(group)), size(ranks), seats_(ranks, Seat::empty), why_(ranks) {
  for (int rank = 0; rank < ranks; ++rank) inboxes_.push_back(std::make_shared<Inbox>(ranks, bound, true));
}

std::shared_ptr<ThreadHub> ThreadHub::open(const std::string& name, int size, size_t bound) {
  Hubs& all = hubs();
  std::lock_guard<std::mutex> lock(all.mutex);
  std::shared_ptr<ThreadHub>& slot = all.by_name[name];
  if (!slot) slot = std::make_shared<ThreadHub>(name, size, bound);
  if (slot->size != size) {
    throw CodedError("SIZE", "this thread group has " + std::to_string(slot->size) + " ranks, not " +
                                 std::to_string(size) + "; all ranks must give the same size");
  }
  return slot;
}

bool ThreadHub::forget(const std::string& name) {
  Hubs& all = hubs();
  std::shared_ptr<ThreadHub> doomed;
  std::lock_guard<std::mutex> lock(all.mutex);
  const auto found = all.by_name.find(name);
  if (found == all.by_name.end()) return false;
  doomed = std::move(found->second);
  all.by_name.erase(found);
  return true;
}

bool ThreadHub::forget_all(const std::string& name) {
  std::vector<std::string> names{name};
  {
    Hubs& all = hubs();
    std::lock_guard<std::mutex> lock(all.mutex);
    for (const auto& [other, hub] : all.by_name) {
      if (other.compare(0, name.size() + 1, name + "/") == 0) names.push_back(other);
    }
  }
  bool any = false;
  for (const std::string& one : names) any = forget(one) || any;
  return any;
}

std::shared_ptr<Endpoint> ThreadHub::join(int rank) {
  std::shared_ptr<ThreadHub> self = shared_from_this();
  std::string aborted;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (seats_[rank] == Seat::taken)
      throw CodedError("RANK", "rank " + std::to_string(rank) + " has joined this thread group already");
    if (seats_[rank] == Seat::left)
      throw CodedError(
          "RANK", "rank " + std::to_string(rank) + " has left this thread group; use another name for a new group");
    seats_[rank] = Seat::taken;
    aborted = aborted_;
  }
  auto endpoint = std::make_shared<ThreadEndpoint>();
  endpoint->control = std::make_shared<Control>(name, rank);
  endpoint->rank = rank;
  endpoint->size = size;
  endpoint->inbox = inboxes_[rank];
  endpoint->hub = self;
  for (int other = 0; other < size; ++other)
    endpoint->outlets.push_back(std::make_unique<ThreadOutlet>(inboxes_[other], rank));
  if (!aborted.empty()) endpoint->control->abort(aborted);
  if (memberships++ == 0) ++crowd().ranks;
  endpoint->close = [hub = std::weak_ptr<ThreadHub>(self), control = endpoint->control, rank, left = false]() mutable {
    if (left) return;
    left = true;
    if (--memberships == 0) --crowd().ranks;
    control->abort("this rank has left the group");
    if (std::shared_ptr<ThreadHub> alive = hub.lock())
      alive->leave(rank, "rank " + std::to_string(rank) + " has left the group");
  };
  return endpoint;
}

void ThreadHub::leave(int rank, const std::string& why) {
  bool last;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (seats_[rank] != Seat::taken) return;
    seats_[rank] = Seat::left;
    why_[rank] = why;
    last = ++left_ == size;
  }
  for (int other = 0; other < size; ++other) inboxes_[other]->lose(rank, why);
  inboxes_[rank]->close(why);
  if (last) forget(name);
}

void ThreadHub::abort(const std::string& why) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (aborted_.empty()) aborted_ = why;
}

void abort_hub(const std::string& name, const std::string& why) {
  Hubs& all = hubs();
  std::lock_guard<std::mutex> lock(all.mutex);
  for (const auto& [other, hub] : all.by_name) {
    if (other == name || other.compare(0, name.size() + 1, name + "/") == 0) hub->abort(why);
  }
}

std::string ThreadHub::gone(int rank) {
  std::lock_guard<std::mutex> lock(mutex_);
  return why_[rank];
}

std::shared_ptr<ThreadHub> hub_of(const Endpoint& endpoint) {
  const auto* ours = dynamic_cast<const ThreadEndpoint*>(&endpoint);
  if (ours == nullptr) throw CodedError("BAD_ARGUMENT", "internal: this endpoint is not of a thread group");
  return ours->hub;
}

// --- entry points -----------------------------------------------------------------------------------------------------

// (name, size, bound): so that it can be aborted before its ranks have come.
PW_ENTRY(create_threads, 3) {
  ThreadHub::open(args.string(0), args.int32(1), static_cast<size_t>(args.int64(2)));
  return nullptr;
}

// The group and those made from it: their ranks have ended.
PW_ENTRY(forget_threads, 1) { return from_bool(args.napi, ThreadHub::forget_all(args.string(0))); }

// (name, rank, size, bound): an endpoint.
PW_ENTRY(join_threads, 4) {
  const int rank = args.int32(1), size = args.int32(2);
  if (size < 1 || rank < 0 || rank >= size)
    throw CodedError("RANK", "rank " + std::to_string(rank) + " is not in a group of " + std::to_string(size));
  std::shared_ptr<ThreadHub> hub = ThreadHub::open(args.string(0), size, static_cast<size_t>(args.int64(3)));
  return from_int32(args.napi, add_endpoint(*args.env, hub->join(rank)));
}

// For leak tests: [thread groups, ranks of all groups] alive in this process.
PW_ENTRY(live_groups, 1) {
  size_t groups;
  {
    Hubs& all = hubs();
    std::lock_guard<std::mutex> lock(all.mutex);
    groups = all.by_name.size();
  }
  napi_value pair;
  napi_create_array_with_length(args.napi, 2, &pair);
  napi_set_element(args.napi, pair, 0, from_double(args.napi, static_cast<double>(groups)));
  napi_set_element(args.napi, pair, 1, from_double(args.napi, static_cast<double>(live_controls())));
  return pair;
}

void init_thread_group(Env& env, napi_value exports) {
  add_exports(env, exports,
      {
          {"createThreads", create_threads},
          {"forgetThreads", forget_threads},
          {"joinThreads", join_threads},
          {"liveGroups", live_groups},
      });
}

}  // namespace pw
