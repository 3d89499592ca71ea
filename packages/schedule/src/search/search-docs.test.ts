/** @file docs/guide/schedule-search.md says what is so. */
import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import * as library from '../index.ts';

const page = readFileSync(new URL('../../../../docs/guide/schedule-search.md', import.meta.url), 'utf8');

describe('docs/guide/schedule-search.md', () => {
  it('names only schedules and functions that exist', () => {
    const rows = [...page.matchAll(/^\| `(\w+)` \| (\d)/gm)];
    expect(rows).toHaveLength(7);
    for (const [, name, stages] of rows) {
      const definition = library.findSchedule(name!);
      expect([definition.name, definition.stagesPerRank.default]).toEqual([name, Number(stages)]);
    }
    const code = [...page.matchAll(/```ts\n([\s\S]*?)```/g)].map((match) => match[1]!).join('\n');
    const calls = [...code.matchAll(/(?<![.\w])([a-z]\w*)\(/g)].map((match) => match[1]!);
    expect(calls.length).toBeGreaterThan(4);
    for (const name of calls) expect(Object.keys(library)).toContain(name);
  });

  it('says which schedules use costs and limits', () => {
    for (const [, name] of page.matchAll(/^\| `(\w+)` \| \d[^|]*\| costs, limit/gm)) {
      const { usesCosts, usesMemoryLimit } = library.findSchedule(name!);
      expect([name, usesCosts, usesMemoryLimit]).toEqual([name, true, true]);
    }
  });
});
