// Layers: normalization, convolution, pooling, padding, embedding, attention, sampling of images.
#include "kernels/meta/kernels.h"

#include <ATen/native/Pool.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

namespace pw::meta {
namespace {

using at::MemoryFormat;

at::TensorOptions statistics_options(const at::Tensor& input, const at::Tensor& weight) {
  return weight.defined() ? input.options().dtype(weight.scalar_type()) : input.options();
}
at::Tensor when(bool wanted, const at::Tensor& tensor) { return wanted ? tensor : at::Tensor(); }

// --- normalization --------------------------------------------------------------------------------------------------------

Results batch_statistics(const at::Tensor& input, const at::Tensor& weight, bool training) {
  const int64_t count = training ? input.size(1) : 0;
  const at::TensorOptions options = statistics_options(input, weight);
  return {formatted(input.sizes(), input), plain({count}, options), plain({count}, options)};
}
Results batch_norm(const Arguments& in) { return batch_statistics(in.tensor(0), in.tensor(1), in.boolean(5)); }
Results batch_norm_without_statistics(const Arguments& in) {
  return batch_statistics(in.tensor(0), in.tensor(1), in.boolean(3));
}
Results batch_norm_with_update(const Arguments& in) {
  Results results = batch_statistics(in.tensor(0), in.tensor(1), true);
  results.push_back(plain({0}, in.tensor(0).options().dtype(at::kByte)));
  return results;
}
Results batch_norm_update_stats(const Arguments& in) {
  const at::Tensor input = in.tensor(0);
  return {plain({input.size(1)}, input.options()), plain({input.size(1)}, input.options())};
}
Results batch_norm_backward(const Arguments& in) {
  const at::Tensor input = in.tensor(1), weight = in.tensor(2);
  const at::Tensor parameter = plain({input.size(1)}, statistics_options(input, weight));
  return {when(in.masked(9, 0), formatted(input.sizes(), input)), when(in.masked(9, 1), parameter),
      when(in.masked(9, 2), at::empty_like(parameter))};
}

Results layer_norm(const Arguments& in) {
  const at::Tensor input = in.tensor(0);
  const std::vector<int64_t> shape = in.ints(1);
  const int64_t kept = input.dim() - static_cast<int64_t>(shape.size());
  TORCH_CHECK(kept >= 0 && input.sizes().slice(static_cast<size_t>(kept)) == at::IntArrayRef(shape),
      "Given normalized_shape=", at::IntArrayRef(shape), ", expected input with shape [*, ", at::IntArrayRef(shape),
      "], but got input of size", input.sizes());
  std::vector<int64_t> sizes = input.sizes().vec();
  std::fill(sizes.begin() + kept, sizes.end(), 1);
  const at::TensorOptions options = statistics_options(input, in.tensor(2));
  return {plain_like(input), plain(sizes, options), plain(sizes, options)};
}
Results layer_norm_backward(const Arguments& in) {
  const at::Tensor input = in.tensor(1), weight = in.tensor(5);
  const at::Tensor parameter = weight.defined() ? plain_like(weight) : plain(in.ints(2), input.options());
  return {when(in.masked(7, 0), plain_like(input)), when(in.masked(7, 1) && weight.defined(), parameter),
      when(in.masked(7, 2), at::empty_like(parameter))};
}

Results group_norm(const Arguments& in) {
  const at::Tensor input = in.tensor(0);
  const at::TensorOptions options = statistics_options(input, in.tensor(1));
  const at::Tensor mean = plain({in.integer(3), in.integer(6)}, options);
  return {formatted(input.sizes(), input), mean, at::empty_like(mean)};
}
Results group_norm_backward(const Arguments& in) {
  const at::Tensor input = in.tensor(1), weight = in.tensor(4);
  const at::Tensor parameter = plain({in.integer(6)}, statistics_options(input, weight));
  return {when(in.masked(9, 0), formatted(input.sizes(), input)), when(in.masked(9, 1), parameter),
      when(in.masked(9, 2), at::empty_like(parameter))};
}

Results weight_norm(const Arguments& in) { return {plain_like(in.tensor(0)), plain_like(in.tensor(1))}; }
Results weight_norm_backward(const Arguments& in) { return {plain_like(in.tensor(1)), plain_like(in.tensor(2))}; }

// --- convolution ----------------------------------------------------------------------------------------------------------

MemoryFormat convolution_format(const at::Tensor& input, const at::Tensor& weight) {
  for (const at::Tensor& tensor : {input, weight}) {
    const MemoryFormat format = tensor.suggest_memory_format();
    if (format != MemoryFormat::Contiguous) return format;
  }
  return MemoryFormat::Contiguous;
}
at::Tensor in_format(at::IntArrayRef sizes, const at::Tensor& like, MemoryFormat format) {
  return at::empty(sizes, like.options().memory_format(format));
}

Results convolution(const Arguments& in) {
  const at::Tensor input = in.tensor(0), weight = in.tensor(1);
  const std::vector<int64_t> stride = in.ints(3), padding = in.ints(4), dilation = in.ints(5),
                             output_padding = in.ints(7);
  const bool transposed = in.boolean(6);
  std::vector<int64_t> sizes = {input.size(0), transposed ? weight.size(1) * in.integer(8) : weight.size(0)};
  for (size_t i = 0; i < stride.size(); ++i) {
    const int64_t size = input.size(static_cast<int64_t>(i) + 2),
                  reach = dilation.at(i) * (weight.size(static_cast<int64_t>(i) + 2) - 1);
    sizes.push_back(transposed ? (size - 1) * stride.at(i) - 2 * padding.at(i) + reach + output_padding.at(i) + 1
                               : (size + 2 * padding.at(i) - reach - 1) / stride.at(i) + 1);
  }
  return {in_format(sizes, input, convolution_format(input, weight))};
}
Results convolution_backward(const Arguments& in) {
  const at::Tensor gradient = in.tensor(0), input = in.tensor(1), weight = in.tensor(2);
  const MemoryFormat format = convolution_format(input, weight);
  return {when(in.masked(9, 0), in_format(input.sizes(), input, format)),
      when(in.masked(9, 1), in_format(weight.sizes(), weight, format)),
      when(in.masked(9, 2), plain({gradient.size(1)}, gradient.options()))};
}

Results im2col(const Arguments& in) {
  const at::Tensor input = in.tensor(0);
  const std::vector<int64_t> kernel = in.ints(1), dilation = in.ints(2), padding = in.ints(3), stride = in.ints(4);
  std::vector<int64_t> sizes = input.sizes().slice(0, static_cast<size_t>(input.dim() - 2)).vec();
  sizes.at(sizes.size() - 1) *= kernel.at(0) * kernel.at(1);
  int64_t blocks = 1;
  for (size_t i = 0; i < 2; ++i)
    blocks *= (input.size(static_cast<int64_t>(i) - 2) + 2 * padding.at(i) - dilation.at(i) * (kernel.at(i) - 1) - 1) /
                  stride.at(i) +
              1;
  sizes.push_back(blocks);
  return {plain(sizes, input.options())};
}
Results col2im(const Arguments& in) {
  const at::Tensor input = in.tensor(0);
  const std::vector<int64_t> output = in.ints(1), kernel = in.ints(2);
  std::vector<int64_t> sizes = input.sizes().slice(0, static_cast<size_t>(input.dim() - 1)).vec();
  sizes.at(sizes.size() - 1) /= kernel.at(0) * kernel.at(1);
  sizes.insert(sizes.end(), {output.at(0), output.at(1)});
  return {plain(sizes, input.options())};
}

// --- pooling, padding, sampling ---------------------------------------------------------------------------------------------

std::vector<int64_t> with_last(const at::Tensor& input, at::IntArrayRef last) {
  std::vector<int64_t> sizes = input.sizes().vec();
  TORCH_CHECK(last.size() <= sizes.size(), "the input needs at least ", last.size(), " dimensions, got ", sizes.size());
  std::copy(last.begin(), last.end(), sizes.end() - static_cast<int64_t>(last.size()));
  return sizes;
}

Results adaptive_pool(const Arguments& in) { return {formatted(with_last(in.tensor(0), in.ints(1)), in.tensor(0))}; }
Results input_gradient(const Arguments& in) { return {formatted(in.tensor(1).sizes(), in.tensor(1))}; }
Results plain_input_gradient(const Arguments& in) { return {plain_like(in.tensor(1))}; }

Results max_pool3d(const Arguments& in) {
  const at::Tensor input = in.tensor(0);
  const auto triple = [](std::vector<int64_t> values) {
    return values.size() == 1 ? std::vector<int64_t>(3, values.at(0)) : values;
  };
  const std::vector<int64_t> kernel = triple(in.ints(1)), given = in.ints(2), padding = triple(in.ints(3)),
                             dilation = triple(in.ints(4));
  const std::vector<int64_t> stride = given.empty() ? kernel : triple(given);
  std::vector<int64_t> last;
  for (size_t i = 0; i < 3; ++i) {
    last.push_back(at::native::pooling_output_shape<int64_t>(input.size(static_cast<int64_t>(i) - 3), kernel.at(i),
        padding.at(i), stride.at(i), dilation.at(i), in.boolean(5)));
  }
  const at::Tensor output = formatted(with_last(input, last), input);
  return {output, at::empty_like(output, output.options().dtype(at::kLong))};
}
Results max_unpool(const Arguments& in) { return adaptive_pool({{in.values[0], in.values[2]}}); }

Results pad2d(const Arguments& in) {
  const at::Tensor input = in.tensor(0);
  const std::vector<int64_t> padding = in.ints(1);
  return {formatted(with_last(input, {input.size(-2) + padding.at(2) + padding.at(3),
                                         input.size(-1) + padding.at(0) + padding.at(1)}),
      input)};
}

Results grid_sampler(const Arguments& in) {
  const at::Tensor input = in.tensor(0), grid = in.tensor(1);
  TORCH_CHECK(grid.dim() >= 2, "grid_sampler(): the grid needs at least 2 dimensions, got ", grid.dim());
  return {plain(with_last(input, grid.sizes().slice(1, static_cast<size_t>(grid.dim() - 2))), input.options())};
}
Results grid_sampler_backward(const Arguments& in) {
  return {when(in.masked(6, 0), plain_like(in.tensor(1))), plain_like(in.tensor(2))};
}

// --- embedding, attention ---------------------------------------------------------------------------------------------------

Results embedding_backward(const Arguments& in) {
  const at::Tensor gradient = in.tensor(0);
  return {plain({in.integer(2), gradient.size(-1)}, gradient.options())};
}

Results embedding_bag(const Arguments& in) {
  const at::Tensor weight = in.tensor(0), indices = in.tensor(1), offsets = in.tensor(2);
  const int64_t bags = offsets.size(0) - (in.boolean(7) ? 1 : 0);
  const bool maximum = in.integer(4) == 2;
  return {plain({bags, weight.size(1)}, weight.options()), plain({indices.size(0)}, indices.options()),
      plain({bags}, indices.options()),
      maximum ? plain({bags, weight.size(1)}, indices.options()) : plain({bags}, indices.options())};
}
Results embedding_bag_backward(const Arguments& in) {
  return {plain({in.integer(6), in.tensor(0).size(1)}, in.tensor(0).options())};
}
Results embedding_bag_dense_backward(const Arguments& in) {
  return {plain({in.integer(5), in.tensor(0).size(1)}, in.tensor(0).options())};
}
Results embedding_bag_weights_backward(const Arguments& in) {
  return {plain({in.tensor(2).size(0)}, in.tensor(0).options())};
}

// The CPU's kernel works on [batch, time, heads, width] and hands out transposed views.
at::Tensor by_time(const at::Tensor& tensor, int64_t width) {
  return plain({tensor.size(0), tensor.size(2), tensor.size(1), width}, tensor.options()).transpose(1, 2);
}
Results attention(const Arguments& in) {
  const at::Tensor q = in.tensor(0), v = in.tensor(2);
  const at::ScalarType sums = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return {by_time(q, v.size(3)), plain({q.size(0), q.size(2), q.size(1)}, q.options().dtype(sums)).transpose(1, 2)};
}
Results attention_backward(const Arguments& in) {
  Results results;
  for (size_t i = 1; i <= 3; ++i) results.push_back(by_time(in.tensor(i), in.tensor(i).size(3)));
  return results;
}

}  // namespace

const std::vector<Entry> layer_kernels = {
    {{"native_batch_norm", "native_batch_norm.out", "_native_batch_norm_legit", "_native_batch_norm_legit.out"},
        batch_norm},
    {{"_native_batch_norm_legit.no_stats", "_native_batch_norm_legit.no_stats_out"}, batch_norm_without_statistics},
    {{"_batch_norm_with_update", "_batch_norm_with_update.out"}, batch_norm_with_update},
    {{"batch_norm_update_stats"}, batch_norm_update_stats},
    {{"native_batch_norm_backward", "batch_norm_backward"}, batch_norm_backward},
    {{"native_layer_norm"}, layer_norm},
    {{"native_layer_norm_backward"}, layer_norm_backward},
    {{"native_group_norm"}, group_norm},
    {{"native_group_norm_backward"}, group_norm_backward},
    {{"_weight_norm_interface"}, weight_norm},
    {{"_weight_norm_interface_backward"}, weight_norm_backward},
    {{"convolution_overrideable"}, convolution},
    {{"convolution_backward_overrideable"}, convolution_backward},
    {{"im2col", "im2col.out"}, im2col},
    {{"col2im", "col2im.out"}, col2im},
    {{"_adaptive_avg_pool2d", "adaptive_avg_pool2d.out", "_adaptive_avg_pool3d", "adaptive_avg_pool3d.out"},
        adaptive_pool},
    {{"_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward", "adaptive_avg_pool3d_backward.grad_input",
         "max_pool3d_with_indices_backward", "max_pool3d_with_indices_backward.grad_input", "reflection_pad2d_backward",
         "reflection_pad2d_backward.grad_input", "replication_pad2d_backward", "replication_pad2d_backward.grad_input"},
        input_gradient},
    {{"replication_pad3d_backward", "replication_pad3d_backward.grad_input", "fractional_max_pool3d_backward",
         "fractional_max_pool3d_backward.grad_input"},
        plain_input_gradient},
    {{"max_pool3d_with_indices", "max_pool3d_with_indices.out"}, max_pool3d},
    {{"max_unpool2d", "max_unpool2d.out", "max_unpool3d", "max_unpool3d.out"}, max_unpool},
    {{"reflection_pad2d", "reflection_pad2d.out"}, pad2d},
    {{"grid_sampler_2d", "grid_sampler_3d"}, grid_sampler},
    {{"grid_sampler_2d_backward", "grid_sampler_3d_backward"}, grid_sampler_backward},
    {{"embedding_dense_backward"}, embedding_backward},
    {{"_embedding_bag", "_embedding_bag_forward_only"}, embedding_bag},
    {{"_embedding_bag_backward"}, embedding_bag_backward},
    {{"_embedding_bag_dense_backward"}, embedding_bag_dense_backward},
    {{"_embedding_bag_per_sample_weights_backward"}, embedding_bag_weights_backward},
    {{"_scaled_dot_product_flash_attention_for_cpu"}, attention},
    {{"_scaled_dot_product_flash_attention_for_cpu_backward"}, attention_backward},
};

}  // namespace pw::meta
