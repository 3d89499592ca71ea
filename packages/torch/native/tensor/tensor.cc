// Tensors: made from and read into JavaScript memory, described, released.
#include "core/core.h"
#include "core/device-failure.h"
#include "core/generated/border.h"
#include "core/op.h"
#include "core/pin.h"
#include "tensor/backing-store.h"

#include <ATen/ScalarOps.h>
#include <ATen/ops/alias.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/variable.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <limits>
#include <mutex>

namespace pw {
namespace {

struct Bytes {
  char* data = nullptr;
  size_t length = 0;
  napi_value buffer = nullptr;  // what keeps the memory alive
};

// The memory of a typed array, DataView or ArrayBuffer.
Bytes bytes_of(napi_env env, napi_value value) {
  Bytes bytes;
  void* data = nullptr;
  bool yes = false;
  napi_is_typedarray(env, value, &yes);
  if (yes) {
    napi_typedarray_type type;
    size_t count = 0, offset = 0;
    check(env, napi_get_typedarray_info(env, value, &type, &count, &data, &bytes.buffer, &offset), "a typed array");
    static const size_t widths[] = {1, 1, 1, 2, 2, 4, 4, 4, 8, 8, 8};
    bytes.length = count * (static_cast<size_t>(type) < 11 ? widths[type] : 2);
  } else {
    napi_is_dataview(env, value, &yes);
    size_t offset = 0;
    if (yes) {
      check(env, napi_get_dataview_info(env, value, &bytes.length, &data, &bytes.buffer, &offset), "a DataView");
    } else {
      check(env, napi_get_arraybuffer_info(env, value, &data, &bytes.length), "an ArrayBuffer or a view of one");
      bytes.buffer = value;
    }
  }
  bytes.data = static_cast<char*>(data);
  return bytes;
}

size_t checked_bytes(const std::vector<int64_t>& sizes, at::ScalarType dtype) {
  size_t total = c10::elementSize(dtype);
  for (int64_t size : sizes) {
    if (size < 0) throw CodedError("SHAPE", "a size of a shape is negative: " + std::to_string(size));
    if (size != 0 && total > std::numeric_limits<size_t>::max() / 4 / static_cast<size_t>(size))
      throw CodedError("SHAPE", "the shape is too large for memory");
    total *= static_cast<size_t>(size);
  }
  return total;
}

at::ScalarType dtype_of(int32_t code) {
  if (code < 0 || code >= static_cast<int32_t>(at::ScalarType::NumOptions))
    throw CodedError("DTYPE", "unknown dtype code " + std::to_string(code));
  return static_cast<at::ScalarType>(code);
}

// The tensor as plain values in order on the CPU.
at::Tensor plain(const at::Tensor& tensor) {
  c10::InferenceMode guard;
  if (tensor.is_meta()) throw CodedError("META", "a meta tensor has a shape but no values");
  if (tensor._is_zerotensor())
    return at::zeros(tensor.sizes(), tensor.options().device(at::kCPU));  // a gradient that is zero has no memory
  at::Tensor values = tensor.detach().to(at::kCPU).resolve_conj().resolve_neg().contiguous();
  if (!tensor.is_cpu()) check_device_failure();
  return values;
}

// What an ArrayBuffer over a tensor's memory owns: not the tensor, which may get another storage, and not only the storage,
// which may get other bytes.
struct SharedOwner {
  std::shared_ptr<void> bytes;
  Pin pin;
  std::weak_ptr<void> store;
};

// Node gives the owner back when the memory is no longer in use, or when the thread of the buffer ends. In the second case
// the memory may have been moved to another thread: then the owner waits, and a later call here deletes it.
void release_shared(SharedOwner* owner) {
  static std::mutex mutex;
  static auto* waiting = new std::vector<std::unique_ptr<SharedOwner>>();
  std::vector<std::unique_ptr<SharedOwner>> done;  // deleted after the mutex is free
  std::lock_guard<std::mutex> lock(mutex);
  if (owner != nullptr) waiting->emplace_back(owner);
  auto kept =
      std::stable_partition(waiting->begin(), waiting->end(), [](const auto& one) { return !one->store.expired(); });
  std::move(kept, waiting->end(), std::back_inserter(done));
  waiting->erase(kept, waiting->end());
}

}  // namespace

// (data, dtype, sizes, share, requiresGrad): a tensor over the caller's memory, or a copy of it.
PW_ENTRY(from_data, 5) {
  const Bytes bytes = bytes_of(args.napi, args.values[0]);
  const at::ScalarType dtype = dtype_of(args.int32(1));
  const std::vector<int64_t> sizes = args.ints(2);
  const size_t needed = checked_bytes(sizes, dtype);
  if (needed != bytes.length) {
    throw CodedError(
        "SHAPE", "the data has " + std::to_string(bytes.length) + " bytes, the shape needs " + std::to_string(needed));
  }
  at::Tensor tensor;
  if (args.boolean(3) && needed > 0) {
    if (moves_by_itself(bytes.buffer, args.napi)) {
      throw CodedError("NOT_SHAREABLE",
          "fromTypedArray: the memory of a WebAssembly.Memory moves when it grows; leave out share, which copies the "
          "data");
    }
    napi_ref reference;
    check(args.napi, napi_create_reference(args.napi, bytes.buffer, 1, &reference), "an ArrayBuffer");
    std::shared_ptr<Graveyard> graveyard = args.env->graveyard;
    tensor = at::from_blob(
        bytes.data, sizes,
        [graveyard, reference, store = backing_store(bytes.buffer, args.napi)](void*) {
          std::lock_guard<std::mutex> lock(graveyard->mutex);
          if (graveyard->open) graveyard->references.push_back(reference);
        },
        at::TensorOptions().dtype(dtype));
  } else {
    tensor = at::empty(sizes, at::TensorOptions().dtype(dtype));
    if (needed > 0) std::memcpy(tensor.data_ptr(), bytes.data, needed);
  }
  if (args.boolean(4)) tensor.requires_grad_(true);
  sweep(*args.env);
  return from_int32(args.napi, args.env->wrap(std::move(tensor)));
}

static bool is_freed(const at::Tensor& tensor) {
  return tensor.has_storage() && tensor.storage().unsafeGetStorageImpl()->throw_on_immutable_data_ptr();
}

static void check_has_memory(const at::Tensor& tensor) {
  if (is_freed(tensor) || tensor.const_data_ptr() == nullptr)
    throw CodedError("NO_STORAGE", "the tensor's memory was freed, by freeStorage or by resizing its storage");
}

// A new ArrayBuffer with the tensor's values in order.
PW_ENTRY(to_buffer, 1) {
  const at::Tensor source = plain(args.tensor(0));
  if (source.nbytes() > 0) check_has_memory(source);
  void* data = nullptr;
  napi_value buffer;
  check(args.napi, napi_create_arraybuffer(args.napi, source.nbytes(), &data, &buffer), "memory for an ArrayBuffer");
  if (source.nbytes() > 0) std::memcpy(data, source.const_data_ptr(), source.nbytes());
  return buffer;
}

// An ArrayBuffer over the tensor's own memory, which lives as long as the buffer does and does not move meanwhile.
PW_ENTRY(share_buffer, 1) {
  const at::Tensor& tensor = args.tensor(0);
  if (!tensor.is_cpu() || !tensor.is_contiguous() || tensor.layout() != at::kStrided || tensor.is_conj() ||
      tensor.is_neg() || tensor._is_zerotensor()) {
    throw CodedError("NOT_SHAREABLE",
        "only a contiguous CPU tensor can share its memory; use toTypedArray(), or contiguous() first");
  }
  napi_value buffer;
  if (tensor.nbytes() == 0) {
    void* data = nullptr;
    napi_create_arraybuffer(args.napi, 0, &data, &buffer);
    return buffer;
  }
  check_has_memory(tensor);
  void* data = tensor.data_ptr();
  SharedOwner* owner = new SharedOwner{share_bytes(tensor), Pin(tensor), {}};
  const napi_status status = napi_create_external_arraybuffer(
      args.napi, data, tensor.nbytes(),
      [](napi_env, void*, void* hint) { release_shared(static_cast<SharedOwner*>(hint)); }, owner, &buffer);
  if (status != napi_ok) {
    delete owner;
    check(args.napi, status, "memory that can be shared with JavaScript");
  }
  owner->store = backing_store(buffer, args.napi);
  release_shared(nullptr);
  return buffer;
}

// Fills the shared meta array.
PW_ENTRY(read_meta, 1) {
  const at::Tensor& tensor = args.tensor(0);
  double* out = args.env->meta;
  const size_t dims = static_cast<size_t>(tensor.dim());
  if (dims > kMetaDims) throw CodedError("SHAPE", "tensors of more than 64 dimensions are not supported");
  out[meta_field::dims] = static_cast<double>(dims);
  out[meta_field::dtype] = static_cast<double>(static_cast<int>(tensor.scalar_type()));
  out[meta_field::device_type] = static_cast<double>(static_cast<int>(tensor.device().type()));
  out[meta_field::device_index] = static_cast<double>(tensor.device().index());
  out[meta_field::requires_grad] = tensor.requires_grad();
  out[meta_field::is_leaf] = tensor.is_leaf();
  out[meta_field::layout] = static_cast<double>(static_cast<int>(tensor.layout()));
  const bool strided = tensor.layout() == at::kStrided;
  out[meta_field::is_contiguous] = strided && tensor.is_contiguous();
  out[meta_field::numel] = static_cast<double>(tensor.numel());
  out[meta_field::item_size] = static_cast<double>(tensor.dtype().itemsize());
  out[meta_field::storage_offset] = strided ? static_cast<double>(tensor.storage_offset()) : 0;
  out[meta_field::is_inference] = tensor.is_inference();
  const at::IntArrayRef sizes = tensor.sizes();
  for (size_t i = 0; i < dims; ++i) out[kMetaSizes + i] = static_cast<double>(sizes[i]);
  if (strided) {
    const at::IntArrayRef strides = tensor.strides();
    for (size_t i = 0; i < dims; ++i) out[kMetaSizes + kMetaDims + i] = static_cast<double>(strides[i]);
  }
  return nullptr;
}

PW_ENTRY(item, 1) {
  const at::Tensor& tensor = args.tensor(0);
  if (tensor.numel() != 1)
    throw CodedError("SHAPE",
        "item(): the tensor has " + std::to_string(tensor.numel()) + " elements, one is needed; use toArray()");
  if (tensor.is_meta()) throw CodedError("META", "item(): a meta tensor has a shape but no values");
  const at::Scalar value = tensor.item();
  if (!tensor.is_cpu()) check_device_failure();
  if (value.isBoolean()) return from_bool(args.napi, value.to<bool>());
  if (value.isIntegral(false)) {
    if (value.type() == at::ScalarType::UInt64) {
      const uint64_t whole = value.to<uint64_t>();
      if (whole <= 9007199254740991ull) return from_double(args.napi, static_cast<double>(whole));
      napi_value big;
      napi_create_bigint_uint64(args.napi, whole, &big);
      return big;
    }
    return from_int64(args.napi, value.to<int64_t>());
  }
  if (value.isComplex()) {
    const c10::complex<double> number = value.to<c10::complex<double>>();
    napi_value result;
    napi_create_object(args.napi, &result);
    napi_set_named_property(args.napi, result, "re", from_double(args.napi, number.real()));
    napi_set_named_property(args.napi, result, "im", from_double(args.napi, number.imag()));
    return result;
  }
  return from_double(args.napi, value.to<double>());
}

PW_ENTRY(release, 1) {
  args.env->tensors.remove(args.int32(0));
  return nullptr;
}

// (Int32Array, count)
PW_ENTRY(release_many, 2) {
  const Bytes bytes = bytes_of(args.napi, args.values[0]);
  const size_t count = std::min(static_cast<size_t>(std::max(0, args.int32(1))), bytes.length / sizeof(int32_t));
  const int32_t* handles = reinterpret_cast<const int32_t*>(bytes.data);
  for (size_t i = 0; i < count; ++i) args.env->tensors.remove(handles[i]);
  return nullptr;
}

PW_ENTRY(live, 1) { return from_double(args.napi, static_cast<double>(args.env->tensors.live())); }

// A second handle of the same tensor.
PW_ENTRY(duplicate, 1) {
  at::Tensor copy = args.tensor(0);
  return from_int32(args.napi, args.env->wrap(std::move(copy)));
}

PW_ENTRY(is_same, 2) { return from_bool(args.napi, args.tensor(0).is_same(args.tensor(1))); }

PW_ENTRY(data_pointer, 1) {
  napi_value value;
  const at::Tensor& tensor = args.tensor(0);
  const bool has_address = !tensor.is_meta() && !is_freed(tensor);
  const uint64_t address = has_address ? reinterpret_cast<uint64_t>(tensor.const_data_ptr()) : 0;
  napi_create_bigint_uint64(args.napi, address, &value);
  return value;
}

PW_ENTRY(grad_of, 1) {
  const at::Tensor& grad = args.tensor(0).grad();
  return from_int32(args.napi, grad.defined() ? args.env->wrap(grad) : 0);
}

PW_ENTRY(set_grad, 2) {
  at::Tensor& tensor = args.tensor(0);
  at::Tensor grad = args.optional_tensor(1);
  if (grad.defined() && (grad.sizes() != tensor.sizes() || grad.device() != tensor.device())) {
    throw CodedError("SHAPE", "a gradient has the shape and the device of its tensor");
  }
  tensor.mutable_grad() = std::move(grad);
  return undefined(args.napi);
}

PW_ENTRY(set_requires_grad, 2) {
  at::Tensor& tensor = args.tensor(0);
  const bool wanted = args.boolean(1);
  if (wanted && !torch::autograd::isDifferentiableType(tensor.scalar_type())) {
    throw CodedError(
        "DTYPE", std::string("only floating-point and complex tensors can require gradients, this one is ") +
                     c10::toString(tensor.scalar_type()));
  }
  if (!tensor.is_leaf() && !wanted)
    throw CodedError("NOT_LEAF", "requiresGrad can be switched off only on a leaf; use detach()");
  tensor.requires_grad_(wanted);
  return undefined(args.napi);
}

PW_ENTRY(version, 1) {
  const at::Tensor& tensor = args.tensor(0);
  return from_double(args.napi, tensor.is_inference() ? 0 : static_cast<double>(tensor._version()));
}

// (tensor, source): the tensor becomes the source in place (module.to, loading): shape, dtype and device may change.
PW_ENTRY(set_data, 2) {
  args.tensor(0).set_data(args.tensor(1));
  return undefined(args.napi);
}

PW_ENTRY(to_dtype, 2) {
  c10::InferenceMode guard;
  return from_int32(args.napi, args.env->wrap(args.tensor(0).detach().to(dtype_of(args.int32(1)))));
}

// A number as a tensor without dimensions that gives way in type promotion, as numbers do.
PW_ENTRY(scalar_tensor, 1) {
  at::Tensor tensor = at::scalar_to_tensor(to_scalar(args.napi, args.values[0]));
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return from_int32(args.napi, args.env->wrap(std::move(tensor)));
}

// (path): the bytes of a file as a uint8 tensor over a private mapping: read on first touch, never written back.
PW_ENTRY(map_file, 1) {
  const std::string path = args.string(0);
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) throw CodedError("FILE", path + ": " + std::strerror(errno));
  struct stat status = {};
  if (fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) {
    close(file);
    throw CodedError("FILE", path + ": not a regular file");
  }
  const size_t length = static_cast<size_t>(status.st_size);
  void* data =
      length == 0 ? nullptr : mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file, 0);
  close(file);
  if (data == MAP_FAILED) throw CodedError("FILE", path + ": " + std::strerror(errno));
  at::Tensor tensor = length == 0
                          ? at::empty({0}, at::TensorOptions().dtype(at::kByte))
                          : at::from_blob(
                                data, {static_cast<int64_t>(length)}, [length](void* start) { munmap(start, length); },
                                at::TensorOptions().dtype(at::kByte));
  return from_int32(args.napi, args.env->wrap(std::move(tensor)));
}

// (bytes, offset, dtype, sizes): a tensor over part of a uint8 tensor's memory, copied only where alignment asks for it.
PW_ENTRY(view_bytes, 4) {
  const at::Tensor bytes = args.tensor(0);
  const int64_t offset = args.int64(1);
  const at::ScalarType dtype = dtype_of(args.int32(2));
  const std::vector<int64_t> sizes = args.ints(3);
  const size_t needed = checked_bytes(sizes, dtype), length = static_cast<size_t>(bytes.numel());
  if (bytes.scalar_type() != at::kByte || !bytes.is_cpu() || !bytes.is_contiguous())
    throw CodedError("DTYPE", "viewBytes takes a contiguous uint8 tensor on the CPU");
  if (offset < 0 || static_cast<size_t>(offset) > length || needed > length - static_cast<size_t>(offset))
    throw CodedError("SHAPE", "the tensor lies outside of the bytes");
  const at::TensorOptions options = at::TensorOptions().dtype(dtype);
  at::Tensor tensor;
  if (needed == 0) {
    tensor = at::empty(sizes, options);
  } else {
    char* start = static_cast<char*>(bytes.data_ptr()) + offset;
    if (reinterpret_cast<uintptr_t>(start) % c10::elementSize(dtype) == 0) {
      forbid_resizing(bytes);
      const auto keep = [storage = bytes.storage()](void*) {};
      tensor = at::from_blob(start, sizes, keep, options);
    } else {
      tensor = at::empty(sizes, options);
      std::memcpy(tensor.data_ptr(), start, needed);
    }
  }
  return from_int32(args.napi, args.env->wrap(std::move(tensor)));
}

// (file descriptor, tensor): writes the values in order; no JavaScript memory is involved.
PW_ENTRY(write_file, 2) {
  const int file = args.int32(0);
  const at::Tensor source = plain(args.tensor(1));
  const char* data = static_cast<const char*>(source.const_data_ptr());
  for (size_t done = 0; done < source.nbytes();) {
    const ssize_t written = write(file, data + done, std::min<size_t>(source.nbytes() - done, size_t{1} << 30));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) throw CodedError("FILE", std::string("writing failed: ") + std::strerror(errno));
    done += static_cast<size_t>(written);
  }
  return undefined(args.napi);
}

PW_ENTRY(storage_use_count, 1) {
  return from_double(args.napi, static_cast<double>(args.tensor(0).storage().use_count()));
}

void init_tensor(Env& env, napi_value exports) {
  void* data = nullptr;
  napi_value buffer, array;
  napi_create_arraybuffer(env.napi, kMetaLength * sizeof(double), &data, &buffer);
  napi_create_typedarray(env.napi, napi_float64_array, kMetaLength, buffer, 0, &array);
  env.meta = static_cast<double*>(data);
  napi_create_reference(env.napi, array, 1, &env.meta_ref);
  napi_set_named_property(env.napi, exports, "metaArray", array);
  add_exports(env, exports,
      {
          {"fromData", from_data},
          {"toBuffer", to_buffer},
          {"shareBuffer", share_buffer},
          {"meta", read_meta},
          {"item", item},
          {"release", release},
          {"releaseMany", release_many},
          {"live", live},
          {"duplicate", duplicate},
          {"isSame", is_same},
          {"dataPointer", data_pointer},
          {"grad", grad_of},
          {"setGrad", set_grad},
          {"setRequiresGrad", set_requires_grad},
          {"version", version},
          {"setData", set_data},
          {"toDtype", to_dtype},
          {"mapFile", map_file},
          {"writeFile", write_file},
          {"viewBytes", view_bytes},
          {"scalarTensor", scalar_tensor},
          {"storageUseCount", storage_use_count},
      });
}

}  // namespace pw
