/**
 * @file How the time to build, lower and validate grows with ranks and with microbatches, for every schedule. In proportion
 * to the number of actions means: nanoseconds per action stay level, or fall, from one row to the next. Processor time.
 * Run: npm run build && node bench/schedule/growth.mjs [NAME ...]
 */
import { execFileSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { buildSchedule, lower, scheduleDefinitions, validate } from '@pipewright/schedule';

const self = fileURLToPath(import.meta.url);
const [command, ...rest] = process.argv.slice(2);

if (command === 'one') one(rest[0] ?? '', Number(rest[1]), Number(rest[2]));
else all(process.argv.slice(2));

/**
 * One shape in a process of its own, printed as JSON.
 * @param {string} name @param {number} ranks @param {number} microbatches
 */
function one(name, ranks, microbatches) {
  buildSchedule(name, { ranks: 4, microbatches: 8 });
  const now = () => {
    const { user, system } = process.cpuUsage();
    return (user + system) / 1e3;
  };
  const laps = [now()];
  const built = buildSchedule(name, { ranks, microbatches });
  laps.push(now());
  const lowered = lower(built);
  laps.push(now());
  validate(lowered);
  laps.push(now());
  const [buildMs, lowerMs, validateMs] = laps.slice(1).map((time, i) => time - (laps[i] ?? 0));
  console.log(
    JSON.stringify({ buildMs, lowerMs, validateMs, actions: lowered.size, mb: process.resourceUsage().maxRSS / 1024 }),
  );
}

/** @param {string[]} only */
function all(only) {
  console.log(
    '| schedule | ranks x microbatches | actions | build ms | lower ms | validate ms | ns per action | memory MB |',
  );
  console.log('| --- | --- | --: | --: | --: | --: | --: | --: |');
  for (const { name } of scheduleDefinitions) {
    if (only.length > 0 && !only.includes(name)) continue;
    // AdaptiveV searches over building blocks, whose number grows with the ranks.
    const shapes =
      name === 'AdaptiveV'
        ? [
            [8, 64],
            [8, 128],
            [16, 64],
          ]
        : [
            [512, 16],
            [1024, 16],
            [2048, 16],
            [4096, 16],
            [64, 256],
            [64, 512],
            [64, 1024],
            [64, 2048],
          ];
    for (const [ranks, microbatches] of shapes) {
      const text = execFileSync(process.execPath, [self, 'one', name, String(ranks), String(microbatches)], {
        encoding: 'utf8',
      });
      const { buildMs, lowerMs, validateMs, actions, mb } = JSON.parse(text);
      const perAction = ((buildMs + lowerMs + validateMs) * 1e6) / actions;
      const cells = [actions, buildMs, lowerMs, validateMs, perAction, mb].map((value) => value.toFixed(0));
      console.log(`| ${name} | ${ranks} x ${microbatches} | ${cells.join(' | ')} |`);
    }
  }
}
