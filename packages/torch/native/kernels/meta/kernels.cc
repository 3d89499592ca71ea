#include "kernels/meta/kernels.h"

#include <ATen/TensorIterator.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

namespace pw::meta {

at::Tensor plain(at::IntArrayRef sizes, const at::TensorOptions& options) {
  return at::empty(sizes, options.memory_format(at::MemoryFormat::Contiguous));
}
at::Tensor plain_like(const at::Tensor& tensor) { return plain(tensor.sizes(), tensor.options()); }
at::Tensor formatted(at::IntArrayRef sizes, const at::Tensor& like) {
  return at::empty(sizes, like.options().memory_format(like.suggest_memory_format()));
}
at::Tensor scalar_like(const at::Tensor& tensor) { return plain({}, tensor.options()); }

at::Tensor pointwise(at::ArrayRef<at::Tensor> tensors, std::optional<at::ScalarType> dtype, bool to_float) {
  at::TensorIteratorConfig config;
  config.set_check_mem_overlap(false).allow_cpu_scalars(true).check_all_same_dtype(false).add_owned_output(
      at::Tensor());
  for (const at::Tensor& tensor : tensors) config.add_owned_const_input(tensor);
  if (dtype.has_value()) {
    config.declare_static_dtype_and_device(*dtype, c10::Device(c10::DeviceType::Meta));
  } else {
    config.promote_inputs_to_common_dtype(true);
    if (to_float) config.promote_integer_inputs_to_float(true);
  }
  return config.build().output();
}

std::vector<int64_t> reduced_sizes(const at::Tensor& tensor, at::IntArrayRef dims, bool keep) {
  const int64_t rank = tensor.dim();
  std::vector<bool> gone(static_cast<size_t>(rank), dims.empty());
  for (const int64_t dim : dims) {
    const int64_t at = c10::maybe_wrap_dim(dim, rank);
    if (rank > 0) gone[static_cast<size_t>(at)] = true;
  }
  std::vector<int64_t> sizes;
  for (int64_t i = 0; i < rank; ++i) {
    if (!gone[static_cast<size_t>(i)]) {
      sizes.push_back(tensor.size(i));
    } else if (keep) {
      sizes.push_back(1);
    }
  }
  return sizes;
}

namespace {

struct Boxed final : c10::OperatorKernel {
  explicit Boxed(Kernel kernel) : kernel_(kernel) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) const {
    const size_t count = op.schema().arguments().size();
    const at::ArrayRef<c10::IValue> values = torch::jit::last(*stack, count);
    Results results = kernel_({values});
    const auto& arguments = op.schema().arguments();
    if (count > 0 && arguments.back().is_out()) {
      const size_t first = count - op.schema().returns().size();
      for (size_t i = 0; i < results.size(); ++i) {
        const at::Tensor given = values[first + i].toTensor();
        if (given.sizes() != results[i].sizes()) {
          at::native::resize_output(given, results[i].sizes());
          given.unsafeGetTensorImpl()->set_sizes_and_strides(results[i].sizes(), results[i].strides());
        }
        results[i] = given;
      }
    }
    torch::jit::drop(*stack, count);
    for (at::Tensor& result : results) stack->emplace_back(std::move(result));
  }

 private:
  const Kernel kernel_;
};

// Whether the CPU's fused kernel would be used: it lays its results out in another way than the plain one.
bool is_fused(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const std::optional<at::Tensor>& mask,
    double dropout) {
  const auto fits = [&](const at::Tensor& tensor) {
    return tensor.dim() == 4 && tensor.size(3) == q.size(3) && tensor.stride(3) == 1 && tensor.numel() > 0;
  };
  if (q.dim() != 4 || !fits(q) || !fits(k) || !fits(v) || dropout != 0 || q.size(0) != k.size(0) ||
      q.size(1) != k.size(1))
    return false;
  if (!mask.has_value() || !mask->defined()) return true;
  if (mask->requires_grad() ||
      (mask->scalar_type() != q.scalar_type() && mask->scalar_type() != at::kFloat && mask->scalar_type() != at::kBool))
    return false;
  if (mask->dim() != 2 && mask->dim() != 4) return false;
  const auto one_or = [](int64_t size, int64_t wanted) { return size == 1 || size == wanted; };
  return one_or(mask->size(-2), q.size(2)) && one_or(mask->size(-1), k.size(2)) &&
         (mask->dim() == 2 || (one_or(mask->size(0), q.size(0)) && one_or(mask->size(1), q.size(1))));
}

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const std::optional<at::Tensor>& mask, double dropout, bool causal, std::optional<double> scale, bool grouped) {
  if (!is_fused(q, k, v, mask, dropout))
    return std::get<0>(
        at::_scaled_dot_product_attention_math(q, k, v, mask, dropout, causal, std::nullopt, scale, grouped));
  std::optional<at::Tensor> added = mask;
  if (mask.has_value() && mask->defined() && mask->scalar_type() == at::kBool)
    added = plain(mask->sizes(), q.options());
  return std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, dropout, causal, added, scale));
}

}  // namespace

void register_kernels() {
  static const bool once = [] {
    auto* library = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::Meta, __FILE__, __LINE__);
    c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
    for (const std::vector<Entry>* table : {&pointwise_kernels, &reduction_kernels, &layer_kernels, &loss_kernels}) {
      for (const Entry& entry : *table) {
        for (const char* name : entry.names) {
          const std::string text = name;
          const size_t dot = text.find('.');
          const auto op = dispatcher.findSchema(
              {"aten::" + text.substr(0, dot), dot == std::string::npos ? "" : text.substr(dot + 1)});
          if (!op.has_value() || op->hasKernelForDispatchKey(c10::DispatchKey::Meta)) continue;
          library->impl(name, torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Boxed>(entry.kernel)));
        }
      }
    }
    // The choice between fused and plain attention is made by the device, before autograd.
    library->impl("scaled_dot_product_attention", TORCH_FN(attention));
    auto* autograd =
        new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::AutogradMeta, __FILE__, __LINE__);
    autograd->impl("scaled_dot_product_attention", TORCH_FN(attention));
    return true;
  }();
  (void)once;
}

}  // namespace pw::meta
