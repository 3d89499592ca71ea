// The calls of a process group. Backends want dense tensors of the few types they know: others travel as bytes, or are
// converted for a reduction and back.
#include "distributed/group.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/view_as_real.h>

namespace pw {
namespace {

using c10d::ReduceOp;
using Tensors = std::vector<at::Tensor>;

// A tensor as the backend sees it, and the way back.
struct Staged {
  at::Tensor original, dense, wire;
};

at::Tensor dense_of(const at::Tensor& tensor, bool is_read_by_threads) {
  at::NoGradGuard no_grad;
  if (is_read_by_threads && borrows_memory(tensor)) return tensor.detach().clone(at::MemoryFormat::Contiguous);
  return tensor.detach().resolve_conj().resolve_neg().contiguous();
}

Staged as_is(const Group& group, const at::Tensor& tensor) {
  Staged staged{tensor, dense_of(tensor, group.kind == BackendKind::thread), {}};
  staged.wire = group.kind == BackendKind::thread ? staged.dense : staged.dense.reshape({-1}).view(at::kByte);
  return staged;
}

// The reduction of a backend without booleans, 16-bit integers and averages.
Staged for_reduction(const Group& group, const at::Tensor& tensor, ReduceOp::RedOpType& op) {
  at::NoGradGuard no_grad;
  Staged staged{tensor, dense_of(tensor, group.kind == BackendKind::thread), {}};
  if (group.kind == BackendKind::thread) {
    staged.wire = staged.dense;
    return staged;
  }
  if (op == ReduceOp::AVG) op = ReduceOp::SUM;
  const at::ScalarType dtype = tensor.scalar_type();
  if (dtype == at::kBool) {
    staged.wire = staged.dense.view(at::kByte);
    if (op == ReduceOp::SUM) op = ReduceOp::MAX;
    if (op == ReduceOp::PRODUCT) op = ReduceOp::MIN;
  } else if (dtype == at::kShort) {
    staged.wire = staged.dense.to(at::kInt);
  } else if (tensor.is_complex() && op == ReduceOp::SUM) {
    staged.wire = at::view_as_real(staged.dense);
  } else {
    staged.wire = staged.dense;
  }
  return staged;
}

// Brings a result back to the caller's tensor.
void unstage(const Staged& staged, double divisor) {
  at::NoGradGuard no_grad;
  if (divisor != 1) staged.wire.div_(divisor);
  if (!staged.wire.is_alias_of(staged.dense)) staged.dense.copy_(staged.wire);
  if (!staged.dense.is_alias_of(staged.original)) staged.original.detach().copy_(staged.dense);
  else if (!staged.original.is_inference()) staged.original.unsafeGetTensorImpl()->bump_version();
}

ReduceOp::RedOpType op_of(int32_t code) {
  switch (code) {
    case 0:
      return ReduceOp::SUM;
    case 1:
      return ReduceOp::AVG;
    case 2:
      return ReduceOp::PRODUCT;
    case 3:
      return ReduceOp::MIN;
    case 4:
      return ReduceOp::MAX;
    default:
      throw CodedError("BAD_ARGUMENT", "unknown reduction " + std::to_string(code));
  }
}

double divisor_of(const Group& group, int32_t op) {
  return op == 1 && group.kind != BackendKind::thread ? group.size() : 1;
}

// gloo's own limit is a little longer than that of the wait, whose error says more.
std::chrono::milliseconds limit(int64_t timeout_ms) { return std::chrono::milliseconds(timeout_ms + 500); }

template <typename Call>
std::shared_ptr<Pending> start(const std::shared_ptr<Group>& group, Pending::Kind kind, Call&& call) {
  if (group->control->aborted) throw CodedError("ABORTED", group->control->reason());
  c10::intrusive_ptr<c10d::Work> work;
  {
    std::lock_guard<std::mutex> lock(group->post);
    try {
      work = call(*group->backend);
    } catch (...) {
      rethrow_coded(std::current_exception());
    }
  }
  return std::make_shared<Pending>(group, std::move(work), kind);
}

void check_peer(const Group& group, int rank) {
  if (rank < 0 || rank >= group.size())
    throw CodedError("RANK", "rank " + std::to_string(rank) + " is not in a group of " + std::to_string(group.size()));
}

Tensors wires(const std::vector<Staged>& staged) {
  Tensors result;
  for (const Staged& item : staged) result.push_back(item.wire);
  return result;
}

napi_value add(Env& env, std::shared_ptr<Pending> pending) {
  return from_int32(env.napi, add_pending(env, std::move(pending)));
}

}  // namespace

// (group, tensor, destination, tag)
PW_ENTRY(group_send, 4) {
  std::shared_ptr<Group> group = group_of(*args.env, args.int32(0));
  Tensors tensors{as_is(*group, args.tensor(1)).wire};
  const int destination = args.int32(2), tag = args.int32(3);
  check_peer(*group, destination);
  auto pending = start(
      group, Pending::Kind::send, [&](c10d::Backend& backend) { return backend.send(tensors, destination, tag); });
  pending->hold(tensors);
  return add(*args.env, std::move(pending));
}

// (group, tensor, source, tag)
PW_ENTRY(group_receive, 4) {
  std::shared_ptr<Group> group = group_of(*args.env, args.int32(0));
  const Staged staged = as_is(*group, args.tensor(1));
  Tensors tensors{staged.wire};
  const int source = args.int32(2), tag = args.int32(3);
  check_peer(*group, source);
  auto pending =
      start(group, Pending::Kind::receive, [&](c10d::Backend& backend) { return backend.recv(tensors, source, tag); });
  pending->hold(tensors);
  pending->after = [staged] { unstage(staged, 1); };
  return add(*args.env, std::move(pending));
}

// (group, tensor, root, timeoutMs)
PW_ENTRY(group_broadcast, 4) {
  std::shared_ptr<Group> group = group_of(*args.env, args.int32(0));
  const Staged staged = as_is(*group, args.tensor(1));
  Tensors tensors{staged.wire};
  c10d::BroadcastOptions options;
  options.rootRank = args.int32(2);
  options.timeout = limit(args.int64(3));
  check_peer(*group, static_cast<int>(options.rootRank));
  auto pending = start(
      group, Pending::Kind::collective, [&](c10d::Backend& backend) { return backend.broadcast(tensors, options); });
  pending->hold(tensors);
  if (options.rootRank != group->rank()) pending->after = [staged] { unstage(staged, 1); };
  return add(*args.env, std::move(pending));
}

// (group, tensor, op, timeoutMs)
PW_ENTRY(group_all_reduce, 4) {
  std::shared_ptr<Group> group = group_of(*args.env, args.int32(0));
  ReduceOp::RedOpType op = op_of(args.int32(2));
  const Staged staged = for_reduction(*group, args.tensor(1), op);
  Tensors tensors{staged.wire};
  c10d::AllreduceOptions options;
  options.reduceOp = op;
  options.timeout = limit(args.int64(3));
  const double divisor = divisor_of(*group, args.int32(2));
  auto pending = start(
      group, Pending::Kind::collective, [&](c10d::Backend& backend) { return backend.allreduce(tensors, options); });
  pending->hold(tensors);
  pending->after = [staged, divisor] { unstage(staged, divisor); };
  return add(*args.env, std::move(pending));
}

// (group, tensor, root, op, timeoutMs): only the root's tensor changes.
PW_ENTRY(group_reduce, 5) {
  std::shared_ptr<Group> group = group_of(*args.env, args.int32(0));
  ReduceOp::RedOpType op = op_of(args.int32(3));
  Staged staged = for_reduction(*group, args.tensor(1), op);
  c10d::ReduceOptions options;
  options.reduceOp = op;
  options.rootRank = args.int32(2);
  options.timeout = limit(args.int64(4));
  check_peer(*group, static_cast<int>(options.rootRank));
  const bool root = options.rootRank == group->rank();
  // Some backends use the tensors of other ranks as scratch space.
  if (!root && group->kind != BackendKind::thread) staged.wire = staged.wire.clone();
  Tensors tensors{staged.wire};
  const double divisor = divisor_of(*group, args.int32(3));
  auto pending =
      start(group, Pending::Kind::collective, [&](c10d::Backend& backend) { return backend.reduce(tensors, options); });
  pending->hold(tensors);
  if (root) pending->after = [staged, divisor] { unstage(staged, divisor); };
  return add(*args.env, std::move(pending));
}

// (group, outputs, input, timeoutMs)
PW_ENTRY(group_all_gather, 4) {
  std::shared_ptr<Group> group = group_of(*args.env, args.int32(0));
  std::vector<Staged> staged;
  for (const at::Tensor& tensor : args.tensors(1)) staged.push_back(as_is(*group, tensor));
  std::vector<Tensors> outputs{wires(staged)};
  Tensors inputs{as_is(*group, args.tensor(2)).wire};
  c10d::AllgatherOptions options;
  options.timeout = limit(args.int64(3));
  auto pending = start(group, Pending::Kind::collective,
      [&](c10d::Backend& backend) { return backend.allgather(outputs, inputs, options); });
  pending->hold(outputs[0]);
  pending->hold({inputs[0]});
  pending->after = [staged] {
    for (const Staged& item : staged) unstage(item, 1);
  };
  return add(*args.env, std::move(pending));
}

// (group, output, inputs, op, timeoutMs)
PW_ENTRY(group_reduce_scatter, 5) {
  std::shared_ptr<Group> group = group_of(*args.env, args.int32(0));
  const int32_t code = args.int32(3);
  ReduceOp::RedOpType op = op_of(code);
  const Staged output = for_reduction(*group, args.tensor(1), op);
  std::vector<Tensors> inputs(1);
  for (const at::Tensor& tensor : args.tensors(2)) {
    ReduceOp::RedOpType same = op_of(code);
    at::Tensor wire = for_reduction(*group, tensor, same).wire;
    inputs[0].push_back(group->kind == BackendKind::thread ? wire : wire.clone());
  }
  Tensors outputs{output.wire};
  c10d::ReduceScatterOptions options;
  options.reduceOp = op;
  options.timeout = limit(args.int64(4));
  const double divisor = divisor_of(*group, code);
  auto pending = start(group, Pending::Kind::collective,
      [&](c10d::Backend& backend) { return backend.reduce_scatter(outputs, inputs, options); });
  pending->hold(inputs[0]);
  pending->hold({outputs[0]});
  pending->after = [output, divisor] { unstage(output, divisor); };
  return add(*args.env, std::move(pending));
}

// (group, outputs, inputs, timeoutMs)
PW_ENTRY(group_all_to_all, 4) {
  std::shared_ptr<Group> group = group_of(*args.env, args.int32(0));
  std::vector<Staged> outputs, inputs;
  for (const at::Tensor& tensor : args.tensors(1)) outputs.push_back(as_is(*group, tensor));
  for (const at::Tensor& tensor : args.tensors(2)) inputs.push_back(as_is(*group, tensor));
  c10d::AllToAllOptions options;
  options.timeout = limit(args.int64(3));
  if (group->kind == BackendKind::thread) {
    Tensors to = wires(outputs), from = wires(inputs);
    auto pending = start(
        group, Pending::Kind::collective, [&](c10d::Backend& backend) { return backend.alltoall(to, from, options); });
    pending->hold(to);
    pending->hold(from);
    pending->after = [outputs] {
      for (const Staged& item : outputs) unstage(item, 1);
    };
    return add(*args.env, std::move(pending));
  }
  // Other backends take one tensor in pieces; those of gloo take no list before 2.12 or so.
  std::vector<int64_t> to_sizes, from_sizes;
  int64_t total = 0;
  for (const Staged& item : outputs) to_sizes.push_back(item.wire.numel());
  for (const Staged& item : inputs) from_sizes.push_back(item.wire.numel());
  for (int64_t size : to_sizes) total += size;
  at::NoGradGuard no_grad;
  at::Tensor from = at::cat(wires(inputs)), to = at::empty({total}, from.options());
  auto pending = start(group, Pending::Kind::collective,
      [&](c10d::Backend& backend) { return backend.alltoall_base(to, from, to_sizes, from_sizes, options); });
  pending->hold({to, from});
  pending->after = [outputs, to] {
    at::NoGradGuard guard;
    int64_t offset = 0;
    for (const Staged& item : outputs) {
      item.wire.copy_(to.narrow(0, offset, item.wire.numel()));
      offset += item.wire.numel();
      unstage(item, 1);
    }
  };
  return add(*args.env, std::move(pending));
}

// (group, timeoutMs)
PW_ENTRY(group_barrier, 2) {
  std::shared_ptr<Group> group = group_of(*args.env, args.int32(0));
  c10d::BarrierOptions options;
  options.timeout = limit(args.int64(1));
  return add(*args.env,
      start(group, Pending::Kind::collective, [&](c10d::Backend& backend) { return backend.barrier(options); }));
}

// (group, on): several sends and receives as one operation, for backends that need it.
PW_ENTRY(group_coalesce, 2) {
  std::shared_ptr<Group> group = group_of(*args.env, args.int32(0));
  if (group->kind != BackendKind::other) return undefined(args.napi);
  if (args.boolean(1)) {
    std::lock_guard<std::mutex> lock(group->post);
    group->backend->startCoalescing();
    return undefined(args.napi);
  }
  return add(
      *args.env, start(group, Pending::Kind::send, [](c10d::Backend& backend) { return backend.endCoalescing(); }));
}

void init_collectives(Env& env, napi_value exports) {
  add_exports(env, exports,
      {
          {"groupSend", group_send},
          {"groupReceive", group_receive},
          {"groupBroadcast", group_broadcast},
          {"groupAllReduce", group_all_reduce},
          {"groupReduce", group_reduce},
          {"groupAllGather", group_all_gather},
          {"groupReduceScatter", group_reduce_scatter},
          {"groupAllToAll", group_all_to_all},
          {"groupBarrier", group_barrier},
          {"groupCoalesce", group_coalesce},
      });
}

}  // namespace pw
