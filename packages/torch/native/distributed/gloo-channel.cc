// Channels over gloo. A message is one frame (tag, header, dtypes and shapes, and the tensors themselves where they are
// small), then one gloo message per larger tensor. A thread per source receives ahead into the inbox, so that transfers
// run while JavaScript computes; a thread per destination waits for sends to end and drops their tensors.
//
// Frame, little endian:  u32 magic  u8 space  u8 long  u16 tensors  i64 tag  u32 header bytes  u32 description bytes
//   description, per tensor:  u8 place (0 none, 1 host, 2 GPU)  u8 dtype  u8 dims  u8 inline  i64 sizes[dims]
//   header, then the inline tensors. A long frame is only its first 24 bytes: description and header follow on their own.
//
// A rank that leaves says so in a last frame and keeps its connections until all have taken it: a connection that is closed
// while something comes the other way is reset, and what the receiver has not read is lost.
#include "distributed/device-order.h"
#include "distributed/group.h"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>

#include <cstring>
#include <thread>

namespace pw {
namespace {

constexpr uint32_t kFrameMagic = 0x315750ff;
constexpr int kFrameTag = 0x7fff0001, kPayloadTag = 0x7fff0002;  // TypeScript keeps users' tags below 0x7fff0000
enum LastWord : uint8_t { kFarewell = 254, kTaken = 255 };       // spaces of frames that are no messages
constexpr uint8_t kNone = 0, kOnHost = 1, kOnGpu = 2;
constexpr size_t kHead = 24, kFrame = 64 << 10, kInline = 16 << 10;

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

at::Tensor byte_tensor(size_t bytes) {
  return at::empty({static_cast<int64_t>(bytes)}, at::TensorOptions().dtype(at::kByte));
}

at::Tensor wire(const at::Tensor& tensor) {
  at::NoGradGuard no_grad;
  if (tensor.is_cuda()) return staged(tensor);
  return tensor.detach().to(at::kCPU).resolve_conj().resolve_neg().contiguous();
}

template <typename T>
void put_value(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

template <typename T>
T get_value(const char*& from, const char* end) {
  if (end - from < static_cast<ptrdiff_t>(sizeof(T)))
    throw CodedError("PROTOCOL", "a message is shorter than its description says");
  T value;
  std::memcpy(&value, from, sizeof(T));
  from += sizeof(T);
  return value;
}

// What the threads of one endpoint share.
struct Link {
  std::weak_ptr<Group> owner;
  c10::intrusive_ptr<c10d::Backend> backend;
  std::shared_ptr<Inbox> inbox;
  std::mutex mutex;
  bool closed = false;
  std::vector<WorkPtr> waiting;  // what the threads are blocked in; to be interrupted by close()
  std::condition_variable changed;
  std::vector<bool> reading;  // by rank: a thread receives from there
  std::vector<bool> settled;  // by rank: it has taken our last word, or is gone
  ~Link() {
    run_on_pool([doomed = std::move(backend)]() mutable { doomed.reset(); });
  }

  WorkPtr send(at::Tensor tensor, int destination, int tag) {
    Tensors one{std::move(tensor)};
    return post([&] { return backend->send(one, destination, tag); });
  }
  WorkPtr receive(at::Tensor tensor, int source, int tag) {
    Tensors one{std::move(tensor)};
    return post([&] { return backend->recv(one, source, tag); });
  }
  // False: the endpoint was closed.
  bool wait(const WorkPtr& work) {
    {
      std::lock_guard<std::mutex> lock(mutex);
      if (closed) return false;
      waiting.push_back(work);
    }
    bool ended = false;
    std::exception_ptr error;
    try {
      ended = work->wait(std::chrono::hours(24 * 365));
    } catch (...) {
      error = std::current_exception();
    }
    {
      std::lock_guard<std::mutex> lock(mutex);
      for (size_t i = 0; i < waiting.size(); ++i) {
        if (waiting[i] != work) continue;
        waiting.erase(waiting.begin() + static_cast<ptrdiff_t>(i));
        break;
      }
    }
    if (error) rethrow_coded(error);
    return ended;
  }
  void close() {
    std::lock_guard<std::mutex> lock(mutex);
    closed = true;
    for (const WorkPtr& work : waiting) work->abort();
    changed.notify_all();
  }
  void settle(int rank) {
    std::lock_guard<std::mutex> lock(mutex);
    settled[rank] = true;
    changed.notify_all();
  }
  // Returns when `rank` is settled or the wait is over.
  void await_settled(int rank, const Wait& wait) {
    std::unique_lock<std::mutex> lock(mutex);
    while (!settled[rank] && !closed && wait.check() == Stop::none) changed.wait_until(lock, wait.slice());
  }

 private:
  template <typename F>
  WorkPtr post(F&& call) {
    std::shared_ptr<Group> group = owner.lock();
    if (!group) throw CodedError("CLOSED", "the group is closed");
    std::lock_guard<std::mutex> lock(group->post);
    try {
      return call();
    } catch (...) {
      rethrow_coded(std::current_exception());
    }
  }
};

void start_reading(const std::shared_ptr<Link>& link, int source);

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& problem) {
    return problem.what();
  } catch (...) {
    return "an unknown C++ exception";
  }
}

// --- sending ----------------------------------------------------------------------------------------------------------------

class GlooOutlet final : public Outlet {
 public:
  GlooOutlet(std::shared_ptr<Link> link, int destination) : state_(std::make_shared<State>()) {
    state_->link = std::move(link);
    state_->destination = destination;
  }

  bool is_used() const { return state_->used; }

  void push(Message&& message, const Wait*) override {
    State& state = *state_;
    {
      std::lock_guard<std::mutex> lock(state.mutex);
      if (!state.broken.empty()) throw CodedError("PEER_LOST", state.broken);
    }
    // Whoever is sent something usually answers, and may have to be told that this rank leaves.
    if (!state.used.exchange(true)) start_reading(state.link, state.destination);
    Batch batch;
    std::string description, inlined;
    std::vector<at::Tensor> apart;
    size_t room = kFrame - kHead - std::min(kFrame - kHead, message.header.size());
    for (const at::Tensor& given : message.tensors) {
      const at::Tensor tensor = given.defined() ? wire(given) : given;
      const size_t dims = tensor.defined() ? static_cast<size_t>(tensor.dim()) : 0,
                   bytes = tensor.defined() ? tensor.nbytes() : 0;
      const size_t needed = 4 + 8 * dims + bytes;
      const bool small = bytes <= kInline && needed <= room;
      room -= std::min(room, small ? needed : 4 + 8 * dims);
      put_value<uint8_t>(description, tensor.defined() ? given.is_cuda() ? kOnGpu : kOnHost : kNone);
      put_value<uint8_t>(description, tensor.defined() ? static_cast<uint8_t>(tensor.scalar_type()) : 0);
      put_value<uint8_t>(description, static_cast<uint8_t>(dims));
      put_value<uint8_t>(description, small);
      for (size_t i = 0; i < dims; ++i) put_value<int64_t>(description, tensor.size(static_cast<int64_t>(i)));
      if (!tensor.defined()) continue;
      if (small) {
        if (bytes > 0) inlined.append(static_cast<const char*>(tensor.const_data_ptr()), bytes);
      } else {
        apart.push_back(tensor);
      }
    }
    const bool is_long = kHead + description.size() + message.header.size() + inlined.size() > kFrame;
    std::string head;
    put_value<uint32_t>(head, kFrameMagic);
    put_value<uint8_t>(head, message.space);
    put_value<uint8_t>(head, is_long);
    put_value<uint16_t>(head, static_cast<uint16_t>(message.tensors.size()));
    put_value<int64_t>(head, message.tag);
    put_value<uint32_t>(head, static_cast<uint32_t>(message.header.size()));
    put_value<uint32_t>(head, static_cast<uint32_t>(description.size()));
    const std::string rest = description + message.header + inlined;
    post(batch, to_tensor(is_long ? head : head + rest), kFrameTag);
    if (is_long) post(batch, to_tensor(rest), kPayloadTag);
    for (at::Tensor& tensor : apart) post(batch, std::move(tensor), kPayloadTag);
    hand_to_reaper(std::move(batch));
  }

  void flush(const Wait& wait) override {
    State& state = *state_;
    std::unique_lock<std::mutex> lock(state.mutex);
    while (state.under_way > 0) {
      state.changed.wait_until(lock, wait.slice());
      if (state.under_way == 0) break;
      if (!state.broken.empty()) throw CodedError("PEER_LOST", state.broken);
      wait.check_or_throw(std::to_string(state.under_way) + " messages for rank " + std::to_string(state.destination) +
                          " were not taken");
    }
  }

 private:
  using Batch = std::vector<WorkPtr>;
  struct State {
    std::shared_ptr<Link> link;
    int destination = 0;
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Batch> batches;
    size_t under_way = 0;
    bool reaping = false;
    std::string broken;
    std::atomic<bool> used{false};
  };

  static at::Tensor to_tensor(const std::string& bytes) {
    at::Tensor tensor = byte_tensor(bytes.size());
    if (!bytes.empty()) std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
    return tensor;
  }

  void post(Batch& batch, at::Tensor tensor, int tag) {
    batch.push_back(state_->link->send(std::move(tensor), state_->destination, tag));
  }

  void hand_to_reaper(Batch&& batch) {
    std::lock_guard<std::mutex> lock(state_->mutex);
    state_->batches.push_back(std::move(batch));
    ++state_->under_way;
    if (state_->reaping) {
      state_->changed.notify_all();
      return;
    }
    state_->reaping = true;
    run_on_pool([state = state_] { reap(*state); });
  }

  // Ends when there is nothing to wait for; the next message starts another.
  static void reap(State& state) {
    std::unique_lock<std::mutex> lock(state.mutex);
    for (;;) {
      if (!state.changed.wait_for(lock, std::chrono::seconds(1), [&] { return !state.batches.empty(); })) break;
      Batch batch = std::move(state.batches.front());
      state.batches.pop_front();
      lock.unlock();
      std::string broken;
      bool open = true;
      try {
        for (WorkPtr& work : batch) open = open && state.link->wait(work);
      } catch (...) {
        broken = text_of(std::current_exception());
      }
      batch.clear();
      lock.lock();
      --state.under_way;
      if (!broken.empty() && state.broken.empty()) state.broken = broken;
      state.changed.notify_all();
      if (!open || !broken.empty()) {
        state.under_way -= state.batches.size();
        state.batches.clear();
        break;
      }
    }
    state.reaping = false;
  }

  std::shared_ptr<State> state_;
};

// Messages to oneself: gloo cannot send to its own rank.
struct LoopOutlet final : Outlet {
  LoopOutlet(std::shared_ptr<Inbox> own, int rank) : inbox(std::move(own)), source(rank) {}
  void push(Message&& message, const Wait* wait) override { inbox->push(source, std::move(message), wait); }
  std::shared_ptr<Inbox> inbox;
  const int source;
};

// --- receiving --------------------------------------------------------------------------------------------------------------

// Receives from one source until the connection ends or the endpoint is closed.
class Reader {
 public:
  Reader(std::shared_ptr<Link> link, int source) : link_(std::move(link)), source_(source) {}

  void run() {
    try {
      // Two frames are posted at a time: while one is unpacked the next can come.
      post_frame();
      post_frame();
      for (;;) {
        Frame frame = std::move(frames_.front());
        frames_.pop_front();
        if (!link_->wait(frame.work)) break;
        Message message;
        if (!unpack(frame.bytes, message)) break;
        post_frame();
        if (message.space == kFarewell) take_leave(message.header);
        else if (message.space == kTaken) link_->settle(source_);
        else link_->inbox->push(source_, std::move(message), nullptr);
      }
      link_->inbox->lose(source_, "the group is closed");
    } catch (...) {
      link_->inbox->lose(source_,
          "the connection to rank " + std::to_string(source_) + " is lost: " + text_of(std::current_exception()));
    }
    link_->settle(source_);
  }

 private:
  struct Frame {
    at::Tensor bytes;
    WorkPtr work;
  };

  void post_frame() {
    Frame frame;
    frame.bytes = byte_tensor(kFrame);
    frame.work = link_->receive(frame.bytes, source_, kFrameTag);
    frames_.push_back(std::move(frame));
  }

  // The other side leaves: everything it sent is here, which it is told.
  void take_leave(const std::string& why) {
    link_->inbox->lose(source_, "the connection to rank " + std::to_string(source_) + " is lost: " + why);
    std::string head;
    put_value<uint32_t>(head, kFrameMagic);
    put_value<uint8_t>(head, kTaken);
    head.resize(kHead, '\0');
    at::Tensor frame = byte_tensor(head.size());
    std::memcpy(frame.data_ptr(), head.data(), head.size());
    taken_ = link_->send(std::move(frame), source_, kFrameTag);
    // What is still on its way there is no longer wanted.
    link_->settle(source_);
  }

  bool fetch(at::Tensor& tensor) { return link_->wait(link_->receive(tensor, source_, kPayloadTag)); }

  bool unpack(const at::Tensor& frame, Message& message) {
    const char* from = static_cast<const char*>(frame.const_data_ptr());
    const char* end = from + kFrame;
    if (get_value<uint32_t>(from, end) != kFrameMagic)
      throw CodedError("PROTOCOL", "the other side does not speak this protocol");
    message.space = get_value<uint8_t>(from, end);
    const bool is_long = get_value<uint8_t>(from, end) != 0;
    const size_t count = get_value<uint16_t>(from, end);
    message.tag = get_value<int64_t>(from, end);
    const size_t header = get_value<uint32_t>(from, end), description = get_value<uint32_t>(from, end);
    at::Tensor apart;
    if (is_long) {
      // At most what a frame has room for of small tensors, beside description and header.
      apart = byte_tensor(description + header + kFrame);
      if (!fetch(apart)) return false;
      from = static_cast<const char*>(apart.const_data_ptr());
      end = from + apart.nbytes();
    }
    const char* text = from + description;
    const char* inlined = text + header;
    if (inlined > end) throw CodedError("PROTOCOL", "a message is shorter than its description says");
    message.header.assign(text, header);
    std::vector<size_t> later;
    for (size_t i = 0; i < count; ++i) {
      const uint8_t place = get_value<uint8_t>(from, text);
      const auto dtype = static_cast<at::ScalarType>(get_value<uint8_t>(from, text));
      const size_t dims = get_value<uint8_t>(from, text);
      const bool small = get_value<uint8_t>(from, text) != 0;
      std::vector<int64_t> sizes;
      for (size_t d = 0; d < dims; ++d) sizes.push_back(get_value<int64_t>(from, text));
      message.tensors.emplace_back();
      if (place == kNone) continue;
      if (dtype >= at::ScalarType::NumOptions) throw CodedError("PROTOCOL", "a message has a dtype unknown here");
      at::Tensor& tensor = message.tensors.back();
      if (place == kOnGpu && at::hasCUDA()) {
        tensor = staging(sizes, dtype);
        message.staged.push_back(static_cast<uint32_t>(i));
      } else {
        tensor = at::empty(sizes, at::TensorOptions().dtype(dtype));
      }
      if (!small) {
        later.push_back(i);
        continue;
      }
      if (end - inlined < static_cast<ptrdiff_t>(tensor.nbytes()))
        throw CodedError("PROTOCOL", "a message is shorter than its description says");
      if (tensor.nbytes() > 0) std::memcpy(tensor.data_ptr(), inlined, tensor.nbytes());
      inlined += tensor.nbytes();
    }
    for (size_t i : later) {
      if (!fetch(message.tensors[i])) return false;
    }
    return true;
  }

  std::shared_ptr<Link> link_;
  const int source_;
  std::deque<Frame> frames_;
  WorkPtr taken_;
};

// Once for each source; from any thread.
void start_reading(const std::shared_ptr<Link>& link, int source) {
  {
    std::lock_guard<std::mutex> lock(link->mutex);
    if (link->closed || link->reading[source]) return;
    link->reading[source] = true;
  }
  run_on_pool([link, source] { Reader(link, source).run(); });
}

}  // namespace

std::shared_ptr<Endpoint> make_gloo_endpoint(const std::shared_ptr<Group>& group) {
  auto link = std::make_shared<Link>();
  link->owner = group;
  link->backend = group->backend;
  link->inbox = std::make_shared<Inbox>(group->size(), 0, false);
  auto endpoint = std::make_shared<Endpoint>();
  endpoint->control = group->control;
  endpoint->rank = group->rank();
  endpoint->size = group->size();
  endpoint->inbox = link->inbox;
  link->reading.resize(endpoint->size);
  link->settled.resize(endpoint->size);
  std::vector<GlooOutlet*> outlets(endpoint->size);
  for (int rank = 0; rank < endpoint->size; ++rank) {
    if (rank == endpoint->rank) {
      endpoint->outlets.push_back(std::make_unique<LoopOutlet>(link->inbox, rank));
      continue;
    }
    auto outlet = std::make_unique<GlooOutlet>(link, rank);
    outlets[rank] = outlet.get();
    endpoint->outlets.push_back(std::move(outlet));
  }
  endpoint->open_source = [link, own = endpoint->rank](int source) {
    if (source != own) start_reading(link, source);
  };
  // Called while the endpoint lives, which owns the outlets.
  endpoint->farewell = [link, outlets](const std::string& why, const Wait& wait) {
    std::vector<int> told;
    for (int rank = 0; rank < static_cast<int>(outlets.size()); ++rank) {
      if (outlets[rank] == nullptr || !outlets[rank]->is_used()) continue;
      {
        std::lock_guard<std::mutex> lock(link->mutex);
        if (link->closed || link->settled[rank]) continue;
      }
      Message last;
      last.space = kFarewell;
      last.header = why;
      try {
        outlets[rank]->push(std::move(last), nullptr);
        told.push_back(rank);
      } catch (...) {
        // it is gone
      }
    }
    for (int rank : told) link->await_settled(rank, wait);
  };
  endpoint->close = [link] { link->close(); };
  return endpoint;
}

}  // namespace pw
