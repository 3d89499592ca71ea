// A backward that gives the gradients of chosen tensors first. See the header.
#include "put-off.h"

#include "callback.h"
#include "direct-run.h"

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

static thread_local HandleTable<std::unique_ptr<PutOff>> lists;

// (tensors, gradients, inputs): handle of what was put off, or 0.
PW_ENTRY(backward_inputs_first, 3) {
  const std::vector<at::Tensor> roots = args.tensors(0);
  std::vector<at::Tensor> gradients = args.tensors(1);
  auto list = std::make_unique<PutOff>(args.tensors(2));
  const torch::autograd::edge_list edges = edges_of(roots, gradients);
  const RecomputeRun run(false);
  run_engine(*args.env, [&] {
    const PutOff::Guard putting_off(*list);
    run_backward_here(edges, gradients, false);
  });
  return from_int32(args.napi, list->empty() ? 0 : lists.add(std::move(list)));
}

// (handle): computes what was put off. A handle is used once.
PW_ENTRY(run_put_off, 1) {
  std::unique_ptr<PutOff>* found = lists.find(args.int32(0));
  if (found == nullptr) throw CodedError("STALE_HANDLE", "these weight gradients were computed or dropped already");
  const std::unique_ptr<PutOff> list = std::move(*found);
  lists.remove(args.int32(0));
  list->run();
  return undefined(args.napi);
}

PW_ENTRY(drop_put_off, 1) { return from_bool(args.napi, lists.remove(args.int32(0))); }

void init_put_off(Env& env, napi_value exports) {
  add_exports(env, exports, {
    {"backwardInputsFirst", backward_inputs_first},
    {"runPutOff", run_put_off},
    {"dropPutOff", drop_put_off},
  });
}

}  // namespace pw
