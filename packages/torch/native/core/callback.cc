// TypeScript functions called from C++: the direct call, the bridge from other threads, and what they throw.
#include "core/callback.h"

#include <ATen/Parallel.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <optional>

namespace pw {

// --- what a function threw --------------------------------------------------------------------------------------------

// Held by the exceptions on their way through the engine, on whatever thread; the reference is dropped by its own.
struct Thrown {
  napi_env napi = nullptr;
  napi_ref holder = nullptr;  // { thrown: value }: references to plain strings and numbers are not allowed
  std::string text;
  std::shared_ptr<Graveyard> graveyard;
  ~Thrown() {
    if (holder == nullptr) return;
    std::lock_guard<std::mutex> lock(graveyard->mutex);
    if (graveyard->open) graveyard->references.push_back(holder);
  }
};

const char* CallbackError::what() const noexcept { return thrown->text.c_str(); }

bool rethrow_callback_error(napi_env env, const CallbackError& error) noexcept {
  if (error.thrown->napi != env || error.thrown->holder == nullptr) return false;
  napi_value holder, value;
  if (napi_get_reference_value(env, error.thrown->holder, &holder) != napi_ok || holder == nullptr) return false;
  if (napi_get_named_property(env, holder, "thrown", &value) != napi_ok) return false;
  return napi_throw(env, value) == napi_ok;
}

static std::string text_of(napi_env env, napi_value value) {
  napi_value text;
  if (napi_coerce_to_string(env, value, &text) == napi_ok) return to_string(env, text);
  napi_value ignored;
  napi_get_and_clear_last_exception(env, &ignored);
  return "a TypeScript function threw";
}

[[noreturn]] static void throw_callback_error(Env& env) {
  auto thrown = std::make_shared<Thrown>();
  thrown->napi = env.napi;
  thrown->graveyard = env.graveyard;
  thrown->text = "a TypeScript function called by libtorch threw";
  napi_value value, holder;
  if (napi_get_and_clear_last_exception(env.napi, &value) == napi_ok &&
      napi_create_object(env.napi, &holder) == napi_ok) {
    thrown->text = text_of(env.napi, value);
    napi_set_named_property(env.napi, holder, "thrown", value);
    napi_create_reference(env.napi, holder, 1, &thrown->holder);
  }
  throw CallbackError(std::move(thrown));
}

std::vector<at::Tensor> invoke(Env& env, double id, double extra, const std::vector<at::Tensor>& inputs) {
  napi_handle_scope scope;
  check(env.napi, napi_open_handle_scope(env.napi, &scope), "a running JavaScript thread");
  struct Close {
    Env& env;
    napi_handle_scope scope;
    ~Close() { napi_close_handle_scope(env.napi, scope); }
  } close{env, scope};
  napi_value runner, receiver = undefined(env.napi), result;
  if (env.callback_runner == nullptr) throw CodedError("INTERNAL", "internal: no runner of callbacks was set");
  napi_get_reference_value(env.napi, env.callback_runner, &runner);
  napi_value arguments[3] = {from_double(env.napi, id), from_double(env.napi, extra), from_tensors(env, inputs)};
  if (napi_call_function(env.napi, receiver, runner, 3, arguments, &result) != napi_ok) throw_callback_error(env);
  std::vector<at::Tensor> outputs;
  if (is_missing(env.napi, result)) return outputs;
  for (napi_value item : elements(env.napi, result)) {  // handles of its own for each: they end here
    if (is_missing(env.napi, item)) {
      outputs.emplace_back();
      continue;
    }
    int32_t handle = 0;
    check(env.napi, napi_get_value_int32(env.napi, item, &handle), "a tensor");
    outputs.push_back(env.tensor(handle));
    env.tensors.remove(handle);
  }
  return outputs;
}

// --- where code runs --------------------------------------------------------------------------------------------------

static bool has_cuda() {
  if (!c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA)) return false;
  static const bool found = c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).deviceCount() > 0;
  return found;
}

ThreadPlace::ThreadPlace() {
  if (!has_cuda()) return;
  const c10::impl::VirtualGuardImpl guard(c10::DeviceType::CUDA);
  device_ = guard.getDevice().index();
  const int count = guard.deviceCount();
  streams_.reserve(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i)
    streams_.push_back(guard.getStream(c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(i))));
}

void ThreadPlace::enter_streams() const {
  if (device_ < 0) return;
  const c10::impl::VirtualGuardImpl guard(c10::DeviceType::CUDA);
  for (const c10::Stream& stream : streams_) guard.exchangeStream(stream);
  guard.setDevice(c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device_)));
}

ThreadPlace::Guard::Guard(const ThreadPlace& place) : modes_(place.modes_) {
  if (place.device_ < 0) return;
  before_ = std::make_unique<ThreadPlace>();
  place.enter_streams();
}

ThreadPlace::Guard::~Guard() {
  if (before_ == nullptr) return;
  try {
    before_->enter_streams();
  } catch (...) {  // a lost device: the next call on it says so
  }
}

// --- the bridge -------------------------------------------------------------------------------------------------------

Bridge::Bridge(Env& env) : graveyard(env.graveyard), env_(&env) {}

void Bridge::Job::run() noexcept {
  try {
    ThreadPlace::Guard guard(place);
    if (cores > 0 && at::get_num_threads() != cores) at::set_num_threads(cores);
    (*work)();
  } catch (...) {
    error = std::current_exception();
  }
}

bool Bridge::needs_helper() const { return callbacks.load() > 0 && (has_cuda() || forced.load()); }

void Bridge::call(const std::function<void(Env&)>& body) {
  Env* mine = current_env();
  if (mine != nullptr && mine->bridge.get() == this) {
    body(*mine);
    return;
  }
  Request request{&body, ThreadPlace(), nullptr, nullptr, false, {}};
  std::unique_lock<std::mutex> lock(mutex_);
  if (closed_ || (listening_ == 0 && beside_ == nullptr)) {
    throw CodedError("WRONG_THREAD",
        "this graph calls a TypeScript function (hook, custom function, checkpoint) of another thread: run backward in "
        "the thread that recorded it");
  }
  requests_.push_back(&request);
  wake_.notify_one();
  for (;;) {
    request.wake.wait(lock, [&] { return request.done || request.job != nullptr; });
    if (request.job == nullptr) break;
    Job* job = std::exchange(request.job, nullptr);
    lock.unlock();
    job->run();  // a backward inside the function: here it is a nested one
    lock.lock();
    job->done = true;
    wake_.notify_one();
  }
  lock.unlock();
  if (request.error) std::rethrow_exception(request.error);
}

// Answers requests until the job is done.
void Bridge::serve(Job& job, std::unique_lock<std::mutex>& lock) {
  ++listening_;
  for (;;) {
    wake_.wait(lock, [&] { return job.done || !requests_.empty(); });
    if (requests_.empty()) break;
    Request* request = requests_.front();
    requests_.pop_front();
    Request* before = std::exchange(serving_, request);
    lock.unlock();
    try {
      ThreadPlace::Guard guard(request->place);
      (*request->body)(*env_);
    } catch (...) {
      request->error = std::current_exception();
    }
    lock.lock();
    serving_ = before;
    request->done = true;
    request->wake.notify_one();
  }
  --listening_;
}

void Bridge::help_with(Job& job) {
  if (!helper_.joinable()) helper_ = std::thread([this] { help(); });
  helper_job_ = &job;
  helper_wake_.notify_one();
}

void Bridge::run_engine(const std::function<void()>& work) {
  if (beside_ != nullptr && serving_ == nullptr)
    settle();  // the helper may be needed, and one backward may be part of another
  if (serving_ == nullptr && !needs_helper()) {
    work();
    return;
  }
  Job job{&work, ThreadPlace(), nullptr, false, 0};
  std::unique_lock<std::mutex> lock(mutex_);
  if (serving_ != nullptr) {
    serving_->job = &job;
    serving_->wake.notify_one();
  } else {
    help_with(job);
  }
  serve(job, lock);
  lock.unlock();
  if (job.error) std::rethrow_exception(job.error);
}

void Bridge::start(std::function<void()> work, int cores) {
  if (serving_ != nullptr || beside_ != nullptr) {
    throw CodedError("BUSY", "startBackward: another backward is under way in this thread; finish() it first");
  }
  std::lock_guard<std::mutex> lock(mutex_);
  beside_work_ = std::move(work);
  beside_ = std::make_unique<Job>(Job{&beside_work_, ThreadPlace(), nullptr, false, cores});
  help_with(*beside_);
}

void Bridge::settle() {
  std::unique_lock<std::mutex> lock(mutex_);
  serve(*beside_, lock);
}

bool Bridge::finished() {
  std::lock_guard<std::mutex> lock(mutex_);
  return beside_ == nullptr || beside_->done;
}

void Bridge::finish() {
  if (beside_ == nullptr) return;
  settle();
  std::unique_lock<std::mutex> lock(mutex_);
  const std::unique_ptr<Job> job = std::move(beside_);
  const std::function<void()> work = std::move(beside_work_);
  lock.unlock();
  if (job->error) std::rethrow_exception(job->error);
}

void Bridge::help() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    helper_wake_.wait(lock, [&] { return closed_ || helper_job_ != nullptr; });
    if (helper_job_ == nullptr) return;
    Job* job = std::exchange(helper_job_, nullptr);
    lock.unlock();
    job->run();
    lock.lock();
    job->done = true;
    wake_.notify_one();
  }
}

void Bridge::close() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
    for (Request* request : requests_) {  // of a backward that nobody will finish
      request->error =
          std::make_exception_ptr(CodedError("TERMINATED", "the thread of this TypeScript function has ended"));
      request->done = true;
      request->wake.notify_one();
    }
    requests_.clear();
    helper_wake_.notify_one();
  }
  if (helper_.joinable()) helper_.join();
  beside_.reset();
  beside_work_ = nullptr;
}

void run_engine(Env& env, const std::function<void()>& work) {
  struct Sweep {
    Env& env;
    ~Sweep() { sweep(env); }
  } after{env};
  env.bridge->run_engine(work);
}

// --- one function -----------------------------------------------------------------------------------------------------

Callback::Callback(std::shared_ptr<Bridge> bridge, double id) : bridge_(std::move(bridge)), id_(id) {
  ++bridge_->callbacks;
}
Callback::Callback(Env& env, double id) : Callback(env.bridge, id) {}

Callback::~Callback() {
  --bridge_->callbacks;
  std::lock_guard<std::mutex> lock(bridge_->graveyard->mutex);
  if (bridge_->graveyard->open) bridge_->graveyard->callbacks.push_back(id_);
}

std::vector<at::Tensor> Callback::run(const std::vector<at::Tensor>& inputs, double extra) const {
  std::vector<at::Tensor> outputs;
  bridge_->call([&](Env& env) { outputs = invoke(env, id_, extra, inputs); });
  return outputs;
}

// --- entry points -----------------------------------------------------------------------------------------------------

// ((id, extra, handles) => handles)
PW_ENTRY(set_callback_runner, 1) {
  if (args.env->callback_runner != nullptr) napi_delete_reference(args.napi, args.env->callback_runner);
  check(args.napi, napi_create_reference(args.napi, args.values[0], 1, &args.env->callback_runner), "a function");
  return undefined(args.napi);
}

// Numbers of functions that nobody can call any more, or nothing.
PW_ENTRY(take_buried, 1) {
  if (args.env->packing == 0) args.env->tensors.flush();
  std::vector<double> ids;
  {
    std::lock_guard<std::mutex> lock(args.env->graveyard->mutex);
    if (args.env->graveyard->callbacks.empty()) return nullptr;
    ids.swap(args.env->graveyard->callbacks);
  }
  for (const double id : ids) forget_hook(id);
  napi_value result;
  napi_create_array_with_length(args.napi, ids.size(), &result);
  for (size_t i = 0; i < ids.size(); ++i)
    napi_set_element(args.napi, result, static_cast<uint32_t>(i), from_double(args.napi, ids[i]));
  return result;
}

PW_ENTRY(live_callbacks, 1) { return from_double(args.napi, static_cast<double>(args.env->bridge->callbacks.load())); }

// Engine runs use the helper thread even without CUDA; returns what was set before.
PW_ENTRY(force_bridge, 1) { return from_bool(args.napi, args.env->bridge->forced.exchange(args.boolean(0))); }

void init_callbacks(Env& env, napi_value exports) {
  env.bridge = std::make_shared<Bridge>(env);
  add_exports(env, exports,
      {
          {"setCallbackRunner", set_callback_runner},
          {"takeBuried", take_buried},
          {"liveCallbacks", live_callbacks},
          {"forceBridge", force_bridge},
      });
  init_hooks(env, exports);
  init_custom_function(env, exports);
  init_saved_tensors(env, exports);
}

void close_callbacks(Env& env) {
  if (env.bridge != nullptr) env.bridge->close();
}

}  // namespace pw
