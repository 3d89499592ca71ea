/** @file Building a tiny addon with our CMake files: once per key, again after a change, whole after kills. */
import { spawn, spawnSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import {
  addonSource,
  type FakeMachine,
  fakeMachine,
  fakeNative,
  HeardProgress,
  pathWith,
  pathWithout,
} from '../../testing/fake-machine.ts';
import { listAddons } from './addon-key.ts';
import { type BuildResult, buildAddon, numJobs } from './build-addon.ts';
import { describeLibtorch, type Libtorch } from './find-libtorch.ts';
import { chooseAddon, loadAddon } from './load-addon.ts';
import type { Places } from './places.ts';

let machine: FakeMachine;
let places: Places;
let torchDir: string;
let source: string;
beforeEach(() => {
  machine = fakeMachine();
  ({ places, torchDir, source } = fakeNative(machine));
  machine.env['PIPEWRIGHT_LIBTORCH'] = torchDir;
});
afterEach(() => machine.dispose());

function libtorch(): Libtorch {
  const found = describeLibtorch('PIPEWRIGHT_LIBTORCH', torchDir);
  if (typeof found === 'string') throw new Error(found);
  return found;
}

function build(env: NodeJS.ProcessEnv = machine.env): Promise<BuildResult> {
  return buildAddon(libtorch(), { places, env, progress: new HeardProgress() });
}

/** In a process of its own: a loaded addon stays loaded. */
function answer(): string {
  const { dir } = chooseAddon(places, machine.env);
  const code = 'console.log(require(process.argv[1]).answer)';
  return spawnSync(process.execPath, ['-e', code, join(dir, 'pipewright.node')], { encoding: 'utf8' }).stdout.trim();
}

test('builds once, loads, and builds again when a source or libtorch has changed', async () => {
  const first = await build();
  expect(first.built).toBe(true);
  expect((loadAddon({ places, env: machine.env }) as { answer: number }).answer).toBe(42);
  expect((await build()).built).toBe(false);

  writeFileSync(source, addonSource(43));
  expect((await build()).built).toBe(true);
  expect(answer()).toBe('43');

  writeFileSync(source, addonSource(42)); // back again: the first addon is still there
  expect(await build()).toMatchObject({ built: false, dir: first.dir });
  expect(answer()).toBe('42');

  const versionFile = join(torchDir, 'version.py');
  writeFileSync(versionFile, readFileSync(versionFile, 'utf8').replace('2.15.0', '2.16.0'));
  expect(() => chooseAddon(places, machine.env)).toThrow(
    `the addon was built for libtorch 2.15.0+fake, but ${torchDir} is now 2.16.0+fake; build it with: npx pipewright setup`,
  );
  expect((await build()).built).toBe(true);
  expect(answer()).toBe('42');
});

test('a compiler that has gone does not matter to a finished addon', async () => {
  await build();
  expect((await build({ ...machine.env, PATH: pathWith(machine.root, ['node']), CXX: '' })).built).toBe(false);
});

test('builds with make where Ninja is not', async () => {
  const env = { ...machine.env, PATH: pathWithout(machine.root, ['ninja', 'ninja-build']) };
  expect((await build(env)).built).toBe(true);
  expect(answer()).toBe('42');
});

test('killed at random moments, the next run repairs it', async () => {
  const url = (name: string): string => new URL(`../../dist/setup/${name}.js`, import.meta.url).href;
  const code = `const { buildAddon } = await import('${url('build-addon')}');
    const { silent } = await import('${url('progress')}');
    const [libtorch, places] = JSON.parse(process.env.PIPEWRIGHT_TEST);
    await buildAddon(libtorch, { places, env: process.env, progress: silent });`;
  const env = { ...machine.env, PIPEWRIGHT_TEST: JSON.stringify([libtorch(), places]) };
  for (const delayMs of [300, 700, 1100, 1600, 2200].map((ms) => ms * (0.7 + 0.6 * Math.random()))) {
    const child = spawn(process.execPath, ['--input-type=module', '-e', code], { env, stdio: 'inherit' });
    const ended = new Promise((resolve) => child.once('exit', resolve));
    await Promise.race([sleep(delayMs), ended]);
    child.kill('SIGKILL');
    await ended;
    if (listAddons(places.addonDir).length > 0) expect(answer()).toBe('42');
    writeFileSync(source, addonSource(42).concat(`// ${delayMs}\n`));
  }
  await build();
  expect(answer()).toBe('42');
});

describe('what can go wrong', () => {
  test('a compile error is shown with the place of the whole output', async () => {
    writeFileSync(source, 'this is not C++\n');
    await expect(build()).rejects.toMatchObject({
      code: 'BUILD_FAILED',
      message: expect.stringMatching(/answer\.cc:1:1: error:[^]*The whole output: .*addon\.log/),
    });
    expect(listAddons(places.addonDir)).toEqual([]);
  });

  test('files that somebody keeps saving do not keep it building', async () => {
    let builds = 0;
    const progress = new HeardProgress();
    progress.end = () => writeFileSync(source, addonSource(42).concat(`// ${++builds}\n`));
    await expect(buildAddon(libtorch(), { places, env: machine.env, progress })).rejects.toMatchObject({
      code: 'BUILD_FAILED',
      message: `buildAddon: files in ${places.nativeDir} changed during each of 3 builds; stop editing them, then run: npx pipewright setup`,
    });
    expect([builds, listAddons(places.addonDir)]).toEqual([3, []]);
    expect((await build()).built).toBe(true);
  });

  test('an addon that does not load is not put in place', async () => {
    writeFileSync(
      source,
      addonSource(1).replace('napi_value value;', 'napi_value value; extern int nowhere(); nowhere();'),
    );
    await expect(build()).rejects.toMatchObject({
      code: 'ADDON_LOAD_FAILED',
      message: expect.stringContaining('nowhere'),
    });
    expect(listAddons(places.addonDir)).toEqual([]);
  });

  test.each([
    ['a C++ compiler (c++, g++ or clang++)', ['cmake', 'make', 'apt-get'], 'g++'],
    ['CMake', ['c++', 'make', 'apt-get'], 'cmake'],
    ['Ninja or make', ['c++', 'cmake', 'apt-get'], 'ninja-build'],
  ])('without %s', async (name, programs, bring) => {
    const env = { ...machine.env, PATH: pathWith(machine.root, programs), CXX: '' };
    await expect(build(env)).rejects.toMatchObject({
      code: 'BUILD_TOOL_NOT_FOUND',
      message: expect.stringMatching(
        new RegExp(
          `^buildAddon: ${name.replace(/[()+]/g, '\\$&')} is needed.*install -y ${bring.replaceAll('+', '\\+')}$`,
        ),
      ),
    });
  });
});

test('jobs: what was asked for, else what memory allows', () => {
  expect(numJobs({ PIPEWRIGHT_JOBS: '3' })).toBe(3);
  expect(numJobs({ PIPEWRIGHT_JOBS: 'many' })).toBeGreaterThan(0);
});
