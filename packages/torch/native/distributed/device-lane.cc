// Lanes as JavaScript sees them, and the thread that watches them: nobody on the host waits for a message, so nobody else
// would notice that it does not come.
#include "distributed/device-lane.h"

#include "core/device-failure.h"
#include "distributed/group.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <thread>

namespace pw {

BackendRegistry& backend_registry();

namespace {

constexpr auto kLook = std::chrono::milliseconds(50);

struct Lane {
  std::shared_ptr<DeviceLane> lane;
  std::shared_ptr<Control> control;
  std::shared_ptr<Inbox> inbox;  // of the group beside it: knows when a connection is lost
  LaneRequest request;
  std::chrono::milliseconds limit{0};

  std::mutex mutex;
  std::condition_variable changed;
  enum class State : uint8_t { connecting, ready, failed };
  std::atomic<State> state{State::connecting};
  std::string code, error;
  uint64_t done = 0, begun = 0;
  Clock::time_point moved = Clock::now();
  // What the thread that asks has found; it may be held up in CUDA, the one that decides never is.
  std::atomic<uint64_t> seen_begun{0}, seen_done{0};
  std::atomic<const char*> seen_code{nullptr};
  std::string seen_error;  // written before seen_code

  std::string title() const {
    return "lane '" + request.name + "' " + (request.sends ? "to" : "from") + " rank " + std::to_string(request.peer);
  }
  void fail(const char* error_code, const std::string& why) {
    {
      std::lock_guard<std::mutex> lock(mutex);
      if (state == State::failed) return;
      code = error_code;
      error = why;
      state = State::failed;
    }
    changed.notify_all();
    // On threads of their own: aborting one communicator waits for the GPU, which may wait for another one of them.
    run_on_pool([keep = lane, why, over = aborted] {
      keep->abort(why);
      *over = true;
    });
  }
  const std::shared_ptr<std::atomic<bool>> aborted = std::make_shared<std::atomic<bool>>(false);
  void check() {
    if (state != State::failed) return;
    std::lock_guard<std::mutex> lock(mutex);
    throw CodedError(code_of(code), error);
  }
  void check_connected() {
    check();
    if (state == State::connecting)
      throw CodedError("BAD_ARGUMENT", title() + " is not connected: call ready() before");
  }
  // CodedError keeps no copy of its code.
  static const char* code_of(const std::string& text) {
    for (const char* known : {"PEER_LOST", "TIMED_OUT", "ABORTED", "PROTOCOL", "CLOSED"}) {
      if (text == known) return known;
    }
    return "NCCL";
  }
};

// All lanes of the process. Never destroyed: the watching thread may outlive main().
struct Watch {
  std::mutex mutex;
  std::condition_variable more;
  std::vector<std::weak_ptr<Lane>> lanes;
  bool running = false;

  void add(const std::shared_ptr<Lane>& lane) {
    std::lock_guard<std::mutex> lock(mutex);
    lanes.push_back(lane);
    if (!running) {
      running = true;
      std::thread([this] {
        loop([](Lane& lane, const auto&) {
          if (lane.state == Lane::State::ready) ask(lane);
        });
      }).detach();
      std::thread([this] { loop([](Lane& lane, const auto& all) { decide(lane, all); }); }).detach();
    }
    more.notify_all();
  }

  template <typename Each>
  void loop(Each&& each) {
    std::vector<std::shared_ptr<Lane>> all;
    for (;;) {
      all.clear();
      {
        std::unique_lock<std::mutex> lock(mutex);
        more.wait_for(lock, kLook);
        lanes.erase(
            std::remove_if(lanes.begin(), lanes.end(), [](const auto& item) { return item.expired(); }), lanes.end());
        if (lanes.empty()) {
          more.wait(lock, [&] { return !lanes.empty(); });
          continue;
        }
        for (const auto& item : lanes) {
          if (std::shared_ptr<Lane> lane = item.lock()) all.push_back(std::move(lane));
        }
      }
      for (const auto& lane : all) {
        if (lane->state != Lane::State::failed) each(*lane, all);
      }
    }
  }

  static void ask(Lane& lane) {
    if (lane.seen_code != nullptr) return;
    try {
      const DeviceLane::Progress progress = lane.lane->look();
      lane.seen_done = progress.done;
      lane.seen_begun = progress.begun;
    } catch (const LaneError& error) {
      lane.seen_error = error.what();
      lane.seen_code = Lane::code_of(error.code);
    } catch (const std::exception& error) {
      lane.seen_error = error.what();
      lane.seen_code = "NCCL";
    }
  }

  // One lane that fails takes the others of its group with it: whoever waits for one cannot go on with the others. So does one
  // that is still connecting to a rank that is lost.
  static void decide(Lane& lane, const std::vector<std::shared_ptr<Lane>>& all) {
    const char* code = nullptr;
    std::string why;
    if (lane.control->aborted) {
      code = "ABORTED";
      why = lane.control->reason();
    } else {
      const uint64_t begun = lane.seen_begun, done = lane.seen_done;
      const Clock::time_point now = Clock::now();
      if (lane.seen_code != nullptr) {
        code = lane.seen_code;
        why = lane.title() + ": " + lane.seen_error;
      } else if (done != lane.done || begun != lane.begun || begun == done) {
        lane.done = done;
        lane.begun = begun;
        lane.moved = now;
      } else if (now - lane.moved > lane.limit) {
        code = "TIMED_OUT";
        why = lane.title() + ": of " + std::to_string(begun) + " messages the last did not " +
              (lane.request.sends ? "leave" : "come") + " within " + std::to_string(lane.limit.count()) + " ms";
      }
      const std::string lost = lane.inbox ? lane.inbox->lost(lane.request.peer) : "";
      if (code == nullptr && !lost.empty()) {
        code = "PEER_LOST";
        why = lane.title() + ": " + lost;
      }
    }
    if (code == nullptr) return;
    const bool closed = why == "the group is closed";
    if (!closed) set_device_failure(code, why);
    for (const auto& other : all) {
      if (other->control == lane.control) other->fail(code, why);
    }
    lane.fail(code, why);
  }
};
Watch& watch() {
  static Watch* all = new Watch();
  return *all;
}

struct OpenLanes {
  HandleTable<std::shared_ptr<Lane>> table;
  std::vector<std::weak_ptr<Lane>> open;
};
thread_local std::unordered_map<Env*, OpenLanes> lane_tables;

// A communicator that is being ended on a helper thread, or that a captured graph keeps from ending, must not meet the
// destructors of the libraries it needs: a process that has used lanes ends without them. What is registered last runs first.
void end_without_destructors() {
  on_exit(
      [](int status, void*) {
        std::fflush(nullptr);
        _exit(status);
      },
      nullptr);
}

Lane& lane_at(Env& env, int32_t handle) {
  std::shared_ptr<Lane>* found = lane_tables[&env].table.find(handle);
  if (found == nullptr) throw CodedError("CLOSED", "the lane is closed, or belongs to another thread");
  return **found;
}

template <typename F>
auto on_lane(Lane& lane, F&& body) -> decltype(body()) {
  lane.check();
  try {
    return body();
  } catch (const LaneError& error) {
    lane.check();  // the reason that the watching thread gave
    throw CodedError(Lane::code_of(error.code), lane.title() + ": " + error.what());
  }
}

}  // namespace

// (group beside it, store, name, sends, peer, device, window, timeoutMs): begins to connect.
PW_ENTRY(lane_open, 8) {
  std::shared_ptr<Group> group = group_of(*args.env, args.int32(0));
  const DeviceLaneFactory factory = backend_registry().lane;
  if (factory == nullptr) throw CodedError("NO_NCCL", "the CUDA addon with NCCL is not loaded");
  auto lane = std::make_shared<Lane>();
  lane->request.store = store_of(*args.env, args.int32(1));
  lane->request.name = args.string(2);
  lane->request.sends = args.boolean(3);
  lane->request.peer = args.int32(4);
  lane->request.device = args.int32(5);
  lane->request.window = args.int32(6);
  lane->limit = std::chrono::milliseconds(args.int64(7));
  lane->control = group->control;
  if (group->kind == BackendKind::gloo) {
    if (!group->endpoint) group->endpoint = make_gloo_endpoint(group);
    group->endpoint->open_source(lane->request.peer);
    lane->inbox = group->endpoint->inbox;
  }
  lane->lane = factory(lane->request);
  clear_device_failure();
  run_on_pool([lane] {
    std::string code, error;
    try {
      lane->lane->connect();
    } catch (const LaneError& problem) {
      code = problem.code;
      error = problem.what();
    } catch (const std::exception& problem) {
      code = "NCCL";
      error = problem.what();
    }
    if (!code.empty()) {
      lane->fail(Lane::code_of(code), lane->title() + ": " + error);
      return;
    }
    end_without_destructors();
    std::lock_guard<std::mutex> lock(lane->mutex);
    if (lane->state == Lane::State::connecting) lane->state = Lane::State::ready;
    lane->changed.notify_all();
  });
  watch().add(lane);
  OpenLanes& mine = lane_tables[args.env];
  mine.open.push_back(lane);
  return from_int32(args.napi, mine.table.add(std::move(lane)));
}

// (lane, timeoutMs): returns when both sides are connected.
PW_ENTRY(lane_ready, 2) {
  Lane& lane = lane_at(*args.env, args.int32(0));
  const Wait wait(args.napi, lane.control, args.int64(1));
  {
    std::unique_lock<std::mutex> lock(lane.mutex);
    while (lane.state == Lane::State::connecting) {
      lane.changed.wait_until(lock, wait.slice());
      if (lane.state == Lane::State::connecting) wait.check_or_throw(lane.title() + ": the other side did not come");
    }
  }
  lane.check();
  return nullptr;
}

// (lane, handles): the number of the message. Makes dense what is not.
PW_ENTRY(lane_send, 2) {
  Lane& lane = lane_at(*args.env, args.int32(0));
  lane.check_connected();
  std::vector<at::Tensor> tensors = args.tensors(1);
  at::NoGradGuard no_grad;
  for (at::Tensor& tensor : tensors) {
    if (!tensor.is_cuda() || tensor.get_device() != lane.request.device) {
      throw CodedError("DEVICE", lane.title() + " takes tensors on cuda:" + std::to_string(lane.request.device) +
                                     ", this one is on " + tensor.device().str());
    }
    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous();
  }
  return from_double(
      args.napi, static_cast<double>(on_lane(lane, [&] { return lane.lane->send(std::move(tensors)); })));
}

// (lane, [dtype, dims, sizes..., dtype, ...]): [number, ...handles]; their values are there for a stream that has waited.
PW_ENTRY(lane_receive, 2) {
  Lane& lane = lane_at(*args.env, args.int32(0));
  lane.check_connected();
  const std::vector<int64_t> format = args.ints(1);
  std::vector<at::Tensor> tensors;
  for (size_t i = 0; i < format.size();) {
    if (i + 2 > format.size() || format[i + 1] < 0 || i + 2 + static_cast<size_t>(format[i + 1]) > format.size())
      throw CodedError("BAD_ARGUMENT", "a description of tensors is cut short");
    const auto dtype = static_cast<at::ScalarType>(format[i]);
    const size_t dims = static_cast<size_t>(format[i + 1]);
    const std::vector<int64_t> sizes(
        format.begin() + static_cast<ptrdiff_t>(i + 2), format.begin() + static_cast<ptrdiff_t>(i + 2 + dims));
    tensors.push_back(at::empty(
        sizes, at::TensorOptions().dtype(dtype).device(at::kCUDA, static_cast<c10::DeviceIndex>(lane.request.device))));
    i += 2 + dims;
  }
  const uint64_t number = on_lane(lane, [&] { return lane.lane->receive(tensors); });
  napi_value result;
  napi_create_array_with_length(args.napi, tensors.size() + 1, &result);
  napi_set_element(args.napi, result, 0, from_double(args.napi, static_cast<double>(number)));
  for (size_t i = 0; i < tensors.size(); ++i)
    napi_set_element(
        args.napi, result, static_cast<uint32_t>(i + 1), from_int32(args.napi, args.env->wrap(std::move(tensors[i]))));
  return result;
}

// (lane, number): this thread's stream waits for a message that was received.
PW_ENTRY(lane_wait, 2) {
  Lane& lane = lane_at(*args.env, args.int32(0));
  const uint64_t number = static_cast<uint64_t>(args.number(1));
  on_lane(lane, [&] { lane.lane->wait(number); });
  return nullptr;
}

// (lane): this thread's stream waits for everything.
PW_ENTRY(lane_join, 1) {
  Lane& lane = lane_at(*args.env, args.int32(0));
  on_lane(lane, [&] { lane.lane->join(); });
  return nullptr;
}

// (lane): see DeviceLane.
PW_ENTRY(lane_mark, 1) {
  Lane& lane = lane_at(*args.env, args.int32(0));
  on_lane(lane, [&] { lane.lane->mark(); });
  return nullptr;
}
PW_ENTRY(lane_forget, 1) {
  lane_at(*args.env, args.int32(0)).lane->forget();
  return nullptr;
}

// (lane): [begun, done], as the watching thread sees it; throws where the lane has failed.
PW_ENTRY(lane_progress, 1) {
  Lane& lane = lane_at(*args.env, args.int32(0));
  const DeviceLane::Progress progress = on_lane(lane, [&] { return lane.lane->look(); });
  napi_value pair;
  napi_create_array_with_length(args.napi, 2, &pair);
  napi_set_element(args.napi, pair, 0, from_double(args.napi, static_cast<double>(progress.begun)));
  napi_set_element(args.napi, pair, 1, from_double(args.napi, static_cast<double>(progress.done)));
  return pair;
}

// (lane, timeoutMs): waits until the GPU is done with it, then lets go of it.
PW_ENTRY(lane_close, 2) {
  HandleTable<std::shared_ptr<Lane>>& table = lane_tables[args.env].table;
  std::shared_ptr<Lane>* found = table.find(args.int32(0));
  if (found == nullptr) return nullptr;
  std::shared_ptr<Lane> lane = *found;
  table.remove(args.int32(0));
  const Wait wait(args.napi, nullptr, args.int64(1));
  try {
    for (;;) {
      if (lane->state == Lane::State::failed) break;
      const DeviceLane::Progress progress = lane->lane->look();
      if (progress.begun == progress.done || wait.check() != Stop::none) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  } catch (const std::exception&) {
    // it is closed, whatever its state and that of the GPU
  }
  run_on_pool([doomed = std::move(lane)]() mutable { doomed.reset(); });
  return nullptr;
}

void init_device_lanes(Env& env, napi_value exports) {
  at_env_end(env, [key = &env] {
    auto found = lane_tables.find(key);
    if (found == lane_tables.end()) return;
    // Whatever is still on its way is given up, by all lanes at once, and given a moment for it. Idle ones are left to the
    // end of the process: a communicator that a captured graph uses does not let itself be ended.
    std::vector<std::shared_ptr<Lane>> all;
    for (const auto& item : found->second.open) {
      if (std::shared_ptr<Lane> lane = item.lock()) all.push_back(std::move(lane));
    }
    lane_tables.erase(found);
    std::vector<std::shared_ptr<Lane>> busy;
    for (const auto& lane : all) {
      // Never destroyed: see above.
      new std::shared_ptr<Lane>(lane);
      if (lane->seen_begun != lane->seen_done || lane->state != Lane::State::ready) busy.push_back(lane);
    }
    for (const auto& lane : busy) lane->fail("ABORTED", "the thread of this rank has ended");
    const Clock::time_point limit = Clock::now() + std::chrono::seconds(3);
    for (const auto& lane : busy) {
      while (!*lane->aborted && Clock::now() < limit) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  add_exports(env, exports,
      {
          {"laneOpen", lane_open},
          {"laneReady", lane_ready},
          {"laneSend", lane_send},
          {"laneReceive", lane_receive},
          {"laneWait", lane_wait},
          {"laneJoin", lane_join},
          {"laneMark", lane_mark},
          {"laneForget", lane_forget},
          {"laneProgress", lane_progress},
          {"laneClose", lane_close},
      });
}

}  // namespace pw
