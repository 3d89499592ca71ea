// @ts-check
/**
 * @file Loads spoilt safetensors files in a child process: `node tests/fuzz/safetensors.mjs --files 2000 --seed 1`. Every
 * file loads or is refused with an error of ours; a crash, a hang, another error, or memory beyond the limit fails the run.
 */
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

const { values: flags } = parseArgs({
  options: { files: { type: 'string', default: '2000' }, seed: { type: 'string', default: '1' } },
});
const files = Number(flags.files);
const perChild = 500;
const hangMs = 120_000;
/** The largest file has 12 MB, of which the header's text and its objects are made. */
const grownLimitMb = 1500;

const child = fileURLToPath(new URL('safetensors/load-files.mjs', import.meta.url));
const folder = mkdtempSync(join(tmpdir(), 'fuzz-safetensors-'));
/** @type {Record<string, { loaded: number, refused: number }>} */
const counts = {};
/** @type {string[]} */
const unexpected = [];
let grownMb = 0;

for (let from = 0; from < files; from += perChild) {
  const to = Math.min(files, from + perChild);
  const result = spawnSync(process.execPath, [child, flags.seed, String(from), String(to), folder], {
    encoding: 'utf8',
    timeout: hangMs,
    env: { ...process.env, OMP_NUM_THREADS: '1' },
  });
  if (result.status !== 0) {
    const why = result.error ? 'does not end' : (result.signal ?? `status ${result.status}`);
    unexpected.push(`${readFileSync(join(folder, 'at'), 'utf8')}: the child ${why}: ${result.stderr.slice(0, 500)}`);
    continue;
  }
  const report = JSON.parse(result.stdout);
  unexpected.push(...report.unexpected);
  grownMb = Math.max(grownMb, report.grownMb);
  for (const [kind, { loaded, refused }] of Object.entries(report.counts)) {
    const count = (counts[kind] ??= { loaded: 0, refused: 0 });
    count.loaded += loaded;
    count.refused += refused;
  }
}
rmSync(folder, { recursive: true });

console.log(`${files} files, seed ${flags.seed}; memory grew by ${grownMb.toFixed(0)} MB at most\n`);
console.log('| spoilt in | loaded | refused |\n| --- | --: | --: |');
for (const [kind, { loaded, refused }] of Object.entries(counts)) console.log(`| ${kind} | ${loaded} | ${refused} |`);
if (grownMb > grownLimitMb) unexpected.push(`memory grew by ${grownMb.toFixed(0)} MB, the limit is ${grownLimitMb}`);
for (const each of unexpected) console.log(`unexpected: ${each}`);
process.exitCode = unexpected.length > 0 ? 1 : 0;
