// @ts-check
/**
 * @file Running a graph: against the same model as TypeScript modules (traced), and against PyTorch on the same model
 * (eager, or its own run of the export): `node bench/graph.mjs`. All sides take turns; the least of rounds counts. PIPEWRIGHT_PYTHON
 * names an interpreter with torch (none: only our sides). --threads 1, --rounds 15, --cases mlp-tiny,gpt2.
 */
import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

const model = (/** @type {string} */ name) => fileURLToPath(new URL(`../testdata/models/${name}.pt2`, import.meta.url));

/** @type {Record<string, { runs: number } & Record<string, unknown>>} */
const cases = {
  'mlp-tiny': { kind: 'mlp', layers: 4, width: 64, batch: 8, runs: 2000 },
  'mlp-deep': { kind: 'mlp', layers: 32, width: 32, batch: 4, runs: 400 },
  'gpt-tiny': { kind: 'gpt', layers: 2, width: 32, batch: 1, time: 16, heads: 4, runs: 400 },
  'gpt-small': { kind: 'gpt', layers: 4, width: 128, batch: 4, time: 32, heads: 4, runs: 50 },
  'mlp.pt2': { load: model('mlp'), shape: [8, 16], dtype: 'float32', runs: 1000 },
  'gpt2.pt2': { load: model('gpt2'), shape: [8, 12], dtype: 'int64', runs: 100 },
  'llama.pt2': { load: model('llama'), shape: [8, 12], dtype: 'int64', runs: 100 },
  'bert.pt2': { load: model('bert'), shape: [8, 12], dtype: 'int64', runs: 100 },
};
const { values: flags } = parseArgs({
  options: {
    threads: { type: 'string', default: '1' },
    rounds: { type: 'string', default: '15' },
    cases: { type: 'string', default: Object.keys(cases).join(',') },
  },
});
process.env['OMP_NUM_THREADS'] = flags.threads; // before libtorch loads

const torch = await import('@pipewright/torch');
const { GraphModule, loadPt2, traceModule } = await import('pipewright');
const { nn, noGrad, randint, randn, scope, zeros } = torch;
const vocabulary = 256;

const { Block } = await import('./gpt-block.mjs');

/** @param {any} c */
function build(c) {
  const layers = Array.from({ length: c.layers });
  if (c.kind === 'mlp') {
    const net = new nn.Sequential(...layers.flatMap(() => [new nn.Linear(c.width, c.width), new nn.ReLU()]));
    return { net, x: randn([c.batch, c.width]) };
  }
  const net = new nn.Sequential(
    new nn.Embedding(vocabulary, c.width),
    ...layers.map(() => new Block(c.width, c.heads)),
    new nn.LayerNorm(c.width),
    new nn.Linear(c.width, vocabulary, { bias: false }),
  );
  return { net, x: randint(0, vocabulary, [c.batch, c.time]) };
}

/**
 * Times one side of ours.
 * @param {{ forward: (x: any) => any, zeroGrad: () => void }} net @param {import('@pipewright/torch').Tensor} x
 */
function ours(net, x) {
  const forward = () => scope(() => void noGrad(() => net.forward(x)));
  const backward = () => {
    net.zeroGrad();
    scope(() => net.forward(x).square().mean().backward());
  };
  for (let i = 0; i < 50; i++) {
    forward();
    backward();
  }
  return async (/** @type {number} */ runs, /** @type {string} */ kind) => {
    const run = kind === 'forward' ? forward : backward;
    const [start, cpu] = [performance.now(), process.cpuUsage()];
    for (let i = 0; i < runs; i++) run();
    const { user, system } = process.cpuUsage(cpu);
    return [(performance.now() - start) / runs, (user + system) / 1000 / runs];
  };
}

/** @param {string} python @param {object} c */
async function theirs(python, c) {
  const script = fileURLToPath(new URL('python/graph.py', import.meta.url));
  const child = spawn(python, [script, flags.threads, JSON.stringify(c)], {
    stdio: ['pipe', 'pipe', 'ignore'],
    env: { ...process.env, OMP_NUM_THREADS: flags.threads },
  });
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  const next = async () => {
    const { value, done } = await lines.next();
    if (done) throw new Error('the Python side ended');
    return String(value);
  };
  await next();
  return {
    ask: async (/** @type {number} */ runs, /** @type {string} */ kind) => {
      child.stdin.write(`${runs} ${kind}\n`);
      return (await next()).split(' ').map(Number);
    },
    stop: () => child.stdin.end(),
  };
}

/** What other work on the machine disturbed least. @param {number[]} values */
const least = (values) => (values.length === 0 ? Number.NaN : Math.min(...values));

/** @param {number} a @param {number} b */
const ratio = (a, b) => (Number.isFinite(a / b) ? (a / b).toFixed(2) : '');

const python = process.env['PIPEWRIGHT_PYTHON'];
const folder = mkdtempSync(join(tmpdir(), 'pipewright-bench-'));
console.log(
  `${flags.threads} thread(s); ms of CPU time per run, least of ${flags.rounds} rounds; ratios of CPU (wall) time`,
);
console.log('| case | run | module | graph | .pt2 | Python | graph / module | graph / Python |');
console.log('| --- | --- | --: | --: | --: | --: | --: | --: |');
try {
  for (const name of flags.cases.split(',')) {
    const c = cases[name];
    if (c === undefined) throw new Error(`no case ${name}; there are ${Object.keys(cases).join(', ')}`);
    const save = join(folder, `${name}.pt2`);
    const their = python ? await theirs(python, c['load'] === undefined ? { ...c, save } : c) : null;
    /** @type {Record<string, (runs: number, kind: string) => Promise<number[]>>} */
    const sides = {};
    if (c['load'] === undefined) {
      const { net, x } = build(c);
      const { graph, state } = traceModule(net, [x]);
      sides['module'] = ours(/** @type {any} */ (net), x);
      sides['graph'] = ours(/** @type {any} */ (new GraphModule(graph, state)), x);
      if (their) sides['pt2'] = ours(/** @type {any} */ (loadPt2(save)), x);
    } else {
      const x = zeros(/** @type {number[]} */ (c['shape']), { dtype: /** @type {any} */ (c['dtype']) });
      sides['pt2'] = ours(/** @type {any} */ (loadPt2(String(c['load']))), x);
    }
    if (their) sides['python'] = their.ask;
    for (const kind of ['forward', 'backward']) {
      /** @type {Record<string, number[][]>} */
      const times = Object.fromEntries(Object.keys(sides).map((side) => [side, []]));
      for (let i = 0; i < Number(flags.rounds); i++)
        for (const [side, ask] of Object.entries(sides)) times[side]?.push(await ask(c.runs, kind));
      const [wall, cpu] = [0, 1].map(
        (k) => (/** @type {string} */ side) => least((times[side] ?? []).map((row) => /** @type {number} */ (row[k]))),
      );
      if (wall === undefined || cpu === undefined) continue;
      const best = times['graph'] === undefined ? 'pt2' : 'graph';
      const shown = ['module', 'graph', 'pt2', 'python'].map((side) =>
        Number.isFinite(cpu(side)) ? cpu(side).toFixed(4) : '',
      );
      const pairs = [
        [best, 'module'],
        ['pt2' in times ? 'pt2' : best, 'python'],
      ].map(([a = '', b = '']) =>
        ratio(cpu(a), cpu(b)) === '' ? '' : `${ratio(cpu(a), cpu(b))} (${ratio(wall(a), wall(b))})`,
      );
      console.log(`| ${name} | ${kind} | ${shown.join(' | ')} | ${pairs.join(' | ')} |`);
    }
    their?.stop();
  }
} finally {
  rmSync(folder, { recursive: true });
}
