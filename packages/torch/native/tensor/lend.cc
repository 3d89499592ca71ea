// Tensors handed from one JavaScript thread to another by number, without a copy. What nobody takes is freed with its lender.
#include "core/core.h"

#include <c10/core/CPUAllocator.h>

#include <unordered_set>

namespace pw {

static std::mutex lent_mutex;
static std::unordered_map<int64_t, std::unordered_map<int64_t, at::Tensor>> lent;  // by lender and number
static std::unordered_set<int64_t> lenders_ended;
static int64_t lent_count = 0;

// Makes a lender and gives its number.
PW_ENTRY(open_lender, 0) {
  std::lock_guard<std::mutex> lock(lent_mutex);
  lent[++lent_count];
  return from_int64(args.napi, lent_count);
}

// (lender, tensor): the number of the tensor; 0 where the lender is closed.
PW_ENTRY(lend_tensor, 2) {
  at::Tensor tensor = args.tensor(1).detach();
  // Memory of JavaScript ends with its thread: only libtorch's own is lent as it is.
  if (tensor.is_cpu() && tensor.storage().data_ptr().get_deleter() != c10::GetCPUAllocator()->raw_deleter() &&
      !tensor.is_pinned())
    tensor = tensor.clone();
  std::lock_guard<std::mutex> lock(lent_mutex);
  const auto found = lent.find(args.int64(0));
  if (found == lent.end()) return from_int64(args.napi, 0);
  found->second.emplace(++lent_count, std::move(tensor));
  return from_int64(args.napi, lent_count);
}

// (lender, number): the tensor, which is lent no longer.
PW_ENTRY(take_lent, 2) {
  at::Tensor tensor;
  {
    std::lock_guard<std::mutex> lock(lent_mutex);
    const auto found = lent.find(args.int64(0));
    const auto entry = found == lent.end() ? decltype(found->second.end()){} : found->second.find(args.int64(1));
    if (found == lent.end() || entry == found->second.end())
      throw CodedError("STALE_HANDLE", "this tensor is not lent, or was taken already");
    tensor = std::move(entry->second);
    found->second.erase(entry);
  }
  return from_int32(args.napi, args.env->wrap(std::move(tensor)));
}

// Closes a lender and frees what is still lent; says how many tensors that were.
PW_ENTRY(close_lender, 1) {
  std::unordered_map<int64_t, at::Tensor> left;
  {
    std::lock_guard<std::mutex> lock(lent_mutex);
    const auto found = lent.find(args.int64(0));
    if (found == lent.end()) return from_int32(args.napi, 0);
    left = std::move(found->second);
    lent.erase(found);
  }
  return from_int32(args.napi, static_cast<int32_t>(left.size()));
}

// The calling thread is the lender's own: when it ends, in whatever way, the lender is one that has ended.
PW_ENTRY(attach_lender, 1) {
  auto* number = new int64_t(args.int64(0));
  napi_add_env_cleanup_hook(
      args.napi,
      [](void* data) {
        const std::unique_ptr<int64_t> ended(static_cast<int64_t*>(data));
        std::lock_guard<std::mutex> lock(lent_mutex);
        lenders_ended.insert(*ended);
      },
      number);
  return undefined(args.napi);
}

// Whether the thread of a lender has ended.
PW_ENTRY(has_lender_ended, 1) {
  std::lock_guard<std::mutex> lock(lent_mutex);
  return from_bool(args.napi, lenders_ended.count(args.int64(0)) > 0);
}

void init_lend(Env& env, napi_value exports) {
  add_exports(env, exports,
      {
          {"openLender", open_lender},
          {"lendTensor", lend_tensor},
          {"takeLent", take_lent},
          {"closeLender", close_lender},
          {"attachLender", attach_lender},
          {"hasLenderEnded", has_lender_ended},
      });
}

}  // namespace pw
