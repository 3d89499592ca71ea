// Kernels for tensors of the device "meta", which have a shape, strides and a dtype but no memory. libtorch writes most of
// them in Python; those that a program without Python lacks are here, answered like the CPU's kernels would be.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>

namespace pw::meta {

// The arguments of one call.
struct Arguments {
  at::ArrayRef<c10::IValue> values;

  at::Tensor tensor(size_t i) const { return values[i].isNone() ? at::Tensor() : values[i].toTensor(); }
  bool has(size_t i) const { return !values[i].isNone() && (!values[i].isTensor() || values[i].toTensor().defined()); }
  int64_t integer(size_t i) const { return values[i].toInt(); }
  bool boolean(size_t i) const { return values[i].toBool(); }
  std::vector<int64_t> ints(size_t i) const { return values[i].toIntVector(); }
  bool masked(size_t i, size_t which) const { return values[i].toBoolList().get(which); }
};

using Results = c10::SmallVector<at::Tensor, 4>;
// What the operator returns; where it has `out` arguments, these are given the shapes of the results.
using Kernel = Results (*)(const Arguments&);
struct Entry {
  std::vector<const char*> names;  // with overload, without "aten::"
  Kernel kernel;
};

// --- shapes -------------------------------------------------------------------------------------------------------------

at::Tensor plain(at::IntArrayRef sizes, const at::TensorOptions& options);  // contiguous
at::Tensor plain_like(const at::Tensor& tensor);                            // contiguous, of the same sizes
at::Tensor formatted(at::IntArrayRef sizes, const at::Tensor& like);        // channels last where `like` is
at::Tensor scalar_like(const at::Tensor& tensor);
// Broadcasts the tensors; the result has their common dtype, or the one given.
at::Tensor pointwise(
    at::ArrayRef<at::Tensor> tensors, std::optional<at::ScalarType> dtype = std::nullopt, bool to_float = false);
std::vector<int64_t> reduced_sizes(const at::Tensor& tensor, at::IntArrayRef dims, bool keep);  // no dims: all

Results same(const Arguments& in);  // one result, like the first argument

// --- the tables ---------------------------------------------------------------------------------------------------------

extern const std::vector<Entry> pointwise_kernels, reduction_kernels, layer_kernels, loss_kernels;

void register_kernels();  // once per process; what libtorch has is left alone

}  // namespace pw::meta
