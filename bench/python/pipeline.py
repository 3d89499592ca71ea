"""The Python side of bench/pipeline.mjs: the same GPT in stages under torch.distributed.pipelining. One JSON object in
(argv). A byte from a named pipe starts some steps (s["pace"]), a JSON line tells the milliseconds of each; the last, peak memory."""

import json
import os
import resource
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn import functional as F

from gpt_block import Block


class Part(nn.Module):
    def __init__(self, s, first, last):
        super().__init__()
        self.emb = nn.Embedding(s["vocab"], s["dim"]) if first == 0 else None
        self.pos = nn.Parameter(torch.zeros(s["seq"], s["dim"])) if first == 0 else None
        self.blocks = nn.ModuleList([Block(s["dim"], s["heads"]) for _ in range(first, last)])
        is_end = last == s["layers"]
        self.ln = nn.LayerNorm(s["dim"]) if is_end else None
        self.head = nn.Linear(s["dim"], s["vocab"], bias=False) if is_end else None

    def forward(self, x):
        if self.emb is not None:
            x = self.emb(x) + self.pos
        for block in self.blocks:
            x = block(x)
        return x if self.head is None else self.head(self.ln(x))


def loss_fn(output, target):
    return F.cross_entropy(output.flatten(0, 1), target.flatten())


def batch(s):
    rows = s["microbatchSize"] * s["microbatches"]
    ids = torch.randint(0, s["vocab"], (rows, s["seq"] + 1), generator=torch.Generator().manual_seed(0))
    return [ids[:, i : i + s["seq"]].contiguous().to(s["device"]) for i in (0, 1)]


def run(rank, s):
    from torch.distributed.pipelining import PipelineStage, schedules

    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(s["port"]))
    on_gpu = s["device"] == "cuda"
    dist.init_process_group("nccl" if on_gpu else "gloo", rank=rank, world_size=s["ranks"])
    count = s["ranks"] * s["stagesPerRank"]
    mine = list(range(rank, count, s["ranks"]))
    edges = [s["layers"] * i // count for i in range(count + 1)]
    device = torch.device(s["device"])
    parts = [Part(s, edges[i], edges[i + 1]).to(device, getattr(torch, s["dtype"])) for i in mine]
    stages = [PipelineStage(part, i, count, device) for part, i in zip(parts, mine)]
    kind = schedules.get_schedule_class(s["schedule"])
    single = issubclass(kind, schedules.PipelineScheduleSingle)
    schedule = kind(stages[0] if single else stages, s["microbatches"], loss_fn=loss_fn)
    optimizer = torch.optim.AdamW([p for part in parts for p in part.parameters()], lr=1e-4, fused=True)
    x, y = batch(s)
    is_last = count - 1 in mine
    losses = []
    pace = open(s["pace"]["pipe"], "rb", buffering=0) if rank == 0 else None
    for step in range(s["warmup"] + s["steps"]):
        if pace and step % s["pace"]["burst"] == 0 and not pace.read(1):
            sys.exit("whoever gave the turns has ended")
        if s["ranks"] > 1:
            dist.barrier()
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        given = {"target": y, "losses": losses} if is_last else {}
        schedule.step(*([x] if 0 in mine else []), return_outputs=False, **given)
        optimizer.step()
        if on_gpu:
            torch.cuda.synchronize()
        if s["ranks"] > 1:
            dist.barrier()
        if pace:
            print(json.dumps({"ms": (time.perf_counter() - start) * 1e3}), flush=True)
    peak = torch.cuda.max_memory_allocated() / 2**20 if on_gpu else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    total = torch.tensor([peak], device=device)
    if s["ranks"] > 1:
        dist.all_reduce(total)
    if rank == 0:
        print(json.dumps({"peakMiB": float(total)}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    setting = json.loads(sys.argv[1])
    if setting["ranks"] == 1:
        run(0, setting)
    else:
        mp.spawn(run, (setting,), setting["ranks"])
