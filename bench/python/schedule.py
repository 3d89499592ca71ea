"""Time PyTorch's generation and lowering of one schedule. Prints one JSON line.

Usage: python bench/python/schedule.py NAME RANKS STAGES_PER_RANK MICROBATCHES
"""

import json
import sys
import time

from torch.distributed.pipelining import schedules
from torch.distributed.pipelining.stage import _PipelineStageBase


class BareStage(_PipelineStageBase):
    """A stage without module and processes: all that generating an order looks at."""

    def __init__(self, index: int, stages: int, ranks: int) -> None:
        self.stage_index = index
        self.num_stages = stages
        self.group_size = ranks
        self.group_rank = 0
        self.group = None
        self.submod = None


# What a stage must do at run time differs between versions and is not needed here.
BareStage.__abstractmethods__ = frozenset()

name, ranks, per_rank, microbatches = sys.argv[1], *map(int, sys.argv[2:5])
stages = [BareStage(chunk * ranks, ranks * per_rank, ranks) for chunk in range(per_rank)]
wall, cpu = time.perf_counter(), time.process_time()
schedule = schedules.get_schedule_class(name)(stages, microbatches, loss_fn=lambda out, target: out)
wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
actions = sum(len(row) for row in schedule.pipeline_order_with_comms.values())
print(json.dumps({"wallMs": wall * 1e3, "cpuMs": cpu * 1e3, "actions": actions}))
