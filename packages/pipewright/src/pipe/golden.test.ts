/** @file Exported models split as PyTorch splits them, and where PyTorch cannot (Llama), as one would; the pipe computes the same. */
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { loadSafetensors, scope, type Tensor } from '@pipewright/torch';
import { describe, expect, test } from 'vitest';
import { type Dim, loadPt2, type Pipe, pipeline, SplitPoint, type SplitSpec, type ValueMeta } from '../index.ts';

const file = (name: string): string => fileURLToPath(new URL(`../../../../testdata/models/${name}`, import.meta.url));

interface ReportedStage {
  readonly params: readonly string[];
  readonly inputs: readonly (readonly [string, readonly number[]])[];
  readonly outputs: readonly (readonly number[])[];
}

interface Report {
  readonly num_stages?: number;
  readonly stages?: readonly ReportedStage[];
}

const report = JSON.parse(readFileSync(file('report.json'), 'utf8')) as Readonly<Record<string, Report>>;

const { BEGINNING, END } = SplitPoint;
const specs: Readonly<Record<string, SplitSpec>> = {
  mlp: { 'layers.2': BEGINNING, 'layers.5': END },
  mlp_dyn: { 'layers.2': BEGINNING, 'layers.5': END },
  gpt2: { 'm.transformer.h.1': BEGINNING, 'm.transformer.h.3': BEGINNING },
  gpt2_dyn: { 'm.transformer.h.1': BEGINNING, 'm.transformer.h.3': BEGINNING },
  bert: { 'm.encoder.layer.2': BEGINNING },
  llama: { 'm.model.layers.2': BEGINNING },
  llama_dyn: { 'm.model.layers.2': BEGINNING },
};

/** The report's batch is 8; exported with a free batch, that size is a symbol. */
const size = (dim: Dim): number => (typeof dim === 'number' ? dim : 8);
const shapeOf = (meta: ValueMeta): number[] => (meta !== null && 'shape' in meta ? meta.shape.map(size) : []);

function load(name: string): Pipe {
  const splitSpec = specs[name];
  return pipeline(loadPt2(file(`${name}.pt2`)), splitSpec === undefined ? {} : { splitSpec });
}

/** Outputs and gradients of the unsplit model, as PyTorch computed them, against those of the pipe. */
function expectGolden(pipe: Pipe, name: string): void {
  const stored = loadSafetensors(file(`${name}.safetensors`));
  const inputs = [...stored.keys()].filter((key) => key.startsWith('input.')).sort();
  scope(() => {
    const output = pipe.forward(...inputs.map((key) => stored.get(key))) as Tensor;
    const want = stored.get('output')!;
    expect(output.sub(want).abs().max().item()).toBeLessThan(1e-5 * (want.abs().max().item() + 1e-6));
    output.square().mean().backward();
    const sums = new Map<string, Tensor>();
    pipe.split.stages.forEach((_, stage) => {
      const names = new Map(
        pipe.replicatedParams.flatMap(({ name: first, stages }) =>
          (stages.get(stage) ?? []).map((local) => [local, first]),
        ),
      );
      for (const [local, parameter] of pipe.getStageModule(stage).namedParameters()) {
        const { grad } = parameter;
        const first = names.get(local) ?? local;
        const before = sums.get(first);
        if (grad !== null) sums.set(first, before === undefined ? grad : before.add(grad));
      }
    });
    const wanted = [...stored.keys()].filter((key) => key.startsWith('grad.'));
    const largest = Math.max(...wanted.map((key) => stored.get(key)!.abs().max().item()));
    for (const key of wanted) {
      const gradient = stored.get(key)!;
      const got = sums.get(key.slice(5));
      expect(got, key).toBeDefined();
      const scale = Math.max(gradient.abs().max().item(), largest / 100);
      expect(got!.sub(gradient).abs().max().item() / scale, key).toBeLessThan(1e-4);
    }
  });
}

describe.each(Object.keys(report).filter((name) => report[name]?.stages !== undefined))('%s', (name) => {
  const { stages = [], num_stages: count } = report[name] as Report;

  test('is split as PyTorch splits it', () => {
    const pipe = load(name);
    expect(pipe.numStages).toBe(count);
    stages.forEach((stage, i) => {
      const part = pipe.split.stages[i];
      expect(
        part?.inputs.map(({ name: input, meta }) => [input, shapeOf(meta)]),
        `inputs of stage ${i}`,
      ).toEqual(stage.inputs);
      expect(
        part?.outputs.map(({ meta }) => shapeOf(meta)),
        `outputs of stage ${i}`,
      ).toEqual(stage.outputs);
      const parameters = pipe.getStageModule(i).namedParameters({ removeDuplicate: false });
      expect(parameters.map(([parameter]) => parameter).sort(), `parameters of stage ${i}`).toEqual(stage.params);
    });
    expectGolden(pipe, name);
  });
});

describe.each(['llama', 'llama_dyn'])('%s, which PyTorch cannot split', (name) => {
  const inputs = (pipe: Pipe): string[][] =>
    pipe.split.stages.map((part) => part.inputs.map(({ name: input, meta }) => `${input} ${shapeOf(meta).join('x')}`));

  test('is split at the layer, the mask and the rotary tables going with it', () => {
    const pipe = load(name);
    expect(inputs(pipe)).toEqual([
      ['a_0 8x12'],
      ['add_14 8x12x32', 'to_4 1x12x8', 'to_5 1x12x8', 'expand_1 8x1x12x12'],
    ]);
    expectGolden(pipe, name);
  });

  test('4 stages of equal cost: the rotary tables are computed where they are used', () => {
    const pipe = pipeline(loadPt2(file(`${name}.pt2`)), { stages: 4 });
    expect(inputs(pipe)).toEqual([
      ['a_0 8x12'],
      ['add_8 8x12x32', 'expand_1 8x1x12x12'],
      ['add_14 8x12x32', 'expand_1 8x1x12x12'],
      ['add_20 8x12x32', 'expand_1 8x1x12x12'],
    ]);
    const layers = pipe.split.stages.map(({ attributes }) =>
      [...new Set(attributes.flatMap(({ target }) => /layers\.(\d+)/.exec(target)?.[1] ?? []))].join(' '),
    );
    expect(layers).toEqual(['0', '1', '2', '3']);
    expectGolden(pipe, name);
  });

  test('everything that can be computed again is, when asked', () => {
    const pipe = pipeline(loadPt2(file(`${name}.pt2`)), { splitSpec: specs[name], shared: 'recompute' });
    expect(inputs(pipe)[1]).toEqual(['add_14 8x12x32']);
    expectGolden(pipe, name);
  });
});
