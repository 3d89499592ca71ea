// Reductions, indexing, rearranging, matrices.
#include "kernels/meta/kernels.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/empty_like.h>

namespace pw::meta {
namespace {

std::vector<int64_t> dims_or_none(const Arguments& in, size_t i) {
  return in.has(i) ? in.ints(i) : std::vector<int64_t>();
}

at::ScalarType accumulated(const at::Tensor& tensor) {
  return at::isIntegralType(tensor.scalar_type(), true) ? at::kLong : tensor.scalar_type();
}

Results to_scalar(const Arguments& in) { return {scalar_like(in.tensor(0))}; }
Results to_scalars(const Arguments& in) { return {scalar_like(in.tensor(0)), scalar_like(in.tensor(0))}; }
Results trace(const Arguments& in) { return {plain({}, in.tensor(0).options().dtype(accumulated(in.tensor(0))))}; }
Results prod(const Arguments& in) {
  const at::Tensor self = in.tensor(0);
  return {plain({}, self.options().dtype(in.has(1) ? static_cast<at::ScalarType>(in.integer(1)) : accumulated(self)))};
}

Results nansum(const Arguments& in) {
  const at::Tensor self = in.tensor(0);
  const at::ScalarType dtype = in.has(3) ? static_cast<at::ScalarType>(in.integer(3)) : accumulated(self);
  return {plain(reduced_sizes(self, dims_or_none(in, 1), in.boolean(2)), self.options().dtype(dtype))};
}

at::Tensor variance_of(const Arguments& in) {
  const at::Tensor self = in.tensor(0);
  return plain(reduced_sizes(self, dims_or_none(in, 1), in.boolean(3)),
      self.options().dtype(c10::toRealValueType(self.scalar_type())));
}
Results variance(const Arguments& in) { return {variance_of(in)}; }
Results variance_and_mean(const Arguments& in) {
  const at::Tensor self = in.tensor(0);
  return {variance_of(in), plain(reduced_sizes(self, dims_or_none(in, 1), in.boolean(3)), self.options())};
}

Results count_nonzero(const Arguments& in) {
  return {plain(reduced_sizes(in.tensor(0), in.ints(1), false), in.tensor(0).options().dtype(at::kLong))};
}

Results aminmax(const Arguments& in) {
  const at::Tensor self = in.tensor(0);
  const std::vector<int64_t> sizes = reduced_sizes(self, {in.integer(1)}, in.boolean(2));
  return {plain(sizes, self.options()), plain(sizes, self.options())};
}

Results picked(const at::Tensor& self, int64_t dim, bool keep) {
  const std::vector<int64_t> sizes = reduced_sizes(self, {dim}, keep);
  return {plain(sizes, self.options()), plain(sizes, self.options().dtype(at::kLong))};
}
Results mode(const Arguments& in) { return picked(in.tensor(0), in.integer(1), in.boolean(2)); }
Results kthvalue(const Arguments& in) { return picked(in.tensor(0), in.integer(2), in.boolean(3)); }

Results histc(const Arguments& in) { return {plain({in.integer(1)}, in.tensor(0).options())}; }

// --- indexing -------------------------------------------------------------------------------------------------------------

Results index_select(const Arguments& in) {
  const at::Tensor self = in.tensor(0), index = in.tensor(2);
  TORCH_CHECK_INDEX(index.dim() <= 1, "index_select(): Index is supposed to be a vector");
  std::vector<int64_t> sizes = self.sizes().vec();
  if (!sizes.empty()) sizes.at(static_cast<size_t>(c10::maybe_wrap_dim(in.integer(1), self.dim()))) = index.numel();
  return {plain(sizes, self.options())};
}

Results take(const Arguments& in) { return {plain(in.tensor(1).sizes(), in.tensor(0).options())}; }

Results searchsorted(const Arguments& in) {
  const at::IntArrayRef sizes = in.values[1].isTensor() ? in.values[1].toTensor().sizes() : at::IntArrayRef();
  return {plain(sizes, in.tensor(0).options().dtype(in.boolean(2) ? at::kInt : at::kLong))};
}
Results bucketize(const Arguments& in) {
  const at::IntArrayRef sizes = in.values[0].isTensor() ? in.values[0].toTensor().sizes() : at::IntArrayRef();
  return {plain(sizes, in.tensor(1).options().dtype(in.boolean(2) ? at::kInt : at::kLong))};
}

Results repeat_interleave(const Arguments& in) {
  TORCH_CHECK(in.has(1),
      "repeat_interleave: the size of the result depends on values, and a meta tensor has none; give output_size");
  return {plain({in.integer(1)}, in.tensor(0).options().dtype(at::kLong))};
}

Results segment_reduce(const Arguments& in) {
  const at::Tensor data = in.tensor(0);
  const bool by_length = in.has(2);
  const at::Tensor segments = in.tensor(by_length ? 2 : 4);
  const int64_t axis = in.integer(5);
  std::vector<int64_t> sizes = data.sizes().vec();
  sizes.at(static_cast<size_t>(axis)) = segments.size(axis) - (by_length ? 0 : 1);
  return {plain(sizes, data.options())};
}

Results of_sizes(const Arguments& in) { return {plain(in.ints(2), in.tensor(0).options())}; }
Results like_third(const Arguments& in) { return {plain_like(in.tensor(2))}; }
Results unfold_backward(const Arguments& in) { return {plain(in.ints(1), in.tensor(0).options())}; }
Results same_plain(const Arguments& in) { return {plain_like(in.tensor(0))}; }
Results same_format(const Arguments& in) { return {formatted(in.tensor(0).sizes(), in.tensor(0))}; }

Results narrow_copy(const Arguments& in) {
  const at::Tensor self = in.tensor(0);
  std::vector<int64_t> sizes = self.sizes().vec();
  sizes.at(static_cast<size_t>(c10::maybe_wrap_dim(in.integer(1), self.dim()))) = in.integer(3);
  return {plain(sizes, self.options())};
}

// How many elements are below (or on) a diagonal of a matrix.
int64_t triangle(int64_t rows, int64_t columns, int64_t offset) {
  int64_t count = 0;
  for (int64_t i = 0; i < rows; ++i) count += std::clamp<int64_t>(i + offset + 1, 0, columns);
  return count;
}
at::Tensor indices(const Arguments& in, int64_t count) {
  const at::ScalarType dtype = in.has(3) ? static_cast<at::ScalarType>(in.integer(3)) : at::kLong;
  return plain({2, count}, at::TensorOptions().device(at::kMeta).dtype(dtype));
}
Results tril_indices(const Arguments& in) {
  return {indices(in, triangle(in.integer(0), in.integer(1), in.integer(2)))};
}
Results triu_indices(const Arguments& in) {
  const int64_t rows = in.integer(0), columns = in.integer(1);
  return {indices(in, rows * columns - triangle(rows, columns, in.integer(2) - 1))};
}

// --- matrices and distances -------------------------------------------------------------------------------------------------

Results addbmm(const Arguments& in) {
  return {plain({in.tensor(1).size(1), in.tensor(2).size(2)}, in.tensor(1).options())};
}
Results int_mm(const Arguments& in) {
  return {plain({in.tensor(0).size(0), in.tensor(1).size(1)}, in.tensor(0).options().dtype(at::kInt))};
}

std::vector<int64_t> batch_of(const at::Tensor& a, const at::Tensor& b) {
  return at::infer_size(
      a.sizes().slice(0, static_cast<size_t>(a.dim() - 2)), b.sizes().slice(0, static_cast<size_t>(b.dim() - 2)));
}

// Column by column, as LAPACK leaves them.
at::Tensor by_columns(std::vector<int64_t> sizes, const at::TensorOptions& options) {
  TORCH_CHECK(sizes.size() >= 2, "the input must have at least 2 dimensions, got ", sizes.size());
  std::swap(sizes.at(sizes.size() - 1), sizes.at(sizes.size() - 2));
  return plain(sizes, options).mT();
}

Results solve_triangular(const Arguments& in) {
  const at::Tensor a = in.tensor(0), b = in.tensor(1);
  std::vector<int64_t> sizes = batch_of(a, b);
  sizes.insert(sizes.end(), {b.size(-2), b.size(-1)});
  return {in.boolean(3) ? by_columns(sizes, b.options()) : plain(sizes, b.options())};
}

Results same_by_columns(const Arguments& in) {
  return {by_columns(in.tensor(0).sizes().vec(), in.tensor(0).options())};
}

at::TensorOptions complex_options(const at::Tensor& self) {
  return self.options().dtype(c10::toComplexType(self.scalar_type()));
}
Results eigvals(const Arguments& in) {
  const at::Tensor self = in.tensor(0);
  return {plain(self.sizes().slice(0, static_cast<size_t>(self.dim() - 1)), complex_options(self))};
}
Results eig(const Arguments& in) {
  return {eigvals(in)[0], by_columns(in.tensor(0).sizes().vec(), complex_options(in.tensor(0)))};
}

Results cdist(const Arguments& in) {
  const at::Tensor a = in.tensor(0), b = in.tensor(1);
  std::vector<int64_t> sizes = batch_of(a, b);
  sizes.insert(sizes.end(), {a.size(-2), b.size(-2)});
  return {plain(sizes, a.options())};
}
Results cdist_backward(const Arguments& in) {
  const at::Tensor a = in.tensor(1), b = in.tensor(2);
  std::vector<int64_t> sizes = batch_of(a, b);
  sizes.insert(sizes.end(), {a.size(-2), a.size(-1)});
  return {plain(sizes, a.options())};
}
Results pdist(const Arguments& in) {
  const int64_t n = in.tensor(0).size(0);
  return {plain({n <= 1 ? 0 : n * (n - 1) / 2}, in.tensor(0).options())};
}
Results pdist_backward(const Arguments& in) { return {plain_like(in.tensor(1))}; }

// --- Fourier transforms -------------------------------------------------------------------------------------------------------

int64_t last_of(const std::vector<int64_t>& values) {
  TORCH_CHECK(!values.empty(), "at least one dimension is needed");
  return values.back();
}
Results fft_real_to_complex(const Arguments& in) {
  const at::Tensor self = in.tensor(0);
  std::vector<int64_t> sizes = self.sizes().vec();
  const int64_t last = c10::maybe_wrap_dim(last_of(in.ints(1)), self.dim());
  if (in.boolean(3)) sizes.at(static_cast<size_t>(last)) = sizes.at(static_cast<size_t>(last)) / 2 + 1;
  return {plain(sizes, complex_options(self))};
}
Results fft_complex_to_real(const Arguments& in) {
  const at::Tensor self = in.tensor(0);
  std::vector<int64_t> sizes = self.sizes().vec();
  sizes.at(static_cast<size_t>(c10::maybe_wrap_dim(last_of(in.ints(1)), self.dim()))) = in.integer(3);
  return {plain(sizes, self.options().dtype(c10::toRealValueType(self.scalar_type())))};
}

}  // namespace

const std::vector<Entry> reduction_kernels = {
    {{"max", "max.unary_out", "min", "min.unary_out", "median", "nanmedian", "dot", "vdot"}, to_scalar},
    {{"_aminmax"}, to_scalars},
    {{"_aminmax.dim"}, aminmax},
    {{"trace"}, trace},
    {{"prod"}, prod},
    {{"nansum", "nansum.out"}, nansum},
    {{"var.correction", "var.correction_out", "std.correction", "std.correction_out"}, variance},
    {{"var_mean.correction", "std_mean.correction"}, variance_and_mean},
    {{"count_nonzero.dim_IntList"}, count_nonzero},
    {{"mode", "median.dim_values", "nanmedian.dim_values"}, mode},
    {{"kthvalue.values"}, kthvalue},
    {{"histc", "histc.out"}, histc},
    {{"index_select", "index_select.out"}, index_select},
    {{"take", "take.out"}, take},
    {{"searchsorted.Tensor", "searchsorted.Tensor_out", "searchsorted.Scalar", "searchsorted.Scalar_out"},
        searchsorted},
    {{"bucketize.Tensor", "bucketize.Tensor_out", "bucketize.Scalar"}, bucketize},
    {{"repeat_interleave.Tensor"}, repeat_interleave},
    {{"unfold_backward"}, unfold_backward},
    {{"masked_scatter_backward"}, of_sizes},
    {{"segment_reduce"}, segment_reduce},
    {{"_segment_reduce_backward"}, like_third},
    {{"flip"}, same},
    {{"roll"}, same_format},
    {{"channel_shuffle", "linalg_matrix_exp", "linalg_matrix_sqrth", "_fft_c2c", "_fft_c2c.out"}, same_plain},
    {{"narrow_copy.out"}, narrow_copy},
    {{"tril_indices"}, tril_indices},
    {{"triu_indices"}, triu_indices},
    {{"addbmm", "addbmm.out"}, addbmm},
    {{"_int_mm", "_int_mm.out"}, int_mm},
    {{"linalg_solve_triangular", "linalg_solve_triangular.out"}, solve_triangular},
    {{"linalg_householder_product", "linalg_householder_product.out", "cholesky_inverse", "cholesky_inverse.out",
         "_cholesky_solve_helper"},
        same_by_columns},
    {{"linalg_eig", "linalg_eig.out"}, eig},
    {{"_linalg_eigvals", "linalg_eigvals.out"}, eigvals},
    {{"_cdist_forward"}, cdist},
    {{"_cdist_backward"}, cdist_backward},
    {{"_pdist_forward"}, pdist},
    {{"_pdist_backward"}, pdist_backward},
    {{"_fft_r2c", "_fft_r2c.out"}, fft_real_to_complex},
    {{"_fft_c2r", "_fft_c2r.out"}, fft_complex_to_real},
};

}  // namespace pw::meta
