/** @file Weights that ranks write together: sharded ones in whole, and refusals that all ranks hear of. */
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { loadSafetensors, nn, scope } from '@pipewright/torch';
import { afterAll, describe, expect, test } from 'vitest';
import { casesOnProcesses, casesOnThreads } from '../../../testing/launch.ts';
import { PipelineStage } from '../../stage/pipeline-stage.ts';
import { exportWeights } from '../convert.ts';
import { saveCheckpoint } from '../writing/save.ts';
import { saveWeights } from './save-weights.ts';
import { loadWeights } from './weights.ts';

const root = mkdtempSync(join(tmpdir(), 'pipewright-save-weights-'));
afterAll(() => rmSync(root, { recursive: true }));
const program = new URL('../../../testing/checkpoint/saved-weights.mjs', import.meta.url);

type Result = Readonly<Record<string, unknown>>;

/** What the files of a folder hold, those with weights of the second layer turned back. */
function written(folder: string): Result {
  return scope(() =>
    Object.fromEntries(
      readdirSync(folder)
        .filter((file) => file.endsWith('.safetensors'))
        .flatMap((file) => [...loadSafetensors(join(folder, file))])
        .map(([name, tensor]) => [name, (name.endsWith('2.weight') ? tensor.t() : tensor).toArray()]),
    ),
  );
}

describe('sharded parameters are written in whole', () => {
  const cases = [
    ...(['optimizer', 'gradients', 'parameters'] as const).map((level) => ({ level, replicas: 1, shards: 2 })),
    { level: 'parameters', replicas: 1, shards: 2, columns: true },
  ].map((one) => ({ ...one, folder: mkdtempSync(join(root, 'threads-')) }));

  test.each([
    ['threads', 4, casesOnThreads<Result>, cases],
    [
      'threads, with replicas',
      8,
      casesOnThreads<Result>,
      [{ level: 'parameters', replicas: 2, shards: 2, folder: mkdtempSync(join(root, 'replicas-')) }],
    ],
    [
      'processes',
      6,
      casesOnProcesses<Result>,
      [{ level: 'parameters', replicas: 1, shards: 3, folder: mkdtempSync(join(root, 'processes-')) }],
    ],
  ] as const)(
    '%s',
    async (_, count, run, list) => {
      const ranks = await run(program, count, list);
      list.forEach(({ folder }, at) => {
        const wanted = Object.assign({}, ...ranks.map((results) => results[at])) as Result;
        expect(Object.keys(wanted)).toHaveLength(18);
        expect(written(folder), JSON.stringify(list[at])).toEqual(wanted);
        const { weight_map } = JSON.parse(readFileSync(join(folder, 'model.safetensors.index.json'), 'utf8')) as {
          weight_map: Record<string, string>;
        };
        expect(Object.keys(weight_map)).toEqual(Object.keys(wanted).sort());
        expect(readFileSync(join(folder, 'config.json'), 'utf8')).toContain('"layers": 2');
      });
    },
    240_000,
  );
});

test('what one rank cannot write, all ranks hear of; two weights of one name are refused', async () => {
  const base = { level: 'parameters', replicas: 1, shards: 2, folder: join(root, 'refused') };
  const [errors, ...others] = await casesOnThreads<Result>(program, 4, [
    { ...base, bad: 2 },
    { ...base, folder: join(root, 'collide'), rename: 'collide' },
  ]);
  expect(errors?.[0]?.['error']).toMatch(
    /^CANNOT_SAVE saveWeights: rank 2: the weights were not written: .*saved-weights\.mjs\/below/,
  );
  expect(errors?.[1]?.['error']).toMatch(
    /^NAME_CLASH saveWeights: rename gives 'layers\.0\.(\S+)' and 'layers\.1\.\1' the same name 'all\.\1'/,
  );
  for (const other of others) expect(other).toEqual(errors);
  expect(existsSync(join(root, 'refused', 'model.safetensors.index.json'))).toBe(false);
  expect(existsSync(join(root, 'collide'))).toBe(false);
});

test('a folder with a model.safetensors, which would be read instead, is refused', () => {
  scope(() => {
    const folder = mkdtempSync(join(root, 'original-'));
    const stages = new PipelineStage(new nn.Linear(2, 2), 0, 1);
    writeFileSync(join(folder, 'model.safetensors'), 'the original');
    const refusal = new RegExp(`${folder} has a model.safetensors, which tools of Hugging Face read instead`);
    expect(() => saveWeights(folder, { stages })).toThrow(refusal);
    saveCheckpoint(join(root, 'run'), { stages, step: 1 }).wait();
    expect(() => exportWeights(join(root, 'run'), folder)).toThrow(refusal);
    expect(readdirSync(folder)).toEqual(['model.safetensors']);
    rmSync(join(folder, 'model.safetensors'));
    saveWeights(folder, { stages });
    saveWeights(folder, { stages }); // its own files are replaced
    expect(loadWeights(folder, { stages }).bytes).toBe(24);
    expect(() => loadWeights(join(folder, 'none'), { stages })).toThrow(`there is no ${join(folder, 'none')}; give`);
    expect(() => loadWeights(root, { stages })).toThrow(`${root} has neither model.safetensors.index.json nor`);
  });
});
