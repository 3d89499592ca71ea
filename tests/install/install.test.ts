/**
 * @file What a new user does: in an empty folder, with Node and Python and nothing else in PATH, the packed tarballs are installed,
 * the doctor is asked, a strict TypeScript program is checked and trains, on threads and on processes.
 */
import { type SpawnSyncReturns, spawnSync } from 'node:child_process';
import {
  copyFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { packAll } from '../../scripts/pack.mjs';

const here = dirname(fileURLToPath(import.meta.url));
const root = join(here, '../..');
const folder = mkdtempSync(join(tmpdir(), 'pipewright-install-'));
const project = join(folder, 'project');
const tarballs = join(folder, 'tarballs');
const bin = join(folder, 'bin');
afterAll(() => rmSync(folder, { recursive: true, force: true }));

/** Links to a few programs; a compiler or CMake is not among them. Python is what the user has, found by its own path. */
function fillPath(): void {
  mkdirSync(bin);
  const link = (name: string, target: string): void => symlinkSync(target, join(bin, name));
  link('node', process.execPath);
  const where = (name: string): string =>
    spawnSync('sh', ['-c', `command -v ${name}`], { encoding: 'utf8' }).stdout.trim();
  for (const name of ['sh', 'cat', 'npm', 'npx', 'env']) link(name, where(name));
  const python = spawnSync('python3', ['-c', 'import sys; print(sys.executable)'], { encoding: 'utf8' }).stdout.trim();
  link('python3', python);
}

/** The wheels that this machine has downloaded before, and nothing else, are in the user's cache. */
function environment(): NodeJS.ProcessEnv {
  const wheels = join(
    process.env['PIPEWRIGHT_CACHE'] ??
      join(process.env['XDG_CACHE_HOME'] ?? join(process.env['HOME'] ?? '', '.cache'), 'pipewright'),
    'wheels',
  );
  const cache = join(folder, 'cache');
  mkdirSync(cache);
  if (existsSync(wheels)) symlinkSync(wheels, join(cache, 'wheels'));
  const env: NodeJS.ProcessEnv = {
    ...process.env,
    PATH: bin,
    PIPEWRIGHT_CACHE: cache,
    NO_COLOR: '1',
    npm_config_loglevel: 'error',
  };
  for (const name of Object.keys(env))
    if (
      /^(PIPEWRIGHT_(HOME|LIBTORCH|ADDON|CUDA_ADDON)|CXX|CMAKE_.*|npm_(?!config_loglevel).*|NODE_OPTIONS|VITEST.*|NODE_ENV)$/.test(
        name,
      )
    )
      delete env[name];
  return { ...env, npm_config_loglevel: 'error' };
}

let env: NodeJS.ProcessEnv;
let files: string[];
function run(command: string, ...args: string[]): SpawnSyncReturns<string> {
  return spawnSync(join(bin, command), args, { cwd: project, env, encoding: 'utf8', timeout: 400_000 });
}

beforeAll(async () => {
  files = await packAll(tarballs);
  fillPath();
  env = environment();
  mkdirSync(project);
});

test('every package has what a reader looks for, and no tests or leftovers of the build', () => {
  expect(files.map((file) => basename(file)).sort()).toEqual(readdirSync(tarballs).sort());
  for (const file of files) {
    const names = spawnSync('tar', ['-tzf', file], { encoding: 'utf8' }).stdout.split('\n');
    expect(names, file).toEqual(
      expect.arrayContaining(['package/README.md', 'package/LICENSE', 'package/dist/index.js']),
    );
    expect(names.filter((name) => /\.test\.|tsbuildinfo|\/testing\//.test(name))).toEqual([]);
  }
  for (const dir of readdirSync(join(root, 'packages'))) {
    const license = join(root, 'packages', dir, 'LICENSE');
    if (existsSync(license)) expect(readFileSync(license, 'utf8')).toBe(readFileSync(join(root, 'LICENSE'), 'utf8'));
  }
});

test('install, doctor, types, training', () => {
  const times: string[] = [];
  const started = performance.now();
  let last = started;
  const phase = (name: string): void => {
    const now = performance.now();
    times.push(`${name} ${((now - last) / 1000).toFixed(1)}`);
    last = now;
  };
  const typescript = join(root, 'node_modules/typescript');
  writeFileSync(join(project, 'package.json'), '{ "private": true, "type": "module" }\n');
  const installed = run('npm', 'install', '--prefer-offline', '--no-audit', '--no-fund', ...files, typescript);
  expect(installed.status, installed.stderr).toBe(0);
  phase('npm install');

  const before = run('npx', 'pipewright', 'doctor');
  expect(before.status, before.stderr).toBe(1);
  expect(before.stdout).toMatch(/missing +libtorch +not found[^]*npx pipewright setup/);
  expect(before.stdout).toMatch(/absent +C\+\+ compiler/);
  expect(before.stdout).toMatch(/ok +addon +came with the package/);
  phase('doctor');

  const setup = run('npx', 'pipewright', 'setup');
  expect(setup.status, setup.stderr).toBe(0);
  expect(setup.stderr).not.toContain('compile');
  phase('setup');
  const doctor = run('npx', 'pipewright', 'doctor');
  expect(doctor.stdout + doctor.stderr).toContain('Nothing that is needed is missing.');
  expect(doctor.stdout).toMatch(/CUDA addon +none came with the package; built by: npx pipewright setup --cuda/);
  expect(doctor.status).toBe(0);
  phase('doctor');

  copyFileSync(join(here, 'train.ts'), join(project, 'train.ts'));
  const options = {
    target: 'ES2023',
    module: 'NodeNext',
    strict: true,
    noEmit: true,
    types: [],
    skipLibCheck: false,
    lib: ['ES2023', 'ESNext.Disposable'],
  };
  writeFileSync(
    join(project, 'tsconfig.json'),
    JSON.stringify({ compilerOptions: { ...options, lib: [...options.lib, 'DOM'] }, files: ['train.ts'] }),
  );
  const checked = run('npx', 'tsc', '-p', '.');
  expect(checked.stdout).toBe('');
  expect(checked.status).toBe(0);
  phase('tsc');

  const results = ['--threads', '--processes'].map((mode) => {
    const trained = run('npx', 'pipewright', 'run', '-n', '3', mode, 'train.ts');
    expect(trained.status, trained.stderr).toBe(0);
    const [, first, end] = /first ([\d.]+) last ([\d.]+)/.exec(trained.stdout) ?? [];
    expect(Number(end)).toBeLessThan(Number(first) / 2);
    phase(`run ${mode}`);
    return [first, end];
  });
  expect(results[0]).toEqual(results[1]);
  console.log(
    `from npm install to trained twice: ${((performance.now() - started) / 1000).toFixed(1)} s (${times.join(', ')})`,
  );
});
