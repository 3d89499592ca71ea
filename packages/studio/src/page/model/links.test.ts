/** @file Slack is what it says: an action that ends that much later leaves the step as long as it is, more makes it longer. */

import { fc, test } from '@fast-check/vitest';
import { buildSchedule, formatAction, lower, type Simulation, simulate } from '@pipewright/schedule';
import { expect } from 'vitest';
import { idleByCause } from './idle.ts';
import { Links } from './links.ts';

/** The makespan where one cell takes longer: starts are pushed back along all links, in order of their old starts. */
function delayed(simulation: Simulation, links: Links, cell: { rank: number; slot: number }, by: number): number {
  const ends = new Map<string, number>();
  const key = ({ rank, slot }: { rank: number; slot: number }): string => `${rank}/${slot}`;
  for (const event of simulation.events().toSorted((a, b) => a.start - b.start || a.end - b.end)) {
    const begin = links
      .before(event)
      .reduce((latest, { from, delay }) => Math.max(latest, ends.get(key(from))! + delay), event.start);
    const longer = key(event) === key(cell) ? by : 0;
    ends.set(key(event), begin + (event.end - event.start) + longer);
  }
  return Math.max(...ends.values());
}

test.prop(
  [
    fc.constantFrom('1F1B', 'GPipe', 'ZBVZeroBubble', 'Interleaved1F1B', 'ZB1P'),
    fc.integer({ min: 2, max: 4 }),
    fc.array(fc.double({ min: 0.2, max: 3, noNaN: true }), { minLength: 8, maxLength: 8 }),
    fc.nat(1000),
  ],
  { numRuns: 60 },
)('slack', (name, ranks, F, pick) => {
  const schedule = buildSchedule(name, { ranks, microbatches: ranks * 2 });
  const simulation = simulate(schedule, { F: F.slice(0, schedule.stages), I: 1, W: 0.7, comm: 0.2 });
  const links = new Links(simulation);
  const events = simulation.events();
  const cell = events[pick % events.length]!;
  const slack = links.slack(cell);
  const { makespan } = simulation;
  expect(slack).toBeGreaterThanOrEqual(0);
  expect(delayed(simulation, links, cell, slack * 0.999)).toBeLessThanOrEqual(makespan * (1 + 1e-9));
  expect(delayed(simulation, links, cell, slack + makespan * 0.01)).toBeGreaterThan(makespan);
  for (const step of simulation.criticalPath) expect(links.slack(step)).toBeLessThanOrEqual(makespan * 1e-9);
});

test.prop(
  [fc.constantFrom('1F1B', 'DualPipeV', 'ZBVZeroBubble', 'Interleaved1F1B', 'GPipe'), fc.integer({ min: 2, max: 4 })],
  {
    numRuns: 30,
  },
)('slack is the same where messages are actions, and what is critical has none', (name, ranks) => {
  const plain = buildSchedule(name, { ranks, microbatches: ranks * 2 });
  const costs = { F: 1, I: 1.3, W: 0.7, comm: 0.2 };
  const without = new Links(simulate(plain, costs));
  const simulation = simulate(lower(plain), costs);
  const links = new Links(simulation);
  const wanted = new Map(
    without.simulation.events().map((event) => [formatAction(event.action), without.slack(event)]),
  );
  for (const event of simulation.events()) {
    const slack = links.slack(event);
    expect(slack).toBeGreaterThanOrEqual(-1e-9);
    const other = wanted.get(formatAction(event.action));
    if (other !== undefined) expect(slack).toBeCloseTo(other, 9);
  }
  for (const step of simulation.criticalPath) expect(links.slack(step)).toBeCloseTo(0, 9);
});

test('with messages as actions, a forward waits for its receive, which waits for the send of the other rank', () => {
  const schedule = lower(buildSchedule('1F1B', { ranks: 2, microbatches: 3 }));
  const links = new Links(simulate(schedule, { F: 1, I: 1, W: 1, comm: 0.2, unshard: 0.3, reduceGrad: 0.4 }));
  const texts = (places: readonly { rank: number; slot: number }[]): string[] =>
    places.map(({ rank, slot }) => formatAction(schedule.at(rank, slot)!));
  const place = (text: string): { rank: number; slot: number } => {
    const rank = Number(text[0]);
    return {
      rank,
      slot: schedule.order[rank]!.findIndex((action) => action !== null && formatAction(action) === text),
    };
  };
  const before = (text: string): string[] => texts(links.before(place(text)).map(({ from }) => from));
  expect(before('1F1')).toEqual(['1RECV_F1', '1UNSHARD', '1B0']);
  expect(before('1RECV_F1')).toEqual(['0SEND_F1']);
  expect(before('0SEND_F1')).toEqual(['0F1']);
  expect(texts(links.after(place('1B0')).map(({ to }) => to))).toEqual(['1SEND_B0', '1F1']);
  expect(links.slack(place('0REDUCE_GRAD'))).toBeCloseTo(0, 9);
});

test('the time of a message under way is its own cause, whether sends are actions or not', () => {
  const plain = buildSchedule('1F1B', { ranks: 4, microbatches: 8 });
  const costs = { F: 1, I: 1, W: 1, comm: 0.3 };
  const [first] = idleByCause(simulate(plain, costs));
  // Between filling and draining, rank 0 waits for a gradient before 0B2 and 0B3; each is 0.3 under way.
  expect(first!.message).toBeCloseTo(2 * 0.3, 9);
  expect(first!.gradient).toBeCloseTo(0.6, 9);
  const [lowered] = idleByCause(simulate(lower(plain), costs));
  expect(lowered!.message).toBeCloseTo(first!.message, 9);
  expect(lowered!.gradient).toBeCloseTo(first!.gradient, 9);
});

test.prop([fc.constantFrom('1F1B', 'ZB1P', 'VHalf', 'LoopedBFS'), fc.integer({ min: 2, max: 5 })], { numRuns: 30 })(
  'busy time and idle time by cause add up to the step',
  (name, ranks) => {
    const simulation = simulate(buildSchedule(name, { ranks, microbatches: 2 * ranks }), {
      F: 1,
      I: 1.5,
      W: 0.5,
      comm: 0.3,
    });
    for (const row of idleByCause(simulation)) {
      const sum = row.busy + row.fill + row.drain + row.activation + row.gradient + row.message;
      expect(sum).toBeCloseTo(simulation.makespan, 9);
      expect(row.busy).toBeCloseTo(simulation.busy[row.rank] as number, 9);
    }
  },
);
