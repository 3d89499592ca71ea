// What the graph keeps for backward: TypeScript functions that pack and unpack it, and checkpoints that drop it and run
// the forward again. Both work through the engine's default hooks, which are those of the calling thread here.
#include "core/callback.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <atomic>
#include <sstream>

namespace pw {

using torch::autograd::SavedVariable;
using torch::autograd::SavedVariableHooks;

namespace {

// What must be the same when a checkpoint runs its function again.
struct Description {
  c10::SmallVector<int64_t, 5> sizes;
  at::ScalarType dtype = at::ScalarType::Undefined;
  c10::Device device{c10::DeviceType::CPU};

  explicit Description(const at::Tensor& tensor)
      : sizes(tensor.sizes().begin(), tensor.sizes().end()), dtype(tensor.scalar_type()), device(tensor.device()) {}
  bool operator==(const Description& other) const {
    return sizes == other.sizes && dtype == other.dtype && device == other.device;
  }
  std::string text() const {
    std::ostringstream out;
    out << c10::toString(dtype) << at::IntArrayRef(sizes) << " on " << device;
    return out.str();
  }
};

}  // namespace

// One call of a checkpointed function. Owned by what the graph saved of it: when that goes, so do the inputs, the
// recomputed tensors and the TypeScript function.
struct Frame : std::enable_shared_from_this<Frame> {
  Frame(Env& env, double id, bool stop_early, bool check_same)
      : function(env, id), early_stop(stop_early), checks(check_same) {}

  size_t add(const at::Tensor& tensor) {
    std::lock_guard<std::mutex> lock(mutex);
    slots.push_back({at::Tensor(), Description(tensor), true});
    return slots.size() - 1;
  }

  void drop(size_t slot) {
    at::Tensor doomed;
    std::lock_guard<std::mutex> lock(mutex);
    doomed = std::move(slots[slot].value);
    slots[slot].value = at::Tensor();
    slots[slot].alive = false;
  }

  void forget() {
    std::vector<at::Tensor> doomed;
    std::lock_guard<std::mutex> lock(mutex);
    for (Slot& slot : slots) {
      doomed.push_back(std::move(slot.value));
      slot.value = at::Tensor();
    }
  }

  at::Tensor found(size_t slot) {
    std::lock_guard<std::mutex> lock(mutex);
    return slots[slot].value;
  }

  at::Tensor value(size_t slot) {
    at::Tensor there = found(slot);
    if (there.defined()) return there;
    function.bridge().call([&](Env& env) {
      if (!found(slot).defined()) recompute(env);
    });
    there = found(slot);
    if (!there.defined())
      throw CodedError(
          "CHECKPOINT_MISMATCH", "checkpoint: the function did not save the same tensors when it ran again");
    return there;
  }

  void recompute(Env& env);
  void record(const at::Tensor& tensor);

  struct Slot {
    at::Tensor value;
    Description was;
    bool alive;  // the graph still has it
  };
  Callback function;
  const bool early_stop;
  const bool checks;
  std::vector<SavedVariable> inputs;
  std::mutex mutex;
  std::vector<Slot> slots;
  // JavaScript thread only:
  size_t next = 0;
  bool running = false;
  bool stopped = false;
};

namespace {

struct Entry {
  std::shared_ptr<Callback> pack, unpack;  // TypeScript's
  std::shared_ptr<Frame> frame;            // a checkpoint's
  bool again = false;                      // its function is run again
};
thread_local std::vector<Entry> entries;  // of nested scopes, the innermost last; an empty one switches hooks off

struct Pushed {
  explicit Pushed(Entry entry) { entries.push_back(std::move(entry)); }
  ~Pushed() { entries.pop_back(); }
};

// What TypeScript packed; the value is known there by a number.
struct PackedHooks final : SavedVariableHooks {
  PackedHooks(std::shared_ptr<Callback> pack_function, std::shared_ptr<Callback> unpack_function)
      : pack(std::move(pack_function)), unpack(std::move(unpack_function)) {}

  void call_pack_hook(const at::Tensor& tensor) override {
    static std::atomic<int64_t> next{-1};  // TypeScript's own numbers are positive
    const auto id = static_cast<double>(next.fetch_sub(1));
    value = std::make_unique<Callback>(pack->shared_bridge(), id);
    pack->bridge().call([&](Env& env) {
      struct Packing {  // an operator is under way, and uses what is in the table until it ends
        explicit Packing(Env& e) : env(e) {
          ++env.packing;
          env.tensors.hold();
        }
        ~Packing() { --env.packing; }
        Env& env;
      } packing(env);
      Pushed off{Entry()};
      invoke(env, pack->id(), id, {tensor});
    });
  }

  at::Tensor call_unpack_hook() override {
    std::vector<at::Tensor> result;
    unpack->bridge().call([&](Env& env) {
      Pushed off{Entry()};
      result = invoke(env, unpack->id(), value->id(), {});
    });
    if (result.size() != 1 || !result[0].defined())
      throw CodedError("BAD_ARGUMENT", "savedTensorsHooks: unpack must return a tensor");
    return result[0];
  }

  std::shared_ptr<Callback> pack, unpack;
  std::unique_ptr<Callback> value;
};

// In place of a tensor that a checkpointed function saved.
struct DroppedHooks final : SavedVariableHooks {
  explicit DroppedHooks(std::shared_ptr<Frame> owner) : frame(std::move(owner)) {}
  ~DroppedHooks() override {
    if (packed) frame->drop(slot);
  }
  void call_pack_hook(const at::Tensor& tensor) override {
    slot = frame->add(tensor);
    packed = true;
  }
  at::Tensor call_unpack_hook() override { return frame->value(slot); }

  std::shared_ptr<Frame> frame;
  size_t slot = 0;
  bool packed = false;
};

// While the function runs again: what it saves is what was dropped.
struct RecordingHooks final : SavedVariableHooks {
  explicit RecordingHooks(Frame& owner) : frame(&owner) {}
  void call_pack_hook(const at::Tensor& tensor) override {
    // A node that saves its own result would otherwise hold itself: result, node, what it saved, result.
    kept = tensor.detach();
    frame->record(kept);
  }
  at::Tensor call_unpack_hook() override { return kept; }  // a backward inside the function

  Frame* frame;  // alive while its function runs
  at::Tensor kept;
};

class Engine final : public torch::autograd::Engine {
 public:
  // Never destroyed: its device threads may outlive every destructor.
  static torch::autograd::Engine& get() {
    static Engine* engine = new Engine();
    return *engine;
  }
  std::unique_ptr<SavedVariableHooks> get_default_saved_variable_hooks() override {
    if (entries.empty()) return nullptr;
    const Entry& entry = entries.back();
    if (entry.frame != nullptr) {
      if (entry.again) return std::make_unique<RecordingHooks>(*entry.frame);
      return std::make_unique<DroppedHooks>(entry.frame);
    }
    if (entry.pack != nullptr) return std::make_unique<PackedHooks>(entry.pack, entry.unpack);
    return nullptr;
  }
};

}  // namespace

void Frame::recompute(Env& env) {
  if (running)
    throw CodedError("CHECKPOINT",
        "checkpoint: its function needs its own results to run again (a backward inside it goes through itself)");
  std::vector<at::Tensor> tensors;
  tensors.reserve(inputs.size());
  for (const SavedVariable& input : inputs) tensors.push_back(input.unpack());
  RecomputeRun::touch(shared_from_this());
  struct Running {
    explicit Running(Frame& owner) : frame(owner) { frame.running = true; }
    ~Running() { frame.running = false; }
    Frame& frame;
  } now(*this);
  next = 0;
  stopped = false;
  try {
    Pushed recording(Entry{nullptr, nullptr, shared_from_this(), true});
    invoke(env, function.id(), 0, tensors);
  } catch (...) {
    forget();
    throw;
  }
  std::lock_guard<std::mutex> lock(mutex);
  if (checks && !stopped && next != slots.size()) {
    throw CodedError("CHECKPOINT_MISMATCH",
        "checkpoint: the function saved " + std::to_string(slots.size()) + " tensors for backward, and " +
            std::to_string(next) +
            " when it ran again; it must do the same both times (look for state that the first run changed)");
  }
}

void Frame::record(const at::Tensor& tensor) {
  std::lock_guard<std::mutex> lock(mutex);
  const size_t at = next++;
  if (at >= slots.size()) {
    if (stopped) throw CodedError("CHECKPOINT_STOP", "checkpoint: all that was needed is recomputed");
    if (!checks) return;
    throw CodedError("CHECKPOINT_MISMATCH", "checkpoint: the function saved " + std::to_string(slots.size()) +
                                                " tensors for backward, and more when it ran again; it must do the "
                                                "same both times (look for state that the first run changed)");
  }
  Slot& slot = slots[at];
  if (checks) {
    const Description is(tensor);
    if (!(is == slot.was)) {
      throw CodedError("CHECKPOINT_MISMATCH",
          "checkpoint: tensor " + std::to_string(at + 1) + " of " + std::to_string(slots.size()) +
              " that the function saved for backward was " + slot.was.text() + ", and is " + is.text() +
              " when it runs again; it must do the same both times (look for state that the first run changed)");
    }
  }
  if (slot.alive) slot.value = tensor;
  if (early_stop && next == slots.size()) {
    stopped = true;
    throw CodedError("CHECKPOINT_STOP", "checkpoint: all that was needed is recomputed");
  }
}

static thread_local RecomputeRun* innermost_run = nullptr;

RecomputeRun::RecomputeRun(bool keep_values) : keep_(keep_values), before_(innermost_run) { innermost_run = this; }

RecomputeRun::~RecomputeRun() {
  innermost_run = before_;
  if (keep_) return;
  for (const auto& frame : frames_) {
    if (const auto alive = frame.lock()) alive->forget();
  }
}

void RecomputeRun::touch(const std::shared_ptr<Frame>& frame) {
  if (innermost_run != nullptr) innermost_run->frames_.push_back(frame);
}

// (pack, unpack): numbers of TypeScript functions, until popSavedHooks
PW_ENTRY(push_saved_hooks, 2) {
  entries.push_back({std::make_shared<Callback>(*args.env, args.number(0)),
      std::make_shared<Callback>(*args.env, args.number(1)), nullptr, false});
  return undefined(args.napi);
}

PW_ENTRY(pop_saved_hooks, 1) {
  if (!entries.empty()) entries.pop_back();
  return undefined(args.napi);
}

// (function, inputs, stop early, check): until popSavedHooks what is saved is dropped. The inputs are saved as the scope
// around says, so that a checkpoint around this one drops them too.
PW_ENTRY(push_checkpoint, 4) {
  auto frame = std::make_shared<Frame>(*args.env, args.number(0), args.boolean(2), args.boolean(3));
  const std::vector<at::Tensor> inputs = args.tensors(1);
  frame->inputs.reserve(inputs.size());
  for (const at::Tensor& input : inputs) frame->inputs.emplace_back(input, false);
  entries.push_back({nullptr, nullptr, std::move(frame), false});
  return undefined(args.napi);
}

void init_saved_tensors(Env& env, napi_value exports) {
  torch::autograd::set_default_engine_stub(&Engine::get);
  add_exports(env, exports,
      {
          {"pushSavedHooks", push_saved_hooks},
          {"popSavedHooks", pop_saved_hooks},
          {"pushCheckpoint", push_checkpoint},
      });
}

}  // namespace pw
