// What needs CUDA's headers: devices, streams, events, memory statistics, graphs, and NCCL for process groups.
#include <ATen/Context.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <node_api.h>

#include <memory>
#include <string>
#include <vector>

#include "../distributed/process-group.h"
#ifdef USE_C10D_NCCL
#include "nccl-lane.h"

#include <nccl.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

namespace pw {
namespace {

// --- values -----------------------------------------------------------------------------------------------------------

struct Arguments {
  Arguments(napi_env environment, napi_callback_info info) : env(environment) {
    napi_get_cb_info(env, info, &count, values, nullptr, nullptr);
  }
  napi_env env;
  size_t count = 4;
  napi_value values[4];

  void check(napi_status status, const char* what) const {
    if (status != napi_ok) throw std::runtime_error(std::string("expected ") + what);
  }
  int32_t number(size_t i) const {
    int32_t value = 0;
    check(napi_get_value_int32(env, values[i], &value), "a number");
    return value;
  }
  bool flag(size_t i) const {
    bool value = false;
    check(napi_get_value_bool(env, values[i], &value), "a boolean");
    return value;
  }
  uint64_t address(size_t i) const {
    uint64_t value = 0;
    bool lossless = false;
    check(napi_get_value_bigint_uint64(env, values[i], &value, &lossless), "an address");
    return value;
  }
  template <typename T>
  T& object(size_t i) const {
    void* data = nullptr;
    check(napi_get_value_external(env, values[i], &data), "an object of the CUDA addon");
    return *static_cast<T*>(data);
  }
};

napi_value nothing(napi_env env) {
  napi_value value;
  napi_get_undefined(env, &value);
  return value;
}

napi_value number(napi_env env, double value) {
  napi_value result;
  napi_create_double(env, value, &result);
  return result;
}

napi_value flag(napi_env env, bool value) {
  napi_value result;
  napi_get_boolean(env, value, &result);
  return result;
}

template <typename T>
napi_value wrap(napi_env env, std::unique_ptr<T> object) {
  napi_value result;
  T* raw = object.release();
  const auto destroy = [](napi_env, void* data, void*) { delete static_cast<T*>(data); };
  napi_create_external(env, raw, destroy, nullptr, &result);
  return result;
}

template <napi_value (*Body)(Arguments&)>
napi_value entry(napi_env env, napi_callback_info info) {
  try {
    Arguments arguments(env, info);
    return Body(arguments);
  } catch (const c10::Error& error) {
    napi_throw_error(env, "CUDA", error.what_without_backtrace());
  } catch (const std::exception& error) {
    napi_throw_error(env, "CUDA", error.what());
  } catch (...) {
    napi_throw_error(env, "CUDA", "an unknown C++ exception");
  }
  return nullptr;
}

using Stream = c10::cuda::CUDAStream;
using Event = at::cuda::CUDAEvent;

struct Graph : at::cuda::CUDAGraph {
  at::Generator before;  // the state of the default generator, for a capture that fails
  c10::DeviceIndex device = 0;

  // After a capture that did not end by itself (streams that it has reached were not joined, something in it was forbidden):
  // libtorch leaves its generator in it, and older versions their allocator, which then keeps the memory for good.
  void give_up() {
    cudaGetLastError();
    reset();
    try {
      c10::cuda::CUDACachingAllocator::endAllocateToPool(device, mempool_id_);
      c10::cuda::CUDACachingAllocator::releasePool(device, mempool_id_);
    } catch (const std::exception&) {
      // it had ended that
    }
    at::Generator generator = at::cuda::detail::getDefaultCUDAGenerator(device);
    generator.graphsafe_set_state(before);
  }
};

// --- devices ----------------------------------------------------------------------------------------------------------

napi_value device_count(Arguments& a) { return number(a.env, c10::cuda::device_count()); }
napi_value current_device(Arguments& a) { return number(a.env, c10::cuda::current_device()); }
napi_value set_device(Arguments& a) {
  c10::cuda::set_device(static_cast<c10::DeviceIndex>(a.number(0)));
  return nothing(a.env);
}
napi_value synchronize(Arguments& a) {
  c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(a.number(0)));
  c10::cuda::device_synchronize();
  return nothing(a.env);
}

// (device): [name, total bytes, multiprocessors, major, minor]
napi_value properties(Arguments& a) {
  const cudaDeviceProp* found = at::cuda::getDeviceProperties(static_cast<c10::DeviceIndex>(a.number(0)));
  napi_value result, name;
  napi_create_array_with_length(a.env, 5, &result);
  napi_create_string_utf8(a.env, found->name, NAPI_AUTO_LENGTH, &name);
  napi_set_element(a.env, result, 0, name);
  napi_set_element(a.env, result, 1, number(a.env, static_cast<double>(found->totalGlobalMem)));
  napi_set_element(a.env, result, 2, number(a.env, found->multiProcessorCount));
  napi_set_element(a.env, result, 3, number(a.env, found->major));
  napi_set_element(a.env, result, 4, number(a.env, found->minor));
  return result;
}

// --- streams and events -----------------------------------------------------------------------------------------------

// (device, high priority)
napi_value create_stream(Arguments& a) {
  return wrap(a.env,
      std::make_unique<Stream>(c10::cuda::getStreamFromPool(a.flag(1), static_cast<c10::DeviceIndex>(a.number(0)))));
}
napi_value current_stream(Arguments& a) {
  return wrap(
      a.env, std::make_unique<Stream>(c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(a.number(0)))));
}
napi_value default_stream(Arguments& a) {
  return wrap(
      a.env, std::make_unique<Stream>(c10::cuda::getDefaultCUDAStream(static_cast<c10::DeviceIndex>(a.number(0)))));
}
napi_value set_stream(Arguments& a) {
  c10::cuda::setCurrentCUDAStream(a.object<Stream>(0));
  return nothing(a.env);
}
napi_value stream_synchronize(Arguments& a) {
  a.object<Stream>(0).synchronize();
  return nothing(a.env);
}
napi_value stream_query(Arguments& a) { return flag(a.env, a.object<Stream>(0).query()); }
napi_value stream_id(Arguments& a) {
  napi_value result;
  napi_create_bigint_int64(a.env, a.object<Stream>(0).id(), &result);
  return result;
}
napi_value stream_device(Arguments& a) { return number(a.env, a.object<Stream>(0).device_index()); }

// (timing)
napi_value create_event(Arguments& a) {
  return wrap(a.env, std::make_unique<Event>(a.flag(0) ? cudaEventDefault : cudaEventDisableTiming));
}
napi_value event_record(Arguments& a) {
  a.object<Event>(0).record(a.object<Stream>(1));
  return nothing(a.env);
}
// (event, stream): the stream waits for the event
napi_value event_block(Arguments& a) {
  a.object<Event>(0).block(a.object<Stream>(1));
  return nothing(a.env);
}
napi_value event_query(Arguments& a) { return flag(a.env, a.object<Event>(0).query()); }
napi_value event_synchronize(Arguments& a) {
  a.object<Event>(0).synchronize();
  return nothing(a.env);
}
napi_value event_elapsed(Arguments& a) { return number(a.env, a.object<Event>(0).elapsed_time(a.object<Event>(1))); }

// --- memory -----------------------------------------------------------------------------------------------------------

// The allocator knows no device before libtorch has set itself up, which otherwise the first tensor on a GPU makes it do.
void set_up_allocator() { at::globalContext().lazyInitDevice(c10::DeviceType::CUDA); }

// (device): [allocated, peak allocated, reserved, peak reserved] in bytes
napi_value memory_stats(Arguments& a) {
  set_up_allocator();
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(static_cast<c10::DeviceIndex>(a.number(0)));
  const auto& allocated = stats.allocated_bytes[0];
  const auto& reserved = stats.reserved_bytes[0];
  const double values[] = {static_cast<double>(allocated.current), static_cast<double>(allocated.peak),
      static_cast<double>(reserved.current), static_cast<double>(reserved.peak)};
  napi_value result;
  napi_create_array_with_length(a.env, 4, &result);
  for (uint32_t i = 0; i < 4; ++i) napi_set_element(a.env, result, i, number(a.env, values[i]));
  return result;
}
napi_value reset_peak(Arguments& a) {
  set_up_allocator();
  c10::cuda::CUDACachingAllocator::resetPeakStats(static_cast<c10::DeviceIndex>(a.number(0)));
  return nothing(a.env);
}
napi_value empty_cache(Arguments& a) {
  c10::cuda::CUDACachingAllocator::emptyCache();
  return nothing(a.env);
}
// (device): [free, total] as the driver says
napi_value memory_info(Arguments& a) {
  c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(a.number(0)));
  size_t free_bytes = 0, total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total));
  napi_value result;
  napi_create_array_with_length(a.env, 2, &result);
  napi_set_element(a.env, result, 0, number(a.env, static_cast<double>(free_bytes)));
  napi_set_element(a.env, result, 1, number(a.env, static_cast<double>(total)));
  return result;
}

// --- graphs -----------------------------------------------------------------------------------------------------------

napi_value create_graph(Arguments& a) { return wrap(a.env, std::make_unique<Graph>()); }
// (graph, mode, graph to share memory with, or nothing)
napi_value capture_begin(Arguments& a) {
  napi_valuetype type = napi_undefined;
  if (a.count > 2) napi_typeof(a.env, a.values[2], &type);
  const at::cuda::MempoolId_t pool = type == napi_external ? a.object<Graph>(2).pool() : at::cuda::MempoolId_t{0, 0};
  Graph& graph = a.object<Graph>(0);
  graph.device = c10::cuda::current_device();
  set_up_allocator();
  graph.before = at::cuda::detail::getDefaultCUDAGenerator(graph.device).clone();
  try {
    graph.capture_begin(pool, static_cast<cudaStreamCaptureMode>(a.number(1)));
  } catch (...) {
    graph.give_up();
    throw;
  }
  return nothing(a.env);
}
napi_value capture_end(Arguments& a) {
  a.object<Graph>(0).capture_end();
  return nothing(a.env);
}
// Ends a capture that went wrong, so that the stream can be used again, and the graph for another capture.
napi_value capture_abort(Arguments& a) {
  Graph& graph = a.object<Graph>(0);
  try {
    graph.capture_end();
    graph.reset();
  } catch (const std::exception&) {
    graph.give_up();
  }
  graph.before = at::Generator();
  return nothing(a.env);
}
napi_value replay(Arguments& a) {
  a.object<Graph>(0).replay();
  return nothing(a.env);
}
napi_value reset_graph(Arguments& a) {
  a.object<Graph>(0).reset();
  return nothing(a.env);
}
napi_value is_capturing(Arguments& a) {
  return flag(a.env, c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None);
}

// --- NCCL -------------------------------------------------------------------------------------------------------------

#ifdef USE_C10D_NCCL
c10::intrusive_ptr<c10d::Backend> make_nccl(const BackendRequest& request) {
  c10::cuda::set_device(static_cast<c10::DeviceIndex>(request.device));
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = request.timeout;
  options->group_name = request.name;
  auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(request.store, request.rank, request.size, options);
  backend->setBoundDeviceId(c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(request.device)));
  return backend;
}
#endif

// (address of the main addon's table of backends): whether NCCL is there
napi_value install_nccl(Arguments& a) {
  auto* registry = reinterpret_cast<BackendRegistry*>(a.address(0));
  if (registry->version != BackendRegistry::kVersion)
    throw std::runtime_error("the two addons were built from different sources: run `npx pipewright setup`");
#ifdef USE_C10D_NCCL
  registry->nccl = &make_nccl;
  registry->lane = &make_nccl_lane;
  return flag(a.env, true);
#else
  return flag(a.env, false);
#endif
}

// The version of NCCL as a number, 22809 for 2.28.9; 0 where the addon has none.
napi_value nccl_version(Arguments& a) {
  int version = 0;
#ifdef USE_C10D_NCCL
  if (ncclGetVersion(&version) != ncclSuccess) version = 0;
#endif
  return number(a.env, version);
}

// (device, other): whether kernels of one can read the memory of the other.
napi_value can_access_peer(Arguments& a) {
  int can = 0;
  C10_CUDA_CHECK(cudaDeviceCanAccessPeer(&can, a.number(0), a.number(1)));
  return flag(a.env, can != 0);
}

struct Export {
  const char* name;
  napi_callback function;
};

napi_value init(napi_env env, napi_value exports) {
  const Export all[] = {
      {"deviceCount", entry<device_count>},
      {"currentDevice", entry<current_device>},
      {"setDevice", entry<set_device>},
      {"synchronize", entry<synchronize>},
      {"properties", entry<properties>},
      {"createStream", entry<create_stream>},
      {"currentStream", entry<current_stream>},
      {"defaultStream", entry<default_stream>},
      {"setStream", entry<set_stream>},
      {"streamSynchronize", entry<stream_synchronize>},
      {"streamQuery", entry<stream_query>},
      {"streamId", entry<stream_id>},
      {"streamDevice", entry<stream_device>},
      {"createEvent", entry<create_event>},
      {"eventRecord", entry<event_record>},
      {"eventBlock", entry<event_block>},
      {"eventQuery", entry<event_query>},
      {"eventSynchronize", entry<event_synchronize>},
      {"eventElapsed", entry<event_elapsed>},
      {"memoryStats", entry<memory_stats>},
      {"resetPeak", entry<reset_peak>},
      {"emptyCache", entry<empty_cache>},
      {"memoryInfo", entry<memory_info>},
      {"createGraph", entry<create_graph>},
      {"captureBegin", entry<capture_begin>},
      {"captureEnd", entry<capture_end>},
      {"captureAbort", entry<capture_abort>},
      {"replay", entry<replay>},
      {"resetGraph", entry<reset_graph>},
      {"isCapturing", entry<is_capturing>},
      {"installNccl", entry<install_nccl>},
      {"ncclVersion", entry<nccl_version>},
      {"canAccessPeer", entry<can_access_peer>},
  };
  for (const Export& item : all) {
    napi_value function;
    napi_create_function(env, item.name, NAPI_AUTO_LENGTH, item.function, nullptr, &function);
    napi_set_named_property(env, exports, item.name, function);
  }
  return exports;
}

}  // namespace
}  // namespace pw

NAPI_MODULE_INIT() { return pw::init(env, exports); }
