// The dispatch key of tensor/random.cc: on in all our threads, with kernels for operators that draw random numbers.
#pragma once

#include <c10/core/DispatchKey.h>

namespace pw {

constexpr c10::DispatchKey kOwnGenerator = c10::DispatchKey::TESTING_ONLY_GenericMode;

}  // namespace pw
