/** @file Plans with data parallelism: copies of the pipeline, what they divide among them, and what that takes in time and memory. */

import { Code } from '../model/packed.ts';
import type { Schedule } from '../model/schedule.ts';
import { resolveResidency } from '../parallel/data-parallel.ts';
import { placeCollectives } from '../parallel/place-collectives.ts';
import { residentPeaks } from '../parallel/resident.ts';
import type { PlanMachine, PlanParallel, StageCosts } from './plan.ts';

/** A machine as one of several pipelines sees it, and the links between the ranks that hold the same stages. */
export interface PipelineMachine extends PlanMachine {
  readonly collective: { readonly bandwidth?: number; readonly latency?: number };
}

/** One pipeline, with nothing beside it. */
const alone: PlanParallel = { replicas: 1, level: 'replicate' };

/** The data parallelism of a plan; one replica where it has none. */
export function parallelOf({ dataParallel }: { readonly dataParallel?: PlanParallel | undefined }): PlanParallel {
  return dataParallel ?? alone;
}

/**
 * What a pipeline of `ranks` has of a machine. Rank `r` of a pipeline stands for `replicas` ranks in a row, from `r * replicas` on, as
 * in a mesh whose outer dimension is the pipeline: the least memory, the slowest of them and the slowest link between two such rows count.
 */
export function pipelineMachine(machine: PlanMachine, ranks: number, replicas: number): PipelineMachine {
  const { memory, slowness, bandwidth, latency, links } = machine;
  const link = { ...(bandwidth === undefined ? {} : { bandwidth }), ...(latency === undefined ? {} : { latency }) };
  if (replicas === 1) return { ...machine, collective: link };
  const perRank = (list: readonly number[], of: (...values: number[]) => number): number[] =>
    Array.from({ length: ranks }, (_, rank) => of(...list.slice(rank * replicas, (rank + 1) * replicas)));
  const between = new Map<string, Link[]>();
  const inside: Link[] = [];
  for (const each of links ?? []) {
    const [from, to] = [Math.floor(each.from / replicas), Math.floor(each.to / replicas)];
    if (from === to) inside.push(each);
    else if (each.from % replicas === each.to % replicas)
      between.set(`${from} ${to}`, [...(between.get(`${from} ${to}`) ?? []), each]);
  }
  return {
    ...link,
    ...(memory === undefined ? {} : { memory: typeof memory === 'number' ? memory : perRank(memory, Math.min) }),
    ...(slowness === undefined ? {} : { slowness: perRank(slowness, Math.max) }),
    ...(between.size === 0
      ? {}
      : {
          links: [...between].map(([key, list]) => {
            const [from, to] = key.split(' ').map(Number) as [number, number];
            return { from, to, ...slowest(list.length < replicas ? [link, ...list] : list, link) };
          }),
        }),
    collective: slowest([link, ...inside], link),
  };
}

interface Link {
  readonly bandwidth?: number;
  readonly latency?: number;
}

/** The least bandwidth and the highest latency of some links; what one does not say is as in `usual`. */
function slowest(list: readonly Link[], usual: Link): Link {
  const bandwidth = Math.min(...list.map((one) => one.bandwidth ?? usual.bandwidth ?? Number.POSITIVE_INFINITY));
  const latency = Math.max(...list.map((one) => one.latency ?? usual.latency ?? 0));
  return { ...(Number.isFinite(bandwidth) ? { bandwidth } : {}), ...(latency > 0 ? { latency } : {}) };
}

/**
 * An order with the collectives that a run puts into it: every stage reduced after its last backward. Where parameters are divided, a
 * stage is gathered one action ahead of its use and given up when another one is needed (`reshardAfterForward`); where only gradients or
 * optimizer states are, all are gathered when a step begins.
 */
export function withCollectives(
  schedule: Schedule,
  stages: readonly Pick<StageCosts, 'parameters'>[],
  { replicas, level }: PlanParallel,
): Schedule {
  if (replicas === 1) return schedule;
  const parameters = stages.map((stage) => stage.parameters);
  const residency = { parameters, shards: replicas, memoryLimit: 'least' as const };
  const rows = placeCollectives(schedule, {
    sharded: level === 'parameters',
    residency: resolveResidency('withCollectives', residency, schedule),
    lead: 1,
    durationOf: () => 1,
    unshardOf: () => Number.MIN_VALUE,
  });
  if (level !== 'optimizer' && level !== 'gradients') return schedule.with({ rows });
  return schedule.with({
    rows: rows.map((row, rank) =>
      Int32Array.from([
        ...schedule.stagesOf(rank).map((stage) => schedule.layout.pack(Code.Unshard, stage, -1)),
        ...row,
      ]),
    ),
  });
}

/** Bytes of a stage's state: what the simulation counts as parameters, and what is there beside them all the time. */
export function stateOf(
  { parameters }: Pick<StageCosts, 'parameters'>,
  stateFactor: number,
  { replicas, level }: PlanParallel,
): { readonly simulated: number; readonly beside: number } {
  // One byte in `stateFactor` is the parameters', one the gradients', the others the optimizer's.
  const all = parameters * Math.max(0, stateFactor - 1);
  if (level === 'replicate' || replicas === 1) return { simulated: all, beside: 0 };
  const optimizer = parameters * Math.max(0, stateFactor - 2);
  const divided = optimizer / replicas;
  // A gathered stage adds its whole parameters, without the optimizer's state.
  return level === 'parameters'
    ? { simulated: all - optimizer, beside: divided }
    : { simulated: all - optimizer + divided, beside: 0 };
}

/** The most bytes of parameters that each rank holds: its shards and what is gathered, or its whole stages. */
export function parameterPeaks(
  order: Schedule,
  stages: readonly Pick<StageCosts, 'parameters'>[],
  { replicas, level }: PlanParallel,
): number[] {
  const sharded = level === 'parameters' && replicas > 1;
  const parameters = stages.map((stage) => stage.parameters);
  const table = resolveResidency('predictPlan', { parameters, shards: sharded ? replicas : 1 }, order);
  return residentPeaks(order, table, sharded).map(({ peak }) => peak);
}
