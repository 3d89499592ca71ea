// The dispatch key of tensor/random.cc: on in all our threads, with kernels for operators that draw random numbers.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/DispatchKey.h>

#include <cstdint>

namespace pw {

constexpr c10::DispatchKey kOwnGenerator = c10::DispatchKey::TESTING_ONLY_GenericMode;

// What became of an operator that draws, in a thread that may draw by name (kernels/named-random.cc).
enum class NamedDraw {
  kOff,   // it draws as ever
  kDone,  // its result is on the stack
  kSeed,  // it draws from generators of that seed
};
NamedDraw draw_by_name(const c10::OperatorHandle& op, torch::jit::Stack* stack, uint64_t& seed);

}  // namespace pw
