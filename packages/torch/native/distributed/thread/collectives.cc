// Collectives between threads. A call publishes its tensors in a round; when all ranks are there the round is cut into
// items, and whoever waits takes items until none is left. So nobody depends on when another rank waits, and the order of
// addition is by rank whoever does the adding.
#include "distributed/device-order.h"
#include "distributed/thread/group.h"

#include <ATen/Dispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>

#include <cstring>

namespace pw {

using c10d::ReduceOp;
using Tensors = std::vector<at::Tensor>;

struct Round {
  explicit Round(int size) : parts(size) {}
  struct Part {
    bool here = false;
    std::string call;  // must be the same on all ranks
    Tensors inputs, outputs;
  };
  enum State : int { gathering, running, done, failed };

  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Part> parts;
  int arrived = 0;
  std::atomic<int> state{gathering};
  std::string error;
  size_t items = 0;
  std::function<void(size_t)> run;
  std::atomic<size_t> next{0}, finished{0};
  std::atomic<bool> on_gpu{false};  // whoever adds waits for the GPU: the streams of other threads are not known here
};

std::shared_ptr<Round> ThreadHub::round(uint64_t number) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::shared_ptr<Round>& slot = rounds_[number];
  if (!slot) slot = std::make_shared<Round>(size);
  return slot;
}

void ThreadHub::finish_round(uint64_t number) {
  std::lock_guard<std::mutex> lock(mutex_);
  rounds_.erase(number);
}

namespace {

constexpr int64_t kChunk = 32768;  // elements of one item

const char* dtype_text(at::ScalarType dtype) {
  switch (dtype) {
    case at::kByte:
      return "uint8";
    case at::kChar:
      return "int8";
    case at::kShort:
      return "int16";
    case at::kInt:
      return "int32";
    case at::kLong:
      return "int64";
    case at::kHalf:
      return "float16";
    case at::kFloat:
      return "float32";
    case at::kDouble:
      return "float64";
    case at::kBFloat16:
      return "bfloat16";
    case at::kBool:
      return "bool";
    case at::kComplexFloat:
      return "complex64";
    case at::kComplexDouble:
      return "complex128";
    default:
      return c10::toString(dtype);
  }
}

std::string shape_text(const at::Tensor& tensor) {
  std::string text = dtype_text(tensor.scalar_type());
  text += '[';
  for (int64_t i = 0; i < tensor.dim(); ++i) text += (i > 0 ? ", " : "") + std::to_string(tensor.size(i));
  return text + ']';
}

const char* op_text(const ReduceOp& op) {
  switch (op.op_) {
    case ReduceOp::SUM:
      return "sum";
    case ReduceOp::AVG:
      return "avg";
    case ReduceOp::PRODUCT:
      return "product";
    case ReduceOp::MIN:
      return "min";
    case ReduceOp::MAX:
      return "max";
    default:
      throw CodedError("BAD_ARGUMENT", "thread groups reduce with sum, avg, product, min or max");
  }
}

void copy_into(const at::Tensor& target, const at::Tensor& source) {
  if (target.is_cpu() && source.is_cpu() && target.scalar_type() == source.scalar_type() && target.is_contiguous() &&
      source.is_contiguous()) {
    if (target.numel() > 0 && target.data_ptr() != source.const_data_ptr())
      std::memcpy(target.data_ptr(), source.const_data_ptr(), source.nbytes());
    return;
  }
  at::NoGradGuard no_grad;
  target.detach().copy_(source.detach().reshape(target.sizes()));
}

template <typename T>
struct Accumulator {
  using type = T;
};
template <>
struct Accumulator<at::Half> {
  using type = float;
};
template <>
struct Accumulator<at::BFloat16> {
  using type = float;
};

template <typename A>
void accumulate(A* sum, const A* more, int64_t count, ReduceOp::RedOpType op) {
  switch (op) {
    case ReduceOp::PRODUCT:
      for (int64_t i = 0; i < count; ++i) {
        if constexpr (std::is_same_v<A, bool>) sum[i] = sum[i] && more[i];
        else sum[i] *= more[i];
      }
      return;
    case ReduceOp::MIN:
    case ReduceOp::MAX:
      if constexpr (c10::is_complex<A>::value) {
        throw CodedError("DTYPE", "complex numbers have no order: reduce them with sum, avg or product");
      } else {  // NaN wins
        const bool smaller = op == ReduceOp::MIN;
        for (int64_t i = 0; i < count; ++i) {
          const bool better = smaller ? more[i] < sum[i] : more[i] > sum[i];
          sum[i] = better || more[i] != more[i] ? more[i] : sum[i];
        }
      }
      return;
    default:
      for (int64_t i = 0; i < count; ++i) {
        if constexpr (std::is_same_v<A, bool>) sum[i] = sum[i] || more[i];
        else sum[i] += more[i];
      }
  }
}

template <typename T>
void reduce_block(const Tensors& inputs, const Tensors& outputs, int64_t begin, int64_t end, ReduceOp::RedOpType op) {
  using A = typename Accumulator<T>::type;
  constexpr int64_t kBlock = 1024;
  A sum[kBlock], more[kBlock];
  for (int64_t start = begin; start < end; start += kBlock) {
    const int64_t count = std::min(kBlock, end - start);
    const T* first = inputs[0].const_data_ptr<T>() + start;
    for (int64_t i = 0; i < count; ++i) sum[i] = static_cast<A>(first[i]);
    for (size_t rank = 1; rank < inputs.size(); ++rank) {
      const T* values = inputs[rank].const_data_ptr<T>() + start;
      if constexpr (std::is_same_v<A, T>) {
        accumulate(sum, values, count, op);
      } else {
        for (int64_t i = 0; i < count; ++i) more[i] = static_cast<A>(values[i]);
        accumulate(sum, static_cast<const A*>(more), count, op);
      }
    }
    if (op == ReduceOp::AVG) {
      if constexpr (!std::is_integral_v<A>) {
        for (int64_t i = 0; i < count; ++i) sum[i] = sum[i] / static_cast<A>(static_cast<double>(inputs.size()));
      }
    }
    for (const at::Tensor& output : outputs) {
      T* target = output.data_ptr<T>() + start;
      for (int64_t i = 0; i < count; ++i) target[i] = static_cast<T>(sum[i]);
    }
  }
}

// Reduces elements begin to end of all inputs, in the order of the ranks, into all outputs.
void reduce_range(const Tensors& inputs, const Tensors& outputs, int64_t begin, int64_t end, ReduceOp::RedOpType op) {
  AT_DISPATCH_ALL_TYPES_AND_COMPLEX_AND3(at::kHalf, at::kBFloat16, at::kBool, inputs[0].scalar_type(), "reduce",
      [&] { reduce_block<scalar_t>(inputs, outputs, begin, end, op); });
}

// The same for memory that the CPU cannot read.
void reduce_on_device(const Tensors& inputs, const Tensors& outputs, ReduceOp::RedOpType op) {
  at::NoGradGuard no_grad;
  at::Tensor sum = inputs[0].detach().clone();
  for (size_t rank = 1; rank < inputs.size(); ++rank) {
    const at::Tensor more = inputs[rank].detach().to(sum.device());
    switch (op) {
      case ReduceOp::PRODUCT:
        sum.mul_(more);
        break;
      case ReduceOp::MIN:
        sum = at::Tensor(sum).minimum(more);
        break;
      case ReduceOp::MAX:
        sum = at::Tensor(sum).maximum(more);
        break;
      default:
        sum.add_(more);
    }
  }
  if (op == ReduceOp::AVG) sum.div_(static_cast<double>(inputs.size()));
  for (const at::Tensor& output : outputs) copy_into(output, sum);
}

bool on_cpu(const Tensors& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.is_cpu()) return false;
  }
  return true;
}

// One reduction: `inputs` of all ranks into `outputs` of some.
struct Reduction {
  Tensors inputs, outputs;
};

using Plan = std::function<void(Round&)>;  // sets items and run; throws where the parts do not fit

void plan_copies(Round& round, std::vector<std::pair<at::Tensor, at::Tensor>> copies) {
  for (const auto& [target, source] : copies) {
    if (target.numel() == source.numel() && target.scalar_type() == source.scalar_type()) continue;
    throw CodedError("MISMATCH", "one rank gives " + shape_text(source) + " where another takes " + shape_text(target));
  }
  round.items = copies.size();
  round.run = [copies = std::move(copies)](size_t item) { copy_into(copies[item].first, copies[item].second); };
}

void plan_reductions(Round& round, std::vector<Reduction> reductions, ReduceOp::RedOpType op) {
  struct Item {
    size_t reduction;
    int64_t begin, end;
  };
  std::vector<Item> items;
  for (size_t i = 0; i < reductions.size(); ++i) {
    const Reduction& one = reductions[i];
    const int64_t count = one.inputs[0].numel();
    for (const Tensors* list : {&one.inputs, &one.outputs}) {
      for (const at::Tensor& tensor : *list) {
        if (tensor.numel() == count && tensor.scalar_type() == one.inputs[0].scalar_type()) continue;
        throw CodedError("MISMATCH", "one rank has " + shape_text(one.inputs[0]) + ", another " + shape_text(tensor));
      }
    }
    const bool whole = !on_cpu(one.inputs) || !on_cpu(one.outputs);
    for (int64_t begin = 0; begin < count; begin += whole ? count : kChunk)
      items.push_back({i, begin, whole ? -1 : std::min(count, begin + kChunk)});
  }
  round.items = items.size();
  round.run = [reductions = std::move(reductions), items = std::move(items), op](size_t item) {
    const Item& now = items[item];
    const Reduction& one = reductions[now.reduction];
    if (now.end < 0) reduce_on_device(one.inputs, one.outputs, op);
    else reduce_range(one.inputs, one.outputs, now.begin, now.end, op);
  };
}

class RoundWork final : public ThreadWork {
 public:
  RoundWork(std::shared_ptr<ThreadHub> hub, std::shared_ptr<Round> round, int rank, c10d::OpType type)
      : ThreadWork(rank, type), hub_(std::move(hub)), round_(std::move(round)) {}

  bool poll() override { return round_->state != Round::gathering; }

  void wait_with(const Wait& wait) override {
    Round& round = *round_;
    sleep_while(wait, Round::gathering);
    if (round.state == Round::running) {
      size_t item;
      while ((item = round.next++) < round.items) {
        std::string error;
        try {
          round.run(item);
          if (round.on_gpu)
            for (const Round::Part& part : round.parts) wait_for_streams(part.outputs);
        } catch (const std::exception& problem) {
          error = problem.what();
        }
        std::unique_lock<std::mutex> lock(round.mutex, std::defer_lock);
        if (!error.empty()) {
          lock.lock();
          if (round.error.empty()) round.error = error;
          lock.unlock();
        }
        if (++round.finished < round.items) continue;
        lock.lock();
        round.state = round.error.empty() ? Round::done : Round::failed;
        round.changed.notify_all();
      }
      sleep_while(wait, Round::running);
    }
    if (round.state == Round::failed) {
      std::lock_guard<std::mutex> lock(round.mutex);
      throw CodedError("MISMATCH", round.error);
    }
    finish();
  }

 private:
  void sleep_while(const Wait& wait, int state) {
    Round& round = *round_;
    if (round.state != state || spin_until(wait, [&] { return round.state != state; })) return;
    const BlockedHere blocked(wait.on_javascript_thread());
    std::unique_lock<std::mutex> lock(round.mutex);
    while (round.state == state) {
      round.changed.wait_until(lock, wait.slice());
      if (round.state != state) return;
      std::string missing;
      for (size_t rank = 0; state == Round::gathering && rank < round.parts.size(); ++rank) {
        if (round.parts[rank].here) continue;
        const std::string gone = hub_->gone(static_cast<int>(rank));
        if (!gone.empty()) throw CodedError("PEER_LOST", gone + " and did not take part");
        missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
      }
      const Stop stop = wait.check();
      if (stop != Stop::none)
        wait.fail(stop, missing.empty() ? "another rank is busy in it" : "missing ranks: " + missing);
    }
  }

  std::shared_ptr<ThreadHub> hub_;
  std::shared_ptr<Round> round_;
};

// Receives posted for one source and tag are filled in the order they were posted, whoever waits first.
struct Posted {
  std::atomic<bool> filled{false};
  Message message;
};
struct PostedQueue {
  std::mutex mutex;
  std::deque<std::shared_ptr<Posted>> waiting;
};

class ReceiveWork final : public ThreadWork {
 public:
  ReceiveWork(
      std::shared_ptr<Inbox> inbox, std::shared_ptr<PostedQueue> queue, at::Tensor target, std::pair<int, int> from)
      : ThreadWork(-1, c10d::OpType::RECV),
        inbox_(std::move(inbox)),
        queue_(std::move(queue)),
        target_(std::move(target)),
        source_(from.first),
        tag_(from.second) {
    std::lock_guard<std::mutex> lock(queue_->mutex);
    queue_->waiting.push_back(posted_);
  }

  bool poll() override { return posted_->filled || inbox_->has(source_, kPointToPoint, tag_); }

  void wait_with(const Wait& wait) override {
    while (!posted_->filled) {
      Message message = inbox_->take(source_, kPointToPoint, tag_, wait, &posted_->filled);
      if (message.tensors.empty()) continue;
      {
        std::lock_guard<std::mutex> lock(queue_->mutex);
        const std::shared_ptr<Posted> first = queue_->waiting.front();
        queue_->waiting.pop_front();
        arrive(message);
        first->message = std::move(message);
        first->filled = true;
      }
      inbox_->nudge();
    }
    const at::Tensor& got = posted_->message.tensors[0];
    if (!got.defined()) return;
    if (got.numel() != target_.numel() || got.scalar_type() != target_.scalar_type()) {
      throw CodedError(
          "MISMATCH", "the message is " + shape_text(got) + ", the tensor to fill is " + shape_text(target_));
    }
    copy_into(target_, got);
    posted_->message.tensors[0] = at::Tensor();
    finish();
  }

 private:
  std::shared_ptr<Inbox> inbox_;
  std::shared_ptr<PostedQueue> queue_;
  std::shared_ptr<Posted> posted_ = std::make_shared<Posted>();
  at::Tensor target_;
  const int source_, tag_;
};

class FinishedWork final : public ThreadWork {
 public:
  explicit FinishedWork(c10d::OpType type) : ThreadWork(-1, type) { finish(); }
  bool poll() override { return true; }
  void wait_with(const Wait&) override {}
};

class ThreadBackend final : public c10d::Backend {
 public:
  ThreadBackend(std::shared_ptr<ThreadHub> hub, std::shared_ptr<Endpoint> endpoint)
      : c10d::Backend(endpoint->rank, endpoint->size), hub_(std::move(hub)), endpoint_(std::move(endpoint)) {}

  const std::string getBackendName() const override { return "thread"; }

  c10::intrusive_ptr<c10d::Work> broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override {
    const int64_t root = opts.rootRank;
    return enter(
        c10d::OpType::BROADCAST, "broadcast from rank " + std::to_string(root), tensors, tensors, [root](Round& round) {
          std::vector<std::pair<at::Tensor, at::Tensor>> copies;
          for (Round::Part& part : round.parts) {
            if (&part != &round.parts[root]) copies.emplace_back(part.outputs[0], round.parts[root].inputs[0]);
          }
          plan_copies(round, std::move(copies));
        });
  }

  c10::intrusive_ptr<c10d::Work> allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override {
    return enter(c10d::OpType::ALLREDUCE, std::string("allReduce with ") + op_text(opts.reduceOp), tensors, tensors,
        [op = opts.reduceOp.op_](Round& round) {
          Reduction one;
          for (Round::Part& part : round.parts) {
            one.inputs.push_back(part.inputs[0]);
            one.outputs.push_back(part.outputs[0]);
          }
          plan_reductions(round, {std::move(one)}, op);
        });
  }

  c10::intrusive_ptr<c10d::Work> reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override {
    const std::string call =
        std::string("reduce with ") + op_text(opts.reduceOp) + " to rank " + std::to_string(opts.rootRank);
    return enter(
        c10d::OpType::REDUCE, call, tensors, tensors, [op = opts.reduceOp.op_, root = opts.rootRank](Round& round) {
          Reduction one;
          for (Round::Part& part : round.parts) one.inputs.push_back(part.inputs[0]);
          one.outputs.push_back(round.parts[root].outputs[0]);
          plan_reductions(round, {std::move(one)}, op);
        });
  }

  c10::intrusive_ptr<c10d::Work> allgather(
      std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions&) override {
    return enter(c10d::OpType::ALLGATHER, "allGather", inputs, outputs[0], [](Round& round) {
      std::vector<std::pair<at::Tensor, at::Tensor>> copies;
      for (Round::Part& to : round.parts) {
        for (size_t from = 0; from < round.parts.size(); ++from)
          copies.emplace_back(to.outputs[from], round.parts[from].inputs[0]);
      }
      plan_copies(round, std::move(copies));
    });
  }

  c10::intrusive_ptr<c10d::Work> reduce_scatter(
      Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& opts) override {
    return enter(c10d::OpType::REDUCE_SCATTER, std::string("reduceScatter with ") + op_text(opts.reduceOp), inputs[0],
        outputs, [op = opts.reduceOp.op_](Round& round) {
          std::vector<Reduction> all;
          for (size_t to = 0; to < round.parts.size(); ++to) {
            Reduction one;
            for (Round::Part& part : round.parts) one.inputs.push_back(part.inputs[to]);
            one.outputs.push_back(round.parts[to].outputs[0]);
            all.push_back(std::move(one));
          }
          plan_reductions(round, std::move(all), op);
        });
  }

  c10::intrusive_ptr<c10d::Work> alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions&) override {
    return enter(c10d::OpType::ALLTOALL, "allToAll", inputs, outputs, [](Round& round) {
      std::vector<std::pair<at::Tensor, at::Tensor>> copies;
      for (size_t to = 0; to < round.parts.size(); ++to) {
        for (size_t from = 0; from < round.parts.size(); ++from)
          copies.emplace_back(round.parts[to].outputs[from], round.parts[from].inputs[to]);
      }
      plan_copies(round, std::move(copies));
    });
  }

  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions&) override {
    return enter(c10d::OpType::BARRIER, "barrier", {}, {}, [](Round&) {});
  }

  // The message is a copy: the sender may change its tensor as soon as this returns, as with every backend.
  c10::intrusive_ptr<c10d::Work> send(Tensors& tensors, int destination, int tag) override {
    Message message;
    message.space = kPointToPoint;
    message.tag = tag;
    at::NoGradGuard no_grad;
    message.tensors.push_back(tensors[0].detach().clone());
    mark_ready(message);
    endpoint_->outlets[destination]->push(std::move(message), nullptr);
    return c10::make_intrusive<FinishedWork>(c10d::OpType::SEND);
  }

  c10::intrusive_ptr<c10d::Work> recv(Tensors& tensors, int source, int tag) override {
    std::shared_ptr<PostedQueue>& queue = posted_[{source, tag}];
    if (!queue) queue = std::make_shared<PostedQueue>();
    return c10::make_intrusive<ReceiveWork>(endpoint_->inbox, queue, tensors[0], std::pair<int, int>(source, tag));
  }

 private:
  c10::intrusive_ptr<c10d::Work> enter(
      c10d::OpType type, const std::string& call, const Tensors& inputs, const Tensors& outputs, const Plan& plan) {
    bool on_gpu = false;
    for (const Tensors* list : {&inputs, &outputs}) {
      for (const at::Tensor& tensor : *list) on_gpu = on_gpu || tensor.is_cuda();
      if (on_gpu) wait_for_streams(*list);
    }
    const uint64_t number = next_round_++;
    std::shared_ptr<Round> round = hub_->round(number);
    if (on_gpu) round->on_gpu = true;
    bool complete;
    {
      std::lock_guard<std::mutex> lock(round->mutex);
      for (size_t other = 0; other < round->parts.size(); ++other) {
        const Round::Part& part = round->parts[other];
        if (!part.here || part.call == call || !round->error.empty()) continue;
        round->error = "rank " + std::to_string(other) + " called " + part.call + ", rank " + std::to_string(rank_) +
                       " called " + call + ": all ranks must call the same collectives in the same order";
      }
      Round::Part& mine = round->parts[rank_];
      mine = {true, call, inputs, outputs};
      complete = ++round->arrived == size_;
      if (complete && round->error.empty()) {
        try {
          plan(*round);
        } catch (const std::exception& problem) {
          round->error = problem.what();
        }
      }
      // A wrong call is told at once, before the others have come.
      if (!round->error.empty()) round->state = Round::failed;
      else if (complete) round->state = round->items > 0 ? Round::running : Round::done;
      if (round->state != Round::gathering) round->changed.notify_all();
    }
    if (complete) hub_->finish_round(number);
    return c10::make_intrusive<RoundWork>(hub_, std::move(round), rank_, type);
  }

  std::shared_ptr<ThreadHub> hub_;
  std::shared_ptr<Endpoint> endpoint_;
  std::map<std::pair<int, int>, std::shared_ptr<PostedQueue>> posted_;
  uint64_t next_round_ = 0;
};

}  // namespace

bool ThreadWork::wait(std::chrono::milliseconds timeout) {
  wait_with(Wait(nullptr, nullptr, timeout.count() > 0 ? timeout.count() : INT64_MAX));
  return true;
}

c10::intrusive_ptr<c10d::Backend> make_thread_backend(
    std::shared_ptr<ThreadHub> hub, std::shared_ptr<Endpoint> endpoint) {
  return c10::make_intrusive<ThreadBackend>(std::move(hub), std::move(endpoint));
}

}  // namespace pw
