// @ts-check
/**
 * @file Checks that the C++ files are formatted as `.clang-format` says; with `--write` it formats them. A machine without
 * clang-format checks nothing and says so.
 */
import { spawnSync } from 'node:child_process';
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const native = fileURLToPath(new URL('../packages/torch/native', import.meta.url));
const files = readdirSync(native, { recursive: true, encoding: 'utf8' })
  .filter((name) => /\.(cc|h)$/.test(name) && !/(^|[\\/])generated[\\/]/.test(name))
  .map((name) => join(native, name));

const how = process.argv.includes('--write') ? ['-i'] : ['--dry-run', '--Werror'];
const { error, status } = spawnSync('clang-format', ['--style=file', ...how, ...files], { stdio: 'inherit' });
if (error !== undefined && 'code' in error && error.code === 'ENOENT')
  console.log('clang-format is not on this machine: the format of C++ files is not checked');
else if (error !== undefined) throw error;
else if (status !== 0) {
  console.error('C++ files are not formatted; run: npm run format');
  process.exitCode = 1;
}
