/** @file From a compute order to what ranks execute: adds sends, receives, unsharding and gradient reduction. */

import { compositeDuration, computeCost, resolveCosts } from '../costs/cost-table.ts';
import type { Costs } from '../costs/costs.ts';
import { checkChoice, checkCount, checkOptions, ScheduleError } from '../model/errors.ts';
import { claimed } from '../model/extent.ts';
import { Code, isComposite, wordCode } from '../model/packed.ts';
import { Schedule, type ScheduleData, type StageEdge } from '../model/schedule.ts';
import { checkEdges } from '../model/stage-graph.ts';
import { checkDataParallel, type DataParallelRules, resolveResidency, ruleNames } from '../parallel/data-parallel.ts';
import { placeCollectives } from '../parallel/place-collectives.ts';
import { simulate } from '../simulate/simulate.ts';
import { CellCheck } from '../validate/cells.ts';
import { isKnownLegal } from '../validate/known-legal.ts';
import { ViolationList } from '../validate/violation.ts';
import { deferReceives } from './defer-receives.ts';
import { addLocalActions, type ReduceGradPlacement, type UnshardWindow } from './local-actions.ts';
import { mergeBackward } from './merge-backward.ts';
import { placeCommunication } from './place-communication.ts';
import { sendRecvRows } from './torch-send-recv.ts';

/** How a compute order is lowered. */
export interface LowerOptions {
  /** `torch`: equal to PyTorch's lowering action for action; `torch-2.15`: to that of 2.15, whose waits `formatCsv` writes. */
  readonly compat?: 'torch' | 'torch-2.15';
  /** With `compat`: receives right before their use, as PyTorch's `defer_pp_recv`. Otherwise they stand there anyway. */
  readonly deferReceives?: boolean;
  /** How far ahead stages are unsharded: so many stages (default 3), as many as fit `{ bytes, stageBytes }`, or false: not at all. */
  readonly unshardWindow?: UnshardWindow | false;
  /** `early` (default): after a stage's last backward; `end`: at the end of the row; `none`. */
  readonly reduceGrad?: ReduceGradPlacement;
  /**
   * Data parallelism beside the pipeline: which collectives there are, and where; instead of `unshardWindow` and `reduceGrad`.
   * Every stage is gathered as seldom as `memoryLimit` allows (without one: once), and reduced right after its last backward.
   */
  readonly dataParallel?: DataParallelPlan;
  /** Join `I` and `W` to `B` where they are neighbours. */
  readonly merge?: boolean;
  /** The stage graph, for skip connections; default: the schedule's, which is normally each stage feeding the next. */
  readonly edges?: readonly StageEdge[];
}

/** How collectives are planned. */
export interface DataParallelPlan extends DataParallelRules {
  /** Costs to choose by: UNSHARDs start as early as gives the shortest simulated step. Default: one action ahead. */
  readonly costs?: Costs;
  /** With `compat: 'torch'`: stages that may be whole at once, as PyTorch's `max_active_stages`; default 3. */
  readonly maxActiveStages?: number;
}

const optionNames = ['compat', 'deferReceives', 'unshardWindow', 'reduceGrad', 'dataParallel', 'merge', 'edges'];
const planNames = [...ruleNames, 'costs', 'maxActiveStages'];

/**
 * The full order of a compute order; the input stays as it is. Receives stand at their latest safe point.
 * @example lower(Schedule.from({ order: [['0F0', '0B0'], ['1F0', '1B0']] }), { unshardWindow: false, reduceGrad: 'none' }).toString()
 *   // '0F0 0SEND_F0 0RECV_B0 0B0\n1RECV_F0 1F0 1B0 1SEND_B0'
 */
export function lower(input: Schedule | ScheduleData, options: LowerOptions = {}): Schedule {
  checkOptions('lower', options, optionNames);
  checkChoice('lower', 'compat', options.compat, ['torch', 'torch-2.15']);
  checkChoice('lower', 'reduceGrad', options.reduceGrad, ['early', 'end', 'none']);
  checkPlan(options);
  const torch = options.compat !== undefined;
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
  const { dataParallel } = options;
  if (dataParallel !== undefined && !torch) return lowerParallel(schedule, dataParallel);
  const sharded = dataParallel === undefined || dataParallel.level === 'parameters';
  schedule = addLocalActions(schedule, {
    unshardWindow: sharded ? (options.unshardWindow ?? dataParallel?.maxActiveStages ?? 3) : false,
    reduceGrad: options.reduceGrad ?? 'early',
    stages: schedule.stages,
  });
  const lowered = withMessages(schedule, torch);
  return torch && options.deferReceives === true ? lowered.with({ rows: deferReceives(lowered) }) : lowered;
}

function withMessages(schedule: Schedule, torch: boolean): Schedule {
  return schedule.with({ rows: torch ? sendRecvRows(schedule, claimed(schedule)) : placeCommunication(schedule) });
}

function checkPlan(options: LowerOptions): void {
  const { dataParallel: plan } = options;
  if (plan === undefined) return;
  checkDataParallel('lower', plan, planNames);
  if (options.unshardWindow !== undefined || options.reduceGrad !== undefined)
    throw new ScheduleError(
      'BAD_OPTION',
      'lower: dataParallel says what is unsharded and reduced; leave unshardWindow and reduceGrad out',
    );
  if (plan.maxActiveStages === undefined) return;
  checkCount('lower', 'dataParallel.maxActiveStages', plan.maxActiveStages);
  if (options.compat === undefined)
    throw new ScheduleError(
      'BAD_OPTION',
      `lower: dataParallel.maxActiveStages is PyTorch's way to limit memory; add compat: 'torch', or give memoryLimit in bytes`,
    );
}

/** How many times its own duration an UNSHARD may start ahead; the shortest simulated step decides, then the lowest peak. */
const leads = [1, 0, 2, 4, Number.POSITIVE_INFINITY];

/** Places collectives, then messages: with costs in several ways, of which the best is taken. */
function lowerParallel(schedule: Schedule, plan: DataParallelPlan): Schedule {
  const residency = resolveResidency('lower', plan, schedule);
  const sharded = plan.level === 'parameters';
  const given: Costs = {
    parameters: Array.from(residency.bytes),
    shards: residency.shards,
    ...(plan.level === 'replicate' ? { shards: 1, replicas: residency.shards } : { sharding: plan.level }),
    ...plan.costs,
  };
  const costs = resolveCosts('lower', given, schedule.stages);
  const { layout, composites } = schedule;
  const lowered = (lead: number): Schedule => {
    const rows = placeCollectives(schedule, {
      sharded,
      residency,
      lead,
      durationOf: (word) =>
        isComposite(word)
          ? compositeDuration(costs, composites.leavesOf(word), layout)
          : computeCost(costs, wordCode(word), layout.stage(word)),
      unshardOf: (stage) => (plan.costs === undefined ? Number.MIN_VALUE : costs.unshard[stage]!),
    });
    return withMessages(schedule.with({ rows }), false);
  };
  if (plan.costs === undefined || !sharded) return lowered(1);
  let best: { readonly schedule: Schedule; readonly makespan: number; readonly peak: number } | null = null;
  for (const lead of leads) {
    const candidate = lowered(lead);
    const simulation = simulate(candidate, given);
    const peak = simulation.parameterPeak.reduce((most, value) => Math.max(most, value), 0);
    const { makespan } = simulation;
    const tie = best !== null && Math.abs(makespan - best.makespan) <= 1e-9 * best.makespan;
    if (best === null || (tie ? peak < best.peak : makespan < best.makespan))
      best = { schedule: candidate, makespan, peak };
  }
  return best!.schedule;
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
