import { readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import * as library from './index.ts';

const page = readFileSync(new URL('../../../docs/guide/schedules.md', import.meta.url), 'utf8');

describe('docs/guide/schedules.md', () => {
  test('shows what its first program prints', () => {
    const schedule = library.buildSchedule('1F1B', { ranks: 4, microbatches: 8 });
    const printed = library.renderTimeline(library.simulate(schedule, { F: 1, I: 1, W: 1 }));
    expect(/```text\n([\s\S]*?)```/.exec(page)?.[1]).toBe(printed);
  });

  test('names only functions and schedules that exist', () => {
    const code = [...page.matchAll(/```ts\n([\s\S]*?)```/g)].map((match) => match[1]!).join('\n');
    const cells = [...page.matchAll(/`([^`\n]+)`/g)].map((match) => match[1]!);
    const calls = [...`${code}\n${cells.join('\n')}`.matchAll(/(?<![.\w])([a-z]\w*)\(/g)].map((match) => match[1]!);
    expect(calls.length).toBeGreaterThan(12);
    for (const name of new Set(calls)) expect(Object.keys(library), name).toContain(name);
    for (const [, name] of code.matchAll(/buildSchedule\('(\w+)'/g))
      expect(library.findSchedule(name!).name).toBeTruthy();
    const advice = page.slice(page.indexOf('## Which schedule?'));
    for (const [, name] of advice.matchAll(/`([A-Z0-9]\w+)`/g)) expect(library.findSchedule(name!).name).toBeTruthy();
  });
});
