// @ts-check
/**
 * @file Weights there and back with Python: models of transformers are loaded here per stage, saved as checkpoints, exports and plain
 * weights, and loaded there again with from_pretrained and safetensors; logits are compared.
 *
 *   node tests/checkpoint/hugging-face.mjs --python path/to/python    an interpreter that can import transformers and safetensors
 */
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { loadSafetensors, noGrad, optim, scope } from '@pipewright/torch';
import { exportWeights, loadWeights, PipelineStage, saveCheckpoint, saveWeights } from 'pipewright';
import { Gpt2Stage, LlamaStage } from '../../packages/pipewright/testing/checkpoint/language-models.mjs';

const { values } = parseArgs({ options: { python: { type: 'string', default: 'python3' } } });
const script = fileURLToPath(new URL('./hugging_face.py', import.meta.url));
const root = mkdtempSync(join(tmpdir(), 'pipewright-hugging-face-'));

/** @param {string} what */
function python(what) {
  const { status } = spawnSync(values.python, [script, what, root], {
    stdio: 'inherit',
    env: { ...process.env, HF_HUB_OFFLINE: '1', TRANSFORMERS_VERBOSITY: 'error' },
  });
  if (status !== 0) throw new Error(`${what} failed in Python`);
}

try {
  python('make');
  /** @type {Record<string, string[]>} */
  const folders = {};
  for (const [name, Stage] of /** @type {const} */ ([
    ['gpt2', Gpt2Stage],
    ['llama', LlamaStage],
  ]))
    scope(() => {
      const place = join(root, name);
      const config = JSON.parse(readFileSync(join(place, 'config.json'), 'utf8'));
      const cuts = /** @type {const} */ ([
        [0, 1],
        [1, 3],
        [3, 4],
      ]);
      const stages = cuts.map(([first, end], i) => {
        const tied = { 0: 'transformer.wte.weight', 2: 'lm_head.weight' }[i];
        const ties = name === 'gpt2' && tied !== undefined ? { [tied]: 'words' } : {};
        return new PipelineStage(new Stage(config, { first, end, layers: 4 }), i, 3, { ties });
      });
      loadWeights(place, {
        stages,
        rename: (key) => (name === 'gpt2' && key === 'lm_head.weight' ? 'transformer.wte.weight' : key),
      });
      const golden = loadSafetensors(join(place, 'logits.safetensors'));
      /** @type {any} */
      let x = golden.get('ids');
      noGrad(() => {
        for (const { module } of stages) x = /** @type {any} */ (module).forward(x);
      });
      const difference = x.sub(golden.get('logits')).abs().max().item();
      console.log(`${name}: loaded here in 3 stages, logits differ by ${difference.toExponential(2)}`);
      if (!(difference < 1e-5)) throw new Error('logits differ');
      const files = { 'config.json': config };
      const optimizer = new optim.AdamW(
        stages.flatMap(({ module }) => module.parameters()),
        { lr: 1e-3 },
      );
      const { path } = saveCheckpoint(join(root, `${name}-run`), { stages, optimizer, step: 1, files }).wait();
      exportWeights(join(root, `${name}-run`), join(root, `${name}-exported`), { maxBytes: 20_000 });
      saveWeights(join(root, `${name}-weights`), { stages, files });
      folders[name] = [path, join(root, `${name}-exported`), join(root, `${name}-weights`)];
    });
  writeFileSync(join(root, 'folders.json'), JSON.stringify(folders));
  python('compare');
} finally {
  rmSync(root, { recursive: true });
}
