/** @file Modules and gradients that are changed between steps: training equals that of one process with the same changes. */
import { expect, test } from 'vitest';
import { casesOnProcesses, casesOnThreads } from '../../testing/launch.ts';

const program = new URL('../../testing/ranks/parallel/between-steps.mjs', import.meta.url);
const { scenarios } = (await import(program.href)) as { scenarios: Record<string, unknown> };
const names = Object.keys(scenarios);

/** Refused, in these words; all others are differences from plain training. */
const refused: Record<string, RegExp> = {
  'shards of another type':
    /^BAD_INPUT fullyShard: the parameter '0.weight' is float64 on cpu now, and was float32 on cpu when .* before fullyShard/,
};

function check(results: readonly (readonly unknown[])[]): void {
  for (const ofRank of results)
    names.forEach((name, i) => {
      const found = ofRank[i];
      const says = refused[name];
      if (says !== undefined) expect(found, name).toMatch(says);
      else expect(typeof found === 'number' && found < 1e-5, `${name}: ${String(found)}`).toBe(true);
    });
}

test('on threads', async () => {
  check(await casesOnThreads(program, 2, names));
});

test('on processes', async () => {
  check(await casesOnProcesses(program, 2, names));
});
