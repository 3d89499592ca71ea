// @ts-check
/**
 * @file A training step (forward, backward, AdamW), here and in Python on the same libtorch: `node bench/engine/train-step.mjs`.
 * Both sides take turns; medians of rounds. PIPEWRIGHT_PYTHON names an interpreter with torch (none: only our side).
 * --device cuda, --threads 1, --rounds 9, --cases mlp-tiny,gpt-large. On CUDA also the step captured as a graph.
 */
import { spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

/** @type {Record<string, { kind: 'mlp' | 'gpt', layers: number, width: number, batch: number, time: number, heads: number, steps: number }>} */
const cases = {
  'mlp-tiny': { kind: 'mlp', layers: 4, width: 64, batch: 8, time: 0, heads: 0, steps: 200 },
  'mlp-large': { kind: 'mlp', layers: 4, width: 1024, batch: 256, time: 0, heads: 0, steps: 5 },
  'gpt-tiny': { kind: 'gpt', layers: 2, width: 32, batch: 1, time: 16, heads: 4, steps: 50 },
  'gpt-small': { kind: 'gpt', layers: 4, width: 128, batch: 4, time: 32, heads: 4, steps: 20 },
  'gpt-large': { kind: 'gpt', layers: 4, width: 512, batch: 4, time: 128, heads: 8, steps: 2 },
};
const { values: flags } = parseArgs({
  options: {
    device: { type: 'string', default: 'cpu' },
    threads: { type: 'string', default: '1' },
    rounds: { type: 'string', default: '9' },
    cases: { type: 'string', default: Object.keys(cases).join(',') },
    serve: { type: 'boolean', default: false },
  },
});
process.env['OMP_NUM_THREADS'] = flags.threads; // before libtorch loads

if (flags.serve) await serve();
else await compare();

/** Our side: reads `case steps mode` per line, answers `ms loss peak`. */
async function serve() {
  const torch = await import('@pipewright/torch');
  const { nn, optim, randint, randn, scope } = torch;
  const device = flags.device;
  const vocabulary = 256;

  const { Block } = await import('../gpt-block.mjs');

  /** @param {string} name */
  function make(name) {
    const c = /** @type {NonNullable<typeof cases[string]>} */ (cases[name]);
    const layers = Array.from({ length: c.layers });
    const model =
      c.kind === 'mlp'
        ? new nn.Sequential(...layers.flatMap(() => [new nn.Linear(c.width, c.width), new nn.ReLU()]))
        : new nn.Sequential(
            new nn.Embedding(vocabulary, c.width),
            ...layers.map(() => new Block(c.width, c.heads)),
            new nn.LayerNorm(c.width),
            new nn.Linear(c.width, vocabulary, { bias: false }),
          );
    model.to({ device });
    const x =
      c.kind === 'mlp' ? randn([c.batch, c.width], { device }) : randint(0, vocabulary, [c.batch, c.time], { device });
    const y =
      c.kind === 'mlp' ? randn([c.batch, c.width], { device }) : randint(0, vocabulary, [c.batch, c.time], { device });
    const optimizer = new optim.AdamW(model.parameters(), { lr: 1e-4 });
    const step = () => {
      optimizer.zeroGrad();
      const loss = scope(() => {
        const out = /** @type {import('@pipewright/torch').Tensor} */ (model.forward(x));
        return c.kind === 'mlp'
          ? nn.functional.mseLoss(out, y)
          : nn.functional.crossEntropy(out.flatten(0, 1), y.flatten());
      });
      loss.backward();
      optimizer.step();
      return loss;
    };
    return step;
  }
  /** @type {Map<string, { eager: () => void, graph?: import('@pipewright/torch').cuda.CudaGraph }>} */
  const made = new Map();
  const wait = () => device === 'cuda' && torch.cuda.synchronize();
  for await (const line of createInterface({ input: process.stdin })) {
    const [name = '', steps, mode] = line.split(' ');
    let entry = made.get(name);
    if (entry === undefined) {
      const step = make(name);
      entry = { eager: () => scope(() => void step()) };
      for (let i = 0; i < 5; i++) entry.eager();
      made.set(name, entry);
    }
    if (mode === 'graph' && entry.graph === undefined) {
      entry.graph = new torch.cuda.CudaGraph();
      entry.graph.capture(entry.eager);
    }
    const run = mode === 'graph' ? () => entry.graph?.replay() : entry.eager;
    wait();
    const start = performance.now();
    const cpu = process.cpuUsage();
    for (let i = 0; i < Number(steps); i++) run();
    wait();
    const { user, system } = process.cpuUsage(cpu);
    const peak =
      device === 'cuda'
        ? torch.cuda.maxMemoryAllocated() / 2 ** 20
        : Number(/VmHWM:\s+(\d+)/.exec(readFileSync('/proc/self/status', 'utf8'))?.[1]) / 1024;
    console.log(`${(performance.now() - start) / Number(steps)} ${(user + system) / 1000 / Number(steps)} ${peak}`);
  }
}

/** @param {string} command @param {string[]} args */
function side(command, args) {
  const child = spawn(command, args, {
    stdio: ['pipe', 'pipe', 'inherit'],
    env: { ...process.env, OMP_NUM_THREADS: flags.threads },
  });
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  return {
    /** @param {string} request @returns {Promise<[wall: number, cpu: number, peak: number]>} */
    async ask(request) {
      child.stdin.write(`${request}\n`);
      const { value, done } = await lines.next();
      if (done) throw new Error(`${command} ended`);
      return /** @type {[number, number, number]} */ (String(value).split(' ').map(Number));
    },
    stop: () => child.stdin.end(),
  };
}

/** @param {number[]} values */
function median(values) {
  return [...values].sort((a, b) => a - b)[values.length >> 1] ?? Number.NaN;
}

async function compare() {
  const python = process.env['PIPEWRIGHT_PYTHON'];
  const script = fileURLToPath(new URL('../python/train_step.py', import.meta.url));
  console.log(
    `device ${flags.device}, ${flags.threads} thread(s); ms per step, median of ${flags.rounds} rounds; CPU time beside wall time`,
  );
  console.log(
    'case        | ours wall / cpu       | Python wall / cpu     | wall ratio | cpu ratio | peak MiB ours / Python | graph ms, ratio',
  );
  for (const name of flags.cases.split(',')) {
    const c = cases[name];
    if (c === undefined) throw new Error(`no case ${name}; there are ${Object.keys(cases).join(', ')}`);
    const ours = side(process.execPath, [
      fileURLToPath(import.meta.url),
      '--serve',
      '--device',
      flags.device,
      '--threads',
      flags.threads,
    ]);
    const theirs = python ? side(python, [script, flags.device, flags.threads, JSON.stringify(c)]) : null;
    /** @type {[number, number, number][]} */ const a = [];
    /** @type {[number, number, number][]} */ const b = [];
    /** @type {number[]} */ const graph = [];
    for (let i = 0; i < Number(flags.rounds); i++) {
      a.push(await ours.ask(`${name} ${c.steps} eager`));
      if (theirs) b.push(await theirs.ask(`${c.steps}`));
    }
    const memory = [a.at(-1)?.[2] ?? 0, b.at(-1)?.[2] ?? Number.NaN];
    if (flags.device === 'cuda')
      for (let i = 0; i < Number(flags.rounds); i++) graph.push((await ours.ask(`${name} ${c.steps} graph`))[0]);
    ours.stop();
    theirs?.stop();
    const [wall, cpu] = [0, 1].map((k) => [
      median(a.map((row) => /** @type {number} */ (row[k]))),
      median(b.map((row) => /** @type {number} */ (row[k]))),
    ]);
    const [w1, w2, c1, c2] = [wall?.[0] ?? 0, wall?.[1] ?? 0, cpu?.[0] ?? 0, cpu?.[1] ?? 0];
    const captured = graph.length > 0 ? `${median(graph).toFixed(3)}, ${(median(graph) / w2).toFixed(3)}` : '';
    console.log(
      `${name.padEnd(11)} | ${w1.toFixed(3).padStart(9)} / ${c1.toFixed(3).padStart(9)} | ${w2.toFixed(3).padStart(9)} / ${c2.toFixed(3).padStart(9)} | ${(w1 / w2).toFixed(2).padStart(10)} | ${(c1 / c2).toFixed(2).padStart(9)} | ${memory.map((m) => m.toFixed(0)).join(' / ')} (${((memory[0] ?? 0) / (memory[1] ?? 1)).toFixed(2)}) | ${captured}`,
    );
  }
}
