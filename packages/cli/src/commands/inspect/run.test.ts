import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { expect, test } from 'vitest';
import { cli, folder } from '../../../testing/run-cli.ts';

const file = (name: string): string => fileURLToPath(new URL(`../../../../../testdata/${name}`, import.meta.url));

test('inspect prints what is in a file', () => {
  const { code, out, err } = cli(`inspect ${file('models/split_mlp.pt2')}`);
  expect({ code, err }).toEqual({ code: 0, err: '' });
  expect(out).toMatchInlineSnapshot(`
    "file               24.3 KiB, model "model"
    written by         PyTorch 2.11.0+cu130, format 8.17 TRAINING
    parameters         1,072 in 7 tensors, 4.19 KiB
    buffers            16 in 1 tensor, 64 B
    constants          none
    training adds      12.6 KiB for gradients and Adam
    values in between  1.50 KiB at once, 5.00 KiB in all

    Inputs
    x  float32[8, 16]
    y  float32[8, 16]

    Outputs
    linear_2  float32[8, 16]

    Operators
    aten::add.Tensor    3
    aten::linear        3
    pippy::_pipe_split  3
    aten::mm            2
    aten::relu          2

    Tensors
    shared     parameter  float32[16, 16]  1.00 KiB
    l0.weight  parameter  float32[16, 16]  1.00 KiB
    l0.bias    parameter  float32[16]          64 B
    l1.weight  parameter  float32[16, 16]  1.00 KiB
    l1.bias    parameter  float32[16]          64 B
    l2.weight  parameter  float32[16, 16]  1.00 KiB
    l2.bias    parameter  float32[16]          64 B
    scale      buffer     float32[16]          64 B
    "
  `);
});

test('inspect knows dynamic sizes, shared tensors and memory at other sizes', () => {
  const { out } = cli(`inspect ${file('models/mlp_dyn.pt2')} --size s77=8`);
  expect(out).toContain('values in between  1.00 KiB at once, 8.13 KiB in all at s77 = 8');
  expect(out).toMatch(/Dynamic sizes\ns77 {2}1 to 1024\n/);
  expect(cli(`inspect ${file('exports/tied.pt2')}`).out).toMatch(
    /head\.weight +parameter +float32\[11, 6\] +same as embed\.weight/,
  );
});

test('inspect writes JSON and the graph', () => {
  const report = JSON.parse(cli(`inspect ${file('exports/buffers.pt2')} --format json`).out) as Record<string, unknown>;
  expect(report).toMatchObject({
    model: 'model',
    inputs: [{ name: 'x', type: 'float32[3, 4]' }],
    parameters: { count: 2, elements: 20, bytes: 80 },
    buffers: { count: 2, elements: 5, bytes: 24 },
    constants: { count: 3 },
    problems: [],
  });
  expect(report).not.toHaveProperty('graph');
  const out = join(folder, 'graph.txt');
  expect(cli(`inspect ${file('models/mlp.pt2')} -f graph -o ${out}`)).toMatchObject({ code: 0, out: '' });
  expect(readFileSync(out, 'utf8')).toMatch(/^graph\(%x: float32\[8, 16\]\)\n[^]*return %linear_8\n$/);
});

test('what cannot be done is said', () => {
  expect(cli('inspect nothing.pt2')).toMatchObject({
    code: 2,
    err: 'pipewright: nothing.pt2: no such file or folder\n',
  });
  const model = file('models/mlp.pt2');
  expect(cli(`inspect ${model} --size s0`)).toMatchObject({
    code: 2,
    err: expect.stringContaining('Write a name and a number, as in --size s0=8.'),
  });
  expect(cli(`inspect ${model} --size s0=8`).err).toContain("there is no dynamic size 's0'; all sizes are fixed");
  expect(cli(`inspect ${model} --model other`).err).toContain('there is no model "other"; there are "model"');
  expect(cli(`inspect ${model} --format yaml`)).toMatchObject({ code: 2 });
});
