/**
 * @file Generate, lower and validate, each in a process of its own, against PyTorch's generate and lower.
 * Run: npm run build && node bench/schedule.mjs [--reference PYTHON] [--large]
 * PYTHON is a Python with torch installed; --large adds 1,024 ranks x 8 stages x 4,096 microbatches.
 */
import { execFileSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';

const self = fileURLToPath(import.meta.url);
const [command, ...rest] = process.argv.slice(2);

if (command === 'one') await one(rest);
else all(process.argv.slice(2));

/**
 * One measurement, printed as JSON: cold, as a user meets it.
 * @param {string[]} args
 */
async function one([name = '', ranks, stagesPerRank, microbatches, mode]) {
  const { buildSchedule, lower, validate } = await import('@pipewright/schedule');
  const options = mode === 'torch' ? { compat: /** @type {const} */ ('torch') } : {};
  const shape = {
    ranks: Number(ranks),
    stagesPerRank: Number(stagesPerRank),
    microbatches: Number(microbatches),
    ...options,
  };
  const laps = [process.hrtime.bigint()];
  const cpu = process.cpuUsage();
  const lap = () => laps.push(process.hrtime.bigint());
  /** @type {import('@pipewright/schedule').Schedule | null} */
  let built = buildSchedule(name, shape);
  lap();
  const lowered = lower(built, options);
  built = null;
  lap();
  const violations = validate(lowered);
  lap();
  const used = process.cpuUsage(cpu);
  const [generateMs, lowerMs, validateMs] = laps.slice(1).map((time, i) => Number(time - (laps[i] ?? 0n)) / 1e6);
  const wallMs = Number((laps.at(-1) ?? 0n) - (laps[0] ?? 0n)) / 1e6;
  const cpuMs = (used.user + used.system) / 1e3;
  const memoryMb = process.resourceUsage().maxRSS / 1024;
  console.log(
    JSON.stringify({
      generateMs,
      lowerMs,
      validateMs,
      wallMs,
      cpuMs,
      memoryMb,
      actions: lowered.size,
      violations: violations.length,
    }),
  );
}

/** @param {string[]} args */
function all(args) {
  const python = args.includes('--reference') ? args[args.indexOf('--reference') + 1] : undefined;
  const configurations = [
    ['Interleaved1F1B', 8, 4, 64],
    ['ZBVZeroBubble', 16, 2, 128],
    ['InterleavedZeroBubble', 16, 4, 128],
    ['DualPipeV', 32, 2, 256],
    ['Interleaved1F1B', 64, 4, 512],
  ];
  console.log(
    '| schedule | ranks x stages x microbatches | actions | ours, ms (CPU) | as PyTorch orders it, ms (CPU) | PyTorch, ms (CPU) | its actions | ours / PyTorch |',
  );
  console.log('| --- | --- | --- | --- | --- | --- | --- | --- |');
  for (const configuration of configurations) {
    const own = best(configuration, 'default');
    const torch = best(configuration, 'torch');
    const reference =
      python === undefined
        ? undefined
        : run(python, [fileURLToPath(new URL('reference_schedule.py', import.meta.url)), ...configuration.map(String)]);
    const [name, ...shape] = configuration;
    const time = (/** @type {{ wallMs: number, cpuMs: number } | undefined} */ t) =>
      t === undefined ? '–' : `${t.wallMs.toFixed(0)} (${t.cpuMs.toFixed(0)})`;
    const ratio = reference === undefined ? '–' : `${((100 * own.wallMs) / reference.wallMs).toFixed(2)}%`;
    console.log(
      `| ${name} | ${shape.join(' x ')} | ${own.actions} | ${time(own)} | ${time(torch)} | ${time(reference)} | ${reference?.actions ?? '–'} | ${ratio} |`,
    );
  }
  if (!args.includes('--large')) return;
  for (const mode of ['default', 'torch']) {
    const { generateMs, lowerMs, validateMs, wallMs, cpuMs, memoryMb, actions } = measure(
      ['Interleaved1F1B', 1024, 8, 4096],
      mode,
    );
    const seconds = (/** @type {number} */ ms) => `${(ms / 1e3).toFixed(2)} s`;
    console.log(
      `\nInterleaved1F1B 1024 x 8 x 4096 (${mode}): ${actions} actions, generate ${seconds(generateMs)}, lower ${seconds(lowerMs)}, validate ${seconds(validateMs)}, in all ${seconds(wallMs)} (CPU ${seconds(cpuMs)}), ${memoryMb.toFixed(0)} MB`,
    );
  }
}

/** @param {string} program @param {string[]} args @returns {any} */
function run(program, args) {
  return JSON.parse(
    execFileSync(program, args, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] })
      .trim()
      .split('\n')
      .at(-1) ?? '',
  );
}

/** @param {(string | number)[]} configuration @param {string} mode */
function measure(configuration, mode) {
  const result = run(process.execPath, [self, 'one', ...configuration.map(String), mode]);
  if (result.violations > 0) throw new Error(`${configuration.join(' ')}: ${result.violations} violations`);
  return result;
}

/**
 * The fastest of three processes.
 * @param {(string | number)[]} configuration @param {string} mode
 */
function best(configuration, mode) {
  return [0, 1, 2].map(() => measure(configuration, mode)).reduce((a, b) => (b.wallMs < a.wallMs ? b : a));
}
