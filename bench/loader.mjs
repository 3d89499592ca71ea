// @ts-check
// What a loader costs: two thread ranks train the medium GPT of example 02 in two stages on tokens of a mapped file; the time that
// a step waits for its batch, as a share of the step. With 0 workers that is all of the reading, with 1 only what was not ready.
//
// Run: node bench/loader.mjs          (after npm run build; examples/dist has the model)
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { isMainThread } from 'node:worker_threads';
import { distributed, nn, optim, scope } from '@pipewright/torch';
import { DataLoader, PipelineRuntime, PipelineStage, TokenDataset, writeTokens } from 'pipewright';
import { GptStage } from '../examples/dist/02-train-gpt-pipeline/gpt-stage.js';

const [BATCH, CONTEXT, STEPS, WARM] = [16, 64, 12, 3];
const config = { vocabulary: 64, context: CONTEXT, layers: 8, heads: 8, width: 256, dropout: 0.1 };

/** @param {{ path: string, workers: number }} given */
export function main({ path, workers }) {
  const { rank, size } = distributed.initProcessGroup();
  const random = new nn.NamedRandom({ seed: 1 });
  const module = random.initialize(new GptStage(config, rank, size));
  const runtime = new PipelineRuntime(new PipelineStage(module, rank, size), '1F1B', {
    microbatches: 8,
    random,
    /** @type {(logits: import('@pipewright/torch').Tensor, targets: import('@pipewright/torch').Tensor) => any} */
    lossFn: (logits, targets) => nn.functional.crossEntropy(logits.flatten(0, 1), targets.flatten()),
  });
  const optimizer = new optim.AdamW(module.parameters(), { lr: 1e-3 });
  const data = new TokenDataset(path, { length: CONTEXT });
  const loader = new DataLoader(data, {
    batchSize: BATCH,
    shuffle: true,
    seed: 1,
    fillLast: true,
    numWorkers: workers,
  });
  let [reading, all] = [0, 0];
  for (let step = 0; step < STEPS + WARM; step++)
    scope(() => {
      const begin = performance.now();
      const [inputs, targets] = /** @type {[any, any]} */ (loader.nextBatch());
      const read = performance.now();
      optimizer.zeroGrad();
      runtime.step(inputs, { target: targets, returnOutputs: false });
      optimizer.step();
      if (step < WARM) return;
      reading += read - begin;
      all += performance.now() - begin;
    });
  loader.dispose();
  runtime.dispose();
  return { reading: reading / STEPS, step: all / STEPS };
}

if (isMainThread) {
  const folder = mkdtempSync(join(tmpdir(), 'loader-'));
  const path = join(folder, 'tokens.bin');
  writeTokens(path, [Uint16Array.from({ length: 2_000_000 }, (_, i) => (i * 7919) % 64)]);
  try {
    for (const workers of [0, 1]) {
      const results = await distributed.spawnThreads(2, new URL(import.meta.url), { path, workers }).done;
      /** @type {{ reading: number, step: number }[]} */ (results).forEach(({ reading, step }, rank) =>
        console.log(
          `${workers} workers, rank ${rank}: ${reading.toFixed(3)} ms of a step of ${step.toFixed(1)} ms, ${((100 * reading) / step).toFixed(2)}%`,
        ),
      );
    }
  } finally {
    rmSync(folder, { recursive: true });
  }
}
