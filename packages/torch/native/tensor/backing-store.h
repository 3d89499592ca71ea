// The memory behind an ArrayBuffer, apart from the buffer: it can be moved to another buffer (`transfer`, in newer
// versions of Node) and from there to another thread, so that what becomes of the buffer says nothing about the memory.
#pragma once

#include <node_api.h>

#include <memory>

namespace pw {

// Keeps an ArrayBuffer's memory alive and in its place, from any thread and also after its thread has ended. Empty for a
// SharedArrayBuffer and where this Node does not offer it.
std::shared_ptr<void> backing_store(napi_value buffer, napi_env env);

// Whether V8 moves the memory by itself: that of a WebAssembly.Memory, which grows.
bool moves_by_itself(napi_value buffer, napi_env env);

}  // namespace pw
