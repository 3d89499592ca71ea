// @ts-check
/**
 * @file `npm test`: brings what is missing, runs all tests, and ends with one line, `N passed, N failed`. Arguments go
 * to vitest, for example `npm test -- lock`.
 */
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, rmSync } from 'node:fs';
import { delimiter, join } from 'node:path';
import { bootstrap, root } from './bootstrap.mjs';

const BROWSERS = ['chromium', 'chromium-browser', 'google-chrome', 'google-chrome-stable'];

/**
 * Runs vitest over the whole workspace and prints the last line; returns the exit code. Checks that failed before count too.
 * @param {string[]} args
 * @param {readonly string[]} [failedChecks]
 */
export function runTests(args, failedChecks = []) {
  const results = join(root, '.pipewright', `test-results-${process.pid}.json`);
  mkdirSync(join(root, '.pipewright'), { recursive: true });
  const chromium = findChromium();
  if (chromium === undefined) console.log('no Chromium on this machine: tests in a browser are left out');
  const { status } = spawnSync(
    process.execPath,
    [
      ...[join(root, 'node_modules/vitest/vitest.mjs'), 'run', '--reporter=default', '--reporter=json'],
      ...[`--reporter=${join(root, 'scripts/vitest-hang.mjs')}`],
      ...[`--outputFile.json=${results}`, ...args],
    ],
    {
      cwd: root,
      stdio: ['ignore', 'inherit', 'inherit'],
      env: { ...process.env, ...(chromium === undefined ? {} : { PIPEWRIGHT_CHROMIUM: chromium }) },
    },
  );
  const { passed, failed } = countTests(results);
  rmSync(results, { force: true });
  // A test file that cannot be loaded, or an error outside of any test, has no test of its own to fail.
  const outside = status !== 0 && failed === 0 ? 1 : 0;
  const failures = failed + outside + failedChecks.length;
  if (outside > 0) console.log('an error outside of the tests is counted as one failure');
  for (const name of failedChecks) console.log(`the check of ${name} failed (above) and is counted as one failure`);
  console.log(`${passed} passed, ${failures} failed`);
  return failures === 0 ? 0 : 1;
}

/** @param {string} file */
function countTests(file) {
  if (!existsSync(file)) return { passed: 0, failed: 0 };
  const { numPassedTests, numFailedTests } = JSON.parse(readFileSync(file, 'utf8'));
  return { passed: Number(numPassedTests), failed: Number(numFailedTests) };
}

function findChromium() {
  const folders = (process.env['PATH'] ?? '').split(delimiter);
  const places = BROWSERS.flatMap((name) => folders.map((folder) => join(folder, name)));
  return [process.env['PIPEWRIGHT_CHROMIUM'] ?? '', join(root, '.chromium/chromium'), ...places].find(
    (path) => path !== '' && existsSync(path),
  );
}

if (process.argv[1] === join(root, 'scripts/test.mjs')) {
  await bootstrap();
  process.exitCode = runTests(process.argv.slice(2));
}
