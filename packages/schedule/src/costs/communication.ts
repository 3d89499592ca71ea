/** @file Communication by bytes, bandwidth and latency: messages, and times of collectives. */

import { checkOptions, ScheduleError, show } from '../model/errors.ts';
import type { Costs, MessageCosts, PerStage, Sharding } from './costs.ts';
import { checkCost, spreadOver } from './spread.ts';

/** Costs of messages by size, checked; null where `comm` is a delay. */
export function messageOf(caller: string, comm: Costs['comm']): MessageCosts | null {
  if (
    comm === undefined ||
    typeof comm !== 'object' ||
    comm === null ||
    Array.isArray(comm) ||
    comm instanceof Float64Array
  )
    return null;
  const given = comm as MessageCosts;
  checkOptions(`${caller}: comm`, given, ['bytes', 'gradientBytes', 'latency', 'bandwidth', 'links']);
  if (given.bytes === undefined)
    throw new ScheduleError(
      'BAD_OPTION',
      `${caller}: comm.bytes is missing; give the bytes of a stage's output, or a plain number as delay`,
    );
  checkLink(`${caller}: comm`, given);
  (given.links ?? []).forEach((link, i) => {
    checkOptions(`${caller}: comm.links[${i}]`, link, ['from', 'to', 'latency', 'bandwidth']);
    if (!Number.isSafeInteger(link.from) || !Number.isSafeInteger(link.to)) {
      throw new ScheduleError(
        'BAD_OPTION',
        `${caller}: comm.links[${i}] needs the ranks \`from\` and \`to\`, got ${show(link.from)} and ${show(link.to)}`,
      );
    }
    checkLink(`${caller}: comm.links[${i}]`, link);
  });
  return given;
}

/** Times of UNSHARD and REDUCE_GRAD by `costs.collective`; 0 without it. */
export function collectiveTimes(
  caller: string,
  costs: Costs,
  { stages, shards, sharding }: { readonly stages: number; readonly shards: number; readonly sharding: Sharding },
): { readonly unshard: Float64Array; readonly reduceGrad: Float64Array } {
  const replicas = costs.replicas ?? 1;
  if (!(typeof replicas === 'number' && Number.isSafeInteger(replicas) && replicas >= 1))
    throw new ScheduleError(
      'BAD_OPTION',
      `${caller}: replicas must be an integer of at least 1, got ${show(replicas)}`,
    );
  const none = new Float64Array(stages);
  const given = costs.collective;
  if (given === undefined) return { unshard: none, reduceGrad: none };
  checkOptions(`${caller}: collective`, given, ['bandwidth', 'latency', 'parameterBytes', 'gradientBytes']);
  checkLink(`${caller}: collective`, given);
  const { bandwidth = Number.POSITIVE_INFINITY, latency = 0 } = given;
  const bytes = (name: string, value: PerStage | undefined): Float64Array =>
    spreadOver({ caller, name, value, fallback: 0, stages });
  const parameters = bytes('collective.parameterBytes', given.parameterBytes ?? costs.parameters);
  const gradients = bytes(
    'collective.gradientBytes',
    given.gradientBytes ?? costs.weightGradient ?? given.parameterBytes ?? costs.parameters,
  );
  const rounds = (n: number, size: number): number => (n - 1) * (latency + size / n / bandwidth);
  return {
    unshard: parameters.map((size) => rounds(shards, size)),
    // Without shards of gradients everything is summed in full; with them each rank keeps its part, summed over replicas.
    reduceGrad: gradients.map((size) =>
      sharding === 'optimizer'
        ? 2 * rounds(shards * replicas, size)
        : rounds(shards, size) + 2 * rounds(replicas, size / shards),
    ),
  };
}

function checkLink(caller: string, link: { readonly latency?: number; readonly bandwidth?: number }): void {
  if (link.latency !== undefined) checkCost(caller, 'latency', link.latency);
  if (link.bandwidth !== undefined && !(typeof link.bandwidth === 'number' && link.bandwidth > 0)) {
    throw new ScheduleError(
      'BAD_OPTION',
      `${caller}: bandwidth must be above 0 bytes per unit of time, got ${show(link.bandwidth)}`,
    );
  }
}
