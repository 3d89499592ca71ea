/**
 * @file Weights of Hugging Face: loaded per stage, with the logits that transformers computes, and written back as they were. The files
 * in testdata/transformers were written by tests/checkpoint/hugging_face.py; tests/checkpoint/hugging-face.mjs goes the whole way.
 */
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { loadSafetensors, nn, noGrad, scope, type Tensor } from '@pipewright/torch';
import { afterAll, describe, expect, test } from 'vitest';
import { Gpt2Stage, LlamaStage } from '../../../testing/checkpoint/language-models.mjs';
import { PipelineStage } from '../../stage/pipeline-stage.ts';
import { exportWeights } from '../convert.ts';
import { saveCheckpoint } from '../writing/save.ts';
import { saveWeights } from './save-weights.ts';
import { loadWeights } from './weights.ts';

const root = mkdtempSync(join(tmpdir(), 'pipewright-weights-'));
afterAll(() => rmSync(root, { recursive: true }));

const models = [
  ['gpt2', Gpt2Stage],
  ['llama', LlamaStage],
] as const;

function files(name: string): { place: string; config: object; ids: Tensor; logits: Tensor } {
  const place = fileURLToPath(new URL(`../../../../../testdata/transformers/${name}`, import.meta.url));
  const config = JSON.parse(readFileSync(join(place, 'config.json'), 'utf8')) as object;
  const golden = loadSafetensors(join(place, 'logits.safetensors'));
  return { place, config, ids: golden.get('ids')!, logits: golden.get('logits')! };
}

type Kind = typeof Gpt2Stage | typeof LlamaStage;

function stagesOf(Stage: Kind, config: object, cuts: readonly number[]): PipelineStage[] {
  return cuts.slice(1).map((end, i) => {
    const module = new Stage(config, { first: cuts[i] as number, end, layers: 4 });
    const hasTie = Stage === Gpt2Stage && cuts.length > 2 && (i === 0 || end === 4);
    const tied = i === 0 ? 'transformer.wte.weight' : 'lm_head.weight';
    return new PipelineStage(module, i, cuts.length - 1, hasTie ? { ties: { [tied]: 'words' } } : {});
  });
}

function run(stages: readonly PipelineStage[], ids: Tensor): Tensor {
  return noGrad(() => stages.reduce((x, { module }) => (module as nn.Sequential).forward(x), ids));
}

function difference(a: Tensor, b: Tensor): number {
  return a.sub(b).abs().max().item();
}

/** GPT-2's head has the name of the table of words in the files, which have it once. */
const rename = (name: string): string => (name === 'lm_head.weight' ? 'transformer.wte.weight' : name);

describe.each(models)('%s', (name, Stage) => {
  test.each([[[0, 4]], [[0, 2, 4]], [[0, 1, 2, 4]]])(
    'loads at stages %j with the logits of transformers, and is written back',
    (cuts) => {
      scope(() => {
        const { place, config, ids, logits } = files(name);
        const stages = stagesOf(Stage, config, cuts);
        const options = name === 'gpt2' ? { rename } : {};
        const loaded = stages.map((stage) => loadWeights(place, { stages: stage, ...options }));
        expect(difference(run(stages, ids), logits)).toBeLessThan(1e-5);
        // Each stage reads its own bytes and no others.
        const sizes = stages.map(({ module }) => module.parameters().reduce((sum, { nbytes }) => sum + nbytes, 0));
        expect(loaded.map(({ bytes }) => bytes)).toEqual(sizes);
        const written = mkdtempSync(join(root, 'written-'));
        saveWeights(written, { stages, files: { 'config.json': config } });
        const before = loadSafetensors(join(place, 'model.safetensors'));
        const after = new Map<string, Tensor>(
          readdirSync(written).flatMap((file) =>
            file.endsWith('.safetensors') ? [...loadSafetensors(join(written, file))] : [],
          ),
        );
        expect([...after.keys()].sort()).toEqual([...before.keys()].sort());
        for (const [key, tensor] of after) expect(tensor.equal(before.get(key)!), key).toBe(true);
      });
    },
  );

  test('a checkpoint is a folder that loads as weights, and so is its export', () => {
    scope(() => {
      const { place, config, ids, logits } = files(name);
      const stages = stagesOf(Stage, config, [0, 2, 4]);
      loadWeights(place, { stages, ...(name === 'gpt2' && { rename }) });
      const folder = mkdtempSync(join(root, 'checkpoint-'));
      const { path } = saveCheckpoint(folder, { stages, step: 1, files: { 'config.json': config } }).wait();
      const exported = join(folder, 'exported');
      exportWeights(folder, exported, { maxBytes: 20_000 });
      expect(readdirSync(exported).filter((file) => file.endsWith('.safetensors')).length).toBeGreaterThan(1);
      expect(readFileSync(join(exported, 'config.json'), 'utf8')).toBe(readFileSync(join(path, 'config.json'), 'utf8'));
      for (const other of [path, exported]) {
        const again = stagesOf(Stage, config, [0, 4]);
        loadWeights(other, { stages: again });
        expect(difference(run(again, ids), logits)).toBeLessThan(1e-5);
      }
    });
  });
});

test('other names, transposed weights and other types', () => {
  scope(() => {
    const folder = mkdtempSync(join(root, 'names-'));
    const first = new PipelineStage(new nn.Sequential(new nn.Linear(3, 2)), 0, 1);
    const transposed = (name: string): { name: string; transpose: boolean } => ({
      name: `model.${name}`,
      transpose: name.endsWith('weight'),
    });
    saveWeights(folder, { stages: first, rename: transposed });
    const second = new PipelineStage(new nn.Sequential(new nn.Linear(3, 2)).double(), 0, 1);
    expect(() => loadWeights(folder, { stages: second })).toThrow(
      "has no '0.weight' for '0.weight', and 1 more are missing; give { rename }",
    );
    expect(() => loadWeights(folder, { stages: second, rename: { '': 'model' } })).toThrow(
      "'0.weight' is [2, 3] here, 'model.0.weight'",
    );
    loadWeights(folder, { stages: second, rename: transposed });
    expect(second.module.getParameter('0.weight').toArray()).toEqual(
      first.module.getParameter('0.weight').double().toArray(),
    );
    expect(loadWeights(folder, { stages: second, strict: false }).missing).toEqual(['0.weight', '0.bias']);
    expect(loadWeights(folder, { stages: second, rename: () => null }).missing).toEqual([]);
  });
});
