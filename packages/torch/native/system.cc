// The process around the tensors: versions, threads, the CUDA library, memory told to V8.
#include "core.h"

#include <ATen/Parallel.h>
#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/version.h>

#include <dlfcn.h>

namespace pw {

PW_ENTRY(torch_version, 1) { return from_string(args.napi, TORCH_VERSION); }

// Opens libtorch_cuda beside libtorch_cpu, which registers its kernels. Returns an error text, or nothing.
PW_ENTRY(open_cuda, 1) {
  const std::string path = args.string(0);
  if (dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr) return undefined(args.napi);
  const char* error = dlerror();
  return from_string(args.napi, error != nullptr ? error : "dlopen failed");
}

PW_ENTRY(cuda_device_count, 1) {
  if (!at::hasCUDA()) return from_int32(args.napi, 0);
  return from_int32(args.napi, static_cast<int32_t>(at::detail::getCUDAHooks().deviceCount()));
}

PW_ENTRY(get_num_threads, 1) { return from_int32(args.napi, at::get_num_threads()); }

PW_ENTRY(set_num_threads, 1) {
  at::set_num_threads(args.int32(0));
  return undefined(args.napi);
}

PW_ENTRY(parallel_info, 1) { return from_string(args.napi, at::get_parallel_info()); }

PW_ENTRY(set_deterministic, 2) {
  at::globalContext().setDeterministicAlgorithms(args.boolean(0), args.boolean(1));
  return undefined(args.napi);
}

// Tells V8 how much memory this thread's tensors hold, so that its garbage collector knows of it.
PW_ENTRY(report_memory, 1) {
  const int64_t now = std::max<int64_t>(0, thread_bytes());
  int64_t total = 0;
  napi_adjust_external_memory(args.napi, now - args.env->reported_bytes, &total);
  args.env->reported_bytes = now;
  return from_double(args.napi, static_cast<double>(now));
}

PW_ENTRY(nothing, 1) { return nullptr; }

void init_system(Env& env, napi_value exports) {
  add_exports(env, exports, {
    {"torchVersion", torch_version},
    {"openCuda", open_cuda},
    {"cudaDeviceCount", cuda_device_count},
    {"getNumThreads", get_num_threads},
    {"setNumThreads", set_num_threads},
    {"parallelInfo", parallel_info},
    {"setDeterministic", set_deterministic},
    {"reportMemory", report_memory},
    {"nothing", nothing},
  });
}

}  // namespace pw
