/** @file Recorded steps of ranks whose actions take a known time, shards beside the pipeline: as simulated, and what a processor worked. */
import { availableParallelism } from 'node:os';
import { type Action, meanCosts, type Recording, Schedule, simulate } from '@pipewright/schedule';
import { expect, test } from 'vitest';
import { runRanks } from '../../testing/launch.ts';

const program = new URL('../../testing/ranks/paced.mjs', import.meta.url);
/** Milliseconds of each kind of action. */
type Times = Partial<Record<Action['kind'], number>>;

interface Result {
  readonly recording: Recording;
  readonly simulated: number;
}

/** What the first ranks of the two pipelines tell. */
async function run(
  way: 'sleep' | 'work',
  times: Times,
  settings: { readonly steps: number; readonly enough?: number },
): Promise<Result[]> {
  const results = (await runRanks(program, ['4', JSON.stringify({ way, times, ...settings })])) as (Result | null)[];
  return results.filter((result) => result !== null);
}

/** How long each step took. */
function lengths({ steps }: Recording): number[] {
  return steps.map(
    ({ ranks }) => Math.max(...ranks.map(({ end }) => end)) - Math.min(...ranks.map(({ begin }) => begin)),
  );
}

test('a step of 2 x 2 ranks with shards takes as long as simulated', async () => {
  const times: Times = { F: 160, B: 240, UNSHARD: 120, REDUCE_GRAD: 200, RESHARD: 80 };
  // Others may keep the machine busy: one step that they leave alone is enough.
  const results = await run('sleep', times, { steps: 25, enough: 1.09 });
  expect(results).toHaveLength(2);
  for (const { recording, simulated } of results) {
    expect(simulated).toBe(120 + 5 * (160 + 240) + 200 + 80);
    const least = Math.min(...lengths(recording));
    expect(least).toBeGreaterThan(simulated - 1);
    expect(least).toBeLessThan(1.1 * simulated);
  }
});

test('what a processor works is recorded action by action, whatever else it does meanwhile', async () => {
  const times: Times = { F: 3, B: 4, UNSHARD: 5, REDUCE_GRAD: 6, RESHARD: 2 };
  for (const { recording } of await run('work', times, { steps: 6 })) {
    const schedule = Schedule.fromJSON(recording.schedule);
    expect(recording.ranks.map(({ machine }) => [machine?.cores, machine?.ranks])).toEqual(
      recording.ranks.map(() => [availableParallelism(), 4]),
    );
    for (const [kind, ms] of Object.entries(times)) {
      const busy = recording.steps.flatMap(({ ranks }) =>
        ranks.flatMap((record, rank) =>
          schedule.order[rank]!.flatMap((action, i) => (action?.kind === kind ? [record.busy![i]!] : [])),
        ),
      );
      expect(Math.min(...busy), kind).toBeGreaterThanOrEqual(ms);
      expect(Math.min(...busy), kind).toBeLessThan(2 * ms);
    }
    // The same run on two cores of a machine: four ranks share them, so this pipeline of two has one.
    const machine = { name: 'host', cores: 2, ranks: 4 };
    const shared = { ...recording, ranks: recording.ranks.map((rank) => ({ ...rank, machine })) };
    const costs = meanCosts(shared);
    expect(costs.cores).toEqual({ count: 1 });
    const work = 2 * (4 * (3 + 4) + 5 + 6 + 2);
    expect(simulate(schedule, costs).makespan).toBeGreaterThanOrEqual(work);
    expect(
      simulate(schedule, { F: 3, B: 4, reshard: 2, overhead: { unshard: 5, reduceGrad: 6 }, cores: 1 }).makespan,
    ).toBeCloseTo(work, 9);
  }
});
