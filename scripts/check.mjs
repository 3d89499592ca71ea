// @ts-check
/**
 * @file `npm run check`: what CI runs and what a change must pass: types, lint, format, layers, exports, packages, generated code, tests.
 * Every step runs even if an earlier one fails. `npm run check -- --no-tests` leaves the tests out.
 */
import { spawnSync } from 'node:child_process';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { bootstrap, root } from './bootstrap.mjs';
import { runTests } from './test.mjs';

/** A script of an npm package, run with this Node. @param {string} path */
const bin = (path) => join(root, 'node_modules', path);

/** @type {{ name: string, args: string[] }[]} */
const steps = [
  { name: 'types', args: [bin('typescript/bin/tsc'), '-p', 'tsconfig.tests.json'] },
  { name: 'lint', args: [bin('oxlint/bin/oxlint'), '--type-aware'] },
  { name: 'format', args: [bin('@biomejs/biome/bin/biome'), 'check', '.'] },
  { name: 'format of C++', args: ['scripts/check-native-format.mjs'] },
  { name: 'layers', args: ['scripts/check-layers.mjs'] },
  { name: 'exports', args: ['scripts/check-exports.mjs'] },
  { name: 'packages', args: ['scripts/check-packages.mjs'] },
  ...generators(),
];

/** Every script that writes generated code also checks it: ours with --check, a package's as `generate:check`. */
function generators() {
  const ours = readdirSync(join(root, 'scripts')).filter((file) => /^generate-.*\.mjs$/.test(file));
  const packages = readdirSync(join(root, 'packages')).filter((name) => {
    const manifest = join(root, 'packages', name, 'package.json');
    return existsSync(manifest) && JSON.parse(readFileSync(manifest, 'utf8')).scripts?.['generate:check'];
  });
  const npm = process.env['npm_execpath'] ?? bin('npm/bin/npm-cli.js');
  return [
    ...ours.map((file) => ({ name: `generated code (${file})`, args: [`scripts/${file}`, '--check'] })),
    ...packages.map((name) => ({
      name: `generated code (packages/${name})`,
      args: [npm, 'run', '--silent', 'generate:check', '-w', `packages/${name}`],
    })),
  ];
}

await bootstrap();
const failed = [];
for (const { name, args } of steps) {
  const start = performance.now();
  const { status } = spawnSync(process.execPath, args, { cwd: root, stdio: ['ignore', 'inherit', 'inherit'] });
  console.log(`${status === 0 ? 'ok    ' : 'FAILED'} ${name} (${((performance.now() - start) / 1000).toFixed(1)} s)`);
  if (status !== 0) failed.push(name);
}
if (process.argv.includes('--no-tests')) {
  if (failed.length > 0) console.error(`failed: ${failed.join(', ')}`);
  process.exitCode = failed.length === 0 ? 0 : 1;
} else process.exitCode = runTests([], failed);
