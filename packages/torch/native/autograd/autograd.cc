// Gradients: the engine's two calls, the modes, and a walk over the graph.
#include "autograd/direct-run.h"
#include "core/callback.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

namespace pw {

static c10::DeviceType device_type(const std::string& name) { return c10::Device(name).type(); }

// (tensors, gradients or nothing, retainGraph or nothing, createGraph, inputs or nothing)
PW_ENTRY(backward, 5) {
  const std::vector<at::Tensor> roots = args.tensors(0);
  std::vector<at::Tensor> gradients, inputs;
  if (!args.missing(1)) gradients = args.tensors(1);
  const bool create = args.boolean(3);
  const bool retain = args.missing(2) ? create : args.boolean(2);
  if (!args.missing(4)) inputs = args.tensors(4);
  const RecomputeRun run(false);
  if (create || !inputs.empty()) {
    run_engine(*args.env, [&] { torch::autograd::backward(roots, gradients, retain, create, inputs); });
    return nullptr;
  }
  const torch::autograd::edge_list edges = edges_of(roots, gradients);
  run_backward(*args.env, edges, gradients, retain);
  return nullptr;
}

// A backward beside this thread. At its end what checkpoints recomputed for it is forgotten.
static thread_local std::unique_ptr<RecomputeRun> beside_run;

// (tensors, gradients, cores): begins it.
PW_ENTRY(start_backward, 3) {
  const std::vector<at::Tensor> roots = args.tensors(0);
  std::vector<at::Tensor> gradients = args.tensors(1);
  auto work = [edges = edges_of(roots, gradients), gradients = std::move(gradients)] {
    run_backward_here(edges, gradients, false);
  };
  args.env->bridge->start(std::move(work), args.int32(2));
  beside_run = std::make_unique<RecomputeRun>(false);
  return nullptr;
}

PW_ENTRY(is_backward_done, 1) { return from_bool(args.napi, args.env->bridge->finished()); }

// Waits for it, serving the functions it calls, and throws what it threw.
PW_ENTRY(finish_backward, 1) {
  struct After {
    Env& env;
    ~After() {
      beside_run.reset();
      sweep(env);
    }
  } after{*args.env};
  args.env->bridge->finish();
  return nullptr;
}

// (outputs, inputs, gradients or nothing, retainGraph or nothing, createGraph, allowUnused)
PW_ENTRY(grad, 6) {
  const std::vector<at::Tensor> outputs = args.tensors(0), inputs = args.tensors(1);
  std::vector<at::Tensor> gradients;
  if (!args.missing(2)) gradients = args.tensors(2);
  const bool create = args.boolean(4);
  const bool retain = args.missing(3) ? create : args.boolean(3);
  const bool allow_unused = args.boolean(5);
  const RecomputeRun run(false);
  std::vector<at::Tensor> result;
  run_engine(
      *args.env, [&] { result = torch::autograd::grad(outputs, inputs, gradients, retain, create, allow_unused); });
  return from_tensors(*args.env, result);
}

PW_ENTRY(is_grad_enabled, 1) { return from_bool(args.napi, at::GradMode::is_enabled()); }

PW_ENTRY(set_grad_enabled, 1) {
  const bool before = at::GradMode::is_enabled();
  at::GradMode::set_enabled(args.boolean(0));
  return from_bool(args.napi, before);
}

PW_ENTRY(enter_inference, 1) {
  args.env->inference.push_back(std::make_unique<c10::InferenceMode>(args.boolean(0)));
  return undefined(args.napi);
}

PW_ENTRY(exit_inference, 1) {
  if (!args.env->inference.empty()) args.env->inference.pop_back();
  return undefined(args.napi);
}

PW_ENTRY(is_inference, 1) { return from_bool(args.napi, c10::InferenceMode::is_enabled()); }

PW_ENTRY(retain_grad, 1) {
  args.tensor(0).retain_grad();
  return undefined(args.napi);
}

// --- autocast -------------------------------------------------------------------------------------------------------

// (device type, enabled, dtype code): returns what was set before, [enabled, dtype code].
PW_ENTRY(set_autocast, 3) {
  const c10::DeviceType device = device_type(args.string(0));
  napi_value before;
  napi_create_array_with_length(args.napi, 2, &before);
  napi_set_element(args.napi, before, 0, from_bool(args.napi, at::autocast::is_autocast_enabled(device)));
  napi_set_element(
      args.napi, before, 1, from_int32(args.napi, static_cast<int32_t>(at::autocast::get_autocast_dtype(device))));
  at::autocast::set_autocast_enabled(device, args.boolean(1));
  at::autocast::set_autocast_dtype(device, static_cast<at::ScalarType>(args.int32(2)));
  return before;
}

PW_ENTRY(enter_autocast, 1) {
  at::autocast::increment_nesting();
  return undefined(args.napi);
}

PW_ENTRY(exit_autocast, 1) {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  return undefined(args.napi);
}

PW_ENTRY(get_autocast_dtype, 1) {
  return from_int32(args.napi, static_cast<int32_t>(at::autocast::get_autocast_dtype(device_type(args.string(0)))));
}

PW_ENTRY(is_autocast_cache_enabled, 1) { return from_bool(args.napi, at::autocast::is_autocast_cache_enabled()); }

PW_ENTRY(set_autocast_cache_enabled, 1) {
  at::autocast::set_autocast_cache_enabled(args.boolean(0));
  return undefined(args.napi);
}

PW_ENTRY(is_autocast_enabled, 1) {
  return from_bool(args.napi, at::autocast::is_autocast_enabled(device_type(args.string(0))));
}

// --- the graph ------------------------------------------------------------------------------------------------------

static torch::autograd::Node& node_of(Args<1>& args) {
  OwnedNode* found = args.env->nodes.find(args.int32(0));
  if (found == nullptr)
    throw CodedError("STALE_HANDLE", "this graph node was disposed of, or belongs to another thread");
  return **found;
}

// A handle of the node that made the tensor; of the accumulator for a leaf that requires gradients; 0 for none.
PW_ENTRY(grad_fn, 1) {
  const at::Tensor& tensor = args.tensor(0);
  OwnedNode node = tensor.requires_grad() ? torch::autograd::impl::gradient_edge(tensor).function : OwnedNode();
  return from_int32(args.napi, node ? args.env->nodes.add(std::move(node)) : 0);
}

PW_ENTRY(node_name, 1) { return from_string(args.napi, node_of(args).name()); }

// A number that is the same for the same node while it lives.
PW_ENTRY(node_id, 1) { return from_double(args.napi, static_cast<double>(node_of(args).sequence_nr())); }

PW_ENTRY(node_key, 1) {
  napi_value key;
  napi_create_bigint_uint64(args.napi, reinterpret_cast<uint64_t>(&node_of(args)), &key);
  return key;
}

// [handle or 0, input number, handle or 0, input number, ...]
PW_ENTRY(node_next, 1) {
  torch::autograd::Node& node = node_of(args);
  napi_value result;
  napi_create_array(args.napi, &result);
  uint32_t count = 0;
  for (const torch::autograd::Edge& edge : node.next_edges()) {
    OwnedNode next = edge.function;
    napi_set_element(
        args.napi, result, count++, from_int32(args.napi, next ? args.env->nodes.add(std::move(next)) : 0));
    napi_set_element(args.napi, result, count++, from_int32(args.napi, static_cast<int32_t>(edge.input_nr)));
  }
  return result;
}

// --- gradient edges -------------------------------------------------------------------------------------------------

// Which of its node's inputs the gradient of a tensor is.
PW_ENTRY(output_nr, 1) { return from_int32(args.napi, static_cast<int32_t>(args.tensor(0).output_nr())); }

// (node, input number): a tensor without memory whose gradient goes there, so that it can stand in a backward for the tensor
// that was computed; for an accumulator its leaf. TypeScript never hands it out as a tensor.
PW_ENTRY(edge, 2) {
  using torch::autograd::AccumulateGrad;
  OwnedNode* found = args.env->nodes.find(args.int32(0));
  if (found == nullptr)
    throw CodedError("STALE_HANDLE", "this graph node was disposed of, or belongs to another thread");
  torch::autograd::Node& node = **found;
  const int32_t number = args.int32(1);
  if (number < 0 || static_cast<uint32_t>(number) >= node.num_inputs()) {
    throw CodedError("BAD_ARGUMENT", "GradientEdge: " + node.name() + " has " + std::to_string(node.num_inputs()) +
                                         " outputs, so there is no number " + std::to_string(number));
  }
  if (auto* leaf = dynamic_cast<AccumulateGrad*>(&node)) return from_int32(args.napi, args.env->wrap(leaf->variable));
  const torch::autograd::InputMetadata& like = node.input_metadata(static_cast<size_t>(number));
  if (like.was_default_constructed())
    throw CodedError(
        "BAD_ARGUMENT", "GradientEdge: output " + std::to_string(number) + " of " + node.name() + " gets no gradient");
  const at::TensorOptions options = like.options();
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(c10::Storage::use_byte_size_t(), 0, c10::DataPtr(nullptr, options.device()), nullptr, false),
      c10::DispatchKeySet(options.computeDispatchKey()), options.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(C10_AS_INTARRAYREF_SLOW(like.shape_as_dim_vector()));
  torch::autograd::impl::set_gradient_edge(tensor, {*found, static_cast<uint32_t>(number)});
  return from_int32(args.napi, args.env->wrap(std::move(tensor)));
}

PW_ENTRY(release_node, 1) { return from_bool(args.napi, args.env->nodes.remove(args.int32(0))); }

void init_autograd(Env& env, napi_value exports) {
  add_exports(env, exports,
      {
          {"backward", backward},
          {"startBackward", start_backward},
          {"finishBackward", finish_backward},
          {"isBackwardDone", is_backward_done},
          {"gradOf", grad},
          {"isGradEnabled", is_grad_enabled},
          {"setGradEnabled", set_grad_enabled},
          {"enterInference", enter_inference},
          {"exitInference", exit_inference},
          {"isInference", is_inference},
          {"retainGrad", retain_grad},
          {"setAutocast", set_autocast},
          {"enterAutocast", enter_autocast},
          {"exitAutocast", exit_autocast},
          {"isAutocastEnabled", is_autocast_enabled},
          {"getAutocastDtype", get_autocast_dtype},
          {"isAutocastCacheEnabled", is_autocast_cache_enabled},
          {"setAutocastCacheEnabled", set_autocast_cache_enabled},
          {"gradFn", grad_fn},
          {"nodeName", node_name},
          {"nodeId", node_id},
          {"nodeKey", node_key},
          {"nodeNext", node_next},
          {"releaseNode", release_node},
          {"outputNr", output_nr},
          {"edge", edge},
      });
}

}  // namespace pw
