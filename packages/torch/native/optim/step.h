// A step of an optimizer: its bucket, its numbers, and how often each parameter was stepped.
#pragma once

#include "core/generated/border.h"
#include "optim/optimizer.h"

namespace pw {

using Numbers = std::vector<at::Scalar>;

// (bucket, Float64Array, learning rate as a tensor or nothing)
struct Step {
  explicit Step(Args<3>& args)
      : bucket(bucket_of(args.napi, args.values[0])), rate(args.optional_tensor(2)), guard(false) {
    napi_typedarray_type type;
    void* data = nullptr;
    napi_value buffer;
    size_t offset = 0, length = 0;
    check(args.napi, napi_get_typedarray_info(args.napi, args.values[1], &type, &length, &data, &buffer, &offset),
        "a Float64Array");
    if (type != napi_float64_array || length < step_number::kLongest)
      throw CodedError("BAD_ARGUMENT", "internal: an optimizer step takes more numbers");
    n = static_cast<const double*>(data);
  }
  Bucket& bucket;
  at::Tensor rate;
  const double* n;
  at::AutoGradMode guard;

  double lr() const {
    return rate.defined() ? rate.item<double>() : n[step_number::sgd::lr];
  }  // the first of all of them
};

// Counts the step of each parameter and returns the counts.
inline std::vector<double> count_steps(Tensors& steps) {
  std::vector<double> counts;
  counts.reserve(steps.size());
  for (at::Tensor& step : steps) {
    step.add_(1);
    counts.push_back(step.item<double>());
  }
  return counts;
}

// A number for each parameter, of its count and its position.
template <typename F>
Numbers each(const std::vector<double>& counts, F&& number) {
  Numbers numbers;
  numbers.reserve(counts.size());
  for (size_t i = 0; i < counts.size(); ++i) numbers.emplace_back(number(counts[i], i));
  return numbers;
}

}  // namespace pw
