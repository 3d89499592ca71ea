// Element by element: strides follow those of the arguments.
#include "kernels/meta/kernels.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/result_type.h>
#include <c10/core/DefaultDtype.h>

namespace pw::meta {

Results same(const Arguments& in) { return {at::empty_like(in.tensor(0))}; }

namespace {

Results unary(const Arguments& in) { return {pointwise({in.tensor(0)})}; }
Results unary_float(const Arguments& in) { return {pointwise({in.tensor(0)}, std::nullopt, true)}; }
Results unary_bool(const Arguments& in) { return {pointwise({in.tensor(0)}, at::kBool)}; }
Results binary(const Arguments& in) { return {pointwise({in.tensor(0), in.tensor(1)})}; }
Results binary_bool(const Arguments& in) { return {pointwise({in.tensor(0), in.tensor(1)}, at::kBool)}; }
Results binary_last(const Arguments& in) { return {pointwise({in.tensor(1)})}; }
Results ternary(const Arguments& in) { return {pointwise({in.tensor(0), in.tensor(1), in.tensor(2)})}; }
Results nothing(const Arguments&) { return {}; }

Results angle(const Arguments& in) {
  const at::Tensor self = in.tensor(0);
  if (self.is_complex()) return {pointwise({self}, c10::toRealValueType(self.scalar_type()))};
  return unary_float(in);
}

Results where(const Arguments& in) {
  const at::Tensor condition = in.tensor(0), self = in.tensor(1), other = in.tensor(2);
  return {pointwise({condition, self, other}, at::result_type(self, other))};
}

Results complex(const Arguments& in) {
  const at::Tensor real = in.tensor(0);
  return {pointwise({real, in.tensor(1)}, c10::toComplexType(real.scalar_type()))};
}

Results frexp(const Arguments& in) { return {pointwise({in.tensor(0)}), pointwise({in.tensor(0)}, at::kInt)}; }

Results log_sigmoid(const Arguments& in) {  // the second is a buffer of the CPU's kernel
  const at::Tensor self = in.tensor(0);
  return {pointwise({self}), at::empty_like(self)};
}

Results prelu_backward(const Arguments& in) {
  const at::Tensor result = pointwise({in.tensor(0), in.tensor(1), in.tensor(2)});
  return {result, at::empty_like(result)};
}

Results dropout(const Arguments& in) {
  const at::Tensor self = in.tensor(0);
  return {at::empty_like(self), at::empty_like(self, self.options().dtype(at::kBool))};
}

Results multinomial(const Arguments& in) {
  const at::Tensor self = in.tensor(0);
  std::vector<int64_t> sizes = self.sizes().vec();
  sizes.back() = in.integer(1);
  return {plain(sizes, self.options().dtype(at::kLong))};
}

Results randperm(const Arguments& in) { return {plain({in.integer(0)}, in.tensor(2).options())}; }

}  // namespace

const std::vector<Entry> pointwise_kernels = {
    {{"relu", "hardswish", "hardswish.out", "hardtanh", "hardtanh.out", "abs.out", "conj_physical.out",
         "nan_to_num.out", "__lshift__.Scalar", "__rshift__.Scalar", "_add_relu.Scalar"},
        unary},
    {{"logit", "logit.out", "mvlgamma.out"}, unary_float},
    {{"isnan", "logical_not.out"}, unary_bool},
    {{"angle", "angle.out"}, angle},
    {{"frexp.Tensor_out"}, frexp},
    {{"hardswish_backward", "hardtanh_backward", "hardtanh_backward.grad_input", "floor_divide", "floor_divide.out",
         "rsub.Tensor", "__lshift__.Tensor", "__rshift__.Tensor", "_add_relu.Tensor", "_add_relu.out", "_prelu_kernel",
         "log_sigmoid_backward", "log_sigmoid_backward.grad_input", "_standard_gamma_grad", "native_dropout_backward"},
        binary},
    {{"logical_and.out", "logical_or.out", "logical_xor.out"}, binary_bool},
    {{"remainder.Scalar_Tensor"}, binary_last},
    {{"_dirichlet_grad"}, ternary},
    {{"complex.out", "polar.out"}, complex},
    {{"where.self", "where.self_out"}, where},
    {{"log_sigmoid_forward", "log_sigmoid_forward.output"}, log_sigmoid},
    {{"_prelu_kernel_backward"}, prelu_backward},
    {{"bernoulli.out", "poisson", "binomial", "_standard_gamma", "_sample_dirichlet", "rrelu_with_noise",
         "rrelu_with_noise.out", "_masked_softmax", "_masked_softmax_backward", "_logcumsumexp", "_logcumsumexp.out"},
        same},
    {{"native_dropout"}, dropout},
    {{"multinomial", "multinomial.out"}, multinomial},
    {{"randperm.generator_out"}, randperm},
    {{"_assert_async", "_assert_async.msg", "_cummax_helper", "_cummin_helper",
         "_amp_foreach_non_finite_check_and_unscale_"},
        nothing},
};

}  // namespace pw::meta
