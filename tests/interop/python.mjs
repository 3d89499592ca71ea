// @ts-check
/**
 * @file A Node rank and a Python rank in one gloo group, exchanging tensors both ways.
 *
 *   node tests/interop/python.mjs --python path/to/python    an interpreter that can import torch (or PIPEWRIGHT_PYTHON)
 *   node tests/interop/python.mjs --install DIR              makes a virtual environment in DIR, outside the project, with
 *                                                              the torch of our libtorch's version (about 5 GB), and uses it
 */
import { spawn, spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { freePort } from '@pipewright/torch/environment';

const root = fileURLToPath(new URL('../..', import.meta.url));
const { values } = parseArgs({
  options: { python: { type: 'string' }, install: { type: 'string' }, role: { type: 'string' } },
});

if (values.role === 'node') await nodeRank();
else process.exitCode = await parent();

async function parent() {
  const python = findPython();
  let failed = false;
  for (const nodeIs of [0, 1]) {
    const env = {
      ...process.env,
      WORLD_SIZE: '2',
      MASTER_ADDR: '127.0.0.1',
      MASTER_PORT: String(await freePort()),
    };
    const node = run('node', process.execPath, [fileURLToPath(import.meta.url), '--role', 'node'], {
      ...env,
      RANK: String(nodeIs),
    });
    const other = run('python', python, [join(root, 'tests/interop/python.py')], {
      ...env,
      RANK: String(1 - nodeIs),
    });
    const codes = await Promise.all([node, other]);
    const ok = codes.every((code) => code === 0);
    failed ||= !ok;
    console.log(`node is rank ${nodeIs}, python rank ${1 - nodeIs}: ${ok ? 'all exchanges agree' : 'FAILED'}`);
  }
  return failed ? 1 : 0;
}

/** The interpreter asked for, or a new environment with torch. */
function findPython() {
  if (values.install !== undefined) {
    const dir = resolve(values.install);
    if (dir.startsWith(resolve(root))) fail(`--install: ${dir} is inside the project; choose a folder outside it`);
    const python = join(dir, 'bin/python');
    if (!existsSync(python)) step('python3', ['-m', 'venv', dir]);
    step(python, ['-m', 'pip', 'install', `torch==${libtorchVersion()}`, 'numpy']);
    return python;
  }
  const python = values.python ?? process.env['PIPEWRIGHT_PYTHON'];
  if (python === undefined)
    fail('give an interpreter that can import torch with --python, or let --install DIR make one');
  const found = spawnSync(python, ['-c', 'import torch; print(torch.__version__)'], { encoding: 'utf8' });
  if (found.status !== 0) fail(`${python} cannot import torch: ${found.stderr.trim().split('\n').at(-1)}`);
  console.log(`python has torch ${found.stdout.trim()}, node libtorch ${libtorchVersion()}`);
  return python;
}

function libtorchVersion() {
  const script = `import('${new URL('../../packages/torch/dist/addon/addon.js', import.meta.url).href}').then((m) => console.log(m.native.torchVersion()))`;
  const found = spawnSync(process.execPath, ['-e', script], { encoding: 'utf8' });
  if (found.status !== 0)
    fail(`the addon does not load; run npm start once (${found.stderr.trim().split('\n').at(-1)})`);
  return found.stdout.trim().split('+')[0] ?? '';
}

/** One rank; its lines are printed with its name. Resolves to its exit code. */
function run(
  /** @type {string} */ name,
  /** @type {string} */ file,
  /** @type {string[]} */ args,
  /** @type {NodeJS.ProcessEnv} */ env,
) {
  return new Promise((done) => {
    const child = spawn(file, args, { env, stdio: ['ignore', 'pipe', 'pipe'] });
    for (const stream of [child.stdout, child.stderr]) {
      stream.on('data', (chunk) => process.stdout.write(String(chunk).replace(/^(?=.)/gm, `  ${name}: `)));
    }
    child.on('close', (code) => done(code));
  });
}

function step(/** @type {string} */ file, /** @type {string[]} */ args) {
  console.log(`$ ${[file, ...args].join(' ')}`);
  if (spawnSync(file, args, { stdio: 'inherit' }).status !== 0) fail(`${file} failed`);
}

/** @returns {never} */
function fail(/** @type {string} */ message) {
  console.error(`interop-python: ${message}`);
  process.exit(2);
}

/** What the Node rank does; tests/interop/python.py does the same in Python. */
async function nodeRank() {
  const torch = await import('@pipewright/torch');
  const { distributed, tensor, zeros } = torch;
  const group = distributed.initProcessGroup({ backend: 'gloo', timeoutMs: 60_000 });
  const { rank } = group;
  const peer = 1 - rank;
  /** @type {(what: string, got: unknown, wanted: unknown) => void} */
  const check = (what, got, wanted) => {
    if (JSON.stringify(got) !== JSON.stringify(wanted))
      throw new Error(`${what}: got ${JSON.stringify(got)}, wanted ${JSON.stringify(wanted)}`);
    console.log(`${what}: ok`);
  };
  for (const [i, dtype] of /** @type {const} */ ([
    'float32',
    'float64',
    'int64',
    'bool',
    'bfloat16',
    'uint8',
  ]).entries()) {
    const mine = tensor([
      [rank, 1, 2],
      [3, 4, 5 + rank],
    ]).to(dtype);
    const work = group.isend(mine, peer, { tag: i });
    const got = group.recv(zeros([2, 3], { dtype }), peer, { tag: i });
    work.wait();
    const wanted = tensor([
      [peer, 1, 2],
      [3, 4, 5 + peer],
    ]).to(dtype);
    check(`send and recv ${dtype}`, got.to('float32').toArray(), wanted.to('float32').toArray());
  }
  const turned = tensor(
    [
      [1, 2, 3],
      [4, 5, 6],
    ],
    { dtype: 'float32' },
  ).t();
  const turnedWork = group.isend(turned, peer, { tag: 50 });
  check('not contiguous', group.recv(zeros([3, 2]), peer, { tag: 50 }).toArray(), [
    [1, 4],
    [2, 5],
    [3, 6],
  ]);
  turnedWork.wait();
  const x = tensor([rank + 1, 10], { dtype: 'float32' });
  group.allReduce(x);
  check('allReduce sum', x.toArray(), [3, 20]);
  const m = tensor([rank, 5 - rank], { dtype: 'int64' });
  group.allReduce(m, { op: 'max' });
  check('allReduce max', m.toArray(), [1, 5]);
  const b = tensor([rank * 7, 1], { dtype: 'float64' });
  group.broadcast(b, 1);
  check('broadcast', b.toArray(), [7, 1]);
  check(
    'allGather',
    group.allGather(tensor([rank, rank * 2])).map((t) => t.toArray()),
    [
      [0, 0],
      [1, 2],
    ],
  );
  const scattered = group.reduceScatter([
    tensor([1 + rank], { dtype: 'float32' }),
    tensor([10 + rank], { dtype: 'float32' }),
  ]);
  check('reduceScatter', scattered.toArray(), [rank === 0 ? 3 : 21]);
  check(
    'allToAll',
    group.allToAll([tensor([rank * 10]), tensor([rank * 10 + 1])]).map((t) => t.toArray()),
    [[rank], [10 + rank]],
  );
  const big = torch.ones([1 << 20]).mul(rank + 1);
  group.allReduce(big);
  check('4 MB', big.sum().item(), 3 * (1 << 20));
  group.barrier();
  distributed.destroyProcessGroup();
}
