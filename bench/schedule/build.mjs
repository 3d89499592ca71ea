/**
 * @file Generate, lower and validate, each in a process of its own, against PyTorch's generate and lower.
 * Times are milliseconds of processor time. Run: npm run build && node bench/schedule/build.mjs [--reference PYTHON] [--large]
 * PYTHON is a Python with torch installed; --large adds 1,024 ranks x 8 stages x 4,096 microbatches.
 */
import { execFileSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';

const self = fileURLToPath(import.meta.url);
const [command, ...rest] = process.argv.slice(2);

if (command === 'one') await one(rest);
else all(process.argv.slice(2));

/**
 * One process, printed as JSON: the first run as a user meets it, and the least of ten more runs.
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
  const run = () => {
    const cpu = process.cpuUsage();
    const laps = [performance.now()];
    /** @type {import('@pipewright/schedule').Schedule | null} */
    let built = buildSchedule(name, shape);
    laps.push(performance.now());
    const lowered = lower(built, options);
    built = null;
    laps.push(performance.now());
    const violations = validate(lowered).length;
    laps.push(performance.now());
    const { user, system } = process.cpuUsage(cpu);
    const [generateMs, lowerMs, validateMs] = laps.slice(1).map((time, i) => time - (laps[i] ?? 0));
    const wallMs = (laps[3] ?? 0) - (laps[0] ?? 0);
    return { generateMs, lowerMs, validateMs, wallMs, cpuMs: (user + system) / 1e3, actions: lowered.size, violations };
  };
  const first = run();
  const more = first.actions > 1e7 ? [first] : Array.from({ length: 10 }, run);
  const againCpuMs = Math.min(...more.map(({ cpuMs }) => cpuMs));
  console.log(JSON.stringify({ ...first, againCpuMs, memoryMb: process.resourceUsage().maxRSS / 1024 }));
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
    '| schedule | shape | actions | ours, first run | ours, again | as PyTorch orders it, first run | again | PyTorch | ours / PyTorch, first run and again |',
  );
  console.log('| --- | --- | --: | --: | --: | --: | --: | --: | --: |');
  for (const configuration of configurations) {
    const own = best(configuration, 'default');
    const torch = best(configuration, 'torch');
    const script = fileURLToPath(new URL('../python/schedule.py', import.meta.url));
    const reference = python === undefined ? undefined : run(python, [script, ...configuration.map(String)]);
    const [name, ...shape] = configuration;
    const share = (/** @type {number} */ ms) =>
      reference === undefined ? '–' : `${((100 * ms) / reference.cpuMs).toFixed(2)}%`;
    const cells = [
      name,
      shape.join(' x '),
      own.actions,
      own.cpuMs,
      own.againCpuMs,
      torch.cpuMs,
      torch.againCpuMs,
      reference?.cpuMs ?? '–',
      `${share(own.cpuMs)}, ${share(own.againCpuMs)}`,
    ];
    console.log(`| ${cells.map((cell) => (typeof cell === 'number' ? cell.toFixed(0) : cell)).join(' | ')} |`);
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
  return [0, 1, 2].map(() => measure(configuration, mode)).reduce((a, b) => (b.cpuMs < a.cpuMs ? b : a));
}
