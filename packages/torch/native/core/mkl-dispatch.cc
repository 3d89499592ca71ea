// Which kernels MKL chooses. It asks a function of its own whether the processor is Intel's, and uses no AVX-512 on others, although they
// have it too: on a Zen 4 its matrix products then run at about three quarters of their speed. The function is an ordinary symbol, and this
// addon comes before libtorch where symbols are looked up, so MKL asks here. With this answer it goes by the features that the processor reports.
// Where libtorch has no MKL, or one that does not ask, this is never called. PIPEWRIGHT_MKL=vendor leaves the choice to MKL.
#include "core/core.h"

#include <atomic>
#include <cstdlib>
#include <cstring>

namespace pw {
namespace {

std::atomic<bool> mkl_has_asked{false};

bool mkl_goes_by_features() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_is("intel")) return true;
  const char* wish = getenv("PIPEWRIGHT_MKL");
  if (wish != nullptr && std::strcmp(wish, "vendor") == 0) return false;
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
#else
  return false;
#endif
}

}  // namespace

const char* mkl_dispatch() {
  if (!mkl_has_asked) return "";
  return mkl_goes_by_features() ? "features" : "vendor";
}

}  // namespace pw

extern "C" __attribute__((visibility("default"))) int mkl_serv_intel_cpu_true() {
  pw::mkl_has_asked = true;
  return pw::mkl_goes_by_features() ? 1 : 0;
}
