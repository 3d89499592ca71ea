/** @file What replicas tell each other before a step: rows, and whether one of them refuses it. */
import { type distributed, scope, tensor } from '@pipewright/torch';
import type { Readiness } from './data-parallel.ts';

/** The rows of all ranks of the groups together, and the first reason against the step among them. */
export function agreeOver(groups: readonly distributed.ProcessGroup[], ready: Readiness): Readiness {
  return groups.reduce(combine, ready);
}

function combine({ refusal, rows }: Readiness, group: distributed.ProcessGroup): Readiness {
  const [refused, total] = scope(() => {
    const device = group.backend === 'nccl' ? 'cuda' : 'cpu';
    const sums = tensor([refusal === null ? 0 : 1, rows], { dtype: 'float64', device });
    group.allReduce(sums);
    return sums.toArray() as [number, number];
  });
  if (refused === 0) return { refusal, rows: total };
  const reasons = group.allGatherObject(refusal) as (string | null)[];
  return { refusal: reasons.find((reason) => reason !== null) ?? refusal, rows: total };
}
