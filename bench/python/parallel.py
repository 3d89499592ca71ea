"""The Python side of bench/parallel.mjs: pipeline stages by torch.distributed.pipelining with DistributedDataParallel or fully_shard
beside them, over gloo. argv is the setting as JSON; every byte of the named pipe `pace.pipe` starts `pace.burst` steps, each is
answered with a line {"ms": time}; the last line is the report. The layout of ranks is that of torchtitan: the pipeline is outermost."""

import json
import os
import resource
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, schedules
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from gpt_block import Block


class Part(nn.Module):
    """Layers `begin` to `end` of the model; the first part embeds, the last has the head."""

    def __init__(self, setting, begin, end):
        super().__init__()
        width = setting["dim"]
        self.emb = nn.Embedding(setting["vocab"], width) if begin == 0 else None
        self.pos = nn.Parameter(torch.zeros(setting["seq"], width)) if begin == 0 else None
        self.blocks = nn.ModuleList(Block(width, setting["heads"]) for _ in range(begin, end))
        is_last = end == setting["layers"]
        self.ln = nn.LayerNorm(width) if is_last else None
        self.head = nn.Linear(width, setting["vocab"], bias=False) if is_last else None

    def forward(self, x):
        if self.emb is not None:
            x = self.emb(x) + self.pos
        for block in self.blocks:
            x = block(x)
        return x if self.head is None else self.head(self.ln(x))


def loss_fn(output, target):
    return F.cross_entropy(output.flatten(0, 1), target.flatten())


def wrapped(part, how, mesh):
    if how == "replicate":
        return DistributedDataParallel(part, process_group=mesh.get_group())
    if how == "shards":
        for block in part.blocks:
            fully_shard(block, mesh=mesh, reshard_after_forward=False)
        fully_shard(part, mesh=mesh, reshard_after_forward=False)
    return part


def rank_main(rank, setting):
    torch.set_num_threads(1)
    pp, dp = setting["pp"], setting["dp"]
    world = pp * dp
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(setting["port"]), RANK=str(rank), WORLD_SIZE=str(world))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", (pp, dp), mesh_dim_names=("pp", "dp"))
    place = mesh["pp"].get_local_rank()
    count = pp * setting["stagesPerRank"]
    cuts = [setting["layers"] * i // count for i in range(count + 1)]
    own = list(range(place, count, pp))
    torch.manual_seed(0)
    parts = [wrapped(Part(setting, cuts[s], cuts[s + 1]), setting["wrap"], mesh["dp"]) for s in own]
    stages = [PipelineStage(part, s, count, torch.device("cpu"), group=mesh.get_group("pp")) for part, s in zip(parts, own)]
    kind = schedules.get_schedule_class(setting["schedule"])
    is_single = issubclass(kind, schedules.PipelineScheduleSingle)
    schedule = kind(stages[0] if is_single else stages, setting["microbatches"], loss_fn=loss_fn)
    # fused steps are not there for the sharded parameters of fully_shard on the CPU
    optimizer = torch.optim.AdamW([p for part in parts for p in part.parameters()], lr=1e-4, fused=setting["wrap"] != "shards")
    rows = setting["microbatchSize"] * setting["microbatches"]
    ids = torch.randint(0, setting["vocab"], (rows, setting["seq"] + 1), generator=torch.Generator().manual_seed(0))
    x, y = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    pace = open(setting["pace"]["pipe"], "rb", buffering=0) if rank == 0 else None
    for step in range(setting["warmup"] + setting["steps"]):
        if pace is not None and step % setting["pace"]["burst"] == 0 and pace.read(1) == b"":
            raise RuntimeError("whoever gave the turns has ended")
        dist.barrier()
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        is_last = count - 1 in own
        schedule.step(*((x,) if 0 in own else ()), target=y if is_last else None, losses=[] if is_last else None, return_outputs=False)
        optimizer.step()
        dist.barrier()
        if rank == 0:
            print(json.dumps({"ms": (time.perf_counter() - start) * 1e3}), flush=True)
    peak = torch.tensor([resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024])
    dist.all_reduce(peak)  # all processes together: that is what the machine must have
    if rank == 0:
        print(json.dumps({"peakMiB": float(peak)}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    mp.spawn(rank_main, (given,), given["pp"] * given["dp"])
