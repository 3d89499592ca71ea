import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { expect, test } from 'vitest';
import { cli, folder } from '../../../testing/run-cli.ts';

const file = (name: string): string =>
  fileURLToPath(new URL(`../../../../../testdata/models/${name}`, import.meta.url));

test('split prints the stages', () => {
  const { code, out, err } = cli(
    `split ${file('gpt2_dyn.pt2')} --at m.transformer.h.1:beginning m.transformer.h.2:end`,
  );
  expect({ code, err }).toEqual({ code: 0, err: '' });
  expect(out).toMatchInlineSnapshot(`
    "gpt2_dyn.pt2 in 3 stages at s10 = 8
    stage  layers                        parameters    memory        in       out    forward    time
    0      m.transformer.wte                 16,800  65.6 KiB     768 B  13.1 KiB  2.6 MFLOP  40.0 %
           m.transformer.wpe
           m.transformer.drop
           m.transformer.h.0
    1      m.transformer.h.1-2               25,408  99.3 KiB  13.1 KiB    12 KiB  5.2 MFLOP  38.7 %
    2      m.transformer.h.3                 15,840  61.9 KiB  13.1 KiB    36 KiB  3.2 MFLOP  21.3 %
           m.transformer.ln_f m.lm_head
    in, out: bytes of activations per microbatch; forward: floating-point operations of one microbatch;
    time: its share of the forward time of all stages, estimated from operations, bytes and calls (equal
    shares make the smallest bubble)

    Sent further than to the next stage
    expand_1  stage 0 to 1, 2  bool[s10, 1, 12, 12]  1.1 KiB

    Parameters used by several stages
    m.transformer.wte.weight  stages 0, 2
    "
  `);
});

test('split makes stages of equal cost, and counts with the sizes given', () => {
  const { out } = cli(`split ${file('llama_dyn.pt2')} --stages 4 --size s10=16 --width 160`);
  expect(out).toMatch(/^llama_dyn.pt2 in 4 stages at s10 = 16\n/);
  expect(out).toMatch(/\n3 {6}m\.model\.rotary_emb m\.model\.layers\.3 m\.model\.norm m\.lm_head /);
});

test('split takes the marks in the model, and writes JSON and a picture', () => {
  const report = JSON.parse(cli(`split ${file('split_mlp.pt2')} --format json`).out) as Record<string, unknown>;
  expect(report).toMatchObject({
    stages: [
      { stage: 0, layers: [], parameters: { count: 1, elements: 256, bytes: 1024 }, bytesIn: 512, bytesOut: 1024 },
      {
        stage: 1,
        layers: ['l1'],
        inputs: [
          { name: 'relu', from: 0 },
          { name: 'y', from: null },
        ],
      },
      { stage: 2, layers: ['l0'] },
      { stage: 3, layers: ['l2'] },
    ],
    skips: [
      { name: 'y', from: null, to: [1] },
      { name: 'mm', from: 0, to: [2] },
    ],
    ties: [{ name: 'shared', stages: [0, 1] }],
  });
  const out = join(folder, 'split.svg');
  expect(cli(`split ${file('split_mlp.pt2')} -f svg -o ${out} --width 800`)).toMatchObject({ code: 0, out: '' });
  const picture = readFileSync(out, 'utf8');
  expect(picture).toMatch(/^<svg xmlns="http:\/\/www.w3.org\/2000\/svg" width="800" viewBox="0 0 \d+ \d+"/);
  for (const text of ['split_mlp.pt2 in 4 stages', 'stage 3', 'l2', 'mm 512 B', 'tied: shared in stages 0, 1'])
    expect(picture).toContain(text);
});

test('parameters of several stages can be sent', () => {
  const { out } = cli(`split ${file('split_mlp.pt2')} --multi-use transmit`);
  expect(out).not.toContain('Parameters of several stages');
});

test('what cannot be done is said', () => {
  const model = file('mlp.pt2');
  for (const [line, message] of [
    [`${model} --stages 2 --at layers.1:end`, '--stages and --at exclude each other'],
    [`${model} --at layers.1`, '--at layers.1: write a module and beginning or end'],
    [`${model} --at layer.1:end`, "the graph has no module 'layer.1' (did you mean 'layers.1'?)"],
    [`${model} --stages 2 --size s0=8`, "there is no dynamic size 's0'; all sizes are fixed"],
    [`${model} --stages 2 --size s0`, 'Write a name and a number'],
    [`${model} --stages 99`, 'the model can be split into at most'],
    [`${model} --stages 0`, 'It must be a whole number of at least 1'],
    [`${model} --format dot`, 'Allowed choices are table, json, svg'],
  ] as const) {
    const { code, err } = cli(`split ${line}`);
    expect(err).toContain(message);
    expect(code).toBe(2);
  }
  expect(cli('split nothing.pt2')).toMatchObject({ code: 2 });
});

test('split says what to give where the model has no split points', () => {
  expect(cli(`split ${file('mlp.pt2')}`)).toEqual({
    code: 2,
    out: '',
    err: 'pipewright: no split points in the model; give --stages N or --at\n',
  });
});
