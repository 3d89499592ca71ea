"""The Python side of bench/engine/op-overhead.mjs: reads one case per line from stdin, answers with nanoseconds of CPU time per call."""

import sys
import time

import torch
import torch.nn.functional as F

torch.set_num_threads(1)
DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cpu"


def inputs(size, grad):
    x = torch.randn(size, size, requires_grad=grad, device=DEVICE)
    y = torch.randn(size, size, requires_grad=grad, device=DEVICE)
    b = torch.randn(size, requires_grad=grad, device=DEVICE)
    return x, y, b, (size,)


def timed(name, size, grad, calls):
    """A plain loop, results dropped at once: the cheapest way to call an operator from Python."""
    x, y, b, shape = inputs(size, grad)
    add, mul, linear, layer_norm = torch.add, torch.mul, F.linear, F.layer_norm
    loop = range(calls)
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    clock = time.perf_counter_ns if DEVICE == "cuda" else time.process_time_ns
    start = clock()
    if name == "add":
        for _ in loop:
            add(x, y)
    elif name == "mul":
        for _ in loop:
            mul(x, y)
    elif name == "linear":
        for _ in loop:
            linear(x, y, b)
    else:
        for _ in loop:
            layer_norm(x, shape, b, b, 1e-5)
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return (clock() - start) / calls


print(torch.__version__, flush=True)
for line in sys.stdin:
    name, size, grad, calls = line.split()
    print(timed(name, int(size), grad == "grad", int(calls)), flush=True)
