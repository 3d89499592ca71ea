#include "tensor/backing-store.h"

namespace pw {

// Functions of V8 that Node-API has no counterpart of, where this Node exports them. A napi_value is a v8::Local.
extern "C" bool v8_is_detachable(napi_value buffer) __asm__("_ZNK2v811ArrayBuffer12IsDetachableEv")
    __attribute__((weak));
extern "C" std::shared_ptr<void> v8_get_backing_store(napi_value buffer) __asm__(
    "_ZN2v811ArrayBuffer15GetBackingStoreEv") __attribute__((weak));
// Never called: it exists by this name only where V8 was compiled with the same std::shared_ptr as this addon.
extern "C" void v8_new_of_shared_ptr() __asm__(
    "_ZN2v811ArrayBuffer3NewEPNS_7IsolateESt10shared_ptrINS_12BackingStoreEE") __attribute__((weak));

static bool is_array_buffer(napi_env env, napi_value value) {
  bool yes = false;
  return napi_is_arraybuffer(env, value, &yes) == napi_ok && yes;
}

std::shared_ptr<void> backing_store(napi_value buffer, napi_env env) {
  if (v8_get_backing_store == nullptr || v8_new_of_shared_ptr == nullptr || !is_array_buffer(env, buffer))
    return nullptr;
  return v8_get_backing_store(buffer);
}

bool moves_by_itself(napi_value buffer, napi_env env) {
  return v8_is_detachable != nullptr && is_array_buffer(env, buffer) && !v8_is_detachable(buffer);
}

}  // namespace pw
