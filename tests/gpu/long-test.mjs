// @ts-check
/**
 * @file Many steps on two GPU ranks with a batch size that changes every 50 steps: the memory of the GPU and of the host must stay
 * what it was. `node tests/gpu/long-test.mjs --steps 2000`, captured with `--capture`.
 */
import { spawn } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { cuda, distributed, nn, optim, randn, scope } from '@pipewright/torch';
import { PipelineRuntime, PipelineStage } from 'pipewright';
import { rankEnvironment } from './rank-environment.mjs';

const RANKS = 2;
const WIDTH = 256;
const { values: flags } = parseArgs({
  options: {
    rank: { type: 'string' },
    steps: { type: 'string', default: '2000' },
    capture: { type: 'boolean', default: false },
  },
});

/** @param {number} steps */
function main(steps) {
  const group = distributed.initProcessGroup({ timeoutMs: 30_000 });
  const { rank } = group;
  const module = new nn.Sequential(new nn.Linear(WIDTH, WIDTH), new nn.GELU(), new nn.Linear(WIDTH, WIDTH)).to({
    device: 'cuda',
  });
  const runtime = new PipelineRuntime(new PipelineStage(module, rank, RANKS, { group }), '1F1B', {
    microbatches: 4,
    lossFn: (/** @type {any} */ output) => output.square().mean(),
    capture: flags.capture,
  });
  const optimizer = new optim.SGD(module.parameters(), { lr: 0.01 });
  /** @type {number[][]} */
  const seen = [];
  for (let i = 0; i < steps; i++) {
    scope(() => {
      const rows = 32 * (1 + (Math.floor(i / 50) % 4));
      optimizer.zeroGrad();
      runtime.step(...(rank === 0 ? [randn([rows, WIDTH], { device: 'cuda' })] : []), { returnOutputs: false });
      optimizer.step();
    });
    if (i % 200 === 199) {
      cuda.synchronize();
      seen.push([cuda.memoryAllocated(), cuda.memoryReserved(), process.memoryUsage().rss].map((b) => b / 2 ** 20));
    }
  }
  distributed.destroyProcessGroup();
  // From the second sample on: the first has all sizes behind it.
  const [first, last] = [seen[1], seen.at(-1)];
  const grown = (last ?? []).map((value, i) => value - (first?.[i] ?? 0));
  const problem = flags.capture ? runtime.captureProblem : null;
  const ok = (grown[0] ?? 1) < 1 && (grown[1] ?? 1) < 1 && (grown[2] ?? 99) < 48 && problem === null;
  console.log(
    `${ok ? 'PASS' : 'FAIL'} rank ${rank}: ${steps} steps; GPU memory in use grew by ${grown[0]?.toFixed(2)} MiB, reserved by ${grown[1]?.toFixed(2)}, the host's by ${grown[2]?.toFixed(1)}${problem === null ? '' : `; not captured: ${problem}`}`,
  );
  process.exitCode = ok ? 0 : 1;
}

if (flags.rank !== undefined) main(Number(flags.steps));
else {
  const port = await distributed.freePort();
  const codes = await Promise.all(
    Array.from({ length: RANKS }, (_, rank) => {
      const own = flags.capture ? ['--capture'] : [];
      const args = [fileURLToPath(import.meta.url), '--rank', String(rank), '--steps', flags.steps, ...own];
      const child = spawn(process.execPath, args, {
        stdio: 'inherit',
        env: { ...process.env, ...rankEnvironment(rank, RANKS, port) },
      });
      return new Promise((resolve) => child.on('close', resolve));
    }),
  );
  process.exitCode = codes.every((code) => code === 0) ? 0 : 1;
}
