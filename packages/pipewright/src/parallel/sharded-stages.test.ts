/** @file Sharded stages: what ranks hold, steps that are skipped or refused by all, recordings, exported models, wrong modules. */
import { float32 } from '@pipewright/torch';
import { expect, test } from 'vitest';
import { casesOnThreads } from '../../testing/launch.ts';
import { allowedDifference } from '../../testing/rounding.ts';

const program = new URL('../../testing/ranks/parallel/sharded.mjs', import.meta.url);

/** What each rank returns for each scenario. */
function run<T>(ranks: number, ...scenarios: readonly (readonly [name: string, settings?: object])[]): Promise<T[][]> {
  return casesOnThreads(program, ranks, scenarios);
}

interface Memory {
  readonly whole: number;
  readonly held: { readonly parameters: number; readonly gradients: number };
  readonly optimizerBytes: number;
  readonly between: number;
  readonly counted: number;
  readonly simulated: number;
  readonly freed: boolean;
  readonly gathers: readonly (readonly [number, number])[];
}

test('four ranks hold a quarter each, and at most what the simulator says', async () => {
  const limit = 1680 + 2 * 2240; // the shards and two of three stages
  const results = await run<Memory>(
    4,
    ['memory', {}],
    ['memory', { reshardAfterForward: true }],
    ['memory', { memoryLimit: limit }],
    ['memory', { wrap: 'gradients' }],
    ['memory', { wrap: 'optimizer' }],
  );
  for (const [all, least, limited, gradients, optimizer] of results as [Memory, Memory, Memory, Memory, Memory][]) {
    for (const { whole, held, optimizerBytes, counted, simulated } of [all, least, limited, gradients, optimizer]) {
      expect(counted).toBe(simulated);
      expect(held.parameters).toBe(whole / 4);
      expect(held.gradients).toBe(whole / 4);
      expect(optimizerBytes).toBe((2 * whole) / 4);
    }
    for (const { whole, between, freed } of [all, least, limited]) {
      expect(between).toBe(whole / 4); // nothing beside the shards
      expect(freed).toBe(true);
    }
    expect(all.counted).toBe(all.whole / 4 + all.whole);
    expect(least.counted).toBe(all.whole / 4 + all.whole / 3);
    expect(limited.counted).toBe(limit);
    expect(optimizer.counted).toBe(optimizer.whole);
    expect(all.gathers.map(([, count]) => count)).toEqual([2, 2, 2]); // two steps, once in each
    expect(least.gathers.map(([, count]) => count)).toEqual([4, 4, 2]);
  }
});

test('threads have one copy of frozen parameters, and of whole ones while they are gathered', async () => {
  const results = await run(4, ['shared']);
  const bytes = (8 * 16 + 16) * 8; // weight and bias of the frozen layer
  expect(results.map(([found]) => found)).toEqual(
    [0, bytes, bytes, bytes].map((saved) => ({
      whileFrozen: [true, true, false, false],
      saved,
      whenLearned: [false, false, false, false],
      areEqual: true,
      between: [false, false, false, false],
      whole: [true, true, true, true],
    })),
  );
});

interface Skipped {
  readonly results: readonly { skipped: boolean; reason: string | null; isSame: boolean; isFinite: boolean }[];
  readonly count: number;
  readonly norms: readonly number[];
}

test('a step that is not finite is skipped by all ranks', async () => {
  const made = { skipped: false, reason: null, isSame: false, isFinite: true };
  const results = await run<Skipped>(
    4,
    ...['replicate', 'optimizer', 'parameters'].flatMap((wrap) => [
      ['skipped', { wrap }] as const,
      ['skipped', { wrap, gradient: true }] as const,
    ]),
  );
  for (const ofRank of results)
    ofRank.forEach((found, i) => {
      if (i % 2 === 0) {
        const left = { skipped: true, reason: 'a loss on rank 3 is not finite', isSame: true, isFinite: false };
        expect(found).toMatchObject({ results: [made, left, made], count: 1 });
        return;
      }
      // With replicas the other copy of the gradient is finite: its pipeline skips the step as well.
      expect(found.results[1]?.reason).toBe('the norm of the gradients on rank 3 is not finite');
      expect(found.results.map(({ skipped, isSame }) => [skipped, isSame])).toEqual([
        [false, false],
        [true, true],
        [false, false],
      ]);
    });
});

test('a loss where nothing is learned counts as long as other ranks have its gradients', async () => {
  const results = await run(
    4,
    ...['replicate', 'gradients', 'parameters'].map((wrap) => ['cleared', { wrap }] as const),
  );
  const bad = 'a loss on rank 3 is not finite';
  for (const found of results.flat())
    expect(found).toEqual({
      ...{ afterClearing: null, withGradients: [bad, bad], withoutStep: bad, then: null, count: 3 },
    });
});

test('with a GradScaler such a step is skipped by all ranks, and the scale falls on all', async () => {
  const wraps = ['replicate', 'optimizer', 'parameters'];
  type Step = { skipped: boolean; isSame: boolean; norm: number | null; scale: number };
  const results = await run<Step[]>(4, ...wraps.map((wrap) => ['scaled', { wrap }] as const));
  const plain = await run<Skipped>(4, ...wraps.map((wrap) => ['skipped', { wrap, gradient: true }] as const));
  results.forEach((ofRank, rank) => {
    ofRank.forEach((steps, i) => {
      const where = `${wraps[i]}, rank ${rank}`;
      expect(
        steps.map(({ skipped, isSame, scale }) => [skipped, isSame, scale]),
        where,
      ).toEqual([
        [false, false, 1024],
        [true, true, 512],
        [false, false, 512],
      ]);
      // The gradients are those without a scale.
      expect(steps[0]?.norm, where).toBeCloseTo(plain[rank]?.[i]?.norms[0] as number, 12);
    });
  });
});

test('a step without a sum after one with it', async () => {
  type Found = Record<'first' | 'second' | 'third' | 'all' | 'cleared', number[]>;
  const wraps = ['replicate', 'optimizer', 'gradients', 'parameters'];
  const results = await run<Found>(4, ...wraps.map((wrap) => ['unsynced', { wrap }] as const));
  for (const ofRank of results)
    ofRank.forEach(({ first, second, third, all, cleared }, i) => {
      const isSharded = wraps[i] !== 'replicate';
      expect(first.length).toBeGreaterThan(0);
      all.forEach((value, at) =>
        expect(value, wraps[i]).toBeCloseTo((first[at] ?? 0) + (second[at] ?? 0) + (third[at] ?? 0), 12),
      );
      // zeroGrad clears what optimizers see: of shards that is what has been summed.
      cleared.forEach((value, at) =>
        expect(value, wraps[i]).toBeCloseTo((isSharded ? (second[at] ?? 0) : 0) + (third[at] ?? 0), 12),
      );
    });
});

interface Refused {
  readonly errors: readonly [{ code: string; message: string }, boolean];
  readonly weights: readonly number[];
}

test('a wrong batch on one replica is refused by all', async () => {
  const wraps = ['replicate', 'gradients', 'parameters'];
  const results = await run<Refused>(
    4,
    ...wraps.flatMap((wrap) => [
      ['refused', { wrap }] as const,
      ['refused', { wrap, refuse: false }] as const,
      ['refused', { wrap, pp: 1 }] as const,
    ]),
  );
  const says = 'a batch of 2 rows cannot be cut into 4 microbatches';
  results.forEach((ofRank, rank) => {
    wraps.forEach((wrap, i) => {
      const [refused, smooth, flat] = ofRank.slice(3 * i, 3 * i + 3) as [Refused, Refused, Refused];
      const where = `${wrap}, rank ${rank}`;
      expect(refused.errors[0].code, where).toBe(rank === 1 ? 'BATCH_TOO_SMALL' : 'STEP_REFUSED');
      expect(refused.errors[0].message, where).toContain(rank === 1 ? says : `rank 1: step: ${says}`);
      expect(refused.errors[1], where).toBe(true);
      expect(refused.weights, where).toEqual(smooth.weights);
      expect(flat.errors[0].code, where).toBe(rank === 1 ? 'LENGTHS_DIFFER' : 'STEP_REFUSED');
    });
  });
});

test('the recorder shows when stages are gathered, given up and reduced', async () => {
  const results = await run<{ training: string[]; evaluation: string[] }>(4, ['recorded']);
  expect(results.map(([one]) => one?.training)).toEqual([
    ['0UNSHARD', '2UNSHARD', '2REDUCE_GRAD', '2RESHARD', '0REDUCE_GRAD', '0RESHARD'],
    ['0UNSHARD', '2UNSHARD', '2REDUCE_GRAD', '2RESHARD', '0REDUCE_GRAD', '0RESHARD'],
    ['1UNSHARD', '3UNSHARD', '3REDUCE_GRAD', '3RESHARD', '1REDUCE_GRAD', '1RESHARD'],
    ['1UNSHARD', '3UNSHARD', '3REDUCE_GRAD', '3RESHARD', '1REDUCE_GRAD', '1RESHARD'],
  ]);
  expect(results[0]?.[0]?.evaluation).toEqual(['0UNSHARD', '2UNSHARD', '2RESHARD', '0RESHARD']);
});

test('an exported model in shards trains as without, and with dropout by name it draws the same', async () => {
  type Weights = Record<string, number[]>;
  const cases = [{}, { schedule: 'ZBVZeroBubble', count: 4 }, { dropout: true }];
  const plain = await run<Weights>(2, ...cases.map((one) => ['graph', { ...one, wrap: 'none' }] as const));
  expect(plain[0]?.[2]).not.toEqual(plain[0]?.[0]); // dropout drops
  for (const wrap of ['parameters', 'gradients']) {
    const sharded = await run<Weights>(4, ...cases.map((one) => ['graph', { ...one, wrap }] as const));
    cases.forEach((_, i) => {
      sharded.forEach((ofRank, rank) => {
        const want = plain[Math.floor(rank / 2)]?.[i] as Weights;
        expect(Object.keys(ofRank[i] as Weights)).toEqual(Object.keys(want));
        for (const [name, values] of Object.entries(ofRank[i] as Weights)) {
          // Sums in another order: off by units of the largest value, as everywhere in the tests.
          const expected = want[name] as number[];
          const terms = Math.max(...expected.map(Math.abs));
          values.forEach((value, at) => {
            const size = Math.max(Math.abs(value), Math.abs(expected[at] as number));
            const off = Math.abs(value - (expected[at] as number));
            expect(off, `${wrap}, rank ${rank}, ${name}[${at}]`).toBeLessThanOrEqual(
              allowedDifference(float32, size, { terms }),
            );
          });
        }
      });
    });
  }
});

test('computing in another type, and parameters that stay out', async () => {
  const [[found] = []] = await run(4, ['types']);
  expect(found).toEqual({
    seen: [
      ['bfloat16', 'bfloat16'],
      ['bfloat16', 'bfloat16'],
    ],
    output: 'float32',
    weight: ['float32', 'float32', [2, 8]],
    own: [null, [8], true],
  });
});

test('what cannot be sharded is refused by name, on all ranks', async () => {
  const results = await run<{ code: string; message: string }[]>(2, ['wrong']);
  for (const [errors] of results)
    expect(errors?.map(({ code, message }) => `${code} ${message}`)).toMatchInlineSnapshot(`
      [
        "BAD_INPUT fullyShard: the parameter 'factor' has no dimension to cut along; give it the shape [1], or name it in ignoredParams",
        "NO_AGREEMENT fullyShard: the parameter 'weight' is float32[5, 4] along 0 on rank 1 and float32[4, 4] along 0 on rank 0; all ranks give the same options and shard modules of the same parameters",
        "BAD_OPTION fullyShard: level is 'everything'; give 'optimizer' or 'gradients' or 'parameters'",
        "UNKNOWN_OPTION fullyShard: unknown option 'shard'; it takes mesh, level, reshardAfterForward, mpPolicy, ignoredParams, units, shardPlacementFn",
        "BAD_OPTION fullyShard: shardPlacementFn gave 2 for 'weight' of shape [4, 4]; give a dimension from 0 to 1",
        "BAD_OPTION fullyShard: units has a Linear, which is no part of the module; give modules inside of it",
        "BAD_OPTION fullyShard: the mesh is undefined; give one dimension, mesh.get('dp'), or two, replicas and shards: mesh.get('replicate', 'shard')",
      ]
    `);
});
