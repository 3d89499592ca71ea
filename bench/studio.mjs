// @ts-check
/**
 * @file The studio at its largest, and what watching costs: 64 ranks x 4 stages x 512 microbatches with all sends and receives
 * opened, panned and zoomed in Chromium; steps with and without somebody who watches, in turns.
 * Run: PIPEWRIGHT_CHROMIUM=/usr/bin/chromium node bench/studio.mjs
 */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { buildSchedule } from '@pipewright/schedule';
import { pageWith } from '@pipewright/studio';
import { distributed, nn, randn, scope } from '@pipewright/torch';
import { PipelineRuntime, PipelineStage, Recorder } from 'pipewright';
import { chromium } from 'playwright-core';
import { LiveFeed } from '../packages/pipewright/dist/recording/live-feed.js';
import { median } from './turns.mjs';

const LARGE = 'schedule=Interleaved1F1B&ranks=64&stages=4&microbatches=512&lowered=1&comm=0.1';
const FRAMES = 240;
const OPENINGS = 3;
const ROUNDS = 80;
/** Long enough for several lines: what is written follows the clock, which goes on while others have their turn. */
const TURN_MS = 250;

const folder = mkdtempSync(join(tmpdir(), 'pipewright-bench-'));
try {
  const executablePath = process.env['PIPEWRIGHT_CHROMIUM'];
  if (executablePath === undefined) console.log('PIPEWRIGHT_CHROMIUM is not set: the page is not measured');
  else console.table([await page(executablePath)]);
  console.table([watching(64, 8), watching(256, 128)]);
  console.table(ownWork());
} finally {
  rmSync(folder, { recursive: true });
}

/** The page with 787,456 actions; what the script takes is processor time, the rest depends on what else runs. @param {string} executablePath */
async function page(executablePath) {
  const file = join(folder, 'page.html');
  writeFileSync(file, pageWith({ files: [], events: null }));
  const browser = await chromium.launch({ executablePath, args: ['--no-sandbox', '--disable-gpu'], timeout: 60_000 });
  try {
    const opened = [];
    const script = [];
    const shown = await browser.newPage({ bypassCSP: true, viewport: { width: 1280, height: 800 } });
    const devtools = await shown.context().newCDPSession(shown);
    await devtools.send('Performance.enable', { timeDomain: 'threadTicks' });
    /** Processor time that the page's script has taken so far, in seconds. */
    const scriptTime = async () => {
      const { metrics } = await devtools.send('Performance.getMetrics');
      return metrics.find(({ name }) => name === 'ScriptDuration')?.value ?? Number.NaN;
    };
    for (let i = 0; i < OPENINGS; i++) {
      await shown.goto('about:blank');
      const before = await scriptTime();
      const begin = performance.now();
      await shown.goto(`${pathToFileURL(file).href}#${LARGE}`);
      await shown.waitForFunction('globalThis.pipewrightTimeline?.frameTimes.length > 0', null, { timeout: 120_000 });
      opened.push(performance.now() - begin);
      script.push((await scriptTime()) - before);
    }
    const beforeFrames = await scriptTime();
    const { drawn, apart } = await shown.evaluate(async (frames) => {
      const { pipewrightTimeline: timeline } =
        /** @type {{ pipewrightTimeline: { frameTimes: number[], zoomBy(f: number, x: number): void, panBy(p: number): void } }} */ (
          /** @type {unknown} */ (globalThis)
        );
      /** @type {number[]} */
      const drawn = [];
      /** @type {number[]} */
      const apart = [];
      let last = performance.now();
      for (let i = 0; i < frames; i++) {
        const phase = (i / frames) * 4;
        if (phase < 1) timeline.zoomBy(1.1, 600);
        else if (phase < 2) timeline.panBy(25);
        else if (phase < 3) timeline.zoomBy(1 / 1.1, 600);
        else timeline.panBy(-25);
        await new Promise((done) => requestAnimationFrame(done));
        const now = performance.now();
        apart.push(now - last);
        last = now;
        drawn.push(timeline.frameTimes.at(-1) ?? 0);
      }
      return { drawn, apart };
    }, FRAMES);
    const perFrame = ((await scriptTime()) - beforeFrames) / FRAMES;
    const worst = (/** @type {number[]} */ values) =>
      Number([...values].sort((a, b) => a - b)[Math.floor(values.length * 0.95)]);
    return {
      'open, s (least)': Number((Math.min(...opened) / 1000).toFixed(2)),
      'open, s (median)': Number((median(opened) / 1000).toFixed(2)),
      'open, s of script': Number(Math.min(...script).toFixed(2)),
      'frames/s (median)': Math.round(1000 / median(apart)),
      'frames/s (slowest 5%)': Math.round(1000 / worst(apart)),
      'frame, ms of script': Number((perFrame * 1000).toFixed(1)),
      'drawing, ms (median)': Number(median(drawn).toFixed(1)),
      'drawing, ms (slowest 5%)': Number(worst(drawn).toFixed(1)),
    };
  } finally {
    await browser.close();
  }
}

/**
 * Steps with and without a watcher: processor time. The same runtime takes turns, watched and not, so that the same tensors lie in
 * the same memory; turns are not, are, are, are not watched, so that a drift cancels out. The control is never watched. Only a quiet
 * machine tells: what is written follows the clock, and on a busy one steps look long.
 * @param {number} width @param {number} rows
 */
function watching(width, rows) {
  const [stageCount, microbatches] = [4, 8];
  distributed.setNumThreads(1);
  const schedule = buildSchedule('Interleaved1F1B', { ranks: 1, stages: stageCount, microbatches });
  const x = randn([rows * microbatches, width]);
  const stages = Array.from({ length: stageCount }, (_, i) => {
    const module = new nn.Sequential(new nn.Linear(width, width), new nn.GELU(), new nn.Linear(width, width));
    return new PipelineStage(module, i, stageCount);
  });
  const lossFn = (/** @type {import('@pipewright/torch').Tensor} */ y) => y.square().mean();
  process.env['PIPEWRIGHT_LIVE'] = join(folder, `live-${width}`);
  const runtime = new PipelineRuntime(stages, schedule, { lossFn });
  scope(() => void runtime.step(x, { returnOutputs: false })); // the files are opened here
  delete process.env['PIPEWRIGHT_LIVE'];
  const { recorder } = runtime;
  const { context } = /** @type {{ context: object }} */ (/** @type {unknown} */ (runtime));
  const time = (/** @type {boolean} */ watched, /** @type {number} */ steps) => {
    for (const one of [runtime, context]) Object.assign(one, { recorder: watched ? recorder : null });
    const before = process.cpuUsage();
    for (let i = 0; i < steps; i++) scope(() => void runtime.step(x, { returnOutputs: false }));
    const { user, system } = process.cpuUsage(before);
    return (user + system) / 1000 / steps;
  };
  const steps = Math.max(2, Math.round(TURN_MS / time(false, 20)));
  time(true, steps * 4);
  /** @type {number[]} */
  const without = [];
  const round = (/** @type {boolean} */ watched) => {
    const [a, b, c, d] = /** @type {[number, number, number, number]} */ (
      [false, watched, watched, false].map((one) => time(one, steps))
    );
    without.push(a, d);
    return (b + c) / (a + d);
  };
  /** @type {number[]} */
  const ratios = [];
  /** @type {number[]} */
  const control = [];
  for (let i = 0; i < ROUNDS; i++) {
    ratios.push(round(true));
    control.push(round(false));
  }
  const more = (/** @type {number[]} */ values) => `${((median(values) - 1) * 100).toFixed(2)}%`;
  return {
    'width x rows': `${width} x ${rows}`,
    'step, ms': Number(median(without).toFixed(2)),
    'watched, more': more(ratios),
    'control, more': more(control),
  };
}

/** What watching does in a step of 64 actions, alone: processor time, least of several. */
function ownWork() {
  const run = { rank: 0, device: 'cpu', process: 'bench:1', origin: 0, tokensPerStep: null, schedule: null };
  const column = Array.from({ length: 64 }, (_, i) => 1234.5678 + i / 7);
  const actions = { start: column, ready: column, stop: column, bytes: column, tensors: column };
  const details = { deviceBytes: null, heldBytes: 1000 };
  /** @param {string} what @param {() => void} work */
  const row = (what, work) => {
    for (let i = 0; i < 500; i++) work();
    const least = Array.from({ length: 7 }, () => {
      const before = process.cpuUsage();
      for (let i = 0; i < 1000; i++) work();
      const { user, system } = process.cpuUsage(before);
      return (user + system) / 1000;
    });
    return { 'a step': what, 'its own work, us': Number(Math.min(...least).toFixed(1)) };
  };
  process.env['PIPEWRIGHT_LIVE'] = join(folder, 'recorder');
  const recorder = Recorder.forWatching();
  const schedule = buildSchedule('1F1B', { ranks: 1, microbatches: 32 });
  recorder.attach({ schedule, group: null, device: 'cpu', actions: 64 });
  delete process.env['PIPEWRIGHT_LIVE'];
  const losses = Array.from({ length: 8 }, () => randn([]));
  const untimed = row('neither timed nor written yet', () => {
    recorder.beginStep(true);
    for (let i = 0; i < 64; i++) {
      recorder.begin(i);
      recorder.received(losses);
      recorder.end(i);
    }
    recorder.endStep(() => losses.reduce((sum, loss) => sum + Number(loss.item()), 0) / 8);
  });
  const written = [
    { what: 'written', given: null },
    { what: 'written, with the times of its actions', given: actions },
  ].map(({ what, given }) => {
    const feed = LiveFeed.open(join(folder, 'own'), run);
    if (feed === null) throw new Error('bench/studio.mjs: the folder of the bench cannot be written');
    let at = 0;
    const result = row(what, () => {
      const times = { begin: at * 2000, end: (at + 1) * 2000 };
      const step = { step: at, training: true, number: at++, ...times, loss: 1.25 };
      feed.step(step, given !== null, () => ({ ...details, processBytes: process.memoryUsage.rss(), actions: given }));
    });
    feed.close();
    return result;
  });
  return [untimed, ...written];
}
