// The process around the tensors: versions, threads, the CUDA library, bytes of tensors.
#include "core/core.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/version.h>

#include <dlfcn.h>
#include <time.h>
#include <unistd.h>

#include <cstdlib>

namespace pw {

PW_ENTRY(torch_version, 1) { return from_string(args.napi, TORCH_VERSION); }

// Opens libtorch_cuda, which registers its kernels, where it lies beside libtorch_cpu and there is a driver. Returns why
// there is no CUDA, or an empty text. PIPEWRIGHT_CUDA=0 leaves it closed.
static std::string open_cuda() {
  const char* wish = getenv("PIPEWRIGHT_CUDA");
  if (wish != nullptr && std::string(wish) == "0") return "PIPEWRIGHT_CUDA=0 says not to use it";
  if (access("/dev/nvidiactl", F_OK) != 0 && access("/dev/dxg", F_OK) != 0) return "this machine has no NVIDIA driver";
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(&at::get_num_threads), &info) == 0) return "the place of libtorch_cpu is unknown";
  std::string path = info.dli_fname;
  path = path.substr(0, path.rfind('/') + 1) + "libtorch_cuda.so";
  if (access(path.c_str(), F_OK) != 0) return "this libtorch was built without CUDA: " + path + " is not there";
  if (dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr) return "";
  const char* error = dlerror();
  return error != nullptr ? error : "libtorch_cuda.so does not open";
}

static const std::string& cuda_problem() {
  static const std::string problem = open_cuda();
  return problem;
}

PW_ENTRY(cuda_problem_text, 1) { return from_string(args.napi, cuda_problem()); }

PW_ENTRY(cuda_device_count, 1) {
  if (!at::hasCUDA()) return from_int32(args.napi, 0);
  return from_int32(args.napi, static_cast<int32_t>(at::detail::getCUDAHooks().deviceCount()));
}

// (index, ownStream): the GPU that 'cuda' means in this thread, and whether its operators go to a stream of its own.
PW_ENTRY(use_gpu, 2) {
  const c10::impl::VirtualGuardImpl gpu(c10::DeviceType::CUDA);
  const c10::Device device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(args.int32(0)));
  gpu.setDevice(device);
  if (args.boolean(1)) gpu.exchangeStream(gpu.getStreamFromGlobalPool(device, /*isHighPriority=*/false));
  return nullptr;
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

// Bytes of this thread's tensors. V8 is not told of them: it would collect whenever a step holds more than before, in vain, because
// scopes free what they own; what no scope owns is tracked (tensor/tracker.cc).
PW_ENTRY(live_bytes, 1) { return from_double(args.napi, static_cast<double>(thread_bytes())); }

// Milliseconds that a processor has worked for this thread.
PW_ENTRY(thread_time, 1) {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return from_double(args.napi, static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) * 1e-6);
}

// (tensor): whether nobody else holds it or its memory.
PW_ENTRY(holds_alone, 1) {
  const at::Tensor& tensor = args.tensor(0);
  return from_bool(args.napi, tensor.use_count() == 1 && tensor.has_storage() && tensor.storage().use_count() == 1);
}

// A stand-in: other memory by its looks, which is held by holding the storage of a tensor once, however many hold the stand-in.
static void drop_original(void* original) { delete static_cast<c10::Storage*>(original); }

// (tensor): [stand-in, a number for its memory, bytes of its memory].
PW_ENTRY(stand_in, 1) {
  const at::Tensor& tensor = args.tensor(0);
  const c10::Storage& original = tensor.storage();
  void* data = original.mutable_data();
  c10::Storage storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), original.nbytes(),
      c10::DataPtr(data, new c10::Storage(original), &drop_original, original.device()), /*allocator=*/nullptr,
      /*resizable=*/false));
  at::NoGradGuard no_grad;
  at::Tensor other = at::empty({0}, tensor.options().requires_grad(false));
  other.set_(std::move(storage), tensor.storage_offset(), tensor.sizes(), tensor.strides());
  napi_value array;
  napi_create_array_with_length(args.napi, 3, &array);
  napi_set_element(args.napi, array, 0, from_int32(args.napi, args.env->wrap(std::move(other))));
  napi_set_element(args.napi, array, 1, from_double(args.napi, static_cast<double>(reinterpret_cast<uintptr_t>(data))));
  napi_set_element(args.napi, array, 2, from_double(args.napi, static_cast<double>(original.nbytes())));
  return array;
}

// (stand-in): how many hold the storage that it stands for; stand-ins count once each.
PW_ENTRY(original_holders, 1) {
  const c10::DataPtr& data = args.tensor(0).storage().data_ptr();
  if (data.get_deleter() != &drop_original) throw CodedError("BAD_ARGUMENT", "the tensor stands for no other");
  const size_t count = static_cast<c10::Storage*>(data.get_context())->use_count();
  return from_double(args.napi, static_cast<double>(count));
}

// How MKL chooses its kernels: by the "features" of the processor, by its "vendor"; empty while it has not been asked to do anything.
PW_ENTRY(mkl_dispatch_text, 1) { return from_string(args.napi, mkl_dispatch()); }

// Which dispatch keys this thread adds and leaves out: what decides the path of an operator.
PW_ENTRY(dispatch_state, 1) {
  const c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  return from_string(
      args.napi, "included " + c10::toString(keys.included_) + ", excluded " + c10::toString(keys.excluded_));
}

PW_ENTRY(nothing, 1) { return nullptr; }

void init_system(Env& env, napi_value exports) {
  cuda_problem();
  add_exports(env, exports,
      {
          {"torchVersion", torch_version},
          {"cudaProblem", cuda_problem_text},
          {"cudaDeviceCount", cuda_device_count},
          {"useGpu", use_gpu},
          {"getNumThreads", get_num_threads},
          {"setNumThreads", set_num_threads},
          {"parallelInfo", parallel_info},
          {"setDeterministic", set_deterministic},
          {"liveBytes", live_bytes},
          {"threadTime", thread_time},
          {"holdsAlone", holds_alone},
          {"standIn", stand_in},
          {"originalHolders", original_holders},
          {"mklDispatch", mkl_dispatch_text},
          {"dispatchState", dispatch_state},
          {"nothing", nothing},
      });
}

}  // namespace pw
