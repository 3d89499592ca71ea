// @ts-check
/**
 * @file Checkpoints of one rank with a state of 1 GB: what a step waits for, how fast files are written and read, beside the plain
 * speed of the disk and torch.distributed.checkpoint, in turns in one run. Like is compared with like: each of the three writes into
 * an empty folder (what it wrote before is removed first, outside of the time, because pages that were just freed are quicker to get
 * than others), each has its files on the disk when its time ends (fsync; the default of torch.distributed.checkpoint too), and each
 * reads into tensors that are there already. Files are read from the memory of the system; with --cold from the disk. Our load also
 * compares all bytes with their hashes, theirs does not.
 *
 *   node bench/checkpoint.mjs [--python path/to/python] [--layers 80] [--rounds 5] [--folder DIR] [--cold]
 */
import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, fsyncSync, mkdtempSync, openSync, readdirSync, readSync, rmSync, writeSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { distributed, empty, nn, noGrad, optim, randnLike, scope } from '@pipewright/torch';
import { loadCheckpoint, PipelineStage, saveCheckpoint } from 'pipewright';

const { values } = parseArgs({
  options: {
    python: { type: 'string' },
    layers: { type: 'string', default: '80' },
    rounds: { type: 'string', default: '5' },
    folder: { type: 'string', default: tmpdir() },
    cold: { type: 'boolean', default: false },
  },
});
const layers = Number(values.layers);
const rounds = Number(values.rounds);
const root = mkdtempSync(join(values.folder, 'pipewright-bench-'));
distributed.setNumThreads(1);

const model = new nn.Sequential(...Array.from({ length: layers }, () => new nn.Linear(1024, 1024, { bias: false })));
const stage = new PipelineStage(model, 0, 1);
const optimizer = new optim.AdamW(model.parameters(), { lr: 1e-3 });
scope(() => {
  for (const parameter of model.parameters()) parameter.grad = randnLike(parameter.detach());
  optimizer.step();
  optimizer.zeroGrad();
});
const state = { stages: stage, optimizer };
const tensors = scope(() => [
  ...model.parameters().map((parameter) => parameter.detach()),
  ...model.parameters().flatMap((parameter) => Object.values(optimizer.stateOf(parameter))),
]).map((tensor) => tensor);
const bytes = tensors.reduce((sum, { nbytes }) => sum + nbytes, 0);
const copies = tensors.map((tensor) => empty(tensor.shape, { dtype: tensor.dtype }));

/** @param {() => unknown} body */
function seconds(body) {
  const start = performance.now();
  body();
  return (performance.now() - start) / 1000;
}

const block = Buffer.alloc(8 << 20, 7);
const plainFile = join(root, 'plain');

function plainWrite() {
  const file = openSync(plainFile, 'w');
  for (let at = 0; at < bytes; at += block.length) writeSync(file, block, 0, Math.min(block.length, bytes - at));
  fsyncSync(file);
  closeSync(file);
}

const target = Buffer.alloc(bytes, 1);

/** Lets the system forget what it has in memory of the files below a path, where --cold says so (GNU dd). @param {string} path */
function forget(path) {
  if (!values.cold) return;
  for (const entry of readdirSync(path, { recursive: true, withFileTypes: true }))
    if (entry.isFile())
      execFileSync('dd', [`if=${join(entry.parentPath, entry.name)}`, 'iflag=nocache', 'count=0', 'status=none']);
}

/** @param {string} path */
const remove = (path) => rmSync(path, { recursive: true, force: true });

function plainRead() {
  const file = openSync(plainFile, 'r');
  for (let at = 0; at < bytes; ) {
    const read = readSync(file, target, at, Math.min(block.length, bytes - at), at);
    if (read === 0) break;
    at += read;
  }
  closeSync(file);
}

/** The other side, where there is one: it does what it is told and answers with the time. */
async function startPython() {
  if (values.python === undefined) return null;
  const script = fileURLToPath(new URL('./python/checkpoint.py', import.meta.url));
  const child = spawn(values.python, [script, join(root, 'dcp'), String(layers), '1'], {
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  await lines.next();
  return {
    /** @param {string} word */
    async ask(word) {
      child.stdin.write(`${word}\n`);
      return Number(JSON.parse((await lines.next()).value ?? '{}').seconds);
    },
    async end() {
      child.stdin.end();
      await once(child, 'exit');
    },
  };
}

/** @type {Record<string, number[]>} */
const times = {};
/** @param {string} name @param {number} value */
const note = (name, value) => (times[name] ??= []).push(value);
/** @param {string} name */
const median = (name) =>
  [...(times[name] ?? [])].sort((a, b) => a - b)[Math.floor((times[name] ?? []).length / 2)] ?? Number.NaN;

try {
  const python = await startPython();
  let first = 0;
  for (let round = 0; round <= rounds; round++) {
    const copy = seconds(() => noGrad(() => copies.forEach((to, i) => to.copy_(/** @type {any} */ (tensors[i])))));
    remove(join(root, 'ours'));
    const save = saveCheckpoint(join(root, 'ours'), { ...state, step: round, keep: 1 });
    save.wait();
    forget(root);
    const load = seconds(() => loadCheckpoint(join(root, 'ours'), state));
    remove(plainFile);
    const write = seconds(plainWrite);
    forget(root);
    const read = seconds(plainRead);
    const theirSave = python === null ? 0 : await python.ask('save'); // which removes what is there before its time begins
    forget(root);
    const theirLoad = python === null ? 0 : await python.ask('load');
    if (round === 0) {
      first = save.stallMs / 1000;
      continue; // new memory, empty caches
    }
    note('copy', copy);
    note('stall', save.stallMs / 1000);
    note('write', (save.times?.writeMs ?? 0) / 1000);
    note('save', (save.times?.totalMs ?? 0) / 1000);
    note('load', load);
    note('plain write', write);
    note('plain read', read);
    note('dcp save', theirSave);
    note('dcp load', theirLoad);
  }
  await python?.end();
  const gb = bytes / 1e9;
  const rate = (/** @type {string} */ name) => `${(gb / median(name)).toFixed(2)} GB/s`;
  console.log(
    `${gb.toFixed(2)} GB in ${tensors.length} tensors, medians of ${rounds} rounds, read from ${values.cold ? 'the disk' : 'memory'}`,
  );
  console.log(
    `stall of a step        ${(median('stall') * 1000).toFixed(0)} ms; copying the bytes ${(median('copy') * 1000).toFixed(0)} ms: ${(median('stall') / median('copy')).toFixed(2)} (first save, new memory: ${(first * 1000).toFixed(0)} ms)`,
  );
  console.log(
    `saved                  ${rate('save')}; plain write and sync ${rate('plain write')}: ${(median('plain write') / median('save')).toFixed(2)}`,
  );
  console.log(
    `loaded                 ${rate('load')}; plain read ${rate('plain read')}: ${(median('plain read') / median('load')).toFixed(2)}`,
  );
  if (python !== null) {
    const ours = median('stall') + median('save');
    console.log(
      `save against DCP       ${ours.toFixed(2)} s (copy and writing) : ${median('dcp save').toFixed(2)} s: ${(ours / median('dcp save')).toFixed(2)}`,
    );
    console.log(
      `load against DCP       ${median('load').toFixed(2)} s : ${median('dcp load').toFixed(2)} s: ${(median('load') / median('dcp load')).toFixed(2)}`,
    );
  }
} finally {
  rmSync(root, { recursive: true, force: true });
}
