"""The Python rank of interop-python.mjs: plain torch.distributed, nothing of ours."""

import datetime
import os

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank = int(os.environ["RANK"])
peer = 1 - rank


def check(what, got, wanted):
    assert got == wanted, f"{what}: got {got}, wanted {wanted}"
    print(f"{what}: ok", flush=True)


for i, dtype in enumerate([torch.float32, torch.float64, torch.int64, torch.bool, torch.bfloat16, torch.uint8]):
    work = dist.isend(torch.tensor([[rank, 1, 2], [3, 4, 5 + rank]]).to(dtype), peer, tag=i)
    got = torch.zeros(2, 3, dtype=dtype)
    dist.recv(got, peer, tag=i)
    work.wait()
    wanted = torch.tensor([[peer, 1, 2], [3, 4, 5 + peer]]).to(dtype)
    check(f"send and recv {dtype}", got.float().tolist(), wanted.float().tolist())
work = dist.isend(torch.tensor([[1.0, 2, 3], [4, 5, 6]]).t().contiguous(), peer, tag=50)
got = torch.zeros(3, 2)
dist.recv(got, peer, tag=50)
work.wait()
check("not contiguous", got.tolist(), [[1, 4], [2, 5], [3, 6]])
x = torch.tensor([rank + 1.0, 10])
dist.all_reduce(x)
check("allReduce sum", x.tolist(), [3, 20])
m = torch.tensor([rank, 5 - rank])
dist.all_reduce(m, dist.ReduceOp.MAX)
check("allReduce max", m.tolist(), [1, 5])
b = torch.tensor([rank * 7.0, 1], dtype=torch.float64)
dist.broadcast(b, 1)
check("broadcast", b.tolist(), [7, 1])
parts = [torch.zeros(2, dtype=torch.int64) for _ in range(2)]
dist.all_gather(parts, torch.tensor([rank, rank * 2]))
check("allGather", [part.tolist() for part in parts], [[0, 0], [1, 2]])
out = torch.zeros(1)
dist.reduce_scatter(out, [torch.tensor([1.0 + rank]), torch.tensor([10.0 + rank])])
check("reduceScatter", out.tolist(), [3.0 if rank == 0 else 21.0])
given = torch.tensor([rank * 10, rank * 10 + 1])
taken = torch.zeros(2, dtype=torch.int64)
dist.all_to_all_single(taken, given)
check("allToAll", taken.tolist(), [rank, 10 + rank])
big = torch.ones(1 << 20) * (rank + 1)
dist.all_reduce(big)
check("4 MB", big.sum().item(), 3.0 * (1 << 20))
dist.barrier()
dist.destroy_process_group()
