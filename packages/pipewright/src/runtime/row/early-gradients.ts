/**
 * @file Gradients that leave in the middle of a backward: a full backward and the send that follows it become one action, whose
 * input half comes first, then the send, then the weight half. Receives that stand between the two come before both, so that
 * messages keep their order.
 */
import type { Executors, PlannedAction } from './planned-action.ts';

/** The row with every `B`, `SEND_B` of one microbatch as one `B_SEND_B`. */
export function sendInBackwards(row: readonly PlannedAction[], { B_SEND_B: execute }: Executors): PlannedAction[] {
  if (execute === undefined) return [...row];
  const result: PlannedAction[] = [];
  for (let at = 0; at < row.length; at++) {
    const planned = row[at]!;
    const end = planned.kind === 'B' ? sendAfter(row, at) : -1;
    if (end < 0) {
      result.push(planned);
      continue;
    }
    const send = row[end]!;
    result.push(...row.slice(at + 1, end), { ...planned, kind: 'B_SEND_B', execute, parts: [send] });
    at = end;
  }
  return result;
}

/** Where the gradients of the backward at `at` are sent, if only receives lie between; else -1. */
function sendAfter(row: readonly PlannedAction[], at: number): number {
  const { links, microbatch } = row[at]!;
  let next = at + 1;
  while (row[next]?.kind === 'RECV_F' || row[next]?.kind === 'RECV_B') next++;
  const send = row[next];
  return send?.kind === 'SEND_B' && send.links === links && send.microbatch === microbatch ? next : -1;
}
