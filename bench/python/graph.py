"""The Python side of bench/graph.mjs: argv is the number of threads and the case as JSON. A case with a path to save to is
built, exported there and run eagerly; one with a path to load from is the exported model run by PyTorch. Each line on
stdin is a number of runs and `forward` or `backward`, answered with milliseconds of wall time and of CPU time per run."""

import json
import sys
import time

import torch
import torch.nn as nn

from gpt_block import Block

threads, case = int(sys.argv[1]), json.loads(sys.argv[2])
torch.set_num_threads(threads)
VOCABULARY = 256


def build():
    n, width, batch = case["layers"], case["width"], case["batch"]
    if case["kind"] == "mlp":
        net = nn.Sequential(*[m for _ in range(n) for m in (nn.Linear(width, width), nn.ReLU())])
        return net, torch.randn(batch, width)
    blocks = [Block(width, case["heads"]) for _ in range(n)]
    net = nn.Sequential(nn.Embedding(VOCABULARY, width), *blocks, nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False))
    return net, torch.randint(0, VOCABULARY, (batch, case["time"]))


if "load" in case:
    net = torch.export.load(case["load"]).module()
    x = torch.zeros(case["shape"], dtype=getattr(torch, case["dtype"]))
else:
    net, x = build()
    torch.export.save(torch.export.export(net, (x,)), case["save"])


def forward():
    with torch.no_grad():
        net(x)


def backward():
    net.zero_grad()
    net(x).square().mean().backward()


for run in (forward, backward):
    for _ in range(20):
        run()
print("ready", flush=True)
for line in sys.stdin:
    count, kind = line.split()
    run = forward if kind == "forward" else backward
    start, cpu = time.perf_counter(), time.process_time()
    for _ in range(int(count)):
        run()
    cpu_ms, ms = time.process_time() - cpu, time.perf_counter() - start
    print(ms * 1000 / int(count), cpu_ms * 1000 / int(count), flush=True)
