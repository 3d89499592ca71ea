import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { cli, folder } from '../../../testing/run-cli.ts';

describe('simulate', () => {
  test('says the numbers', () => {
    expect(cli('simulate 1F1B -p 4 -m 8 --F 1 --B 2').out).toMatchInlineSnapshot(`
      "1F1B: 4 ranks, 4 stages, 8 microbatches
      makespan       33
      span           33
      bubble         27.3% of the makespan, 27.3% of the span
      peak memory    4 on rank 0
      critical path  22 actions: 0F0 1F0 2F0 3F0 3B0 3F1 … 3F7 3B7 2B7 1B7 0B7; 33 of work, 0 waiting for
                     messages

      rank        busy  idle  communication  waiting  peak memory
      0     24 (72.7%)     9              0        0            4
      1     24 (72.7%)     9              0        0            3
      2     24 (72.7%)     9              0        0            2
      3     24 (72.7%)     9              0        0            1
      "
    `);
  });

  test('takes costs per stage, from a file, and both', () => {
    const makespan = (line: string): number =>
      (JSON.parse(cli(`simulate 1F1B -p 4 -m 8 -f json ${line}`).out) as { makespan: number }).makespan;
    writeFileSync(join(folder, 'slow.json'), '{ "F": 2, "I": 2, "W": 2 }');
    expect(makespan('--F 1 --B 2')).toBe(33);
    expect(makespan('--costs slow.json')).toBe(66);
    expect(makespan('--costs slow.json --F 1 --I 1 --W 1')).toBe(33);
    expect(makespan('--F 1,1,1,2')).toBeGreaterThan(33);
    expect(makespan('--lower')).toBe(33);
  });
});
