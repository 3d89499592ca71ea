// A backward that gives the gradients of chosen tensors first. See the header.
#include "autograd/put-off.h"

#include "autograd/direct-run.h"
#include "core/callback.h"

#include <ATen/core/grad_mode.h>

namespace pw {

static thread_local PutOff* current_list = nullptr;

PutOff* PutOff::current() { return current_list; }
PutOff::Guard::Guard(PutOff& list) : before_(current_list) { current_list = &list; }
PutOff::Guard::~Guard() { current_list = before_; }

void PutOff::run() {
  const at::AutoGradMode off(false);
  for (const auto& work : std::exchange(work_, {})) work();
}

// (tensors, gradients, inputs, function to call when the gradients of the inputs are there)
PW_ENTRY(backward_inputs_first, 4) {
  const std::vector<at::Tensor> roots = args.tensors(0);
  std::vector<at::Tensor> gradients = args.tensors(1);
  PutOff list(args.tensors(2));
  const torch::autograd::edge_list edges = edges_of(roots, gradients);
  {
    const RecomputeRun run(false);
    run_engine(*args.env, [&] {
      const PutOff::Guard putting_off(list);
      run_backward_here(edges, gradients, false);
    });
  }
  napi_value global;
  check(args.napi, napi_get_global(args.napi, &global), "the global object");
  check(args.napi, napi_call_function(args.napi, global, args.values[3], 0, nullptr, nullptr), "a function");
  list.run();
  return undefined(args.napi);
}

void init_put_off(Env& env, napi_value exports) {
  add_exports(env, exports, {{"backwardInputsFirst", backward_inputs_first}});
}

}  // namespace pw
