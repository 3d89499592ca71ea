// @ts-check
/**
 * @file What one small operator costs, here and in Python on the same libtorch: `node bench/engine/op-overhead.mjs`. CPU time of
 * the process, all threads (garbage collection too), both sides in turns, so that a busy machine changes little.
 * PIPEWRIGHT_PYTHON names an interpreter with torch (none: only our side). --rounds 20, --calls 5000, --size 8.
 * --device cuda takes wall time until the GPU has done all calls.
 */
import { spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

const { values: flags } = parseArgs({
  options: {
    rounds: { type: 'string', default: '20' },
    calls: { type: 'string', default: '5000' },
    size: { type: 'string', default: '8' },
    device: { type: 'string', default: 'cpu' },
  },
});
const rounds = Number(flags.rounds);
const calls = Number(flags.calls);
const size = Number(flags.size);
const perScope = 50;

process.env['OMP_NUM_THREADS'] = '1'; // before libtorch loads
const { add, cuda, layerNorm, linear, mul, randn, scope } = await import('@pipewright/torch');
const device = flags.device;

/** Nanoseconds of CPU time per call, with the scopes that free the results. @param {string} name @param {boolean} grad */
function ours(name, grad) {
  const x = randn(size, size, { requiresGrad: grad, device });
  const y = randn(size, size, { requiresGrad: grad, device });
  const b = randn(size, { requiresGrad: grad, device });
  const shape = [size];
  /** @type {Record<string, () => unknown>} */
  const bodies = {
    add: () => add(x, y),
    mul: () => mul(x, y),
    linear: () => linear(x, y, b),
    layer_norm: () => layerNorm(x, shape, b, b, 1e-5),
  };
  const body = /** @type {() => unknown} */ (bodies[name]);
  if (device === 'cuda') cuda.synchronize();
  const start = performance.now();
  const before = process.cpuUsage();
  for (let done = 0; done < calls; done += perScope) {
    scope(() => {
      for (let i = 0; i < perScope; i++) body();
    });
  }
  const { user, system } = process.cpuUsage(before);
  if (device === 'cuda') cuda.synchronize();
  const taken = device === 'cuda' ? ((performance.now() - start) * 1e6) / calls : ((user + system) * 1000) / calls;
  for (const each of [x, y, b]) each.dispose();
  return taken;
}

/** The Python side: answers one number per case. */
function startPython() {
  const python = process.env['PIPEWRIGHT_PYTHON'];
  if (!python) return null;
  const child = spawn(python, [fileURLToPath(new URL('../python/op_overhead.py', import.meta.url)), device], {
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  const next = async () => String((await lines.next()).value);
  return {
    version: next(),
    /** @param {string} name @param {boolean} grad */
    async time(name, grad) {
      child.stdin.write(`${name} ${size} ${grad ? 'grad' : 'plain'} ${calls}\n`);
      return Number(await next());
    },
    stop: () => child.stdin.end(),
  };
}

/** @param {number[]} values */
function middle(values) {
  return [...values].sort((a, b) => a - b)[values.length >> 1] ?? Number.NaN;
}

const python = startPython();
if (python === null) console.log('PIPEWRIGHT_PYTHON is not set: no comparison');
else console.log(`Python side: torch ${await python.version}`);

const cases = ['add', 'mul', 'linear', 'layer_norm'].flatMap((name) => [false, true].map((grad) => ({ name, grad })));
for (const { name, grad } of cases) for (let i = 0; i < 3; i++) ours(name, grad); // let V8 compile

console.log(
  `\n${size}x${size}, float32, CPU, 1 thread; ns of CPU time per call, least (median) of ${rounds} rounds of ${calls}\n`,
);
console.log('| operator | grad | here | Python | ratio of least | ratio of medians |');
console.log('| --- | --- | --- | --- | --- | --- |');
for (const { name, grad } of cases) {
  const here = [];
  const there = [];
  for (let round = 0; round < rounds; round++) {
    here.push(ours(name, grad));
    if (python !== null) there.push(await python.time(name, grad));
  }
  const [a, b] = [Math.min(...here), Math.min(...there)];
  const shown =
    python === null
      ? ['', '', '']
      : [
          `${b.toFixed(0)} (${middle(there).toFixed(0)})`,
          (a / b).toFixed(2),
          (middle(here) / middle(there)).toFixed(2),
        ];
  console.log(
    `| ${name} | ${grad ? 'yes' : 'no'} | ${a.toFixed(0)} (${middle(here).toFixed(0)}) | ${shown.join(' | ')} |`,
  );
}
python?.stop();
