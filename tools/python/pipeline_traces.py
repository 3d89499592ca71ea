"""Profiles small pipelines of two processes, and keeps of the profiler's traces what names actions.

Usage: python tools/python/pipeline_traces.py testdata/traces
"""

import json
import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.pipelining.schedules import ScheduleInterleaved1F1B, ScheduleInterleavedZeroBubble
from torch.profiler import ProfilerActivity, profile

RANKS = 2
MICROBATCHES = 4
OTHERS = 24
KINDS = {
    "gpipe": (1, ScheduleGPipe),
    "interleaved-1f1b": (2, ScheduleInterleaved1F1B),
    "interleaved-zero-bubble": (2, ScheduleInterleavedZeroBubble),
}


def train(rank: int, folder: str, name: str, port: int) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    per_rank, schedule_class = KINDS[name]
    stages = [
        PipelineStage(
            nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256)),
            rank + RANKS * chunk,
            RANKS * per_rank,
            torch.device("cpu"),
        )
        for chunk in range(per_rank)
    ]
    given = stages[0] if per_rank == 1 else stages
    schedule = schedule_class(given, MICROBATCHES, loss_fn=nn.functional.mse_loss)
    inputs, targets = torch.randn(64, 256), torch.randn(64, 256)

    def step() -> None:
        if rank == 0:
            schedule.step(inputs)
        else:
            schedule.step(target=targets, losses=[])

    for _ in range(2):
        step()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(2):
            step()
    whole = os.path.join(folder, f"whole-{name}-{rank}.json")
    profiler.export_chrome_trace(whole)
    dist.destroy_process_group()


def cut(source: str, target: str) -> None:
    with open(source) as file:
        trace = json.load(file)
    events = trace["traceEvents"]
    named = [event for event in events if event.get("cat") == "user_annotation"]
    others = [event for event in events if event.get("cat") != "user_annotation"][:OTHERS]
    fields = ("ph", "cat", "name", "pid", "tid", "ts", "dur")
    kept = [{key: event[key] for key in fields if key in event} for event in others + named]
    info = {key: trace["distributedInfo"][key] for key in ("backend", "rank", "world_size")}
    head = {
        "schemaVersion": trace["schemaVersion"],
        "distributedInfo": info,
        "displayTimeUnit": trace["displayTimeUnit"],
        "baseTimeNanoseconds": trace["baseTimeNanoseconds"],
    }
    with open(target, "w") as file:
        file.write(json.dumps(head)[:-1] + ', "traceEvents": [\n')
        file.write(",\n".join(json.dumps(event) for event in kept) + "\n]}\n")


if __name__ == "__main__":
    for at, kind in enumerate(KINDS):
        with tempfile.TemporaryDirectory() as work:
            mp.spawn(train, args=(work, kind, 29631 + at), nprocs=RANKS)
            for each in range(RANKS):
                cut(os.path.join(work, f"whole-{kind}-{each}.json"), os.path.join(sys.argv[1], f"{kind}-{each}.json"))
