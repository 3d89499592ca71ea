/** @file From a compute order to what ranks execute: adds sends, receives, unsharding and gradient reduction. */

import { checkChoice, checkOptions, ScheduleError } from '../model/errors.ts';
import { claimed } from '../model/extent.ts';
import { Code, wordCode } from '../model/packed.ts';
import { Schedule, type ScheduleData, type StageEdge } from '../model/schedule.ts';
import { checkEdges } from '../model/stage-graph.ts';
import { CellCheck } from '../validate/cells.ts';
import { isKnownLegal } from '../validate/known-legal.ts';
import { ViolationList } from '../validate/violation.ts';
import { addLocalActions, type ReduceGradPlacement, type UnshardWindow } from './local-actions.ts';
import { mergeBackward } from './merge-backward.ts';
import { placeCommunication } from './place-communication.ts';
import { sendRecvRows } from './torch-send-recv.ts';

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
  refuseInvalid(schedule);
  if (options.merge === true) schedule = mergeBackward(schedule);
  schedule = addLocalActions(schedule, {
    unshardWindow: options.unshardWindow ?? 3,
    reduceGrad: options.reduceGrad ?? 'early',
    stages: schedule.stages,
  });
  return schedule.with({ rows: torch ? sendRecvRows(schedule, claimed(schedule)) : placeCommunication(schedule) });
}

/** Refuses an order that is not compute-only or breaks a rule that can be checked cell by cell. */
function refuseInvalid(schedule: Schedule): void {
  if (isKnownLegal(schedule) && schedule.isComputeOnly) return;
  const violations = new ViolationList(schedule, 100);
  const cells = new CellCheck(schedule, violations, { computeOnly: true });
  cells.run();
  if (cells.other !== null) {
    const { rank, slot } = cells.other;
    const word = schedule.rows[rank]![slot]!;
    const hint =
      wordCode(word) === Code.ReduceGrad
        ? `PyTorch's GPipe and 1F1B orders contain it: build without compat`
        : 'This order seems to be lowered already';
    throw new ScheduleError(
      'NOT_COMPUTE_ONLY',
      `lower: rank ${rank} slot ${slot} is ${schedule.format(word)}; only compute actions and bubbles can be lowered. ${hint}`,
      { rank, slot },
    );
  }
  const [first, ...more] = violations.found;
  if (first === undefined) return;
  const others = more.length > 0 ? ` (and ${more.length} more)` : '';
  throw new ScheduleError('BAD_SCHEDULE', `lower: ${first.explanation}${others}; validate() lists what is wrong`, {
    violations: violations.found,
  });
}
