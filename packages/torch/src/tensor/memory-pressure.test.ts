/** @file A loop without scopes: its tensors are freed while it runs, and the user is told once where. */
import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { Worker } from 'node:worker_threads';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { liveTensors, ones, Scope, scope } from '../index.ts';

describe('a plain training loop', () => {
  // Beside the sources, so that the package is found; not below src, where lines are ours.
  const folder = mkdtempSync(fileURLToPath(new URL('../../testing/memory-', import.meta.url)));
  const program = join(folder, 'train.mjs');
  const steps = 150; // of about 8 MB each: a gigabyte if nothing were freed

  beforeAll(() =>
    writeFileSync(
      program,
      `import { manualSeed, nn, optim, randn, scope } from '@pipewright/torch';
const [way, steps] = process.argv.slice(2);
manualSeed(1);
const model = new nn.Sequential(new nn.Linear(32, 32), new nn.ReLU(), new nn.Linear(32, 32), new nn.ReLU(), new nn.Linear(32, 32));
const optimizer = new optim.AdamW(model.parameters(), { lr: 1e-3 });
const x = randn([8192, 32]);
const y = randn([8192, 32]);
function step() {
  optimizer.zeroGrad();
  const loss = nn.functional.mseLoss(model.forward(x), y);
  loss.backward();
  optimizer.step();
  return loss.item();
}
let last = 0;
let peak = 0;
for (let i = 0; i < Number(steps); i++) {
  last = way === 'scoped' ? scope(step) : step();
  peak = Math.max(peak, process.memoryUsage().rss);
}
console.log(JSON.stringify({ last, peak: peak / 2 ** 20 }));
`,
    ),
  );
  afterAll(() => rmSync(folder, { recursive: true }));

  function train(way: 'scoped' | 'plain'): { last: number; peak: number; stderr: string } {
    const errors = join(folder, `${way}.err`);
    const out = execFileSync(
      '/bin/sh',
      ['-c', '"$0" "$1" "$2" "$3" 2> "$4"', process.execPath, program, way, String(steps), errors],
      { encoding: 'utf8', env: { ...process.env, NODE_OPTIONS: '', OMP_NUM_THREADS: '1' } },
    );
    return { ...(JSON.parse(out) as { last: number; peak: number }), stderr: readFileSync(errors, 'utf8') };
  }

  test('needs less than twice the memory of a scoped one, and warns once with its line', { timeout: 120_000 }, () => {
    const scoped = train('scoped');
    const plain = train('plain');
    expect(plain.last).toBe(scoped.last);
    expect(scoped.stderr).toBe('');
    expect(plain.peak).toBeLessThan(2 * scoped.peak);
    expect(plain.stderr.match(/MemoryWarning/g)).toHaveLength(1);
    expect(plain.stderr).toMatch(/PIPEWRIGHT_NO_SCOPE/);
    expect(plain.stderr).toMatch(/train\.mjs:\d+:\d+\. Put the step of a loop into scope/);
  });
});

test('tensors without an owner are freed inside a synchronous loop', () => {
  const before = liveTensors();
  for (let i = 0; i < 400; i++) ones([1 << 18]); // 400 MB
  expect(liveTensors() - before).toBeLessThan(200);
});

test('what is in use stays', () => {
  const kept = Array.from({ length: 200 }, (_, i) => ones([1 << 17]).mul(i));
  for (let i = 0; i < 300; i++) ones([1 << 18]);
  for (const [i, tensor] of kept.entries()) expect(tensor.at(5).item()).toBe(i);
  for (const tensor of kept) tensor.dispose();
});

test('a scope that is given a tensor frees it, and the collector leaves its handle alone', () => {
  const free = ones([4]);
  const inner = new Scope();
  inner.add(free);
  inner.close();
  expect(free.isDisposed).toBe(true);
  const others = scope(() => Array.from({ length: 50 }, () => ones([4])));
  for (let i = 0; i < 300; i++) ones([1 << 18]);
  for (const tensor of others) expect(tensor.sum().item()).toBe(4);
});

test('threads that look for the collector at the same time all find it', async () => {
  const module = new URL('../../dist/tensor/memory-pressure.js', import.meta.url).href;
  const source = `import(${JSON.stringify(module)}).then(({ findCollect }) => {
    for (let i = 0; i < 300; i++) findCollect()({ type: 'minor' });
  });`;
  const codes = Array.from(
    { length: 4 },
    () =>
      new Promise<number>((resolve, reject) => {
        const worker = new Worker(source, { eval: true });
        worker.once('error', reject);
        worker.once('exit', resolve);
      }),
  );
  expect(await Promise.all(codes)).toEqual([0, 0, 0, 0]);
}, 120_000);
