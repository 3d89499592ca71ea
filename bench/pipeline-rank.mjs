// @ts-check
/** @file One rank of bench/pipeline.mjs: a GPT in stages under a schedule, timed step by step. */
import { openSync, readFileSync, readSync, writeSync } from 'node:fs';
import { buildSchedule, findSchedule } from '@pipewright/schedule';
import { cuda, distributed, nn, optim, scope, tensor } from '@pipewright/torch';
import { PipelineRuntime, PipelineStage } from 'pipewright';
import { Block } from './gpt-block.mjs';

/** @typedef {import('@pipewright/torch').Tensor} Tensor */

/**
 * @typedef {object} Setting
 * @property {string} schedule
 * @property {string} device
 * @property {string} dtype
 * @property {number} ranks
 * @property {number} stagesPerRank
 * @property {number} layers
 * @property {number} dim
 * @property {number} heads
 * @property {number} seq
 * @property {number} vocab
 * @property {number} microbatchSize
 * @property {number} microbatches
 * @property {number} steps
 * @property {number} warmup
 * @property {boolean} [capture]
 * @property {boolean} [earlyGradients]
 * @property {{ pipe: string, burst: number }} [pace] a byte from a named pipe starts so many steps; each writes a line with its time
 */

/** Layers `from` to `to` of the model; the first part embeds, the last has the head. */
export class Part extends nn.Module {
  /** @param {Setting} setting @param {number} from @param {number} to */
  constructor({ dim, heads, seq, vocab, layers }, from, to) {
    super();
    this.emb = from === 0 ? new nn.Embedding(vocab, dim) : null;
    this.pos = from === 0 ? new nn.Parameter(tensor(new Float32Array(seq * dim)).reshape([seq, dim])) : null;
    this.blocks = new nn.ModuleList(Array.from({ length: to - from }, () => new Block(dim, heads)));
    this.ln = to === layers ? new nn.LayerNorm(dim) : null;
    this.head = to === layers ? new nn.Linear(dim, vocab, { bias: false }) : null;
  }

  /** @param {Tensor} input */
  forward(input) {
    let x = this.emb === null || this.pos === null ? input : this.emb.forward(input).add(this.pos);
    for (const block of this.blocks) x = /** @type {Block} */ (block).forward(x);
    return this.head === null || this.ln === null ? x : this.head.forward(this.ln.forward(x));
  }
}

/** @param {Tensor} output @param {Tensor} target */
export const lossFn = (output, target) => nn.functional.crossEntropy(output.flatten(0, 1), target.flatten());

/** Token numbers and the same ones shifted, for all microbatches. @param {Setting} setting @returns {[Tensor, Tensor]} */
export function batch({ microbatchSize, microbatches, seq, vocab, device }) {
  const rows = microbatchSize * microbatches;
  let state = 12345;
  const ids = Array.from({ length: rows * (seq + 1) }, () => {
    state = (Math.imul(state, 1103515245) + 12345) >>> 0;
    return (state >>> 8) % vocab;
  });
  const all = tensor(ids, { dtype: 'int64' }).reshape([rows, seq + 1]);
  const take = (/** @type {number} */ from) =>
    all
      .narrow(1, from, seq)
      .contiguous()
      .to({ device: /** @type {any} */ (device) });
  return [take(0), take(1)];
}

/** @param {Setting} setting */
export function main(setting) {
  const { ranks, stagesPerRank, layers, device, dtype, schedule, microbatches, steps, warmup } = setting;
  const group = ranks > 1 ? distributed.initProcessGroup() : undefined;
  const rank = group?.rank ?? 0;
  const plan = buildSchedule(schedule, { ranks, stagesPerRank, microbatches });
  const [count, mine] = [plan.stages, plan.stagesOf(rank)];
  const cut = (/** @type {number} */ i) => Math.floor((layers * i) / count);
  const parts = mine.map((s) => {
    const part = new Part(setting, cut(s), cut(s + 1));
    part.to({ device: /** @type {any} */ (device), dtype: /** @type {any} */ (dtype) });
    return part;
  });
  const stages = parts.map((part, i) => new PipelineStage(part, /** @type {number} */ (mine[i]), count, { group }));
  const runtime = new PipelineRuntime(stages, findSchedule(schedule).name, {
    microbatches,
    lossFn,
    ...(setting.capture ? { capture: true } : {}),
    earlyGradients: setting.earlyGradients,
  });
  const optimizer = new optim.AdamW(
    parts.flatMap((part) => part.parameters()),
    { lr: 1e-4 },
  );
  const [x, y] = batch(setting);
  /** @type {number[]} */
  const times = [];
  /** Until everything of a step is started. @type {number[]} */
  const hostMs = [];
  let cpu = process.cpuUsage();
  let loss = 0;
  const pace = setting.pace === undefined || rank > 0 ? undefined : openSync(setting.pace.pipe, 'r');
  for (let step = 0; step < warmup + steps; step++) {
    if (pace !== undefined && step % (setting.pace?.burst ?? 1) === 0 && readSync(pace, new Uint8Array(1)) === 0)
      throw new Error('whoever gave the turns has ended');
    group?.barrier();
    if (step === warmup) cpu = process.cpuUsage();
    const start = performance.now();
    scope(() => {
      optimizer.zeroGrad();
      /** @type {Tensor[]} */
      const losses = [];
      runtime.step(x, { target: y, losses, returnOutputs: false });
      optimizer.step();
      if (step >= warmup) hostMs.push(performance.now() - start);
      if (device === 'cuda') cuda.synchronize();
      group?.barrier();
      const ms = performance.now() - start;
      if (step >= warmup) times.push(ms);
      if (pace !== undefined) writeSync(1, `${JSON.stringify({ ms })}\n`);
      loss = losses.at(-1)?.item() ?? 0;
    });
  }
  const { user, system } = process.cpuUsage(cpu); // of all threads: the whole pipeline's
  const peakMiB =
    device === 'cuda'
      ? cuda.maxMemoryAllocated() / 2 ** 20
      : Number(/VmHWM:\s+(\d+)/.exec(readFileSync('/proc/self/status', 'utf8'))?.[1]) / 1024;
  return { times, hostMs, cpuMs: (user + system) / 1000 / steps, loss, peakMiB, why: runtime.captureProblem ?? null };
}
