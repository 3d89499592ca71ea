/** @file Steps of all kinds after each other, with and without sums, refused ones, evaluations, frozen parameters: training equals that of one module. */
import { expect, test } from 'vitest';
import { casesOnProcesses, casesOnThreads } from '../../testing/launch.ts';

const program = new URL('../../testing/ranks/parallel/accumulating.mjs', import.meta.url);

const everywhere = [
  'step refused step optimize',
  'step refused-unsynced step optimize',
  'unsynced refused step optimize',
  'unsynced refused-unsynced step optimize',
  'step unsynced refused step optimize',
  'unsynced eval step optimize',
  'step freeze step unfreeze step optimize',
  'unsynced freeze step optimize',
  'unsynced freeze step optimize zeroGrad unfreeze step optimize',
  'step unsynced freeze step unfreeze step optimize',
  'unsynced freeze unsynced step optimize zeroGrad step optimize',
  'unsynced freeze refused eval step optimize',
  'freeze unsynced unfreeze step optimize',
  'unsynced freeze step optimize zeroGrad freeze step optimize zeroGrad unfreeze unsynced step optimize',
];
/** `zeroGrad` clears what replicas have learned alone, and what was summed before. */
const ofReplicas = [
  'step unsynced zeroGrad eval step optimize',
  'step unsynced zeroGrad refused step optimize',
  'step unsynced zeroGrad freeze step unfreeze step optimize',
  'unsynced zeroGrad freeze step optimize',
];
const wraps = ['replicate', 'optimizer', 'gradients', 'parameters'];
const cases = wraps.flatMap((wrap) =>
  ['bias', 'first', 'last', 'tied'].flatMap((frozen) =>
    [...everywhere, ...(wrap === 'replicate' ? ofReplicas : [])].map((calls) => ({ wrap, frozen, calls })),
  ),
);

function check(some: typeof cases, results: readonly (readonly (number | string)[])[]): void {
  const wrong = some.flatMap(({ wrap, frozen, calls }, i) =>
    results.flatMap((ofRank, rank) => {
      const found = ofRank[i]!;
      return typeof found === 'number' && found < 1e-12
        ? []
        : [`${wrap}, ${frozen}: ${calls}: rank ${rank} is off by ${found}`];
    }),
  );
  expect(wrong).toEqual([]);
}

test('on threads', async () => {
  check(cases, await casesOnThreads(program, 4, cases));
});

test('on processes', async () => {
  const some = cases.filter((_, i) => i % 3 === 0);
  check(some, await casesOnProcesses(program, 4, some));
});

test.each([0, 1])(
  'a tied parameter that is frozen on stage %i only, after a step without a sum, is refused',
  async (stage) => {
    const one = { wrap: 'parameters', frozen: `tied on ${stage}`, calls: 'unsynced freeze step' };
    const texts = (await casesOnThreads<string>(program, 4, [one])).map(([found]) => String(found));
    // The first holder compares while the other one waits, and hears of it, or of its end.
    for (const text of texts) expect(text).toMatch(/Error: /);
    expect(texts.join(' ')).toContain(`the tied parameter 'w' is frozen on stage ${stage} and learned on `);
  },
);
