/**
 * @file A run that is stopped after any step and continued in another layout: the same samples, losses, norms and parameters as
 * plain training that was not stopped, on the whole batch at once. The model has dropout, and starts from its seed in every layout.
 */
import { expect, test } from 'vitest';
import { casesOnProcesses, casesOnThreads } from '../../testing/launch.ts';

interface Case {
  readonly layout: 'plain' | 'stages' | 'traced';
  readonly schedule: string;
  readonly pp: number;
  readonly dp: number;
  readonly stages: number;
  readonly samples: number;
  readonly last: 'short' | 'drop' | 'fill';
  readonly from: number;
  readonly to: number;
  readonly checkpoint?: boolean;
  readonly shards?: 'optimizer' | 'gradients' | 'parameters';
  readonly workers?: number;
  readonly state?: State;
  /** Goes on with what the same rank has left in that case. */
  readonly goesOn?: number;
}
type Table = Record<string, number[]>;
interface State {
  readonly weights: Table;
  readonly first: Table;
  readonly second: Table;
  readonly loader: object;
  readonly random: object;
}
interface Result {
  readonly ids: number[][];
  readonly losses: number[];
  readonly norms: number[];
  readonly state: State;
}

const program = new URL('../../testing/ranks/continued.mjs', import.meta.url);
const steps = 5;
const plain = { layout: 'plain', schedule: '', pp: 1, dp: 1, stages: 1 } as const;

function run(cases: readonly Case[], processes = false): Promise<Result[][]> {
  const [{ pp, dp }] = cases as readonly [Case];
  const count = pp * dp;
  return processes ? casesOnProcesses(program, count, cases) : casesOnThreads(program, count, cases);
}

/** What all ranks of a layout together have: ranks vary by replica first, then by place in the pipeline. */
function together({ pp, dp }: Case, ofRanks: readonly Result[]): Result {
  const merge = (pick: (state: State) => Table): Table => Object.assign({}, ...ofRanks.map(({ state }) => pick(state)));
  const lossesOf = (replica: number): number[] =>
    ofRanks.flatMap((one, rank) => (rank % dp === replica ? one.losses : []));
  const [first] = ofRanks as readonly [Result, ...Result[]];
  expect(ofRanks.length).toBe(pp * dp);
  return {
    ids: first.ids.map((_, step) => ofRanks.slice(0, dp).flatMap(({ ids }) => ids[step] as number[])),
    losses: lossesOf(0).map((_, step) => {
      const each = Array.from({ length: dp }, (_, replica) => lossesOf(replica)[step] as number);
      return each.reduce((a, b) => a + b, 0) / dp;
    }),
    norms: first.norms,
    state: {
      weights: merge(({ weights }) => weights),
      first: merge(({ first: moments }) => moments),
      second: merge(({ second }) => second),
      loader: first.state.loader,
      random: first.state.random,
    },
  };
}

function expectSame(got: Result, want: Result, where: string): void {
  const close = (a: readonly number[], b: readonly number[], what: string): void => {
    expect(a.length, `${where}: ${what}`).toBe(b.length);
    a.forEach((value, i) =>
      expect(Math.abs(value - (b[i] as number)), `${where}: ${what}[${i}]`).toBeLessThanOrEqual(1e-12),
    );
  };
  expect(got.ids, where).toEqual(want.ids);
  close(got.losses, want.losses, 'losses');
  close(got.norms, want.norms, 'norms');
  expect(Object.keys(got.state.weights).sort(), where).toEqual(Object.keys(want.state.weights).sort());
  for (const [name, values] of Object.entries(want.state.weights))
    close(got.state.weights[name] as number[], values, name);
  expect(got.state.loader, where).toEqual(want.state.loader);
  expect(got.state.random, where).toEqual(want.state.random);
}

const layouts: readonly Pick<Case, 'layout' | 'schedule' | 'pp' | 'dp' | 'stages' | 'checkpoint' | 'workers'>[] = [
  { layout: 'stages', schedule: '1F1B', pp: 2, dp: 2, stages: 2 },
  { layout: 'stages', schedule: 'ZBVZeroBubble', pp: 2, dp: 1, stages: 4, workers: 1 },
  { layout: 'traced', schedule: 'Interleaved1F1B', pp: 2, dp: 1, stages: 4 },
  { layout: 'stages', schedule: 'Interleaved1F1B', pp: 1, dp: 2, stages: 4, checkpoint: true },
  { layout: 'traced', schedule: '1F1B', pp: 2, dp: 1, stages: 2, checkpoint: true },
  { layout: 'stages', schedule: 'DualPipeV', pp: 2, dp: 1, stages: 4, checkpoint: true },
];

// 21 samples and batches of 8: after step 1 in the middle of an epoch, after 3 across its end; 16: after 2 and 4 at its border.
for (const { samples, last, stops, count } of [
  { samples: 21, last: 'fill', stops: [1, 3], count: 6 },
  { samples: 16, last: 'short', stops: [2, 4], count: 3 },
] as const)
  test(`stopped after steps ${stops.join(' and ')} of ${steps} with ${samples} samples and continued elsewhere`, async () => {
    const base = { samples, last };
    const cuts = stops.map((stop): Case => ({ ...plain, ...base, from: 0, to: stop }));
    const [all] = await run([{ ...plain, ...base, from: 0, to: steps }, ...cuts]);
    const [whole, ...left] = all as [Result, ...Result[]];
    expect(new Set(whole.ids.flat()).size).toBe(samples);
    for (const layout of layouts.slice(0, count)) {
      // From the beginning; from what plain training has left after each stop; and stopped and continued in the same layout.
      const begun: Case = { ...layout, ...base, from: 0, to: steps };
      const elsewhere = stops.map((from, i): Case => ({ ...begun, from, state: (left[i] as Result).state }));
      const again: Case[] = [
        { ...begun, to: 2 },
        { ...begun, from: 2, goesOn: elsewhere.length + 1 },
      ];
      const results = await run([begun, ...elsewhere, ...again]);
      const where = `${layout.layout} ${layout.schedule} ${layout.pp}x${layout.dp}`;
      [begun, ...elsewhere].forEach((one, i) => {
        const got = together(
          one,
          results.map((ofRank) => ofRank[i] as Result),
        );
        const want = {
          ...whole,
          ids: whole.ids.slice(one.from),
          losses: whole.losses.slice(one.from),
          norms: whole.norms.slice(one.from),
        };
        expectSame(got, want, `${where} from step ${one.from}`);
      });
      for (const ofRank of results) {
        const [uninterrupted, continued] = [ofRank[0], ofRank.at(-1)] as [Result, Result];
        expect(continued.state, `${where}, bitwise`).toEqual(uninterrupted.state);
        expect(continued.norms, where).toEqual(uninterrupted.norms.slice(2));
        expect(continued.losses, where).toEqual(uninterrupted.losses.slice(2));
      }
    }
  });

test('shards draw the same as plain training', async () => {
  const base = { samples: 21, last: 'fill', from: 0, to: steps } as const;
  const [[whole] = []] = await run([{ ...plain, ...base }]);
  const sharded = [
    { layout: 'stages', schedule: '1F1B', pp: 2, dp: 2, stages: 2, shards: 'parameters' },
    { layout: 'traced', schedule: '1F1B', pp: 2, dp: 2, stages: 2, shards: 'gradients', checkpoint: true },
    { layout: 'stages', schedule: 'Interleaved1F1B', pp: 1, dp: 4, stages: 4, shards: 'optimizer' },
  ] as const;
  for (const layout of sharded) {
    const one: Case = { ...layout, ...base };
    const results = (await run([one])).map(([result]) => result as Result);
    const where = `${layout.layout} ${layout.shards} ${layout.pp}x${layout.dp}`;
    for (const { norms } of results)
      norms.forEach((norm, step) => expect(norm, where).toBeCloseTo(whole?.norms[step] as number, 11));
    const last = results.filter(({ losses }) => losses.length > 0);
    expect(last.length, where).toBe(layout.dp);
    whole?.losses.forEach((loss, step) => {
      const mean = last.reduce((sum, { losses }) => sum + (losses[step] as number), 0) / last.length;
      expect(mean, where).toBeCloseTo(loss, 11);
    });
  }
});

test('processes have the same as threads', async () => {
  const one: Case = {
    layout: 'stages',
    schedule: '1F1B',
    pp: 2,
    dp: 1,
    stages: 2,
    samples: 21,
    last: 'fill',
    from: 0,
    to: steps,
  };
  const [threads, processes] = [await run([one]), await run([one], true)];
  expect(processes).toEqual(threads);
});
