"""Saves and loads a state with torch.distributed.checkpoint: python checkpoint.py FOLDER LAYERS ROUNDS; prints JSON lines on request.

Reads 'save' or 'load' lines from standard input and answers each with its time in seconds, so that the caller can take turns.
"""
import json
import shutil
import sys
import time
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

folder, layers = Path(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(int(sys.argv[3]))
names = [f"layers.{i}.weight" for i in range(layers)]
state = {"model": {}, "optimizer": {}}
for name in names:
    state["model"][name] = torch.randn(1024, 1024)
    for slot in ("exp_avg", "exp_avg_sq"):
        state["optimizer"][f"{name}.{slot}"] = torch.randn(1024, 1024)
print("ready", flush=True)
for line in sys.stdin:
    word = line.strip()
    if word == "save":
        shutil.rmtree(folder, ignore_errors=True)
    start = time.perf_counter()
    if word == "save":
        dcp.save(state, checkpoint_id=str(folder))
    elif word == "load":
        dcp.load(state, checkpoint_id=str(folder))
    print(json.dumps({"seconds": time.perf_counter() - start}), flush=True)
