/** @file From a compute order to what ranks execute: adds sends, receives, unsharding and gradient reduction. */

import { addSendRecv } from './add-send-recv.ts';
import { checkChoice, checkOptions, ScheduleError } from './errors.ts';
import { addLocalActions, type ReduceGradPlacement, type UnshardWindow } from './local-actions.ts';
import { mergeBackward } from './merge-backward.ts';
import { Code } from './packed.ts';
import { placeCommunication } from './place-communication.ts';
import { Schedule, type ScheduleData, type StageEdge } from './schedule.ts';
import { checkEdges } from './stage-graph.ts';
import { validateCompute } from './validate.ts';

/** How a compute order is lowered. */
export interface LowerOptions {
  /** `torch`: equal to PyTorch's lowering action for action. */
  readonly compat?: 'torch';
  /** How far ahead stages are unsharded: so many stages (default 3), as many as fit `{ bytes, stageBytes }`, or false: not at all. */
  readonly unshardWindow?: UnshardWindow | false;
  /** `early` (default): after a stage's last backward; `end`: at the end of the row; `none`. */
  readonly reduceGrad?: ReduceGradPlacement;
  /** Join `I` and `W` to `B` where they are neighbours. */
  readonly merge?: boolean;
  /** The stage graph, for skip connections; default: the schedule's, which is normally each stage feeding the next. */
  readonly edges?: readonly StageEdge[];
}

const optionNames = ['compat', 'unshardWindow', 'reduceGrad', 'merge', 'edges'];

/**
 * The full order of a compute order; the input stays as it is. Receives stand at their latest safe point.
 * @example lower(Schedule.from({ order: [['0F0', '0B0'], ['1F0', '1B0']] }), { unshardWindow: false, reduceGrad: 'none' }).toString()
 *   // '0F0 0SEND_F0 0RECV_B0 0B0\n1RECV_F0 1F0 1B0 1SEND_B0'
 */
export function lower(input: Schedule | ScheduleData, options: LowerOptions = {}): Schedule {
  checkOptions('lower', options, optionNames);
  checkChoice('lower', 'compat', options.compat, ['torch']);
  checkChoice('lower', 'reduceGrad', options.reduceGrad, ['early', 'end', 'none']);
  const torch = options.compat === 'torch';
  let schedule = Schedule.from(input);
  if (options.edges !== undefined) {
    if (torch)
      throw new ScheduleError(
        'UNSUPPORTED',
        `lower: PyTorch's lowering knows only neighbour stages; leave compat or edges out`,
      );
    checkEdges(options.edges, schedule.stages);
    schedule = schedule.with({ edges: options.edges });
  }
  refuseOtherThanCompute(schedule);
  refuseInvalid(schedule);
  if (options.merge === true) schedule = mergeBackward(schedule);
  schedule = addLocalActions(schedule, {
    unshardWindow: options.unshardWindow ?? 3,
    reduceGrad: options.reduceGrad ?? 'early',
  });
  return torch ? addSendRecv(schedule) : schedule.with({ rows: placeCommunication(schedule) });
}

function refuseOtherThanCompute(schedule: Schedule): void {
  for (let rank = 0; rank < schedule.rows.length; rank++) {
    const row = schedule.rows[rank]!;
    for (let slot = 0; slot < row.length; slot++) {
      const code = row[slot]! & 15;
      if (code <= Code.B || code === Code.Composite) continue;
      throw new ScheduleError(
        'NOT_COMPUTE_ONLY',
        `lower: rank ${rank} slot ${slot} is ${schedule.format(row[slot]!)}; only compute actions and bubbles can be lowered. ${
          code === Code.ReduceGrad
            ? `PyTorch's GPipe and 1F1B orders contain it: build without compat`
            : 'This order seems to be lowered already'
        }`,
        { rank, slot },
      );
    }
  }
}

function refuseInvalid(schedule: Schedule): void {
  const violations = validateCompute(schedule);
  const first = violations[0];
  if (first === undefined) return;
  throw new ScheduleError(
    'BAD_SCHEDULE',
    `lower: ${first.explanation}${violations.length > 1 ? ` (and ${violations.length - 1} more)` : ''}; validate() lists what is wrong`,
    { violations },
  );
}
