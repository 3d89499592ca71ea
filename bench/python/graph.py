"""The Python side of bench/graph.mjs: argv is the number of threads and the case as JSON. A case with a path to save to is
built, exported there and run eagerly; one with a path to load from is the exported model run by PyTorch. Each line on
stdin is a number of runs and `forward` or `backward`, answered with milliseconds of wall time and of CPU time per run."""

import json
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

threads, case = int(sys.argv[1]), json.loads(sys.argv[2])
torch.set_num_threads(threads)
VOCABULARY = 256


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (y.view(b, t, self.heads, d // self.heads).transpose(1, 2) for y in self.qkv(self.ln1(x)).split(d, 2))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
        x = x + self.proj(a)
        return x + self.out(F.gelu(self.fc(self.ln2(x))))


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
