// The addon's entry: one environment per JavaScript thread, and the helpers of core.h.
#include "core/core.h"

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/function.h>

namespace pw {

void init_scan(Env& env, napi_value exports);  // in tensor/scan.cc

static thread_local Env* current = nullptr;
Env* current_env() { return current; }

at::Tensor& Env::tensor(int32_t handle) {
  at::Tensor* found = tensors.find(handle);
  if (handle == 0)
    throw CodedError("DISPOSED",
        "this tensor was disposed of (by dispose(), using, or the end of a scope); keep() it, or return it from the "
        "scope");
  if (found == nullptr) throw CodedError("STALE_HANDLE", "this tensor was disposed of, or belongs to another thread");
  return *found;
}

std::string to_string(napi_env env, napi_value value) {
  size_t length = 0;
  check(env, napi_get_value_string_utf8(env, value, nullptr, 0, &length), "a string");
  std::string text(length, '\0');
  napi_get_value_string_utf8(env, value, text.data(), length + 1, &length);
  return text;
}

bool is_missing(napi_env env, napi_value value) {
  napi_valuetype type;
  napi_typeof(env, value, &type);
  return type == napi_undefined || type == napi_null;
}

int64_t to_int64(napi_env env, napi_value value) {
  double number = 0;
  if (napi_get_value_double(env, value, &number) == napi_ok) {
    if (!(number >= -9223372036854775808.0 && number < 9223372036854775808.0) ||
        number != static_cast<double>(static_cast<int64_t>(number))) {
      throw CodedError("BAD_ARGUMENT", "expected an integer, got " + std::to_string(number));
    }
    return static_cast<int64_t>(number);
  }
  int64_t whole = 0;
  bool lossless = false;
  check(env, napi_get_value_bigint_int64(env, value, &whole, &lossless), "an integer");
  if (!lossless) throw CodedError("BAD_ARGUMENT", "expected an integer of 64 bits, got a larger BigInt");
  return whole;
}

napi_value from_int64(napi_env env, int64_t value) {
  napi_value result;
  if (value >= -9007199254740991 && value <= 9007199254740991) {
    napi_create_int64(env, value, &result);
  } else {
    napi_create_bigint_int64(env, value, &result);
  }
  return result;
}

napi_value from_string(napi_env env, const std::string& value) {
  napi_value result;
  napi_create_string_utf8(env, value.data(), value.size(), &result);
  return result;
}

napi_value undefined(napi_env env) {
  napi_value result;
  napi_get_undefined(env, &result);
  return result;
}

napi_value from_tensors(Env& env, const std::vector<at::Tensor>& tensors) {
  napi_value array;
  napi_create_array_with_length(env.napi, tensors.size(), &array);
  for (size_t i = 0; i < tensors.size(); ++i) {
    napi_value item;
    if (tensors[i].defined()) {
      item = from_int32(env.napi, env.wrap(tensors[i]));
    } else {
      napi_get_null(env.napi, &item);
    }
    napi_set_element(env.napi, array, static_cast<uint32_t>(i), item);
  }
  return array;
}

std::vector<napi_value> elements(napi_env env, napi_value array) {
  uint32_t length = 0;
  check(env, napi_get_array_length(env, array, &length), "an array");
  std::vector<napi_value> items(length);
  for (uint32_t i = 0; i < length; ++i) check(env, napi_get_element(env, array, i, &items[i]), "an array");
  return items;
}

template <size_t N>
int64_t Args<N>::int64(size_t i) const {
  return to_int64(napi, values[i]);
}
template <size_t N>
std::string Args<N>::string(size_t i) const {
  return to_string(napi, values[i]);
}
template <size_t N>
bool Args<N>::missing(size_t i) const {
  return i >= count || is_missing(napi, values[i]);
}
template <size_t N>
std::vector<at::Tensor> Args<N>::tensors(size_t i) const {
  std::vector<at::Tensor> result;
  for (napi_value item : elements(napi, values[i])) {
    if (is_missing(napi, item)) {
      result.emplace_back();
      continue;
    }
    int32_t handle = 0;
    check(napi, napi_get_value_int32(napi, item, &handle), "a tensor");
    result.push_back(env->tensor(handle));
  }
  return result;
}
template <size_t N>
std::vector<int64_t> Args<N>::ints(size_t i) const {
  std::vector<int64_t> result;
  for (napi_value item : elements(napi, values[i])) result.push_back(to_int64(napi, item));
  return result;
}
template struct Args<1>;
template struct Args<2>;
template struct Args<3>;
template struct Args<4>;
template struct Args<5>;
template struct Args<6>;
template struct Args<7>;
template struct Args<8>;
template struct Args<9>;

static void throw_message(napi_env env, const char* code, const std::string& message) noexcept {
  Env* mine = current;
  napi_value type, error;
  if (mine != nullptr && mine->error_class != nullptr &&
      napi_get_reference_value(env, mine->error_class, &type) == napi_ok) {
    napi_value arguments[2] = {from_string(env, code), from_string(env, message)};
    if (napi_new_instance(env, type, 2, arguments, &error) == napi_ok) {
      napi_throw(env, error);
      return;
    }
  }
  napi_throw_error(env, code, message.c_str());
}

void throw_to_js(napi_env env, const char* where) noexcept {
  const auto report = [&](const char* code, const std::string& message) {
    throw_message(env, code, where == nullptr ? message : std::string(where) + ": " + message);
  };
  bool pending = false;
  napi_is_exception_pending(env, &pending);
  if (pending) return;
  try {
    throw;
  } catch (const PendingException&) {
    throw_message(env, "INTERNAL", "internal: a JavaScript exception was lost");
  } catch (const CallbackError& error) {
    if (!rethrow_callback_error(env, error)) throw_message(env, "CALLBACK", error.what());
  } catch (const CodedError& error) {
    report(error.code, error.what());
  } catch (const c10::OutOfMemoryError& error) {
    report("OUT_OF_MEMORY", error.what_without_backtrace());
  } catch (const c10::IndexError& error) {
    report("INDEX", error.what_without_backtrace());
  } catch (const c10::Error& error) {
    const std::string message = error.what_without_backtrace();
    if (message.find("resize storage that is not resizable") == std::string::npos) {
      report("LIBTORCH", message);
    } else {
      report("NOT_RESIZABLE",
          "the tensor cannot grow: its memory is shared with an array, a file, another rank or an operation under way; "
          "use a new tensor");
    }
  } catch (const std::bad_alloc&) {
    report("OUT_OF_MEMORY", "out of memory");
  } catch (const std::exception& error) {
    report("LIBTORCH", error.what());
  } catch (...) {
    report("LIBTORCH", "an unknown C++ exception");
  }
}

void add_exports(Env& env, napi_value target, std::initializer_list<Export> exports) {
  for (const Export& item : exports) {
    napi_value function;
    check(env.napi, napi_create_function(env.napi, item.name, NAPI_AUTO_LENGTH, item.function, &env, &function),
        "a function");
    check(env.napi, napi_set_named_property(env.napi, target, item.name, function), "exports");
  }
}

void sweep(Env& env) {
  std::vector<napi_ref> references;
  {
    std::lock_guard<std::mutex> lock(env.graveyard->mutex);
    references.swap(env.graveyard->references);
  }
  for (napi_ref reference : references) napi_delete_reference(env.napi, reference);
}

static void destroy(napi_env, void* data, void*) {
  Env* env = static_cast<Env*>(data);
  close_callbacks(*env);
  {
    std::lock_guard<std::mutex> lock(env->graveyard->mutex);
    env->graveyard->open = false;
  }
  while (!env->inference.empty()) env->inference.pop_back();
  if (current == env) current = nullptr;
  delete env;
}

PW_ENTRY(set_error_class, 1) {
  if (args.env->error_class != nullptr) napi_delete_reference(args.napi, args.env->error_class);
  check(args.napi, napi_create_reference(args.napi, args.values[0], 1, &args.env->error_class), "a class");
  return undefined(args.napi);
}

static napi_value init(napi_env napi, napi_value exports) {
  return guarded(napi, [&] {
    install_allocator();
    install_kernels();
    meta::register_kernels();
    Env* env = new Env();
    env->napi = napi;
    current = env;
    check(napi, napi_set_instance_data(napi, env, destroy, nullptr), "instance data");
    add_exports(*env, exports, {{"setErrorClass", set_error_class}});
    init_system(*env, exports);
    init_profiler(*env, exports);
    init_tensor(*env, exports);
    init_storage(*env, exports);
    init_tracker(*env, exports);
    init_ops(*env, exports);
    init_hot_ops(*env, exports);
    init_autograd(*env, exports);
    init_split_backward(*env, exports);
    init_put_off(*env, exports);
    init_callbacks(*env, exports);
    init_random(*env, exports);
    init_named_random(*env, exports);
    init_lend(*env, exports);
    init_scan(*env, exports);
    init_optimizer(*env, exports);
    init_optimizer_steps(*env, exports);
    if (init_channel) init_channel(*env, exports);
    if (init_distributed) init_distributed(*env, exports);
    return exports;
  });
}

}  // namespace pw

NAPI_MODULE_INIT() { return pw::init(env, exports); }
