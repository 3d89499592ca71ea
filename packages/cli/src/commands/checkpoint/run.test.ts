import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { nn, optim } from '@pipewright/torch';
import { PipelineStage, saveCheckpoint } from 'pipewright';
import { beforeAll, expect, test } from 'vitest';
import { cli, folder } from '../../../testing/run-cli.ts';

const runs = join(folder, 'runs');

beforeAll(() => {
  const stages = [0, 1].map(
    (i) => new PipelineStage(new nn.Sequential(new nn.Linear(4, 4)), i, 2, { names: { '0': `blocks.${i}` } }),
  );
  const optimizer = new optim.SGD(
    stages.flatMap(({ module }) => module.parameters()),
    { lr: 0.1 },
  );
  for (const step of [10, 20])
    saveCheckpoint(runs, { stages, optimizer, step, schedule: 'GPipe', files: { 'config.json': '{}' } }).wait();
});

test('show prints the checkpoints of a folder and what is in the latest', () => {
  const { code, out, err } = cli('checkpoint show runs');
  expect({ code, err }).toEqual({ code: 0, err: '' });
  expect(
    out
      .replaceAll(/[\d.]+ (?=KiB|B)/g, '… ')
      .replaceAll(/ +\n/g, '\n')
      .replaceAll(/ {2,}/g, '  '),
  ).toMatchInlineSnapshot(`
    "checkpoint  step  size  saved at
    step-00000010  10  … B  1 rank, 2 stages, GPipe
    step-00000020  20  … B  1 rank, 2 stages, GPipe

    step-00000020
    step  20
    saved at  1 rank, 2 stages, GPipe
    parameters  40 numbers in 4 tensors
    buffers  none
    optimizer  none, 1 group
    states  generator of the rank
    files  config.json, … B
      model-00001-of-00001.safetensors, … B
      model.safetensors.index.json, … B
    "
  `);
  const json = JSON.parse(cli('checkpoint show runs/step-00000010 --format json').out) as { latest: { step: number } };
  expect(json.latest.step).toBe(10);
  expect(cli('checkpoint show nothing')).toMatchObject({
    code: 2,
    err: 'pipewright: cannot read nothing: no such folder\n',
  });
  expect(cli('checkpoint verify .')).toMatchObject({
    code: 1,
    err: 'pipewright: there is no complete checkpoint in .; check the path, or start a new run\n',
  });
});

test('verify, convert and export-hf', () => {
  expect(cli('checkpoint verify runs')).toMatchObject({
    code: 0,
    out: expect.stringMatching(/: 3 files, .*: as written/),
  });
  expect(cli('checkpoint convert runs other --files 2')).toMatchObject({ code: 0, out: 'other/step-00000020\n' });
  expect(readdirSync(join(folder, 'other/step-00000020')).sort()).toEqual([
    'config.json',
    'manifest.json',
    'model-00001-of-00002.safetensors',
    'model-00002-of-00002.safetensors',
    'model.safetensors.index.json',
  ]);
  expect(cli('checkpoint verify other').code).toBe(0);
  const line = 'checkpoint export-hf other exported --rename blocks=model.layers --dtype bfloat16 --transpose 1.weight';
  expect(cli(line)).toMatchObject({ code: 0, err: '' });
  const index = JSON.parse(readFileSync(join(folder, 'exported/model.safetensors.index.json'), 'utf8')) as object;
  expect(index).toEqual({
    metadata: { total_size: 80 },
    weight_map: Object.fromEntries(
      ['0.bias', '0.weight', '1.bias', '1.weight'].map((name) => [
        `model.layers.${name}`,
        'model-00001-of-00001.safetensors',
      ]),
    ),
  });
  const path = join(folder, 'other/step-00000020/model-00002-of-00002.safetensors');
  const bytes = readFileSync(path);
  bytes[bytes.length - 1]! ^= 1;
  writeFileSync(path, bytes);
  expect(cli('checkpoint verify other')).toMatchObject({
    code: 1,
    err: expect.stringContaining('model-00002-of-00002.safetensors: its bytes in '),
  });
});
