/** @file What replicas agree on before a step: the number of rows, whether one of them refuses it, and that all make the same call. */
import { type distributed, scope, tensor } from '@pipewright/torch';
import { compareLines } from './alike.ts';
import type { Readiness } from './data-parallel.ts';

/** The rows of all ranks of the groups together, and the first refusal among them. */
export function agreeOver(groups: readonly distributed.ProcessGroup[], ready: Readiness): Readiness {
  return groups.reduce(combine, ready);
}

function combine({ refusal, rows, kind }: Readiness, group: distributed.ProcessGroup): Readiness {
  const { code } = kind;
  const [refused, total, codes, squares] = scope(() => {
    const device = group.backend === 'nccl' ? 'cuda' : 'cpu';
    const sums = tensor([refusal === null ? 0 : 1, rows, code, code * code], { dtype: 'float64', device });
    group.allReduce(sums);
    return sums.toArray() as [number, number, number, number];
  });
  if (refused === 0) {
    // Numbers are equal where their mean square is the square of their mean.
    if (squares * group.size !== codes * codes)
      compareLines(kind.lines(), {
        where: 'step',
        group,
        remedy: 'replicas and shards make the same calls, in the same order, and learn the same parameters',
      });
    return { refusal, rows: total, kind };
  }
  const reasons = group.allGatherObject(refusal) as (string | null)[];
  return { refusal: reasons.find((reason) => reason !== null) ?? refusal, rows: total, kind };
}
