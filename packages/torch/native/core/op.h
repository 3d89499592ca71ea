// Conversions that op.cc and the generated operators share.
#pragma once

#include "core/core.h"

#include <ATen/core/Scalar.h>

namespace pw {

// A whole number becomes an integer scalar, any other number a float one; { float: x } is always a float.
at::Scalar to_scalar(napi_env env, napi_value value);

}  // namespace pw
