"""The Python side of bench/engine/train-step.mjs: argv is device, threads and the case as JSON; each line on stdin is a number of
steps, answered with milliseconds of wall time, of CPU time, and the peak memory in MiB."""

import json
import resource
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

from gpt_block import Block

device, threads, case = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
torch.set_num_threads(threads)
VOCABULARY = 256

n, width, batch = case["layers"], case["width"], case["batch"]
if case["kind"] == "mlp":
    net = nn.Sequential(*[m for _ in range(n) for m in (nn.Linear(width, width), nn.ReLU())])
    x, y = torch.randn(batch, width, device=device), torch.randn(batch, width, device=device)
else:
    blocks = [Block(width, case["heads"]) for _ in range(n)]
    net = nn.Sequential(nn.Embedding(VOCABULARY, width), *blocks, nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False))
    shape = (batch, case["time"])
    x, y = torch.randint(0, VOCABULARY, shape, device=device), torch.randint(0, VOCABULARY, shape, device=device)
net.to(device)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)


def step():
    optimizer.zero_grad(set_to_none=True)
    out = net(x)
    loss = F.mse_loss(out, y) if case["kind"] == "mlp" else F.cross_entropy(out.flatten(0, 1), y.flatten())
    loss.backward()
    optimizer.step()


def wait():
    if device == "cuda":
        torch.cuda.synchronize()


for _ in range(5):
    step()
for line in sys.stdin:
    steps = int(line)
    wait()
    start, cpu = time.perf_counter(), time.process_time()
    for _ in range(steps):
        step()
    wait()
    peak = torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print((time.perf_counter() - start) / steps * 1e3, (time.process_time() - cpu) / steps * 1e3, peak, flush=True)
