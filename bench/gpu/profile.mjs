// @ts-check
/**
 * @file What two GPU ranks do in one large step: kernels and messages by the profiler, as a picture.
 * `node bench/gpu/profile.mjs --out FOLDER` writes a trace of each rank and `gpu-step.svg`; `--draw FOLDER` draws it again. With
 * more ranks than GPUs start MPS first. It prints how much of the time of messages computing went on.
 */
import { spawn } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { gunzipSync } from 'node:zlib';
import { buildSchedule } from '@pipewright/schedule';
import { distributed, optim, profile, scope } from '@pipewright/torch';
import { PipelineRuntime, PipelineStage } from 'pipewright';
import { rankEnvironment } from '../../tests/gpu/rank-environment.mjs';
import { batch, lossFn, Part } from '../pipeline-rank.mjs';

/** @typedef {[start: number, end: number]} Span in milliseconds */
/** @typedef {{ computing: Span[], messages: Span[][] }} RankSpans */

const RANKS = 2;
const size = { layers: 8, dim: 2048, heads: 16, seq: 1024, vocab: 32000, microbatchSize: 4, microbatches: 8 };
const setting = {
  ...size,
  ...{ device: 'cuda', dtype: 'bfloat16', ranks: RANKS, schedule: '1F1B', stagesPerRank: 1, steps: 1, warmup: 4 },
};

/** @param {string} folder */
function main(folder) {
  const group = distributed.initProcessGroup();
  const { rank } = group;
  const plan = buildSchedule('1F1B', { ranks: RANKS, microbatches: size.microbatches });
  const half = size.layers / RANKS;
  const part = new Part(setting, rank * half, (rank + 1) * half);
  part.to({ device: 'cuda', dtype: 'bfloat16' });
  const runtime = new PipelineRuntime(new PipelineStage(part, rank, RANKS, { group }), plan, { lossFn });
  const optimizer = new optim.AdamW(part.parameters(), { lr: 1e-4 });
  const [x, y] = batch(setting);
  const step = () =>
    scope(() => {
      optimizer.zeroGrad();
      runtime.step(x, { target: y, returnOutputs: false });
      optimizer.step();
    });
  for (let i = 0; i < setting.warmup; i++) step();
  group.barrier();
  profile(join(folder, `rank${rank}.json.gz`), () => {
    group.barrier();
    step();
  });
  distributed.destroyProcessGroup();
}

/** Spans that touch or nearly do are one. @param {Span[]} spans @param {number} gap @returns {Span[]} */
function merged(spans, gap) {
  /** @type {Span[]} */
  const found = [];
  for (const [start, end] of spans.toSorted((a, b) => a[0] - b[0])) {
    const last = found.at(-1);
    if (last !== undefined && start <= last[1] + gap) last[1] = Math.max(last[1], end);
    else found.push([start, end]);
  }
  return found;
}

/** Milliseconds of the first spans that lie in the second ones. @param {Span[]} spans @param {Span[]} within */
function shared(spans, within) {
  let sum = 0;
  for (const [start, end] of spans)
    for (const [from, to] of within) sum += Math.max(0, Math.min(end, to) - Math.max(start, from));
  return sum;
}

const total = (/** @type {Span[]} */ spans) => spans.reduce((sum, [start, end]) => sum + end - start, 0);

/** What a rank's GPU did. @param {string} file @returns {RankSpans} */
function spansOf(file) {
  const { traceEvents } = JSON.parse(gunzipSync(readFileSync(file)).toString());
  /** @type {Span[]} */
  const computing = [];
  /** @type {Map<number, Span[]>} */
  const messages = new Map();
  for (const { ph, cat, name, ts, dur, args } of traceEvents) {
    if (ph !== 'X' || !['kernel', 'gpu_memcpy', 'gpu_memset'].includes(cat)) continue;
    /** @type {Span} */
    const span = [ts / 1000, (ts + dur) / 1000];
    if (!/nccl/i.test(name)) computing.push(span);
    else messages.set(args.stream, [...(messages.get(args.stream) ?? []), span]);
  }
  return { computing: merged(computing, 0.1), messages: [...messages.values()] };
}

/** @param {RankSpans[]} ranks */
function draw(ranks) {
  const all = ranks.flatMap(({ computing }) => computing);
  const [begin, end] = [Math.min(...all.map(([start]) => start)), Math.max(...all.map(([, stop]) => stop))];
  const [left, width, row] = [150, 1000, 22];
  const at = (/** @type {number} */ ms) => left + ((ms - begin) / (end - begin)) * width;
  /** @type {string[]} */
  const parts = [];
  let y = 30;
  const text = (/** @type {string} */ words, /** @type {number} */ x, /** @type {number} */ where, more = '') =>
    parts.push(`<text x="${x}" y="${where}" ${more}>${words}</text>`);
  const bars = (/** @type {string} */ name, /** @type {Span[]} */ spans, /** @type {string} */ colour) => {
    text(name, left - 8, y + 15, 'text-anchor="end"');
    parts.push(`<rect x="${left}" y="${y}" width="${width}" height="${row - 4}" fill="#8881"/>`);
    for (const [start, stop] of spans) {
      if (stop < begin || start > end) continue;
      const w = Math.max(0.6, at(Math.min(stop, end)) - at(Math.max(start, begin)));
      parts.push(
        `<rect x="${at(Math.max(start, begin)).toFixed(1)}" y="${y}" width="${w.toFixed(1)}" height="${row - 4}" fill="${colour}"/>`,
      );
    }
    y += row;
  };
  ranks.forEach(({ computing, messages }, rank) => {
    bars(`rank ${rank} computes`, computing, '#4c78a8');
    messages.forEach((spans) => bars('messages', spans, '#e4923b'));
    y += 10;
  });
  const step = 10 ** Math.floor(Math.log10(end - begin));
  for (let ms = 0; ms <= end - begin; ms += step / 2) {
    parts.push(`<line x1="${at(begin + ms)}" x2="${at(begin + ms)}" y1="24" y2="${y}" stroke="#8884"/>`);
    text(`${ms.toFixed(0)} ms`, at(begin + ms), 18, 'text-anchor="middle"');
  }
  const size = `viewBox="0 0 ${left + width + 30} ${y + 10}" width="${left + width + 30}" height="${y + 10}"`;
  return `<svg xmlns="http://www.w3.org/2000/svg" ${size} font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="#fff"/>${parts.join('\n')}</svg>\n`;
}

const { values: flags } = parseArgs({
  options: { out: { type: 'string' }, rank: { type: 'string' }, draw: { type: 'string' } },
});
if (flags.rank !== undefined) main(flags.rank);
else {
  const folder = flags.draw ?? flags.out ?? '.';
  if (flags.draw === undefined) {
    const port = await distributed.freePort();
    const codes = await Promise.all(
      Array.from({ length: RANKS }, (_, rank) => {
        const child = spawn(process.execPath, [fileURLToPath(import.meta.url), '--rank', folder], {
          stdio: 'inherit',
          timeout: 90_000,
          killSignal: 'SIGKILL',
          env: { ...process.env, ...rankEnvironment(rank, RANKS, port) },
        });
        return new Promise((resolve) => child.on('close', resolve));
      }),
    );
    if (codes.some((code) => code !== 0)) throw new Error(`the ranks ended with ${codes.join(' and ')}`);
  }
  const ranks = Array.from({ length: RANKS }, (_, rank) => spansOf(join(folder, `rank${rank}.json.gz`)));
  ranks.forEach(({ computing, messages }, rank) => {
    const sent = merged(messages.flat(), 0);
    const under = shared(sent, computing);
    console.log(
      `rank ${rank}: computes ${total(computing).toFixed(1)} ms; messages are open for ${total(sent).toFixed(1)} ms, ${((100 * under) / total(sent)).toFixed(0)}% of it under computing`,
    );
  });
  writeFileSync(join(folder, 'gpu-step.svg'), draw(ranks));
}
