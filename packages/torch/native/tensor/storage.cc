// The memory under tensors: lent by one to another, freed while the tensor stays, and shared by threads under a name.
#include "core/core.h"
#include "core/pin.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/variable.h>

#include <map>
#include <mutex>

namespace pw {
namespace {

// Memory that is lent is pinned: its own tensor neither moves nor frees it.
void drop_lender(void* lender) { delete static_cast<Pin*>(lender); }

void check_not_pinned(const at::Tensor& tensor, const char* where) {
  if (is_pinned(tensor))
    throw CodedError("NOT_RESIZABLE", std::string(where) +
                                          ": the tensor's memory is shared with an array, lent to another tensor or "
                                          "used by an operation under way; let go of that first");
}

struct Common {
  at::Tensor tensor;
  int64_t taken = 0;
};
std::mutex common_mutex;
std::map<std::string, Common>& commons() {
  static auto* all = new std::map<std::string, Common>();  // outlives threads that end late
  return *all;
}

}  // namespace

// (tensor, source): the tensor's storage gets the memory of the source, which stays alive as long. Views and saved tensors
// on that storage see it too, and no version is counted up.
PW_ENTRY(lend_storage, 2) {
  const at::Tensor& tensor = args.tensor(0);
  const at::Tensor& source = args.tensor(1);
  if (!tensor.is_contiguous() || !source.is_contiguous() || tensor.storage_offset() != 0)
    throw CodedError("NOT_CONTIGUOUS", "lendStorage: both tensors are contiguous, and the first begins its storage");
  if (tensor.nbytes() != source.nbytes() || tensor.device() != source.device())
    throw CodedError("SHAPE", "lendStorage: the tensors have " + std::to_string(tensor.nbytes()) + " and " +
                                  std::to_string(source.nbytes()) + " bytes; lend memory of the same size and device");
  c10::StorageImpl* impl = tensor.storage().unsafeGetStorageImpl();
  if (impl == source.storage().unsafeGetStorageImpl()) return undefined(args.napi);  // it has this memory
  if (impl->nbytes() != tensor.nbytes())
    throw CodedError("SHAPE", "lendStorage: the tensor has " + std::to_string(tensor.nbytes()) + " of the " +
                                  std::to_string(impl->nbytes()) +
                                  " bytes of its storage; lend to the tensor that has all of them");
  check_not_pinned(tensor, "lendStorage");
  void* data = source.data_ptr();
  impl->set_data_ptr_noswap(c10::DataPtr(data, new Pin(source), &drop_lender, source.device()));
  impl->clear_data_ptr_access_error_msg_();
  impl->set_resizable(false);
  return undefined(args.napi);
}

// (tensor): its storage has no memory until some is lent to it; operators that would read or write it are errors.
PW_ENTRY(free_storage, 1) {
  const at::Tensor& tensor = args.tensor(0);
  check_not_pinned(tensor, "freeStorage");
  c10::StorageImpl* impl = tensor.storage().unsafeGetStorageImpl();
  impl->set_data_ptr_noswap(c10::DataPtr(nullptr, tensor.device()));
  impl->release_data_and_set_meta_custom_data_ptr_error_msg_(
      "the tensor's memory was freed (freeStorage); it can be used again when some was lent to it (lendStorage)");
  return undefined(args.napi);
}

// (name, parties, dtype, sizes): the same memory for all parties that name it; then the name is free again.
PW_ENTRY(common_tensor, 4) {
  const std::string name = args.string(0);
  const int64_t parties = args.int64(1);
  const int32_t code = args.int32(2);
  const std::vector<int64_t> sizes = args.ints(3);
  if (code < 0 || code >= static_cast<int32_t>(at::ScalarType::NumOptions))
    throw CodedError("DTYPE", "unknown dtype code " + std::to_string(code));
  at::Tensor tensor;
  {
    std::lock_guard<std::mutex> lock(common_mutex);
    Common& common = commons()[name];
    if (!common.tensor.defined())
      common.tensor = at::empty(sizes, at::TensorOptions().dtype(static_cast<at::ScalarType>(code)));
    if (common.tensor.sizes() != at::IntArrayRef(sizes) ||
        common.tensor.scalar_type() != static_cast<at::ScalarType>(code))
      throw CodedError(
          "MISMATCH", "commonTensor: '" + name + "' was made with another shape or type; all parties ask for the same");
    tensor = common.tensor.variable_data();
    if (++common.taken == parties) commons().erase(name);
  }
  return from_int32(args.napi, args.env->wrap(std::move(tensor)));
}

// (prefix): forgets names that begin so and that not all parties have asked for. Returns how many there were.
PW_ENTRY(forget_common, 1) {
  const std::string prefix = args.string(0);
  double count = 0;
  std::lock_guard<std::mutex> lock(common_mutex);
  for (auto at = commons().lower_bound(prefix);
       at != commons().end() && at->first.compare(0, prefix.size(), prefix) == 0; ++count)
    at = commons().erase(at);
  return from_double(args.napi, count);
}

void init_storage(Env& env, napi_value exports) {
  add_exports(env, exports,
      {
          {"lendStorage", lend_storage},
          {"freeStorage", free_storage},
          {"commonTensor", common_tensor},
          {"forgetCommon", forget_common},
      });
}

}  // namespace pw
