// Libtorch's profiler: the operators of a thread, and what the GPUs do for this process meanwhile.
#include "core/core.h"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <atomic>
#include <cstdlib>
#include <set>

namespace pw {

namespace profiler = torch::autograd::profiler;

// There is one of it in a process.
static std::atomic<bool> is_profiling{false};

static std::set<torch::profiler::impl::ActivityType> profiled_activities() {
  using torch::profiler::impl::ActivityType;
  if (!at::hasCUDA()) return {ActivityType::CPU};
  return {ActivityType::CPU, ActivityType::CUDA};
}

static void finish_gpu_work() {
  if (!at::hasCUDA()) return;
  at::detail::getCUDAHooks().deviceSynchronize(c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).getDevice().index());
}

// (shapes): whether the shapes of inputs are noted.
PW_ENTRY(start_profiler, 1) {
  const torch::profiler::impl::ProfilerConfig config(
      torch::profiler::impl::ProfilerState::KINETO, /*report_input_shapes=*/args.boolean(0));
  if (is_profiling.exchange(true))
    throw CodedError("BUSY", "profile: this process takes a profile already; end that one first");
  try {
    finish_gpu_work();
    profiler::prepareProfiler(config, profiled_activities());
    profiler::enableProfiler(config, profiled_activities());
  } catch (...) {
    is_profiling = false;
    throw;
  }
  return nullptr;
}

// (path): writes what was seen, in the format of Chrome's traces; nothing where the path is empty.
PW_ENTRY(stop_profiler, 1) {
  const std::string path = args.string(0);
  finish_gpu_work();
  const auto result = profiler::disableProfiler();
  is_profiling = false;
  if (!path.empty()) result->save(path);
  return nullptr;
}

void init_profiler(Env& env, napi_value exports) {
  setenv("KINETO_LOG_LEVEL", "99", /*overwrite=*/0);  // it prints when it begins and ends
  add_exports(env, exports, {{"startProfiler", start_profiler}, {"stopProfiler", stop_profiler}});
}

}  // namespace pw
