/** @file Building a tiny addon with our CMake files: once per key, again after a change, whole after kills. */
import { spawn, spawnSync } from 'node:child_process';
import { cpSync, existsSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
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
} from '../../../testing/fake-machine.ts';
import type { Places } from '../base/places.ts';
import { describeLibtorch, type Libtorch } from '../libtorch/find-libtorch.ts';
import { chooseAddon, loadAddon } from '../load-addon.ts';
import { type BuildResult, buildAddon, numJobs, removeOld } from './build-addon.ts';
import { listAddons } from './key.ts';

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

test('projects of a user share addons, and each keeps its own while its sources differ', async () => {
  const first = await build();
  const nativeDir = join(machine.root, 'other-native');
  cpSync(places.nativeDir, nativeDir, { recursive: true });
  const other: Places = { ...places, nativeDir, stateDir: join(machine.root, 'other-state') };
  const buildOther = (): Promise<BuildResult> =>
    buildAddon(libtorch(), {
      places: { ...other, buildDir: join(other.stateDir, 'build'), lockFile: join(other.stateDir, 'setup.lock') },
      env: machine.env,
      progress: new HeardProgress(),
    });
  expect(await buildOther()).toMatchObject({ built: false, dir: first.dir });
  writeFileSync(join(nativeDir, 'core/answer.cc'), addonSource(43));
  expect(chooseAddon(other, machine.env).dir).toBe(first.dir); // edited, not yet built
  const second = await buildOther();
  expect(second.built).toBe(true);
  expect(chooseAddon(other, machine.env).dir).toBe(second.dir);
  expect(chooseAddon(places, machine.env).dir).toBe(first.dir);
  expect(answer()).toBe('42');
  // Without a note, as in an installed package, the sources decide.
  rmSync(join(places.stateDir, 'used-addon.json'));
  rmSync(join(other.stateDir, 'used-addon.json'));
  expect([chooseAddon(places, machine.env).dir, chooseAddon(other, machine.env).dir]).toEqual([first.dir, second.dir]);
  writeFileSync(source, addonSource(44));
  expect(() => chooseAddon(places, machine.env)).toThrow(expect.objectContaining({ code: 'ADDON_NOT_BUILT' }));
});

test('old addons go, those in use and those of others stay', async () => {
  const dirs: string[] = [];
  for (let i = 0; i < 5; i++) {
    writeFileSync(source, addonSource(i));
    dirs.push((await build()).dir);
  }
  const there = (): number[] => dirs.flatMap((dir, i) => (existsSync(dir) ? [i] : []));
  const day = 24 * 3600e3;
  removeOld(places);
  expect(there()).toEqual([0, 1, 2, 3, 4]);
  removeOld({ ...places, nativeDir: join(machine.root, 'elsewhere') }, Date.now() + 2 * day);
  expect(there()).toEqual([0, 1, 2, 3, 4]);
  removeOld(places, Date.now() + 2 * day);
  expect(there()).toEqual([2, 3, 4]);
  removeOld(places, Date.now() + 40 * day);
  expect(there()).toEqual([4]); // the one in use
});

test('an edited file is compiled by itself, and the others only once without it', async () => {
  const log = (): string =>
    readFileSync(join(places.buildDir, readdirSync(places.buildDir)[0] ?? '', 'addon.log'), 'utf8');
  const compiled = (): string[] =>
    [...log().matchAll(/Building CXX object \S*?([\w-]+)\.(?:cc|cxx)\.o/g)].map((m) => m[1] ?? '').sort();
  await build();
  expect(compiled()).toEqual(['unity_core_cxx']);
  writeFileSync(source, addonSource(43));
  await build();
  expect(compiled()).toEqual(['answer', 'unity_core_cxx']);
  writeFileSync(source, addonSource(44));
  await build();
  expect(compiled()).toEqual(['answer']);
  expect(answer()).toBe('44');
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
  const url = (name: string): string => new URL(`../../../dist/setup/${name}.js`, import.meta.url).href;
  const code = `const { buildAddon } = await import('${url('addon/build-addon')}');
    const { silent } = await import('${url('base/progress')}');
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
