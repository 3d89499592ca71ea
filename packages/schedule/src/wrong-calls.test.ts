import { expect, test } from 'vitest';
import * as api from './index.ts';

const good = api.buildSchedule('1F1B', { ranks: 2, microbatches: 2 });
const values: readonly unknown[] = [
  undefined,
  null,
  0,
  1,
  -1,
  Number.NaN,
  1.5,
  '',
  'x',
  '0F0',
  true,
  {},
  [],
  [[]],
  [null],
  () => 0,
  new Map(),
  { order: null },
  { order: [null] },
  { order: [[1]] },
  { order: [[{}]] },
  { order: [['0F0']] },
  { ranks: 2, microbatches: 2 },
  { kind: 'F' },
  good,
  { steps: 1 },
  { ranks: null },
  10n,
];

/** What a call throws that is not a ScheduleError. */
function stray(call: () => unknown): string | null {
  try {
    call();
    return null;
  } catch (error) {
    return error instanceof api.ScheduleError ? null : String(error);
  }
}

test('no public function ends in a bare TypeError, whatever it is given', () => {
  const found = new Set<string>();
  let calls = 0;
  for (const [name, value] of Object.entries(api)) {
    if (typeof value !== 'function' || name === 'ScheduleError') continue;
    const isClass = /^class/.test(Function.prototype.toString.call(value));
    const attempt = (...given: unknown[]): void => {
      calls++;
      const run = value as unknown as ((...list: unknown[]) => unknown) & (new (...list: unknown[]) => unknown);
      const problem = stray(() => (isClass ? new run(...given) : run(...given)));
      if (problem !== null) found.add(`${name}: ${problem}`);
    };
    attempt();
    for (const a of values) {
      attempt(a);
      for (const b of values) for (const first of [a, good, '1F1B']) attempt(first, b, a);
    }
  }
  expect([...found]).toEqual([]);
  expect(calls).toBeGreaterThan(30_000);
});

test('options that are a map, a set or a promise are refused, not passed over', () => {
  for (const options of [new Map([['ranks', 2]]), new Set(['ranks']), Promise.resolve({})] as unknown[])
    for (const call of [
      () => api.buildSchedule('1F1B', options as never),
      () => api.lower(good, options as never),
      () => api.simulate(good, options as never),
    ])
      expect(call).toThrow(/expected an object of options .*, got /);
});

test('no method of a schedule does either', () => {
  const found = new Set<string>();
  for (const method of ['diff', 'equals', 'at', 'format', 'forEachLeaf', 'with', 'stagesOf'] as const) {
    for (const a of values) {
      const run = good[method] as (...given: unknown[]) => unknown;
      const problem = stray(() => run.call(good, a));
      if (problem !== null) found.add(`${method}: ${problem}`);
    }
  }
  for (const a of values) {
    for (const run of [api.Schedule.from, api.Schedule.fromJSON] as ((given: unknown) => unknown)[]) {
      const problem = stray(() => run(a));
      if (problem !== null) found.add(problem);
    }
  }
  expect([...found]).toEqual([]);
});
