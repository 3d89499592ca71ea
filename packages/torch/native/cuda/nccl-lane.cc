// Memory is safe by the order of streams alone, inside a capture as outside: nothing is marked with recordStream, which would
// keep memory until the host looks, and the host is far ahead. What a lane sends it holds until the computing stream has
// waited for the send; what it receives is allocated by the computing stream, written after all that was computed before, and
// read after the computing stream has waited for it.
#ifdef USE_C10D_NCCL
#include "nccl-lane.h"

#include <ATen/cuda/CUDAEvent.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <thread>

namespace pw {
namespace {

using Event = at::cuda::CUDAEvent;
using Stream = c10::cuda::CUDAStream;

bool is_capturing() { return c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None; }

// Other threads than the one that captures may ask for the state of events.
struct RelaxedCapture {
  RelaxedCapture() { C10_CUDA_CHECK(cudaThreadExchangeStreamCaptureMode(&mode)); }
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode); }
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
};

class NcclLane final : public DeviceLane {
 public:
  explicit NcclLane(const LaneRequest& request)
      : request_(request), device_(static_cast<c10::DeviceIndex>(request.device)) {}

  ~NcclLane() override {
    c10::cuda::CUDAGuard guard(device_);
    if (ncclComm_t comm = comm_.exchange(nullptr)) {
      if (connected_ && finished()) ncclCommDestroy(comm);
      else ncclCommAbort(comm);
    }
    if (raw_ != nullptr) cudaStreamDestroy(raw_);
  }

  void connect() override {
    c10::cuda::CUDAGuard guard(device_);
    int least = 0, greatest = 0;
    C10_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    C10_CUDA_CHECK(cudaStreamCreateWithPriority(&raw_, cudaStreamNonBlocking, greatest));
    ncclUniqueId id;
    if (request_.sends) {
      throw_if(ncclGetUniqueId(&id));
      const char* from = reinterpret_cast<const char*>(&id);
      request_.store->set(request_.name, std::vector<uint8_t>(from, from + sizeof(id)));
    } else {
      while (!request_.store->check({request_.name})) {
        throw_if_aborted();
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
      const std::vector<uint8_t> bytes = request_.store->get(request_.name);
      if (bytes.size() != sizeof(id))
        throw LaneError(
            "PROTOCOL", "the other side sent an address of another length: is its NCCL of another version?");
      std::memcpy(&id, bytes.data(), sizeof(id));
    }
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    at::Tensor probe = at::zeros({256}, at::TensorOptions().dtype(at::kByte).device(at::kCUDA, device_));
    Event ready, done;
    ready.record(c10::cuda::getCurrentCUDAStream(device_));
    ready.block(stream());
    {
      // Whoever aborts must not free the communicator while it is asked here.
      std::lock_guard<std::timed_mutex> lock(mutex_);
      throw_if_aborted();
      ncclComm_t made = nullptr;
      const ncclResult_t result = ncclCommInitRankConfig(&made, 2, id, request_.sends ? 0 : 1, &config);
      comm_ = made;
      settle(result);
      // The first message makes the connections.
      transfer({probe});
    }
    done.record(stream());
    while (!done.query()) {
      throw_if_aborted();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    connected_ = true;
  }

  uint64_t send(std::vector<at::Tensor> tensors) override {
    const bool captured = begin();
    const Stream current = c10::cuda::getCurrentCUDAStream(device_);
    std::lock_guard<std::timed_mutex> lock(mutex_);
    while (under_way_.size() >= static_cast<size_t>(request_.window)) retire(under_way_.begin(), current);
    return enqueue(std::move(tensors), current, captured);
  }

  uint64_t receive(std::vector<at::Tensor> tensors) override {
    const bool captured = begin();
    std::lock_guard<std::timed_mutex> lock(mutex_);
    return enqueue(std::move(tensors), c10::cuda::getCurrentCUDAStream(device_), captured);
  }

  void wait(uint64_t message) override {
    throw_if_aborted();
    c10::cuda::CUDAGuard guard(device_);
    const Stream current = c10::cuda::getCurrentCUDAStream(device_);
    std::lock_guard<std::timed_mutex> lock(mutex_);
    // No other one: those before it have come too, but another stream of this rank may have yet to wait for them.
    const auto wanted = std::find_if(
        under_way_.begin(), under_way_.end(), [message](const Message& one) { return one.number == message; });
    if (wanted != under_way_.end()) retire(wanted, current);
  }

  void join() override {
    throw_if_aborted();
    c10::cuda::CUDAGuard guard(device_);
    const Stream current = c10::cuda::getCurrentCUDAStream(device_);
    std::lock_guard<std::timed_mutex> lock(mutex_);
    while (!under_way_.empty()) retire(under_way_.begin(), current);
  }

  void mark() override {
    begin();
    std::lock_guard<std::timed_mutex> lock(mutex_);
    ++begun_;
    tail_.record(c10::cuda::getCurrentCUDAStream(device_));
    has_tail_ = true;
  }

  void forget() override {
    std::lock_guard<std::timed_mutex> lock(mutex_);
    under_way_.clear();
    free_.clear();
    ready_ = Event(cudaEventDisableTiming);
  }

  Progress look() override {
    c10::cuda::CUDAGuard guard(device_);
    const RelaxedCapture relaxed;
    std::unique_lock<std::timed_mutex> lock(mutex_, std::try_to_lock);
    // Whoever holds it may be held up itself, where the queue of the GPU is full.
    if (!lock.owns_lock()) return {begun_, seen_};
    const ncclComm_t comm = comm_;
    if (comm == nullptr || aborted_) return {begun_, begun_};
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(comm, &state);
    if (asked != ncclSuccess) state = asked;
    if (state != ncclSuccess && state != ncclInProgress)
      throw LaneError(state == ncclRemoteError ? "PEER_LOST" : "NCCL", text_of(state));
    if (!has_tail_ || tail_.query()) seen_ = begun_.load();
    return {begun_, seen_};
  }

  void abort(const std::string& why) override {
    {
      std::lock_guard<std::mutex> lock(reason_mutex_);
      if (aborted_) return;
      reason_ = why;
      aborted_ = true;
    }
    // A thread that is inside a call of the communicator gets out of it by itself, or is held up by what is aborted here.
    std::unique_lock<std::timed_mutex> lock(mutex_, std::chrono::seconds(1));
    c10::cuda::CUDAGuard guard(device_);
    const RelaxedCapture relaxed;
    if (ncclComm_t doomed = comm_.exchange(nullptr)) ncclCommAbort(doomed);
  }

 private:
  struct Message {
    uint64_t number = 0;
    std::shared_ptr<Event> event;
    std::vector<at::Tensor> tensors;
    bool captured = false;
  };

  Stream stream() const { return c10::cuda::getStreamFromExternal(raw_, device_); }

  bool begin() {
    throw_if_aborted();
    c10::cuda::set_device(device_);
    return is_capturing();
  }

  uint64_t enqueue(std::vector<at::Tensor> tensors, const Stream& current, bool captured) {
    const Stream own = stream();
    ready_.record(current);
    ready_.block(own);
    transfer(tensors);
    Message message;
    message.number = begun_++;
    message.captured = captured;
    message.event = take_event();
    message.event->record(own);
    message.tensors = std::move(tensors);
    under_way_.push_back(std::move(message));
    if (!captured) {
      tail_.record(own);
      has_tail_ = true;
    }
    return under_way_.back().number;
  }

  // The current stream waits for a message, which then keeps its tensors no longer.
  void retire(std::deque<Message>::iterator message, const Stream& current) {
    message->event->block(current);
    free_.push_back(std::move(message->event));
    under_way_.erase(message);
  }

  std::shared_ptr<Event> take_event() {
    if (free_.empty()) return std::make_shared<Event>(cudaEventDisableTiming);
    std::shared_ptr<Event> event = std::move(free_.back());
    free_.pop_back();
    return event;
  }

  void transfer(const std::vector<at::Tensor>& tensors) {
    const ncclComm_t comm = comm_;
    if (comm == nullptr) throw_if_aborted();
    throw_if(ncclGroupStart());
    ncclResult_t result = ncclSuccess;
    for (const at::Tensor& tensor : tensors) {
      const size_t bytes = tensor.nbytes();
      if (bytes == 0) continue;
      result = request_.sends ? ncclSend(tensor.const_data_ptr(), bytes, ncclUint8, 1, comm, raw_)
                              : ncclRecv(tensor.data_ptr(), bytes, ncclUint8, 0, comm, raw_);
      if (result != ncclSuccess && result != ncclInProgress) break;
    }
    const ncclResult_t ended = ncclGroupEnd();
    settle(result != ncclSuccess && result != ncclInProgress ? result : ended);
  }

  // Calls of a communicator that does not block are over when it says so.
  void settle(ncclResult_t result) {
    int turns = 0;
    while (result == ncclInProgress) {
      throw_if_aborted();
      if (++turns < 1000) std::this_thread::yield();
      else std::this_thread::sleep_for(std::chrono::microseconds(200));
      const ncclComm_t comm = comm_;
      if (comm != nullptr) throw_if(ncclCommGetAsyncError(comm, &result));
    }
    throw_if(result);
  }

  void throw_if(ncclResult_t result) const {
    if (result == ncclSuccess || result == ncclInProgress) return;
    throw_if_aborted();
    throw LaneError(result == ncclRemoteError ? "PEER_LOST" : "NCCL", text_of(result));
  }

  std::string text_of(ncclResult_t result) const {
    const char* more = ncclGetLastError(nullptr);
    std::string text = std::string("NCCL: ") + ncclGetErrorString(result);
    if (more != nullptr && *more != '\0') text += std::string(" (") + more + ")";
    return text;
  }

  void throw_if_aborted() const {
    if (!aborted_) return;
    std::lock_guard<std::mutex> lock(reason_mutex_);
    throw LaneError("ABORTED", reason_);
  }

  bool finished() {
    try {
      return !has_tail_ || tail_.query();
    } catch (const std::exception&) {
      return false;
    }
  }

  const LaneRequest request_;
  const c10::DeviceIndex device_;
  std::timed_mutex mutex_;  // what the watching thread sees too
  mutable std::mutex reason_mutex_;
  std::atomic<ncclComm_t> comm_{nullptr};
  std::atomic<bool> aborted_{false};
  std::string reason_;
  cudaStream_t raw_ = nullptr;
  Event ready_{cudaEventDisableTiming};
  std::atomic<uint64_t> begun_{0}, seen_{0};
  std::deque<Message> under_way_;       // in order; not yet waited for by the stream that computes with them
  Event tail_{cudaEventDisableTiming};  // after the last message outside of captures: for the watching thread
  bool has_tail_ = false;
  std::atomic<bool> connected_{false};
  std::vector<std::shared_ptr<Event>> free_;
};

}  // namespace

std::shared_ptr<DeviceLane> make_nccl_lane(const LaneRequest& request) { return std::make_shared<NcclLane>(request); }

}  // namespace pw
#endif
